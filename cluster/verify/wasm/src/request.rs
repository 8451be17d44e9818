//! Requests: what the host asks for, and under which keys.

use alloc::vec::Vec;

use coppice_types::{Digest, Version};
use coppice_verify::{
    check::{Question, Subject},
    report::Encoding,
};

/// Most trusted keys.
const KEYS_MAX: usize = 16;

/// A request, as far as its fields tell. Each field but `keys` and `expected_keys` stands at most
/// once.
#[derive(Default)]
pub struct Request<'r> {
    /// 1: the proof file, or the evidence file.
    pub file: Option<&'r [u8]>,
    /// 2: texts of trusted keys.
    pub keys: Vec<&'r [u8]>,
    /// 3: text of a policy.
    pub policy: Option<&'r [u8]>,
    /// 4: a newer checkpoint: a standing proof file, or a signed note.
    pub newer: Option<&'r [u8]>,
    /// 5: keys that the proof must answer for.
    expected_keys: Vec<&'r [u8]>,
    /// 6: the lowest key of the range that the proof must cover.
    low: Option<&'r [u8]>,
    /// 7: the key above that range; if it is empty or missing, the range has no end.
    high: Option<&'r [u8]>,
    /// 8: hash of the batch that the receipt must be for, in hex.
    batch: Option<&'r [u8]>,
    /// 9: version that the proof must be of, in decimal digits.
    version: Option<&'r [u8]>,
    /// 10: encoding of bytes in the answer: `utf8` or `hex`.
    encoding: Option<&'r [u8]>,
}

/// The reason why a request makes no sense.
pub type Misuse = &'static str;

impl<'r> Request<'r> {
    pub fn parse(mut bytes: &'r [u8]) -> Result<Self, Misuse> {
        let mut request = Self::default();
        while let [kind, a, b, c, d, rest @ ..] = bytes {
            let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let (field, rest) = rest.split_at_checked(len).ok_or("a field of the request is cut short")?;
            request.put(*kind, field)?;
            bytes = rest;
        }
        if bytes.is_empty() { Ok(request) } else { Err("the request is cut short") }
    }

    fn put(&mut self, kind: u8, field: &'r [u8]) -> Result<(), Misuse> {
        let place = match kind {
            2 if self.keys.len() >= KEYS_MAX => return Err("more than 16 trusted keys"),
            2 => {
                self.keys.push(field);
                return Ok(());
            }
            5 if field.is_empty() => return Err("a key must have at least one byte"),
            5 => {
                self.expected_keys.push(field);
                return Ok(());
            }
            1 => &mut self.file,
            3 => &mut self.policy,
            4 => &mut self.newer,
            6 => &mut self.low,
            7 => &mut self.high,
            8 => &mut self.batch,
            9 => &mut self.version,
            10 => &mut self.encoding,
            _ => return Err("a field of an unknown kind"),
        };
        if place.replace(field).is_some() { Err("a field that stands twice") } else { Ok(()) }
    }

    /// The question that the proof must answer.
    pub fn question(&self) -> Result<Question<'r>, Misuse> {
        let batch = self.batch.map(digest).transpose()?;
        let version = self.version.map(number).transpose()?.map(Version);
        if self.low.is_none() && self.high.is_some() {
            return Err("a range has a low key");
        }
        let asked = [!self.expected_keys.is_empty(), self.low.is_some(), batch.is_some()];
        if asked.iter().filter(|asked| **asked).count() > 1 {
            return Err("keys, a range and a batch exclude each other");
        }
        let subject = match (self.low, batch) {
            (Some(low), _) => Some(Subject::Range { low, high: self.high.filter(|high| !high.is_empty()) }),
            (None, Some(batch)) => Some(Subject::Batch(batch)),
            (None, None) => asked[0].then(|| Subject::Keys(self.expected_keys.clone())),
        };
        Ok(Question { subject, version, epoch: None })
    }

    /// Refuses a request for evidence that has fields for proof files alone.
    pub fn check_no_question(&self) -> Result<(), Misuse> {
        let Self { file: _, keys: _, policy: _, newer, expected_keys, low, high, batch, version, encoding } = self;
        let given = [newer, low, high, batch, version, encoding].iter().any(|field| field.is_some());
        if given || !expected_keys.is_empty() { Err("a field that evidence has not") } else { Ok(()) }
    }

    pub fn encoding(&self) -> Result<Option<Encoding>, Misuse> {
        match self.encoding {
            None => Ok(None),
            Some(b"utf8") => Ok(Some(Encoding::Utf8)),
            Some(b"hex") => Ok(Some(Encoding::Hex)),
            Some(_) => Err("the encoding is neither utf8 nor hex"),
        }
    }
}

fn digest(hex: &[u8]) -> Result<Digest, Misuse> {
    const WRONG: Misuse = "a hash must have 64 hex digits";
    let digits = hex.strip_prefix(b"0x").unwrap_or(hex);
    let mut digest = [0; 32];
    if digits.len() != 64 {
        return Err(WRONG);
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let digit = char::from(*digit).to_digit(16).ok_or(WRONG)?;
            *byte = *byte << 4 | digit as u8;
        }
    }
    Ok(Digest(digest))
}

fn number(digits: &[u8]) -> Result<u64, Misuse> {
    const WRONG: Misuse = "a version must be a number from 0 to 18446744073709551615";
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = core::str::from_utf8(digits).ok().filter(|_| is_number).ok_or(WRONG)?;
    digits.parse().map_err(|_| WRONG)
}
