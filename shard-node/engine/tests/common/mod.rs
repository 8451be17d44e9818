//! A model of the engine: a map per version, and the naive forest of `coppice_verify::replay` for digests and proofs.
//!
//! Commands are what a raft log would hold. The model applies one and says what must come out; any number of engines
//! apply the same ones, each with its own flushes, merges, prunes and restarts.

use std::collections::BTreeMap;

use coppice_engine::{Engine, Error, MergeName, Options, PrepareId, ShardState, StageRequest};
use coppice_env::{Rng, SimRng};
use coppice_types::{Change, Digest, Epoch, Operation, Params, Stamp, Version};
use coppice_verify::{hash::RecordBody, replay::Forest};

pub type Values = BTreeMap<Vec<u8>, (Stamp, Vec<u8>)>;

/// Tiny nodes, so that trees are deep, and a tree limit that is met often.
pub fn tiny_params(capacity: u32) -> Params {
    Params {
        key_bytes_max: 8,
        value_bytes_max: 4096,
        capacity,
        fanout: 4,
        node_bytes: 320,
        inline_bytes: 16,
        tree_limit: 4,
        tier_ratio: 2,
        ..Params::default()
    }
}

pub fn tiny_options() -> Options {
    Options {
        young_cache_bytes: 8 * 4096,
        old_cache_bytes: 4 * 4096,
        segment_bytes_max: 600,
        meta_compaction_bytes_min: 2000,
        filters_cached_max: 4,
    }
}

#[derive(Clone, Debug)]
pub enum Command {
    Stage { stamp: Stamp, prepare_id: PrepareId, base: ShardState, merges: Vec<MergeName>, operations: Vec<Operation> },
    Settle(ShardState),
    Adopt(ShardState),
    Abort(Version, PrepareId),
    AbortAll,
    Rollback(Version, Epoch),
    Prune(Version),
}

/// Applies a command; a state for those that name a new one.
pub fn apply(engine: &mut Engine, command: &Command) -> Result<Option<ShardState>, Error> {
    match command {
        Command::Stage { stamp, prepare_id, base, merges, operations } => {
            let request = StageRequest { stamp: *stamp, prepare_id: *prepare_id, base: *base, merges, operations };
            engine.stage(&request).map(|staged| Some(staged.state))
        }
        Command::Settle(state) => engine.settle(state).map(|()| None),
        Command::Adopt(state) => engine.adopt(state).map(|()| None),
        Command::Abort(version, prepare_id) => {
            engine.abort(*version, *prepare_id);
            Ok(None)
        }
        Command::AbortAll => {
            engine.abort_all_staged();
            Ok(None)
        }
        Command::Rollback(to, epoch) => engine.rollback(*to, *epoch).map(Some),
        Command::Prune(before) => engine.prune(*before).map(|()| None),
    }
}

#[derive(Clone, Debug)]
pub struct ModelVersion {
    pub stamp: Stamp,
    pub prepare_id: PrepareId,
    pub forest: Forest,
    pub values: Values,
    pub state: ShardState,
    parent: usize,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub params: Params,
    all: Vec<ModelVersion>,
    /// Indices into `all`.
    decided: Vec<usize>,
    staged: Vec<usize>,
    pub epoch: Epoch,
    pub boundary: Version,
    /// New versions are above it: the target of the last rollback.
    floor: Version,
    attempt: u64,
}

impl Model {
    pub fn new(params: &Params) -> Self {
        let forest = Forest::new(params);
        let state = ShardState { version: Version(0), digest: forest.digest() };
        let genesis = ModelVersion {
            stamp: Stamp::default(),
            prepare_id: PrepareId::default(),
            forest,
            values: Values::new(),
            state,
            parent: 0,
        };
        Self {
            params: params.clone(),
            all: vec![genesis],
            decided: vec![0],
            staged: Vec::new(),
            epoch: Epoch(0),
            boundary: Version(0),
            floor: Version(0),
            attempt: 0,
        }
    }

    pub fn tip(&self) -> &ModelVersion {
        &self.all[*self.decided.last().expect("genesis is decided")]
    }

