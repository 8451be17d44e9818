//! Policies: which logs are trusted, and which witnesses must have cosigned (C2SP `tlog-policy`;
//! `docs/verification.md` section 10).
//!
//! This code is stricter where the draft leaves room: a name is given once, and keys are not of
//! small order. Keys of witnesses are of type 04 (Ed25519) or 06 (ML-DSA-44).

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::fmt;

use crate::{
    checkpoint::Checkpoint,
    cosignature::WitnessKey,
    note::{self, VerifierKey, split_line, split_note},
};

/// Longest policy, in bytes.
pub const POLICY_BYTES_MAX: usize = 256 << 10;
/// Most logs of a policy.
pub const LOGS_MAX: usize = 256;
/// Most witnesses and groups of a policy, together.
pub const NAMES_MAX: usize = 256;

/// The reason why a policy file is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Number of the wrong line, from 1 on; 0 for the file as a whole.
    pub line: usize,
    /// The rule that the line breaks.
    pub cause: &'static str,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(self.cause),
            line => write!(f, "line {line}: {}", self.cause),
        }
    }
}

impl core::error::Error for Error {}

/// A policy: says which checkpoints are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    logs: Vec<VerifierKey>,
    named: Vec<Named>,
    /// Index of the witness or group that must have cosigned; `None` if no cosignature is needed.
    quorum: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: Vec<u8>,
    what: What,
    /// Whether it is a member of a group.
    taken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Witness(Box<Witness>),
    Group { threshold: usize, members: Vec<usize> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Witness {
    key: WitnessKey,
    url: Option<Vec<u8>>,
}

/// A checkpoint as a policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The log of the policy that signed it.
    pub log: VerifierKey,
    /// The witnesses of the policy that cosigned it.
    pub cosignatures: Vec<Cosigned>,
    /// Whether the cosignatures reach the policy's quorum.
    pub quorum: bool,
}

/// A witness that cosigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cosigned {
    /// The witness's name in the policy, as bytes.
    pub witness: Vec<u8>,
    /// The name of the witness's key.
    pub key_name: String,
    /// Time of its newest cosignature, in seconds since 1970.
    pub time: u64,
}

