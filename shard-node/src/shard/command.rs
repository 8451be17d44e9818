//! Commands in a shard's raft log, with their own codec.
//!
//! `u8 version (1) || u8 kind || context || body`, little-endian as in `coppice_types::codec`. A
//! replica that meets an unknown version or kind stops, since it could not compute the same outcome
//! as the others. Limits are checked before a command is proposed ([`Command::check`]); `apply`
//! refuses a command only for its term, admin number or base.

use bytes::Bytes;
use coppice_types::{
    AdminOperation, Change, Digest, Epoch, MergeName, Operation, Params, PrepareId, Reason, ShardState, Stamp, Term,
    Version,
    codec::{Error as CodecError, Reader, Writer},
};

use crate::refusal::Refusal;

/// The version of the command encoding that this code writes and reads.
const COMMAND_VERSION: u8 = 1;
/// The kind of a Prepare.
const PREPARE: u8 = 0;
/// The kind of a Prepare whose journal is kept.
const PREPARE_KEPT: u8 = 7;
/// Limit on the number of merges in one Prepare.
const MERGES_MAX: usize = 16;
/// Limit on the number of inputs of one merge.
pub(super) const INPUTS_MAX: usize = 16;

/// Facts that every command repeats, so that a shard that missed a command learns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The sender's term.
    pub term: Term,
    /// The number of admin operations in the root log when the command was formed.
    pub admin_sequence: u64,
    /// The newest decided state of this shard that the sender knows.
    pub decided: ShardState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The sender's term, and the decided state that it knows.
    pub context: Context,
    pub body: Body,
}

/// The kinds of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Prepare(Prepare),
    /// Makes the context's decided state permanent.
    Finalize,
    /// Drops a staged version and all versions that build on it.
    Abort {
        version: Version,
        /// Names the attempt at this version.
        prepare_id: PrepareId,
    },
    /// Announces a new leader. The context's decided state stays, and all other staged versions are
    /// dropped.
    Adopt,
    /// Closes all versions above a target, because a rollback to it is being decided.
    Fence {
        /// The name of the fence, together with the context's term.
        attempt: u64,
        /// The epoch that the rollback would start.
        next_epoch: Epoch,
        /// The newest version that stays open.
        target: Version,
    },
    /// Lifts the fences of this attempt and of earlier ones.
    Unfence {
        /// The name of the fence, together with the context's term.
        attempt: u64,
    },
    /// Executes one decided admin operation.
    Execute(Execute),
}

/// A version to stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    pub stamp: Stamp,
    /// The prepare id, together with the context's term.
    pub attempt: u64,
    /// The state that the version builds on.
    pub base: ShardState,
    /// Merges that are installed first.
    pub merges: Vec<MergeName>,
    /// Folded operations: ascending keys, each once.
    pub operations: Vec<Operation>,
    /// Encoded operation lists of the version's batches, if the ledger keeps them.
    pub journal: Vec<Vec<u8>>,
}

/// A decided rollback or prune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execute {
    /// The number of the operation among all admin operations, from 1.
    pub admin_sequence: u64,
    pub operation: AdminOperation,
    /// This shard's decided state at the target or boundary version.
    pub boundary: ShardState,
    /// This shard's newest decided state just before the operation.
    pub newest: ShardState,
}

fn put_count(out: &mut Writer, count: usize) {
    out.u32(u32::try_from(count).expect("counts are checked before a command is encoded"));
}

/// Bytes for the parts of a command that are always short.
const ROOM_BESIDE_BYTES: usize = 4 << 10;

/// The operation lists of a version, encoded as a shard keeps them.
pub(super) fn encode_journal(lists: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Writer::new();
    put_count(&mut out, lists.len());
    lists.iter().for_each(|list| out.str32(list));
    out.into_bytes()
}

