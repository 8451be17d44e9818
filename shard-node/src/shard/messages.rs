//! Messages of the `Shard` service to a shard's commands, and its replies to messages. Incoming
//! values are checked here or by `Command::check`.

use bytes::Bytes;
use coppice_engine::ForestShape;
use coppice_proto::{
    convert::{self, need, state, to_digest, to_merge, to_stamp, to_state},
    v1,
};
use coppice_types::{AdminOperation, Epoch, PrepareId, Reason, Stamp, Term, Version};

use super::{Body, Command, Context, Execute, Prepare, Reply};
use crate::refusal::Refusal;

type Result<T> = std::result::Result<T, Refusal>;

/// Reads the context that every message to a shard repeats.
pub fn context(context: Option<&v1::ShardContext>) -> Result<Context> {
    let context = need(context, "context")?;
    Ok(Context {
        term: Term(context.term),
        admin_sequence: context.admin_sequence,
        decided: state(context.decided.as_ref(), "context.decided")?,
    })
}

/// Writes a forest's shape.
#[must_use]
pub fn to_shape(shape: &ForestShape) -> v1::ForestShape {
    v1::ForestShape {
        entries: shape.entries.clone(),
        ready: shape.ready.iter().map(to_merge).collect(),
        erasures_left: shape.erasures_left,
    }
}

/// Reads a Prepare.
pub fn prepare(request: v1::PrepareRequest) -> Result<Command> {
    let context = context(request.context.as_ref())?;
    let prepare = Prepare {
        stamp: convert::stamp(request.stamp, "stamp")?,
        attempt: request.attempt,
        base: state(request.base.as_ref(), "base")?,
        merges: request.merges.iter().map(convert::merge).collect::<std::result::Result<_, _>>()?,
        operations: request.operations.into_iter().map(convert::operation).collect::<std::result::Result<_, _>>()?,
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
            prepare_id: PrepareId { term: Term(abort.prepare_term), attempt: abort.prepare_attempt },
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
    Ok(v1::PrepareResponse { digest: to_digest(&staged), shape: Some(to_shape(&reply.shape)) })
}

/// Writes the answer to any other command.
#[must_use]
pub fn to_command_response(reply: &Reply) -> v1::ShardCommandResponse {
    v1::ShardCommandResponse { shape: Some(to_shape(&reply.shape)), decided: Some(to_state(reply.decided)) }
}

/// Writes a record that a read found.
#[must_use]
pub fn to_record(record: coppice_engine::Record) -> v1::ShardRecord {
    let value_sha256 = to_digest(&record.value_hash());
    v1::ShardRecord {
        key: record.key.into(),
        found: true,
        last_changed: Some(to_stamp(record.stamp)),
        value_sha256,
        erased: record.erased,
        erased_bytes: if record.erased { record.value_len } else { 0 },
        value: record.value.unwrap_or_default().into(),
    }
}

/// Writes that a key has no live value. `changed` is the stamp of its deletion, if that is known.
#[must_use]
pub fn to_absent(key: Bytes, changed: Option<Stamp>) -> v1::ShardRecord {
    v1::ShardRecord { key, found: false, last_changed: changed.map(to_stamp), ..v1::ShardRecord::default() }
}

#[cfg(test)]
mod tests {
    use coppice_types::Digest;

    use super::*;

    fn wire(version: u64) -> v1::ShardState {
        v1::ShardState { version, digest: vec![7; 32].into() }
    }

    fn request(command: v1::shard_command_request::Command) -> v1::ShardCommandRequest {
        let context = v1::ShardContext { term: 3, admin_sequence: 2, decided: Some(wire(9)) };
        v1::ShardCommandRequest { group: 1, context: Some(context), command: Some(command) }
    }

    fn execute(operation: Option<v1::execute_command::Operation>) -> v1::ShardCommandRequest {
        let (boundary, newest) = (Some(wire(5)), Some(wire(9)));
        let command = v1::ExecuteCommand { admin_sequence: 3, operation, epoch: 4, boundary, newest };
        request(v1::shard_command_request::Command::Execute(command))
    }

    #[test]
    fn an_admin_operation_keeps_its_kind_its_target_and_its_epoch() {
        use v1::execute_command::Operation as Wire;
        let read = |operation| match command(&execute(Some(operation))).expect("it is whole").body {
            Body::Execute(execute) => (execute.operation, execute.boundary.version.0, execute.newest.version.0),
            other => panic!("another command: {other:?}"),
        };
        let rollback = AdminOperation::Rollback { to: Version(5), epoch: Epoch(4) };
        assert_eq!(read(Wire::RollbackTo(v1::Stamp { epoch: 1, version: 5 })), (rollback, 5, 9));
        assert_eq!(read(Wire::PruneBefore(5)), (AdminOperation::Prune { before: Version(5) }, 5, 9));
    }

    #[test]
    fn a_command_with_a_part_missing_is_refused_by_the_name_of_the_part() {
        use v1::shard_command_request::Command as Wire;
        let finalize = || request(Wire::Finalize(v1::FinalizeCommand {}));
        let undecided = v1::ShardContext { decided: None, ..finalize().context.expect("it is there") };
        let of_execute = |change: &dyn Fn(&mut v1::ExecuteCommand)| {
            let mut request = execute(Some(v1::execute_command::Operation::PruneBefore(5)));
            match request.command.as_mut() {
                Some(Wire::Execute(command)) => change(command),
                other => panic!("another command: {other:?}"),
            }
            request
        };
        command(&finalize()).expect("it is whole");
        for (broken, part) in [
            (v1::ShardCommandRequest { command: None, ..finalize() }, "command"),
            (v1::ShardCommandRequest { context: None, ..finalize() }, "context"),
            (v1::ShardCommandRequest { context: Some(undecided), ..finalize() }, "context.decided"),
            (execute(None), "operation"),
            (of_execute(&|it| it.boundary = None), "boundary"),
            (of_execute(&|it| it.newest = Some(v1::ShardState { version: 9, digest: Bytes::new() })), "newest"),
        ] {
            let refusal = command(&broken).expect_err("a part is missing");
            assert_eq!(refusal.reason, Reason::InvalidArgument);
            assert!(refusal.message.contains(part), "{part}: {refusal:?}");
        }
    }

    #[test]
    fn a_prepare_that_staged_nothing_has_no_answer() {
        let decided = coppice_types::ShardState { version: Version(1), digest: Digest([1; 32]) };
        let reply = Reply { staged: None, shape: ForestShape::default(), decided };
        assert_eq!(to_prepare_response(&reply).map_err(|refusal| refusal.reason), Err(Reason::Internal));
        let staged = Reply { staged: Some(Digest([2; 32])), ..reply };
        assert_eq!(to_prepare_response(&staged).map(|answer| answer.digest.to_vec()), Ok(vec![2; 32]));
        assert_eq!(to_command_response(&staged).decided, Some(to_state(decided)), "the decided one, not the staged");
    }
}
