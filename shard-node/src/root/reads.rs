//! The root group's state machine behind a replica: `coppice_root` with the messages of the `Root` service.

use std::sync::Arc;

use bytes::Bytes;
use coppice_env::Storage;
use coppice_proto::v1::{self, read_root_request::Read};
use coppice_root::{
    AppendHeader, Command, CommandError, Manifest, OpenSession, Operation, Outcome, Pin, RaftPosition, Root, SetPin,
    SnapshotReceiver, StateLeaf, TakeOver, Unpin,
};
use coppice_types::{Digest, Epoch, PinId, Reason, Sequence, SessionId, ShardId, Term, Version};

use crate::{
    Error, convert,
    refusal::Refusal,
    replica::machine::{Applied, Check, Pinned, Position, Receiver, StateMachine},
};

/// Bytes of sessions that a TakeOver answers with; more are found one by one.
const SESSIONS_BYTES_MAX: usize = 2 << 20;
/// Most log entries whose inclusion one read proves.
const PROOFS_MAX: usize = 1024;
/// Most admin operations in one answer.
const ADMIN_MAX: usize = 64;

/// The root group's state machine.
#[derive(Debug)]
pub struct RootMachine {
    root: Root,
}

impl RootMachine {
    /// The state machine, to read from.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// What every reader needs; nothing but the clock before genesis.
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
            log_root: convert::to_bytes(&view.log_root),
            head: Some(convert::to_stamp(view.head)),
            pruned_boundary: view.pruned_boundary.0,
            epochs: view.epochs.iter().map(|it| v1::EpochPair { epoch: it.epoch.0, base: it.base.0 }).collect(),
            leaves: view.leaves.iter().map(to_leaf).collect(),
            term: view.term.0,
            clock_ms,
            oldest_pin: self.root.oldest_pin(clock_ms).as_ref().map(to_pin),
            keys: view.keys.iter().map(to_key_turn).collect(),
        })
    }

    /// The sessions, most recently used first, as far as they fit.
    #[must_use]
    pub fn sessions(&self) -> Vec<v1::SessionState> {
        let mut bytes = 0_usize;
        let mut sessions = Vec::new();
        for (id, session) in self.root.sessions() {
            let batches: Vec<_> = session.batches().map(|batch| to_batch(&batch)).collect();
            bytes += 32 + batches.len() * 64;
            if bytes > SESSIONS_BYTES_MAX {
                break;
            }
            sessions.push(v1::SessionState {
                session_id: Bytes::copy_from_slice(id.as_bytes()),
                highest_number: session.highest_number(),
                batches,
            });
        }
        sessions
    }

    /// Answers a read from the applied state.
    ///
    /// # Errors
    /// If what is asked for does not exist, or does not stand.
    pub fn answer(&self, read: Option<&Read>, clock_ms: u64) -> Result<v1::ReadRootResponse, Refusal> {
        let view = self.view(clock_ms)?;
        let size = view.log_size;
        let mut answer = v1::ReadRootResponse { view: Some(view), ..v1::ReadRootResponse::default() };
        match read {
            None | Some(Read::View(_)) => {}
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
            Some(Read::AdminAfter(number)) => {
                let operations = self.root.admin_after(*number, ADMIN_MAX).map_err(refused)?;
                answer.admin = operations.iter().flat_map(to_admin).collect();
            }
        }
        Ok(answer)
    }

    /// What the applied, and so durable, log says of its first entries.
    ///
    /// # Errors
    /// `STATE_MISSING` if it has fewer, which may pass.
    pub fn attest(&self, request: v1::AttestRequest) -> Result<v1::AttestResponse, Refusal> {
        let v1::AttestRequest { size, old_size, want_newest } = request;
        let applied = self.root.newest_header().map_or(0, |newest| newest.sequence.0 + 1);
        if applied < size {
            let message = format!("this replica has applied {applied} of {size} entries of the log");
            return Err(Refusal::new(Reason::StateMissing, message));
        }
        let consistency = match old_size {
            0 => None,
            _ => Some(to_path(&self.root.consistency(old_size, size).map_err(refused)?)),
        };
        let newest = match want_newest {
            true => Some(to_path(&self.root.inclusion(Sequence(size.saturating_sub(1)), size).map_err(refused)?)),
            false => None,
        };
        let log_root = convert::to_bytes(&self.root.root_at(size).map_err(refused)?);
        Ok(v1::AttestResponse { log_root, consistency, newest, voters: Vec::new() })
    }

    fn version(&self, read: v1::VersionRead, size: u64, answer: &mut v1::ReadRootResponse) -> Result<(), Refusal> {
        let state = self.root.version(Version(read.version), read.epoch.map(Epoch)).map_err(refused)?;
        answer.header = state.header.into();
        answer.header_sequence = state.sequence.0;
        answer.leaves = state.leaves.iter().map(to_leaf).collect();
        // The version's header, then the newest one, both in the log of the view.
        let newest = Sequence(size.saturating_sub(1));
        for sequence in [state.sequence, newest] {
            answer.inclusion.push(to_path(&self.root.inclusion(sequence, size).map_err(refused)?));
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
            answer.inclusion.push(to_path(&self.root.inclusion(Sequence(index), read.size).map_err(refused)?));
        }
        if read.old_size > 0 {
            answer.consistency = Some(to_path(&self.root.consistency(read.old_size, read.size).map_err(refused)?));
            answer.old_root = convert::to_bytes(&self.root.root_at(read.old_size).map_err(refused)?);
        }
        Ok(())
    }

    fn session(&self, read: &v1::SessionRead, answer: &mut v1::ReadRootResponse) -> Result<(), Refusal> {
        let Some(session) = self.root.session(session_id(&read.session_id)?) else { return Ok(()) };
        answer.session_known = true;
        answer.batch = session.batch(read.number).as_ref().map(to_batch);
        if answer.batch.is_none() && session.is_expired(read.number) {
            let message = format!("number {} is below the session's window", read.number);
            return Err(Refusal::new(Reason::RequestExpired, message));
        }
        Ok(())
    }
}

