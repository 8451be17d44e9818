//! The checkpoint that the public is shown.
//!
//! If there are no witnesses, it is the newest signed one, fetched from the root group at most once
//! a second. Otherwise it is the newest cosigned one, unless cosignatures are overdue. The size
//! that is shown never shrinks.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, time::Instant};
use tonic::Status;

use crate::{groups::root_log::RootLog, shown::Shown};

/// How long a checkpoint is shown before the root group is asked for a newer one.
const AGE_MAX: Duration = Duration::from_secs(1);
/// How long an older cosigned checkpoint is preferred to a newer one without cosignatures.
const COSIGNED_AGE_MAX: Duration = Duration::from_secs(60);

/// Shows the newest checkpoint.
#[derive(Debug)]
pub struct Publisher {
    log: Arc<RootLog>,
    state: Arc<Shown>,
    /// The checkpoint that was shown last.
    newest: Mutex<Option<Newest>>,
}

#[derive(Clone, Debug)]
struct Newest {
    size: u64,
    note: Bytes,
    at: Instant,
}

impl Publisher {
    /// Publishes this log.
    pub fn new(log: Arc<RootLog>, state: Arc<Shown>) -> Self {
        Self { log, state, newest: Mutex::default() }
    }

    /// A checkpoint whose entries are committed. Concurrent callers share one request to the root
    /// group.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum of the root group.
    pub async fn checkpoint(&self) -> Result<Bytes, Status> {
        let mut newest = self.newest.lock().await;
        if let Some(newest) = &*newest
            && newest.at.elapsed() < AGE_MAX
        {
            return Ok(newest.note.clone());
        }
        let at = Instant::now();
        let view = self.log.view().await?;
        let cosigned = self.state.cosigned.borrow().clone().filter(|cosigned| {
            let grown = newest.as_ref().is_none_or(|newest| cosigned.size >= newest.size);
            grown && (cosigned.size == view.log_size || cosigned.since.elapsed() < COSIGNED_AGE_MAX)
        });
        let (size, note) = match cosigned {
            Some(cosigned) => (cosigned.size, cosigned.note.clone()),
            None => {
                let (view, note) = self.log.signed(view).await?;
                (view.log_size, note)
            }
        };
        *newest = Some(Newest { size, note: note.clone(), at });
        Ok(note)
    }
}
