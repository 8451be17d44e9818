//! Staging a version: applies a Prepare to the forest (`docs/verification.md` section 6) in the
//! order of events, freeze and writes.

use coppice_env::Workers;
use coppice_types::{Change, Digest, Operation, Stamp};
use coppice_verify::{
    hash::{self, RecordBody},
    ledgers::RESERVED_END,
    rules::Filter,
};

use super::decide::check_number;
use crate::{
    Engine, Error, MergeName, Result, StageRequest, Staged,
    meta::{Delta, MergeId, MetaOp, Tree, VersionRecord},
    node::{Body, HashedRecord, LeafRecord},
    place::refs::BlobRef,
    tree::{
        self,
        apply::{Applier, Touching, TreeChange},
        found::FoundBody,
        merge::MergeTask,
    },
};

/// Operations hashed by one job.
const HASH_CHUNK: usize = 32;
/// Smaller batches are staged on one thread.
const SHARED_CHANGES_MIN: usize = 128;

/// The new state of a key.
#[derive(Clone, Copy, Debug)]
enum Wanted<'o> {
    Value(&'o [u8]),
    Tombstone,
    /// The key gets no record.
    Nothing,
}

/// An operation that changes the forest.
#[derive(Clone, Copy, Debug)]
struct Write<'o> {
    key: &'o [u8],
    wanted: Wanted<'o>,
}

impl Write<'_> {
    fn value(&self) -> Option<&[u8]> {
        match self.wanted {
            Wanted::Value(value) => Some(value),
            Wanted::Tombstone | Wanted::Nothing => None,
        }
    }
}

/// The hashes of a write's value and record, and the filter hash of its key. If the key gets no
/// record, the record hash is that of a tombstone.
#[derive(Clone, Copy, Debug, Default)]
struct Hashes {
    value: Digest,
    record: Digest,
    filter: (u64, u64),
}

impl Hashes {
    /// The hashes of several writes.
    fn of(writes: &[Write<'_>], stamp: Stamp) -> impl Iterator<Item = Self> {
        let values: Vec<&[u8]> = writes.iter().filter_map(Write::value).collect();
        let mut hashes = hash::sha256_each(&values).into_iter();
        let hash_of = |write: &Write<'_>| write.value().and_then(|_| hashes.next()).unwrap_or_default();
        let values: Vec<Digest> = writes.iter().map(hash_of).collect();
        let body = |(write, value_hash): (&Write<'_>, &Digest)| match write.value() {
            Some(value) => RecordBody::Put { value_len: value.len() as u32, value_hash: *value_hash },
            None => RecordBody::Tombstone,
        };
        let records = hash::record_hashes(writes.iter().zip(&values).map(|pair| (pair.0.key, stamp, body(pair))));
        let filters = hash::filter_hashes(writes.iter().map(|write| write.key));
        values.into_iter().zip(records).zip(filters).map(|((value, record), filter)| Self { value, record, filter })
    }
}

/// A forest between its base and the staged version.
struct Draft {
    trees: Vec<Tree>,
    freezes: u64,
    installs: Vec<MergeId>,
    delta: Delta,
    /// Filter hashes of the written keys.
    filter_hashes: Vec<(u64, u64)>,
}

impl Engine {
    /// Stages the next state on a base: the decided tip or any staged state.
    ///
    /// # Errors
    /// `BaseMismatch`, `StampMismatch`, `AlreadyStaged`, `TreeLimit`, an error of a merge to
    /// install, `Corrupted`, `Poisoned`, or a failure of the storage. `Invalid` also if an erased
    /// key is put, or if a key to erase has no value or is changed by this version. Nothing is
    /// staged then.
    pub fn stage(&mut self, request: &StageRequest<'_>) -> Result<Staged> {
        self.check_usable()?;
        check_number(request.stamp.version.0.max(request.stamp.epoch.0))?;
        self.check_operations(request.operations)?;
        let base = self.check_names(request)?;
        let erases = self.check_erases(request, base)?;
        let mut draft = Draft {
            trees: base.trees.clone(),
            freezes: base.freezes,
            installs: Vec::new(),
            delta: Delta::default(),
            filter_hashes: Vec::new(),
        };
        let (parent, freezes_before) = (base.id, base.freezes);
        if let Err(error) = self.build(request, &mut draft) {
            self.meta.discard_all(&draft.delta);
            self.forget_freed();
            return Err(error);
        }
        assert!(draft.trees[0].filter.is_none(), "the active tree has no filter");
        assert!(draft.freezes <= freezes_before + 1, "a version freezes at most one tree");
        let digests: Vec<Digest> = draft.trees.iter().map(|tree| tree.digest).collect();
        let id = self.meta.next_id();
        let froze = draft.freezes > freezes_before;
        self.active_keys.note(&self.meta.params, parent, (id, draft.freezes), froze, &draft.filter_hashes);
        let record = VersionRecord {
            id,
            parent,
            decided: false,
            stamp: request.stamp,
            prepare_id: request.prepare_id,
            digest: hash::shard_digest(&digests),
            trees: draft.trees,
            freezes: draft.freezes,
            installs: draft.installs,
            delta: draft.delta,
        };
        let staged = Staged { state: record.state(), shape: self.shape_of(&record.trees) };
        self.apply(MetaOp::AddVersion(record));
        if !erases.is_empty() {
            self.apply(MetaOp::Erase(id, erases));
        }
        assert!(self.meta.staged.contains(&id), "a new version is staged");
        assert!(parent < id, "a version is younger than its base");
        self.owe_merging(request.operations.len());
        self.store.counters.stages.one();
        Ok(staged)
    }