fn take_journal(input: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, CodecError> {
    let mut lists = Vec::new();
    for _ in 0..input.u32()? {
        lists.push(input.str32()?.to_vec());
    }
    Ok(lists)
}

/// Reads what `encode_journal` wrote.
///
/// # Errors
/// If the bytes are not a journal.
pub fn decode_journal(bytes: &[u8]) -> Result<Vec<Vec<u8>>, CodecError> {
    let mut input = Reader::new(bytes);
    let lists = take_journal(&mut input)?;
    input.finish()?;
    Ok(lists)
}

/// Whether an encoded command is a Prepare.
pub(super) fn is_prepare(bytes: &[u8]) -> bool {
    matches!(bytes.get(1), Some(&(PREPARE | PREPARE_KEPT)))
}

impl Command {
    /// The bytes that raft replicates. The command must be [checked](Self::check) first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(self.body.room());
        out.u8(COMMAND_VERSION);
        out.u8(self.body.kind());
        out.u64(self.context.term.0);
        out.u64(self.context.admin_sequence);
        self.context.decided.encode(&mut out);
        match &self.body {
            Body::Prepare(prepare) => {
                prepare.encode(&mut out);
                if !prepare.journal.is_empty() {
                    out.raw(&encode_journal(&prepare.journal));
                }
            }
            Body::Finalize | Body::Adopt => {}
            Body::Abort { version, prepare_id } => {
                out.u64(version.0);
                out.u64(prepare_id.term.0);
                out.u64(prepare_id.attempt);
            }
            Body::Fence { attempt, next_epoch, target } => {
                out.u64(*attempt);
                out.u64(next_epoch.0);
                out.u64(target.0);
            }
            Body::Unfence { attempt } => out.u64(*attempt),
            Body::Execute(execute) => execute.encode(&mut out),
        }
        out.into_bytes()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// If the bytes are not a command with a version and kind that this code knows.
    pub fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        let mut input = Reader::new(bytes);
        if input.u8()? != COMMAND_VERSION {
            return Err(CodecError::Malformed("command version"));
        }
        let kind = input.u8()?;
        let term = Term(input.u64()?);
        let admin_sequence = input.u64()?;
        let decided = ShardState::decode(&mut input)?;
        let body = match kind {
            PREPARE => Body::Prepare(Prepare::decode(&mut input, bytes)?),
            PREPARE_KEPT => {
                let prepare = Prepare::decode(&mut input, bytes)?;
                let journal = take_journal(&mut input)?;
                if journal.is_empty() {
                    return Err(CodecError::Malformed("journal"));
                }
                Body::Prepare(Prepare { journal, ..prepare })
            }
            1 => Body::Finalize,
            2 => Body::Abort {
                version: Version(input.u64()?),
                prepare_id: PrepareId { term: Term(input.u64()?), attempt: input.u64()? },
            },
            3 => Body::Adopt,
            4 => Body::Fence { attempt: input.u64()?, next_epoch: Epoch(input.u64()?), target: Version(input.u64()?) },
            5 => Body::Unfence { attempt: input.u64()? },
            6 => Body::Execute(Execute::decode(&mut input)?),
            _ => return Err(CodecError::Malformed("command kind")),
        };
        input.finish()?;
        Ok(Self { context: Context { term, admin_sequence, decided }, body })
    }

    /// Checks all limits, so that `apply` need not check them.
    ///
    /// # Errors
    /// Names the first limit that is exceeded.
    pub fn check(&self, params: &Params) -> Result<(), Refusal> {
        match &self.body {
            _ if self.context.term == Term(0) => {
                Err(Refusal::new(Reason::InvalidArgument, "terms are allotted from 1"))
            }
            Body::Prepare(prepare) => prepare.check(params),
            Body::Fence { next_epoch: Epoch(0), .. } => {
                Err(Refusal::new(Reason::InvalidArgument, "no rollback starts epoch 0"))
            }
            Body::Execute(execute) if execute.admin_sequence == 0 => {
                Err(Refusal::new(Reason::InvalidArgument, "admin operations are numbered from 1"))
            }
            _ => Ok(()),
        }
    }
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Self::Prepare(prepare) if prepare.journal.is_empty() => PREPARE,
            Self::Prepare(_) => PREPARE_KEPT,
            Self::Finalize => 1,
            Self::Abort { .. } => 2,
            Self::Adopt => 3,
            Self::Fence { .. } => 4,
            Self::Unfence { .. } => 5,
            Self::Execute(_) => 6,
        }
    }

    /// The approximate encoded size, for commands that may be long.
    fn room(&self) -> usize {
        let Self::Prepare(prepare) = self else { return 0 };
        let operations = prepare.operations.iter().map(Operation::encoded_bytes);
        operations.chain(prepare.journal.iter().map(Vec::len)).sum::<usize>() + ROOM_BESIDE_BYTES
    }
}

