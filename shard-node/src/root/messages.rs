//! Messages of the `Root` service to commands and types of `coppice_root`, and back.

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_root::{
    AdminEntry, AppendHeader, Command, CommandError, OpenSession, Operation, Pin, SetPin, ShardBoundary, TakeOver,
    Unpin,
};
use coppice_types::{Reason, Term, Version};

use crate::refusal::Refusal;

pub(super) fn refused(error: coppice_root::Error) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

/// Writes a pin.
#[must_use]
pub fn to_pin(pin: &Pin) -> v1::VersionPin {
    v1::VersionPin { id: convert::to_pin_id(pin.id), version: pin.version.0, expires_ms: pin.expires_ms }
}

pub(super) fn to_anchor(place: &coppice_root::AnchorPlace) -> v1::AnchorPlace {
    let coppice_root::AnchorPlace { sequence, stamped_size, timestamp_ms } = *place;
    v1::AnchorPlace { sequence: sequence.0, stamped_size, timestamp_ms }
}

pub(super) fn to_key_turn(turn: &coppice_root::KeyTurn) -> v1::KeyTurn {
    v1::KeyTurn { sequence: turn.sequence.0, public_key: Bytes::copy_from_slice(&turn.public_key) }
}

/// An operation's commands, one for each shard.
pub(super) fn to_admin(operation: &AdminEntry) -> Vec<v1::AdminOperation> {
    use v1::execute_command::Operation as Wire;
    let (wire, epoch) = match operation.operation {
        Operation::Rollback { to, epoch } => (Wire::RollbackTo(convert::to_stamp(to)), epoch.0),
        Operation::Prune { before } => (Wire::PruneBefore(before.0), 0),
    };
    let command = |shard: &ShardBoundary| v1::AdminOperation {
        shard: shard.shard.0,
        command: Some(v1::ExecuteCommand {
            admin_sequence: operation.admin_sequence,
            operation: Some(wire),
            epoch,
            boundary: Some(convert::to_state(shard.boundary)),
            newest: Some(convert::to_state(shard.newest)),
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
    encode(&Command::AppendHeader(AppendHeader {
        term: Term(request.term),
        header: request.header.into(),
        changed_leaves: request.changed_leaves.into_iter().map(convert::leaf).collect::<Result<_, _>>()?,
        journal: request.journal.into_iter().map(Into::into).collect(),
        sessions: request.sessions.iter().map(convert::session_commit).collect::<Result<_, _>>()?,
    }))
}

/// The command that opens a session.
///
/// # Errors
/// If the id is malformed.
pub fn open_session(request: &v1::OpenSessionRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    encode(&Command::OpenSession(OpenSession { session: convert::session_id(&request.session_id)?, clock_ms }))
}

/// The command that pins a version.
///
/// # Errors
/// If the id is malformed or the version is missing.
pub fn set_pin(request: &v1::PinRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    let v1::PinRequest { version, ttl_ms, .. } = *request;
    let missing = || Refusal::new(Reason::InvalidArgument, "version is missing: a pin names the version that it keeps");
    let version = Version(version.ok_or_else(missing)?);
    encode(&Command::SetPin(SetPin { pin: convert::pin_id(&request.pin_id)?, version, ttl_ms, clock_ms }))
}

/// The command that removes a pin.
///
/// # Errors
/// If the id is malformed.
pub fn drop_pin(request: &v1::UnpinRequest, clock_ms: u64) -> Result<Vec<u8>, Refusal> {
    encode(&Command::Unpin(Unpin { pin: convert::pin_id(&request.pin_id)?, clock_ms }))
}

/// Encodes a command and decodes it again, so that a command that would stop a replica is never
/// proposed.
fn encode(command: &Command) -> Result<Vec<u8>, Refusal> {
    let invalid = |error: CommandError| match error {
        CommandError::TooLarge(_) => Refusal::new(Reason::LimitExceeded, error.to_string()),
        _ => Refusal::new(Reason::InvalidArgument, error.to_string()),
    };
    let bytes = command.encode().map_err(invalid)?;
    Command::decode(&bytes).map_err(invalid)?;
    Ok(bytes)
}
