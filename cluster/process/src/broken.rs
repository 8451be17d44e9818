//! The mark of a process that must be restarted, because something failed that it can't repair
//! itself.

use std::{panic, sync::OnceLock};

/// The first reason why this process has to start again.
static BROKEN: OnceLock<String> = OnceLock::new();

/// Notes a failure that this process can't repair itself. From now on, `/livez` fails with this
/// reason.
pub fn cannot_recover(why: &str) {
    if BROKEN.set(why.to_owned()).is_ok() {
        tracing::error!(why, "this process can't recover by itself");
    }
}

/// The reason why this process has to start again; `None` if it does not.
pub(crate) fn why() -> Option<String> {
    BROKEN.get().cloned()
}

/// Notes every panic. A panic ends one task, and the state that it shared with other tasks can't be
/// trusted.
pub(crate) fn note_panics() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default(info);
        let place = info.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        cannot_recover(&format!("a task panicked{place}"));
    }));
}