impl Prepare {
    fn encode(&self, out: &mut Writer) {
        out.stamp(self.stamp);
        out.u64(self.attempt);
        self.base.encode(out);
        put_count(out, self.merges.len());
        for merge in &self.merges {
            put_count(out, merge.inputs.len());
            merge.inputs.iter().for_each(|input| out.digest(input));
            out.digest(&merge.output);
        }
        put_count(out, self.operations.len());
        self.operations.iter().for_each(|operation| operation.encode(out));
    }

    /// Reads a Prepare from `entry`. Keys and values share the bytes of `entry`.
    fn decode(input: &mut Reader<'_>, entry: &Bytes) -> Result<Self, CodecError> {
        let stamp = input.stamp()?;
        let attempt = input.u64()?;
        let base = ShardState::decode(input)?;
        let mut merges = Vec::new();
        for _ in 0..input.u32()? {
            let mut inputs: Vec<Digest> = Vec::new();
            for _ in 0..input.u32()? {
                inputs.push(input.digest()?);
            }
            merges.push(MergeName { inputs, output: input.digest()? });
        }
        let mut operations = Vec::new();
        for _ in 0..input.u32()? {
            operations.push(Operation::decode(input, |part| entry.slice_ref(part))?);
        }
        Ok(Self { stamp, attempt, base, merges, operations, journal: Vec::new() })
    }

    fn check(&self, params: &Params) -> Result<(), Refusal> {
        let invalid = |what: &str| Err(Refusal::new(Reason::InvalidArgument, what));
        if self.stamp.version <= self.base.version {
            return invalid("a version builds on an older one");
        }
        if self.merges.len() > MERGES_MAX
            || self.merges.iter().any(|merge| !(2..=INPUTS_MAX).contains(&merge.inputs.len()))
        {
            return invalid("a Prepare installs at most 16 merges of 2 to 16 trees each");
        }
        if !params.journals_kept && !self.journal.is_empty() {
            return invalid("this ledger keeps no operation lists");
        }
        if !self.operations.is_sorted_by(|a, b| a.key < b.key) {
            return invalid("the operations of a Prepare have ascending keys, each once");
        }
        for Operation { key, change } in &self.operations {
            if key.is_empty() || key.len() > params.key_bytes_max as usize {
                let message = format!("a key has 1 to {} bytes", params.key_bytes_max);
                return Err(Refusal::new(Reason::LimitExceeded, message));
            }
            if matches!(change, Change::Put(value) if value.len() > params.value_bytes_max as usize) {
                let message = format!("a value may have at most {} bytes", params.value_bytes_max);
                return Err(Refusal::new(Reason::LimitExceeded, message));
            }
        }
        Ok(())
    }
}

