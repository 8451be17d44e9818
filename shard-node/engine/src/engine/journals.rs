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
    meta::{Delta, MetaOp, VersionId, VersionRecord},
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
        let newest = self.find(state)?;
        let mut record: &VersionRecord = &newest;
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

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Epoch, Params};

    use super::*;
    use crate::testing::{commit, create, flush, open, prepare_id, put, small, stage, stage_on, used};

    fn keeping(sim: &SimStorage) -> Engine {
        create(sim, Params { journals_kept: true, ..small() })
    }

    /// Commits a version with a journal of this many bytes.
    fn commit_with(engine: &mut Engine, version: u64, len: usize) {
        let state = stage(engine, version, vec![put("a", 5)]).state;
        engine.keep_journal(&state, prepare_id(version), &vec![version as u8; len]).expect("it is staged");
        engine.settle(&state).expect("it is staged");
    }

    fn kept(engine: &Engine, from: u64, to: u64, bytes_max: usize) -> Vec<u64> {
        let journals = engine.journals(&engine.decided(), Version(from), Version(to), bytes_max).expect("readable");
        journals.iter().for_each(|journal| assert!(journal.bytes.iter().all(|b| u64::from(*b) == journal.version.0)));
        journals.iter().map(|journal| journal.version.0).collect()
    }

    #[test]
    fn a_ledger_that_keeps_no_journals_refuses_them() {
        let mut engine = create(&SimStorage::new(), small());
        let state = stage(&mut engine, 1, vec![put("a", 5)]).state;
        assert!(matches!(engine.keep_journal(&state, prepare_id(1), b"journal"), Err(Error::Invalid(_))));
    }

    #[test]
    fn only_a_staged_version_of_this_prepare_id_takes_a_journal() {
        let mut engine = keeping(&SimStorage::new());
        commit(&mut engine, 1, vec![put("a", 5)]);
        let (decided, before) = (engine.decided(), used(&engine));
        let state = stage(&mut engine, 2, vec![]).state;
        for (state, attempt) in [(decided, 1), (state, 1)] {
            let refused = engine.keep_journal(&state, prepare_id(attempt), b"journal");
            assert!(matches!(refused, Err(Error::StateMissing(_))));
        }
        assert_eq!(used(&engine), before);
    }

    #[test]
    fn a_second_journal_of_a_version_is_ignored() {
        let mut engine = keeping(&SimStorage::new());
        let state = stage(&mut engine, 1, vec![]).state;
        engine.keep_journal(&state, prepare_id(1), b"first").expect("it is staged");
        let before = used(&engine);
        engine.keep_journal(&state, prepare_id(1), b"second").expect("it is ignored");
        let journals = engine.journals(&state, Version(0), Version(9), 99).expect("readable");
        assert_eq!(journals, [KeptJournal { version: Version(1), bytes: b"first".to_vec() }]);
        assert_eq!(used(&engine), before);
    }

    #[test]
    fn a_journal_goes_with_an_abort_or_a_rollback_and_its_bytes_are_freed() {
        let mut engine = keeping(&SimStorage::new());
        commit_with(&mut engine, 1, 10);
        let before = used(&engine);
        let state = stage(&mut engine, 2, vec![put("a", 6)]).state;
        engine.keep_journal(&state, prepare_id(2), &[2; 10]).expect("it is staged");
        engine.abort(Version(2), prepare_id(2));
        assert_eq!((kept(&engine, 0, 9, 99), used(&engine)), (vec![1], before));
        commit_with(&mut engine, 2, 10);
        engine.rollback(Version(1), Epoch(1)).expect("it is kept");
        assert_eq!((kept(&engine, 0, 9, 99), used(&engine)), (vec![1], before));
    }

    #[test]
    fn a_prune_keeps_journals() {
        let mut engine = keeping(&SimStorage::new());
        (1..=3).for_each(|version| commit_with(&mut engine, version, 10));
        engine.prune(Version(3)).expect("usable");
        assert_eq!(kept(&engine, 0, 9, 999), [1, 2, 3]);
    }

    #[test]
    fn journals_are_those_of_the_asked_versions() {
        let mut engine = keeping(&SimStorage::new());
        (1..=4).for_each(|version| commit_with(&mut engine, version, 10));
        assert_eq!(kept(&engine, 2, 3, 999), [2, 3]);
        assert_eq!(kept(&engine, 3, 2, 999), [0; 0]);
        let old = engine.decided_at(Version(2)).expect("it is kept");
        let journals = engine.journals(&old, Version(0), Version(9), 999).expect("readable");
        assert_eq!(journals.len(), 2, "none above the state's version");
    }

    #[test]
    fn a_part_ends_by_its_bytes_but_has_at_least_one_journal() {
        let mut engine = keeping(&SimStorage::new());
        (1..=3).for_each(|version| commit_with(&mut engine, version, 84));
        // Each takes 100 bytes with its header.
        for (bytes_max, count) in [(0, 1), (199, 1), (200, 2), (299, 2), (300, 3)] {
            assert_eq!(kept(&engine, 0, 9, bytes_max).len(), count, "{bytes_max} bytes");
        }
    }

    #[test]
    fn a_state_shows_only_the_journals_of_its_own_line() {
        let mut engine = keeping(&SimStorage::new());
        commit_with(&mut engine, 1, 10);
        let base = engine.decided();
        let states = [1, 2].map(|attempt| {
            let operations = [put("a", 10 + attempt as usize)];
            let state = stage_on(&mut engine, base, 2, attempt, &operations).expect("it follows");
            engine.keep_journal(&state, prepare_id(attempt), &[attempt as u8; 3]).expect("it is staged");
            state
        });
        for (state, byte) in states.iter().zip(1..) {
            let journals = engine.journals(state, Version(2), Version(2), 99).expect("readable");
            assert_eq!(journals, [KeptJournal { version: Version(2), bytes: vec![byte; 3] }]);
        }
        assert_eq!(kept(&engine, 0, 9, 99), [1]);
        let unknown = ShardState { version: Version(7), ..base };
        assert!(matches!(engine.journals(&unknown, Version(0), Version(9), 9), Err(Error::StateMissing(_))));
    }

    #[test]
    fn a_journal_is_durable_with_its_version_and_its_damage_is_found() {
        let sim = SimStorage::new();
        let mut engine = keeping(&sim);
        commit_with(&mut engine, 1, 10);
        flush(&mut engine, 1);
        commit_with(&mut engine, 2, 10);
        drop(engine);
        let loss = sim.power_loss(1);
        let engine = open(&loss);
        assert_eq!(kept(&engine, 0, 9, 99), [1]);
        let at = engine.meta.journals.values().next().expect("one").at;
        loss.flip_bit(&format!("values-{}", at.segment), u64::from(at.offset) + 20, 0);
        let damaged = engine.journals(&engine.decided(), Version(0), Version(9), 99);
        assert!(matches!(damaged, Err(Error::Corrupted { page: Some(page), .. }) if page == u64::from(at.offset)));
    }
}
