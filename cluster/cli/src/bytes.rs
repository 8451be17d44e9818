//! Bytes on the command line and in answers.
//!
//! Input is text, `0x` and hex, `@` and a file (`@-`: standard input), `text:` and any text, or
//! `esc:` and what a command printed. Output for machines is text if the bytes are valid UTF-8,
//! else hex. Output for people is [`escape`]d, so that no key, value or name drives a terminal or
//! looks like a line of the command.

use std::path::Path;

use coppice_types::escape::{escape, unescape};

use crate::{
    args::Encoding,
    failure::Failure,
    input,
    text::{safe, shorten},
};

/// Bytes as they are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// The text, or hex with `0x` in front.
    pub text: String,
    /// `utf8` or `hex`.
    pub encoding: &'static str,
}

/// Reads a key or value from the command line.
///
/// # Errors
/// If the hex is malformed, or the file can't be read.
pub fn parse(argument: &str) -> Result<Vec<u8>, Failure> {
    if let Some(text) = argument.strip_prefix("text:") {
        return Ok(text.as_bytes().to_vec());
    }
    if let Some(path) = argument.strip_prefix('@') {
        return input::read(Path::new(path))
            .map_err(|failure| failure.hint("`text:` in front of a key or value takes it as it is, `@` included."));
    }
    if let Some(escaped) = argument.strip_prefix("esc:") {
        return unescape(escaped).ok_or_else(|| {
            Failure::usage(format!("`{}` has a backslash that no command prints", shorten(escaped, 80)))
                .hint("A backslash itself is doubled; other escapes are \\xNN and \\u{...}.")
        });
    }
    if argument.starts_with("0x") {
        return parse_hex(argument)
            .map_err(|failure| failure.hint("`text:` in front of a key or value takes it as it is, `0x` included."));
    }
    Ok(argument.as_bytes().to_vec())
}

/// Reads a key. An empty one is refused here, before the ledger would do it.
pub fn parse_key(argument: &str) -> Result<Vec<u8>, Failure> {
    let key = parse(argument)?;
    if key.is_empty() {
        return Err(Failure::usage("a key must have at least one byte"));
    }
    Ok(key)
}

/// Reads `KEY=VALUE`, split at the first `=`.
pub fn parse_pair(argument: &str) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let (key, value) = split_pair(argument)?;
    Ok((parse_key(key)?, parse(value)?))
}

/// Splits `KEY=VALUE` at the first `=`.
pub fn split_pair(argument: &str) -> Result<(&str, &str), Failure> {
    argument.split_once('=').ok_or_else(|| {
        Failure::usage(format!("`{}` is not KEY=VALUE", safe(argument)))
            .hint("A key with a `=` in it must be written in hex, with `0x` in front.")
    })
}

/// Reads hex, with or without `0x`.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(digits).map_err(|error| Failure::usage(format!("`{}` is not hex: {error}", shorten(&safe(text), 80))))
}

/// The form of bytes in a JSON object.
///
/// # Errors
/// If text is asked for and the bytes are not valid UTF-8.
pub fn print(bytes: &[u8], encoding: Option<Encoding>) -> Result<Printed, Failure> {
    let text = match encoding {
        Some(Encoding::Hex) => None,
        _ => std::str::from_utf8(bytes).ok(),
    };
    match (text, encoding) {
        (Some(text), _) => Ok(Printed { text: text.to_owned(), encoding: "utf8" }),
        (None, Some(Encoding::Utf8)) => Err(no_text()),
        (None, _) => Ok(Printed { text: hex(bytes), encoding: "hex" }),
    }
}

/// The form of bytes for people, on one line: escaped, or as hex if that is asked for.
///
/// # Errors
/// If text is asked for and the bytes are not valid UTF-8.
pub fn show(bytes: &[u8], encoding: Option<Encoding>) -> Result<String, Failure> {
    match encoding {
        Some(Encoding::Hex) => Ok(hex(bytes)),
        Some(Encoding::Utf8) => check(bytes).map(|()| escape(bytes).to_string()),
        None => Ok(escape(bytes).to_string()),
    }
}

