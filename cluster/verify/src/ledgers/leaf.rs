//! Leaves of a ledger's list: everything that is kept of a journal but its payload (section 18,
//! *Leaves*).

use alloc::vec::Vec;

use coppice_types::{
    Digest, LedgerId, MemberId, Stamp,
    codec::{Error, Reader, Writer},
};

use super::{
    envelope::{CLUES_MAX, ENVELOPE_BYTES_MIN},
    request::{DATA, FOUNDING, ITEMS_MAX, LANES, ORDER, Signed, is_signed, read_agent, write_agent},
};
use crate::hash::{item_hash, ledger_leaf_hash};

/// Shortest leaf, in bytes: by a member, without clues.
pub const LEAF_BYTES_MIN: usize = 242;

/// A clue of a journal, and the journal's place among those with the clue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafClue {
    /// Hash of the clue.
    pub clue: Digest,
    /// Place of the journal among those with the clue, from 1 on.
    pub ordinal: u64,
}

/// A leaf of a ledger's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Kind of the journal.
    pub kind: u8,
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Number of the journal, from 0 on without gaps.
    pub jsn: u64,
    /// The version in which it was appended.
    pub stamp: Stamp,
    /// The member that appended it.
    pub member: MemberId,
    /// The agent that signed for the member; `None` if the member signed.
    pub agent: Option<MemberId>,
    /// The key that signed.
    pub key: [u8; 32],
    /// Lane of the request.
    pub lane: u8,
    /// Number of the request in its lane.
    pub number: u64,
    /// Index of the item in its request.
    pub index: u32,
    /// Number of items of the request.
    pub of: u32,
    /// SHA-256 of the signed bytes.
    pub request: Digest,
    /// The signature over them.
    pub signature: [u8; 64],
    /// SHA-256 of the envelope.
    pub commitment: Digest,
    /// Length of the envelope, in bytes.
    pub envelope_bytes: u32,
    /// The clues, in the author's order.
    pub clues: Vec<LeafClue>,
}

