//! Who asked for an operation, as the text in its header: the authenticated name, and beside it what the caller claims.
//!
//! With TLS the text is `CN=alice (says "The Queen")`: the subject of the caller's certificate is outside of the quotes, the claim within.
//! Without TLS the name is [`UNAUTHENTICATED`]. What a coordinator does by itself is `NAME (by RULE)`, which no caller can have written.
//!
//! **Invariants.** A name holds no quote that is not escaped, and a claim neither: the first ` (says "` begins the claim, and the claim ends with
//! the text. So a claim can't pass for a name.

use alloc::{borrow::ToOwned, format, string::String};
use core::fmt::Write;

use crate::{hash::sha256, header::part::PRINCIPAL_BYTES_MAX};

/// The name of a caller that showed no certificate.
pub const UNAUTHENTICATED: &str = "unauthenticated";
/// Longest name, in bytes. Longer ones are cut, and say so ([`bounded`]).
pub const WHO_BYTES_MAX: usize = 96;
/// Longest claim, in bytes with its escapes.
pub const CLAIM_BYTES_MAX: usize = PRINCIPAL_BYTES_MAX - WHO_BYTES_MAX - BEGIN.len() - END.len();

const BEGIN: &str = " (says \"";
const END: &str = "\")";
/// Hex digits of the hash that a cut name ends with.
const HASH_DIGITS: usize = 16;

/// The text for the header: what was authenticated, and what is claimed.
///
/// Longer names are cut. `None` if the claim is longer than [`CLAIM_BYTES_MAX`] with its escapes.
#[must_use]
pub fn says(name: &str, claim: &str) -> Option<String> {
    let claim = escape(claim, &['"', '\\']);
    let name = bounded(name, WHO_BYTES_MAX);
    (claim.len() <= CLAIM_BYTES_MAX).then(|| format!("{name}{BEGIN}{claim}{END}"))
}

/// The text for the header of what a coordinator does by itself.
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

/// A text with a backslash before each of these characters.
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

/// A text in at most `max` bytes. A longer one is cut, and ends with the beginning of its SHA-256, so that it still differs from others.
///
/// # Panics
/// If there is no room for that.
#[must_use]
pub fn bounded(text: &str, max: usize) -> String {
    let ending = '…'.len_utf8() + 1 + HASH_DIGITS;
    assert!(max > ending, "a bound has room for the ending");
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max - ending).rev().find(|end| text.is_char_boundary(*end)).expect("0 is a boundary");
    let mut out = text[..end].to_owned();
    // A cut may not take the second half of an escape.
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
    fn a_claim_stands_in_quotes_beside_the_name() {
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
            // Outside of the quotes that are not escaped stands the name alone.
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
