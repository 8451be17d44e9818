//! Random commands for the model's state, most of them valid.

use std::{collections::BTreeMap, sync::Arc};

use coppice_engine::{MergeName, PrepareId, ShardState};
use coppice_env::{Rng, SimRng};
use coppice_types::{Change, Digest, Epoch, Operation, Params, Stamp, Term, Version};
use coppice_verify::rules;

use super::{
    model::{Entry, Model},
    pick,
};

/// A stage request.
#[derive(Clone, Debug)]
pub struct Stage {
    pub stamp: Stamp,
    pub prepare_id: PrepareId,
    pub base: ShardState,
    pub merges: Vec<MergeName>,
    pub operations: Vec<Operation>,
    pub erases: Vec<Vec<u8>>,
}

/// A command that a raft group would pass to its replicas.
#[derive(Clone, Debug)]
pub enum Command {
    Stage(Stage),
    Settle(ShardState),
    Abort { version: Version, prepare_id: PrepareId },
    AbortAll,
    Adopt(ShardState),
    Rollback { to: Version, epoch: Epoch },
    Prune { before: Version },
}

/// A key that is put once, to be erased later.
fn erasable_key(number: u16) -> Vec<u8> {
    [&[0, 1][..], &number.to_be_bytes()].concat()
}

/// A generator of commands.
#[derive(Debug)]
pub struct Generator {
    pub rng: SimRng,
    /// The keys in use, ascending.
    pub keys: Vec<Vec<u8>>,
    attempt: u64,
    /// Number of keys that were put to be erased.
    erasable: u16,
}

impl Generator {
    pub fn new(rng: SimRng, params: &Params, key_count: usize) -> Self {
        let mut generator = Self { rng, keys: Vec::new(), attempt: 0, erasable: 0 };
        let longest = params.key_bytes_max as usize;
        generator.keys = vec![vec![0], vec![0, 0], vec![0xff], vec![0xff; longest], vec![b'a'; longest]];
        generator.keys.resize_with(key_count.max(5), Vec::new);
        for at in 5..generator.keys.len() {
            generator.keys[at] = generator.random_key(longest);
        }
        generator.keys.sort();
        generator.keys.dedup();
        generator
    }

    /// A generator with the same keys and other random numbers.
    pub fn with_rng(&self, rng: SimRng) -> Self {
        Self { rng, keys: self.keys.clone(), attempt: 0, erasable: self.erasable }
    }

    /// A key of few letters, so that many keys share long prefixes.
    fn random_key(&mut self, longest: usize) -> Vec<u8> {
        let len = if self.rng.chance(900) { longest.min(12) } else { longest };
        let len = 1 + pick(&mut self.rng, len);
        (0..len).map(|_| b"abc"[pick(&mut self.rng, 3)]).collect()
    }

    /// One of the keys, or sometimes one that is never written.
    pub fn any_key(&mut self) -> Vec<u8> {
        if self.erasable > 0 && self.rng.chance(200) {
            return erasable_key(pick(&mut self.rng, self.erasable.into()) as u16);
        }
        let mut key = self.keys[pick(&mut self.rng, self.keys.len())].clone();
        if self.rng.chance(200) {
            key.push(b'~');
        }
        key
    }

    pub fn next(&mut self, model: &Model) -> Command {
        let staged = model.staged.len() as u64;
        match self.rng.below(100) {
            0..50 if staged < 7 => self.stage(model),
            50..55 => Command::Rollback { to: self.version_near(model), epoch: self.next_epoch(model) },
            55..63 => Command::Prune { before: self.version_near(model) },
            63..66 => Command::AbortAll,
            66..69 => Command::Settle(self.odd_state(model)),
            69..71 => self.odd_stage(model),
            71..78 if staged > 0 => {
                let entry = self.any_staged(model);
                Command::Abort { version: entry.stamp.version, prepare_id: entry.prepare_id }
            }
            78..82 if staged > 0 => Command::Adopt(self.any_staged(model).state),
            _ if staged > 0 => Command::Settle(self.any_staged(model).state),
            _ => self.stage(model),
        }
    }

    pub fn any_staged(&mut self, model: &Model) -> Arc<Entry> {
        let at = pick(&mut self.rng, model.staged.len());
        Arc::clone(model.staged().nth(at).expect("below the count"))
    }