fn refused(error: coppice_root::Error) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

/// Reads the name of a session.
///
/// # Errors
/// If it is not 16 bytes.
pub fn session_id(bytes: &[u8]) -> Result<SessionId, Refusal> {
    SessionId::from_slice(bytes).ok_or_else(|| Refusal::new(Reason::InvalidArgument, "a session id has 16 bytes"))
}

/// Reads the name of a pin.
///
/// # Errors
/// If it is not 16 bytes.
pub fn pin_id(bytes: &[u8]) -> Result<PinId, Refusal> {
    PinId::from_slice(bytes).ok_or_else(|| Refusal::new(Reason::InvalidArgument, "a pin id has 16 bytes"))
}

/// Gives a pin.
#[must_use]
pub fn to_pin(pin: &Pin) -> v1::VersionPin {
    let id = Bytes::copy_from_slice(pin.id.as_bytes());
    v1::VersionPin { id, version: pin.version.0, expires_ms: pin.expires_ms }
}

fn to_key_turn(turn: &coppice_root::KeyTurn) -> v1::KeyTurn {
    v1::KeyTurn { sequence: turn.sequence.0, public_key: Bytes::copy_from_slice(&turn.public_key) }
}

fn to_path(hashes: &[Digest]) -> v1::HashPath {
    v1::HashPath { hashes: hashes.iter().map(convert::to_bytes).collect() }
}

fn to_leaf(leaf: &StateLeaf) -> v1::StateLeaf {
    v1::StateLeaf {
        shard: leaf.shard.0,
        low: Bytes::copy_from_slice(&leaf.low),
        high: leaf.high.as_deref().map(Bytes::copy_from_slice),
        state: Some(v1::ShardState { version: leaf.version.0, digest: convert::to_bytes(&leaf.digest) }),
    }
}

fn leaf(leaf: v1::StateLeaf) -> Result<StateLeaf, Refusal> {
    let state = convert::state(leaf.state.as_ref(), "leaf.state")?;
    Ok(StateLeaf {
        shard: ShardId(leaf.shard),
        low: leaf.low.into(),
        high: leaf.high.map(Into::into),
        version: state.version,
        digest: state.digest,
    })
}

fn to_state(state: &coppice_root::ShardState) -> v1::ShardState {
    v1::ShardState { version: state.version.0, digest: convert::to_bytes(&state.digest) }
}

fn to_batch(batch: &coppice_root::SessionBatch) -> v1::SessionBatch {
    v1::SessionBatch {
        number: batch.number,
        batch_hash: convert::to_bytes(&batch.batch_hash),
        sequence: batch.sequence.0,
        journal_index: batch.journal_index,
        rolled_back: batch.rolled_back,
    }
}

/// One operation as each shard executes it.
fn to_admin(operation: &coppice_root::AdminOperation) -> Vec<v1::AdminOperation> {
    use v1::execute_command::Operation as Wire;
    let (wire, epoch) = match operation.operation {
        Operation::Rollback { to, epoch } => (Wire::RollbackTo(convert::to_stamp(to)), epoch.0),
        Operation::Prune { before } => (Wire::PruneBefore(before.0), 0),
    };
    let command = |shard: &coppice_root::ShardBoundary| v1::AdminOperation {
        shard: shard.shard.0,
        command: Some(v1::ExecuteCommand {
            admin_sequence: operation.admin_sequence,
            operation: Some(wire),
            epoch,
            boundary: Some(to_state(&shard.boundary)),
            newest: Some(to_state(&shard.newest)),
        }),
    };
    operation.shards.iter().map(command).collect()
}

/// The command that makes a candidate leader.
///
/// # Errors
/// If a part is over its limit.
pub fn take_over(request: v1::TakeOverRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    let genesis = if request.genesis.is_empty() { None } else { Some(request.genesis.into()) };
    encode(&Command::TakeOver(TakeOver { candidate: request.candidate, clock_ms, genesis }))
}