    fn check_names(&self, request: &StageRequest<'_>) -> Result<&VersionRecord> {
        let base = self.meta.find(&request.base).filter(|base| !base.decided || base.id == self.meta.tip().id);
        let mismatch = Error::BaseMismatch { base: request.base, decided: self.decided() };
        let base = base.ok_or(mismatch)?;
        let stamp = request.stamp;
        if stamp.version <= base.stamp.version.max(self.meta.boundary)
            || stamp.epoch < base.stamp.epoch
            || stamp.epoch < self.meta.epoch
        {
            return Err(Error::StampMismatch { epoch: self.meta.epoch });
        }
        let named =
            |record: &VersionRecord| record.stamp.version == stamp.version && record.prepare_id == request.prepare_id;
        if self.meta.staged.iter().any(|id| named(&self.meta.versions[id])) {
            return Err(Error::AlreadyStaged { version: stamp.version });
        }
        Ok(base)
    }

    /// Checks what the version erases, and returns those keys that are not erased yet.
    fn check_erases(&self, request: &StageRequest<'_>, base: &VersionRecord) -> Result<Vec<Vec<u8>>> {
        let (erasures, erases) = (&self.meta.erasures, request.erases);
        if !erases.is_sorted_by(|a, b| a < b) || erases.iter().any(|key| key.is_empty() || **key >= *RESERVED_END) {
            return Err(Error::Invalid("erased keys are not ascending reserved keys"));
        }
        let is_touched = |key: &[u8]| request.operations.binary_search_by(|it| it.key.as_ref().cmp(key)).is_ok();
        if erases.iter().any(|key| is_touched(key)) {
            return Err(Error::Invalid("a version changes a key that it erases"));
        }
        let mut reserved = request.operations.iter().take_while(|operation| *operation.key < *RESERVED_END);
        if erasures.count() > 0 && reserved.any(|it| it.is_put() && self.is_erased_in(base, &it.key)) {
            return Err(Error::Invalid("a put of an erased key"));
        }
        if erases.len() as u64 > erasures.left() {
            return Err(Error::Invalid("more erased keys than a shard may have"));
        }
        let mut new = Vec::new();
        for key in erases.iter().filter(|key| !erasures.has(key)) {
            let found = tree::get(&self.store, &base.trees, None, key)?;
            if !found.is_some_and(|found| matches!(found.body, FoundBody::Stored { .. })) {
                return Err(Error::Invalid("an erased key has no value in the value log"));
            }
            new.push(key.clone());
        }
        Ok(new)
    }

    /// Whether a key is erased in a version that is decided or staged.
    fn is_erased_in(&self, version: &VersionRecord, key: &[u8]) -> bool {
        let mut at = version;
        while !at.decided {
            if self.meta.erasures.is_staged(at.id, key) {
                return true;
            }
            at = &self.meta.versions[&at.parent];
        }
        self.meta.erasures.has(key)
    }

