//! The line of versions: rows in the Meta table, and those that it has folded into the value log.

use std::sync::Arc;

use coppice_env::bug::{Bug, planted};
use coppice_types::Version;

use crate::{
    Error, Result, ShardState,
    files::values::{self, RecordKind},
    meta::{
        Meta, VersionId, VersionRecord,
        rows::{Block, Row},
    },
    store::{Store, blocks::Rows},
};

impl Store {
    /// The rows of a block, checked.
    pub(crate) fn rows(&self, block: &Block) -> Result<Rows> {
        if let Some(rows) = self.blocks.get(block.at) {
            return Ok(rows);
        }
        let rows: Rows = self.read_rows(block)?.into();
        self.blocks.insert(block.at, Arc::clone(&rows));
        Ok(rows)
    }

    /// Like [`Self::rows`], always from the value log.
    pub(crate) fn read_rows(&self, block: &Block) -> Result<Vec<VersionRecord>> {
        let content = self.values.read(RecordKind::Rows, block.at)?;
        let at = block.at.at;
        let damaged =
            |error| Error::corrupted(values::file_name(at.segment), Some(at.offset.into()), format!("{error}"));
        block.decode_rows(&content).map_err(damaged)
    }
}

/// The versions of a table, those in the value log among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'e> {
    pub(crate) meta: &'e Meta,
    pub(crate) store: &'e Store,
}

impl<'e> Line<'e> {
    /// The newest decided version at or below `version`.
    pub(crate) fn decided_at(&self, version: Version) -> Result<Option<Row<'e>>> {
        let held = self.meta.held_at(version);
        let block = self.meta.block_at(version);
        match block.filter(|block| held.is_none_or(|held| held.stamp.version < block.first.version)) {
            None => Ok(held.map(Row::Held)),
            Some(block) => {
                let rows = self.store.rows(block)?;
                let above = rows.partition_point(|row| row.stamp.version <= version);
                assert!(above > 0, "a block begins with its first row");
                Ok(Some(Row::Folded { rows, at: above - 1 }))
            }
        }
    }

    /// The oldest decided version that is not below `version`.
    pub(crate) fn decided_from(&self, version: Version) -> Result<Option<Row<'e>>> {
        let held = self.meta.decided.range(version..).next().map(|(_, id)| &self.meta.versions[id]);
        let within = self.meta.block_at(version).filter(|block| block.last.version >= version);
        let block = within.or_else(|| self.meta.blocks.range(version..).next().map(|(_, block)| block));
        match block.filter(|block| held.is_none_or(|held| block.first.version < held.stamp.version)) {
            None => Ok(held.map(Row::Held)),
            Some(block) => {
                let rows = self.store.rows(block)?;
                let at = rows.partition_point(|row| row.stamp.version < version);
                assert!(at < rows.len(), "a block ends with its last row");
                Ok(Some(Row::Folded { rows, at }))
            }
        }
    }

    /// The decided version with this name, or else the staged one that was added last.
    pub(crate) fn find(&self, state: &ShardState) -> Result<Option<Row<'e>>> {
        if let Some(held) = self.meta.find(state) {
            return Ok(Some(Row::Held(held)));
        }
        let Some(block) = self.meta.block_at(state.version).filter(|block| block.last.version >= state.version) else {
            return Ok(None);
        };
        let rows = self.store.rows(block)?;
        let Ok(at) = rows.binary_search_by_key(&state.version, |row| row.stamp.version) else { return Ok(None) };
        let found = rows[at].digest == state.digest || planted(Bug::MissedAdminServed);
        Ok(found.then_some(Row::Folded { rows, at }))
    }

    /// All versions with numbers from `id` on, in the order of numbers. A block that cannot be read
    /// gives one error.
    pub(crate) fn from(self, id: VersionId) -> impl Iterator<Item = Result<Row<'e>>> {
        let blocks = self.meta.blocks.values().filter(move |block| block.last.id >= id);
        let oldest = blocks.clone().next().map_or(VersionId::MAX, |block| block.first.id);
        let held = |(_, record): (&VersionId, &'e VersionRecord)| Ok(Row::Held(record));
        let folded = blocks.flat_map(move |block| match self.store.rows(block) {
            Ok(rows) => {
                let first = rows.partition_point(|row| row.id < id);
                (first..rows.len()).map(|at| Ok(Row::Folded { rows: Arc::clone(&rows), at })).collect()
            }
            Err(error) => vec![Err(error)],
        });
        let before = self.meta.versions.range(id.min(oldest)..oldest).map(held);
        let after = self.meta.versions.range(oldest.max(id)..).map(held);
        before.chain(folded).chain(after)
    }
}
