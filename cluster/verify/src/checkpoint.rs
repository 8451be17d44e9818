//! Checkpoints: the signed head of the root log, C2SP `tlog-checkpoint` (`docs/verification.md`
//! section 10).

use alloc::{borrow::ToOwned, format, string::String};

use coppice_types::{ClusterId, Digest};

#[cfg(feature = "sign")]
use crate::note::SignerKey;
use crate::{
    base64,
    hash::sha256,
    merkle,
    note::{self, Error, VerifierKey},
};

/// Size and root of the root log of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// `<prefix>/<cluster id as 32 hex digits>`, which is also the name of the signing key.
    pub origin: String,
    /// Number of entries, below 2^63.
    pub size: u64,
    /// List root of the entries' hashes; that of the empty list if the size is 0.
    pub root: Digest,
}

/// The origin of a ledger's checkpoints. `prefix` is the one in the genesis header.
#[must_use]
pub fn origin(prefix: &str, cluster: &ClusterId) -> String {
    format!("{prefix}/{cluster}")
}

/// The cluster id at the end of an origin; `None` if it is not what [`origin`] returns.
#[must_use]
pub fn cluster_of(name: &str) -> Option<ClusterId> {
    let (_, digits) = name.rsplit_once('/')?;
    let mut cluster = ClusterId([0; 16]);
    base64::decode_hex(digits, &mut cluster.0)?;
    Some(cluster)
}

impl Checkpoint {
    /// The three lines that are signed.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, base64::encode(self.root.as_bytes()))
    }

    /// What an authority stamps: the SHA-256 of the three lines.
    #[must_use]
    pub fn imprint(&self) -> Digest {
        sha256(self.text().as_bytes())
    }

    /// Parses the three lines.
    ///
    /// # Errors
    /// If they are not exactly the text that [`Checkpoint::text`] returns, the size is 2^63 or
    /// more, or an empty log does not have the empty list's root.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed("checkpoint");
        let mut lines = text.strip_suffix('\n').ok_or(malformed)?.split('\n');
        let (Some(origin), Some(size), Some(root), None) = (lines.next(), lines.next(), lines.next(), lines.next())
        else {
            return Err(malformed);
        };
        let root = base64::decode(root).and_then(|root| Digest::from_slice(&root)).ok_or(malformed)?;
        let number: u64 = size.parse().map_err(|_| malformed)?;
        let checkpoint = Self { origin: origin.to_owned(), size: number, root };
        // Comparing with the canonical text refuses signs and leading zeros.
        let known_root = number != 0 || root == merkle::empty_root();
        if origin.is_empty() || number >= 1 << 63 || !known_root || checkpoint.text() != text {
            return Err(malformed);
        }
        Ok(checkpoint)
    }

    /// The checkpoint in a note, without a check of its signatures.
    ///
    /// # Errors
    /// If the bytes are not a note, or its text is not a checkpoint.
    pub fn claimed(note: &[u8]) -> Result<Self, Error> {
        Self::parse(note::split_note(note)?.0)
    }

    /// The checkpoint in a note that `key` signed, of the log whose origin is the key's name.
    ///
    /// # Errors
    /// Those of [`note::open`] and [`Checkpoint::parse`], and [`Error::Malformed`] if the origin is
    /// not the key's name.
    pub fn open(note: &[u8], key: &VerifierKey) -> Result<Self, Error> {
        let checkpoint = Self::parse(note::open(note, key)?)?;
        if checkpoint.origin == key.name() {
            Ok(checkpoint)
        } else {
            Err(Error::Malformed("origin: not the key's name"))
        }
    }

    /// The checkpoint as a note, signed by `key`.
    ///
    /// # Errors
    /// If the origin is not the key's name.
    #[cfg(feature = "sign")]
    pub fn sign(&self, key: &SignerKey) -> Result<String, Error> {
        if self.origin != key.name() {
            return Err(Error::Malformed("origin: not the key's name"));
        }
        key.sign_note(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_survives_signing_and_opens_under_its_origin_only() {
        let name = origin("ledger.example", &ClusterId([0xab; 16]));
        assert_eq!(name, "ledger.example/abababababababababababababababab");
        let key = SignerKey::from_seed(&name, &[1; 32]).expect("a name");
        let checkpoint = Checkpoint { origin: name, size: 7, root: merkle::empty_root() };
        let note = checkpoint.sign(&key).expect("the key's origin");
        assert_eq!(Checkpoint::open(note.as_bytes(), key.verifier()), Ok(checkpoint.clone()));
        let elsewhere = Checkpoint { origin: "elsewhere".into(), ..checkpoint };
        assert!(elsewhere.sign(&key).is_err());
        let note = key.sign_note(&elsewhere.text()).expect("a text");
        let refused = Checkpoint::open(note.as_bytes(), key.verifier());
        assert_eq!(refused, Err(Error::Malformed("origin: not the key's name")));
    }

    #[test]
    fn only_the_canonical_three_lines_are_read() {
        let good = Checkpoint { origin: "o".into(), size: 12, root: Digest([5; 32]) }.text();
        assert!(Checkpoint::parse(&good).is_ok());
        let root = base64::encode(&[5; 32]);
        for bad in [
            format!("o\n012\n{root}\n"),
            format!("o\n+12\n{root}\n"),
            format!("o\n\n{root}\n"),
            format!("o\n9223372036854775808\n{root}\n"),
            format!("o\n0\n{root}\n"),
            format!("\n12\n{root}\n"),
            format!("o\n12\n{root}"),
            format!("o\n12\n{root}\nmore\n"),
            format!("o\n12\n{root}\n\n"),
            format!("o\n12\n{}\n", base64::encode(&[5; 31])),
        ] {
            assert!(Checkpoint::parse(&bad).is_err(), "{bad:?}");
        }
    }
}
