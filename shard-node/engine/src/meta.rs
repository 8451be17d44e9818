//! The Meta table: versions, merges, free pages and value segments. It is in memory, except for
//! rows of old versions ([`rows`]).
//!
//! Prune and rollback change only this table; no page is read. Every change is a [`MetaOp`], and
//! [`Meta::apply`] applies it both live and in recovery. The next flush appends the operations
//! since the last superblock to the meta log. A crash before that leaves the superblock's table.
//!
//! Invariants: the decided versions form one line, and the staged ones descend from its tip. A page
//! is used if and only if it belongs to a retained version or merge. The pages on a version's
//! pending list are used by its ancestors, not by the version itself.

mod check;
mod checkpoint;
pub(crate) mod erasures;
mod folding;
mod record;
pub(crate) mod rows;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use coppice_env::bug::{Bug, planted};
use coppice_types::{Epoch, Params, ShardId, Version};

pub(crate) use record::{Delta, MergeId, MergeRecord, MetaOp, NUMBER_MAX, Tree, TreeId, VersionId, VersionRecord};

use crate::{
    ShardState,
    place::{
        page::{PageFile, Pid, PlaceMap, PlaceSet},
        refs::{BlobRef, Segment, record_bytes},
        space::Space,
    },
};

/// A segment file that no superblock on disk needs, but a pin may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadSegment {
    pub(crate) segment: u32,
    pub(crate) end: u64,
    pub(crate) dead_at: u64,
}

#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) shard: ShardId,
    pub(crate) params: Params,
    /// Generation of the last checkpoint, which may still be in progress.
    pub(crate) generation: u64,
    pub(crate) epoch: Epoch,
    /// Oldest cluster version that can be read or rolled back to.
    pub(crate) boundary: Version,
    pub(crate) versions: BTreeMap<VersionId, VersionRecord>,
    /// The line of decided versions, as far as it is in the table.
    pub(crate) decided: BTreeMap<Version, VersionId>,
    /// Rows of decided versions that are in the value log.
    pub(crate) blocks: rows::Blocks,
    pub(crate) staged: BTreeSet<VersionId>,
    pub(crate) merges: BTreeMap<MergeId, MergeRecord>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    /// Kept journals, by version and number of the version's record. A prune may have dropped that
    /// record.
    pub(crate) journals: BTreeMap<(Version, VersionId), BlobRef>,
    pub(crate) erasures: erasures::Erasures,
    spaces: [Space; 3],
    /// Number of used patches by page.
    patches: PlaceMap<u64, u16>,
    next_id: u64,
    /// Pages allocated since the last checkpoint, so no superblock refers to them.
    fresh: PlaceSet<Pid>,
    /// The fresh pages of the checkpoint in progress, while its superblock is being written.
    going: Option<PlaceSet<Pid>>,
    /// Allocated pages of a stage or merge in progress, which no operation names yet.
    reserved: PlaceSet<Pid>,
    reserved_values: BTreeMap<u32, u64>,
    /// Places freed since the last [`Self::take_freed`], for the store to forget.
    freed: Vec<Pid>,
    dead_segments: Vec<DeadSegment>,
    /// Pinned generations, each with the number of its snapshot.
    pins: BTreeSet<(u64, u64)>,
}

/// An operation does not fit the table. Either the log is damaged, or there is a bug.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inconsistent(pub(crate) &'static str);

impl Meta {
    /// The table of a new shard: version 0 with one empty tree.
    pub(crate) fn new(shard: ShardId, params: Params, genesis: VersionRecord) -> Self {
        assert!(genesis.decided);
        let mut meta = Self::empty(shard, params);
        meta.next_id = genesis.id + 1;
        meta.decided.insert(genesis.stamp.version, genesis.id);
        meta.versions.insert(genesis.id, genesis);
        meta
    }

    fn empty(shard: ShardId, params: Params) -> Self {
        Self {
            shard,
            params,
            generation: 0,
            epoch: Epoch(0),
            boundary: Version(0),
            versions: BTreeMap::new(),
            decided: BTreeMap::new(),
            blocks: rows::Blocks::new(),
            staged: BTreeSet::new(),
            merges: BTreeMap::new(),
            segments: BTreeMap::new(),
            journals: BTreeMap::new(),
            erasures: erasures::Erasures::default(),
            spaces: Default::default(),
            patches: PlaceMap::default(),
            next_id: 0,
            fresh: PlaceSet::default(),
            going: None,
            reserved: PlaceSet::default(),
            reserved_values: BTreeMap::new(),
            freed: Vec::new(),
            dead_segments: Vec::new(),
            pins: BTreeSet::new(),
        }
    }

