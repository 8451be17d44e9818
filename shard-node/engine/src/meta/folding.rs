//! Folding: rows of decided versions move between the table and blocks in the value log.

use std::collections::BTreeMap;

use coppice_types::Version;

use super::{
    Delta, Inconsistent, Meta, VersionId, VersionRecord,
    rows::{BLOCK_ROWS_MAX, Block},
};
use crate::place::refs::{BlobRef, record_bytes};

impl Meta {
    /// The newest block whose first row is not above `version`.
    pub(crate) fn block_at(&self, version: Version) -> Option<&Block> {
        self.blocks.range(..=version).next_back().map(|(_, block)| block)
    }

    /// Number of versions, decided and staged.
    pub(crate) fn version_count(&self) -> u64 {
        self.versions.len() as u64 + self.blocks.values().map(|block| u64::from(block.count)).sum::<u64>()
    }

    /// The oldest decided rows in the table that are younger than all blocks, if `kept` younger
    /// ones remain and `count` rows make a block.
    pub(crate) fn rows_to_fold(&self, kept: usize, count: usize) -> Option<Vec<&VersionRecord>> {
        assert!(kept > 0, "the newest decided version stays in the table");
        let after = self.blocks.last_key_value().map_or(Version(0), |(_, block)| block.last.version.next());
        // Rows at the old end that a prune unfolded are few.
        let young = self.decided.len() - self.decided.range(..after).count();
        if young < kept + count {
            return None;
        }
        Some(self.decided.range(after..).take(count).map(|(_, id)| &self.versions[id]).collect())
    }

    pub(super) fn fold(&mut self, first: VersionId, last: VersionId, at: BlobRef) -> Result<(), Inconsistent> {
        let known = self.versions.contains_key(&first) && first <= last && last < self.tip().id;
        let rows: Vec<&VersionRecord> =
            if known { self.versions.range(first..=last).map(|(_, row)| row).collect() } else { Vec::new() };
        let decided = rows.iter().all(|row| row.decided && self.decided.get(&row.stamp.version) == Some(&row.id));
        let ascend = rows.is_sorted_by(|a, b| a.stamp.version < b.stamp.version);
        if rows.is_empty() || rows.len() > BLOCK_ROWS_MAX || rows[rows.len() - 1].id != last || !decided || !ascend {
            return Err(Inconsistent("rows are folded that are not in the table"));
        }
        let block = Block::of(&rows, at);
        let newest = self.blocks.last_key_value().is_none_or(|(_, newest)| newest.last.version < block.first.version);
        if !newest {
            return Err(Inconsistent("rows are folded that are older than a block"));
        }
        let mut taken = Delta::default();
        taken.allocate_value(at.at.segment, record_bytes(at.len));
        self.claim(&taken)?;
        for id in self.versions.range(first..=last).map(|(id, _)| *id).collect::<Vec<_>>() {
            let row = self.versions.remove(&id);
            self.decided.remove(&row.expect("it was just there").stamp.version);
        }
        self.blocks.insert(block.first.version, block);
        Ok(())
    }

    /// Puts a block's rows into the table again.
    pub(super) fn unfold(&mut self, rows: Vec<VersionRecord>) -> Result<(), Inconsistent> {
        let first = rows.first().ok_or(Inconsistent("a block without rows"))?.stamp.version;
        let block = self.blocks.get(&first).ok_or(Inconsistent("rows of no block"))?;
        if Block::of(&rows.iter().collect::<Vec<_>>(), block.at) != *block {
            return Err(Inconsistent("rows of another block"));
        }
        self.take_block(first)?;
        for row in rows {
            let known = self.versions.contains_key(&row.id) || self.decided.contains_key(&row.stamp.version);
            if !row.decided || known {
                return Err(Inconsistent("a row is in the table twice"));
            }
            self.decided.insert(row.stamp.version, row.id);
            self.versions.insert(row.id, row);
        }
        Ok(())
    }

    /// Drops a block whose versions are pruned. `pended` is what they replaced.
    pub(super) fn prune_block(&mut self, first: Version, pended: &Delta) -> Result<(), Inconsistent> {
        let installs = self.take_block(first)?.installs;
        self.free_pages(&pended.pended)?;
        self.free_values(&pended.values_pended)?;
        self.forget_merges(&installs)
    }

    /// Drops a block whose versions are rolled back. `allocated` is what they allocated.
    pub(super) fn drop_block(&mut self, first: Version, allocated: &Delta) -> Result<(), Inconsistent> {
        let block = self.take_block(first)?;
        self.uninstall(&block.installs)?;
        let journals = (block.first.version, 0)..=(block.last.version, VersionId::MAX);
        for journal in self.journals.range(journals).map(|(name, _)| *name).collect::<Vec<_>>() {
            self.journals.remove(&journal);
        }
        self.free_pages(&allocated.allocated)?;
        self.free_values(&allocated.values_allocated)
    }

    fn take_block(&mut self, first: Version) -> Result<Block, Inconsistent> {
        let block = self.blocks.remove(&first).ok_or(Inconsistent("an unknown block is dropped"))?;
        self.free_values(&BTreeMap::from([(block.at.at.segment, record_bytes(block.at.len))]))?;
        Ok(block)
    }

    /// Blocks that a prune drops whole, oldest first, and the block that it ends within.
    pub(crate) fn blocks_to_prune(&self, before: Version) -> (Vec<&Block>, Option<&Block>) {
        let mut whole: Vec<&Block> = self.blocks.range(..=before).map(|(_, block)| block).collect();
        let Some(newest) = whole.last().copied() else { return (whole, None) };
        // The newest version at or below the boundary is kept.
        let after = newest.last.version.next();
        let folded = self.blocks.range(after..).map(|(version, _)| *version).next();
        let next = folded.or_else(|| self.decided.range(after..).map(|(version, _)| *version).next());
        let within = if next.is_some_and(|next| next <= before) { None } else { whole.pop() };
        (whole, within)
    }

    /// Blocks that a rollback drops whole, youngest first, and the block that it ends within.
    pub(crate) fn blocks_to_roll_back(&self, to: Version) -> (Vec<&Block>, Option<&Block>) {
        let whole = self.blocks.range(to.next()..).map(|(_, block)| block).rev().collect();
        let target = self.block_at(to);
        let held = |after: Version| after <= to && self.decided.range(after..=to).next().is_some();
        (whole, target.filter(|block| !held(block.last.version.next())))
    }
}

#[cfg(test)]
mod tests;
