//! Reads of the root group's state machine, as the `Root` service answers them.

use bytes::Bytes;
use coppice_proto::{
    convert,
    v1::{self, read_root_request::Read},
};
use coppice_root::{Flush, Root};
use coppice_types::{Epoch, Reason, Sequence, Version};

use super::messages::{refused, to_admin, to_anchor, to_key_turn, to_pin};
use crate::{
    refusal::Refusal,
    replica::runner::{Job, Runner},
};

/// Limit on the bytes of sessions in the answer to a TakeOver. Other sessions are read one by one.
const SESSIONS_BYTES_MAX: usize = 2 << 20;
/// Limit on the number of log entries whose inclusion one read proves.
const PROOFS_MAX: usize = 1024;
/// Limit on the number of admin operations in one answer.
const ADMIN_MAX: usize = 64;

/// The root group's state machine.
#[derive(Debug)]
pub struct RootMachine {
    /// The flush whose writes are running. It is dropped before the directory's lock.
    pub(super) flush: Option<Job<Flush>>,
    pub(super) runner: Runner,
    pub(super) root: Root,
}

impl RootMachine {
    /// The state machine, to read from.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The state that every reader needs. Before genesis it has only the clock and the term.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn view(&self, clock_ms: u64) -> Result<v1::RootView, Refusal> {
        let view = match self.root.view() {
            Ok(view) => view,
            Err(coppice_root::Error::NoGenesis) => {
                return Ok(v1::RootView { clock_ms, term: self.root.term().0, ..v1::RootView::default() });
            }
            Err(error) => return Err(refused(error)),
        };
        Ok(v1::RootView {
            genesis: Bytes::copy_from_slice(&view.genesis),
            newest: Bytes::copy_from_slice(&view.newest),
            log_size: view.log_size,
            log_root: convert::to_digest(&view.log_root),
            head: Some(convert::to_stamp(view.head)),
            pruned_boundary: view.pruned_boundary.0,
            epochs: view.epochs.iter().map(|it| v1::EpochPair { epoch: it.epoch.0, base: it.base.0 }).collect(),
            leaves: view.leaves.iter().map(convert::to_leaf).collect(),
            term: view.term.0,
            clock_ms,
            oldest_pin: self.root.oldest_pin(clock_ms).as_ref().map(to_pin),
            keys: view.keys.iter().map(to_key_turn).collect(),
            newest_path: Some(convert::to_path(&view.newest_path)),
            ledger_floor: view.ledger_floor.0,
            anchor: view.anchor.as_ref().map(to_anchor),
        })
    }

    fn mark(&self, clock_ms: u64) -> v1::RootMark {
        v1::RootMark {
            term: self.root.term().0,
            log_size: self.root.log_size(),
            log_root: convert::to_digest(&self.root.log_root()),
            oldest_pin: self.root.oldest_pin(clock_ms).as_ref().map(to_pin),
        }
    }

    /// The sessions, most recently used first, up to a size limit.
    #[must_use]
    pub fn sessions(&self) -> Vec<v1::SessionState> {
        let mut bytes = 0_usize;
        let mut sessions = Vec::new();
        for (id, session) in self.root.sessions() {
            let batches: Vec<_> = session.batches().map(|batch| convert::to_session_batch(&batch)).collect();
            bytes += 32 + batches.len() * 64;
            if bytes > SESSIONS_BYTES_MAX {
                break;
            }
            sessions.push(v1::SessionState {
                session_id: convert::to_session_id(id),
                highest_number: session.highest_number(),
                batches,
            });
        }
        sessions
    }

    /// Answers a read from the applied state.
    ///
    /// # Errors
    /// If the requested item does not exist, or was rolled back.
    pub fn answer(&self, read: Option<&Read>, clock_ms: u64) -> Result<v1::ReadRootResponse, Refusal> {
        if matches!(read, Some(Read::ViewUnless(known)) if *known == self.mark(clock_ms)) {
            return Ok(v1::ReadRootResponse::default());
        }
        let view = self.view(clock_ms)?;
        let size = view.log_size;
        let mut answer = v1::ReadRootResponse { view: Some(view), ..v1::ReadRootResponse::default() };
        match read {
            None | Some(Read::View(_) | Read::ViewUnless(_)) => {}
            Some(Read::Version(read)) => self.version(*read, size, &mut answer)?,
            Some(Read::Headers(read)) => {
                let headers = self.root.headers(Sequence(read.from_sequence), read.limit).map_err(refused)?;
                answer.headers = headers.into_iter().map(Bytes::from).collect();
                answer.header_sequence = read.from_sequence;
            }
            Some(Read::LogProof(read)) => self.log_proof(read, &mut answer)?,
            Some(Read::Journal(read)) => {
                let journal = self.root.journal(Sequence(read.sequence)).map_err(refused)?;
                answer.journal = journal.into_iter().map(Bytes::from).collect();
            }
            Some(Read::Pins(_)) => answer.pins = self.root.pins(clock_ms).map(|pin| to_pin(&pin)).collect(),
            Some(Read::Session(read)) => self.session(read, &mut answer)?,
            Some(Read::Tile(read)) => {
                let missing = |_| Refusal::new(Reason::NotFound, "no log has such a tile");
                let level = u8::try_from(read.level).map_err(missing)?;
                answer.tile = self.root.tile(level, read.number, read.width as usize).map_err(refused)?.into();
            }
            Some(Read::Time(read)) => {
                let found = self.root.version_at(read.time_ms).map_err(refused)?;
                (answer.header_sequence, answer.header) = (found.header.0.0, found.header.1.into());
                answer.next_header = found.next.map_or_else(Bytes::new, |(_, header)| header.into());
            }
            Some(Read::AdminAfter(number)) => {
                let operations = self.root.admin_after(*number, ADMIN_MAX).map_err(refused)?;
                answer.admin = operations.iter().flat_map(to_admin).collect();
            }
        }
        Ok(answer)
    }

    /// Root and proofs of the log's first entries. They are made from applied entries, which are
    /// durable.
    ///
    /// # Errors
    /// `STATE_MISSING` if fewer entries are applied, which may pass.
    pub fn attest(&self, request: v1::AttestRequest) -> Result<v1::AttestResponse, Refusal> {
        let v1::AttestRequest { size, old_size, want_newest } = request;
        let applied = self.root.newest_header().map_or(0, |newest| newest.sequence.0 + 1);
        if applied < size {
            let message = format!("this replica has applied {applied} of {size} entries of the log");
            return Err(Refusal::new(Reason::StateMissing, message));
        }
        let consistency = match old_size {
            0 => None,
            _ => Some(convert::to_path(&self.root.consistency(old_size, size).map_err(refused)?)),
        };
        let newest = match want_newest {
            true => {
                Some(convert::to_path(&self.root.inclusion(Sequence(size.saturating_sub(1)), size).map_err(refused)?))
            }
            false => None,
        };
        let log_root = convert::to_digest(&self.root.root_at(size).map_err(refused)?);
        Ok(v1::AttestResponse { log_root, consistency, newest, voters: Vec::new() })
    }

    fn version(&self, read: v1::VersionRead, size: u64, answer: &mut v1::ReadRootResponse) -> Result<(), Refusal> {
        if read.header_only {
            let found = self.root.version_header(Version(read.version), read.epoch.map(Epoch)).map_err(refused)?;
            (answer.header_sequence, answer.header) = (found.0.0, found.1.into());
            return Ok(());
        }
        let state = self.root.version(Version(read.version), read.epoch.map(Epoch)).map_err(refused)?;
        answer.header = state.header.into();
        answer.header_sequence = state.sequence.0;
        answer.leaves = state.leaves.iter().map(convert::to_leaf).collect();
        // Inclusion of the version's header, then of the newest one, both in the log of the view.
        let newest = Sequence(size.saturating_sub(1));
        for sequence in [state.sequence, newest] {
            answer.inclusion.push(convert::to_path(&self.root.inclusion(sequence, size).map_err(refused)?));
        }
        Ok(())
    }

    fn log_proof(&self, read: &v1::LogProofRead, answer: &mut v1::ReadRootResponse) -> Result<(), Refusal> {
        if read.indices.len() > PROOFS_MAX {
            return Err(Refusal::new(
                Reason::LimitExceeded,
                format!("at most {PROOFS_MAX} inclusions are proven at a time"),
            ));
        }
        for &index in &read.indices {
            answer.inclusion.push(convert::to_path(&self.root.inclusion(Sequence(index), read.size).map_err(refused)?));
        }
        if read.old_size > 0 {
            answer.consistency =
                Some(convert::to_path(&self.root.consistency(read.old_size, read.size).map_err(refused)?));
            answer.old_root = convert::to_digest(&self.root.root_at(read.old_size).map_err(refused)?);
        }
        Ok(())
    }

    fn session(&self, read: &v1::SessionRead, answer: &mut v1::ReadRootResponse) -> Result<(), Refusal> {
        let Some(session) = self.root.session(convert::session_id(&read.session_id)?) else { return Ok(()) };
        answer.session_known = true;
        answer.batch = session.batch(read.number).as_ref().map(convert::to_session_batch);
        if answer.batch.is_none() && session.is_expired(read.number) {
            let message = format!("number {} is below the session's window", read.number);
            return Err(Refusal::new(Reason::RequestExpired, message));
        }
        Ok(())
    }
}
