//! The keys of witnesses, whatever their type.

use alloc::{borrow::ToOwned, string::String};

use super::{CosignerKey, MlDsaKey, TYPE_MLDSA44, mldsa};
use crate::note::{self, DASH, Error, Line, split_key_text, split_line, split_note};

/// The key of a witness, of a type that counts in policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WitnessKey {
    /// Type 04.
    Ed25519(CosignerKey),
    /// Type 06.
    MlDsa44(MlDsaKey),
}

impl WitnessKey {
    /// Parses a vkey of one of the types.
    ///
    /// # Errors
    /// If the text is not a vkey of such a type, or its key id is not that of the key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match split_key_text(text)?.key_type {
            TYPE_MLDSA44 => MlDsaKey::parse(text).map(Self::MlDsa44),
            _ => CosignerKey::parse(text).map(Self::Ed25519),
        }
    }

    /// The name under which the key signs.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Ed25519(key) => key.name(),
            Self::MlDsa44(key) => key.name(),
        }
    }

    /// The bytes of the key.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        match self {
            Self::Ed25519(key) => key.key_bytes(),
            Self::MlDsa44(key) => key.key_bytes(),
        }
    }

    /// Whether name and key id of a signature line are those of this key.
    pub(crate) fn is_of(&self, line: &Line<'_>) -> bool {
        match self {
            Self::Ed25519(key) => key.is_of(line),
            Self::MlDsa44(key) => key.is_of(line),
        }
    }

    /// The time of a signature line of this key on the checkpoint with this text, in seconds since
    /// 1970.
    pub(crate) fn time_of(&self, text: &str, line: &Line<'_>) -> Result<u64, Error> {
        match self {
            Self::Ed25519(key) => key.time_of(text, line),
            Self::MlDsa44(key) => key.time_of(text, line),
        }
    }

    /// Length of a signature line of this key with its line feed, in bytes.
    #[must_use]
    pub fn line_bytes(&self) -> usize {
        let signature = match self {
            Self::Ed25519(_) => 64,
            Self::MlDsa44(_) => mldsa::SIGNATURE_BYTES,
        };
        // Key id and time stand before the signature.
        DASH.len() + self.name().len() + 1 + (4 + 8 + signature).div_ceil(3) * 4 + 1
    }

    /// This key's signature line in a witness's answer to [`super::request`], verified. `note` is
    /// the checkpoint that was sent. Lines of other keys are skipped.
    ///
    /// # Errors
    /// [`Error::Unsigned`] if no line is of this key, [`Error::BadSignature`] if its line does not
    /// verify for this checkpoint or has time 0, [`Error::Malformed`] if note or answer is
    /// malformed.
    pub fn pick(&self, note: &[u8], answer: &[u8]) -> Result<String, Error> {
        let (text, _) = split_note(note)?;
        let answer = core::str::from_utf8(answer).map_err(|_| Error::Malformed("answer: not UTF-8"))?;
        for line in answer.lines().take(note::SIGNATURE_LINES_MAX) {
            let parsed = split_line(line)?;
            if self.is_of(&parsed) {
                return match self.time_of(text, &parsed)? {
                    0 => Err(Error::BadSignature),
                    _ => Ok(line.to_owned()),
                };
            }
        }
        Err(Error::Unsigned)
    }

    /// The time of this key's newest cosignature on a checkpoint, in seconds since 1970; `None` if
    /// it has not cosigned.
    ///
    /// # Errors
    /// If the bytes are not a note, or any line of this key does not verify.
    pub fn cosigned(&self, note: &[u8]) -> Result<Option<u64>, Error> {
        let (text, lines) = split_note(note)?;
        let mut newest = None;
        for line in lines.lines() {
            let line = split_line(line)?;
            if self.is_of(&line) {
                newest = newest.max(Some(self.time_of(text, &line)?));
            }
        }
        Ok(newest)
    }
}

impl From<CosignerKey> for WitnessKey {
    fn from(key: CosignerKey) -> Self {
        Self::Ed25519(key)
    }
}
