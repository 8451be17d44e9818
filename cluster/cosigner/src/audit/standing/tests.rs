//! The versions that stand, compared with those of the audit library, which keeps them all.

use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::{Change, ClusterId, Operation, Params};
use coppice_verify::{
    audit::Chain,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

use super::*;

fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map)
}

fn commit(ledger: &mut Ledger) {
    let operations = vec![Operation { key: b"k".to_vec().into(), change: Change::Put(b"v".to_vec().into()) }];
    ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("it follows");
}

/// A ledger of so many random events.
fn random(rng: &mut SimRng, events: u64) -> Ledger {
    let mut ledger = ledger();
    let (mut boundary, mut keys) = (0, 1);
    for _ in 0..events {
        let head = ledger.newest().stamp.version.0;
        match rng.below(20) {
            0 | 1 => ledger.roll_back(Version(boundary + rng.below(head - boundary + 1))),
            2 if head > boundary + 1 => {
                boundary += 1 + rng.below(head - boundary - 1);
                ledger.prune(Version(boundary));
            }
            3 if keys < 5 => {
                keys += 1;
                ledger.rotate(&[keys; 32]);
            }
            4 => ledger.append_unknown(9, vec![7]),
            _ => commit(&mut ledger),
        }
    }
    ledger
}

fn mirror(ledger: &Ledger, size: u64) -> Mirror {
    let mirror = Mirror::new(SimStorage::new().storage());
    let mut extension = mirror.extension(0).expect("a new mirror");
    let entries: Vec<Vec<u8>> = ledger.headers[..size as usize].iter().map(Header::encode).collect();
    for bundle in entries.chunks(256) {
        extension.push(&bundle.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("the disk is well");
    }
    mirror
}

fn lines(ledger: &Ledger, size: u64) -> Vec<Line> {
    let mut chain = Chain::default();
    for header in &ledger.headers[..size as usize] {
        chain.take(header.clone()).expect("the model follows the rules");
    }
    chain.into_lines()
}

#[test]
fn what_stands_is_what_the_library_keeps() {
    let mut vanished = 0;
    for seed in 0..40 {
        let mut rng = SimRng::new(seed);
        let events = 30 + rng.below(600);
        let log = random(&mut rng, events);
        let mirror = mirror(&log, log.headers.len() as u64);
        let mut standing = Standing::default();
        let mut size = 0;
        while size < log.headers.len() as u64 {
            size = (size + 1 + rng.below(200)).min(log.headers.len() as u64);
            standing.extend(&mirror, size).expect("a sound log");
            let expected = lines(&log, size);
            let mut found = Vec::new();
            let mut after = 0;
            loop {
                let some = standing.behind(&mirror, after, 7).expect("the disk is well");
                let Some((last, _)) = some.last() else { break };
                after = *last;
                found.extend(some.into_iter().map(|(_, line)| line));
            }
            assert_eq!(found, expected[1..], "seed {seed}, size {size}");
            let commits = log.headers[..size as usize].iter().filter(|header| header.body == Body::Commit).count();
            let gone = standing.vanished(&mirror, 0).expect("the disk is well");
            assert_eq!(gone, (commits - found.len()) as u64, "seed {seed}, size {size}");
            vanished += gone;
            for version in [0, rng.below(20), expected.len() as u64 - 1, expected.len() as u64] {
                let line = find(&mirror, size, Version(version)).expect("the disk is well").map(|(_, line)| line);
                assert_eq!(line.as_ref(), expected.get(version as usize), "seed {seed}, size {size}, {version}");
            }
        }
    }
    assert!(vanished > 100, "rollbacks take versions back");
}

#[test]
fn a_broken_rule_names_its_entry() {
    let mut log = ledger();
    (0..5).for_each(|_| commit(&mut log));
    log.roll_back(Version(2));
    let mut header = log.headers[6].clone();
    header.state_root = Digest([1; 32]);
    for (entry, part) in [(header.encode(), "header"), (b"nothing".to_vec(), "entry 6 of its log")] {
        let mirror = mirror(&log, 6);
        mirror.extension(6).expect("sound").push(&[&entry]).expect("the disk is well");
        let Err(Stop::Found(finding)) = Standing::default().extend(&mirror, 7) else { panic!("it is found") };
        assert_eq!(finding.entry, Some(6));
        assert!(finding.what.contains(part), "{}", finding.what);
        let file = String::from_utf8(finding.file("note", &mirror)).expect("a text");
        assert!(file.contains("coppice audit --from") && file.contains(&hex::encode(&entry)), "{file}");
    }
}
