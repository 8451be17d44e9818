//! The place where long work runs, so that other tasks need not wait for it: threads or, in a
//! simulation, the calling task.
//!
//! On the calling task, no two jobs run at the same time, so the order of all events follows from
//! the order of the tasks alone.

use std::{fmt, sync::Arc, thread::JoinHandle, time::Duration};

/// How long the simulated disks took since the last call.
type Took = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The threads or tasks that replicas and blocking jobs run on.
#[derive(Clone, Default)]
pub enum Runner {
    /// Each replica has its own thread; jobs run on the runtime's blocking threads.
    #[default]
    Threads,
    /// Each replica is a task, and jobs run at once. After a job, the task rests for as long as the
    /// simulated disk took.
    Inline(Took),
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "Threads",
            Self::Inline(_) => "Inline",
        })
    }
}

impl Runner {
    /// Runs a job that may block; `None` if the job panicked or was cancelled.
    pub async fn blocking<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(job).await.ok(),
            Self::Inline(took) => {
                let done = job();
                rest(took()).await;
                Some(done)
            }
        }
    }
}

/// Work that a state machine has begun on another thread, and will end itself. Dropping it waits
/// for the thread, so that a directory which is opened again has no other writer.
#[derive(Debug)]
pub struct Job<T>(Option<AtWork<T>>);

#[derive(Debug)]
enum AtWork<T> {
    Thread(JoinHandle<T>),
    /// The work was done in place.
    Done(Box<T>),
}

impl Runner {
    /// Begins work on a thread of this name. It is done in place in a simulation, or if no thread
    /// can be started.
    pub fn begin<T: Send + 'static>(&self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
        Job(Some(match self {
            Self::Threads => match coppice_env::spawn_thread(name, work) {
                Ok(thread) => AtWork::Thread(thread),
                Err(work) => AtWork::Done(Box::new(work())),
            },
            Self::Inline(_) => AtWork::Done(Box::new(work())),
        }))
    }
}

impl<T> Job<T> {
    /// Whether [`Self::end`] returns at once.
    pub fn is_done(&self) -> bool {
        !matches!(&self.0, Some(AtWork::Thread(thread)) if !thread.is_finished())
    }

    /// Waits for the work and returns its result.
    ///
    /// # Panics
    /// If the work panicked: it broke an invariant.
    pub fn end(mut self) -> T {
        match self.0.take().expect("a job is ended once") {
            AtWork::Thread(thread) => thread.join().expect("work beside a state machine breaks no invariant"),
            AtWork::Done(result) => *result,
        }
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        if let Some(AtWork::Thread(thread)) = self.0.take() {
            // Nobody needs its result. The next opening of the directory finds the written files.
            let _ = thread.join();
        }
    }
}

/// Sleeps for the time that a disk took.
pub async fn rest(took: Duration) {
    if !took.is_zero() {
        tokio::time::sleep(took).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_dropped_job_is_waited_for() {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&done);
        let job = Runner::Threads.begin("test-job", move || {
            let _ = begun.recv();
            noted.store(true, Ordering::SeqCst);
        });
        assert!(!job.is_done(), "its work waits for the channel");
        begin.send(()).expect("the thread waits");
        drop(job);
        assert!(done.load(Ordering::SeqCst));
    }

    #[test]
    fn a_simulation_does_a_job_in_place() {
        let job = Runner::Inline(Arc::new(Duration::default)).begin("test-job", || 7);
        assert!(job.is_done());
        assert_eq!(job.end(), 7);
    }

    #[tokio::test]
    async fn a_job_that_panics_on_a_thread_gives_nothing_and_leaves_the_others_alone() {
        let caller = std::thread::current().id();
        let runner = Runner::Threads;
        assert_eq!(runner.blocking(|| -> u32 { panic!("the job is broken") }).await, None);
        let ran_on = runner.blocking(|| std::thread::current().id()).await.expect("it runs");
        assert_ne!(ran_on, caller, "a job never blocks the runtime's thread");
    }

    #[tokio::test]
    async fn an_inline_job_runs_on_the_calling_task_and_asks_once_how_long_its_disk_took() {
        let asked = Arc::new(AtomicU32::new(0));
        let asks = Arc::clone(&asked);
        let runner = Runner::Inline(Arc::new(move || {
            asks.fetch_add(1, Ordering::Relaxed);
            Duration::ZERO
        }));
        let before = Arc::clone(&asked);
        let job = move || (std::thread::current().id(), before.load(Ordering::Relaxed));
        assert_eq!(runner.blocking(job).await, Some((std::thread::current().id(), 0)), "the disk is asked after it");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
