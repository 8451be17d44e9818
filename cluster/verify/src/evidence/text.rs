//! The text of an evidence file (`docs/verification.md` section 20). Each value has one spelling.

use alloc::{borrow::Cow, format, string::String, vec::Vec};

use coppice_types::{
    Digest,
    codec::{Reader, Writer},
};

use super::{EVIDENCE_BYTES_MAX, Evidence, Failure, PATH_MAX, Shown, Step, TooLong};
use crate::{
    base64,
    header::HEADER_BYTES_MAX,
    keys::{KEY_CHANGES_MAX, KeyChange},
    note::NOTE_BYTES_MAX,
};

/// First line of every evidence file of this format.
const MAGIC: &str = "coppice-evidence/v1";
pub(super) const CONTRADICTION: &str = "contradiction";
pub(super) const LATE: &str = "late";
/// Upper bound of sizes and indices, exclusive.
const SIZE_MAX: u64 = 1 << 63;

impl<'a> Evidence<'a> {
    /// Decodes a file. No signature or proof is checked.
    ///
    /// # Errors
    /// [`Step::Format`] with the first malformed part.
    pub fn decode(file: &'a [u8]) -> Result<Self, Failure> {
        if file.len() > EVIDENCE_BYTES_MAX {
            return Err(malformed("longer than 256 KiB"));
        }
        let mut lines = Lines { rest: file };
        if lines.line("the first line")? != MAGIC {
            return Err(malformed("not an evidence file of this format"));
        }
        let kind = lines.line("the kind of evidence")?;
        let key_changes = lines.all("key ", KEY_CHANGES_MAX, "key change", key_change)?;
        let shown = match kind {
            CONTRADICTION => Shown::Root {
                size: lines.field("size ", "size", |text| decimal(text, SIZE_MAX))?,
                root: lines.field("root ", "root", digest)?,
            },
            LATE => Shown::KeyChange {
                index: lines.field("index ", "index", |text| decimal(text, SIZE_MAX))?,
                entry: Cow::Owned(lines.field("entry ", "entry", |text| binary(text, HEADER_BYTES_MAX))?),
            },
            _ => return Err(malformed("neither contradiction nor late")),
        };
        let path = lines.all("proof ", PATH_MAX, "hash of the proof", digest)?;
        let (a, b) = (lines.note("a ", "note a")?, lines.note("b ", "note b")?);
        if !lines.rest.is_empty() {
            return Err(malformed("bytes behind note b"));
        }
        Ok(Self { key_changes, shown, path, a: Cow::Borrowed(a), b: Cow::Borrowed(b) })
    }
}

impl Evidence<'_> {
    /// The bytes of the file.
    ///
    /// # Errors
    /// If something is beyond a limit of the format.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let kind = match self.shown {
            Shown::Root { .. } => CONTRADICTION,
            Shown::KeyChange { .. } => LATE,
        };
        let mut text = format!("{MAGIC}\n{kind}\n");
        for change in &self.key_changes {
            let mut body = Writer::new();
            change.encode(&mut body);
            line(&mut text, "key", &body.into_bytes());
        }
        match &self.shown {
            Shown::Root { size, root } => {
                text.push_str(&format!("size {size}\n"));
                line(&mut text, "root", root.as_bytes());
            }
            Shown::KeyChange { index, entry } => {
                text.push_str(&format!("index {index}\n"));
                line(&mut text, "entry", entry);
            }
        }
        self.path.iter().for_each(|hash| line(&mut text, "proof", hash.as_bytes()));
        let mut out = text.into_bytes();
        for (name, note) in [("a", &self.a), ("b", &self.b)] {
            out.extend_from_slice(format!("{name} {}\n", note.len()).as_bytes());
            out.extend_from_slice(note);
        }
        // The decoder knows all limits.
        let fits = Evidence::decode(&out).is_ok_and(|decoded| decoded == *self);
        if fits { Ok(out) } else { Err(TooLong) }
    }
}

fn malformed(part: &'static str) -> Failure {
    Failure::rule(Step::Format, part)
}

fn line(text: &mut String, name: &str, bytes: &[u8]) {
    text.push_str(&format!("{name} {}\n", base64::encode(bytes)));
}

/// The part of a file that is not read yet.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// The next line without its line feed.
    fn line(&mut self, part: &'static str) -> Result<&'a str, Failure> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or(malformed(part))?;
        let line = core::str::from_utf8(&self.rest[..end]).map_err(|_| malformed(part))?;
        self.rest = &self.rest[end + 1..];
        Ok(line)
    }

    /// The value of a line that begins with `prefix`.
    fn field<T>(
        &mut self,
        prefix: &str,
        part: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Failure> {
        self.line(part)?.strip_prefix(prefix).and_then(read).ok_or(malformed(part))
    }

    /// The values of all next lines that begin with `prefix`.
    fn all<T>(
        &mut self,
        prefix: &str,
        most: usize,
        part: &'static str,
        read: fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let mut found = Vec::new();
        while self.rest.starts_with(prefix.as_bytes()) {
            if found.len() == most {
                return Err(malformed(part));
            }
            found.push(self.field(prefix, part, read)?);
        }
        Ok(found)
    }

    /// A note, behind a line with its length.
    fn note(&mut self, prefix: &str, part: &'static str) -> Result<&'a [u8], Failure> {
        let most = NOTE_BYTES_MAX as u64 + 1;
        let length = self.field(prefix, part, |text| decimal(text, most))?;
        let (note, rest) = self.rest.split_at_checked(length as usize).ok_or(malformed(part))?;
        self.rest = rest;
        Ok(note)
    }
}

/// A number below `end`, without sign and leading zeros.
fn decimal(text: &str, end: u64) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number < end && format!("{number}") == text).then_some(number)
}

fn digest(text: &str) -> Option<Digest> {
    Digest::from_slice(&binary(text, 32)?)
}

fn binary(text: &str, most: usize) -> Option<Vec<u8>> {
    base64::decode(text).filter(|bytes| bytes.len() <= most)
}

fn key_change(text: &str) -> Option<KeyChange> {
    let bytes = base64::decode(text)?;
    let mut input = Reader::new(&bytes);
    let change = KeyChange::decode(&mut input).ok()?;
    (input.remaining() == 0).then_some(change)
}
