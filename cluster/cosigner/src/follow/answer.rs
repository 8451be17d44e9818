//! Answers requests for cosignatures. A request waits for the mirror, and for the audit, a bounded
//! time.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use coppice_verify::{checkpoint::Checkpoint, cosignature::Request};
use tokio::time::timeout;

use super::{Shared, Which};
use crate::{
    convict::Judged,
    error::Error,
    witness::{Answer, Outcome},
};

/// How long a request waits for the mirror to grow, and for the audit.
const GROWTH_WAIT: Duration = Duration::from_secs(5);

impl Shared {
    /// Answers a request for a cosignature.
    ///
    /// # Errors
    /// If the disk refuses or the state is damaged. Nothing was signed then.
    pub async fn add_checkpoint(self: &Arc<Self>, which: Which, body: Bytes) -> Result<Answer, Error> {
        if which == Which::Auditor {
            self.share_evidence().await?;
        }
        let (asked, again) = (body.clone(), body.clone());
        let note = match self.with_one(which, move |machine| machine.add_checkpoint(&asked)).await? {
            Outcome::Behind(note) => note,
            Outcome::Done(Answer::Untrusted) => {
                // The ledger may have changed its key. The witness may know that already.
                self.wake();
                match Request::parse(&body) {
                    Ok(request) if which == Which::Auditor && self.knows_signer(request.note.to_vec()).await? => {
                        request.note.to_vec()
                    }
                    _ => return Ok(Answer::Untrusted),
                }
            }
            Outcome::Done(answer) => return Ok(answer),
        };
        let size = Checkpoint::claimed(&note).map_or(0, |checkpoint| checkpoint.size);
        let ready = async {
            let mirrored = self.catch_up(note.clone(), size).await?;
            if mirrored && which == Which::Auditor {
                self.audited(size).await;
            }
            Ok(mirrored)
        };
        match timeout(GROWTH_WAIT, ready).await {
            Ok(Ok(true)) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(false)) | Err(_) => {
                self.with(move |witness| witness.put_off(&note)).await?;
                return Ok(Answer::NotNow(match which {
                    Which::Witness => "the log of the checkpoint is not here yet",
                    Which::Auditor => "the log of the checkpoint is not audited yet",
                }));
            }
        }
        match self.with_one(which, move |machine| machine.add_checkpoint(&again)).await? {
            Outcome::Done(answer) => Ok(answer),
            Outcome::Behind(_) => Ok(Answer::NotNow("the log of the checkpoint is not here yet")),
        }
    }

    async fn knows_signer(self: &Arc<Self>, note: Vec<u8>) -> Result<bool, Error> {
        self.with(move |witness| Ok(witness.judge(&note)? != Judged::Unsigned)).await
    }

    /// Lets the mirror grow up to a signed note. Returns whether the log has the note's size now.
    /// The growth goes on if the caller no longer waits.
    async fn catch_up(self: &Arc<Self>, note: Vec<u8>, size: u64) -> Result<bool, Error> {
        let place = self.growing.clone().lock_owned().await;
        if self.with(move |witness| Ok(witness.size() >= size)).await? {
            return Ok(true);
        }
        let shared = self.clone();
        let task = tokio::spawn(async move { shared.grow(&note, &shared.logs, place).await });
        Ok(task.await.is_ok_and(|grown| grown.is_ok()))
    }
}