impl Policy {
    /// Parses a policy file.
    ///
    /// # Errors
    /// Names the first wrong line.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let whole = |cause| Err(Error { line: 0, cause });
        if bytes.len() > POLICY_BYTES_MAX {
            return whole("the policy is too long");
        }
        let mut reader =
            PolicyReader { policy: Self { logs: Vec::new(), named: Vec::new(), quorum: None }, closed: false };
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            reader.line(line).map_err(|cause| Error { line: index + 1, cause })?;
        }
        if reader.closed { Ok(reader.policy) } else { whole("there is no quorum line") }
    }

    /// The keys of the trusted logs.
    #[must_use]
    pub fn logs(&self) -> &[VerifierKey] {
        &self.logs
    }

    /// Restricts the policy to this log. A policy file may leave the logs to the caller; if it
    /// names some, the key must be one of them. Returns false, and changes nothing, if it is not.
    #[must_use]
    pub fn believe_only(&mut self, key: &VerifierKey) -> bool {
        let may = self.logs.is_empty() || self.logs.contains(key);
        if may {
            self.logs = Vec::from([key.clone()]);
        }
        may
    }

    /// Trusts the key to which one of the logs has changed its own. A witness's key is not added,
    /// since its holder would vouch for itself.
    pub(crate) fn believe_successor(&mut self, key: &VerifierKey) {
        let of_witness = self.witnesses().any(|(_, witness, _)| *witness.key_bytes() == key.public_key());
        if !of_witness && !self.logs.contains(key) {
            self.logs.push(key.clone());
        }
    }

    /// Names, keys and URLs of the witnesses.
    pub fn witnesses(&self) -> impl Iterator<Item = (&[u8], &WitnessKey, Option<&[u8]>)> {
        self.named.iter().filter_map(|named| match &named.what {
            What::Witness(witness) => Some((named.name.as_slice(), &witness.key, witness.url.as_deref())),
            What::Group { .. } => None,
        })
    }

    /// Whether cosignatures by these keys reach the quorum.
    #[must_use]
    pub fn is_reached_by(&self, keys: &[&WitnessKey]) -> bool {
        let cosigned = |named: &Named| match &named.what {
            What::Witness(witness) => keys.contains(&&witness.key),
            What::Group { .. } => false,
        };
        let times: Vec<Option<u64>> = self.named.iter().map(|named| cosigned(named).then_some(1)).collect();
        self.is_reached(&times)
    }

    /// Opens a checkpoint of one of the logs, and counts its cosignatures. Too few cosignatures are
    /// not an error here: see [`Examined::quorum`].
    ///
    /// # Errors
    /// If the bytes are not a checkpoint, no log whose name is the origin has signed it, or a line
    /// of any key of the policy does not verify.
    pub fn examine(&self, note: &[u8]) -> Result<Examined, note::Error> {
        let (text, lines) = split_note(note)?;
        let checkpoint = Checkpoint::parse(text)?;
        let mut log = None;
        let mut times: Vec<Option<u64>> = self.named.iter().map(|_| None).collect();
        for line in lines.lines() {
            let line = split_line(line)?;
            for key in self.logs.iter().filter(|key| key.is_of(&line)) {
                if !key.verifies(text.as_bytes(), &line.signature) {
                    return Err(note::Error::BadSignature);
                }
                // A log of the policy must not speak for another log.
                log = log.or_else(|| Some(key).filter(|key| key.name() == checkpoint.origin));
            }
            for (named, time) in self.named.iter().zip(&mut times) {
                if let What::Witness(witness) = &named.what
                    && witness.key.is_of(&line)
                {
                    // A cosignature with time 0 does not say that the tree was the largest that its
                    // witness had seen.
                    *time = (*time).max(Some(witness.key.time_of(text, &line)?).filter(|time| *time > 0));
                }
            }
        }
        let log = log.ok_or(note::Error::Unsigned)?.clone();
        Ok(Examined { checkpoint, log, quorum: self.is_reached(&times), cosignatures: self.cosignatures(&times) })
    }

    /// The witnesses with sound lines on both notes, which have a time above 0; each with its
    /// newest line on both. Unlike in [`Policy::examine`], other lines count for nothing: a party
    /// that shows a note can add them, and must not protect a witness by that.
    pub(crate) fn cosigned_both(&self, a: &[u8], b: &[u8]) -> Vec<(Cosigned, Cosigned)> {
        let (of_a, of_b) = (self.sound_times(a), self.sound_times(b));
        let both = |times: &[Option<u64>], others: &[Option<u64>]| -> Vec<Option<u64>> {
            times.iter().zip(others).map(|(time, other)| time.filter(|_| other.is_some())).collect()
        };
        let (a, b) = (self.cosignatures(&both(&of_a, &of_b)), self.cosignatures(&both(&of_b, &of_a)));
        a.into_iter().zip(b).collect()
    }

    /// Whether a line is of a witness.
    pub(crate) fn knows(&self, line: &note::Line<'_>) -> bool {
        self.witnesses().any(|(_, key, _)| key.is_of(line))
    }

    /// The time of the newest sound line of each witness.
    fn sound_times(&self, note: &[u8]) -> Vec<Option<u64>> {
        let mut times: Vec<Option<u64>> = self.named.iter().map(|_| None).collect();
        let Ok((text, lines)) = split_note(note) else { return times };
        for line in lines.lines().filter_map(|line| split_line(line).ok()) {
            for (named, time) in self.named.iter().zip(&mut times) {
                if let What::Witness(witness) = &named.what
                    && witness.key.is_of(&line)
                {
                    *time = (*time).max(witness.key.time_of(text, &line).ok().filter(|time| *time > 0));
                }
            }
        }
        times
    }

    fn cosignatures(&self, times: &[Option<u64>]) -> Vec<Cosigned> {
        let cosigned = self.named.iter().zip(times).filter_map(|(named, time)| {
            let What::Witness(witness) = &named.what else { return None };
            let key_name = witness.key.name().to_owned();
            Some(Cosigned { witness: named.name.clone(), key_name, time: (*time)? })
        });
        cosigned.collect()
    }

    /// Whether the quorum has cosigned. Members of a group are defined above it, so one pass is
    /// enough.
    fn is_reached(&self, times: &[Option<u64>]) -> bool {
        let mut reached: Vec<bool> = Vec::with_capacity(self.named.len());
        for (named, time) in self.named.iter().zip(times) {
            reached.push(match &named.what {
                What::Witness(_) => time.is_some(),
                What::Group { threshold, members } => {
                    members.iter().filter(|member| reached[**member]).count() >= *threshold
                }
            });
        }
        self.quorum.is_none_or(|index| reached[index])
    }
}

