//! A ledger with everything in it: several trees in each shard, tombstones, merges, epochs, a
//! prune, and a header of an unknown kind.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod attacks;
pub mod grain;
pub mod liar;
pub mod lies;
pub mod mldsa;
pub mod vectors;

use std::collections::BTreeMap;

use coppice_types::{Change, ClusterId, Operation, Params, SessionId, Stamp, Version};
use coppice_verify::{
    check::{Answer, Claim, QueryClaim, Record},
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

/// Live keys with their values and the stamps of the commits that wrote them.
pub type State = BTreeMap<Vec<u8>, (Stamp, Vec<u8>)>;

/// A ledger, and the state that each of its versions should have.
pub struct Sample {
    pub ledger: Ledger,
    pub states: BTreeMap<Stamp, State>,
    random: u64,
}

/// Small nodes and trees, so that few records make many of both.
pub fn params() -> Params {
    Params {
        key_bytes_max: 20,
        node_bytes: 368,
        fanout: 4,
        capacity: 8,
        inline_bytes: 16,
        tier_ratio: 2,
        ..Params::default()
    }
}

pub fn put(key: &[u8], value: &[u8]) -> Operation {
    Operation { key: key.to_vec().into(), change: Change::Put(value.to_vec().into()) }
}

pub fn cluster() -> ClusterId {
    ClusterId([0xc0; 16])
}

impl Sample {
    pub fn new(params: &Params, seed: u64) -> Self {
        let map = ShardMap::from_splits(&[b"key-10".to_vec(), b"key-25".to_vec()]).expect("the splits ascend");
        let ledger = Ledger::new("ledger.example", cluster(), &[7; 32], params, map);
        Self { ledger, states: BTreeMap::from([(Stamp::default(), State::new())]), random: seed }
    }

    /// The ledger of most tests: versions 1 to 32, with 21 to 30 committed twice, a prune, and a
    /// header of an unknown kind.
    pub fn standard() -> Self {
        let mut sample = Self::new(&params(), 1);
        (0..30).for_each(|_| sample.commit_random(9));
        sample.ledger.roll_back(Version(20));
        (0..12).for_each(|_| sample.commit_random(9));
        sample.ledger.prune(Version(3));
        sample.ledger.append_unknown(9, b"of a kind to come".to_vec());
        sample
    }

    pub fn random(&mut self, below: u64) -> u64 {
        // xorshift64*: any generator will do that gives the same sequence in each run.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }

    pub fn commit_random(&mut self, operations_max: u64) {
        let mut operations = Vec::new();
        for _ in 0..=self.random(operations_max) {
            let key = format!("key-{:02}", self.random(80)).into_bytes();
            let change = match self.random(4) {
                0 => Change::Delete,
                1 => Change::Put(vec![self.random(256) as u8; 40].into()),
                _ => Change::Put(format!("value {}", self.random(1000)).into_bytes().into()),
            };
            operations.push(Operation { key: key.into(), change });
        }
        let half = operations.split_off(operations.len() / 2);
        let number = self.ledger.head().version.0 + 1;
        let first = Commit { operations, ..Commit::default() };
        let session = Some((SessionId([3; 16]), number));
        self.commit(&[first, Commit { session, operations: half, metadata: b"why".to_vec() }]);
    }

    pub fn commit(&mut self, batches: &[Commit]) {
        let base = self.ledger.epochs.stamp_of(self.ledger.head().version);
        let mut state = self.states[&base].clone();
        let stamp = self.ledger.commit(batches).expect("the model follows its own rules");
        for operation in batches.iter().flat_map(|batch| &batch.operations) {
            match &operation.change {
                Change::Put(value) => drop(state.insert(operation.key.to_vec(), (stamp, value.to_vec()))),
                Change::Delete => drop(state.remove(operation.key.as_ref())),
            }
        }
        self.states.insert(stamp, state);
    }

    /// The stamps of all versions that stand.
    pub fn standing(&self) -> Vec<Stamp> {
        self.states.keys().copied().filter(|stamp| self.ledger.epochs.stands(*stamp)).collect()
    }

    /// Every key that may have a record, and some that never have.
    pub fn keys() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (0..80).map(|index| format!("key-{index:02}").into_bytes()).collect();
        keys.extend([b"a".to_vec(), b"key-25\0".to_vec(), b"key-49x".to_vec(), b"zz".to_vec()]);
        keys
    }
}

pub fn query_claim(claim: Claim<'_>) -> QueryClaim<'_> {
    match claim {
        Claim::Query(claim) => claim,
        other => panic!("not the answer to a query: {other:?}"),
    }
}

/// Whether the claim agrees with the state of its version.
pub fn is_true(claim: &QueryClaim<'_>, states: &BTreeMap<Stamp, State>) -> bool {
    let Some(state) = states.get(&claim.header.stamp) else { return false };
    let same = |record: &Record<'_>| {
        state.get(&*record.key).is_some_and(|(stamp, value)| {
            record.stamp == *stamp
                && record.value_len as usize == value.len()
                && record.value_hash == coppice_verify::hash::sha256(value)
                && record.value.as_ref().is_none_or(|shown| **shown == **value)
        })
    };
    match &claim.answer {
        Answer::Keys(answers) => answers.iter().all(|(key, record)| match record {
            Some(record) => record.key == *key && same(record),
            None => !state.contains_key(&**key),
        }),
        Answer::Range { low, high, records } => {
            let inside = |key: &[u8]| **low <= *key && high.as_ref().is_none_or(|high| *key < **high);
            let expected: Vec<&[u8]> = state.keys().map(Vec::as_slice).filter(|key| inside(key)).collect();
            let shown: Vec<&[u8]> = records.iter().map(|record| &*record.key).collect();
            shown == expected && records.iter().all(same)
        }
    }
}
