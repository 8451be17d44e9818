//! The check of a table that came from a disk or a peer.

use coppice_types::Version;
use coppice_verify::proof::LEVEL_MAX;

use super::{Inconsistent, Meta, NUMBER_MAX, Tree, VersionId};
use crate::{
    cache::shortcuts,
    place::refs::{BlobRef, Segment},
};

const SEGMENTS_MAX: u32 = 1 << 31;
/// The last record of a segment begins below 4 GiB.
const SEGMENT_END_MAX: u64 = 1 << 34;

impl Meta {
    /// Checks the facts that the engine relies on, after the replay of a log from a disk or a peer.
    pub(crate) fn check(&self) -> Result<(), Inconsistent> {
        let frozen =
            |tree: &Tree| tree.filter.is_some() && tree.shortcuts.is_none_or(shortcuts::is_sound) && sound(tree);
        let tip = self.tip().id;
        let mut numbers = vec![self.generation, self.next_id, self.epoch.0, self.boundary.0];
        for version in self.versions.values() {
            let (active, others) = version.trees.split_first().ok_or(Inconsistent("a version has no tree"))?;
            if active.blobs().next().is_some() || !sound(active) || others.len() >= 255 || !others.iter().all(frozen) {
                return Err(Inconsistent("a version's trees"));
            }
            let parent = self.versions.get(&version.parent);
            let follows =
                parent.is_some_and(|parent| parent.id < version.id && parent.stamp.version < version.stamp.version);
            if !version.decided && !(follows && (version.parent == tip || self.staged.contains(&version.parent))) {
                return Err(Inconsistent("a staged version without its base"));
            }
            if version.id >= self.next_id {
                return Err(Inconsistent("a number is to be used twice"));
            }
            numbers.extend([version.freezes, version.stamp.version.0, version.stamp.epoch.0]);
        }
        let named = |(version, id): (&Version, &VersionId)| {
            self.versions.get(id).is_some_and(|record| record.decided && record.stamp.version == *version)
        };
        if !self.decided.iter().all(named) || self.decided.len() + self.staged.len() != self.versions.len() {
            return Err(Inconsistent("versions of one number"));
        }
        let known = |((_, id), blob): (&(Version, VersionId), &BlobRef)| {
            *id < self.next_id && self.segments.get(&blob.at.segment).is_some_and(|segment| segment.dead_at.is_none())
        };
        if !self.journals.iter().all(known) {
            return Err(Inconsistent("a journal without its segment"));
        }
        if !self.merges.values().all(|merge| frozen(&merge.output) && merge.id < self.next_id) {
            return Err(Inconsistent("a merge's output"));
        }
        if numbers.into_iter().any(|number| number >= NUMBER_MAX) {
            return Err(Inconsistent("a number that nothing counts up to"));
        }
        if !self.spaces.iter().all(|space| space.is_sound(self.generation)) {
            return Err(Inconsistent("free and waiting pages"));
        }
        let segment = |(id, segment): (&u32, &Segment)| {
            *id < SEGMENTS_MAX
                && segment.end <= SEGMENT_END_MAX
                && segment.dead_at.is_none_or(|generation| generation <= self.generation)
        };
        if !self.segments.iter().all(segment) {
            return Err(Inconsistent("a segment of the value log"));
        }
        Ok(())
    }
}

/// Whether a tree can be walked and proven.
fn sound(tree: &Tree) -> bool {
    tree.level <= LEVEL_MAX && tree.root.is_some() == (tree.entries > 0) && (tree.root.is_some() || tree.level == 0)
}