    pub fn any_entry(&mut self, model: &Model) -> Arc<Entry> {
        let at = pick(&mut self.rng, model.entries.len());
        let state = model.entries.values().nth(at).expect("below the count").state;
        Arc::clone(model.find(&state).expect("it is there"))
    }

    /// A version from slightly below the boundary to slightly above the tip, mostly a recent one.
    fn version_near(&mut self, model: &Model) -> Version {
        let (low, tip) = (model.boundary.0.saturating_sub(2), model.tip().stamp.version.0.max(model.boundary.0));
        let span = tip + 2 - low;
        let back = self.rng.below(span + 1).min(self.rng.below(span + 1));
        Version(tip + 1 - back.min(tip + 1))
    }

    fn next_epoch(&mut self, model: &Model) -> Epoch {
        let newest = model.entries.values().map(|entry| entry.stamp.epoch).max().max(Some(model.epoch));
        newest.expect("an epoch").next()
    }

    /// A state that cannot be settled, or was settled already.
    fn odd_state(&mut self, model: &Model) -> ShardState {
        let state = self.any_entry(model).state;
        if self.rng.chance(500) { state } else { ShardState { digest: Digest([7; 32]), ..state } }
    }

    /// A stage that is refused.
    fn odd_stage(&mut self, model: &Model) -> Command {
        let Command::Stage(mut stage) = self.stage(model) else { unreachable!("stage makes stages") };
        match self.rng.below(10) {
            9 => {
                if let Some(key) = model.erased.keys().next() {
                    stage.operations.retain(|operation| operation.key.as_ref() != key.as_slice());
                    let change = Change::Put(vec![1; 300].into());
                    stage.operations.push(Operation { key: key.clone().into(), change });
                    stage.operations.sort_by(|a, b| a.key.cmp(&b.key));
                }
            }
            6 => stage.erases = vec![b"not reserved".to_vec()],
            7 => stage.erases = vec![vec![0, 1, 0xff, 0xff]],
            8 => {
                let key = vec![0, 2];
                stage.operations.retain(|operation| operation.key.as_ref() > key.as_slice());
                let change = Change::Put(vec![1; model.params.inline_bytes as usize + 1].into());
                stage.operations.insert(0, Operation { key: key.clone().into(), change });
                stage.erases = vec![key];
            }
            4 => stage.operations.push(Operation { key: Vec::new().into(), change: Change::Delete }),
            5 => {
                let key = vec![0xff; model.params.key_bytes_max as usize + 1];
                stage.operations.push(Operation { key: key.into(), change: Change::Put(Vec::new().into()) });
            }
            0 => stage.base.digest = Digest([7; 32]),
            1 => stage.stamp.version = stage.base.version,
            2 => {
                let first = MergeName { inputs: vec![Digest([1; 32]), Digest([2; 32])], output: Digest([3; 32]) };
                stage.merges.insert(0, first);
            }
            _ => match stage.merges.last_mut() {
                Some(last) => last.output = Digest([4; 32]),
                None => stage.merges.push(MergeName { inputs: vec![], output: Digest([5; 32]) }),
            },
        }
        Command::Stage(stage)
    }

    fn stage(&mut self, model: &Model) -> Command {
        let base = match self.rng.below(10) {
            0..4 => model.staged().next_back().unwrap_or(model.tip()).clone(),
            4..7 if !model.staged.is_empty() => self.any_staged(model),
            _ => Arc::clone(model.tip()),
        };
        let operations = self.operations(model, &base);
        let merges = self.merges(model, &base, !operations.is_empty());
        let mut command = self.stage_on(model, &base, merges, operations);
        if let Command::Stage(stage) = &mut command {
            stage.erases = self.erases(model, &base, &stage.operations);
        }
        command
    }

    /// Keys to erase: some of those that were put to be erased.
    fn erases(&mut self, model: &Model, base: &Entry, operations: &[Operation]) -> Vec<Vec<u8>> {
        let keys = base.live.range(erasable_key(0)..vec![0, 2]).map(|(key, _)| key);
        let free = keys.filter(|key| !operations.iter().any(|it| it.key.as_ref() == key.as_slice()));
        let share = if model.erased.is_empty() { 200 } else { 50 };
        free.filter(|_| self.rng.chance(share)).cloned().collect()
    }

