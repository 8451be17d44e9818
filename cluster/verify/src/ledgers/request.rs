//! Requests: what a member signs to append journals (section 18, *Requests*).
//!
//! One signature covers up to 1,024 items. The signed bytes begin with a control character, so they
//! are no text of a note. They name the cluster, the ledger, the lane, and the newest log that the
//! author saw.

use alloc::vec::Vec;

use coppice_types::{
    ClusterId, Digest, Epoch, LedgerId, MemberId,
    codec::{Error, Reader, Writer},
};

use super::envelope::Envelope;
use crate::{
    hash::{item_hash, sha256},
    merkle::mth,
    note::VerifierKey,
};

/// Number of the kind of a journal that holds data.
pub const DATA: u8 = 0;
/// Number of the kind of the journal that founds a ledger.
pub const FOUNDING: u8 = 1;
/// Number of the kind of a journal that changes members.
pub const MEMBERS: u8 = 2;
/// Number of the kind of a journal that orders.
pub const ORDER: u8 = 3;
/// Most items of a request.
pub const ITEMS_MAX: usize = 1024;
/// Number of lanes of a member.
pub const LANES: u8 = 16;
/// Most conditions of a request.
pub const CONDITIONS_MAX: usize = 64;
/// First bytes of a signed request.
const WORDS: &[u8] = b"\x02coppice-journal";

/// Whether a member's key signed a message.
pub(super) fn is_signed(key: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    VerifierKey::new("member", key).is_ok_and(|key| key.verifies(message, signature))
}

/// A condition that must hold where the request is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The ledger has this many journals.
    Size(u64),
    /// The clue of this hash has this many journals.
    Count(Digest, u64),
}

/// The fields that a member signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Id of the ledger; all zero in the request that founds it.
    pub ledger: LedgerId,
    /// The member that appends.
    pub member: MemberId,
    /// The agent that signs for the member; `None` if the member signs.
    pub agent: Option<MemberId>,
    /// One of the signer's lanes, below [`LANES`].
    pub lane: u8,
    /// Number of the request in its lane, from 1 on.
    pub number: u64,
    /// The cluster's epoch in which the request is to be applied.
    pub epoch: Epoch,
    /// Number of entries of a root log that the signer has seen.
    pub seen_size: u64,
    /// Root of that log.
    pub seen_root: Digest,
    /// Conditions on the ledger.
    pub conditions: Vec<Condition>,
    /// Number of items, 1 to [`ITEMS_MAX`].
    pub items: u32,
    /// List root of the item hashes.
    pub items_root: Digest,
}

/// One journal to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Kind of the journal.
    pub kind: u8,
    /// Its payload.
    pub envelope: Envelope,
}

impl Item {
    /// Hash of the item in its request.
    ///
    /// # Panics
    /// If the envelope has 4 GiB or more.
    #[must_use]
    pub fn hash(&self, ledger: LedgerId) -> Digest {
        let bytes = self.envelope.encode();
        let length = u32::try_from(bytes.len()).expect("payloads are limited");
        item_hash(self.kind, &sha256(&bytes), length, &self.envelope.clue_hashes(ledger))
    }
}

/// A request with its signature and items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The signed bytes.
    pub signed: Vec<u8>,
    /// The signature over them.
    pub signature: [u8; 64],
    /// The journals to append.
    pub items: Vec<Item>,
}

impl Signed {
    /// Takes over number and root of these items.
    ///
    /// # Panics
    /// If there are 2^32 items or more.
    #[must_use]
    pub fn over(mut self, items: &[Item]) -> Self {
        let hashes: Vec<Digest> = items.iter().map(|item| item.hash(self.ledger)).collect();
        self.items = u32::try_from(items.len()).expect("items are limited");
        self.items_root = mth(&hashes);
        self
    }

    /// The request of these items, signed.
    ///
    /// # Panics
    /// If there are 2^32 items or more.
    #[cfg(feature = "sign")]
    #[must_use]
    pub fn sign(self, key: &crate::note::SignerKey, items: Vec<Item>) -> Request {
        let signed = self.over(&items).encode();
        let signature = key.sign(&signed);
        Request { signed, signature, items }
    }