/// The command that appends a header.
///
/// # Errors
/// If a part is malformed or over its limit.
pub fn append_header(request: v1::AppendHeaderRequest) -> Result<Vec<u8>, Refusal> {
    let session = |session: v1::SessionCommit| {
        Ok(coppice_root::SessionCommit {
            session: session_id(&session.session_id)?,
            number: session.number,
            batch_hash: convert::digest(&session.batch_hash, "batch_hash")?,
            journal_index: session.journal_index,
        })
    };
    encode(&Command::AppendHeader(AppendHeader {
        term: Term(request.term),
        header: request.header.into(),
        changed_leaves: request.changed_leaves.into_iter().map(leaf).collect::<Result<_, Refusal>>()?,
        journal: request.journal.into_iter().map(Into::into).collect(),
        sessions: request.sessions.into_iter().map(session).collect::<Result<_, Refusal>>()?,
    }))
}

/// The command that opens a session.
///
/// # Errors
/// If the id is malformed.
pub fn open_session(request: &v1::OpenSessionRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    encode(&Command::OpenSession(OpenSession { session: session_id(&request.session_id)?, clock_ms }))
}

/// The command that pins a version.
///
/// # Errors
/// If the id is malformed or the version is missing.
pub fn set_pin(request: &v1::PinRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    let v1::PinRequest { version, ttl_ms, .. } = *request;
    let missing = || Refusal::new(Reason::InvalidArgument, "version is missing: a pin names the version that it keeps");
    let version = Version(version.ok_or_else(missing)?);
    encode(&Command::SetPin(SetPin { pin: pin_id(&request.pin_id)?, version, ttl_ms, clock_ms }))
}

/// The command that takes a pin back.
///
/// # Errors
/// If the id is malformed.
pub fn drop_pin(request: &v1::UnpinRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    encode(&Command::Unpin(Unpin { pin: pin_id(&request.pin_id)?, clock_ms }))
}

/// Encodes, and reads back what `apply` will read, so that nothing that a replica would stop at is ever proposed.
fn encode(command: &Command) -> Result<Vec<u8>, Refusal> {
    let invalid = |error: CommandError| match error {
        CommandError::TooLarge(_) => Refusal::new(Reason::LimitExceeded, error.to_string()),
        _ => Refusal::new(Reason::InvalidArgument, error.to_string()),
    };
    let bytes = command.encode().map_err(invalid)?;
    Command::decode(&bytes).map_err(invalid)?;
    Ok(bytes)
}

fn from_raft(position: RaftPosition) -> Position {
    Position { index: position.index, term: position.term }
}

fn to_raft(position: Position) -> RaftPosition {
    RaftPosition { index: position.index, term: position.term }
}

impl StateMachine for RootMachine {
    type Reply = Result<Outcome, Refusal>;
    type Config = ();
    type Receiver = RootReceiver;

    fn open(storage: Arc<dyn Storage>, (): &()) -> Result<Self, Error> {
        Ok(Self { root: Root::open(storage)? })
    }

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Applied<Self::Reply>, Error> {
        let reply = match self.root.apply(index, command)? {
            Outcome::Refused(refusal) => Err(Refusal::new(refusal.reason(), refusal.to_string())),
            outcome => Ok(outcome),
        };
        Ok(Applied { digest: self.root.log_root(), reply })
    }

    fn durable(&self) -> Position {
        from_raft(self.root.durable_position())
    }

    fn log_floor(&self) -> Position {
        from_raft(self.root.durable_position())
    }

    fn unflushed_bytes(&self) -> u64 {
        self.root.unflushed_bytes()
    }

    fn flush(&mut self, position: Position) -> Result<(), Error> {
        Ok(self.root.flush(to_raft(position))?)
    }

    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error> {
        let manifest = self.root.pin_snapshot(to_raft(position))?;
        Ok(Pinned { id: manifest.id, position: from_raft(manifest.position), manifest: manifest.encode() })
    }

    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(self.root.read_snapshot(id, file, offset, len)?)
    }

    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error> {
        let check = self.root.check_of_snapshot(id)?;
        Ok(Box::new(|| Ok(check()?)))
    }

    fn unpin_snapshot(&mut self, id: u64) {
        self.root.unpin_snapshot(id);
    }

    fn receive(storage: Arc<dyn Storage>, _: &Self::Config, manifest: &[u8]) -> Result<RootReceiver, Error> {
        Ok(RootReceiver(SnapshotReceiver::new(storage, Manifest::decode(manifest)?)?))
    }

    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error> {
        let manifest = Manifest::decode(manifest)?;
        Ok((manifest.id, from_raft(manifest.position)))
    }

    fn disk_bytes(&self) -> u64 {
        self.root.disk_usage().unwrap_or_default()
    }
}

/// Takes in the files of the root state machine.
#[derive(Debug)]
pub struct RootReceiver(SnapshotReceiver);

impl Receiver for RootReceiver {
    fn next(&self) -> Option<(String, u64)> {
        self.0.next().map(|(file, offset)| (file.to_owned(), offset))
    }

    fn held(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(self.0.held(file, offset, len)?)
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.0.write(file, offset, bytes)?)
    }

    fn finish(self) -> Result<(), Error> {
        self.0.finish()?;
        Ok(())
    }
}
