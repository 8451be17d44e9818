//! Compares each structure with a map for each version: contents, equal roots for equal contents,
//! differences, merges, proofs.

use std::collections::{BTreeMap, BTreeSet};

use coppice_env::{Rng, SimRng};
use coppice_structures::{
    store::{Proof, Store},
    structure::{Change, Difference, Structure, diff, merge, prove, verify, walk},
    structures,
};
use coppice_types::Digest;
use coppice_verify::hash::sha256;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const SEEDS: u64 = 12;

fn pick(rng: &mut SimRng, below: usize) -> usize {
    rng.below(below as u64) as usize
}

/// Either few keys of all lengths, so that keys recur and are prefixes of each other, or many keys,
/// for high trees.
struct Keys {
    many: bool,
}

impl Keys {
    fn any(&self, rng: &mut SimRng) -> Vec<u8> {
        if self.many {
            return format!("{:016x}", rng.below(4000).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
        }
        let len = 1 + pick(rng, 4);
        (0..len).map(|_| [0, 1, 0x10, 0x11, 0xff][pick(rng, 5)]).collect()
    }
}

fn payload(rng: &mut SimRng) -> Vec<u8> {
    let len = [1, 2, 31, 40, 120][pick(rng, 5)];
    let mut payload = vec![0; len];
    rng.fill(&mut payload);
    payload
}

fn batch(rng: &mut SimRng, keys: &Keys) -> Vec<Change> {
    let most = if keys.many { 400 } else { 12 };
    let count = pick(rng, most);
    let changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = (0..count)
        .map(|_| {
            let key = keys.any(rng);
            let deletes = rng.chance(if keys.many { 200 } else { 450 });
            (key, (!deletes).then(|| payload(rng)))
        })
        .collect();
    changes.into_iter().map(|(key, payload)| Change { key, payload }).collect()
}

fn applied(map: &Map, changes: &[Change]) -> Map {
    let mut map = map.clone();
    for Change { key, payload } in changes {
        match payload {
            Some(payload) => map.insert(key.clone(), payload.clone()),
            None => map.remove(key),
        };
    }
    map
}

struct Run {
    structure: Box<dyn Structure>,
    store: Store,
    rng: SimRng,
    keys: Keys,
    versions: Vec<(Digest, Map)>,
}

impl Run {
    fn new(structure: Box<dyn Structure>, seed: u64) -> Self {
        let mut store = Store::new(sha256);
        let root = structure.empty(&mut store);
        let keys = Keys { many: seed.is_multiple_of(3) };
        Self { structure, store, rng: SimRng::new(seed), keys, versions: vec![(root, Map::new())] }
    }

    /// Makes a version on top of any earlier one.
    fn grow(&mut self) {
        let at = pick(&mut self.rng, self.versions.len());
        let (root, map) = &self.versions[if self.rng.chance(700) { self.versions.len() - 1 } else { at }];
        let changes = batch(&mut self.rng, &self.keys);
        let map = applied(map, &changes);
        let root = self.structure.apply(&mut self.store, root, &changes).expect("applies");
        self.versions.push((root, map));
    }

    fn any(&mut self) -> (Digest, Map) {
        let at = pick(&mut self.rng, self.versions.len());
        self.versions[at].clone()
    }

    fn get(&self, root: &Digest, key: &[u8]) -> Option<Vec<u8>> {
        self.structure.get(&self.store, root, key).expect("reads")
    }

    fn contents(&self, root: &Digest) -> Map {
        let mut found = Map::new();
        let mut record = |key: &[u8], payload: &[u8]| {
            assert!(found.insert(key.to_vec(), payload.to_vec()).is_none(), "{key:?} is there twice");
        };
        walk(&*self.structure, &self.store, root, &mut BTreeSet::new(), &mut record).expect("walks");
        found
    }

    fn check_contents(&mut self) {
        for (root, map) in &self.versions {
            assert_eq!(self.contents(root), *map, "{}", self.structure.name());
        }
        let (root, map) = self.any();
        for _ in 0..20 {
            let key = self.keys.any(&mut self.rng);
            assert_eq!(self.get(&root, &key).as_ref(), map.get(&key));
        }
    }

    /// Reaches the same content in another way: with other batches, and keys that are deleted
    /// again.
    fn check_canonical(&mut self) {
        let (root, map) = self.any();
        let mut changes: Vec<Change> =
            map.iter().map(|(key, payload)| Change { key: key.clone(), payload: Some(payload.clone()) }).collect();
        let detours: Vec<Change> = batch(&mut self.rng, &self.keys);
        let mut other = self.structure.empty(&mut self.store);
        other = self.structure.apply(&mut self.store, &other, &detours).expect("applies");
        let gone = detours.into_iter().map(|change| Change { payload: None, ..change }).collect::<Vec<_>>();
        let part = pick(&mut self.rng, changes.len() + 1);
        let later = changes.split_off(part);
        for changes in [later, gone, changes] {
            // A key of both contents must not be deleted after its put.
            let changes: Vec<Change> =
                changes.into_iter().filter(|it| it.payload.is_some() || !map.contains_key(&it.key)).collect();
            other = self.structure.apply(&mut self.store, &other, &changes).expect("applies");
        }
        assert_eq!(self.contents(&other), map);
        if self.structure.is_canonical() {
            assert_eq!(other, root, "{}: {} records", self.structure.name(), map.len());
        }
    }