impl Leaf {
    /// The canonical bytes.
    ///
    /// # Panics
    /// If there are 2^16 clues or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(320);
        out.u8(1);
        out.u8(self.kind);
        out.raw(self.ledger.as_bytes());
        out.u64(self.jsn);
        out.stamp(self.stamp);
        out.raw(self.member.as_bytes());
        write_agent(&mut out, self.agent);
        out.raw(&self.key);
        out.u8(self.lane);
        out.u64(self.number);
        out.u32(self.index);
        out.u32(self.of);
        out.digest(&self.request);
        out.raw(&self.signature);
        out.digest(&self.commitment);
        out.u32(self.envelope_bytes);
        out.u16(u16::try_from(self.clues.len()).expect("a journal has at most 16 clues"));
        for LeafClue { clue, ordinal } in &self.clues {
            out.digest(clue);
            out.u64(*ordinal);
        }
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a leaf, or beyond a limit.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("format of a ledger's leaf"));
        }
        let mut leaf = Self {
            kind: input.u8()?,
            ledger: LedgerId(input.bytes16()?),
            jsn: input.u64()?,
            stamp: input.stamp()?,
            member: MemberId(input.bytes16()?),
            agent: read_agent(&mut input)?,
            key: input.digest()?.0,
            lane: input.u8()?,
            number: input.u64()?,
            index: input.u32()?,
            of: input.u32()?,
            request: input.digest()?,
            signature: input.take(64)?.try_into().map_err(|_| Error::Truncated)?,
            commitment: input.digest()?,
            envelope_bytes: input.u32()?,
            clues: Vec::new(),
        };
        let count = usize::from(input.u16()?);
        let limits = [
            ("lane", leaf.lane < LANES && leaf.number > 0),
            ("place in a request", leaf.index < leaf.of && leaf.of as usize <= ITEMS_MAX),
            ("length of an envelope", leaf.envelope_bytes as usize >= ENVELOPE_BYTES_MIN),
            ("number of clues", count <= CLUES_MAX),
            ("kind of a journal", leaf.kind <= ORDER && (leaf.kind == FOUNDING) == (leaf.jsn == 0)),
            ("items of a journal's kind", leaf.kind == DATA || leaf.of == 1 && leaf.agent.is_none()),
            ("clues of a founding", leaf.kind != FOUNDING || count == 0),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, holds)| !holds) {
            return Err(Error::Malformed(name));
        }
        for _ in 0..count {
            let (clue, ordinal) = (input.digest()?, input.u64()?);
            if ordinal == 0 || leaf.clues.iter().any(|other| other.clue == clue) {
                return Err(Error::Malformed("clues of a leaf"));
            }
            leaf.clues.push(LeafClue { clue, ordinal });
        }
        input.finish()?;
        Ok(leaf)
    }

    /// Hash of the leaf in the ledger's list.
    #[must_use]
    pub fn hash(&self) -> Digest {
        ledger_leaf_hash(&self.encode())
    }

    /// Hash of the item that the leaf repeats, in its request.
    #[must_use]
    pub fn item_hash(&self) -> Digest {
        let clues: Vec<Digest> = self.clues.iter().map(|clue| clue.clue).collect();
        item_hash(self.kind, &self.commitment, self.envelope_bytes, &clues)
    }

    /// Whether the leaf repeats what was signed: ledger, author, lane, number, number of items and
    /// epoch. The caller checks that the bytes hash to [`Leaf::request`], and that the first
    /// journal has the id of the founded ledger.
    #[must_use]
    pub fn repeats(&self, signed: &Signed) -> bool {
        let author = (self.member, self.agent) == (signed.member, signed.agent);
        let place = (self.lane, self.number, self.of) == (signed.lane, signed.number, signed.items);
        let ledger = if self.jsn == 0 { signed.founds() } else { self.ledger == signed.ledger };
        author && place && ledger && self.stamp.epoch == signed.epoch
    }

    /// Whether [`Leaf::key`] signed these bytes.
    #[must_use]
    pub fn is_signed(&self, signed: &[u8]) -> bool {
        is_signed(&self.key, signed, &self.signature)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use alloc::vec;

    use super::{super::request::MEMBERS, *};
    use crate::hash::sha256;

    pub(in crate::ledgers) fn leaf() -> Leaf {
        let clue = |text: &[u8], ordinal| LeafClue { clue: sha256(text), ordinal };
        Leaf {
            kind: 0,
            ledger: LedgerId([1; 16]),
            jsn: 9,
            stamp: Stamp::new(1, 7),
            member: MemberId([2; 16]),
            agent: Some(MemberId([3; 16])),
            key: [4; 32],
            lane: 15,
            number: 3,
            index: 4,
            of: 5,
            request: sha256(b"request"),
            signature: [6; 64],
            commitment: sha256(b"envelope"),
            envelope_bytes: 129,
            clues: vec![clue(b"b", 1), clue(b"a", 8)],
        }
    }

    #[test]
    fn leaves_survive_encoding_and_nothing_else_does() {
        let bytes = leaf().encode();
        assert_eq!(Leaf::decode(&bytes), Ok(leaf()));
        assert!((0..bytes.len()).all(|len| Leaf::decode(&bytes[..len]).is_err()));
        assert_eq!(Leaf::decode(&[&*bytes, &[0]].concat()), Err(Error::Trailing));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Leaf::decode(&flipped) {
                assert_eq!(other.encode(), flipped);
                assert_ne!(other.hash(), leaf().hash());
            }
        }
    }

    #[test]
    fn the_shortest_leaf_has_no_clues_and_no_agent() {
        let shortest = Leaf { agent: None, clues: vec![], ..leaf() };
        assert_eq!(shortest.encode().len(), LEAF_BYTES_MIN);
    }

    #[test]
    fn leaves_beyond_the_limits_are_refused() {
        let refused = |change: &dyn Fn(&mut Leaf)| {
            let mut changed = leaf();
            change(&mut changed);
            Leaf::decode(&changed.encode()).expect_err("it is beyond a limit")
        };
        assert_eq!(refused(&|it| it.kind = 4), Error::Malformed("kind of a journal"));
        assert_eq!(refused(&|it| it.kind = FOUNDING), Error::Malformed("kind of a journal"));
        assert_eq!(refused(&|it| it.jsn = 0), Error::Malformed("kind of a journal"));
        for kind in [MEMBERS, ORDER] {
            assert_eq!(refused(&|it| it.kind = kind), Error::Malformed("items of a journal's kind"));
        }
        assert_eq!(refused(&|it| it.envelope_bytes = 128), Error::Malformed("length of an envelope"));
        let founds = |it: &mut Leaf| (it.kind, it.jsn, it.index, it.of, it.agent) = (FOUNDING, 0, 0, 1, None);
        assert_eq!(refused(&founds), Error::Malformed("clues of a founding"));
        assert_eq!(refused(&|it| it.lane = 16), Error::Malformed("lane"));
        assert_eq!(refused(&|it| it.number = 0), Error::Malformed("lane"));
        assert_eq!(refused(&|it| it.index = 5), Error::Malformed("place in a request"));
        assert_eq!(refused(&|it| it.of = 1025), Error::Malformed("place in a request"));
        assert_eq!(refused(&|it| it.clues = vec![it.clues[0]; 17]), Error::Malformed("number of clues"));
        assert_eq!(refused(&|it| it.clues[1] = it.clues[0]), Error::Malformed("clues of a leaf"));
        assert_eq!(refused(&|it| it.clues[0].ordinal = 0), Error::Malformed("clues of a leaf"));
    }
}
