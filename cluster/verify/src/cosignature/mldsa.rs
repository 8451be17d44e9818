//! ML-DSA-44 cosignatures, C2SP `subtree/v1` (`docs/verification.md` section 10).
//!
//! Unlike those of Ed25519, the signed message has the cosigner's name. It can also be of a part of
//! a log that does not begin at 0; such a line is no cosignature of a checkpoint.

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::fmt;

use ml_dsa::{KeyInit, MlDsa44, Signature, Verifier, VerifyingKey};

use super::TIME_MAX;
use crate::{
    checkpoint::Checkpoint,
    hash::key_id,
    note::{Error, Line, check_name, split_key_text},
};

/// Type of an ML-DSA-44 key that cosigns.
pub const TYPE_MLDSA44: u8 = 6;
/// Length of a key, in bytes.
const KEY_BYTES: usize = 1312;
/// Length of a signature, in bytes.
pub(super) const SIGNATURE_BYTES: usize = 2420;
/// First bytes of the signed message.
const TAG: &[u8] = b"subtree/v1\n\0";

/// An ML-DSA-44 key that cosigns under its name.
#[derive(Clone, PartialEq, Eq)]
pub struct MlDsaKey {
    name: String,
    id: [u8; 4],
    // The key in the form for verifying is 20 times as large.
    key: Box<[u8]>,
}

impl MlDsaKey {
    /// Parses a vkey, `name+hex(key id)+base64(06 || public key)`.
    ///
    /// # Errors
    /// If the text is not a vkey, its key is of a different type, or its key id is not that of the
    /// key. [`Error::PrivateKey`] if it is a private key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parts = split_key_text(text)?;
        check_name(parts.name)?;
        if (parts.key_type, parts.key.len()) != (TYPE_MLDSA44, KEY_BYTES) {
            return Err(Error::Malformed("key type"));
        }
        if key_id(parts.name, TYPE_MLDSA44, &parts.key) != parts.id {
            return Err(Error::Malformed("key id"));
        }
        Ok(Self { name: parts.name.to_owned(), id: parts.id, key: parts.key.as_slice().into() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn key_bytes(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn is_of(&self, line: &Line<'_>) -> bool {
        line.name == self.name && line.id == self.id
    }

    pub(super) fn time_of(&self, text: &str, line: &Line<'_>) -> Result<u64, Error> {
        let (time, signature) = line.signature.split_first_chunk().ok_or(Error::BadSignature)?;
        let time = u64::from_be_bytes(*time);
        let message = Checkpoint::parse(text).ok().and_then(|checkpoint| message(&self.name, time, &checkpoint));
        let message = message.filter(|_| time < TIME_MAX).ok_or(Error::BadSignature)?;
        if self.is_signed(&message, signature) { Ok(time) } else { Err(Error::BadSignature) }
    }

    fn is_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::<MlDsa44>::try_from(signature) else { return false };
        let Ok(key) = VerifyingKey::<MlDsa44>::new_from_slice(&self.key) else { return false };
        key.verify(message, &signature).is_ok()
    }
}

impl fmt::Debug for MlDsaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MlDsaKey").field(&self.name).finish()
    }
}

/// The message that a cosigner of this name signs for a checkpoint. `None` if a name is longer than
/// the message can hold.
#[must_use]
pub fn message(name: &str, time: u64, checkpoint: &Checkpoint) -> Option<Vec<u8>> {
    let mut message = Vec::from(TAG);
    let put = |message: &mut Vec<u8>, text: &str| {
        message.push(u8::try_from(text.len()).ok()?);
        message.extend_from_slice(text.as_bytes());
        Some(())
    };
    put(&mut message, name)?;
    message.extend_from_slice(&time.to_be_bytes());
    put(&mut message, &checkpoint.origin)?;
    message.extend_from_slice(&0_u64.to_be_bytes());
    message.extend_from_slice(&checkpoint.size.to_be_bytes());
    message.extend_from_slice(checkpoint.root.as_bytes());
    Some(message)
}
