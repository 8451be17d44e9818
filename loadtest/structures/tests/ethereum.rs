//! The trie with Keccak is Ethereum's: its roots and proofs are compared with those of
//! `alloy-trie`.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, HashBuilder, Nibbles, proof::verify_proof};
use coppice_env::{Rng, SimRng};
use coppice_structures::{
    store::Store,
    structure::{Change, Structure, prove},
    trie::PatriciaTrie,
};
use coppice_types::Digest;

fn keccak(bytes: &[u8]) -> Digest {
    Digest(keccak256(bytes).0)
}

/// A key of the given length, as the reference demands; short keys share long prefixes.
fn key(rng: &mut SimRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| if len < 8 { [0, 1, 0x12, 0xff][rng.below(4) as usize] } else { rng.below(256) as u8 }).collect()
}

fn value(rng: &mut SimRng) -> Vec<u8> {
    let len = [1, 1, 5, 32, 33, 56, 120, 300][rng.below(8) as usize];
    let mut value = vec![0; len];
    rng.fill(&mut value);
    value
}

fn reference(map: &BTreeMap<Vec<u8>, Vec<u8>>) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in map {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    builder.root()
}

#[test]
fn roots_and_proofs_are_ethereums() {
    let trie = PatriciaTrie;
    for seed in 0..40 {
        let mut rng = SimRng::new(seed);
        let len = [2, 4, 20, 32][rng.below(4) as usize];
        let mut store = Store::new(keccak);
        let mut root = trie.empty(&mut store);
        assert_eq!(root.0, EMPTY_ROOT_HASH.0);
        let mut map = BTreeMap::new();
        for _ in 0..8 {
            let mut batch = BTreeMap::new();
            for _ in 0..rng.below(60) {
                let deleted = map.keys().nth(rng.below(200) as usize).cloned();
                match deleted {
                    Some(key) => batch.insert(key, None),
                    None => batch.insert(key(&mut rng, len), Some(value(&mut rng))),
                };
            }
            for (key, value) in &batch {
                match value {
                    Some(value) => map.insert(key.clone(), value.clone()),
                    None => map.remove(key),
                };
            }
            let changes: Vec<Change> = batch.into_iter().map(|(key, payload)| Change { key, payload }).collect();
            root = trie.apply(&mut store, &root, &changes).expect("applies");
            assert_eq!(root.0, reference(&map).0, "{} records of {len} bytes, seed {seed}", map.len());
        }
        for asked in map.keys().take(20).cloned().chain((0..10).map(|_| key(&mut rng, len))) {
            let proof = prove(&trie, &store, &root, &asked).expect("proves");
            let nodes: Vec<Bytes> = proof.nodes.into_iter().map(Bytes::from).collect();
            let verdict = verify_proof(B256::from(root.0), Nibbles::unpack(&asked), map.get(&asked).cloned(), &nodes);
            assert_eq!(verdict, Ok(()), "{asked:?}, seed {seed}");
        }
    }
}
