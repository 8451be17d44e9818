//! The answers that an engine must give: a map for each version, and the digests of
//! `coppice_verify::replay`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use coppice_engine::{MergeName, PrepareId, ShardState};
use coppice_types::{Change, Epoch, Operation, Params, Reason, Stamp, Version};

use super::{
    forest::Forest,
    workload::{Command, Stage},
};

/// A live record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    pub stamp: Stamp,
    pub value: Arc<[u8]>,
}

pub type EntryId = u64;

/// A version, decided or staged.
#[derive(Debug)]
pub struct Entry {
    pub id: EntryId,
    pub base: Option<EntryId>,
    pub stamp: Stamp,
    pub prepare_id: PrepareId,
    pub state: ShardState,
    pub forest: Forest,
    pub live: BTreeMap<Vec<u8>, Live>,
    /// Keys whose values the version erases.
    pub erases: Vec<Vec<u8>>,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    State(ShardState),
    Dropped(usize),
    Done,
    Refused(Reason),
}

/// The journal of a version in these tests: bytes that differ between versions.
pub fn journal_of(stamp: Stamp, prepare_id: PrepareId) -> Vec<u8> {
    format!("{stamp}, attempt {} of term {};", prepare_id.attempt, prepare_id.term)
        .repeat(1 + usize::try_from(stamp.version.0 % 7).expect("small"))
        .into_bytes()
}

/// All versions of one shard. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Model {
    pub params: Params,
    pub epoch: Epoch,
    pub boundary: Version,
    pub entries: BTreeMap<EntryId, Arc<Entry>>,
    pub decided: BTreeMap<Version, EntryId>,
    pub staged: BTreeSet<EntryId>,
    /// Journals of decided versions, if the parameters keep them.
    pub journals: BTreeMap<Version, Vec<u8>>,
    /// Keys that decided versions erased, with their values.
    pub erased: BTreeMap<Vec<u8>, Arc<[u8]>>,
    next_id: EntryId,
}

impl Model {
    pub fn new(params: &Params) -> Self {
        let forest = Forest::new(params);
        let genesis = Entry {
            id: 0,
            base: None,
            stamp: Stamp::default(),
            prepare_id: PrepareId::default(),
            state: ShardState { version: Version(0), digest: forest.digest() },
            forest,
            live: BTreeMap::new(),
            erases: Vec::new(),
        };
        Self {
            params: params.clone(),
            epoch: Epoch(0),
            boundary: Version(0),
            entries: [(0, Arc::new(genesis))].into(),
            decided: [(Version(0), 0)].into(),
            staged: BTreeSet::new(),
            journals: BTreeMap::new(),
            erased: BTreeMap::new(),
            next_id: 1,
        }
    }

    pub fn tip(&self) -> &Arc<Entry> {
        &self.entries[self.decided.last_key_value().expect("at least genesis").1]
    }

    pub fn staged(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.staged.iter().map(|id| &self.entries[id])
    }

    fn find_staged(&self, state: &ShardState) -> Option<&Arc<Entry>> {
        self.staged.iter().rev().map(|id| &self.entries[id]).find(|entry| entry.state == *state)
    }

    fn is_decided(&self, state: &ShardState) -> bool {
        self.decided.get(&state.version).is_some_and(|id| self.entries[id].state == *state)
    }

    /// The version with a name. If two staged versions share it, the newer one, as in every engine.
    pub fn find(&self, state: &ShardState) -> Option<&Arc<Entry>> {
        let decided = self.decided.get(&state.version).map(|id| &self.entries[id]);
        decided.filter(|entry| entry.state == *state).or_else(|| self.find_staged(state))
    }

    /// A state that a stage may build on: the tip or a staged version.
    pub fn base(&self, state: &ShardState) -> Option<&Arc<Entry>> {
        if self.tip().state == *state { Some(self.tip()) } else { self.find_staged(state) }
    }

