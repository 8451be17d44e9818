//! The question before a command that can't be undone, and the dry run that only shows the effect.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::{args::Consent, failure::Failure, output::Output};

/// Whether to tell first what would happen: for a dry run, and before a question on a terminal.
/// Without a terminal nobody can answer, so the command runs as given.
pub(super) fn asks(consent: Consent) -> bool {
    consent.dry_run || (!consent.yes && io::stdin().is_terminal() && io::stderr().is_terminal())
}

/// Tells what would happen. Returns whether to go on.
///
/// # Errors
/// If the answer is not yes or can't be read, or if standard output is gone.
pub(super) fn given(consent: Consent, object: &Value, what: &str, output: Output) -> Result<bool, Failure> {
    if consent.dry_run {
        output.result(object, || what.to_owned())?;
        return Ok(false);
    }
    output.note(object, || what.to_owned());
    let mut terminal = io::stderr().lock();
    // The question goes to the terminal that gives the answer, and not into the result.
    let asked = terminal.write_all(b"Go on? [y/N] ").and_then(|()| terminal.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::usage(format!("no answer: {error}")))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(true);
    }
    Err(Failure::usage("nothing was done, because the answer was not yes").hint("--yes skips the question."))
}