/// A policy that is being parsed.
struct PolicyReader {
    policy: Policy,
    /// Whether the quorum line was parsed.
    closed: bool,
}

impl PolicyReader {
    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        if line.iter().any(|byte| matches!(byte, 0..=8 | 10..=0x1f | 0x7f)) {
            return Err("a control character");
        }
        let words: Vec<&[u8]> =
            line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            [] => Ok(()),
            [first, ..] if first.starts_with(b"#") => Ok(()),
            [b"log", vkey] | [b"log", vkey, _] => self.log(vkey),
            [b"witness", name, vkey] => self.witness(name, vkey, None),
            [b"witness", name, vkey, url] => self.witness(name, vkey, Some(url)),
            [b"group", name, threshold, members @ ..] => self.group(name, threshold, members),
            [b"quorum", name] => self.quorum(name),
            [b"log" | b"witness" | b"group" | b"quorum", ..] => Err("too few or too many words"),
            _ => Err("neither log, witness, group nor quorum"),
        }
    }

    fn log(&mut self, vkey: &[u8]) -> Result<(), &'static str> {
        let vkey = core::str::from_utf8(vkey).map_err(|_| "the key is not UTF-8")?;
        let key = VerifierKey::parse(vkey).map_err(|_| "not the key of a log")?;
        if self.policy.logs.len() >= LOGS_MAX {
            return Err("too many logs");
        }
        if self.policy.logs.iter().any(|other| other.public_key() == key.public_key()) {
            return Err("the key of another log");
        }
        if self.has_witness(&key.public_key()) {
            return Err("the key of a witness");
        }
        self.policy.logs.push(key);
        Ok(())
    }

    fn witness(&mut self, name: &[u8], vkey: &[u8], url: Option<&[u8]>) -> Result<(), &'static str> {
        let vkey = core::str::from_utf8(vkey).map_err(|_| "the key is not UTF-8")?;
        let key = WitnessKey::parse(vkey).map_err(|_| "not the key of a witness")?;
        if self.has_witness(key.key_bytes()) {
            return Err("the key of another witness");
        }
        // The key's holder would vouch for itself.
        if self.policy.logs.iter().any(|log| log.public_key() == *key.key_bytes()) {
            return Err("the key of a log");
        }
        self.define(name, What::Witness(Box::new(Witness { key, url: url.map(<[u8]>::to_vec) })))
    }

    fn has_witness(&self, key: &[u8]) -> bool {
        let is_known = |named: &Named| matches!(&named.what, What::Witness(witness) if witness.key.key_bytes() == key);
        self.policy.named.iter().any(is_known)
    }

    fn group(&mut self, name: &[u8], threshold: &[u8], words: &[&[u8]]) -> Result<(), &'static str> {
        let mut members = Vec::with_capacity(words.len());
        for word in words {
            let index = self.find(word)?;
            if core::mem::replace(&mut self.policy.named[index].taken, true) {
                return Err("a member of two groups, or twice of one");
            }
            members.push(index);
        }
        let threshold = match threshold {
            b"all" => Some(members.len()),
            b"any" => Some(1),
            digits => decimal(digits),
        };
        let threshold = threshold.filter(|threshold| (1..=members.len()).contains(threshold));
        self.define(
            name,
            What::Group { threshold: threshold.ok_or("the group needs 1 to all of its members")?, members },
        )
    }

    fn quorum(&mut self, name: &[u8]) -> Result<(), &'static str> {
        if core::mem::replace(&mut self.closed, true) {
            return Err("a second quorum line");
        }
        self.policy.quorum = if name == b"none" { None } else { Some(self.find(name)?) };
        Ok(())
    }

    fn find(&self, name: &[u8]) -> Result<usize, &'static str> {
        self.policy.named.iter().position(|named| named.name == name).ok_or("a name that is not defined above")
    }

    fn define(&mut self, name: &[u8], what: What) -> Result<(), &'static str> {
        if name == b"none" || self.find(name).is_ok() {
            return Err("the name is taken");
        }
        if self.policy.named.len() >= NAMES_MAX {
            return Err("too many witnesses and groups");
        }
        self.policy.named.push(Named { name: name.to_vec(), what, taken: false });
        Ok(())
    }
}

/// A number without sign and leading zeros.
fn decimal(digits: &[u8]) -> Option<usize> {
    let canonical = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    if !canonical || digits.len() > 6 {
        return None;
    }
    Some(digits.iter().fold(0, |value, digit| value * 10 + usize::from(digit - b'0')))
}
