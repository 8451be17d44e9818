//! The checkpoint that strangers are shown.
//!
//! Without witnesses it is the newest signed one, learnt from the root group at most once a second. With witnesses it is the
//! newest cosigned one, unless they have been away for too long; and what is shown never shrinks.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, time::Instant};
use tonic::Status;

use crate::exec::context::Context;

/// How long a checkpoint is shown before the root group is asked for a newer one.
const AGE_MAX: Duration = Duration::from_secs(1);
/// How long an older cosigned checkpoint is preferred to a newer one that witnesses have not cosigned.
const COSIGNED_AGE_MAX: Duration = Duration::from_secs(60);

/// A checkpoint that enough witnesses have cosigned.
#[derive(Clone, Debug)]
pub struct Cosigned {
    /// Entries.
    pub size: u64,
    /// The signed note with the cosignatures.
    pub note: Bytes,
    /// When it was the newest.
    pub since: Instant,
}

/// Knows the newest checkpoint.
#[derive(Debug)]
pub struct Publisher {
    context: Arc<Context>,
    shown: Mutex<Option<Shown>>,
}

#[derive(Clone, Debug)]
struct Shown {
    size: u64,
    note: Bytes,
    at: Instant,
}

impl Publisher {
    /// Publishes the log that `context` knows.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, shown: Mutex::default() }
    }

    /// A checkpoint whose entries are committed. Many callers wait for one question to the root group.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum of the root group.
    pub async fn checkpoint(&self) -> Result<Bytes, Status> {
        let mut shown = self.shown.lock().await;
        if let Some(shown) = &*shown
            && shown.at.elapsed() < AGE_MAX
        {
            return Ok(shown.note.clone());
        }
        let at = Instant::now();
        let view = self.context.view().await?;
        let cosigned = self.context.cosigned.borrow().clone().filter(|cosigned| {
            let grown = shown.as_ref().is_none_or(|shown| cosigned.size >= shown.size);
            grown && (cosigned.size == view.log_size || cosigned.since.elapsed() < COSIGNED_AGE_MAX)
        });
        let (size, note) = match cosigned {
            Some(cosigned) => (cosigned.size, cosigned.note.clone()),
            None => {
                let (view, note) = self.context.signed(view).await?;
                (view.log_size, note)
            }
        };
        *shown = Some(Shown { size, note: note.clone(), at });
        Ok(note)
    }
}
