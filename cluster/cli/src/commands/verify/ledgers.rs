//! Proofs of ledgers of members, as `coppice verify` shows them to people.

use coppice_types::Digest;
use coppice_verify::check::{Journal, JournalsClaim, LineageClaim};

use super::list;
use crate::text::count;

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