    fn check_diff(&mut self) {
        let ((from, before), (to, after)) = (self.any(), self.any());
        let keys: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
        let expected: Vec<Difference> = keys
            .into_iter()
            .map(|key| Difference {
                key: key.clone(),
                before: before.get(key).cloned(),
                after: after.get(key).cloned(),
            })
            .filter(|difference| difference.before != difference.after)
            .collect();
        let found = diff(&*self.structure, &self.store, &from, &to).expect("reads");
        assert_eq!(found, expected, "{}", self.structure.name());
    }

    fn check_merge(&mut self) {
        let ((base, was), (left, ours), (right, theirs)) = (self.any(), self.any(), self.any());
        let merged = merge(&*self.structure, &mut self.store, &base, &left, &right).expect("merges");
        let (mut expected, mut conflicts) = (ours.clone(), Vec::new());
        let keys: BTreeSet<&Vec<u8>> = was.keys().chain(ours.keys()).chain(theirs.keys()).collect();
        for key in keys {
            let [was, ours, theirs] = [&was, &ours, &theirs].map(|map| map.get(key));
            if was == theirs || ours == theirs {
                continue;
            }
            match theirs {
                _ if ours != was => conflicts.push(key.clone()),
                Some(payload) => {
                    expected.insert(key.clone(), payload.clone());
                }
                None => {
                    expected.remove(key);
                }
            }
        }
        assert_eq!(merged.conflicts, conflicts, "{}", self.structure.name());
        assert_eq!(self.contents(&merged.root), expected, "{}", self.structure.name());
    }

    fn check_proofs(&mut self) {
        let (root, map) = self.any();
        let key = match map.keys().nth(pick(&mut self.rng, map.len() + 1)) {
            Some(key) if self.rng.chance(600) => key.clone(),
            _ => self.keys.any(&mut self.rng),
        };
        let (other, _) = self.any();
        let flips: Vec<u8> = (0..64).map(|_| 1 << self.rng.below(8)).collect();
        let check = |root: &Digest, proof: &Proof| verify(&*self.structure, sha256, root, &key, proof);
        let proof = prove(&*self.structure, &self.store, &root, &key).expect("proves");
        assert_eq!(check(&root, &proof), Ok(map.get(&key).cloned()), "{}", self.structure.name());
        for at in 0..proof.nodes.len() {
            let mut fewer = proof.clone();
            let node = fewer.nodes.remove(at);
            assert!(check(&root, &fewer).is_err(), "each node is needed");
            for byte in 0..node.len() {
                let mut changed = proof.clone();
                changed.nodes[at][byte] ^= flips[byte % flips.len()];
                assert!(check(&root, &changed).is_err(), "byte {byte} of node {at} is believed");
            }
            let mut shorter = proof.clone();
            shorter.nodes[at].pop();
            assert!(check(&root, &shorter).is_err());
        }
        if other != root {
            // A proof of another version may contain all nodes that this lookup needs, and then it
            // shows the truth.
            let other_proof = prove(&*self.structure, &self.store, &other, &key).expect("proves");
            if let Ok(found) = check(&root, &other_proof) {
                assert_eq!(found.as_ref(), map.get(&key));
            }
        }
    }
}

#[test]
fn every_structure_answers_as_a_map_does() {
    for at in 0..structures().len() {
        for seed in 0..SEEDS {
            let mut run = Run::new(structures().swap_remove(at), seed);
            for _ in 0..24 {
                run.grow();
                run.check_diff();
                run.check_merge();
                run.check_proofs();
            }
            run.check_contents();
            run.check_canonical();
        }
    }
}

#[test]
fn a_version_with_everything_deleted_equals_the_empty_one() {
    for structure in structures() {
        let mut store = Store::new(sha256);
        let empty = structure.empty(&mut store);
        let keys: Vec<Vec<u8>> = (0..3000_u32).map(|key| key.to_be_bytes().to_vec()).collect();
        let change = |payload: Option<&[u8]>| {
            keys.iter().map(|key| Change { key: key.clone(), payload: payload.map(<[u8]>::to_vec) }).collect::<Vec<_>>()
        };
        let full = structure.apply(&mut store, &empty, &change(Some(b"value"))).expect("applies");
        assert_ne!(full, empty);
        let again = structure.apply(&mut store, &full, &change(None)).expect("applies");
        assert_eq!(again, empty, "{}", structure.name());
    }
}

/// Bytes that no structure of this crate would write never cause a panic.
#[test]
fn nodes_that_are_garbage_are_refused() {
    let mut rng = SimRng::new(1);
    for structure in structures() {
        for _ in 0..3000 {
            let mut store = Store::new(sha256);
            let mut node = vec![0; pick(&mut rng, 80)];
            rng.fill(&mut node);
            if let Some(first) = node.first_mut().filter(|_| rng.chance(700)) {
                *first = [0, 1, 3, 0x80, 0xc0, 0xc8, 0xf7, 0xf8, 0xff][pick(&mut rng, 9)];
            }
            let _ = structure.expand(&[], &node);
            let _ = structure.expand(&[0, 0, 0, 1], &node);
            let name = store.put(node);
            let _ = structure.get(&store, &name, b"key");
        }
    }
}
