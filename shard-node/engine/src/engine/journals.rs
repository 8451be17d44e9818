//! Kept journals: what an auditor needs to replay a version, as opaque bytes.
//!
//! A journal lies in the value log and is durable with its version: both are changes of the Meta table, which the next flush
//! covers at once. It goes when its version is aborted or rolled back, and stays when the version is pruned. Memory holds one
//! small entry for each version that has one, as long as it is kept.

use std::collections::BTreeSet;

use coppice_types::Version;

use crate::{
    Engine, Error, PrepareId, Result, ShardState,
    files::values::RecordKind,
    meta::{Delta, MetaOp, VersionId},
    place::refs::record_bytes,
};

/// The kept journal of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJournal {
    /// The version.
    pub version: Version,
    /// What was kept.
    pub bytes: Vec<u8>,
}

impl Engine {
    /// Keeps the journal of a version that was just staged. A second one is ignored.
    ///
    /// # Errors
    /// `StateMissing` if there is no such staged version; `Invalid` if the ledger keeps no journals.
    pub fn keep_journal(&mut self, state: &ShardState, prepare_id: PrepareId, bytes: &[u8]) -> Result<()> {
        self.check_usable()?;
        if !self.meta.params.journals_kept {
            return Err(Error::Invalid("this ledger keeps no journals"));
        }
        let named = |id: &&VersionId| {
            let record = &self.meta.versions[*id];
            record.state() == *state && record.prepare_id == prepare_id
        };
        let id = *self.meta.staged.iter().find(named).ok_or(Error::StateMissing(*state))?;
        if self.meta.journals.contains_key(&(state.version, id)) {
            return Ok(());
        }
        let blob = self.store.add_blob(&mut self.meta, &mut Delta::default(), RecordKind::Journal, bytes);
        self.apply(MetaOp::KeepJournal(id, blob));
        Ok(())
    }

    /// Journals of the versions that a state builds on, itself included, from one on and in order: as many as have about `bytes_max`
    /// together, and at least one if there is one up to `to`.
    ///
    /// # Errors
    /// `StateMissing`, or if one cannot be read.
    pub fn journals(
        &self,
        state: &ShardState,
        from: Version,
        to: Version,
        bytes_max: usize,
    ) -> Result<Vec<KeptJournal>> {
        // What the state builds on is decided, but for the newest of it, perhaps.
        let mut line = BTreeSet::new();
        let mut record = self.find(state)?;
        while !record.decided {
            line.insert(record.id);
            record = &self.meta.versions[&record.parent];
        }
        let mut journals = Vec::new();
        let mut bytes = 0;
        let to = to.min(state.version);
        if from > to {
            return Ok(journals);
        }
        for ((version, id), blob) in self.meta.journals.range((from, 0)..=(to, VersionId::MAX)) {
            if self.meta.staged.contains(id) && !line.contains(id) {
                continue;
            }
            bytes += record_bytes(blob.len);
            if !journals.is_empty() && bytes > bytes_max as u64 {
                break;
            }
            journals
                .push(KeptJournal { version: *version, bytes: self.store.values.read(RecordKind::Journal, *blob)? });
        }
        Ok(journals)
    }
}