impl Execute {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.admin_sequence);
        match self.operation {
            AdminOperation::Rollback { to, epoch } => {
                out.u8(0);
                out.u64(to.0);
                out.u64(epoch.0);
            }
            AdminOperation::Prune { before } => {
                out.u8(1);
                out.u64(before.0);
            }
        }
        self.boundary.encode(out);
        self.newest.encode(out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, CodecError> {
        let admin_sequence = input.u64()?;
        let operation = match input.u8()? {
            0 => AdminOperation::Rollback { to: Version(input.u64()?), epoch: Epoch(input.u64()?) },
            1 => AdminOperation::Prune { before: Version(input.u64()?) },
            _ => return Err(CodecError::Malformed("admin operation")),
        };
        Ok(Self { admin_sequence, operation, boundary: ShardState::decode(input)?, newest: ShardState::decode(input)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(version: u64) -> ShardState {
        ShardState { version: Version(version), digest: Digest([u8::try_from(version).expect("small"); 32]) }
    }

    fn command(body: Body) -> Command {
        Command { context: Context { term: Term(7), admin_sequence: 3, decided: state(9) }, body }
    }

    fn prepare() -> Prepare {
        Prepare {
            stamp: Stamp::new(2, 10),
            attempt: 4,
            base: state(9),
            merges: vec![MergeName { inputs: vec![Digest([1; 32]), Digest([2; 32])], output: Digest([3; 32]) }],
            operations: vec![
                Operation { key: b"a".to_vec().into(), change: Change::Put(b"1".to_vec().into()) },
                Operation { key: b"b".to_vec().into(), change: Change::Delete },
            ],
            journal: Vec::new(),
        }
    }

    fn all() -> Vec<Command> {
        let execute =
            |operation| Body::Execute(Execute { admin_sequence: 4, operation, boundary: state(5), newest: state(9) });
        [
            Body::Prepare(prepare()),
            Body::Prepare(Prepare { journal: vec![b"list".to_vec(), Vec::new()], ..prepare() }),
            Body::Finalize,
            Body::Abort { version: Version(10), prepare_id: PrepareId { term: Term(7), attempt: 4 } },
            Body::Adopt,
            Body::Fence { attempt: 5, next_epoch: Epoch(3), target: Version(8) },
            Body::Unfence { attempt: 5 },
            execute(AdminOperation::Rollback { to: Version(5), epoch: Epoch(3) }),
            execute(AdminOperation::Prune { before: Version(5) }),
        ]
        .into_iter()
        .map(command)
        .collect()
    }

    #[test]
    fn every_command_survives_its_encoding_and_no_shortened_one_does() {
        for command in all() {
            let bytes = Bytes::from(command.encode());
            assert_eq!(Command::decode(&bytes).as_ref(), Ok(&command));
            for len in 0..bytes.len() {
                assert!(Command::decode(&bytes.slice(..len)).is_err(), "{command:?} cut to {len} bytes");
            }
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(Command::decode(&longer.into()), Err(CodecError::Trailing));
        }
    }

    #[test]
    fn an_unknown_version_or_kind_is_refused() {
        let mut bytes = command(Body::Finalize).encode();
        bytes[0] = 2;
        assert_eq!(Command::decode(&bytes.clone().into()), Err(CodecError::Malformed("command version")));
        bytes[0] = 1;
        bytes[1] = 8;
        assert_eq!(Command::decode(&bytes.clone().into()), Err(CodecError::Malformed("command kind")));
    }

    #[test]
    fn limits_are_checked_before_proposing() {
        let params = Params { key_bytes_max: 4, value_bytes_max: 8, ..Params::default() };
        let reason =
            |prepare: Prepare| command(Body::Prepare(prepare)).check(&params).err().map(|refusal| refusal.reason);
        assert_eq!(reason(prepare()), None);
        let with = |operations: &[(&[u8], usize)]| Prepare {
            operations: operations
                .iter()
                .map(|(key, len)| Operation { key: key.to_vec().into(), change: Change::Put(vec![0; *len].into()) })
                .collect(),
            ..prepare()
        };
        assert_eq!(reason(with(&[(b"", 1)])), Some(Reason::LimitExceeded));
        assert_eq!(reason(with(&[(b"abcde", 1)])), Some(Reason::LimitExceeded));
        assert_eq!(reason(with(&[(b"abcd", 9)])), Some(Reason::LimitExceeded));
        assert_eq!(reason(with(&[(b"abcd", 8)])), None);
        assert_eq!(reason(with(&[(b"b", 1), (b"a", 1)])), Some(Reason::InvalidArgument));
        assert_eq!(reason(with(&[(b"a", 1), (b"a", 1)])), Some(Reason::InvalidArgument));
        assert_eq!(reason(Prepare { base: state(10), ..prepare() }), Some(Reason::InvalidArgument));
    }
}
