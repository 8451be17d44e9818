//! Anchors: headers that keep time stamps over earlier checkpoints of the same log
//! (`docs/verification.md` section 9, *Anchors*).
//!
//! This module reads the body of such a header and checks its shape. Tokens stay opaque: whoever
//! has certificates of their authorities judges them.
//!
//! **Invariant** of a decoded anchor: encoding it gives the same bytes again.

use alloc::{format, string::String, vec::Vec};

use coppice_types::{
    Digest, Sequence,
    codec::{Error, Reader, Writer},
};

use crate::{
    checkpoint::Checkpoint,
    header::part::{self, BrokenRule},
};

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Most bytes of all tokens of an anchor together, so that a header with them fits an entry.
pub const ALL_TOKENS_BYTES_MAX: usize = 64_000;
/// Most tokens of an anchor.
pub const TOKENS_MAX: usize = 32;
/// Most certificates of a chain.
pub const CERTIFICATES_MAX: usize = 32;
/// The type of a token of RFC 3161.
pub const RFC_3161: u8 = 1;
/// The type of a token that is a receipt of a time ledger. Tokens of all further types count for
/// nothing.
pub const TIME_LEDGER: u8 = 2;

/// Body of a header of kind `anchor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Certificates of an authority, in DER, which later tokens don't repeat.
    Chain(Vec<Vec<u8>>),
    /// Tokens over a checkpoint of the log.
    Stamps(Stamps),
}

/// Tokens by one or more authorities over one checkpoint of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Entries of the log under the stamped checkpoint: at least 1, at most the anchor's sequence.
    pub size: u64,
    /// The root of that checkpoint.
    pub root: Digest,
    /// From 1 to [`TOKENS_MAX`] tokens.
    pub tokens: Vec<Token>,
}

/// A statement by an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// [`RFC_3161`], [`TIME_LEDGER`], or a type that this code does not know.
    pub kind: u8,
    /// The number of the chain whose certificates belong to the token, in order of the log from 1
    /// on; 0 if the token brings its certificates.
    pub chain: u8,
    /// From 1 to [`TOKEN_BYTES_MAX`] opaque bytes.
    pub bytes: Vec<u8>,
}

impl Stamps {
    /// The checkpoint that is stamped, in the log of this origin.
    #[must_use]
    pub fn checkpoint(&self, origin: &str) -> Checkpoint {
        Checkpoint { origin: String::from(origin), size: self.size, root: self.root }
    }

    /// The imprint that tokens must have: that of the checkpoint.
    #[must_use]
    pub fn imprint(&self, origin: &str) -> Digest {
        self.checkpoint(origin).imprint()
    }
}

/// The key under which a time ledger takes a checkpoint in, with the checkpoint's three lines as
/// its value.
#[must_use]
pub fn time_key(checkpoint: &Checkpoint) -> Vec<u8> {
    format!("time/{}", checkpoint.imprint()).into_bytes()
}

impl Anchor {
    /// Checks the rules that concern this anchor and its place in the log alone.
    pub(crate) fn check(&self, sequence: Sequence) -> Result<(), BrokenRule> {
        match self {
            Self::Chain(_) => Ok(()),
            Self::Stamps(stamps) => part::check(&[
                ("an anchor that stamps nothing", stamps.size > 0),
                ("an anchor that stamps itself", stamps.size <= sequence.0),
            ]),
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Chain(certificates) => {
                out.u8(0);
                out.u16(count(certificates.len()));
                certificates.iter().for_each(|certificate| out.str16(certificate));
            }
            Self::Stamps(stamps) => {
                out.u8(1);
                out.u64(stamps.size);
                out.digest(&stamps.root);
                out.u16(count(stamps.tokens.len()));
                for token in &stamps.tokens {
                    out.u8(token.kind);
                    out.u8(token.chain);
                    out.str32(&token.bytes);
                }
            }
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        match input.u8()? {
            0 => {
                let count = bounded(input.u16()?, CERTIFICATES_MAX, "number of certificates")?;
                let certificate = |input: &mut Reader<'_>| match input.str16()? {
                    [] => Err(Error::Malformed("length of a certificate")),
                    bytes => Ok(bytes.to_vec()),
                };
                Ok(Self::Chain((0..count).map(|_| certificate(input)).collect::<Result<_, _>>()?))
            }
            1 => {
                let (size, root) = (input.u64()?, input.digest()?);
                let count = bounded(input.u16()?, TOKENS_MAX, "number of tokens")?;
                let tokens = (0..count).map(|_| Token::decode(input)).collect::<Result<Vec<_>, _>>()?;
                if tokens.iter().map(|token| token.bytes.len()).sum::<usize>() > ALL_TOKENS_BYTES_MAX {
                    return Err(Error::Malformed("length of all tokens"));
                }
                Ok(Self::Stamps(Stamps { size, root, tokens }))
            }
            _ => Err(Error::Malformed("form of an anchor")),
        }
    }
}

impl Token {
    fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let (kind, chain, bytes) = (input.u8()?, input.u8()?, input.str32()?);
        if bytes.is_empty() || bytes.len() > TOKEN_BYTES_MAX {
            return Err(Error::Malformed("length of a token"));
        }
        Ok(Self { kind, chain, bytes: bytes.to_vec() })
    }
}

fn bounded(count: u16, max: usize, field: &'static str) -> Result<u16, Error> {
    if (1..=max).contains(&usize::from(count)) { Ok(count) } else { Err(Error::Malformed(field)) }
}

fn count(len: usize) -> u16 {
    u16::try_from(len).expect("an anchor has few parts")
}

#[cfg(test)]
mod tests;
