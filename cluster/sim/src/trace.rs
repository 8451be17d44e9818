//! The trace of a run: every event at a seam, in order. Equal traces mean equal runs.

use std::{
    fmt,
    fmt::Write,
    hash::Hasher,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// A run's trace. Clones write to the same trace.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

struct Inner {
    hash: XxHash3_64,
    events: u64,
    start: Instant,
    print: bool,
    line: String,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("events", &self.events()).finish_non_exhaustive()
    }
}

impl Trace {
    /// A trace that begins now, by the simulated clock. With `print`, every event is also printed
    /// to the standard output.
    #[must_use]
    pub fn new(print: bool) -> Self {
        let inner = Inner { hash: XxHash3_64::new(), events: 0, start: Instant::now(), print, line: String::new() };
        Self(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event.
    pub fn event(&self, what: fmt::Arguments<'_>) {
        let mut inner = self.lock();
        let at = inner.start.elapsed();
        inner.events += 1;
        let mut line = std::mem::take(&mut inner.line);
        line.clear();
        // Writing to a string can't fail.
        let _ = write!(line, "{:>9.3} {what}", at.as_secs_f64() * 1000.0);
        inner.hash.write(line.as_bytes());
        if inner.print {
            println!("{line}");
        }
        inner.line = line;
    }

    /// Number of events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Hash of all events.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash.finish()
    }
}

/// Records an event in a trace; the arguments are those of `format!`.
#[macro_export]
macro_rules! event {
    ($trace:expr, $($what:tt)*) => { $trace.event(format_args!($($what)*)) };
}
