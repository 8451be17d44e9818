//! The one binary encoding: little-endian, fixed width, length-prefixed (`docs/verification.md` section 1).
//!
//! A reader never allocates by a length that it has not compared with the bytes at hand.

use alloc::vec::Vec;
use core::fmt;

use crate::{Digest, Epoch, Stamp, Version};

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end before the value does.
    Truncated,
    /// Bytes follow the value.
    Trailing,
    /// A field has a value that it may not have.
    Malformed(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("bytes end early"),
            Self::Trailing => f.write_str("bytes follow the end"),
            Self::Malformed(field) => write!(f, "malformed {field}"),
        }
    }
}

impl core::error::Error for Error {}

/// Reads values from a byte slice, front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// If none is left.
    pub fn u8(&mut self) -> Result<u8, Error> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A short number: seven bits a byte, the lowest first, all bytes but the last with their highest bit set.
    ///
    /// # Errors
    /// If it ends early, is over 64 bits, or could be shorter.
    pub fn short(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::Malformed("short number"))
    }

    /// A short number of a smaller type.
    ///
    /// # Errors
    /// As [`Reader::short`], and if it is too large for the type.
    pub fn short_as<T: TryFrom<u64>>(&mut self, field: &'static str) -> Result<T, Error> {
        T::try_from(self.short()?).map_err(|_| Error::Malformed(field))
    }

    /// A byte that must be 0 or 1.
    ///
    /// # Errors
    /// If it is neither, or missing.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, Error> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Malformed(field)),
        }
    }

    /// Bytes behind a `u16` length.
    ///
    /// # Errors
    /// If they end early.
    pub fn str16(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Bytes behind a `u32` length.
    ///
    /// # Errors
    /// If they end early.
    pub fn str32(&mut self) -> Result<&'a [u8], Error> {
        let len = usize::try_from(self.u32()?).map_err(|_| Error::Truncated)?;
        self.take(len)
    }

    /// 16 raw bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn bytes16(&mut self) -> Result<[u8; 16], Error> {
        self.array()
    }

    /// 32 raw bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn digest(&mut self) -> Result<Digest, Error> {
        Ok(Digest(self.array()?))
    }

    /// Epoch, then version.
    ///
    /// # Errors
    /// If fewer than 16 bytes are left.
    pub fn stamp(&mut self) -> Result<Stamp, Error> {
        Ok(Stamp { epoch: Epoch(self.u64()?), version: Version(self.u64()?) })
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Trailing) }
    }
}

/// Appends a short number: seven bits a byte, the lowest first, all bytes but the last with their highest bit set.
pub fn put_short(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends values to a byte vector.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for so many bytes: what is long need not move as it grows.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How many bytes were written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a short number, as [`put_short`].
    pub fn short(&mut self, value: u64) {
        put_short(&mut self.bytes, value);
    }

    /// Appends 0 or 1.
    pub fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Appends a `u16` length and the bytes.
    ///
    /// # Panics
    /// If there are more than 65,535: callers check their limits first.
    pub fn str16(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).expect("callers check lengths before encoding"));
        self.raw(bytes);
    }

    /// Appends a `u32` length and the bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more: callers check their limits first.
    pub fn str32(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("callers check lengths before encoding"));
        self.raw(bytes);
    }

    /// Appends 32 bytes.
    pub fn digest(&mut self, digest: &Digest) {
        self.raw(&digest.0);
    }

    /// Appends epoch, then version.
    pub fn stamp(&mut self, stamp: Stamp) {
        self.u64(stamp.epoch.0);
        self.u64(stamp.version.0);
    }
}
