//! Text from outside (keys, values, names, messages), made safe to show to people.
//!
//! A terminal obeys control characters. Invisible characters, and those that turn the direction of
//! writing, deceive a reader. [`escape`] writes all of them by number, so that a line stays one
//! line. The result is unambiguous: [`unescape`] returns the original bytes.

use alloc::{string::String, vec::Vec};
use core::fmt::{self, Write};

use crate::text::is_control;

/// Shows bytes on one line. Text stays as it is. Control characters below 128 and bytes that are
/// not UTF-8 become `\xNN`, other control characters become `\u{...}`, and a backslash is doubled.
#[must_use]
pub fn escape(bytes: &[u8]) -> Escaped<'_> {
    Escaped { bytes, stay: &[] }
}

/// Like [`escape`], but keeps tabs and line ends. It is for a text that stands alone, where no line
/// can be mistaken for one of another source.
#[must_use]
pub fn escape_lines(bytes: &[u8]) -> Escaped<'_> {
    Escaped { bytes, stay: &['\t', '\n'] }
}

/// The result of [`escape`]. `Display` writes it.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    stay: &'static [char],
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes.utf8_chunks() {
            chunk
                .valid()
                .chars()
                .try_for_each(|c| if self.stay.contains(&c) { f.write_char(c) } else { write_escaped(f, c) })?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Escapes all text that is written through it, like [`escape`].
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| write_escaped(&mut self.0, c))
    }
}

fn write_escaped(f: &mut (impl Write + ?Sized), c: char) -> fmt::Result {
    match c {
        '\\' => f.write_str("\\\\"),
        c if is_control(c) => write_by_number(f, c),
        c => f.write_char(c),
    }
}

fn write_by_number(f: &mut (impl Write + ?Sized), c: char) -> fmt::Result {
    let number = u32::from(c);
    if c.is_ascii() { write!(f, "\\x{number:02x}") } else { write!(f, "\\u{{{number:x}}}") }
}

/// Guards a text that joins trusted words and parts that are already escaped. Control characters
/// that remain are shown by number; backslashes stay as they are.
#[must_use]
pub fn guard(text: &str) -> String {
    guard_but(text, &[])
}

/// Like [`guard`], but keeps some characters.
#[must_use]
pub fn guard_but(text: &str, stay: &[char]) -> String {
    let mut guarded = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) && !stay.contains(&c) {
            // Writing to a `String` never fails.
            let _ = write_by_number(&mut guarded, c);
        } else {
            guarded.push(c);
        }
    }
    guarded
}

/// Writes the control characters above 127 in JSON text as `\uNNNN`, since JSON leaves them as they
/// are. The value stays the same, and a terminal obeys none of it.
#[must_use]
pub fn guard_json(text: &str) -> String {
    let mut guarded = String::with_capacity(text.len());
    for c in text.chars() {
        // Below 128, only DEL may stand in a JSON string. All other control characters there
        // separate the parts of the JSON text.
        if is_control(c) && c >= '\u{7f}' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(guarded, "\\u{unit:04x}");
            }
        } else {
            guarded.push(c);
        }
    }
    guarded
}

/// Returns the bytes of an escaped text; `None` if it has a backslash that [`escape`] never writes.
#[must_use]
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        rest = if let Some(after) = after.strip_prefix('\\') {
            bytes.push(b'\\');
            after
        } else if let Some(after) = after.strip_prefix('x') {
            bytes.push(u8::from_str_radix(digits(after.get(..2)?)?, 16).ok()?);
            &after[2..]
        } else {
            let (number, after) = after.strip_prefix("u{")?.split_once('}')?;
            let c = char::from_u32(u32::from_str_radix(digits(number)?, 16).ok()?)?;
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            after
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

/// Accepts only hex digits, because parsing a number would also accept a sign.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(text)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn every_character_and_every_byte_comes_back_and_none_controls_anything() {
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = c.to_string();
            let escaped = escape(text.as_bytes()).to_string();
            assert!(!escaped.chars().any(is_control), "{escaped:?}");
            assert_eq!(unescape(&escaped).as_deref(), Some(text.as_bytes()), "{escaped}");
        }
        for bytes in [&b"\xff\xfe"[..], b"a\x80\\x80", b"\xc2", b"\xed\xa0\x80", b"\x1b[2J\n\t\\n", b""] {
            let escaped = escape(bytes).to_string();
            assert_eq!(unescape(&escaped).as_deref(), Some(bytes), "{escaped}");
        }
    }

    #[test]
    fn what_looks_alike_is_told_apart() {
        assert_eq!(escape(b"\n").to_string(), r"\x0a");
        assert_eq!(escape(br"\x0a").to_string(), r"\\x0a");
        assert_eq!(escape("\u{85}".as_bytes()).to_string(), r"\u{85}");
        assert_eq!(escape(b"\x85").to_string(), r"\x85");
        assert_eq!(escape_lines(b"a\tb\n\x1b\\").to_string(), "a\tb\n\\x1b\\\\");
        assert_eq!(escape("grüße 你好 🦀".as_bytes()).to_string(), "grüße 你好 🦀");
        assert_eq!(escape("\u{202e}txt".as_bytes()).to_string(), r"\u{202e}txt");
    }

    #[test]
    fn controls_of_a_terminal_are_controls_and_so_are_invisible_ones() {
        for c in (0..=0x2_0000).filter_map(char::from_u32).filter(|c| c.is_control()) {
            assert!(is_control(c), "{c:?}");
        }
        for c in ['\u{200b}', '\u{200d}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{feff}', '\u{e0041}', '\u{61c}'] {
            assert!(is_control(c), "{c:?}");
        }
        for c in [' ', 'a', '~', 'ä', '\u{a0}', '你', '🦀', '…'] {
            assert!(!is_control(c), "{c:?}");
        }
    }

    #[test]
    fn what_is_not_an_escape_is_refused() {
        for text in ["\\", "\\n", "\\x", "\\x0", "\\xzz", "\\x+1", "\\u", "\\u{", "\\u{}", "\\u{d800}", "\\u{+41}"] {
            assert_eq!(unescape(text), None, "{text}");
        }
        assert_eq!(unescape("\\xä"), None);
    }

    #[test]
    fn guarded_text_keeps_its_backslashes_and_json_its_value() {
        assert_eq!(guard("a\\x0a\nb\u{9b}"), "a\\x0a\\x0ab\\u{9b}");
        assert_eq!(guard_but("a\tb\n", &['\t', '\n']), "a\tb\n");
        assert_eq!(guard_json("{\"a\":\"\u{9b}\u{e0041}ä\"}\n"), "{\"a\":\"\\u009b\\udb40\\udc41ä\"}\n");
        let mut line = String::new();
        Escaping(&mut line).write_str("a\u{1b}[2J\\").expect("a string takes it");
        assert_eq!(line, "a\\x1b[2J\\\\");
    }
}
