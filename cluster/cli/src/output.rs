//! Where results go: standard output, one JSON object a result or lines for people.
//!
//! What others wrote is escaped where it enters a line ([`Output::text`], [`text::safe`]). What is printed is looked through once more, so that
//! a control character that was forgotten there reaches no terminal. A reader of standard output that has gone away ends the command
//! quietly; one of standard error is not missed.

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
    failure::{Code, Failure},
    input, text,
};

pub use table::Table;

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of lines for people.
    pub json: bool,
    /// How bytes are printed.
    pub encoding: Option<Encoding>,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Results go to standard error: standard output has a file of the command.
    aside: bool,
}

impl Output {
    /// As the command line asks.
    #[must_use]
    pub fn new(common: &Common) -> Self {
        Self { json: common.json, encoding: common.encoding, terminal: io::stdout().is_terminal(), aside: false }
    }

    /// Gives way to a file of the command that goes to standard output.
    #[must_use]
    pub fn beside(self, file: Option<&Path>) -> Self {
        Self { aside: self.aside || file.is_some_and(input::is_standard), ..self }
    }

    /// Whether results give way to a file on standard output.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.aside
    }

    /// Prints one result: the object with `--json`, else what `people` gives.
    ///
    /// # Errors
    /// If standard output is gone.
    pub fn result(&self, object: &Value, people: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = if self.json { json(object) } else { guard_but(&people(), &['\n', '\t']) };
        if self.aside {
            tell(&text);
            return Ok(());
        }
        line(&text)
    }

    /// Adds `name` (and `encoding`) to an object.
    ///
    /// # Errors
    /// If the bytes cannot be printed in the encoding asked for.
    pub fn bytes(&self, object: &mut Map<String, Value>, name: &str, bytes: &[u8]) -> Result<&'static str, Failure> {
        let printed = text::print(bytes, self.encoding)?;
        object.insert(name.to_owned(), Value::String(printed.text));
        Ok(printed.encoding)
    }

    /// Bytes for people, on one line.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub fn text(&self, bytes: &[u8]) -> Result<String, Failure> {
        text::show(bytes, self.encoding)
    }

    /// As [`Output::text`], cut short for a terminal: what goes into a pipe or a file is whole.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub fn brief(&self, bytes: &[u8], chars: usize) -> Result<String, Failure> {
        let text = self.text(bytes)?;
        Ok(if self.terminal { text::shorten(&text, chars) } else { text })
    }

    /// Tells something that is no result, to standard error.
    pub fn note(&self, object: &Value, people: impl FnOnce() -> String) {
        if self.json { tell(&json(object)) } else { tell(&guard_but(&people(), &['\n', '\t'])) }
    }
}

/// An object on one line. It has no control character, not even in its strings.
fn json(object: &Value) -> String {
    guard_json(&object.to_string())
}

/// Prints an object to standard output.
///
/// # Errors
/// If it cannot be written.
pub fn object(object: &Value) -> Result<(), Failure> {
    line(&json(object))
}

/// Prints a line to standard output.
///
/// # Errors
/// If it cannot be written.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    raw(&bytes)
}

/// Writes bytes to standard output as they are. A reader that has gone away ends the command quietly.
///
/// # Errors
/// If they cannot be written.
pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Code::Done, "").silent(),
        _ => Failure::new(Code::Unavailable, format!("standard output: {error}")),
    })
}

/// Writes lines to standard error.
pub fn tell(text: &str) {
    // Nothing is left to tell if nobody listens.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// As [`tell`], of one line that is a message: no part of it begins another line.
pub fn tell_line(text: &str) {
    tell(&guard(text));
}

/// Writes a file of the command: by name, or `-` for standard output.
///
/// # Errors
/// If it cannot be written.
pub fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if input::is_standard(path) {
        raw(bytes)
    } else {
        fs::write(path, bytes).map_err(|error| Failure::file(path, &error))
    }
}
