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
use crate::note::DASH;
use crate::{
    base64,
    note::{Error, Line, PublicKey, split_line, split_note},
};

/// Type of an Ed25519 key that cosigns.
pub const TYPE_COSIGNATURE: u8 = 4;
/// Upper bound of all times, exclusive.
const TIME_MAX: u64 = 1 << 63;

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
    use crate::note::{self, SignerKey};

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
    fn text_that_is_not_a_signature_line_is_not_added() {
        let note = checkpoint();
        for line in ["", "text", "\u{2014} a b", "\u{2014} a AAAAAAA=\n\u{2014} b AAAAAAA="] {
            assert!(add_lines(note.as_bytes(), &[line.to_owned()]).is_err(), "{line:?}");
        }
        let line = cosigner(2).cosign(text(&note), 1);
        assert!(add_lines(note.as_bytes(), &vec![line; note::SIGNATURE_LINES_MAX]).is_err());
    }
}
