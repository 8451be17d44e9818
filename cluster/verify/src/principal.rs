//! The principal of an operation: the text in its header that says which party asked for it
//! (`docs/verification.md` section 9).
//!
//! With TLS the text is `CN=alice (says "The Queen")`: the authenticated subject of the caller's
//! certificate stands outside of the quotes, the caller's own claim within. Without TLS the name is
//! [`UNAUTHENTICATED`]. For an operation by a rule of a coordinator, it is `NAME (by RULE)`, which
//! no caller can have written.
//!
//! **Invariants.** Names and claims contain no unescaped quote. The first ` (says "` begins the
//! claim, and the claim ends with the text. So no claim can be taken for a name.

use alloc::{borrow::ToOwned, format, string::String};
use core::fmt::Write;

use crate::{hash::sha256, header::part::PRINCIPAL_BYTES_MAX};

/// The name of a caller that showed no certificate.
pub const UNAUTHENTICATED: &str = "unauthenticated";
/// Longest name, in bytes. Longer names are cut by [`bounded`].
pub const WHO_BYTES_MAX: usize = 96;
/// Longest claim with its escapes, in bytes.
pub const CLAIM_BYTES_MAX: usize = PRINCIPAL_BYTES_MAX - WHO_BYTES_MAX - BEGIN.len() - END.len();

const BEGIN: &str = " (says \"";
const END: &str = "\")";
/// Hex digits of the hash at the end of a cut name.
const HASH_DIGITS: usize = 16;

/// The principal of a caller: the authenticated name, and the caller's claim.
///
/// Names longer than [`WHO_BYTES_MAX`] are cut. `None` if the claim with its escapes is longer than
/// [`CLAIM_BYTES_MAX`].
#[must_use]
pub fn says(name: &str, claim: &str) -> Option<String> {
    let claim = escape(claim, &['"', '\\']);
    let name = bounded(name, WHO_BYTES_MAX);
    (claim.len() <= CLAIM_BYTES_MAX).then(|| format!("{name}{BEGIN}{claim}{END}"))
}

/// The principal of an operation that a coordinator carries out by a rule of its own.
#[must_use]
pub fn by_rule(name: &str, rule: &str) -> String {
    let (name, rule) = (bounded(name, WHO_BYTES_MAX), bounded(rule, CLAIM_BYTES_MAX));
    format!("{name} (by {rule})")
}

/// The claim in a text that [`says`] made; `None` for any other text.
#[must_use]
pub fn claim_of(principal: &str) -> Option<String> {
    let (_, claim) = principal.strip_suffix(END)?.split_once(BEGIN)?;
    let mut out = String::with_capacity(claim.len());
    let mut chars = claim.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => out.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            _ => out.push(c),
        }
    }
    Some(out)
}

/// The text with a backslash before each of the `special` characters.
#[must_use]
pub fn escape(text: &str, special: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if special.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The text in at most `max` bytes. A longer text is cut, and ends with the first digits of its
/// SHA-256, so that different texts stay different.
///
/// # Panics
/// If `max` leaves no room for the digits.
#[must_use]
pub fn bounded(text: &str, max: usize) -> String {
    let ending = '…'.len_utf8() + 1 + HASH_DIGITS;
    assert!(max > ending, "a bound has room for the ending");
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max - ending).rev().find(|end| text.is_char_boundary(*end)).expect("0 is a boundary");
    let mut out = text[..end].to_owned();
    // The cut must not separate a backslash from the character that it escapes.
    if out.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
        out.pop();
    }
    out.push_str("…#");
    for byte in &sha256(text.as_bytes()).0[..HASH_DIGITS / 2] {
        write!(out, "{byte:02x}").expect("a string takes all");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_stands_in_quotes_after_the_name() {
        assert_eq!(says("CN=op", "The Queen").as_deref(), Some("CN=op (says \"The Queen\")"));
        let long =
            says(&"n".repeat(1000), &"c".repeat(CLAIM_BYTES_MAX)).expect("the claim is no longer than it may be");
        assert!(long.len() <= PRINCIPAL_BYTES_MAX, "{}", long.len());
        assert_eq!(says("CN=op", &"c".repeat(CLAIM_BYTES_MAX + 1)), None);
        assert_eq!(says("CN=op", &"\"".repeat(CLAIM_BYTES_MAX / 2 + 1)), None, "escapes count");
    }

    #[test]
    fn no_claim_passes_for_a_name_and_every_claim_is_read_back() {
        let claims =
            ["", "x", "The \"Queen\"", "\\", "\\\"", "x\") CN=alice (says \"y", "a (by retention policy)", "\")"];
        for claim in claims {
            let text = says("CN=op", claim).expect("it is short");
            assert_eq!(claim_of(&text).as_deref(), Some(claim), "{text}");
            // The name alone stands outside of unescaped quotes.
            let (mut outside, mut quoted, mut escaped) = (String::new(), false, false);
            for c in text.chars() {
                match c {
                    '"' if !escaped => quoted = !quoted,
                    c if !quoted => outside.push(c),
                    _ => {}
                }
                escaped = c == '\\' && !escaped;
            }
            assert_eq!(outside, "CN=op (says )", "{text}");
        }
        for other in
            ["", "retention policy", "c (by retention policy)", "x (says \"y", "x (says \"a\"b\")", "x (says \"\\n\")"]
        {
            assert_eq!(claim_of(other), None, "{other}");
        }
        assert_eq!(claim_of(&by_rule("coordinator-1", "retention policy")), None);
    }

    #[test]
    fn a_name_that_is_cut_differs_from_other_long_names() {
        let long = |end: char| bounded(&format!("{}{end}", "ä".repeat(200)), WHO_BYTES_MAX);
        assert_ne!(long('a'), long('b'));
        assert!(long('a').len() <= WHO_BYTES_MAX);
        assert_eq!(bounded("short", WHO_BYTES_MAX), "short");
        for backslashes in 70..90 {
            let text = format!("{}{}", "\\".repeat(backslashes), "\"".repeat(40));
            let (kept, _) = text.split_at(bounded(&text, WHO_BYTES_MAX).find('…').expect("it was cut"));
            assert_eq!(kept.chars().rev().take_while(|c| *c == '\\').count() % 2, 0);
        }
    }
}