    /// The newest decided version.
    pub(crate) fn tip(&self) -> &VersionRecord {
        let id = self.decided.last_key_value().expect("a shard always has a decided version").1;
        &self.versions[id]
    }

    /// The newest decided version at or below `version` among those in the table.
    pub(crate) fn held_at(&self, version: Version) -> Option<&VersionRecord> {
        self.decided.range(..=version).next_back().map(|(_, id)| &self.versions[id])
    }

    /// The decided version in the table with this name, or else the staged one that was added last.
    pub(crate) fn find(&self, state: &ShardState) -> Option<&VersionRecord> {
        let decided = self.decided.get(&state.version).map(|id| &self.versions[id]);
        decided
            .filter(|record| record.digest == state.digest || planted(Bug::MissedAdminServed))
            .or_else(|| self.staged.iter().rev().map(|id| &self.versions[id]).find(|record| record.state() == *state))
    }

    /// A staged version and everything staged on it, parents first.
    pub(crate) fn with_descendants(&self, id: VersionId) -> Vec<VersionId> {
        let mut family = vec![id];
        // Ids ascend, so the loop meets a child after its parent.
        for candidate in self.staged.range(id + 1..) {
            if family.contains(&self.versions[candidate].parent) {
                family.push(*candidate);
            }
        }
        family
    }

    /// The next unused number.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The merge of the adjacent trees of this forest that begin at `at`, if its output is on this
    /// replica.
    pub(crate) fn find_merge(&self, trees: &[Tree], at: usize, inputs: usize) -> Option<&MergeRecord> {
        let ids: Vec<TreeId> = trees[at..].iter().map(Tree::id).collect();
        self.merges.values().find(|merge| merge.inputs == ids[..inputs] && merge.older == ids[inputs..])
    }

