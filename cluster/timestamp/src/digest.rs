//! The hash functions of tokens.

use const_oid::ObjectIdentifier;

use crate::{
    Error,
    der::{NULL, Reader, SEQUENCE},
    oids,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    Sha256,
    Sha384,
    Sha512,
}

impl Digest {
    /// Takes an AlgorithmIdentifier. SHA-1 and other functions are refused.
    pub(crate) fn read(reader: &mut Reader<'_>, purpose: &'static str) -> Result<Self, Error> {
        let algorithm = Algorithm::read(reader)?;
        let digest = match algorithm.name {
            oids::SHA_256 => Self::Sha256,
            oids::SHA_384 => Self::Sha384,
            oids::SHA_512 => Self::Sha512,
            algorithm => return Err(Error::Algorithm { algorithm, purpose }),
        };
        if algorithm.is_plain { Ok(digest) } else { Err(reader.malformed()) }
    }

    pub(crate) fn of(self, bytes: &[u8]) -> impl AsRef<[u8]> {
        let function = match self {
            Self::Sha256 => &ring::digest::SHA256,
            Self::Sha384 => &ring::digest::SHA384,
            Self::Sha512 => &ring::digest::SHA512,
        };
        ring::digest::digest(function, bytes)
    }
}

/// An AlgorithmIdentifier.
pub(crate) struct Algorithm {
    pub name: ObjectIdentifier,
    /// It has no parameters, or NULL in their place.
    pub is_plain: bool,
}

impl Algorithm {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let mut fields = reader.nested(SEQUENCE, "algorithm")?;
        let name = fields.oid()?;
        let parameters = if fields.is_empty() { None } else { Some(fields.any()?) };
        fields.end()?;
        Ok(Self { name, is_plain: parameters.is_none_or(|parameters| parameters.whole == [NULL, 0]) })
    }
}
