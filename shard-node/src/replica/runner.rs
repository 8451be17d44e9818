//! Where the work of a node runs that other tasks should not wait for: on threads, or, in a simulation, in place.
//!
//! In place nothing runs beside anything else, so that the order of all events follows from the order of the tasks alone.

use std::{fmt, sync::Arc, time::Duration};

/// How long the disks took since it was asked last.
type Took = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Where replicas and blocking jobs run.
#[derive(Clone, Default)]
pub enum Runner {
    /// Each replica on a thread of its own, jobs on the runtime's threads for them.
    #[default]
    Threads,
    /// Each replica as a task, jobs at once. After each, the task rests for as long as the simulated disk took.
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
    /// Runs a job that may block; none if it broke off.
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

/// Lets the time pass that a disk took.
pub async fn rest(took: Duration) {
    if !took.is_zero() {
        tokio::time::sleep(took).await;
    }
}
