//! A shard's state of the commit protocol, in addition to its engine.
//!
//! Only applied commands change it, so it is equal on all replicas. It becomes durable with the
//! engine's superblock.

use std::collections::BTreeSet;

use coppice_engine::PrepareId;
use coppice_types::{
    Epoch, Term, Version,
    codec::{Error as CodecError, Reader, Writer},
};

use crate::limits::ABORTED_MAX;

/// The version of the encoding.
const STATE_VERSION: u8 = 1;

/// The name of a fence or unfence. A later one overrides an earlier one that was delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FenceName {
    /// The term of the leader that sent it.
    pub term: Term,
    /// A counter within the term.
    pub attempt: u64,
}

/// Closes all versions above a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The attempt that set the fence.
    pub name: FenceName,
    /// The epoch that the rollback would start.
    pub next_epoch: Epoch,
    /// The newest version that stays open.
    pub target: Version,
}

/// The protocol state of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocol {
    /// The highest term that any command carried.
    pub term: Term,
    /// The term of the last Adopt. Only its leader may stage and fence.
    pub adopted: Term,
    /// The number of admin operations that were executed.
    pub executed: u64,
    /// The fence in force.
    pub fence: Option<Fence>,
    /// Fences up to this name have ended. One that arrives late is refused.
    pub lifted: FenceName,
    /// Aborted prepare ids of the adopted term, so that a delayed Prepare stages nothing.
    pub aborted: BTreeSet<(u64, u64)>,
}

impl Protocol {
    /// Remembers that a prepare id was aborted. Beyond the limit, the lowest attempts are
    /// forgotten: a message that is delayed for that long stages an orphan, which the next settled
    /// sibling drops.
    pub fn note_abort(&mut self, id: PrepareId) {
        self.aborted.insert((id.term.0, id.attempt));
        while self.aborted.len() > ABORTED_MAX {
            self.aborted.pop_first();
        }
    }

    /// Whether a prepare id was aborted.
    #[must_use]
    pub fn is_aborted(&self, id: PrepareId) -> bool {
        self.aborted.contains(&(id.term.0, id.attempt))
    }

    /// Ends the fences up to a name.
    pub fn lift(&mut self, name: FenceName) {
        self.lifted = self.lifted.max(name);
        if self.fence.is_some_and(|fence| fence.name <= self.lifted) {
            self.fence = None;
        }
    }

    /// The bytes for the superblock.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(STATE_VERSION);
        out.u64(self.term.0);
        out.u64(self.adopted.0);
        out.u64(self.executed);
        out.flag(self.fence.is_some());
        if let Some(fence) = &self.fence {
            put_name(&mut out, fence.name);
            out.u64(fence.next_epoch.0);
            out.u64(fence.target.0);
        }
        put_name(&mut out, self.lifted);
        out.u32(u32::try_from(self.aborted.len()).expect("aborted ids are bounded"));
        for &(term, attempt) in &self.aborted {
            out.u64(term);
            out.u64(attempt);
        }
        out.into_bytes()
    }

    /// Reads what `encode` wrote. Empty bytes are the state of a new shard.
    ///
    /// # Errors
    /// If the bytes are not a protocol state with the version that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut input = Reader::new(bytes);
        if input.u8()? != STATE_VERSION {
            return Err(CodecError::Malformed("protocol state version"));
        }
        let mut state =
            Self { term: Term(input.u64()?), adopted: Term(input.u64()?), executed: input.u64()?, ..Self::default() };
        if input.flag("fence")? {
            let name = take_name(&mut input)?;
            state.fence = Some(Fence { name, next_epoch: Epoch(input.u64()?), target: Version(input.u64()?) });
        }
        state.lifted = take_name(&mut input)?;
        for _ in 0..input.u32()? {
            state.aborted.insert((input.u64()?, input.u64()?));
        }
        input.finish()?;
        Ok(state)
    }
}

fn put_name(out: &mut Writer, name: FenceName) {
    out.u64(name.term.0);
    out.u64(name.attempt);
}

fn take_name(input: &mut Reader<'_>) -> Result<FenceName, CodecError> {
    Ok(FenceName { term: Term(input.u64()?), attempt: input.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_its_encoding_and_no_shortened_one_does() {
        let name = |term, attempt| FenceName { term: Term(term), attempt };
        let mut state = Protocol {
            term: Term(5),
            adopted: Term(4),
            executed: 3,
            fence: Some(Fence { name: name(5, 2), next_epoch: Epoch(1), target: Version(40) }),
            lifted: name(5, 1),
            aborted: BTreeSet::new(),
        };
        (0..500).for_each(|attempt| state.note_abort(PrepareId { term: Term(4), attempt }));
        assert_eq!(state.aborted.len(), ABORTED_MAX);
        assert!(state.is_aborted(PrepareId { term: Term(4), attempt: 499 }));
        let bytes = state.encode();
        assert_eq!(Protocol::decode(&bytes), Ok(state));
        for len in 1..bytes.len() {
            assert!(Protocol::decode(&bytes[..len]).is_err());
        }
        assert_eq!(Protocol::decode(&[]), Ok(Protocol::default()));
    }

    #[test]
    fn a_fence_ends_by_its_own_or_a_later_name() {
        let name = |term, attempt| FenceName { term: Term(term), attempt };
        let fence = Fence { name: name(2, 3), next_epoch: Epoch(1), target: Version(4) };
        let mut state = Protocol { fence: Some(fence), ..Protocol::default() };
        state.lift(name(2, 2));
        assert_eq!(state.fence, Some(fence));
        state.lift(name(2, 3));
        assert_eq!(state.fence, None);
        state.lift(name(1, 9));
        assert_eq!(state.lifted, name(2, 3));
    }
}
