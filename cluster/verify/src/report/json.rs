//! JSON text, written in one pass.
//!
//! It holds no control character: those in strings are written by number, invisible ones and those
//! that turn the direction of text included. So it can go to a terminal as it is.

use alloc::string::String;
use core::fmt::{self, Display, Write};

use coppice_types::text::is_control;

use super::Encoding;

/// An object that is being written.
pub(super) struct Object<'t> {
    text: &'t mut Text,
    is_empty: bool,
}

/// The text, and how bytes are to be written in it.
pub(super) struct Text {
    json: String,
    encoding: Option<Encoding>,
    /// Whether bytes that are not UTF-8 were to be written as UTF-8.
    has_no_text: bool,
}

/// Writes an object. `None` if it has bytes that can't be written in the encoding.
pub(super) fn object(encoding: Option<Encoding>, fill: impl FnOnce(&mut Object<'_>)) -> Option<String> {
    let mut text = Text { json: String::new(), encoding, has_no_text: false };
    text.object(fill);
    (!text.has_no_text).then_some(text.json)
}

impl Text {
    fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) {
        self.json.push('{');
        fill(&mut Object { text: self, is_empty: true });
        self.json.push('}');
    }

    fn digits(&mut self, value: u64) {
        let _ = write!(self.json, "{value}");
    }

    fn string(&mut self, text: &dyn Display) {
        self.json.push('"');
        // Writing to a `String` never fails.
        let _ = write!(Escaping(&mut self.json), "{text}");
        self.json.push('"');
    }
}

impl Object<'_> {
    fn name(&mut self, name: &'static str) -> &mut Text {
        if !core::mem::replace(&mut self.is_empty, false) {
            self.text.json.push(',');
        }
        self.text.string(&name);
        self.text.json.push(':');
        self.text
    }

    pub(super) fn null(&mut self, name: &'static str) {
        self.name(name).json.push_str("null");
    }

    pub(super) fn flag(&mut self, name: &'static str, value: bool) {
        self.name(name).json.push_str(if value { "true" } else { "false" });
    }

    pub(super) fn number(&mut self, name: &'static str, value: impl Into<u64>) {
        self.name(name).digits(value.into());
    }

    pub(super) fn text(&mut self, name: &'static str, value: impl Display) {
        self.name(name).string(&value);
    }

    /// Writes bytes as text or as hex with `0x` in front, and returns the encoding that was taken.
    pub(super) fn bytes(&mut self, name: &'static str, bytes: &[u8]) -> &'static str {
        let text = self.name(name);
        match (text.encoding, core::str::from_utf8(bytes)) {
            (None | Some(Encoding::Utf8), Ok(utf8)) => {
                text.string(&utf8);
                "utf8"
            }
            (encoding, _) => {
                text.has_no_text |= encoding == Some(Encoding::Utf8);
                text.json.push_str("\"0x");
                bytes.iter().for_each(|byte| push_hex(&mut text.json, *byte));
                text.json.push('"');
                "hex"
            }
        }
    }

    pub(super) fn object(&mut self, name: &'static str, fill: impl FnOnce(&mut Object<'_>)) {
        self.name(name).object(fill);
    }

    /// Writes an object if there is something to fill it with, else null.
    pub(super) fn optional<T>(&mut self, name: &'static str, item: Option<T>, fill: impl FnOnce(&mut Object<'_>, T)) {
        match item {
            Some(item) => self.object(name, |object| fill(object, item)),
            None => self.null(name),
        }
    }

    /// Writes a list of objects, one for each item.
    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        items: impl IntoIterator<Item = T>,
        mut fill: impl FnMut(&mut Object<'_>, T),
    ) {
        let text = self.name(name);
        text.json.push('[');
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                text.json.push(',');
            }
            text.object(|object| fill(object, item));
        }
        text.json.push(']');
    }
}

/// Writes text as a part of a JSON string.
struct Escaping<'t>(&'t mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Characters without an escape are copied in one piece.
        let mut copied = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| matches!(c, '"' | '\\') || is_control(*c)) {
            self.0.push_str(&text[copied..at]);
            copied = at + c.len_utf8();
            if !is_control(c) {
                self.0.push('\\');
                self.0.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                self.0.push_str("\\u");
                unit.to_be_bytes().into_iter().for_each(|byte| push_hex(self.0, byte));
            }
        }
        self.0.push_str(&text[copied..]);
        Ok(())
    }
}

fn push_hex(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}
