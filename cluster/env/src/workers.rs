//! Helper threads for work whose outcome is a function of its input. In a simulation, the work is
//! done in place.

use std::{
    collections::{BTreeMap, VecDeque},
    iter,
    num::NonZero,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// Most threads besides the caller's for one kind of work. The shared part of the work is short,
/// and a machine has other shards to serve.
const HELPERS_MAX: usize = 3;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Work that is done while its owner does something else. The owner takes the outcomes in the order
/// in which the work was pushed.
///
/// A thread lives as long as work is waiting. The owner does waiting work itself if there are no
/// threads, or if it wants an outcome that is not there yet. Work that has not begun when the queue
/// is dropped is discarded.
#[derive(Debug)]
pub struct OrderedQueue<T> {
    helpers: usize,
    shared: Arc<Shared<T>>,
    pushed: u64,
    taken: u64,
}

struct Shared<T> {
    state: Mutex<QueueState<T>>,
    /// Signals that some work is done.
    done: Condvar,
}

struct QueueState<T> {
    waiting: VecDeque<(u64, Work<T>)>,
    outcomes: BTreeMap<u64, thread::Result<T>>,
    threads: usize,
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a piece of work. A panic is passed on when the outcome is taken.
    fn work(&self, (number, work): (u64, Work<T>)) -> MutexGuard<'_, QueueState<T>> {
        let outcome = panic::catch_unwind(AssertUnwindSafe(work));
        let mut state = self.lock();
        state.outcomes.insert(number, outcome);
        self.done.notify_all();
        state
    }

    /// Does waiting work until none is left.
    fn work_off(&self) {
        let mut state = self.lock();
        while let Some(next) = state.waiting.pop_front() {
            drop(state);
            state = self.work(next);
        }
        state.threads -= 1;
    }
}

impl<T: Send + 'static> OrderedQueue<T> {
    #[must_use]
    pub fn new(workers: Workers) -> Self {
        let state = QueueState { waiting: VecDeque::new(), outcomes: BTreeMap::new(), threads: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), done: Condvar::new() });
        Self { helpers: workers.helpers(), shared, pushed: 0, taken: 0 }
    }

    /// Number of outcomes still to be taken.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.pushed - self.taken) as usize
    }

    /// Whether all outcomes were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another thread still has to deliver the next outcome.
    #[must_use]
    pub fn is_going(&self) -> bool {
        self.helpers > 0 && !self.is_empty() && !self.shared.lock().outcomes.contains_key(&self.taken)
    }

    /// Adds work at the end.
    pub fn push(&mut self, work: impl FnOnce() -> T + Send + 'static) {
        let mut state = self.shared.lock();
        state.waiting.push_back((self.pushed, Box::new(work)));
        self.pushed += 1;
        if state.threads < self.helpers {
            let shared = Arc::clone(&self.shared);
            // If no thread can be started, the owner does the work.
            let thread = thread::Builder::new().spawn(move || shared.work_off());
            state.threads += usize::from(thread.is_ok());
        }
    }

    /// Takes the next outcome; `None` if all were taken.
    ///
    /// # Panics
    /// If the work panicked.
    pub fn take(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let wanted = self.taken;
        self.taken += 1;
        let mut state = self.shared.lock();
        loop {
            if let Some(outcome) = state.outcomes.remove(&wanted) {
                drop(state);
                return Some(outcome.unwrap_or_else(|panic| panic::resume_unwind(panic)));
            }
            state = match state.waiting.pop_front() {
                Some(next) => {
                    drop(state);
                    self.shared.work(next)
                }
                None => self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<T> Drop for OrderedQueue<T> {
    fn drop(&mut self) {
        self.shared.lock().waiting.clear();
    }
}

/// The threads that do the work of [`Workers::share`], [`Workers::in_order`], [`Workers::beside`]
/// and an [`OrderedQueue`]. The outcome is always the same. The order of the work is fixed only
/// with [`Workers::Inline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// Only the caller's thread.
    #[default]
    Inline,
    /// The caller and this many threads, which live as long as their work.
    Threads(NonZero<usize>),
}

impl Workers {
    /// As many threads as the machine has processors, up to a limit.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        NonZero::new((processors - 1).min(HELPERS_MAX)).map_or(Self::Inline, Self::Threads)
    }

    /// The number of threads besides the caller's.
    fn helpers(self) -> usize {
        match self {
            Self::Inline => 0,
            Self::Threads(helpers) => helpers.get(),
        }
    }

    /// Does `work` on a thread of its own, and `own` on the caller's thread.
    ///
    /// `own` is given a function that says whether the work is still going on. Without threads, the
    /// caller does both: first `own`, which is told that no work is going on, then `work`.
    pub fn beside<T: Send>(self, work: impl FnOnce() -> T + Send, own: impl FnOnce(&dyn Fn() -> bool)) -> T {
        if self.helpers() == 0 {
            own(&|| false);
            return work();
        }
        // If no thread can be started, the caller does the work.
        let work = Mutex::new(Some(work));
        let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, || take().map(|work| work())) {
            Ok(thread) => {
                own(&|| !thread.is_finished());
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            }
            Err(_) => {
                own(&|| false);
                take().map(|work| work())
            }
        })
        .expect("one of both takes it")
    }

    /// Does each job once, and `own` on the caller's thread, which then helps with the jobs.
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
                    // If no thread can be started, the caller does the work.
                    let _ = thread::Builder::new().spawn_scoped(scope, run);
                }
                all()
            }),
        }
    }

    /// Does each job once, and passes the outcomes to `own` on the caller's thread, in the order of
    /// the jobs. While the next outcome is missing, the caller does jobs, too.
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
                let help = move || iter::from_fn(next).try_for_each(|outcome| done.send(outcome));
                // If no thread can be started, the caller does the work.
                let _ = thread::Builder::new().spawn_scoped(scope, help);
            }
            // Ends the wait below if a helper panicked.
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

