//! One witness: shows it candidates, one request at a time, and passes on the cosignatures that
//! verify.

use std::{sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_proto::v1::{self, read_root_request::Read};
use coppice_types::{Backoff, Digest};
use coppice_verify::{cosignature, note};
use reqwest::StatusCode;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::Status;

use super::{Answer, Candidate, Means, Witness};
use crate::{groups::wire, post::Post};

/// How long a witness may take for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses after failures in a row.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// Longest answer that is read.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;
/// A witness that was asked with a wrong old size answers with the right one, and is asked once
/// more.
const ATTEMPTS_MAX: usize = 2;

/// The reason why a witness has not cosigned.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer: {0}")]
    Transport(String),
    #[error("it answers {0}")]
    Status(StatusCode),
    /// Either the ledger gave two inconsistent answers, or the witness is faulty. An operator
    /// should look.
    #[error("it finds the log inconsistent with what it cosigned before: {0}")]
    Inconsistent(StatusCode),
    #[error("it has cosigned {0} entries, more than there are here")]
    Ahead(u64),
    #[error("it does not say which size it cosigned last")]
    Conflict,
    #[error("its cosignature: {0}")]
    Cosignature(#[source] note::Error),
    #[error("no consistency proof: {0}")]
    Proof(#[source] Box<Status>),
}

/// Shows the witness each candidate. Never returns.
pub(super) async fn follow(
    means: Means,
    post: Post,
    witness: Witness,
    index: usize,
    mut candidates: watch::Receiver<Option<Arc<Candidate>>>,
    answers: mpsc::Sender<Answer>,
) {
    let mut client = WitnessClient { means, post, witness, cosigned_size: 0 };
    let mut backoff = PAUSES;
    while candidates.changed().await.is_ok() {
        let Some(candidate) = candidates.borrow_and_update().clone() else { continue };
        let cosigned = client.cosign(&candidate).await;
        client.means.metrics.asked_witness(client.witness.key.name(), cosigned.is_ok());
        match cosigned {
            Ok(line) => {
                backoff.reset();
                let _ = answers.send(Answer { witness: index, size: candidate.size, line }).await;
            }
            Err(failure) => {
                client.report(&failure);
                let pause = backoff.next_pause();
                sleep(pause + client.jitter(pause)).await;
                // After the pause, the newest candidate is worth another attempt, even if it is the
                // same one.
                candidates.mark_changed();
            }
        }
    }
}

struct WitnessClient {
    means: Means,
    post: Post,
    witness: Witness,
    /// The size that the witness cosigned last, as far as is known. The witness corrects it.
    cosigned_size: u64,
}

impl WitnessClient {
    fn report(&self, failure: &Failure) {
        let name = self.witness.key.name();
        match failure {
            Failure::Inconsistent(_) => tracing::error!(witness = name, %failure, "a witness refuses the log"),
            _ => tracing::warn!(witness = name, %failure, "a witness has not cosigned"),
        }
    }

    fn jitter(&self, pause: Duration) -> Duration {
        pause.mul_f64(self.means.random.below(500) as f64 / 1000.0)
    }

    /// The witness's verified cosignature line for a candidate.
    async fn cosign(&mut self, candidate: &Candidate) -> Result<String, Failure> {
        for _ in 0..ATTEMPTS_MAX {
            let old = self.cosigned_size;
            if old > candidate.size {
                // The witness's claim may be wrong, so the next request asks again.
                self.cosigned_size = 0;
                return Err(Failure::Ahead(old));
            }
            let proof = self.consistency(old, candidate.size).await?;
            let (status, answer) = self.post(cosignature::request(old, &proof, &candidate.note)).await?;
            match status {
                StatusCode::OK => {
                    let picked = self.witness.key.pick(&candidate.note, &answer).map_err(Failure::Cosignature)?;
                    self.cosigned_size = candidate.size;
                    return Ok(picked);
                }
                StatusCode::CONFLICT => {
                    let told = told_size(&answer).filter(|told| *told != old).ok_or(Failure::Conflict)?;
                    self.cosigned_size = told;
                }
                StatusCode::UNPROCESSABLE_ENTITY => return Err(Failure::Inconsistent(status)),
                _ => return Err(Failure::Status(status)),
            }
        }
        Err(Failure::Conflict)
    }

    async fn consistency(&self, old: u64, size: u64) -> Result<Vec<Digest>, Failure> {
        if old == 0 || old == size {
            return Ok(Vec::new());
        }
        let read = v1::LogProofRead { indices: Vec::new(), size, old_size: old };
        let failed = |error| Failure::Proof(Box::new(error));
        let answer = self.means.log.root.read(Read::LogProof(read)).await.map_err(failed)?;
        let path = answer.consistency.unwrap_or_default();
        wire::path_in(&path).map_err(failed)
    }

    async fn post(&self, body: Vec<u8>) -> Result<(StatusCode, Vec<u8>), Failure> {
        let url = format!("{}/add-checkpoint", self.witness.url.trim_end_matches('/'));
        match timeout(TIMEOUT, (self.post)(url, body)).await {
            Ok(answered) => answered.map_err(Failure::Transport),
            Err(_) => Err(Failure::Transport(format!("within {} s", TIMEOUT.as_secs()))),
        }
    }
}

/// The size in the body of a 409: a canonical decimal and a line feed.
fn told_size(answer: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(answer).ok()?;
    let size: u64 = text.strip_suffix('\n').unwrap_or(text).parse().ok()?;
    (format!("{size}\n") == text || size.to_string() == text).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_size_is_a_canonical_decimal() {
        assert_eq!(told_size(b"0\n"), Some(0));
        assert_eq!(told_size(b"12\n"), Some(12));
        assert_eq!(told_size(b"12"), Some(12));
        for bad in [&b""[..], b"\n", b"012\n", b"+1\n", b"-1\n", b"1\n\n", b"1 \n", b"18446744073709551616\n", b"\xff"]
        {
            assert_eq!(told_size(bad), None, "{bad:?}");
        }
    }
}
