//! The logs of `cluster/verify/vectors/audits.json`: each contains a lie that only an auditor can
//! see.

use std::{collections::BTreeMap, fs, path::Path};

use coppice_verify::{
    checkpoint::origin,
    header::{Body, Header},
    journal::Entry,
};
use serde_json::Value;

use super::*;

/// An entry of a log, and what its ledger tells an auditor about it.
struct Told {
    header: Header,
    entries: Vec<Vec<u8>>,
    lists: BTreeMap<u32, Vec<Vec<u8>>>,
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("a text")).expect("hex")
}

fn list(value: &Value) -> Vec<Vec<u8>> {
    value.as_array().expect("a list").iter().map(bytes).collect()
}

fn told(entry: &Value) -> Told {
    let lists = entry["lists"].as_object().expect("an object").iter();
    Told {
        header: Header::decode(&bytes(&entry["header"])).expect("a header that is sound alone"),
        entries: list(&entry["journal"]),
        lists: lists.map(|(shard, lists)| (shard.parse().expect("a number"), list(lists))).collect(),
    }
}

/// Audits a log, fed with the messages that its ledger would send.
fn audited(log: &[Told]) -> Result<(), Stop> {
    let Body::Genesis(genesis) = &log[0].header.body else { panic!("a log begins with genesis") };
    let name = origin(&genesis.prefix, &log[0].header.cluster);
    let key = VerifierKey::new(&name, &genesis.public_key).expect("a key");
    let headers: Vec<Header> = log.iter().map(|told| told.header.clone()).collect();
    let book = Book::of(&headers, &key)?;
    let mut state = State::new(&book.founding);
    for version in 1..=book.head().0 {
        let line = book.line(Version(version));
        let told = log.iter().find(|told| told.header.hash() == line.hash).expect("it is of the log");
        let mut done = state.take(&book, Version(version), begins(told))?;
        let touched: BTreeMap<u32, ()> =
            told.entries.iter().flat_map(|entry| touched(entry)).map(|it| (it, ())).collect();
        for shard in touched.into_keys() {
            let lists = told.lists.get(&shard).cloned().unwrap_or_default();
            let message = v1::JournalResponse {
                shard,
                lists: lists.into_iter().map(Into::into).collect(),
                ..v1::JournalResponse::default()
            };
            done = state.take(&book, Version(version), message)?;
        }
        assert_eq!(done, Some(Version(version)), "it is complete");
        state.compare(line)?;
    }
    Ok(())
}

fn begins(told: &Told) -> v1::JournalResponse {
    let entries = told.entries.iter().map(|entry| entry.clone().into()).collect();
    v1::JournalResponse { header: told.header.encode().into(), entries, ..v1::JournalResponse::default() }
}

fn touched(entry: &[u8]) -> Vec<u32> {
    match Entry::decode(entry) {
        Ok(Entry::Batch(batch)) => batch.shards.iter().map(|(shard, _)| shard.0).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_rule_of_an_audit_is_checked() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/vectors/audits.json");
    let vectors: Value = serde_json::from_str(&fs::read_to_string(file).expect("it is there")).expect("JSON");
    let cases = vectors["cases"].as_array().expect("a list");
    let mut rules = std::collections::BTreeSet::new();
    for case in cases {
        let log: Vec<Told> = case["log"].as_array().expect("a list").iter().map(told).collect();
        let (name, sequence) = (&case["name"], case["sequence"].as_u64());
        match (audited(&log), sequence) {
            (Ok(()), None) => {}
            (Err(Stop::Differs(difference)), Some(sequence)) => {
                let header = &log[usize::try_from(sequence).expect("a place")].header;
                assert_eq!(difference.stamp, header.stamp, "{name}: {}", difference.what);
                rules.insert(case["rule"].as_u64().expect("a number"));
            }
            (Ok(()), Some(_)) => panic!("{name}: it is called sound"),
            (Err(Stop::Differs(difference)), None) => panic!("{name}: {}", difference.what),
            (Err(Stop::Failed(error)), _) => panic!("{name}: {error}"),
        }
    }
    assert_eq!(rules, (2..=15).collect(), "each rule finds something, except the one about a header alone");
}
