//! The check of a table that came from a disk or a peer.

use coppice_types::Version;

use super::{
    Inconsistent, Meta, NUMBER_MAX, VersionId,
    rows::{Block, frozen, sound_row},
};
use crate::place::refs::{BlobRef, Segment};

const SEGMENTS_MAX: u32 = 1 << 31;
/// The last record of a segment begins below 4 GiB.
const SEGMENT_END_MAX: u64 = 1 << 34;
/// A block's rows are few, but each has what a version of any size allocated.
const ROWS_BYTES_MAX: u32 = 1 << 30;

impl Meta {
    /// Checks the facts that the engine relies on, after the replay of a log from a disk or a peer.
    pub(crate) fn check(&self) -> Result<(), Inconsistent> {
        let tip = self.tip().id;
        let numbers = [self.generation, self.next_id, self.epoch.0, self.boundary.0];
        for version in self.versions.values() {
            sound_row(version).map_err(Inconsistent)?;
            let parent = self.versions.get(&version.parent);
            let follows =
                parent.is_some_and(|parent| parent.id < version.id && parent.stamp.version < version.stamp.version);
            if !version.decided && !(follows && (version.parent == tip || self.staged.contains(&version.parent))) {
                return Err(Inconsistent("a staged version without its base"));
            }
            if version.id >= self.next_id {
                return Err(Inconsistent("a number is to be used twice"));
            }
        }
        self.check_blocks()?;
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
        if !self.erasures.is_sound(self.next_id, NUMBER_MAX, |id| self.staged.contains(id)) {
            return Err(Inconsistent("erased keys"));
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

impl Meta {
    /// Checks where blocks lie, and their order with rows in the table.
    fn check_blocks(&self) -> Result<(), Inconsistent> {
        let kept =
            |blob: &BlobRef| self.segments.get(&blob.at.segment).is_some_and(|segment| segment.dead_at.is_none());
        let mut before: Option<&Block> = None;
        for block in self.blocks.values() {
            let follows = before.replace(block).is_none_or(|before| before.follows(block));
            let within = self.decided.range(block.first.version..=block.last.version).next().is_some();
            if !follows || within || block.last.id >= self.next_id || block.last.version >= self.tip().stamp.version {
                return Err(Inconsistent("a block out of order"));
            }
            if !kept(&block.at) || block.at.len > ROWS_BYTES_MAX {
                return Err(Inconsistent("a block without its segment"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Stamp;
    use coppice_verify::proof::LEVEL_MAX;

    use super::*;
    use crate::{
        Engine,
        meta::{Delta, MergeRecord, Tree, VersionRecord},
        place::refs::ValueRef,
        testing::{commit, create, puts, small, stage},
    };

    const BLOB: BlobRef = BlobRef { at: ValueRef { segment: 0, offset: 0 }, len: 64 };

    /// A table with an active and a frozen tree, and a staged version.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..8, 100));
        commit(&mut engine, 2, puts(8..10, 100));
        stage(&mut engine, 3, puts(10..11, 100));
        assert_eq!(engine.meta.tip().trees.len(), 2);
        engine
    }

    fn tip(meta: &mut Meta) -> &mut VersionRecord {
        let id = meta.tip().id;
        meta.versions.get_mut(&id).expect("it is there")
    }

    type Breaks = fn(&mut Meta);

    fn assert_refused(what: &'static str, broken: &[Breaks]) {
        for (number, change) in broken.iter().enumerate() {
            let mut engine = engine();
            assert_eq!(engine.meta.check(), Ok(()));
            change(&mut engine.meta);
            assert_eq!(engine.meta.check(), Err(Inconsistent(what)), "change {number}");
        }
    }

    #[test]
    fn a_version_has_an_active_tree_that_is_not_frozen_and_frozen_ones_that_are() {
        assert_refused("a version has no tree", &[|meta| tip(meta).trees.clear()]);
        assert_refused(
            "a version's trees",
            &[
                |meta| tip(meta).trees[0].filter = Some(BLOB),
                |meta| tip(meta).trees[1].filter = None,
                |meta| tip(meta).trees[1].shortcuts = Some(BlobRef { len: 4095, ..BLOB }),
                |meta| {
                    let frozen = tip(meta).trees[1].clone();
                    tip(meta).trees.extend(vec![frozen; 254]);
                },
            ],
        );
    }

    #[test]
    fn a_tree_has_a_root_if_and_only_if_it_has_records_and_no_more_levels_than_a_proof() {
        assert_refused(
            "a version's trees",
            &[
                |meta| tip(meta).trees[0].level = LEVEL_MAX + 1,
                |meta| tip(meta).trees[1].level = LEVEL_MAX + 1,
                |meta| tip(meta).trees[0].entries = 0,
                |meta| tip(meta).trees[0].root = None,
                |meta| tip(meta).trees[0] = Tree { level: 1, ..Tree::empty() },
            ],
        );
        let mut engine = engine();
        tip(&mut engine.meta).trees[0].level = LEVEL_MAX;
        assert_eq!(engine.meta.check(), Ok(()));
    }

    #[test]
    fn a_staged_version_follows_the_tip_or_a_staged_one() {
        fn staged(meta: &mut Meta) -> &mut VersionRecord {
            let id = *meta.staged.first().expect("one is staged");
            meta.versions.get_mut(&id).expect("it is there")
        }
        assert_refused(
            "a staged version without its base",
            &[
                |meta| staged(meta).parent = 99,
                |meta| staged(meta).parent = staged(meta).id,
                |meta| staged(meta).stamp = Stamp::new(0, 2),
            ],
        );
    }

    #[test]
    fn the_numbers_of_versions_and_merges_are_below_the_next_one() {
        assert_refused("a number is to be used twice", &[|meta| meta.next_id -= 1]);
        let merge = |id, output| MergeRecord {
            id,
            inputs: vec![],
            older: vec![],
            output,
            delta: Delta::default(),
            installed_by: 0,
        };
        let mut engine = engine();
        let frozen = engine.meta.tip().trees[1].clone();
        for (id, output, sound) in [(2, frozen.clone(), true), (99, frozen, false), (2, Tree::empty(), false)] {
            engine.meta.merges = [(id, merge(id, output))].into();
            let expected = if sound { Ok(()) } else { Err(Inconsistent("a merge's output")) };
            assert_eq!(engine.meta.check(), expected, "merge {id}");
        }
    }

    #[test]
    fn each_decided_version_is_listed_by_its_own_number() {
        assert_refused(
            "versions of one number",
            &[
                |meta| assert!(meta.decided.remove(&Version(1)).is_some()),
                |meta| assert!(meta.decided.insert(Version(0), 99).is_some()),
                |meta| meta.staged.clear(),
                |meta| {
                    let id = meta.decided[&Version(1)];
                    meta.decided.insert(Version(0), id);
                },
            ],
        );
    }

    #[test]
    fn a_journal_lies_in_a_live_segment() {
        assert_refused(
            "a journal without its segment",
            &[
                |meta| assert_eq!(meta.journals.insert((Version(1), 99), BLOB), None),
                |meta| {
                    let at = ValueRef { segment: 77, offset: 0 };
                    meta.journals.insert((Version(1), 1), BlobRef { at, ..BLOB });
                },
                |meta| {
                    meta.segments.insert(5, Segment { end: 9, live: 0, dead_at: Some(1) });
                    let at = ValueRef { segment: 5, offset: 0 };
                    meta.journals.insert((Version(1), 1), BlobRef { at, ..BLOB });
                },
            ],
        );
    }
}
