//! Rows of old versions in the value log.
//!
//! Prune works at the old end of the line of decided versions, rollback at the young end. So only
//! the ends need to be in the table. Rows between them are *folded*: a record of the value log, a
//! *block*, holds some of them, and the table holds where it is. A block is written once. A prune
//! or rollback that goes beyond it drops it whole. One that ends within it *unfolds* it: its rows
//! are in the table again.
//!
//! Invariants: a block's rows are decided and follow each other. Blocks ascend, and no row in the
//! table lies between the first and the last row of a block. The newest decided version is in the
//! table. An operation that takes a block out of the table carries all that the table needs of its
//! rows, so a replay reads no block.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use coppice_types::{
    Version,
    codec::{Error as CodecError, Reader, Writer},
};
use coppice_verify::proof::LEVEL_MAX;

use super::record::{self, Delta, MergeId, NUMBER_MAX, Tree, VersionId, VersionRecord};
use crate::{cache::shortcuts, place::refs::BlobRef};

/// Limit on the rows of a block. Reading one row reads them all.
pub(crate) const BLOCK_ROWS_MAX: usize = 16;

/// Rows of the table that are in the value log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) first: RowName,
    pub(crate) last: RowName,
    pub(crate) count: u32,
    pub(crate) at: BlobRef,
    /// Merges that the versions installed.
    pub(crate) installs: Box<[MergeId]>,
}

/// The name of a row, which no other row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    pub(crate) id: VersionId,
    pub(crate) version: Version,
}

/// Blocks by the version of their first row.
pub(crate) type Blocks = BTreeMap<Version, Block>;

/// A row, in the table or read from its block.
#[derive(Clone, Debug)]
pub(crate) enum Row<'e> {
    Held(&'e VersionRecord),
    Folded { rows: Arc<[VersionRecord]>, at: usize },
}

impl Deref for Row<'_> {
    type Target = VersionRecord;

    fn deref(&self) -> &VersionRecord {
        match self {
            Self::Held(record) => record,
            Self::Folded { rows, at } => &rows[*at],
        }
    }
}

impl VersionRecord {
    pub(crate) fn name(&self) -> RowName {
        RowName { id: self.id, version: self.stamp.version }
    }
}

/// The content of a block. A row says how many of its oldest trees are those of the row before.
pub(crate) fn encode_rows(rows: &[&VersionRecord]) -> Vec<u8> {
    assert!(!rows.is_empty() && rows.len() <= BLOCK_ROWS_MAX, "a block has some rows");
    let mut out = Writer::new();
    let mut before: &[Tree] = &[];
    for row in rows {
        let shared =
            row.trees.iter().rev().zip(before.iter().rev()).take_while(|(tree, before)| tree == before).count();
        let shared = shared.min(row.trees.len() - 1);
        out.u8(u8::try_from(shared).expect("a version has at most 255 trees"));
        row.encode_parts(&row.trees[..row.trees.len() - shared], &mut out);
        before = &row.trees;
    }
    out.into_bytes()
}

impl Block {
    pub(super) fn of(rows: &[&VersionRecord], at: BlobRef) -> Self {
        let installs = rows.iter().flat_map(|row| row.installs.iter().copied()).collect();
        let [first, last] = [rows[0].name(), rows[rows.len() - 1].name()];
        Self { first, last, count: rows.len() as u32, at, installs }
    }

    /// Whether another block is younger than this one.
    pub(super) fn follows(&self, other: &Self) -> bool {
        self.last.id < other.first.id && self.last.version < other.first.version
    }

    /// Reads the rows, and checks that they are those of this block and sound.
    pub(crate) fn decode_rows(&self, content: &[u8]) -> Result<Vec<VersionRecord>, CodecError> {
        let mut input = Reader::new(content);
        let mut rows: Vec<VersionRecord> = Vec::new();
        for _ in 0..self.count {
            let shared = usize::from(input.u8()?);
            let mut row = VersionRecord::decode(&mut input)?;
            let before = rows.last().map_or(&[][..], |before| &before.trees);
            let at = before.len().checked_sub(shared).ok_or(CodecError::Malformed("trees of the row before"))?;
            row.trees.extend_from_slice(&before[at..]);
            rows.push(row);
        }
        input.finish()?;
        let follow = |a: &VersionRecord, b: &VersionRecord| a.id < b.id && a.stamp.version < b.stamp.version;
        let sound = |row: &VersionRecord| row.decided && sound_row(row).is_ok();
        let references: Vec<&VersionRecord> = rows.iter().collect();
        if references.is_empty() || !rows.is_sorted_by(follow) || !rows.iter().all(sound) {
            return Err(CodecError::Malformed("rows"));
        }
        if Self::of(&references, self.at) != *self {
            return Err(CodecError::Malformed("rows of another block"));
        }
        Ok(rows)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        for name in [self.first, self.last] {
            out.u64(name.id);
            out.u64(name.version.0);
        }
        out.u32(self.count);
        self.at.encode(out);
        record::encode_list(&self.installs, out, |id, out| out.u64(*id));
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, CodecError> {
        let name = |input: &mut Reader<'_>| Ok(RowName { id: input.u64()?, version: Version(input.u64()?) });
        let (first, last, count) = (name(input)?, name(input)?, input.u32()?);
        let (at, installs) = (BlobRef::decode(input)?, record::decode_list(input, |input| input.u64())?);
        if count == 0 || count as usize > BLOCK_ROWS_MAX || first.id > last.id || first.version > last.version {
            return Err(CodecError::Malformed("block of rows"));
        }
        Ok(Self { first, last, count, at, installs: installs.into() })
    }
}

/// All that rows pended, or all that they allocated.
pub(crate) fn sum_of(rows: &[VersionRecord], pended: bool) -> Delta {
    let mut sum = Delta::default();
    for Delta { allocated, pended: replaced, values_allocated, values_pended } in rows.iter().map(|row| &row.delta) {
        if pended {
            sum.pended.extend_from_slice(replaced);
            values_pended.iter().for_each(|(segment, bytes)| sum.pend_value(*segment, *bytes));
        } else {
            sum.allocated.extend_from_slice(allocated);
            values_allocated.iter().for_each(|(segment, bytes)| sum.allocate_value(*segment, *bytes));
        }
    }
    sum
}

/// Checks the facts about one version that the engine relies on.
pub(super) fn sound_row(version: &VersionRecord) -> Result<(), &'static str> {
    let (active, others) = version.trees.split_first().ok_or("a version has no tree")?;
    if active.blobs().next().is_some() || !sound(active) || others.len() >= 255 || !others.iter().all(frozen) {
        return Err("a version's trees");
    }
    let numbers = [version.freezes, version.stamp.version.0, version.stamp.epoch.0];
    if numbers.into_iter().any(|number| number >= NUMBER_MAX) {
        return Err("a number that nothing counts up to");
    }
    Ok(())
}

/// Whether a tree can be walked and proven as a frozen one.
pub(super) fn frozen(tree: &Tree) -> bool {
    tree.filter.is_some() && tree.shortcuts.is_none_or(shortcuts::is_sound) && sound(tree)
}

/// Whether a tree can be walked and proven.
fn sound(tree: &Tree) -> bool {
    tree.level <= LEVEL_MAX && tree.root.is_some() == (tree.entries > 0) && (tree.root.is_some() || tree.level == 0)
}
