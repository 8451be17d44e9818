//! Cosignatures of witnesses on checkpoints, C2SP `tlog-cosignature` (`docs/verification.md`
//! section 10): `cosignature/v1` by Ed25519, and `subtree/v1` by ML-DSA-44.
//!
//! A cosignature says: at that time, this was the largest consistent tree of that log that the
//! cosigner had seen. It says nothing about the entries. The message of `cosignature/v1` does not
//! contain the cosigner's name, so each key must belong to only one cosigner.

mod mldsa;
mod witness;

use alloc::{format, string::String, vec::Vec};
#[cfg(feature = "sign")]
use core::fmt;

#[cfg(feature = "sign")]
use ed25519_dalek::{Signer as _, SigningKey};

use coppice_types::Digest;

pub use self::{
    mldsa::{MlDsaKey, TYPE_MLDSA44, message as mldsa44_message},
    witness::WitnessKey,
};

#[cfg(feature = "sign")]
use crate::note::{DASH, SignerKey};
use crate::{
    base64,
    checkpoint::Checkpoint,
    note::{Error, Line, NOTE_BYTES_MAX, PublicKey, split_line, split_note},
};

/// Type of an Ed25519 key that cosigns.
pub const TYPE_COSIGNATURE: u8 = 4;
/// Upper bound of all times, exclusive.
const TIME_MAX: u64 = 1 << 63;
/// Upper bound of all sizes, exclusive.
const SIZE_MAX: u64 = 1 << 63;

/// An Ed25519 key that cosigns under its name.
pub type CosignerKey = PublicKey<TYPE_COSIGNATURE>;

impl CosignerKey {
    /// The time of a signature line of this key on the checkpoint with this text, in seconds since
    /// 1970.
    pub(crate) fn time_of(&self, text: &str, line: &Line<'_>) -> Result<u64, Error> {
        let (time, signature) = line.signature.split_first_chunk().ok_or(Error::BadSignature)?;
        let time = u64::from_be_bytes(*time);
        let valid = time < TIME_MAX && self.is_signed(message(text, time).as_bytes(), signature);
        if valid { Ok(time) } else { Err(Error::BadSignature) }
    }
}

/// The signed message: the time, and all lines of the checkpoint.
fn message(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

/// The body of a witness's `add-checkpoint` call (C2SP `tlog-witness`). `proof` is the consistency
/// path from the first `old` entries, which the witness cosigned last, to the checkpoint. It is
/// empty if `old` is 0 or the checkpoint's size.
#[must_use]
pub fn request(old: u64, proof: &[Digest], note: &[u8]) -> Vec<u8> {
    let mut body = format!("old {old}\n");
    for hash in proof {
        body.push_str(&base64::encode(hash.as_bytes()));
        body.push('\n');
    }
    body.push('\n');
    [body.as_bytes(), note].concat()
}

/// Longest body of an `add-checkpoint` call that is read.
pub const REQUEST_BYTES_MAX: usize = NOTE_BYTES_MAX;
/// Most hashes of a request's consistency path.
pub const REQUEST_HASHES_MAX: usize = 63;

/// The body of an `add-checkpoint` call, decoded. Nothing of it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The size that the witness cosigned last, as the caller believes.
    pub old: u64,
    /// The consistency path from `old` to the checkpoint.
    pub proof: Vec<Digest>,
    /// The signed checkpoint.
    pub note: &'a [u8],
}

impl<'a> Request<'a> {
    /// Decodes a body. Each value has one spelling: `old` is a decimal below 2^63 without leading
    /// zeros, and base64 is canonical.
    ///
    /// # Errors
    /// Names the first malformed part.
    pub fn parse(body: &'a [u8]) -> Result<Self, Error> {
        if body.len() > REQUEST_BYTES_MAX {
            return Err(Error::Malformed("body: too long"));
        }
        let (first, mut rest) = split_text_line(body).ok_or(Error::Malformed("first line"))?;
        let old = first.strip_prefix("old ").and_then(decimal).ok_or(Error::Malformed("old size"))?;
        let mut proof = Vec::new();
        loop {
            let (line, behind) = split_text_line(rest).ok_or(Error::Malformed("line of the proof"))?;
            rest = behind;
            if line.is_empty() {
                break;
            }
            if proof.len() == REQUEST_HASHES_MAX {
                return Err(Error::Malformed("proof: more than 63 hashes"));
            }
            let hash = base64::decode(line).and_then(|hash| Digest::from_slice(&hash));
            proof.push(hash.ok_or(Error::Malformed("hash of the proof"))?);
        }
        Checkpoint::claimed(rest)?;
        Ok(Self { old, proof, note: rest })
    }
}

