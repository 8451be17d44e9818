//! Decisions: settle, abort, rollback and prune. All of them work on the Meta table; no page is
//! read.

use std::mem;

use coppice_types::{Epoch, Version};

use crate::{
    Engine, Error, PrepareId, Result, ShardState,
    meta::{MetaOp, NUMBER_MAX, VersionId},
};

impl Engine {
    /// Makes a staged version and those that it builds on permanent. Its descendants stay, all
    /// other staged versions are dropped. If the version is already decided, nothing happens.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn settle(&mut self, state: &ShardState) -> Result<()> {
        let record = self.find(state)?;
        if record.decided {
            return Ok(());
        }
        let mut line = vec![record.id];
        let mut parent = record.parent;
        while !self.meta.versions[&parent].decided {
            line.push(parent);
            parent = self.meta.versions[&parent].parent;
        }
        for id in line.iter().rev() {
            self.apply(MetaOp::Settle(*id));
        }
        assert_eq!(self.decided(), *state, "the version that was settled last is the newest decided one");
        let kept = self.meta.with_descendants(line[0]);
        let dropped = self.meta.staged.iter().copied().filter(|id| !kept.contains(id)).collect();
        self.drop_versions(dropped);
        assert_eq!(self.meta.staged.len(), kept.len() - 1, "only descendants of a settled version stay staged");
        Ok(())
    }

    /// Settles a version, then drops every other staged version.
    ///
    /// # Errors
    /// `StateMissing`; nothing is dropped then.
    pub fn adopt(&mut self, state: &ShardState) -> Result<()> {
        self.settle(state)?;
        self.abort_all_staged();
        Ok(())
    }

    /// Drops a staged version and its descendants. Returns their number.
    pub fn abort(&mut self, version: Version, prepare_id: PrepareId) -> usize {
        let named = |id: &&VersionId| {
            let record = &self.meta.versions[*id];
            record.stamp.version == version && record.prepare_id == prepare_id
        };
        let Some(id) = self.meta.staged.iter().find(named).copied() else { return 0 };
        let family = self.meta.with_descendants(id);
        let count = family.len();
        self.drop_versions(family);
        assert!(!self.meta.versions.contains_key(&id), "an aborted version is gone");
        count
    }

    /// Drops every staged version. Returns their number.
    pub fn abort_all_staged(&mut self) -> usize {
        let all: Vec<VersionId> = self.meta.staged.iter().copied().collect();
        let count = all.len();
        self.drop_versions(all);
        assert!(self.meta.staged.is_empty(), "an abort of all leaves no staged version");
        count
    }

    fn drop_versions(&mut self, mut ids: Vec<VersionId>) {
        // Children are dropped first.
        ids.sort_unstable();
        for id in ids.iter().rev() {
            self.apply_one_of_many(MetaOp::DropVersion(*id));
        }
        self.forget_dropped();
        self.merges_lost = true;
        if !ids.is_empty() {
            self.measure_waiting();
        }
    }

    /// Drops merges that no version can install any more. The cost grows with the data. So the
    /// calls that drop versions leave it to the next step of a merge or the next writes.
    pub(crate) fn drop_lost_merges(&mut self) {
        if !mem::take(&mut self.merges_lost) {
            return;
        }
        let merges = self.meta.needless_merges();
        for id in &merges {
            self.apply_one_of_many(MetaOp::DropMerge(*id));
        }
        let meta = &self.meta;
        let tips = || meta.staged.iter().map(|id| &meta.versions[id]).chain([meta.tip()]);
        let lost = self.merge.take_if(|task| !tips().any(|tip| task.stands_in(&tip.trees)));
        if let Some(task) = &lost {
            self.meta.discard_all(&task.delta);
        }
        if !merges.is_empty() || lost.is_some() {
            self.forget_dropped();
            self.measure_waiting();
        }
    }

    fn forget_dropped(&mut self) {
        let freed = self.meta.take_freed();
        self.store.forget_all_outside_caches(&freed);
    }

    /// Drops every staged version and every decided one above `to`, and returns the new tip. A
    /// frozen tree that was active there is active again, since versions list their trees.
    ///
    /// # Errors
    /// `Pruned` below the boundary, `Invalid` for numbers above the limit, or `Poisoned`; nothing
    /// is dropped then.
    pub fn rollback(&mut self, to: Version, epoch: Epoch) -> Result<ShardState> {
        self.check_usable()?;
        check_number(to.0.max(epoch.0))?;
        let target = self.decided_at(to)?;
        let decided = self.meta.decided.range(to.next()..).map(|(_, id)| *id);
        let dropped = self.meta.staged.iter().copied().chain(decided).collect();
        self.drop_versions(dropped);
        self.apply(MetaOp::SetEpoch(epoch.max(self.meta.epoch)));
        assert!(self.meta.staged.is_empty(), "a rollback leaves no staged version");
        assert!(self.meta.epoch >= epoch, "epochs ascend");
        assert_eq!(self.decided(), target, "a rollback ends at its target");
        Ok(target)
    }

    /// Drops the decided versions below the newest one at or below `before`. Staged versions stay.
    ///
    /// # Errors
    /// `Invalid` for a number above the limit, or `Poisoned` after a failed superblock write.
    pub fn prune(&mut self, before: Version) -> Result<()> {
        self.check_usable()?;
        check_number(before.0)?;
        if before > self.meta.boundary {
            self.apply(MetaOp::Prune(before));
            assert_eq!(self.meta.boundary, before, "a prune moves the boundary to its version");
        }
        Ok(())
    }
}

/// Checks that an epoch or version is below the limit of the Meta table.
pub(super) fn check_number(number: u64) -> Result<()> {
    if number < NUMBER_MAX { Ok(()) } else { Err(Error::Invalid("a number of 2^62 or more")) }
}