    /// All merges whose inputs are in this forest.
    pub(crate) fn ready_merges<'a>(&'a self, trees: &'a [Tree]) -> impl Iterator<Item = &'a MergeRecord> + 'a {
        self.merges.values().filter(|merge| stands_in(merge, trees))
    }

    /// Merges that no version has installed or can install.
    pub(crate) fn needless_merges(&self) -> Vec<MergeId> {
        let tips: Vec<&VersionRecord> = self.staged.iter().map(|id| &self.versions[id]).chain([self.tip()]).collect();
        let needless =
            |merge: &&MergeRecord| merge.installed_by == 0 && !tips.iter().any(|tip| stands_in(merge, &tip.trees));
        self.merges.values().filter(needless).map(|merge| merge.id).collect()
    }

    // Allocation. Reserved pages belong to work that no operation names yet.

    pub(crate) fn allocate(&mut self, file: PageFile, pages: usize) -> Pid {
        let first = self.spaces[file as usize].allocate(pages as u64);
        let pid = Pid::new(file, first, pages);
        let new = self.reserved.insert(pid);
        assert!(new, "{pid:?} is allocated twice");
        pid
    }

    /// Allocates a place for a patch: the given slot of a page that is being filled, or the first
    /// slot of a new page.
    pub(crate) fn allocate_patch(&mut self, open: Option<(u64, u8)>) -> Pid {
        let (page, slot) = open.unwrap_or_else(|| (self.spaces[PageFile::Patches as usize].allocate(1), 0));
        let used = self.patches.entry(page).or_default();
        *used += 1;
        assert!(*used <= u16::from(slot) + 1, "a page has at most as many patches as slots");
        let pid = Pid::of_patch(page, slot);
        let new = self.reserved.insert(pid);
        assert!(new, "{pid:?} is allocated twice");
        pid
    }

    /// Gives up one use of a page. Returns `true` if nothing uses the page any more, `false` if
    /// other patches do.
    fn vacate(&mut self, pid: Pid) -> Result<bool, Inconsistent> {
        if !pid.is_patch() {
            return Ok(true);
        }
        let used = self.patches.get_mut(&pid.first()).ok_or(Inconsistent("a patch is freed twice"))?;
        assert!(*used > 0, "a page of patches in the table has a patch");
        *used -= 1;
        let vacant = *used == 0;
        if vacant {
            self.patches.remove(&pid.first());
        }
        Ok(vacant)
    }

    pub(crate) fn reserve_value(&mut self, segment: u32, bytes: u64) {
        *self.reserved_values.entry(segment).or_default() += bytes;
    }

    /// Frees a reserved page.
    pub(crate) fn discard(&mut self, pid: Pid) {
        if self.unreserve(pid) {
            self.release(pid.file(), pid.first(), pid.pages());
        }
    }

    /// Frees all pages and value bytes of failed or cancelled work.
    pub(crate) fn discard_all(&mut self, delta: &Delta) {
        let vacant = delta.allocated.iter().copied().filter(|pid| self.unreserve(*pid));
        let mut vacant: Vec<Pid> = vacant.collect();
        vacant.sort_unstable_by_key(|pid| (pid.file() as usize, pid.first()));
        // A merge takes consecutive pages.
        let joined = |a: &Pid, b: &Pid| a.file() == b.file() && a.first() + a.pages() == b.first();
        for row in vacant.chunk_by(joined) {
            self.release(row[0].file(), row[0].first(), row.iter().map(|pid| pid.pages()).sum());
        }
        for (segment, bytes) in &delta.values_allocated {
            let reserved = self.reserved_values.get(segment).copied();
            assert!(reserved >= Some(*bytes), "cancelled work gives back value bytes that it reserved");
            self.unreserve_value(*segment, *bytes);
        }
    }

    /// Ends a reservation. Returns whether the page is unused now.
    fn unreserve(&mut self, pid: Pid) -> bool {
        let known = self.reserved.remove(&pid);
        assert!(known, "{pid:?} was not reserved");
        self.freed.push(pid);
        let vacant = self.vacate(pid);
        assert!(vacant.is_ok(), "a reserved page is used");
        vacant == Ok(true)
    }

    fn release(&mut self, file: PageFile, start: u64, pages: u64) {
        let released = self.spaces[file as usize].release(start, pages);
        assert!(released, "{pages} pages of {file:?} from {start} on were not in use");
    }

    fn unreserve_value(&mut self, segment: u32, bytes: u64) {
        let reserved = self.reserved_values.entry(segment).or_default();
        *reserved = reserved.saturating_sub(bytes);
    }

    /// Returns the places freed since the last call.
    pub(crate) fn take_freed(&mut self) -> Vec<Pid> {
        mem::take(&mut self.freed)
    }

    /// Applies one change.
    ///
    /// # Errors
    /// If the operation does not fit. Live this is a bug, in recovery a damaged log.
    pub(crate) fn apply(&mut self, operation: MetaOp) -> Result<(), Inconsistent> {
        match operation {
            MetaOp::AddVersion(record) => self.add_version(record),
            MetaOp::DropVersion(id) => self.drop_version(id),
            MetaOp::Settle(id) => self.settle(id),
            MetaOp::Prune(before) => self.prune(before),
            MetaOp::SetEpoch(epoch) => {
                self.epoch = epoch;
                Ok(())
            }
            MetaOp::AddMerge(record) => self.add_merge(record),
            MetaOp::DropMerge(id) => self.drop_merge(id),
            MetaOp::KeepJournal(id, blob) => self.keep_journal(id, blob),
            MetaOp::Fold { first, last, at } => self.fold(first, last, at),
            MetaOp::Unfold(rows) => self.unfold(rows),
            MetaOp::PruneBlock(first, pended) => self.prune_block(first, &pended),
            MetaOp::DropBlock(first, allocated) => self.drop_block(first, &allocated),
            MetaOp::Erase(id, keys) => self.erase(id, keys),
            MetaOp::Erased(through) => self.end_erasures(through),
            MetaOp::Copied => {
                self.bury_segments(self.generation);
                self.settle_limbo(self.generation)
            }
            MetaOp::Checkpoint { generation, segment_ends, dead_segments } => {
                self.begin_checkpoint(generation, &segment_ends, &dead_segments)?;
                self.end_checkpoint(&segment_ends)
            }
        }
    }

    fn add_version(&mut self, record: VersionRecord) -> Result<(), Inconsistent> {
        let follows = record.parent == self.tip().id || self.staged.contains(&record.parent);
        if record.decided || record.id < self.next_id || !follows {
            return Err(Inconsistent("a version that does not follow"));
        }
        self.claim(&record.delta)?;
        for id in &record.installs {
            let merge = self.merges.get_mut(id).ok_or(Inconsistent("an unknown merge is installed"))?;
            merge.installed_by += 1;
        }
        self.next_id = record.id.checked_add(1).ok_or(Inconsistent("a number that is none"))?;
        let new = self.staged.insert(record.id);
        assert!(new, "a number of a staged version is given once");
        let before = self.versions.insert(record.id, record);
        assert!(before.is_none(), "a number of a version is given once");
        Ok(())
    }

    /// Drops a version, decided or not. The caller also drops its descendants.
    fn drop_version(&mut self, id: VersionId) -> Result<(), Inconsistent> {
        let record = self.versions.remove(&id).ok_or(Inconsistent("an unknown version is dropped"))?;
        if record.decided {
            self.decided.remove(&record.stamp.version);
        } else {
            let known = self.staged.remove(&id);
            assert!(known, "a version that is not decided is staged");
        }
        if self.decided.is_empty() {
            return Err(Inconsistent("the last decided version is dropped"));
        }
        self.uninstall(&record.installs)?;
        self.journals.remove(&(record.stamp.version, id));
        self.erasures.forget(id);
        self.free_pages(&record.delta.allocated)?;
        self.free_values(&record.delta.values_allocated)
    }

    fn uninstall(&mut self, installs: &[MergeId]) -> Result<(), Inconsistent> {
        for id in installs {
            let merge = self.merges.get_mut(id).ok_or(Inconsistent("an unknown merge was installed"))?;
            merge.installed_by = merge.installed_by.checked_sub(1).ok_or(Inconsistent("a merge was not installed"))?;
        }
        Ok(())
    }

    /// Keeps a journal. The version's record owns the bytes, so dropping the version frees them. A
    /// prune forgets the record and leaves the bytes.
    fn keep_journal(&mut self, id: VersionId, blob: BlobRef) -> Result<(), Inconsistent> {
        let mut taken = Delta::default();
        taken.allocate_value(blob.at.segment, record_bytes(blob.len));
        self.claim(&taken)?;
        let staged = self.staged.contains(&id);
        let record = self.versions.get_mut(&id).ok_or(Inconsistent("a journal of an unknown version"))?;
        record.delta.allocate_value(blob.at.segment, record_bytes(blob.len));
        let new = self.journals.insert((record.stamp.version, id), blob).is_none();
        if staged && new { Ok(()) } else { Err(Inconsistent("a journal of a version that has one, or is decided")) }
    }

    /// Notes what a staged version erases.
    fn erase(&mut self, id: VersionId, keys: Vec<Vec<u8>>) -> Result<(), Inconsistent> {
        let fits = self.staged.contains(&id) && self.erasures.stage(id, keys);
        if planted(Bug::ErasedWhenStaged) {
            let version = self.versions.get(&id).map_or(Version(0), |record| record.stamp.version);
            self.erasures.settle(id, version, self.generation + 1);
        }
        if fits { Ok(()) } else { Err(Inconsistent("a version erases twice, or is not staged")) }
    }

    /// Notes that the erasures of versions up to a number are done.
    fn end_erasures(&mut self, through: VersionId) -> Result<(), Inconsistent> {
        let fits = through < self.next_id && self.erasures.end(through);
        if fits { Ok(()) } else { Err(Inconsistent("erasures are done that are not open")) }
    }

    fn settle(&mut self, id: VersionId) -> Result<(), Inconsistent> {
        let tip = self.tip().id;
        if !self.staged.remove(&id) {
            return Err(Inconsistent("a version is settled that is not staged"));
        }
        let record = self.versions.get_mut(&id).ok_or(Inconsistent("an unknown version is settled"))?;
        if record.parent != tip {
            return Err(Inconsistent("a version is settled before its base"));
        }
        assert!(!record.decided, "a staged version is not decided");
        record.decided = true;
        self.decided.insert(record.stamp.version, id);
        self.erasures.settle(id, record.stamp.version, self.generation + 1);
        Ok(())
    }

    fn prune(&mut self, before: Version) -> Result<(), Inconsistent> {
        self.boundary = self.boundary.max(before);
        if self.block_at(before).is_some() {
            return Err(Inconsistent("a prune of versions that are not in the table"));
        }
        let Some(kept) = self.held_at(before).map(|record| record.stamp.version) else { return Ok(()) };
        let pruned: Vec<VersionId> = self.decided.range(..=kept).map(|(_, id)| *id).collect();
        for id in pruned {
            let record = self.versions.get_mut(&id).ok_or(Inconsistent("an unknown version is pruned"))?;
            let delta = mem::take(&mut record.delta);
            let installs = mem::take(&mut record.installs);
            if record.stamp.version < kept {
                self.decided.remove(&record.stamp.version);
                self.versions.remove(&id);
            }
            self.free_pages(&delta.pended)?;
            self.free_values(&delta.values_pended)?;
            self.forget_merges(&installs)?;
        }
        assert!(self.decided.contains_key(&kept), "a prune keeps the version at its boundary");
        Ok(())
    }

    /// Forgets merges whose installing versions are pruned, and frees what they replaced.
    fn forget_merges(&mut self, installs: &[MergeId]) -> Result<(), Inconsistent> {
        for merge in installs {
            let merge = self.merges.remove(merge).ok_or(Inconsistent("an unknown merge was installed"))?;
            self.free_pages(&merge.delta.pended)?;
            self.free_values(&merge.delta.values_pended)?;
        }
        Ok(())
    }

    fn add_merge(&mut self, record: MergeRecord) -> Result<(), Inconsistent> {
        if record.id < self.next_id {
            return Err(Inconsistent("a merge that does not follow"));
        }
        self.claim(&record.delta)?;
        self.next_id = record.id.checked_add(1).ok_or(Inconsistent("a number that is none"))?;
        self.merges.insert(record.id, record);
        Ok(())
    }

    fn drop_merge(&mut self, id: MergeId) -> Result<(), Inconsistent> {
        let merge = self.merges.remove(&id).ok_or(Inconsistent("an unknown merge is dropped"))?;
        if merge.installed_by > 0 {
            return Err(Inconsistent("an installed merge is dropped"));
        }
        self.free_pages(&merge.delta.allocated)?;
        self.free_values(&merge.delta.values_allocated)
    }

    /// Takes the pages and bytes that an operation names: reserved ones live, free ones in
    /// recovery.
    fn claim(&mut self, delta: &Delta) -> Result<(), Inconsistent> {
        for pid in &delta.allocated {
            if !self.reserved.remove(pid) && !self.claim_place(*pid) {
                return Err(Inconsistent("a page is allocated twice"));
            }
            self.fresh.insert(*pid);
        }
        for (segment, bytes) in &delta.values_allocated {
            self.unreserve_value(*segment, *bytes);
            let segment = self.segments.entry(*segment).or_default();
            if segment.dead_at.is_some() {
                return Err(Inconsistent("a dead segment takes a value"));
            }
            segment.live = segment.live.checked_add(*bytes).ok_or(Inconsistent("more bytes than there are"))?;
        }
        Ok(())
    }

    /// Takes a place during a replay. Returns `false` if it is in use.
    fn claim_place(&mut self, pid: Pid) -> bool {
        if pid.is_patch() {
            // The first patch of a page claims the page.
            let used = self.patches.entry(pid.first()).or_default();
            *used = used.saturating_add(1);
            if *used > 1 {
                return true;
            }
        }
        self.spaces[pid.file() as usize].claim(pid.first(), pid.pages())
    }

    fn free_pages(&mut self, pids: &[Pid]) -> Result<(), Inconsistent> {
        for pid in pids {
            // All patches of a page are written between the same two flushes, so either all are
            // fresh or none is.
            let fresh = self.fresh.remove(pid);
            if !self.vacate(*pid)? {
                self.freed.push(*pid);
                continue;
            }
            let space = &mut self.spaces[pid.file() as usize];
            if !fresh {
                space.retire(pid.first(), pid.pages(), self.generation + 1);
            } else if !space.release(pid.first(), pid.pages()) {
                return Err(Inconsistent("a page is freed twice"));
            }
            self.freed.push(*pid);
        }
        Ok(())
    }

    fn free_values(&mut self, values: &BTreeMap<u32, u64>) -> Result<(), Inconsistent> {
        for (id, bytes) in values {
            let segment = self.segments.get_mut(id).ok_or(Inconsistent("a value of no segment is freed"))?;
            segment.live = segment.live.checked_sub(*bytes).ok_or(Inconsistent("a value is freed twice"))?;
        }
        Ok(())
    }

    // Reports.

    pub(crate) fn space(&self, file: PageFile) -> &Space {
        &self.spaces[file as usize]
    }

    /// Pages of patches, with the number of used patches in each.
    pub(crate) fn patches(&self) -> &PlaceMap<u64, u16> {
        &self.patches
    }
}

fn stands_in(merge: &MergeRecord, trees: &[Tree]) -> bool {
    let ids = merge.inputs.iter().chain(&merge.older);
    let count = merge.inputs.len() + merge.older.len();
    trees.len() > count && trees[trees.len() - count..].iter().map(Tree::id).eq(ids.copied())
}

#[cfg(test)]
mod tests;