/// The text before the next line feed, and the bytes behind it.
fn split_text_line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((core::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

fn decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok().filter(|number| *number < SIZE_MAX)?;
    // Comparing with the one spelling refuses signs and leading zeros.
    (format!("{number}") == text).then_some(number)
}

/// The checkpoint with these cosignature lines after its own signature lines.
///
/// # Errors
/// If a line is not a signature line, or the result is over the limits of a note.
pub fn add_lines(note: &[u8], lines: &[String]) -> Result<Vec<u8>, Error> {
    let mut cosigned = note.to_vec();
    for line in lines {
        split_line(line)?;
        cosigned.extend_from_slice(line.as_bytes());
        cosigned.push(b'\n');
    }
    split_note(&cosigned)?;
    Ok(cosigned)
}

/// A private key that cosigns. It can't be printed or compared, and is erased when dropped.
#[cfg(feature = "sign")]
pub struct Cosigner {
    key: SigningKey,
    verifier: CosignerKey,
}

#[cfg(feature = "sign")]
impl Cosigner {
    /// The key of a seed: 32 bytes from a good source of randomness.
    ///
    /// # Errors
    /// If the name is invalid.
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, Error> {
        let key = SigningKey::from_bytes(seed);
        let verifier = CosignerKey::new(name, &key.verifying_key().to_bytes())?;
        Ok(Self { key, verifier })
    }

    /// Parses the text of a private key, which is that of a [`SignerKey`]: one form serves both
    /// types.
    ///
    /// # Errors
    /// Those of [`SignerKey::parse`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let key = SignerKey::parse(text)?;
        Self::from_seed(key.name(), key.seed())
    }

    /// The public key.
    #[must_use]
    pub fn verifier(&self) -> &CosignerKey {
        &self.verifier
    }

    /// The cosignature line, without a line feed, for the checkpoint with this text. `time` is in
    /// seconds since 1970. The caller has checked that the tree extends the last one that this key
    /// cosigned.
    #[must_use]
    pub fn cosign(&self, text: &str, time: u64) -> String {
        let signature = self.key.sign(message(text, time).as_bytes()).to_bytes();
        let mut payload = Vec::from(self.verifier.id());
        payload.extend_from_slice(&time.to_be_bytes());
        payload.extend_from_slice(&signature);
        format!("{DASH}{} {}", self.verifier.name(), base64::encode(&payload))
    }
}

