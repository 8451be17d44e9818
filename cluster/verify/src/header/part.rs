//! Parts that the bodies of several kinds of headers share: the limits of their texts, and the
//! error that names a broken rule. Below [`crate::keys`], whose key change is such a body.

use alloc::string::String;
use core::fmt;

use coppice_types::codec::{Error, Reader};

/// Longest principal (the name of the party that asked for an operation), in bytes.
pub const PRINCIPAL_BYTES_MAX: usize = 256;
/// Longest reason for an operation, in bytes.
pub const REASON_BYTES_MAX: usize = 4096;
/// Longest origin prefix, in bytes.
pub const PREFIX_BYTES_MAX: usize = 256;

/// A rule of the log that a header breaks, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRule(pub &'static str);

impl fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header breaks a rule of the log: {}", self.0)
    }
}

impl core::error::Error for BrokenRule {}

pub(crate) fn check(rules: &[(&'static str, bool)]) -> Result<(), BrokenRule> {
    match rules.iter().find(|(_, holds)| !holds) {
        Some((rule, _)) => Err(BrokenRule(rule)),
        None => Ok(()),
    }
}

pub(crate) fn read_text(input: &mut Reader<'_>, bytes_max: usize, field: &'static str) -> Result<String, Error> {
    let bytes = input.str16()?;
    if bytes.len() > bytes_max {
        return Err(Error::Malformed(field));
    }
    core::str::from_utf8(bytes).map(String::from).map_err(|_| Error::Malformed(field))
}