/// Refuses bytes that are not valid UTF-8.
pub fn check(bytes: &[u8]) -> Result<(), Failure> {
    std::str::from_utf8(bytes).map(drop).map_err(|_| no_text())
}

fn hex(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

/// The failure if text is asked for and there is none.
pub fn no_text() -> Failure {
    Failure::usage("the answer has bytes that are not UTF-8 text").hint("Use --encoding hex, or leave --encoding out.")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::failure::Code;

    #[test]
    fn every_form_of_input_is_read() {
        let cases: [(&str, &[u8]); 9] = [
            ("plain", b"plain"),
            ("0x00ff", &[0, 255]),
            ("0x", b""),
            ("text:0x00", b"0x00"),
            ("text:@file", b"@file"),
            ("text:text:", b"text:"),
            ("grüße", "grüße".as_bytes()),
            ("esc:\\x1b\\\\\\u{202e}", "\u{1b}\\\u{202e}".as_bytes()),
            ("esc:\\xff", &[255]),
        ];
        for (argument, expected) in cases {
            assert_eq!(parse(argument).expect(argument), expected, "{argument}");
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("value");
        fs::write(&path, [0xfe, 0x01]).expect("a file can be written");
        assert_eq!(parse(&format!("@{}", path.display())).expect("a file"), [0xfe, 0x01]);
    }

    #[test]
    fn wrong_input_is_wrong_usage() {
        for argument in ["0x0", "0xzz", "@/nowhere/at/all", "esc:\\n"] {
            let failure = parse(argument).expect_err(argument);
            assert_eq!(failure.code, Code::Usage, "{argument}");
            assert!(failure.hint.is_some_and(|hint| hint.contains("text:") || hint.contains("\\xNN")), "{argument}");
        }
        assert!(parse_key("").is_err() && parse_key("text:").is_err() && parse_key("0x").is_err());
        assert!(parse_pair("no-equals").is_err() && parse_pair("=value").is_err());
        assert_eq!(parse_pair("k=a=b").expect("first one splits"), (b"k".to_vec(), b"a=b".to_vec()));
    }

    #[test]
    fn bytes_are_printed_as_asked() {
        type Case<'a> = (&'a [u8], Option<Encoding>, Option<(&'a str, &'a str)>);
        let cases: [Case<'_>; 6] = [
            (b"abc", None, Some(("abc", "utf8"))),
            (&[0xff], None, Some(("0xff", "hex"))),
            (b"abc", Some(Encoding::Hex), Some(("0x616263", "hex"))),
            (b"", Some(Encoding::Hex), Some(("0x", "hex"))),
            (b"0xff", Some(Encoding::Utf8), Some(("0xff", "utf8"))),
            (&[0xff], Some(Encoding::Utf8), None),
        ];
        for (bytes, encoding, expected) in cases {
            let printed = print(bytes, encoding).ok();
            assert_eq!(printed.as_ref().map(|printed| (printed.text.as_str(), printed.encoding)), expected);
        }
    }
    #[test]
    fn people_see_bytes_that_can_be_typed_again() {
        for bytes in [&b"plain"[..], b"\x1b[2J\n", b"\xff\x00", "\u{202e}\u{85}".as_bytes(), b"back\\slash"] {
            let shown = show(bytes, None).expect("no encoding is asked for");
            assert!(!shown.chars().any(coppice_types::text::is_control), "{shown:?}");
            assert_eq!(parse(&format!("esc:{shown}")).expect("it was printed"), bytes);
        }
        assert_eq!(show(b"\xff", Some(Encoding::Hex)).expect("hex shows all"), "0xff");
        assert!(show(b"\xff", Some(Encoding::Utf8)).is_err());
    }
}