    pub fn stage_on(
        &mut self,
        model: &Model,
        base: &Entry,
        merges: Vec<MergeName>,
        operations: Vec<Operation>,
    ) -> Command {
        self.attempt += 1;
        let version = base.stamp.version.max(model.boundary).0 + 1 + self.rng.below(8) / 6;
        let stamp = Stamp::new(model.epoch.max(base.stamp.epoch).0, version);
        // Attempts begin again with each term.
        let prepare_id = PrepareId { term: Term(self.attempt / 50), attempt: self.attempt % 50 };
        Command::Stage(Stage { stamp, prepare_id, base: base.state, merges, operations, erases: Vec::new() })
    }

    fn operations(&mut self, model: &Model, base: &Entry) -> Vec<Operation> {
        let capacity = u64::from(model.params.capacity);
        let count = match self.rng.below(20) {
            0 => 0,
            1..12 => 1 + self.rng.below(4),
            12..19 => 1 + self.rng.below(capacity),
            _ => 1 + self.rng.below(3 * capacity),
        };
        let deletes = [0, 200, 500, 900][pick(&mut self.rng, 4)];
        let mut changes = BTreeMap::new();
        if self.rng.chance(30) {
            // Deletes all keys, or all keys that are not below some key.
            let from = if self.rng.chance(500) { Vec::new() } else { self.any_key() };
            changes.extend(base.live.range(from..).map(|(key, _)| (key.clone(), Change::Delete)));
        }
        for _ in 0..count {
            let key = self.keys[pick(&mut self.rng, self.keys.len())].clone();
            let change =
                if self.rng.chance(deletes) { Change::Delete } else { Change::Put(self.value(&model.params).into()) };
            changes.insert(key, change);
        }
        if self.rng.chance(400) {
            changes.insert(erasable_key(self.erasable), Change::Put(self.marked(&model.params).into()));
            self.erasable += 1;
        }
        changes.into_iter().map(|(key, change)| Operation { key: key.into(), change }).collect()
    }

    /// A value that is found in the raw bytes of files: it begins with random bytes.
    fn marked(&mut self, params: &Params) -> Vec<u8> {
        let mut value: Vec<u8> = (0..8).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        value.resize((params.inline_bytes as usize + 1).max(64) + pick(&mut self.rng, 200), b'm');
        value
    }

    fn value(&mut self, params: &Params) -> Vec<u8> {
        let inline = params.inline_bytes as usize;
        let len = match self.rng.below(10) {
            0 => 0,
            1..6 => pick(&mut self.rng, inline + 1),
            6 => inline,
            7 => inline + 1,
            8 => inline + pick(&mut self.rng, 200),
            _ => inline + pick(&mut self.rng, 3000),
        };
        // Few different values, so that equal ones are put again.
        vec![b'0' + u8::try_from(self.rng.below(5)).expect("small"); len]
    }

    /// Merges for a stage to install: sometimes one that the tier rule asks for, sometimes any.
    /// Always one if there would otherwise be too many trees.
    fn merges(&mut self, model: &Model, base: &Entry, writes: bool) -> Vec<MergeName> {
        let mut forest = base.forest.clone();
        let mut merges = Vec::new();
        loop {
            let entries = forest.entries();
            let freezes = writes && entries[0] >= u64::from(model.params.capacity);
            let full = entries.len() + usize::from(freezes) > usize::from(model.params.tree_limit);
            let frozen = entries.len() - 1;
            if frozen < 2 || !self.rng.chance(if full { 980 } else { 150 }) {
                return merges;
            }
            let (at, count) = match rules::plan_merge(&model.params, &entries[1..]) {
                Some(count) if self.rng.chance(700) => (0, count),
                _ => {
                    let at = pick(&mut self.rng, frozen - 1);
                    (at, 2 + pick(&mut self.rng, frozen - at - 1))
                }
            };
            let inputs = forest.frozen()[at..at + count].to_vec();
            // Some trees may be equal; the first match is meant.
            let at = forest.find(&inputs).expect("they are here");
            forest = forest.merge(at, count);
            merges.push(MergeName { inputs, output: forest.frozen()[at] });
        }
    }
}
