//! The question before something that can't be taken back, and what would happen, for those who only want to know.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::{args::Consent, failure::Failure, output::Output};

/// Whether it is told first what would happen: to those who ask for that alone, and before a question on a terminal. Without a terminal
/// nobody can answer, so it is done as given.
pub(super) fn asks(consent: Consent) -> bool {
    consent.dry_run || (!consent.yes && io::stdin().is_terminal() && io::stderr().is_terminal())
}

/// Says what would happen, and whether to go on with it.
///
/// # Errors
/// If the answer can't be read, or standard output is gone.
pub(super) fn given(consent: Consent, object: &Value, what: &str, output: Output) -> Result<bool, Failure> {
    if consent.dry_run {
        output.result(object, || what.to_owned())?;
        return Ok(false);
    }
    output.note(object, || what.to_owned());
    let mut terminal = io::stderr().lock();
    // The question goes where the answer comes from, and not into the result.
    let asked = terminal.write_all(b"Go on? [y/N] ").and_then(|()| terminal.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::usage(format!("no answer: {error}")))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(true);
    }
    Err(Failure::usage("nothing was done: it was not agreed to").hint("--yes skips the question."))
}