    /// The retained decided versions, oldest first, of an engine that has pruned below `boundary`.
    pub fn line(&self, boundary: Version) -> Vec<&ModelVersion> {
        let kept = self.decided.iter().rposition(|at| self.all[*at].stamp.version <= boundary).unwrap_or(0);
        self.decided[kept..].iter().map(|at| &self.all[*at]).collect()
    }

    pub fn staged(&self) -> Vec<&ModelVersion> {
        self.staged.iter().map(|at| &self.all[*at]).collect()
    }

    fn find(&self, state: &ShardState) -> usize {
        let candidates = self.decided.iter().chain(&self.staged);
        *candidates.rev().find(|at| self.all[**at].state == *state).expect("commands name states that exist")
    }

    fn is_on(&self, mut at: usize, ancestor: usize) -> bool {
        while at != ancestor && at != 0 {
            at = self.all[at].parent;
        }
        at == ancestor
    }

    /// Applies a command; what an engine must answer.
    pub fn apply(&mut self, command: &Command) -> Option<ShardState> {
        match command {
            Command::Stage { stamp, prepare_id, base, merges, operations } => {
                return Some(self.stage(*stamp, *prepare_id, base, merges, operations));
            }
            Command::Settle(state) => self.settle(state),
            Command::Adopt(state) => {
                self.settle(state);
                self.staged.clear();
            }
            Command::Abort(version, prepare_id) => {
                let named =
                    |at: &usize| self.all[*at].stamp.version == *version && self.all[*at].prepare_id == *prepare_id;
                if let Some(root) = self.staged.iter().copied().find(named) {
                    let staged = std::mem::take(&mut self.staged);
                    self.staged = staged.into_iter().filter(|at| !self.is_on(*at, root)).collect();
                }
            }
            Command::AbortAll => self.staged.clear(),
            Command::Rollback(to, epoch) => {
                self.staged.clear();
                let all = &self.all;
                self.decided.retain(|at| all[*at].stamp.version <= *to);
                self.epoch = *epoch;
                self.floor = *to;
                return Some(self.tip().state);
            }
            Command::Prune(before) => self.boundary = self.boundary.max(*before),
        }
        None
    }

    fn settle(&mut self, state: &ShardState) {
        let target = self.find(state);
        if self.decided.contains(&target) {
            return;
        }
        let mut line = vec![target];
        while !self.decided.contains(&self.all[line[0]].parent) {
            line.insert(0, self.all[line[0]].parent);
        }
        self.decided.extend(&line);
        let staged = std::mem::take(&mut self.staged);
        self.staged = staged.into_iter().filter(|at| *at != target && self.is_on(*at, target)).collect();
    }

    fn stage(
        &mut self,
        stamp: Stamp,
        prepare_id: PrepareId,
        base: &ShardState,
        merges: &[MergeName],
        operations: &[Operation],
    ) -> ShardState {
        let parent = self.find(base);
        let (mut forest, mut values) = (self.all[parent].forest.clone(), self.all[parent].values.clone());
        let events: Vec<(Vec<Digest>, Digest)> =
            merges.iter().map(|merge| (merge.inputs.clone(), merge.output)).collect();
        let bodies = operations.iter().map(|operation| (operation.key.as_slice(), RecordBody::of(&operation.change)));
        forest.prepare(stamp, &events, bodies).expect("the planned merge is right");
        for operation in operations {
            match &operation.change {
                Change::Put(value) => values.insert(operation.key.clone(), (stamp, value.clone())),
                Change::Delete => values.remove(&operation.key),
            };
        }
        let state = ShardState { version: stamp.version, digest: forest.digest() };
        self.all.push(ModelVersion { stamp, prepare_id, forest, values, state, parent });
        self.staged.push(self.all.len() - 1);
        state
    }

