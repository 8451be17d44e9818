//! The place where long work runs, so that other tasks need not wait for it: threads or, in a
//! simulation, the calling task.
//!
//! On the calling task, no two jobs run at the same time, so the order of all events follows from
//! the order of the tasks alone.

use std::{fmt, sync::Arc, time::Duration};

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

/// Sleeps for the time that a disk took.
pub async fn rest(took: Duration) {
    if !took.is_zero() {
        tokio::time::sleep(took).await;
    }
}
