//! Output: results go to standard output, as one JSON object each or as lines for people.
//!
//! Text that others wrote is escaped where it enters a line ([`Output::text`], [`text::safe`]).
//! Everything that is printed is checked once more, so that no control character reaches a terminal
//! if an escape was forgotten. If the reader of standard output has gone away, the command ends
//! quietly. If the reader of standard error has gone away, the command goes on.

mod table;

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::Path,
};

use coppice_types::escape::{guard, guard_but, guard_json};
use serde_json::{Map, Value};

use crate::{
    args::{Common, Encoding},
    bytes,
    failure::{Code, Failure},
    input, text,
};

pub use table::Table;

/// The form of a command's output.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Whether to print JSON instead of lines for people.
    pub json: bool,
    /// The form of bytes.
    pub encoding: Option<Encoding>,
    /// Whether standard output is a terminal.
    pub terminal: bool,
    /// Whether results go to standard error, because a file of the command goes to standard output.
    aside: bool,
}

impl Output {
    /// The settings of the command line.
    #[must_use]
    pub fn new(common: &Common) -> Self {
        Self { json: common.json, encoding: common.encoding, terminal: io::stdout().is_terminal(), aside: false }
    }

    /// Sends results to standard error if this file of the command goes to standard output.
    #[must_use]
    pub fn beside(self, file: Option<&Path>) -> Self {
        Self { aside: self.aside || file.is_some_and(input::is_standard), ..self }
    }

    /// Whether results go to standard error.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.aside
    }

    /// Prints one result: the object with `--json`, else the text of `people`.
    pub fn result(&self, object: &Value, people: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = if self.json { json(object) } else { guard_but(&people(), &['\n', '\t']) };
        if self.aside {
            tell(&text);
            return Ok(());
        }
        line(&text)
    }

    /// Adds the bytes to an object under `name`. Returns their encoding.
    ///
    /// # Errors
    /// If the bytes can't be printed in the requested encoding.
    pub fn bytes(&self, object: &mut Map<String, Value>, name: &str, bytes: &[u8]) -> Result<&'static str, Failure> {
        let printed = bytes::print(bytes, self.encoding)?;
        object.insert(name.to_owned(), Value::String(printed.text));
        Ok(printed.encoding)
    }

    /// Adds a key to an object, and its encoding as `key_encoding`, since `encoding` is that of a
    /// value if there is one. Returns the encoding.
    ///
    /// # Errors
    /// Like [`Output::bytes`].
    pub fn key(&self, object: &mut Map<String, Value>, key: &[u8]) -> Result<&'static str, Failure> {
        let encoding = self.bytes(object, "key", key)?;
        object.insert("key_encoding".to_owned(), Value::String(encoding.to_owned()));
        Ok(encoding)
    }

    /// Bytes for people, on one line.
    ///
    /// # Errors
    /// Like [`Output::bytes`].
    pub fn text(&self, bytes: &[u8]) -> Result<String, Failure> {
        bytes::show(bytes, self.encoding)
    }

    /// Like [`Output::text`], but cut short on a terminal. Pipes and files get the whole text.
    pub fn brief(&self, bytes: &[u8], chars: usize) -> Result<String, Failure> {
        let text = self.text(bytes)?;
        Ok(if self.terminal { text::shorten(&text, chars) } else { text })
    }

    /// Prints a note, which is not a result, to standard error.
    pub fn note(&self, object: &Value, people: impl FnOnce() -> String) {
        if self.json { tell(&json(object)) } else { tell(&guard_but(&people(), &['\n', '\t'])) }
    }
}

/// An object on one line, without control characters, even in its strings.
fn json(object: &Value) -> String {
    guard_json(&object.to_string())
}

/// Prints an object to standard output.
pub fn object(object: &Value) -> Result<(), Failure> {
    line(&json(object))
}

/// Prints a line to standard output.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    raw(&bytes)
}

/// Writes bytes to standard output unchanged. If the reader has gone away, the failure is silent
/// and its code is [`Code::Done`].
pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Code::Done, "").silent(),
        _ => Failure::new(Code::Unavailable, format!("standard output: {error}")),
    })
}

/// Writes lines to standard error.
pub fn tell(text: &str) {
    // If standard error is gone, nobody is left to tell.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Like [`tell`], for a message on one line: no part of it can begin another line.
pub fn tell_line(text: &str) {
    tell(&guard(text));
}

/// Prints a failure to standard error.
pub fn failure(failure: &Failure, as_json: bool) {
    if failure.message.is_empty() {
        return;
    }
    if as_json {
        tell(&json(&failure.to_json()));
        return;
    }
    match failure.reason {
        Some(reason) => tell_line(&format!("coppice: {} ({reason})", failure.message)),
        None => tell_line(&format!("coppice: {}", failure.message)),
    }
    if let Some(hint) = &failure.hint {
        tell_line(&format!("  {hint}"));
    }
}

/// Writes a file of the command: by name, or `-` for standard output.
pub fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if input::is_standard(path) {
        raw(bytes)
    } else {
        fs::write(path, bytes).map_err(|error| Failure::file(path, &error))
    }
}