    fn check_operations(&self, operations: &[Operation]) -> Result<()> {
        let params = &self.meta.params;
        for operation in operations {
            if operation.key.is_empty() || operation.key.len() > params.key_bytes_max as usize {
                return Err(Error::Invalid("key length"));
            }
            if matches!(&operation.change, Change::Put(value) if value.len() > params.value_bytes_max as usize) {
                return Err(Error::Invalid("value length"));
            }
        }
        if !operations.is_sorted_by(|a, b| a.key < b.key) {
            return Err(Error::Invalid("operations are not folded"));
        }
        Ok(())
    }

    fn build(&mut self, request: &StageRequest<'_>, draft: &mut Draft) -> Result<()> {
        for merge in request.merges {
            self.install(merge, draft)?;
        }
        if request.operations.is_empty() {
            return Ok(());
        }
        if draft.trees[0].entries >= u64::from(self.meta.params.capacity) {
            self.freeze(draft)?;
        }
        self.write(request, draft)
    }

    fn install(&mut self, name: &MergeName, draft: &mut Draft) -> Result<()> {
        let count = name.inputs.len();
        let frozen = draft.trees.len() - 1;
        if count < 2 || count > frozen {
            return Err(Error::MergeInputs);
        }
        let digests: Vec<Digest> = draft.trees.iter().map(|tree| tree.digest).collect();
        let at = (1..=draft.trees.len() - count)
            .find(|at| digests[*at..*at + count] == name.inputs)
            .ok_or(Error::MergeInputs)?;
        let known = self.meta.find_merge(&draft.trees, at, count).map(|merge| merge.id);
        let id = match known {
            Some(id) => id,
            None => self.build_merge_now(&draft.trees, at, count)?,
        };
        let merge = &self.meta.merges[&id];
        if merge.output.digest != name.output {
            return Err(Error::MergeOutput { expected: name.output, found: merge.output.digest });
        }
        draft.installs.push(merge.id);
        let output = merge.output.clone();
        draft.trees.splice(at..at + count, [output]);
        Ok(())
    }

