//! More hands for work whose outcome is a function of its input: on threads, or, in a simulation, in place.

use std::{
    collections::BTreeMap,
    iter,
    num::NonZero,
    panic,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// Most threads beside the caller's: what is shared is short, and a machine has other shards to look after.
const HELPERS_MAX: usize = 3;

/// Work that was begun, and that another thread may be doing.
#[derive(Debug)]
pub enum Begun<T> {
    /// It is done.
    Done(T),
    /// It may be.
    Going(thread::JoinHandle<T>),
}

impl<T> Begun<T> {
    /// Whether somebody is at it still.
    #[must_use]
    pub fn is_going(&self) -> bool {
        matches!(self, Self::Going(thread) if !thread.is_finished())
    }

    /// What came of it, once it is done.
    ///
    /// # Panics
    /// If the work did.
    pub fn end(self) -> T {
        match self {
            Self::Done(out) => out,
            Self::Going(thread) => thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)),
        }
    }
}

/// Who does the work of [`Workers::share`], [`Workers::in_order`], [`Workers::begin`] and [`Workers::beside`]. The outcome is the same; only with [`Workers::Inline`] the order is, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// The caller alone.
    #[default]
    Inline,
    /// The caller and so many threads, which live as long as their work.
    Threads(NonZero<usize>),
}

impl Workers {
    /// As many as there are processors.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        NonZero::new((processors - 1).min(HELPERS_MAX)).map_or(Self::Inline, Self::Threads)
    }

    /// How many threads there are beside the caller's.
    fn helpers(self) -> usize {
        match self {
            Self::Inline => 0,
            Self::Threads(helpers) => helpers.get(),
        }
    }

    /// Begins work that the caller need not wait for: in a thread of its own, or, if those that go on are as many as there may be, at
    /// once and here.
    pub fn begin<T: Send + 'static>(self, going: usize, work: impl FnOnce() -> T + Send + 'static) -> Begun<T> {
        if going < self.helpers() { Begun::Going(thread::spawn(work)) } else { Begun::Done(work()) }
    }

    /// Does the work on a thread of its own, and `own` on the caller's, which is told by what it is given whether the work still goes
    /// on. Without threads the caller does both, and `own`, which is told that nothing goes on, first.
    pub fn beside<T: Send>(self, work: impl FnOnce() -> T + Send, own: impl FnOnce(&dyn Fn() -> bool)) -> T {
        if self.helpers() == 0 {
            own(&|| false);
            return work();
        }
        thread::scope(|scope| {
            let thread = scope.spawn(work);
            own(&|| !thread.is_finished());
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
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
        let (done, outcomes) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..self.helpers() {
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
    fn what_is_begun_ends_with_its_outcome_here_or_elsewhere() {
        for (workers, going, elsewhere) in [
            (Workers::Inline, 0, false),
            (Workers::Threads(NonZero::<usize>::MIN), 0, true),
            (Workers::Threads(NonZero::<usize>::MIN), 1, false),
        ] {
            let caller = thread::current().id();
            let (asked, answer) = mpsc::channel::<u64>();
            // One that goes on elsewhere waits for what it is sent after it was begun.
            let begun = workers.begin(going, move || match thread::current().id() == caller {
                true => (7, caller),
                false => (answer.recv().expect("it is sent"), thread::current().id()),
            });
            assert_eq!(begun.is_going(), elsewhere);
            let _ = asked.send(7);
            let (seven, thread) = begun.end();
            assert_eq!((seven, thread != caller), (7, elsewhere));
        }
    }

    #[test]
    fn the_caller_has_its_own_to_do_while_other_work_goes_on() {
        let threads = Workers::Threads(NonZero::<usize>::MIN);
        let (told, hears) = mpsc::channel();
        // The work ends when it is told to, which the caller does while it goes on.
        let out = threads.beside(
            move || hears.recv().expect("it is told"),
            |goes_on| {
                assert!(goes_on());
                told.send(7).expect("somebody listens");
                while goes_on() {
                    thread::yield_now();
                }
            },
        );
        assert_eq!(out, 7);
        let (caller, mut before) = (thread::current().id(), false);
        let out = Workers::Inline.beside(|| thread::current().id(), |goes_on| before = !goes_on());
        assert_eq!((out, before), (caller, true));
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
