//! More hands for work whose outcome is a function of its input: on threads, or, in a simulation, in place.

use std::{
    collections::BTreeMap,
    iter,
    num::NonZero,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// Most threads beside the caller's: what is shared is short, and a machine has other shards to look after.
const HELPERS_MAX: usize = 3;

/// Who does the jobs of [`Workers::share`] and [`Workers::in_order`]. The outcome is the same; only with [`Workers::Inline`] the order is, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// The caller alone.
    #[default]
    Inline,
    /// The caller and so many threads, which live as long as the call.
    Threads(NonZero<usize>),
}

impl Workers {
    /// As many as there are processors.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        NonZero::new((processors - 1).min(HELPERS_MAX)).map_or(Self::Inline, Self::Threads)
    }

    /// Does all jobs, each once, and `own` on the caller's thread, which helps with the jobs afterwards.
    pub fn share<J: Send, T>(
        self,
        jobs: impl Iterator<Item = J> + Send,
        work: impl Fn(J) + Sync,
        own: impl FnOnce() -> T,
    ) -> T {
        let queue = Mutex::new(jobs);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let run = || {
            while let Some(job) = next() {
                work(job);
            }
        };
        let all = || {
            let out = own();
            run();
            out
        };
        match self {
            Self::Inline => all(),
            Self::Threads(helpers) => thread::scope(|scope| {
                for _ in 0..helpers.get() {
                    scope.spawn(run);
                }
                all()
            }),
        }
    }

    /// Does all jobs, each once, and gives `own`, on the caller's thread, what came of them, in the order of the jobs. While the next one is
    /// not there, the caller does jobs, too.
    pub fn in_order<J: Send, O: Send, T>(
        self,
        jobs: impl Iterator<Item = J> + Send,
        work: impl Fn(J) -> O + Sync,
        own: impl FnOnce(&mut dyn Iterator<Item = O>) -> T,
    ) -> T {
        let queue = Mutex::new(jobs.enumerate());
        let next = || {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            job.map(|(at, job)| (at, work(job)))
        };
        let helpers = match self {
            Self::Inline => 0,
            Self::Threads(helpers) => helpers.get(),
        };
        let (done, outcomes) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..helpers {
                let done = done.clone();
                let next = &next;
                scope.spawn(move || iter::from_fn(next).try_for_each(|outcome| done.send(outcome)));
            }
            // So that the wait for a helper that broke an invariant ends.
            drop(done);
            let mut early = BTreeMap::new();
            let mut wanted = 0..;
            own(&mut iter::from_fn(|| {
                let wanted = wanted.next()?;
                loop {
                    early.extend(outcomes.try_iter());
                    if let Some(outcome) = early.remove(&wanted) {
                        return Some(outcome);
                    }
                    match next().or_else(|| outcomes.recv().ok()) {
                        Some((at, outcome)) => early.insert(at, outcome),
                        None => return None,
                    };
                }
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn every_job_is_done_once_whoever_does_it() {
        for workers in [Workers::Inline, Workers::Threads(NonZero::<usize>::MIN), Workers::of_this_machine()] {
            let mut squares = [0; 1000];
            let jobs = squares.chunks_mut(7).enumerate();
            let square = |(at, chunk): (usize, &mut [usize])| {
                chunk.iter_mut().zip(7 * at..).for_each(|(square, n)| *square += n * n);
            };
            assert_eq!(workers.share(jobs, square, || "own"), "own");
            assert!(squares.iter().enumerate().all(|(n, square)| *square == n * n));
        }
    }

    #[test]
    fn outcomes_come_in_the_order_of_their_jobs() {
        for workers in [Workers::Inline, Workers::Threads(NonZero::<usize>::MIN), Workers::of_this_machine()] {
            let square = |n: u64| n * n;
            let squares = workers.in_order(0..1000, square, |squares| squares.collect::<Vec<_>>());
            assert!(squares.into_iter().eq((0..1000).map(square)));
            assert_eq!(workers.in_order(0..1000, square, |squares| squares.nth(9)), Some(81));
        }
    }

    #[test]
    #[should_panic(expected = "all of them")]
    fn a_job_that_panics_leaves_nobody_waiting() {
        let (caller, taken) = (thread::current().id(), AtomicBool::new(false));
        let work = |_| {
            let helps = thread::current().id() != caller;
            taken.fetch_or(helps, Ordering::SeqCst);
            assert!(!helps, "a helper's job");
            while !taken.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        Workers::Threads(NonZero::<usize>::MIN).in_order(0..1000, work, |outcomes| {
            assert_eq!(outcomes.count(), 1000, "all of them");
        });
    }
}