#[cfg(feature = "sign")]
impl fmt::Debug for Cosigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cosigner").field(&self.verifier.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned, string::ToString, vec};

    use super::*;
    use crate::note;

    fn cosigner(seed: u8) -> Cosigner {
        Cosigner::from_seed("member.example/w", &[seed; 32]).expect("the name is fine")
    }

    fn key(member: &Cosigner) -> WitnessKey {
        member.verifier().clone().into()
    }

    fn checkpoint() -> String {
        let key = SignerKey::from_seed("ledger.example/x", &[1; 32]).expect("the name is fine");
        key.sign_note("ledger.example/x\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n").expect("a text")
    }

    fn text(note: &str) -> &str {
        split_note(note.as_bytes()).expect("a note").0
    }

    #[test]
    fn a_cosignature_is_found_and_every_flipped_bit_of_it_is_refused() {
        let (note, member) = (checkpoint(), cosigner(2));
        assert_eq!(key(&member).cosigned(note.as_bytes()), Ok(None));
        let line = member.cosign(text(&note), 1_700_000_000);
        let cosigned = add_lines(note.as_bytes(), &[line]).expect("a line");
        assert_eq!(key(&member).cosigned(&cosigned), Ok(Some(1_700_000_000)));
        assert_eq!(key(&cosigner(3)).cosigned(&cosigned), Ok(None), "same name, other key");
        for bit in note.len() * 8..cosigned.len() * 8 {
            let mut flipped = cosigned.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = key(&member).cosigned(&flipped);
            assert!(!matches!(found, Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_cosignature_is_of_one_text_and_of_its_time() {
        let (note, member) = (checkpoint(), cosigner(2));
        let line = member.cosign("ledger.example/x\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", 7);
        let cosigned = add_lines(note.as_bytes(), &[line]).expect("a line");
        assert_eq!(key(&member).cosigned(&cosigned), Err(Error::BadSignature));
        let late = member.cosign(text(&note), 1 << 63);
        let cosigned = add_lines(note.as_bytes(), &[late]).expect("a line");
        assert_eq!(key(&member).cosigned(&cosigned), Err(Error::BadSignature));
        let both = [member.cosign(text(&note), 9), member.cosign(text(&note), 8)];
        let cosigned = add_lines(note.as_bytes(), &both).expect("lines");
        assert_eq!(key(&member).cosigned(&cosigned), Ok(Some(9)), "the newest counts");
    }

    #[test]
    fn keys_of_the_two_types_are_not_mixed_up() {
        let member = cosigner(2);
        assert_eq!(CosignerKey::parse(&member.verifier().to_string()).as_ref(), Ok(member.verifier()));
        assert!(note::VerifierKey::parse(&member.verifier().to_string()).is_err());
        let log = SignerKey::from_seed("member.example/w", &[2; 32]).expect("the name is fine");
        assert!(CosignerKey::parse(&log.verifier().to_string()).is_err());
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(CosignerKey::new("x", &identity), Err(Error::WeakKey));
        // The log's own signature is not a cosignature, and is not taken for one.
        assert_eq!(key(&member).cosigned(checkpoint().as_bytes()), Ok(None));
    }

    #[test]
    fn only_the_witnesss_own_sound_line_is_taken_from_an_answer() {
        let (note, member, other) = (checkpoint(), cosigner(2), cosigner(3));
        let good = member.cosign(text(&note), 5);
        let pick = |answer: String| key(&member).pick(note.as_bytes(), answer.as_bytes());
        assert_eq!(pick(format!("{good}\n")), Ok(good.clone()));
        assert_eq!(pick(format!("{}\n{good}\n", other.cosign(text(&note), 5))), Ok(good.clone()));
        assert_eq!(pick(String::new()), Err(Error::Unsigned));
        assert_eq!(pick(other.cosign(text(&note), 5)), Err(Error::Unsigned));
        assert_eq!(pick(member.cosign(text(&note), 0)), Err(Error::BadSignature));
        assert_eq!(pick(member.cosign("other\n", 5)), Err(Error::BadSignature));
        assert!(pick(format!("ok\n{good}\n")).is_err());
    }

    #[test]
    fn a_request_survives_its_encoding_and_no_other_spelling_is_read() {
        let note = checkpoint();
        for hashes in [0, 1, REQUEST_HASHES_MAX] {
            let proof: Vec<Digest> = (0..hashes).map(|hash| Digest([hash as u8; 32])).collect();
            let body = request(7, &proof, note.as_bytes());
            assert_eq!(Request::parse(&body), Ok(Request { old: 7, proof, note: note.as_bytes() }));
        }
        let hash = base64::encode(&[1; 32]);
        let many = format!("{hash}\n").repeat(REQUEST_HASHES_MAX + 1);
        let head = |head: &str| [head.as_bytes(), note.as_bytes()].concat();
        let signed_nothing = note.rsplit_once("\n\n").expect("a note").0;
        let bodies = [
            Vec::new(),
            b"\n".to_vec(),
            note.clone().into_bytes(),
            head("old 7\n"),
            head("old\n\n"),
            head("old \n\n"),
            head("old  7\n\n"),
            head("old 7 \n\n"),
            head("old 07\n\n"),
            head("old +7\n\n"),
            head("old -7\n\n"),
            head("old 0x7\n\n"),
            head("old 9223372036854775808\n\n"),
            head("old 18446744073709551616\n\n"),
            head("Old 7\n\n"),
            head("old 7\r\n\r\n"),
            head("old 7\n\n\n"),
            head("\nold 7\n\n"),
            head("old 7\nAAAA\n\n"),
            head(&format!("old 7\n{}\n\n", hash.trim_end_matches('='))),
            head(&format!("old 7\n{}\n\n", hash.replace('=', "_"))),
            head(&format!("old 7\n {hash}\n\n")),
            head(&format!("old 7\n{hash} \n\n")),
            head(&format!("old 7\n{}\n\n", base64::encode(&[1; 31]))),
            head(&format!("old 7\n{many}\n")),
            b"old 7\n\n".to_vec(),
            b"old 7\n\nno note\n".to_vec(),
            format!("old 7\n\n{signed_nothing}\n").into_bytes(),
            [&b"old 7\n\xff\n\n"[..], note.as_bytes()].concat(),
            format!("old 7\n\n{}", note.trim_end()).into_bytes(),
            [head("old 7\n\n"), vec![b'x'; REQUEST_BYTES_MAX]].concat(),
        ];
        for body in bodies {
            assert!(Request::parse(&body).is_err(), "{:?}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn the_text_of_a_private_key_makes_a_cosigner() {
        let signer = SignerKey::from_seed("member.example/w", &[2; 32]).expect("the name is fine");
        let parsed = Cosigner::parse(&signer.to_private_text()).expect("a private key");
        assert_eq!(parsed.verifier(), cosigner(2).verifier());
        assert!(Cosigner::parse(&cosigner(2).verifier().to_string()).is_err(), "a public key");
    }

    #[test]
    fn text_that_is_not_a_signature_line_is_not_added() {
        let note = checkpoint();
        for line in ["", "text", "\u{2014} a b", "\u{2014} a AAAAAAA=\n\u{2014} b AAAAAAA="] {
            assert!(add_lines(note.as_bytes(), &[line.to_owned()]).is_err(), "{line:?}");
        }
        let line = cosigner(2).cosign(text(&note), 1);
        assert!(add_lines(note.as_bytes(), &vec![line; note::SIGNATURE_LINES_MAX]).is_err());
    }
}