    /// An entry and the retained ones that it builds on, newest first.
    pub fn line(&self, entry: &Entry) -> Vec<&Arc<Entry>> {
        let mut line = Vec::new();
        let mut next = Some(entry.id);
        while let Some(entry) = next.and_then(|id| self.entries.get(&id)) {
            line.push(entry);
            next = entry.base;
        }
        line
    }

    /// The outcome of a command, here and in every engine.
    pub fn apply(&mut self, command: &Command) -> Outcome {
        let outcome = match command {
            Command::Stage(stage) => self.stage(stage).map(Outcome::State),
            Command::Settle(state) => self.settle(state).map(|()| Outcome::Done),
            Command::Abort { version, prepare_id } => Ok(Outcome::Dropped(self.abort(*version, *prepare_id))),
            Command::AbortAll => Ok(Outcome::Dropped(self.abort_all())),
            Command::Adopt(state) => self.settle(state).map(|()| {
                self.abort_all();
                Outcome::Done
            }),
            Command::Rollback { to, epoch } => self.rollback(*to, *epoch).map(Outcome::State),
            Command::Prune { before } => {
                self.prune(*before);
                Ok(Outcome::Done)
            }
        };
        outcome.unwrap_or_else(Outcome::Refused)
    }

    fn stage(&mut self, stage: &Stage) -> Result<ShardState, Reason> {
        let base = Arc::clone(self.base(&stage.base).ok_or(Reason::BaseMismatch)?);
        if !self.is_sound(&stage.operations) {
            return Err(Reason::InvalidArgument);
        }
        let follows = stage.stamp.version > base.stamp.version && stage.stamp.epoch >= base.stamp.epoch;
        if !follows || stage.stamp.epoch < self.epoch {
            return Err(Reason::BaseMismatch);
        }
        let name = (stage.stamp.version, stage.prepare_id);
        if self.staged().any(|entry| (entry.stamp.version, entry.prepare_id) == name) {
            return Err(Reason::PreconditionFailed);
        }
        if !self.may_erase(&base, stage) {
            return Err(Reason::InvalidArgument);
        }
        let mut forest = base.forest.clone();
        for MergeName { inputs, output } in &stage.merges {
            let at = forest.find(inputs).ok_or(Reason::Internal)?;
            forest = forest.merge(at, inputs.len());
            if forest.frozen()[at] != *output {
                return Err(Reason::Corrupted);
            }
        }
        let freezes = !stage.operations.is_empty() && forest.entries()[0] >= u64::from(self.params.capacity);
        if forest.entries().len() + usize::from(freezes) > usize::from(self.params.tree_limit) {
            return Err(Reason::ResourceExhausted);
        }
        let forest = forest.write(stage.stamp, &stage.operations);
        let mut live = base.live.clone();
        for Operation { key, change } in &stage.operations {
            match change {
                Change::Put(value) => {
                    let value = Live { stamp: stage.stamp, value: value.as_ref().into() };
                    live.insert(key.as_ref().into(), value);
                }
                Change::Delete => {
                    live.remove(key.as_ref());
                }
            }
        }
        let state = ShardState { version: stage.stamp.version, digest: forest.digest() };
        let (id, prepare_id) = (self.next_id, stage.prepare_id);
        let (base, stamp, erases) = (Some(base.id), stage.stamp, stage.erases.clone());
        let entry = Entry { id, base, stamp, prepare_id, state, forest, live, erases };
        self.next_id += 1;
        self.entries.insert(id, Arc::new(entry));
        self.staged.insert(id);
        Ok(state)
    }

