//! The times of an open loop: a thread hands out one permit whenever a batch is due.
//!
//! A runtime's timers wake on whole milliseconds, and an open loop counts latency from the time at
//! which a batch was due. So the thread sleeps by itself, on the kernel's fine timers, and wakes
//! the runtime. `loadtest/drive/pace.go` does the same for the other systems.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use tokio::{sync::Semaphore, time::Instant};

/// The longest time for which the thread sleeps before it looks whether it should end.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A thread that hands out permits; it ends with this handle.
#[derive(Debug)]
pub struct Pace {
    permits: Arc<Semaphore>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pace {
    /// Starts the thread. Number `n` is due `n / rate` seconds after `start`; after `end` nothing
    /// is due, and [`Pace::due`] returns false.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(start: Instant, end: Instant, rate: f64) -> Result<Self> {
        let (permits, ended) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
        let (giving, ending) = (Arc::clone(&permits), Arc::clone(&ended));
        let thread = thread::Builder::new().name("pace".to_owned()).spawn(move || {
            let length = end.saturating_duration_since(start);
            let now = || (!ending.load(Ordering::Relaxed)).then(|| Instant::now().saturating_duration_since(start));
            hand_out(length, rate, now, thread::park_timeout, || giving.add_permits(1));
            giving.close();
        })?;
        Ok(Self { permits, ended, thread: Some(thread) })
    }

    /// Waits until something is due. Returns false once the time is over.
    pub async fn due(&self) -> bool {
        // A permit is used once, and never given back.
        self.permits.acquire().await.map(|permit| permit.forget()).is_ok()
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The time from the start at which a number is due.
#[must_use]
pub fn due_at(number: u64, rate: f64) -> Duration {
    Duration::from_secs_f64(number as f64 / rate)
}

/// Gives a permit for each number that is due before `length`, none before its time. `now` is the
/// time since the start, or `None` if the thread should end; `sleep` may return early.
fn hand_out(
    length: Duration,
    rate: f64,
    mut now: impl FnMut() -> Option<Duration>,
    mut sleep: impl FnMut(Duration),
    mut give: impl FnMut(),
) {
    for number in 0_u64.. {
        let due = due_at(number, rate);
        if due >= length {
            break;
        }
        loop {
            match now() {
                None => return,
                Some(now) if now >= due => break,
                Some(now) => sleep((due - now).min(SLEEP_MAX)),
            }
        }
        give();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Runs the loop on a clock that only sleeps move; `slept` says how long a sleep takes. Returns
    /// the times at which permits were given.
    fn given(length: Duration, rate: f64, slept: impl Fn(Duration) -> Duration) -> Vec<Duration> {
        let (clock, given) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()));
        let sleep = |wanted| clock.set(clock.get() + slept(wanted));
        hand_out(length, rate, || Some(clock.get()), sleep, || given.borrow_mut().push(clock.get()));
        given.into_inner()
    }

    #[test]
    fn each_number_is_given_at_its_time_and_not_at_whole_milliseconds() {
        let times = given(Duration::from_millis(2), 4000.0, |wanted| wanted);
        let expected: Vec<_> = (0..8).map(|number| Duration::from_micros(250 * number)).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn a_sleep_that_ends_early_gives_nothing_early() {
        let times = given(Duration::from_secs(1), 2.0, |wanted| wanted.min(Duration::from_millis(7)));
        assert_eq!(times, [Duration::ZERO, Duration::from_millis(500)]);
    }

    #[test]
    fn what_was_missed_during_a_late_sleep_is_given_at_once() {
        let times = given(Duration::from_millis(4), 1000.0, |_| Duration::from_millis(10));
        assert_eq!(times, [0, 10, 10, 10].map(Duration::from_millis));
    }

    #[test]
    fn no_sleep_outlasts_the_end_by_much() {
        let longest = Cell::new(Duration::ZERO);
        given(Duration::from_secs(100), 0.1, |wanted| {
            longest.set(longest.get().max(wanted));
            wanted
        });
        assert_eq!(longest.get(), SLEEP_MAX);
    }

    #[tokio::test]
    async fn the_thread_gives_nothing_early_and_then_ends_the_wait() {
        let start = Instant::now();
        let pace = Pace::start(start, start + Duration::from_millis(5), 2000.0).expect("a thread");
        let mut count = 0;
        while pace.due().await {
            assert!(start.elapsed() >= due_at(count, 2000.0), "number {count} came early");
            count += 1;
        }
        assert!(count <= 10, "{count} numbers are due in this time");
    }

    #[tokio::test]
    async fn a_pace_that_is_dropped_ends_its_thread() {
        let start = Instant::now();
        let pace = Pace::start(start, start + Duration::from_secs(3600), 0.001).expect("a thread");
        assert!(pace.due().await);
        drop(pace);
    }
}
