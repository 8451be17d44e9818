//! Kept journals: the opaque bytes that an auditor needs to replay a version.
//!
//! A journal lies in the value log and becomes durable with its version, since one flush covers
//! both changes of the Meta table. It is dropped when its version is aborted or rolled back, and
//! kept when the version is pruned. Memory holds one small entry for each kept journal.

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
    pub version: Version,
    pub bytes: Vec<u8>,
}

impl Engine {
    /// Keeps the journal of a version that was just staged. A second journal of a version is
    /// ignored.
    ///
    /// # Errors
    /// `StateMissing` if no such version is staged; `Invalid` if the ledger keeps no journals.
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

    /// Journals of the state's version and of those that it builds on, from `from` to `to`, in
    /// order. Returns about `bytes_max` bytes, but at least one journal if there is one.
    ///
    /// # Errors
    /// `StateMissing`, or a journal that cannot be read.
    pub fn journals(
        &self,
        state: &ShardState,
        from: Version,
        to: Version,
        bytes_max: usize,
    ) -> Result<Vec<KeptJournal>> {
        // The line below the state is decided, except for its staged versions.
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
