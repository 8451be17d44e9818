//! Conversion between messages of the API and the types of the state machines. Incoming values are
//! checked here or by `Command::check`.

use bytes::Bytes;
use coppice_engine::{ForestShape, MergeName, PrepareId, ShardState};
use coppice_proto::v1;
use coppice_types::{Change, Digest, Epoch, Operation, Reason, Stamp, Term, Version};

use crate::{
    refusal::Refusal,
    shard::{AdminOperation, Body, Command, Context, Execute, Prepare, Reply},
};

type Result<T> = std::result::Result<T, Refusal>;

fn invalid(what: &str) -> Refusal {
    Refusal::new(Reason::InvalidArgument, what)
}

fn need<T>(field: Option<T>, name: &str) -> Result<T> {
    field.ok_or_else(|| invalid(&format!("{name} is missing")))
}

/// Reads a digest.
pub fn digest(bytes: &[u8], name: &str) -> Result<Digest> {
    Digest::from_slice(bytes).ok_or_else(|| invalid(&format!("{name} is not a digest of 32 bytes")))
}

/// Writes a digest as bytes.
#[must_use]
pub fn to_bytes(digest: &Digest) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

/// Reads the exact name of a state.
pub fn state(state: Option<&v1::ShardState>, name: &str) -> Result<ShardState> {
    let state = need(state, name)?;
    Ok(ShardState { version: Version(state.version), digest: digest(&state.digest, name)? })
}

/// Writes the exact name of a state.
#[must_use]
pub fn to_state(state: &ShardState) -> v1::ShardState {
    v1::ShardState { version: state.version.0, digest: to_bytes(&state.digest) }
}

/// Writes a stamp.
#[must_use]
pub fn to_stamp(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 }
}

/// Reads a stamp.
pub fn stamp(stamp: Option<v1::Stamp>, name: &str) -> Result<Stamp> {
    need(stamp, name).map(|stamp| Stamp::new(stamp.epoch, stamp.version))
}

/// Reads the context that every message to a shard repeats.
pub fn context(context: Option<&v1::ShardContext>) -> Result<Context> {
    let context = need(context, "context")?;
    Ok(Context {
        term: Term(context.term),
        admin_sequence: context.admin_sequence,
        decided: state(context.decided.as_ref(), "context.decided")?,
    })
}

/// Reads the name of a merge.
pub fn merge(merge: &v1::Merge) -> Result<MergeName> {
    let inputs = merge.inputs.iter().map(|input| digest(input, "a merge's input")).collect::<Result<_>>()?;
    Ok(MergeName { inputs, output: digest(&merge.output, "a merge's output")? })
}

/// Writes the name of a merge.
#[must_use]
pub fn to_merge(merge: &MergeName) -> v1::Merge {
    v1::Merge { inputs: merge.inputs.iter().map(to_bytes).collect(), output: to_bytes(&merge.output) }
}

/// Writes a forest's shape.
#[must_use]
pub fn to_shape(shape: &ForestShape) -> v1::ForestShape {
    v1::ForestShape { entries: shape.entries.clone(), ready: shape.ready.iter().map(to_merge).collect() }
}

fn operation(operation: v1::Operation) -> Result<Operation> {
    let change = match need(operation.change, "operation.change")? {
        v1::operation::Change::Put(value) => Change::Put(value.into()),
        v1::operation::Change::Delete(true) => Change::Delete,
        v1::operation::Change::Delete(false) => return Err(invalid("operation.delete can only be true")),
    };
    Ok(Operation { key: operation.key.into(), change })
}

/// Reads a Prepare.
pub fn prepare(request: v1::PrepareRequest) -> Result<Command> {
    let context = context(request.context.as_ref())?;
    let prepare = Prepare {
        stamp: stamp(request.stamp, "stamp")?,
        attempt: request.attempt,
        base: state(request.base.as_ref(), "base")?,
        merges: request.merges.iter().map(merge).collect::<Result<_>>()?,
        operations: request.operations.into_iter().map(operation).collect::<Result<_>>()?,
        journal: request.journal.into_iter().map(Vec::from).collect(),
    };
    Ok(Command { context, body: Body::Prepare(prepare) })
}

/// Reads any other command.
pub fn command(request: &v1::ShardCommandRequest) -> Result<Command> {
    use v1::shard_command_request::Command as Wire;
    let body = match need(request.command.as_ref(), "command")? {
        Wire::Finalize(_) => Body::Finalize,
        Wire::Abort(abort) => Body::Abort {
            version: Version(abort.version),
            prepare_id: PrepareId { term: abort.prepare_term, attempt: abort.prepare_attempt },
        },
        Wire::Adopt(_) => Body::Adopt,
        Wire::Fence(fence) => Body::Fence {
            attempt: fence.attempt,
            next_epoch: Epoch(fence.next_epoch),
            target: Version(fence.target_version),
        },
        Wire::Unfence(unfence) => Body::Unfence { attempt: unfence.attempt },
        Wire::Execute(command) => Body::Execute(execute(command)?),
    };
    Ok(Command { context: context(request.context.as_ref())?, body })
}

fn execute(command: &v1::ExecuteCommand) -> Result<Execute> {
    use v1::execute_command::Operation as Wire;
    let operation = match need(command.operation.as_ref(), "operation")? {
        Wire::RollbackTo(to) => AdminOperation::Rollback { to: Version(to.version), epoch: Epoch(command.epoch) },
        Wire::PruneBefore(before) => AdminOperation::Prune { before: Version(*before) },
    };
    Ok(Execute {
        admin_sequence: command.admin_sequence,
        operation,
        boundary: state(command.boundary.as_ref(), "boundary")?,
        newest: state(command.newest.as_ref(), "newest")?,
    })
}

/// Writes the answer to a Prepare.
pub fn to_prepare_response(reply: &Reply) -> Result<v1::PrepareResponse> {
    let staged = reply.staged.ok_or_else(|| Refusal::new(Reason::Internal, "a Prepare staged nothing"))?;
    Ok(v1::PrepareResponse { digest: to_bytes(&staged), shape: Some(to_shape(&reply.shape)) })
}

/// Writes the answer to any other command.
#[must_use]
pub fn to_command_response(reply: &Reply) -> v1::ShardCommandResponse {
    v1::ShardCommandResponse { shape: Some(to_shape(&reply.shape)), decided: Some(to_state(&reply.decided)) }
}

/// Writes a record that a read found.
#[must_use]
pub fn to_record(record: coppice_engine::Record) -> v1::ShardRecord {
    let value_sha256 = to_bytes(&record.value_hash());
    v1::ShardRecord {
        key: record.key.into(),
        found: true,
        last_changed: Some(to_stamp(record.stamp)),
        value_sha256,
        value: record.value.unwrap_or_default().into(),
    }
}

/// Writes that a key has no live value. `changed` is the stamp of its deletion, if that is known.
#[must_use]
pub fn to_absent(key: Bytes, changed: Option<Stamp>) -> v1::ShardRecord {
    v1::ShardRecord { key, found: false, last_changed: changed.map(to_stamp), ..v1::ShardRecord::default() }
}
