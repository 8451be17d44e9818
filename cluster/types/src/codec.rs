//! The one binary encoding: little-endian, fixed width, length-prefixed (`docs/verification.md`
//! section 1).
//!
//! A reader compares each length with the bytes at hand before it allocates.

use alloc::vec::Vec;
use core::fmt;

use crate::{Digest, Epoch, Stamp, Version};

/// The reason why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end before the value does.
    Truncated,
    /// Bytes follow the value.
    Trailing,
    /// The field of this name has a value that is not allowed.
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

    /// Returns the number of bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next `len` bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer are left.
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

    /// Reads one byte.
    ///
    /// # Errors
    /// [`Error::Truncated`] if none is left.
    pub fn u8(&mut self) -> Result<u8, Error> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Reads a number of two bytes, little-endian.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left.
    pub fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a number of four bytes, little-endian.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a number of eight bytes, little-endian.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a number of variable length: seven bits a byte, lowest bits first. All bytes but the
    /// last have their highest bit set.
    ///
    /// # Errors
    /// If the bytes end early, the number has over 64 bits, or a shorter encoding exists.
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

    /// Reads a number as [`Reader::short`] does, into a smaller type.
    ///
    /// # Errors
    /// Like [`Reader::short`], and if the number is too large for the type.
    pub fn short_as<T: TryFrom<u64>>(&mut self, field: &'static str) -> Result<T, Error> {
        T::try_from(self.short()?).map_err(|_| Error::Malformed(field))
    }

    /// Reads a byte that must be 0 or 1.
    ///
    /// # Errors
    /// If the byte is missing or has a different value.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, Error> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Malformed(field)),
        }
    }

    /// Reads a `u16` length and that many bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the bytes end early.
    pub fn str16(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a `u32` length and that many bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the bytes end early.
    pub fn str32(&mut self) -> Result<&'a [u8], Error> {
        let len = usize::try_from(self.u32()?).map_err(|_| Error::Truncated)?;
        self.take(len)
    }

    /// Reads 16 raw bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer are left.
    pub fn bytes16(&mut self) -> Result<[u8; 16], Error> {
        self.array()
    }

    /// Reads a digest of 32 raw bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer are left.
    pub fn digest(&mut self) -> Result<Digest, Error> {
        Ok(Digest(self.array()?))
    }

    /// Reads an epoch, then a version.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer than 16 bytes are left.
    pub fn stamp(&mut self) -> Result<Stamp, Error> {
        Ok(Stamp { epoch: Epoch(self.u64()?), version: Version(self.u64()?) })
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`Error::Trailing`] if bytes are left.
    pub fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Trailing) }
    }
}

/// Appends a number of variable length: seven bits a byte, lowest bits first. All bytes but the
/// last have their highest bit set.
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

    /// An empty writer with room for `bytes` bytes, so that a long value is not moved as it grows.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// Returns the written bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
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

    /// Appends a number of two bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a number of four bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a number of eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a number like [`put_short`].
    pub fn short(&mut self, value: u64) {
        put_short(&mut self.bytes, value);
    }

    /// Appends one byte: 0 for false, 1 for true.
    pub fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Appends a `u16` length and the bytes.
    ///
    /// # Panics
    /// If there are more than 65,535 bytes. Callers check their limits first.
    pub fn str16(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).expect("callers check lengths before encoding"));
        self.raw(bytes);
    }

    /// Appends a `u32` length and the bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more. Callers check their limits first.
    pub fn str32(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("callers check lengths before encoding"));
        self.raw(bytes);
    }

    /// Appends a digest of 32 bytes.
    pub fn digest(&mut self, digest: &Digest) {
        self.raw(&digest.0);
    }

    /// Appends an epoch, then a version.
    pub fn stamp(&mut self, stamp: Stamp) {
        self.u64(stamp.epoch.0);
        self.u64(stamp.version.0);
    }
}