    /// Builds a merge output that this replica does not have yet, and returns the merge's number.
    fn build_merge_now(&mut self, trees: &[Tree], at: usize, count: usize) -> Result<MergeId> {
        let running = self.merge.take_if(|task| {
            let (inputs, older) = task.ids();
            inputs.iter().chain(older).copied().eq(trees[at..].iter().map(Tree::id)) && inputs.len() == count
        });
        let mut task = match running {
            Some(task) => task,
            None => MergeTask::new(&self.store, &self.meta, trees, at, count, self.options.workers)?,
        };
        loop {
            match task.step(&mut self.store, &mut self.meta, usize::MAX, true) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.meta.discard_all(&task.delta);
                    self.forget_freed();
                    return Err(error);
                }
            }
        }
        let record = task.finish(&mut self.store, &mut self.meta);
        let id = record.id;
        self.apply(MetaOp::AddMerge(record));
        Ok(id)
    }

    fn freeze(&mut self, draft: &mut Draft) -> Result<()> {
        let limit = self.meta.params.tree_limit;
        if draft.trees.len() >= usize::from(limit) {
            return Err(Error::TreeLimit { limit });
        }
        assert!(draft.trees[0].filter.is_none(), "an active tree is frozen once");
        let mut filter = Filter::new(&self.meta.params, draft.trees[0].entries);
        draft.trees[0].add_keys_to(&mut filter, &self.store)?;
        let blob = self.store.add_filter(&mut self.meta, &mut draft.delta, filter);
        draft.trees[0].filter = Some(blob);
        // A frozen tree takes no more changes, so its hashes are not needed.
        self.store.drop_lists();
        draft.trees.insert(0, Tree::empty());
        draft.freezes += 1;
        Ok(())
    }

    fn write(&mut self, request: &StageRequest<'_>, draft: &mut Draft) -> Result<()> {
        let stamp = request.stamp;
        let writes = self.resolve(request.operations, &draft.trees)?;
        if writes.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = writes.iter().map(|write| write.key).collect();
        let active = draft.trees[0].clone();
        // Values are hashed while they are appended to the log, and while the nodes that will
        // change are read.
        let mut hashes = vec![Hashes::default(); writes.len()];
        let workers = self.workers(writes.len());
        let (places, touching) = workers.share(
            writes.chunks(HASH_CHUNK).zip(hashes.chunks_mut(HASH_CHUNK)),
            |(writes, hashes)| hashes.iter_mut().zip(Hashes::of(writes, stamp)).for_each(|(out, hashes)| *out = hashes),
            || {
                let places = self.place_values(stamp, &writes, &mut draft.delta);
                (places, Touching::of(&mut self.store, &active, &keys))
            },
        );
        assert_eq!(places.len(), writes.len(), "each write has its place, in memory or in the value log");
        let touching = touching?;
        draft.filter_hashes = hashes.iter().map(|hashes| hashes.filter).collect();
        let changes = writes.iter().zip(hashes).zip(places).map(|((write, hashes), place)| {
            let body = match (write.wanted, place) {
                (Wanted::Nothing, _) => return TreeChange::Remove(write.key),
                (Wanted::Tombstone, _) => Body::Tombstone,
                (Wanted::Value(value), None) => Body::Inline { hash: hashes.value, value },
                (Wanted::Value(value), Some(blob)) => {
                    Body::Stored { hash: hashes.value, len: value.len() as u32, blob }
                }
            };
            TreeChange::Upsert(HashedRecord { record: LeafRecord { key: write.key, stamp, body }, hash: hashes.record })
        });
        let changes: Vec<TreeChange<'_>> = changes.collect();
        assert_eq!(changes.len(), keys.len(), "each write changes one key");
        let params = self.meta.params.clone();
        let mut applier = Applier {
            store: &mut self.store,
            meta: &mut self.meta,
            params: &params,
            version: stamp.version,
            delta: &mut draft.delta,
            workers,
        };
        draft.trees[0] = applier.apply(&active, touching, &changes)?;
        Ok(())
    }

    /// Small batches are not worth starting threads.
    fn workers(&self, changes: usize) -> Workers {
        if changes < SHARED_CHANGES_MIN { Workers::Inline } else { self.options.workers }
    }

    /// Resolves each operation to its effect, and leaves out those without one.
    fn resolve<'o>(&self, operations: &'o [Operation], trees: &[Tree]) -> Result<Vec<Write<'o>>> {
        let mut writes = Vec::with_capacity(operations.len());
        let mut user_bytes = 0;
        for Operation { key, change } in operations {
            user_bytes += key.len();
            let wanted = match change {
                Change::Put(value) => {
                    user_bytes += value.len();
                    Wanted::Value(value)
                }
                Change::Delete if !tree::get(&self.store, trees, None, key)?.is_some_and(|found| found.is_put()) => {
                    continue;
                }
                Change::Delete if self.leaves_nothing(trees, key)? => Wanted::Nothing,
                Change::Delete => Wanted::Tombstone,
            };
            writes.push(Write { key, wanted });
        }
        self.store.counters.user_bytes.add(user_bytes as u64);
        Ok(writes)
    }

    /// Appends the values that are too long for their leaf, and returns their places.
    fn place_values(&mut self, stamp: Stamp, writes: &[Write<'_>], delta: &mut Delta) -> Vec<Option<BlobRef>> {
        let inline_bytes = self.meta.params.inline_bytes as usize;
        let place = |write: &Write<'_>| {
            let value = write.value().filter(|value| value.len() > inline_bytes)?;
            Some(self.store.add_value(&mut self.meta, delta, (write.key, stamp), value))
        };
        writes.iter().map(place).collect()
    }

    /// Whether the delete of a live key removes its record: the active tree has the record, and no
    /// frozen tree's filter admits the key.
    fn leaves_nothing(&self, trees: &[Tree], key: &[u8]) -> Result<bool> {
        let (active, frozen) = (&trees[0], &trees[1..]);
        // The active tree is searched first, since large filters may have to be read from disk.
        if !active.has(&self.store, key)? {
            return Ok(false);
        }
        let filter_hash = hash::filter_hash(key);
        for tree in frozen {
            if self.store.admits(tree, filter_hash)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
