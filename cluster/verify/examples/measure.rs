//! Measures the sizes of proofs and the time to verify them, for a shard of three trees: `cargo run
//! --release -p coppice-verify --example measure`.

use std::{error::Error, time::Instant};

use coppice_types::{ClusterId, Params, Stamp};
use coppice_verify::{
    hash::RecordBody,
    proof::{Proof, ProofFile},
    replay::{Forest, Frozen, Ledger, Record, Tree},
    shard_map::{ShardMap, state_root},
    verify,
};

/// Records in the active tree and in the two frozen ones, in the sizes that the tier rule leads to.
const SIZES: [u64; 3] = [30_000, 64 << 10, 1_000_000];
const ROUNDS: u32 = 2000;

/// Records with evenly spread keys of 20 bytes, which no other tree has.
fn records(tree: u64, count: u64, stamp: Stamp) -> Vec<Record> {
    let record = |index: u64| {
        let key = coppice_verify::hash::sha256(&[tree.to_le_bytes(), index.to_le_bytes()].concat());
        Record { key: key.0[..20].to_vec(), stamp, body: RecordBody::put(&key.0) }
    };
    let mut records: Vec<Record> = (0..count).map(record).collect();
    records.sort_by(|a, b| a.key.cmp(&b.key));
    records
}

/// A ledger, its head, and a key of each tree.
type Subject = (Ledger, Stamp, Vec<Vec<u8>>);

fn subject() -> Result<Subject, Box<dyn Error>> {
    let params = Params::default();
    let map = ShardMap::from_splits(&[])?;
    let mut ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &params, map);
    (0..300).try_for_each(|_| ledger.commit(&[]).map(drop))?;
    let stamp = ledger.head();
    let mut keys = Vec::new();
    let mut forest = Forest::new(&params);
    for (tree, count) in (0..).zip(SIZES) {
        let records = records(tree, count, stamp);
        keys.push(records[records.len() / 3].key.clone());
        let tree = Tree::pack(&params, records);
        println!("tree of {count} records: level {}", tree.root.level());
        match keys.len() {
            1 => forest.active = tree,
            _ => forest.frozen.push(Frozen::new(&params, tree)),
        }
    }
    let version = ledger.versions.get_mut(&stamp).ok_or("the head has a version")?;
    (version.leaves[0].version, version.leaves[0].digest) = (stamp.version, forest.digest());
    version.forests = vec![forest];
    version.header.state_root = state_root(&version.leaves);
    let last = ledger.headers.len() - 1;
    ledger.headers[last] = version.header.clone();
    Ok((ledger, stamp, keys))
}

#[expect(clippy::disallowed_methods, reason = "what is measured is time")]
fn main() -> Result<(), Box<dyn Error>> {
    let (ledger, stamp, keys) = subject()?;
    let measure = |what: &str, file: &ProofFile<'_>| -> Result<(), Box<dyn Error>> {
        let bytes = file.encode()?;
        let trees = match &file.proof {
            Proof::Query(proof) => proof.shards.iter().map(|shard| shard.trees.encode().len()).sum(),
            _ => 0,
        };
        let start = Instant::now();
        for _ in 0..ROUNDS {
            verify(&bytes, ledger.key.verifier(), None)?;
        }
        let each = start.elapsed() / ROUNDS;
        println!("{what}: {} bytes, of which {trees} in trees; verified in {each:.1?}", bytes.len());
        Ok(())
    };
    println!("root log of {} entries, {ROUNDS} rounds, no values", ledger.headers.len());
    for (name, key) in ["active", "younger frozen", "oldest"].iter().zip(&keys) {
        measure(&format!("a key of the {name} tree"), &ledger.prove_keys(stamp, &[key], false))?;
    }
    let absent = [&keys[0][..], b"x"].concat();
    measure("an absent key", &ledger.prove_keys(stamp, &[&absent], false))?;
    let high = [&keys[2][..2], &[0xff; 18]].concat();
    measure("a short range", &ledger.prove_range(stamp, &keys[2], Some(&high), false))?;
    measure("a standing proof", &ledger.standing(100, ledger.headers.len() as u64))
}
