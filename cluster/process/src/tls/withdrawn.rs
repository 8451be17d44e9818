//! The list of withdrawn certificates: they are refused, although their authority signed them.
//!
//! Each line has a keyword and its value; `#` begins a comment:
//!
//! ```text
//! serial 3f:0a:11              # a serial number, in hex
//! fingerprint 9f86d081...      # SHA-256 of a certificate, in hex
//! subject CN=alice             # a subject, as the access log shows it
//! end
//! ```
//!
//! **Invariant.** A list is accepted as a whole or refused. It ends with the line `end`, so that a
//! file that is half written or was emptied is not mistaken for an empty list. A list with an
//! unknown line is refused.

use std::collections::BTreeSet;

use coppice_proto::secure::Refused;
use rustls::pki_types::CertificateDer;

use crate::identity::Identity;

/// The line that ends a list.
const END: &str = "end";
/// Hex digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 64;
/// Most hex digits of a serial number. RFC 5280 allows 20 bytes.
const SERIAL_DIGITS_MAX: usize = 40;

/// Withdrawn certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    /// In hex, without leading zeros.
    serials: BTreeSet<String>,
    fingerprints: BTreeSet<String>,
    subjects: BTreeSet<String>,
}

impl Withdrawn {
    /// Reads a list.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub fn parse(list: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(list).map_err(|_| "is not text".to_owned())?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).enumerate();
        let mut lines = lines.filter(|(_, line)| !line.is_empty());
        let mut withdrawn = Self::default();
        for (at, line) in lines.by_ref() {
            if line == END {
                return match lines.next() {
                    None => Ok(withdrawn),
                    Some((at, _)) => Err(format!("line {}: something follows the line `end`", at + 1)),
                };
            }
            withdrawn.add(line).map_err(|why| format!("line {}: {why}", at + 1))?;
        }
        Err("has no last line `end`: it may be half written".to_owned())
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let (keyword, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        match keyword {
            "serial" => {
                let digits = hex(value).filter(|digits| digits.len() <= SERIAL_DIGITS_MAX);
                let digits = digits.ok_or("a serial number is 1 to 40 hex digits, with or without colons")?;
                self.serials.insert(stripped(&digits));
            }
            "fingerprint" => {
                let digits = hex(value).filter(|digits| digits.len() == FINGERPRINT_DIGITS);
                self.fingerprints.insert(digits.ok_or("a fingerprint is 64 hex digits, with or without colons")?);
            }
            "subject" if value.is_empty() => return Err("a subject is not empty".to_owned()),
            "subject" => drop(self.subjects.insert(value.to_owned())),
            _ => return Err(format!("{keyword:?} is not one of serial, fingerprint, subject, end")),
        }
        Ok(())
    }

    /// Checks that a certificate is not in the list.
    ///
    /// # Errors
    /// Names the certificate if it is in the list.
    pub fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Refused> {
        if self == &Self::default() {
            return Ok(());
        }
        let Identity { subject, serial, fingerprint, .. } = Identity::of(certificate);
        let withdrawn = self.serials.contains(&stripped(&serial))
            || self.fingerprints.contains(&fingerprint)
            || self.subjects.contains(&subject);
        if withdrawn {
            return Err(Refused(format!("the certificate of {subject:?} (serial {serial}) was withdrawn")));
        }
        Ok(())
    }
}

/// Hex digits in lower case, without colons.
fn hex(text: &str) -> Option<String> {
    let digits = text.replace(':', "").to_ascii_lowercase();
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

fn stripped(digits: &str) -> String {
    digits.trim_start_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_a_whole_or_not_at_all() {
        let print = "ab".repeat(32);
        let text = format!("# stolen\nserial 00:3F:0a\n\nfingerprint {print} # a laptop\nsubject CN=a b\nend\n");
        let list = Withdrawn::parse(text.as_bytes()).expect("it is a list");
        assert_eq!(list.serials, ["3f0a".to_owned()].into());
        assert_eq!(list.fingerprints, [print].into());
        assert_eq!(list.subjects, ["CN=a b".to_owned()].into());
        assert_eq!(Withdrawn::parse(b"end").expect("nothing is withdrawn"), Withdrawn::default());
        let wrong = [
            ("", "no last line"),
            ("serial 3f\n", "no last line"),
            ("serial\nend", "line 1"),
            ("serial 3g\nend", "line 1"),
            ("serial 0x3f\nend", "line 1"),
            ("\nfingerprint abcd\nend", "line 2"),
            ("subject \nend", "line 1"),
            ("subjects CN=a\nend", "line 1"),
            ("3f0a\nend", "line 1"),
            ("end\nserial 3f", "line 2"),
            ("serial 000000000000000000000000000000000000000000\nend", "line 1"),
        ];
        for (text, words) in wrong {
            let refused = Withdrawn::parse(text.as_bytes()).expect_err("it is not a list");
            assert!(refused.contains(words), "{text:?}: {refused}");
        }
        assert!(Withdrawn::parse(&[0xff, b'\n']).is_err());
    }
}
