//! Where results go: standard output, one JSON object a result or lines for people.

use std::io::{self, Write};

use serde_json::{Map, Value};

use crate::{
    args::{Common, Encoding},
    failure::{Code, Failure},
    text,
};

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of lines for people.
    pub json: bool,
    /// How bytes are printed.
    pub encoding: Option<Encoding>,
}

impl Output {
    /// As the command line asks.
    #[must_use]
    pub fn new(common: &Common) -> Self {
        Self { json: common.json, encoding: common.encoding }
    }

    /// Prints one result: the object with `--json`, else what `people` gives.
    ///
    /// # Errors
    /// If standard output is gone.
    pub fn result(&self, object: &Value, people: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { line(&object.to_string()) } else { line(&people()) }
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

    /// Bytes for people.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub fn text(&self, bytes: &[u8]) -> Result<String, Failure> {
        Ok(text::print(bytes, self.encoding)?.text)
    }

    /// Tells something that is no result, to standard error.
    pub fn note(&self, object: &Value, people: impl FnOnce() -> String) {
        if self.json { eprintln!("{object}") } else { eprintln!("{}", people()) }
    }
}

/// Prints a line to standard output. A reader that has gone away ends the command quietly.
///
/// # Errors
/// If it cannot be written.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Code::Done, "").silent(),
        _ => Failure::new(Code::Unavailable, format!("standard output: {error}")),
    })
}
