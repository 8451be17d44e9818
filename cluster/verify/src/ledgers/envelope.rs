//! Envelopes: the payload of a journal with its clues and a nonce (section 18, *Envelopes*).
//!
//! Leaves commit to the SHA-256 of an envelope. Without its nonce of 32 bytes nobody can guess a
//! payload from that hash, so the hash may stay when the payload is erased.

use alloc::vec::Vec;

use coppice_types::{
    Digest, LedgerId,
    codec::{Error, Reader, Writer},
};

use crate::hash::{clue_hash, sha256};

/// Length of a nonce, in bytes.
pub const NONCE_BYTES: usize = 32;
/// Most clues of a journal.
pub const CLUES_MAX: usize = 16;
/// Longest clue, in bytes.
pub const CLUE_BYTES_MAX: usize = 256;
/// Shortest envelope, in bytes. It is above every `inline_bytes` of a cluster with ledgers, so that
/// an envelope never lies in the page of its record, and can be erased.
pub(super) const ENVELOPE_BYTES_MIN: usize = 129;

/// The payload of a journal, with what hides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Random bytes of the author.
    pub nonce: [u8; NONCE_BYTES],
    /// The clues in the order in which the author gave them, each once.
    pub clues: Vec<Vec<u8>>,
    /// The application's bytes.
    pub payload: Vec<u8>,
}

impl Envelope {
    /// The canonical bytes, filled up with zeros to 129.
    ///
    /// # Panics
    /// If a clue has 2^16 bytes or more, or the payload 4 GiB.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(ENVELOPE_BYTES_MIN.max(self.payload.len() + 128));
        out.raw(&self.nonce);
        out.u16(u16::try_from(self.clues.len()).expect("a journal has at most 16 clues"));
        self.clues.iter().for_each(|clue| out.str16(clue));
        out.str32(&self.payload);
        let mut bytes = out.into_bytes();
        bytes.resize(bytes.len().max(ENVELOPE_BYTES_MIN), 0);
        bytes
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not an envelope, have too many or too long clues, or one clue twice.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let nonce = input.digest()?.0;
        let count = usize::from(input.u16()?);
        if count > CLUES_MAX {
            return Err(Error::Malformed("number of clues"));
        }
        let mut clues: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            let clue = input.str16()?;
            if clue.is_empty() || clue.len() > CLUE_BYTES_MAX {
                return Err(Error::Malformed("length of a clue"));
            }
            if clues.iter().any(|other| other == clue) {
                return Err(Error::Malformed("a clue that is given twice"));
            }
            clues.push(clue.to_vec());
        }
        let payload = input.str32()?.to_vec();
        let zeros = input.take(input.remaining())?;
        let filled = bytes.len() == ENVELOPE_BYTES_MIN || zeros.is_empty() && bytes.len() > ENVELOPE_BYTES_MIN;
        if !filled || zeros.iter().any(|byte| *byte != 0) {
            return Err(Error::Malformed("end of an envelope"));
        }
        Ok(Self { nonce, clues, payload })
    }

    /// The commitment of the leaf: SHA-256 of the canonical bytes.
    #[must_use]
    pub fn commitment(&self) -> Digest {
        sha256(&self.encode())
    }

    /// The hashes of the clues in this ledger, in their order.
    #[must_use]
    pub fn clue_hashes(&self, ledger: LedgerId) -> Vec<Digest> {
        self.clues.iter().map(|clue| clue_hash(ledger, clue)).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn envelope(payload: usize) -> Envelope {
        Envelope { nonce: [7; 32], clues: vec![b"lot-7".to_vec(), b"mill".to_vec()], payload: vec![0; payload] }
    }

    #[test]
    fn short_payloads_do_not_show_their_length() {
        // 32 + 2 + (2 + 5) + (2 + 4) + 4 = 51 bytes lie around the payload.
        for (payload, length) in [(0, 129), (1, 129), (78, 129), (79, 130), (1000, 1051)] {
            let bytes = envelope(payload).encode();
            assert_eq!(bytes.len(), length);
            assert_eq!(Envelope::decode(&bytes), Ok(envelope(payload)));
        }
    }

    #[test]
    fn there_is_one_encoding_of_each_envelope() {
        let bytes = envelope(40).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Envelope::decode(&flipped) {
                assert_eq!(other.encode(), flipped);
            }
        }
        for payload in [40, 200] {
            let bytes = envelope(payload).encode();
            assert!((0..bytes.len()).all(|len| Envelope::decode(&bytes[..len]).is_err()));
            assert!(Envelope::decode(&[&*bytes, &[0]].concat()).is_err());
        }
    }

    #[test]
    fn clues_beyond_the_limits_are_refused() {
        let with = |clues: Vec<Vec<u8>>| Envelope::decode(&Envelope { clues, ..envelope(1) }.encode());
        let numbered = |count: u8| (0..count).map(|at| vec![at + 1]).collect::<Vec<_>>();
        assert!(with(numbered(16)).is_ok());
        assert_eq!(with(numbered(17)), Err(Error::Malformed("number of clues")));
        assert_eq!(with(vec![vec![1; 257]]), Err(Error::Malformed("length of a clue")));
        assert_eq!(with(vec![vec![]]), Err(Error::Malformed("length of a clue")));
        assert_eq!(with(vec![vec![1], vec![1]]), Err(Error::Malformed("a clue that is given twice")));
    }
}
