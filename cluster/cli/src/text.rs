//! Bytes on the command line and in answers.
//!
//! Taken: text, `0x` and hex, `@` and a file, `text:` and anything. Given: text where the bytes are valid UTF-8, else hex.

use std::{fs, path::Path};

use crate::{args::Encoding, failure::Failure};

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
/// If the hex or the file that it names cannot be read.
pub fn parse(argument: &str) -> Result<Vec<u8>, Failure> {
    if let Some(text) = argument.strip_prefix("text:") {
        return Ok(text.as_bytes().to_vec());
    }
    if let Some(path) = argument.strip_prefix('@') {
        return fs::read(path).map_err(|error| {
            Failure::file(Path::new(path), &error)
                .hint("`text:` in front of a key or value takes it as it is, `@` included.")
        });
    }
    if argument.starts_with("0x") {
        return parse_hex(argument)
            .map_err(|failure| failure.hint("`text:` in front of a key or value takes it as it is, `0x` included."));
    }
    Ok(argument.as_bytes().to_vec())
}

/// Reads a key; an empty one is refused here, where the usage can be named.
///
/// # Errors
/// As [`parse`], and if it is empty.
pub fn parse_key(argument: &str) -> Result<Vec<u8>, Failure> {
    let key = parse(argument)?;
    if key.is_empty() {
        return Err(Failure::usage("a key has at least one byte"));
    }
    Ok(key)
}

/// Reads `KEY=VALUE`, split at the first `=`.
///
/// # Errors
/// If there is no `=`, or as [`parse_key`].
pub fn parse_pair(argument: &str) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let (key, value) = split_pair(argument)?;
    Ok((parse_key(key)?, parse(value)?))
}

/// Splits `KEY=VALUE` at the first `=`.
///
/// # Errors
/// If there is none.
pub fn split_pair(argument: &str) -> Result<(&str, &str), Failure> {
    argument.split_once('=').ok_or_else(|| {
        Failure::usage(format!("`{argument}` is not KEY=VALUE"))
            .hint("A key that has a `=` in it is written in hex, with `0x` in front.")
    })
}

/// Reads hex, with or without `0x`.
///
/// # Errors
/// If it is none.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(digits).map_err(|error| Failure::usage(format!("`{}` is no hex: {error}", shorten(text, 80))))
}

/// How bytes are printed.
///
/// # Errors
/// If text is asked for and the bytes are none.
pub fn print(bytes: &[u8], encoding: Option<Encoding>) -> Result<Printed, Failure> {
    let text = match encoding {
        Some(Encoding::Hex) => None,
        _ => std::str::from_utf8(bytes).ok(),
    };
    match (text, encoding) {
        (Some(text), _) => Ok(Printed { text: text.to_owned(), encoding: "utf8" }),
        (None, Some(Encoding::Utf8)) => Err(Failure::usage("the answer has bytes that are no UTF-8 text")
            .hint("Use --encoding hex, or leave --encoding out.")),
        (None, _) => Ok(Printed { text: format!("0x{}", hex::encode(bytes)), encoding: "hex" }),
    }
}

/// At most `chars` characters on one line, for people.
#[must_use]
pub fn shorten(text: &str, chars: usize) -> String {
    let mut line: String = text.chars().take(chars).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    #[test]
    fn every_form_of_input_is_read() {
        let cases: [(&str, &[u8]); 7] = [
            ("plain", b"plain"),
            ("0x00ff", &[0, 255]),
            ("0x", b""),
            ("text:0x00", b"0x00"),
            ("text:@file", b"@file"),
            ("text:text:", b"text:"),
            ("grüße", "grüße".as_bytes()),
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
        for argument in ["0x0", "0xzz", "@/nowhere/at/all"] {
            let failure = parse(argument).expect_err(argument);
            assert_eq!(failure.code, Code::Usage, "{argument}");
            assert!(failure.hint.is_some_and(|hint| hint.contains("text:")), "{argument}");
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
}
