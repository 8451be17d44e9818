//! Time: a monotonic clock for delays and deadlines, and the wall clock for what people read.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A source of time.
pub trait Clock: Send + Sync + Debug {
    /// The time since a fixed but arbitrary start. It never goes back.
    fn now(&self) -> Duration;

    /// Milliseconds since 1970 by the wall clock, which may jump.
    fn wall_ms(&self) -> u64;
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the seam that others take time from")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam that others take time from")]
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that only moves when it is told to. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now_ns: Arc<AtomicU64>,
    wall_start_ms: u64,
}

impl SimClock {
    /// A clock at zero whose wall clock shows `wall_ms`.
    #[must_use]
    pub fn new(wall_ms: u64) -> Self {
        Self { now_ns: Arc::default(), wall_start_ms: wall_ms }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_add(by, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> u64 {
        self.wall_start_ms.saturating_add(self.now_ns.load(Ordering::SeqCst) / 1_000_000)
    }
}
