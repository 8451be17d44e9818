//! One run of a process, from its start until its death.
//!
//! The tasks of a dead process are not ended. Instead, its disk refuses everything, its calls never
//! end, and calls to it reach nobody. From outside there is no difference.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use coppice_env::{Clock, SimStorage, watch};
use tokio::time::Instant;

/// The value without a fuse.
const NEVER: u64 = u64::MAX;

/// One run of a process. Clones are of the same run.
#[derive(Clone, Debug)]
pub struct Life(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    run: u32,
    ended: watch::Sender<bool>,
    /// Number of messages until the process dies, and then turns of the executor.
    fuse: AtomicU64,
    turns: AtomicU64,
    disk: Option<SimStorage>,
}

impl Life {
    /// A process that starts now. It dies with its disk.
    #[must_use]
    pub fn new(name: &str, run: u32, disk: Option<SimStorage>) -> Self {
        let ended = watch::Sender::new(false);
        let (fuse, turns) = (AtomicU64::new(NEVER), AtomicU64::new(0));
        Self(Arc::new(Inner { name: name.to_owned(), run, ended, fuse, turns, disk }))
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Number of the run.
    #[must_use]
    pub fn run(&self) -> u32 {
        self.0.run
    }

    /// Kills the process at once.
    pub fn end(&self) {
        if let Some(disk) = &self.0.disk {
            disk.halt();
        }
        self.0.ended.send_if_modified(|ended| !std::mem::replace(ended, true));
    }

    /// Whether the process lives. A disk that has crashed kills its process.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        if self.0.disk.as_ref().is_some_and(SimStorage::crashed) {
            self.end();
        }
        !*self.0.ended.borrow()
    }

    /// Waits for the death of the process.
    pub async fn ended(&self) {
        let mut ended = self.0.ended.subscribe();
        // The wait can't fail, since `self` keeps the sender.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Makes the process die this many turns of the executor after this many messages. So it dies
    /// at one of its await points.
    pub fn light_fuse(&self, messages: u64, turns: u64) {
        self.0.turns.store(turns, Ordering::Relaxed);
        self.0.fuse.store(messages, Ordering::Relaxed);
    }

    /// Removes the fuse.
    pub fn put_out_fuse(&self) {
        self.light_fuse(NEVER, 0);
    }

    /// Handles the last message of the fuse: the process dies now, or some turns later.
    fn burn_down(&self) {
        let turns = self.0.turns.load(Ordering::Relaxed);
        self.put_out_fuse();
        if turns == 0 {
            return self.end();
        }
        let life = self.clone();
        tokio::spawn(async move {
            for _ in 0..turns {
                turn().await;
            }
            life.end();
        });
    }

    /// Counts a message that leaves or arrives. Returns false if the process is dead, or dies of
    /// this message.
    #[must_use]
    pub fn message(&self) -> bool {
        let left = self.0.fuse.load(Ordering::Relaxed);
        if left == 0 {
            self.burn_down();
        } else if left != NEVER {
            self.0.fuse.store(left - 1, Ordering::Relaxed);
        }
        self.is_alive()
    }
}

/// One turn of the executor: every task that can run now runs once before this ends.
fn turn() -> impl Future<Output = ()> {
    let mut turned = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut turned, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// The clocks of one machine. They go fast or slow, and the wall clock may be wrong.
#[derive(Clone, Debug)]
pub struct MachineClock {
    start: Instant,
    wall_start_ms: u64,
    /// Rate of the clock in parts per million: a million is exact.
    rate_ppm: u64,
    /// Offset of the wall clock in ms, as a wrapped signed number.
    offset_ms: Arc<AtomicU64>,
}

/// Time at which all wall clocks start.
const WALL_START_MS: u64 = 1_800_000_000_000;

impl MachineClock {
    #[must_use]
    pub fn new(start: Instant, rate_ppm: u64) -> Self {
        Self { start, wall_start_ms: WALL_START_MS, rate_ppm, offset_ms: Arc::default() }
    }

    /// Sets the wall clock ahead by this much, or back if negative.
    pub fn set_offset_ms(&self, offset: i64) {
        self.offset_ms.store(offset.cast_unsigned(), Ordering::Relaxed);
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Duration {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2_000_000);
        Duration::from_nanos(nanos / 1_000_000 * self.rate_ppm + nanos % 1_000_000 * self.rate_ppm / 1_000_000)
    }

    fn wall_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.now().as_millis()).unwrap_or(0);
        (self.wall_start_ms + elapsed).wrapping_add(self.offset_ms.load(Ordering::Relaxed))
    }
}
