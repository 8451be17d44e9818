//! Messages of the `Root` service to commands and types of `coppice_root`, and back.

use bytes::Bytes;
use coppice_proto::v1;
use coppice_root::{
    AppendHeader, Command, CommandError, OpenSession, Operation, Pin, SetPin, StateLeaf, TakeOver, Unpin,
};
use coppice_types::{Digest, PinId, Reason, SessionId, ShardId, Term, Version};

use crate::{convert, refusal::Refusal};

pub(super) fn refused(error: coppice_root::Error) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

/// Reads the name of a session.
pub fn session_id(bytes: &[u8]) -> Result<SessionId, Refusal> {
    SessionId::from_slice(bytes).ok_or_else(|| Refusal::new(Reason::InvalidArgument, "a session id has 16 bytes"))
}

/// Reads the name of a pin.
pub fn pin_id(bytes: &[u8]) -> Result<PinId, Refusal> {
    PinId::from_slice(bytes).ok_or_else(|| Refusal::new(Reason::InvalidArgument, "a pin id has 16 bytes"))
}

/// Writes a pin.
#[must_use]
pub fn to_pin(pin: &Pin) -> v1::VersionPin {
    let id = Bytes::copy_from_slice(pin.id.as_bytes());
    v1::VersionPin { id, version: pin.version.0, expires_ms: pin.expires_ms }
}

pub(super) fn to_key_turn(turn: &coppice_root::KeyTurn) -> v1::KeyTurn {
    v1::KeyTurn { sequence: turn.sequence.0, public_key: Bytes::copy_from_slice(&turn.public_key) }
}

pub(super) fn to_path(hashes: &[Digest]) -> v1::HashPath {
    v1::HashPath { hashes: hashes.iter().map(convert::to_bytes).collect() }
}

pub(super) fn to_leaf(leaf: &StateLeaf) -> v1::StateLeaf {
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

pub(super) fn to_batch(batch: &coppice_root::SessionBatch) -> v1::SessionBatch {
    v1::SessionBatch {
        number: batch.number,
        batch_hash: convert::to_bytes(&batch.batch_hash),
        sequence: batch.sequence.0,
        journal_index: batch.journal_index,
        rolled_back: batch.rolled_back,
    }
}

/// An operation's commands, one for each shard.
pub(super) fn to_admin(operation: &coppice_root::AdminOperation) -> Vec<v1::AdminOperation> {
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

/// The command that removes a pin.
///
/// # Errors
/// If the id is malformed.
pub fn drop_pin(request: &v1::UnpinRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    encode(&Command::Unpin(Unpin { pin: pin_id(&request.pin_id)?, clock_ms }))
}

/// Encodes a command and decodes it again, so that no command is proposed that would stop a
/// replica.
fn encode(command: &Command) -> Result<Vec<u8>, Refusal> {
    let invalid = |error: CommandError| match error {
        CommandError::TooLarge(_) => Refusal::new(Reason::LimitExceeded, error.to_string()),
        _ => Refusal::new(Reason::InvalidArgument, error.to_string()),
    };
    let bytes = command.encode().map_err(invalid)?;
    Command::decode(&bytes).map_err(invalid)?;
    Ok(bytes)
}