    /// A command that fits the present state.
    pub fn random_command(&mut self, rng: &mut SimRng) -> Command {
        loop {
            let newest = self.tip().stamp.version.0;
            match rng.below(100) {
                0..55 if self.staged.len() < 5 => return self.random_stage(rng),
                55..80 if !self.staged.is_empty() => {
                    let at = self.staged[rng.below(self.staged.len() as u64) as usize];
                    let state = self.all[at].state;
                    return if rng.chance(200) { Command::Adopt(state) } else { Command::Settle(state) };
                }
                80..88 if !self.staged.is_empty() => {
                    let victim = &self.all[self.staged[rng.below(self.staged.len() as u64) as usize]];
                    return Command::Abort(victim.stamp.version, victim.prepare_id);
                }
                88 => return Command::AbortAll,
                89..92 if newest > self.boundary.0 => {
                    let span = (newest - self.boundary.0).min(6);
                    return Command::Rollback(Version(newest - rng.below(span + 1)), self.epoch.next());
                }
                92..100 if newest > self.boundary.0 => {
                    return Command::Prune(Version(self.boundary.0 + 1 + rng.below((newest - self.boundary.0).min(5))));
                }
                _ => {}
            }
        }
    }

    fn random_stage(&mut self, rng: &mut SimRng) -> Command {
        let candidates: Vec<usize> = self.decided.last().into_iter().chain(&self.staged).copied().collect();
        let base = &self.all[candidates[rng.below(candidates.len() as u64) as usize]];
        let version = Version(base.stamp.version.max(self.floor).0 + 1 + rng.below(2));
        let stamp = Stamp { epoch: self.epoch, version };
        let full = base.forest.active.records().len() as u64 >= u64::from(self.params.capacity);
        let crowded = base.forest.trees().len() >= usize::from(self.params.tree_limit);
        let mut merges = Vec::new();
        if (full && crowded) || rng.chance(300) {
            merges.extend(base.forest.planned_merge().map(|(inputs, output)| MergeName { inputs, output }));
        }
        self.attempt += 1;
        let operations = if rng.chance(50) { Vec::new() } else { random_operations(rng, &base.values) };
        Command::Stage {
            stamp,
            prepare_id: PrepareId { term: 1, attempt: self.attempt },
            base: base.state,
            merges,
            operations,
        }
    }
}

pub fn random_key(rng: &mut SimRng) -> Vec<u8> {
    // A few hundred keys of all lengths, some beginning others.
    let len = 1 + rng.below(4).min(rng.below(4)) as usize;
    (0..len).map(|_| b'a' + rng.below(9) as u8).collect()
}

fn random_operations(rng: &mut SimRng, values: &Values) -> Vec<Operation> {
    let most = if rng.chance(100) { 40 } else { 8 };
    let count = 1 + rng.below(most);
    let mut operations = BTreeMap::new();
    for _ in 0..count {
        let known = values.keys().nth(rng.below(values.len() as u64 + 1) as usize).cloned();
        let key = known.filter(|_| rng.chance(500)).unwrap_or_else(|| random_key(rng));
        let change = if rng.chance(350) {
            Change::Delete
        } else {
            // Inline and stored ones, empty ones too.
            let most = if rng.chance(300) { 200 } else { 20 };
            let len = rng.below(most) as usize;
            let mut value = vec![0; len];
            rng.fill(&mut value);
            Change::Put(value)
        };
        operations.insert(key, change);
    }
    operations.into_iter().map(|(key, change)| Operation { key, change }).collect()
}

/// Every read of one version against the model.
pub fn check_version(engine: &Engine, version: &ModelVersion, rng: &mut SimRng) {
    let view = engine.view(&version.state).expect("the model has the version");
    for _ in 0..6 {
        let key = random_key(rng);
        let record = view.get(&key, true).expect("sound pages");
        let found = record.map(|record| (record.stamp, record.value.expect("asked for")));
        assert_eq!(found.as_ref(), version.values.get(&key), "{:?} at {}", key, version.stamp);
    }
    let (mut low, mut high) = (random_key(rng), random_key(rng));
    if low > high {
        std::mem::swap(&mut low, &mut high);
    }
    let high = (low < high && rng.chance(800)).then_some(high);
    let limit = 1 + rng.below(30) as usize;
    let page = view.range(&low, high.as_deref(), limit, true).expect("sound pages");
    let in_range: Vec<_> = version
        .values
        .range(low.clone()..)
        .take_while(|(key, _)| high.as_ref().is_none_or(|high| *key < high))
        .map(|(key, (stamp, value))| (key.clone(), *stamp, value.clone()))
        .collect();
    let found: Vec<_> =
        page.records.into_iter().map(|record| (record.key, record.stamp, record.value.expect("asked for"))).collect();
    assert_eq!(found, in_range[..in_range.len().min(limit)]);
    assert_eq!(page.more, in_range.len() > limit);
    let mut keys: Vec<Vec<u8>> = (0..1 + rng.below(5)).map(|_| random_key(rng)).collect();
    keys.sort();
    keys.dedup();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    // The naive prover's bytes, which the tests of `coppice-verify` verify.
    assert_eq!(view.prove_keys(&keys).expect("sound pages"), version.forest.prove_keys(&keys).encode());
    assert_eq!(
        view.prove_range(&low, high.as_deref()).expect("sound pages"),
        version.forest.prove_range(&low, high.as_deref()).encode()
    );
}