/// Starts a thread for some work.
///
/// # Errors
/// Returns the work if no thread can be started.
pub fn spawn_thread<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    name: &str,
    work: W,
) -> Result<thread::JoinHandle<T>, W> {
    let place = Arc::new(Mutex::new(Some(work)));
    let take = |place: &Mutex<Option<W>>| place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let taken = Arc::clone(&place);
    let run = move || take(&taken).expect("the thread takes it, as it began")();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|_| take(&place).expect("no thread took it"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn every_job_is_done_once_by_any_number_of_threads() {
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
    fn outcomes_of_a_queue_come_in_order_from_any_number_of_threads() {
        for workers in [Workers::Inline, Workers::Threads(NonZero::<usize>::MIN), Workers::of_this_machine()] {
            let mut queue = OrderedQueue::new(workers);
            let mut squares = Vec::new();
            for n in 0..1000_u64 {
                queue.push(move || n * n);
                // Between 0 and 19 pieces of work wait, varying with `n`.
                while queue.len() > n as usize / 7 % 20 {
                    squares.extend(queue.take());
                }
            }
            squares.extend(iter::from_fn(|| queue.take()));
            assert!(squares.into_iter().eq((0..1000).map(|n| n * n)));
            assert!(queue.is_empty() && queue.take().is_none());
        }
    }

    #[test]
    fn the_owner_of_a_queue_does_jobs_that_no_thread_has_begun() {
        let owner = thread::current().id();
        let mut queue = OrderedQueue::new(Workers::Threads(NonZero::<usize>::MIN));
        let (told, hears) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        queue.push(move || {
            begun.send(()).expect("somebody listens");
            hears.recv().expect("it is told");
            thread::current().id()
        });
        begins.recv().expect("the thread begins");
        assert!(queue.is_going());
        // The only thread is busy with the first piece, which ends once this piece runs.
        queue.push(move || {
            told.send(()).expect("it waits");
            thread::current().id()
        });
        assert_ne!(queue.take(), Some(owner));
        assert_eq!((queue.take(), queue.is_going()), (Some(owner), false));
        let mut inline = OrderedQueue::new(Workers::Inline);
        inline.push(|| thread::current().id());
        assert!(!inline.is_going());
        assert_eq!(inline.take(), Some(owner));
    }

    #[test]
    fn jobs_that_wait_in_a_dropped_queue_are_not_done() {
        let (told, hears) = mpsc::channel::<()>();
        let mut queue = OrderedQueue::new(Workers::Inline);
        queue.push(move || told.send(()).is_ok());
        drop(queue);
        assert!(hears.recv().is_err(), "nobody will tell");
    }

    #[test]
    #[should_panic(expected = "a helper's")]
    fn the_caller_that_takes_an_outcome_gets_its_panic() {
        let mut queue = OrderedQueue::new(Workers::Threads(NonZero::<usize>::MIN));
        queue.push(|| panic!("a helper's"));
        queue.take();
    }

    #[test]
    fn the_caller_does_its_own_work_while_a_thread_does_other_work() {
        let threads = Workers::Threads(NonZero::<usize>::MIN);
        let (told, hears) = mpsc::channel();
        // The work ends when it is told to. The caller tells it while the work is going on.
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