    /// Whether a stage may erase what it wants to, and puts no erased key.
    fn may_erase(&self, base: &Entry, stage: &Stage) -> bool {
        let line = self.line(base);
        let staged = line.iter().filter(|entry| self.staged.contains(&entry.id)).flat_map(|entry| &entry.erases);
        let gone: BTreeSet<&Vec<u8>> = self.erased.keys().chain(staged).collect();
        let puts_gone = |it: &Operation| it.is_put() && gone.contains(&it.key.to_vec());
        let stored =
            |key: &Vec<u8>| base.live.get(key).is_some_and(|live| live.value.len() > self.params.inline_bytes as usize);
        let sound = |key: &Vec<u8>| {
            let touched = stage.operations.iter().any(|operation| operation.key.as_ref() == key.as_slice());
            key.first() == Some(&0) && !touched && (self.erased.contains_key(key) || stored(key))
        };
        stage.erases.is_sorted_by(|a, b| a < b)
            && stage.erases.iter().all(sound)
            && !stage.operations.iter().any(puts_gone)
    }

    fn is_sound(&self, operations: &[Operation]) -> bool {
        let lengths = 1..=self.params.key_bytes_max as usize;
        let ascends = operations.windows(2).all(|pair| pair[0].key < pair[1].key);
        ascends && operations.iter().all(|operation| lengths.contains(&operation.key.len()))
    }

    fn settle(&mut self, state: &ShardState) -> Result<(), Reason> {
        if self.is_decided(state) {
            return Ok(());
        }
        let entry = Arc::clone(self.find_staged(state).ok_or(Reason::StateMissing)?);
        let line: Vec<Arc<Entry>> =
            self.line(&entry).into_iter().filter(|entry| self.staged.contains(&entry.id)).cloned().collect();
        for winner in line.into_iter().rev() {
            self.staged.remove(&winner.id);
            for key in &winner.erases {
                // A key that is erased a second time may have no value any more.
                if let Some(live) = winner.live.get(key) {
                    self.erased.entry(key.clone()).or_insert_with(|| Arc::clone(&live.value));
                }
            }
            self.decided.insert(winner.stamp.version, winner.id);
            if self.params.journals_kept {
                self.journals.insert(winner.stamp.version, journal_of(winner.stamp, winner.prepare_id));
            }
            let siblings: Vec<EntryId> =
                self.staged().filter(|entry| entry.base == winner.base).map(|entry| entry.id).collect();
            siblings.into_iter().for_each(|id| {
                self.drop_family(id);
            });
        }
        Ok(())
    }

    fn drop_family(&mut self, id: EntryId) -> usize {
        let children: Vec<EntryId> =
            self.staged().filter(|entry| entry.base == Some(id)).map(|entry| entry.id).collect();
        let dropped: usize = children.into_iter().map(|child| self.drop_family(child)).sum();
        self.staged.remove(&id);
        self.entries.remove(&id);
        dropped + 1
    }

    fn abort(&mut self, version: Version, prepare_id: PrepareId) -> usize {
        let named = |entry: &&Arc<Entry>| (entry.stamp.version, entry.prepare_id) == (version, prepare_id);
        let id = self.staged().find(named).map(|entry| entry.id);
        id.map_or(0, |id| self.drop_family(id))
    }

    fn abort_all(&mut self) -> usize {
        let all = std::mem::take(&mut self.staged);
        all.iter().for_each(|id| {
            self.entries.remove(id);
        });
        all.len()
    }

    fn rollback(&mut self, to: Version, epoch: Epoch) -> Result<ShardState, Reason> {
        if to < self.boundary {
            return Err(Reason::Pruned);
        }
        self.abort_all();
        for id in self.decided.split_off(&to.next()).into_values() {
            self.entries.remove(&id);
        }
        self.journals.split_off(&to.next());
        self.epoch = self.epoch.max(epoch);
        Ok(self.tip().state)
    }

    fn prune(&mut self, before: Version) {
        if before <= self.boundary {
            return;
        }
        self.boundary = before;
        let kept = *self.decided.range(..=before).next_back().expect("the oldest is at or below the boundary").0;
        let later = self.decided.split_off(&kept);
        for id in std::mem::replace(&mut self.decided, later).into_values() {
            self.entries.remove(&id);
        }
    }
}