/// Histories and differences along the decided versions that an engine retains.
pub fn check_line(engine: &Engine, line: &[&ModelVersion], rng: &mut SimRng) {
    let newest = line.last().expect("a decided version is always retained");
    let view = engine.view(&newest.state).expect("the model has the version");
    for _ in 0..4 {
        let key = random_key(rng);
        let mut expected: Vec<(Stamp, Option<Vec<u8>>)> = Vec::new();
        for (at, version) in line.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| line[at].values.get(&key));
            let now = version.values.get(&key);
            if before.map(|(stamp, _)| stamp) != now.map(|(stamp, _)| stamp) {
                let stamp = now.map_or(version.stamp, |(stamp, _)| *stamp);
                expected.push((stamp, now.map(|(_, value)| value.clone())));
            }
        }
        expected.reverse();
        let limit = 1 + rng.below(6) as usize;
        let page = view.history(&key, limit).expect("sound pages");
        let changes: Vec<_> = page
            .changes
            .into_iter()
            .map(|change| (change.stamp, change.record.map(|record| record.value.expect("asked for"))))
            .collect();
        assert_eq!(changes, expected[..expected.len().min(limit)], "history of {key:?}");
        assert_eq!(page.more, expected.len() > limit, "history of {key:?}");
    }
    let from = line[rng.below(line.len() as u64) as usize];
    let low = if rng.chance(500) { Vec::new() } else { random_key(rng) };
    let high = rng.chance(500).then(|| random_key(rng)).filter(|high| low < *high);
    let in_range = |key: &&Vec<u8>| **key >= low && high.as_ref().is_none_or(|high| *key < high);
    let mut expected = BTreeMap::new();
    for key in from.values.keys().chain(newest.values.keys()).filter(in_range) {
        let (before, after) = (from.values.get(key), newest.values.get(key));
        if before.map(|(stamp, _)| stamp) != after.map(|(stamp, _)| stamp) {
            expected.insert(key.clone(), (before.cloned(), after.cloned()));
        }
    }
    let older = engine.view(&from.state).expect("the model has the version");
    let diff = view.diff(&older, &low, high.as_deref()).expect("an ancestor");
    let mut found = BTreeMap::new();
    for (before, after) in diff {
        let key = before.as_ref().or(after.as_ref()).expect("one of them is there").key.clone();
        let pair = |record: Option<coppice_engine::Record>| {
            record.map(|record| (record.stamp, record.value.expect("asked for")))
        };
        found.insert(key, (pair(before), pair(after)));
    }
    assert_eq!(found, expected, "diff from {} to {}", from.stamp, newest.stamp);
}

/// The engine has exactly the model's versions, down to its own boundary.
pub fn check_names(engine: &Engine, model: &Model, boundary: Version) {
    assert_eq!(engine.decided(), model.tip().state);
    for version in model.line(boundary) {
        assert!(engine.has(&version.state), "decided {}", version.stamp);
        let at = version.stamp.version.max(boundary);
        assert_eq!(engine.decided_at(at).expect("not pruned"), model_at(model, at));
    }
    let mut staged: Vec<_> =
        engine.staged().into_iter().map(|info| (info.stamp, info.prepare_id, info.state)).collect();
    let mut expected: Vec<_> =
        model.staged().iter().map(|version| (version.stamp, version.prepare_id, version.state)).collect();
    staged.sort();
    expected.sort();
    assert_eq!(staged, expected);
}

fn model_at(model: &Model, version: Version) -> ShardState {
    let line = model.line(version);
    line[0].state
}
