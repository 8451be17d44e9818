//! Proofs of ledgers of members, as `coppice verify` shows them.

use coppice_types::Digest;
use coppice_verify::check::{Journal, JournalsClaim, LineageClaim};
use serde_json::{Map, Value, json};

use super::list;
use crate::{failure::Failure, output::Output, text::count};

pub fn put_journals(object: &mut Map<String, Value>, claim: &JournalsClaim, output: Output) -> Result<(), Failure> {
    object.insert("kind".to_owned(), json!("journals"));
    object.insert("ledger".to_owned(), json!(claim.ledger.to_string()));
    object.insert("ledger_size".to_owned(), json!(claim.size));
    object.insert("ledger_root".to_owned(), json!(claim.root.to_string()));
    let known = |(size, root): (u64, Digest)| json!({ "size": size, "root": root.to_string() });
    object.insert("known".to_owned(), claim.known.map_or(Value::Null, known));
    put_all(object, &claim.journals, output)
}

pub fn put_lineage(object: &mut Map<String, Value>, claim: &LineageClaim, output: Output) -> Result<(), Failure> {
    object.insert("kind".to_owned(), json!("lineage"));
    object.insert("ledger".to_owned(), json!(claim.ledger.to_string()));
    object.insert("clue_hash".to_owned(), json!(claim.clue.to_string()));
    object.insert("count".to_owned(), json!(claim.count));
    object.insert("complete".to_owned(), json!(claim.after == 0));
    put_all(object, &claim.journals, output)
}

fn put_all(object: &mut Map<String, Value>, journals: &[Journal], output: Output) -> Result<(), Failure> {
    let mut all = Vec::with_capacity(journals.len());
    for journal in journals {
        all.push(Value::Object(one(journal, output)?));
    }
    object.insert("journals".to_owned(), Value::Array(all));
    Ok(())
}

fn one(journal: &Journal, output: Output) -> Result<Map<String, Value>, Failure> {
    let leaf = &journal.leaf;
    let clues = leaf.clues.iter().map(|clue| json!({ "hash": clue.clue.to_string(), "ordinal": clue.ordinal }));
    let object = json!({
        "jsn": leaf.jsn,
        "kind": leaf.kind,
        "member_id": leaf.member.to_string(),
        "agent_id": leaf.agent.map(|agent| agent.to_string()),
        "public_key": Digest(leaf.key).to_string(),
        "signature_verified": journal.signed.is_some(),
        "lane": leaf.lane,
        "number": leaf.number,
        "epoch": leaf.stamp.epoch.0,
        "version": leaf.stamp.version.0,
        "leaf_hash": leaf.hash().to_string(),
        "request_hash": leaf.request.to_string(),
        "clues": clues.collect::<Vec<_>>(),
    });
    let Value::Object(mut object) = object else { unreachable!("an object was written") };
    if let Some(envelope) = &journal.envelope {
        let encoding = output.bytes(&mut object, "payload", &envelope.payload)?;
        object.insert("encoding".to_owned(), json!(encoding));
    }
    Ok(object)
}

pub fn describe_journals(claim: &JournalsClaim) -> String {
    let since = claim.known.map_or_else(String::new, |(size, _)| {
        format!("\n  the ledger's list has only grown since it had {}", count(size, "journal"))
    });
    let size = count(claim.size, "journal");
    let lines = list(claim.journals.iter().map(line));
    format!("ledger {} has {size} under root {}{since}{lines}", claim.ledger, claim.root)
}

pub fn describe_lineage(claim: &LineageClaim) -> String {
    let all = match claim.after {
        0 => format!("these {} are all", claim.count),
        _ => format!("these are the newest of {}", claim.count),
    };
    let lines = list(claim.journals.iter().map(line));
    format!("{all} journals of ledger {} with clue {}{lines}", claim.ledger, claim.clue)
}

/// A journal in one line.
fn line(journal: &Journal) -> String {
    let leaf = &journal.leaf;
    let signed = if journal.signed.is_some() { "signed by" } else { "of" };
    let payload = journal
        .envelope
        .as_ref()
        .map_or_else(String::new, |envelope| format!(", {}", count(envelope.payload.len() as u64, "byte")));
    format!("journal {} {signed} member {}, key {}{payload}", leaf.jsn, leaf.member, Digest(leaf.key))
}
