//! The mark of a process that must be restarted, because something failed that it can't repair
//! itself.

use std::{panic, sync::OnceLock};

use tokio::sync::Notify;

static BROKEN: Mark = Mark::new();

/// The first reason why a process has to start again.
#[derive(Debug)]
struct Mark {
    why: OnceLock<String>,
    made: Notify,
}

impl Mark {
    const fn new() -> Self {
        Self { why: OnceLock::new(), made: Notify::const_new() }
    }

    /// Returns whether this is the first reason.
    fn make(&self, why: &str) -> bool {
        let first = self.why.set(why.to_owned()).is_ok();
        self.made.notify_waiters();
        first
    }

    async fn wait(&self) -> &str {
        let made = self.made.notified();
        match self.why.get() {
            Some(why) => why,
            None => {
                made.await;
                self.why.get().expect("waiters are told after the reason is set")
            }
        }
    }
}

/// Notes a failure that this process can't repair itself. From now on, `/livez` fails with this
/// reason.
pub fn cannot_recover(why: &str) {
    if BROKEN.make(why) {
        tracing::error!(why, "this process can't recover by itself");
    }
}

/// The reason why this process has to start again; `None` if it does not.
pub(crate) fn why() -> Option<String> {
    BROKEN.why.get().cloned()
}

/// Waits until this process has to start again. Returns the reason.
pub async fn broken() -> &'static str {
    BROKEN.wait().await
}

/// Notes every panic. A panic ends one task, and the state that it shared with other tasks can't be
/// trusted.
pub fn note_panics() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default(info);
        let place = info.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        cannot_recover(&format!("a task panicked{place}"));
    }));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_waiter_gets_the_first_reason_whenever_it_comes() {
        static MARK: Mark = Mark::new();
        assert!(timeout(Duration::from_millis(1), MARK.wait()).await.is_err(), "no reason yet");
        let waiter = tokio::spawn(MARK.wait());
        tokio::task::yield_now().await;
        assert_eq!((MARK.make("first"), MARK.make("second")), (true, false));
        assert_eq!(waiter.await.expect("no panic"), "first");
        assert_eq!(MARK.wait().await, "first");
    }
}