    /// The canonical bytes, which the signature covers.
    ///
    /// # Panics
    /// If there are 2^16 conditions or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(WORDS);
        out.raw(self.cluster.as_bytes());
        out.raw(self.ledger.as_bytes());
        out.raw(self.member.as_bytes());
        write_agent(&mut out, self.agent);
        out.u8(self.lane);
        out.u64(self.number);
        out.u64(self.epoch.0);
        out.u64(self.seen_size);
        out.digest(&self.seen_root);
        out.u16(u16::try_from(self.conditions.len()).expect("conditions are limited"));
        for condition in &self.conditions {
            match condition {
                Condition::Size(size) => {
                    out.u8(0);
                    out.u64(*size);
                }
                Condition::Count(clue, count) => {
                    out.u8(1);
                    out.digest(clue);
                    out.u64(*count);
                }
            }
        }
        out.u32(self.items);
        out.digest(&self.items_root);
        out.into_bytes()
    }

    /// Decodes the signed bytes.
    ///
    /// # Errors
    /// If the bytes are not a request: signed for another purpose, in a lane that no member has,
    /// with number 0, without items, or beyond a limit.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.take(WORDS.len())? != WORDS {
            return Err(Error::Malformed("purpose of what is signed"));
        }
        let cluster = ClusterId(input.bytes16()?);
        let ledger = LedgerId(input.bytes16()?);
        let (member, agent) = (MemberId(input.bytes16()?), read_agent(&mut input)?);
        let (lane, number) = (input.u8()?, input.u64()?);
        let (epoch, seen_size, seen_root) = (Epoch(input.u64()?), input.u64()?, input.digest()?);
        let count = usize::from(input.u16()?);
        if count > CONDITIONS_MAX {
            return Err(Error::Malformed("number of conditions"));
        }
        let mut conditions = Vec::new();
        for _ in 0..count {
            conditions.push(match input.u8()? {
                0 => Condition::Size(input.u64()?),
                1 => Condition::Count(input.digest()?, input.u64()?),
                _ => return Err(Error::Malformed("kind of a condition")),
            });
        }
        let (items, items_root) = (input.u32()?, input.digest()?);
        input.finish()?;
        let limits = [
            ("lane", lane < LANES),
            ("number in the lane", number > 0),
            ("seen size", seen_size > 0),
            ("number of items", items > 0 && items as usize <= ITEMS_MAX),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, holds)| !holds) {
            return Err(Error::Malformed(name));
        }
        Ok(Self {
            cluster,
            ledger,
            member,
            agent,
            lane,
            number,
            epoch,
            seen_size,
            seen_root,
            conditions,
            items,
            items_root,
        })
    }

    /// The member or agent whose key signs, and whose lanes count.
    #[must_use]
    pub fn signer(&self) -> MemberId {
        self.agent.unwrap_or(self.member)
    }

    /// Whether the request founds a ledger.
    #[must_use]
    pub fn founds(&self) -> bool {
        self.ledger == LedgerId::default()
    }
}

pub(super) fn write_agent(out: &mut Writer, agent: Option<MemberId>) {
    out.flag(agent.is_some());
    if let Some(agent) = agent {
        out.raw(agent.as_bytes());
    }
}

pub(super) fn read_agent(input: &mut Reader<'_>) -> Result<Option<MemberId>, Error> {
    Ok(if input.flag("agent")? { Some(MemberId(input.bytes16()?)) } else { None })
}

/// Writes a list behind its length.
pub(super) fn write_list<T>(out: &mut Writer, items: &[T], write: impl Fn(&mut Writer, &T)) {
    out.u16(u16::try_from(items.len()).expect("lists of ledgers are limited"));
    items.iter().for_each(|item| write(out, item));
}

/// Reads a list of at most so many items.
pub(super) fn read_list<T>(
    input: &mut Reader<'_>,
    most: usize,
    field: &'static str,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = usize::from(input.u16()?);
    if count > most {
        return Err(Error::Malformed(field));
    }
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(read(input)?);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn signed() -> Signed {
        let item = |payload: &[u8]| Item {
            kind: 0,
            envelope: Envelope { nonce: [1; 32], clues: vec![b"lot".to_vec()], payload: payload.to_vec() },
        };
        Signed {
            cluster: ClusterId([1; 16]),
            ledger: LedgerId([2; 16]),
            member: MemberId([3; 16]),
            agent: Some(MemberId([4; 16])),
            lane: 15,
            number: 9,
            epoch: Epoch(4),
            seen_size: 77,
            seen_root: sha256(b"seen"),
            conditions: vec![Condition::Size(5), Condition::Count(sha256(b"clue"), 6)],
            items: 0,
            items_root: Digest::default(),
        }
        .over(&[item(b"a"), item(b"b")])
    }

    #[test]
    fn requests_survive_encoding_and_nothing_else_does() {
        let bytes = signed().encode();
        assert_eq!(Signed::decode(&bytes), Ok(signed()));
        assert!((0..bytes.len()).all(|len| Signed::decode(&bytes[..len]).is_err()));
        assert_eq!(Signed::decode(&[&*bytes, &[0]].concat()), Err(Error::Trailing));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Signed::decode(&flipped) {
                assert_eq!(other.encode(), flipped);
                assert_ne!(other, signed());
            }
        }
    }

    #[test]
    fn numbers_beyond_the_limits_are_refused() {
        let refused = |change: &dyn Fn(&mut Signed)| {
            let mut changed = signed();
            change(&mut changed);
            Signed::decode(&changed.encode()).expect_err("it is beyond a limit")
        };
        assert_eq!(refused(&|it| it.lane = LANES), Error::Malformed("lane"));
        assert_eq!(refused(&|it| it.number = 0), Error::Malformed("number in the lane"));
        assert_eq!(refused(&|it| it.seen_size = 0), Error::Malformed("seen size"));
        assert_eq!(refused(&|it| it.items = 0), Error::Malformed("number of items"));
        assert_eq!(refused(&|it| it.items = 1025), Error::Malformed("number of items"));
        let many = vec![Condition::Size(1); CONDITIONS_MAX + 1];
        assert_eq!(refused(&|it| it.conditions = many.clone()), Error::Malformed("number of conditions"));
    }
}
