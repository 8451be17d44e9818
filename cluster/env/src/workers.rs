//! More hands for work whose outcome is a function of its input: on threads, or, in a simulation, in place.

use std::{
    num::NonZero,
    sync::{Mutex, PoisonError},
    thread,
};

/// Most threads beside the caller's: what is shared is short, and a machine has other shards to look after.
const HELPERS_MAX: usize = 3;

/// Who does the jobs of [`Workers::share`]. The outcome is the same; only with [`Workers::Inline`] the order is, too.
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
}

#[cfg(test)]
mod tests {
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
}
