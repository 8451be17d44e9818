//! The line of candidates: entering it, and waiting to be its first.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, WatchStream};
use tokio::time::{Instant, sleep, timeout};

use super::{
    endpoints::of_lease,
    keys::revision,
    keyspace::{Keyspace, lease_out, signed},
};
use crate::{CANDIDATES_MAX, Error, LeaseId, Revision};

/// The pause between two reads of the line by a waiting candidate whose watch reports nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Pause after a watch broke.
const PAUSE: Duration = Duration::from_millis(50);
/// Most repetitions of a change because the line has changed meanwhile.
const RACES_MAX: u32 = 100;

impl Keyspace {
    /// Puts a candidate into the line, and returns its token.
    pub async fn stand(&self, lease: LeaseId, name: &str) -> Result<Revision, Error> {
        let (line, mine) = (self.keys.candidates(), self.keys.candidate(lease, name));
        for _ in 0..RACES_MAX {
            let read = self.read(&line, None).await?;
            let waiting = read.mirror.line();
            if let Some((token, _)) = waiting.iter().find(|(_, other)| other.lease == lease && other.name == name) {
                return Ok(*token);
            }
            let (replaced, others): (Vec<_>, Vec<_>) =
                waiting.values().partition(|other| other.lease == lease || other.name == name);
            if others.len() >= CANDIDATES_MAX {
                return Err(Error::Exhausted("candidates"));
            }
            let put = TxnOp::put(mine.as_str(), "", Some(PutOptions::new().with_lease(lease_out(lease)?)));
            let deletes = replaced.iter().map(|old| TxnOp::delete(self.keys.candidate(old.lease, &old.name), None));
            // Only if no candidate has entered the line since it was read.
            let since = signed(read.revision.0.saturating_add(1))?;
            let unchanged = Compare::mod_revision(line.as_str(), CompareOp::Less, since).with_prefix();
            let txn = Txn::new().when([unchanged]).and_then(deletes.chain([put]).collect::<Vec<_>>());
            let answer = self.txn(txn).await.map_err(|error| of_lease(error, lease))?;
            if answer.succeeded() {
                return Ok(answer.header().map_or(Revision(0), |header| revision(header.revision())));
            }
        }
        Err(Error::Exhausted("attempts to stand in line"))
    }

    /// Waits until the candidate is the first in line. Fails if etcd does not answer for
    /// `outage_max`.
    pub async fn first_in_line(&self, lease: LeaseId, token: Revision) -> Result<(), Error> {
        let line = self.keys.candidates();
        let mut stream: Option<WatchStream> = None;
        let mut silent_since = None;
        loop {
            let read = match self.read(&line, None).await {
                Ok(read) => read,
                Err(error) => {
                    let since = *silent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.outage_max {
                        return Err(error);
                    }
                    sleep(LOOK_AGAIN).await;
                    continue;
                }
            };
            silent_since = None;
            let waiting = read.mirror.line();
            if waiting.get(&token).is_none_or(|mine| mine.lease != lease) {
                return Err(Error::LeaseLost(lease));
            }
            if waiting.keys().next() == Some(&token) {
                return Ok(());
            }
            if stream.is_none() {
                stream = self.stream(&line, read.revision).await.ok();
            }
            // Any message, and the end of the watch, only mean that the line must be read again.
            if let Some(events) = &mut stream {
                match timeout(LOOK_AGAIN, events.message()).await {
                    Ok(Ok(Some(message))) if !message.canceled() => {}
                    Ok(_) => {
                        stream = None;
                        sleep(PAUSE).await;
                    }
                    Err(_) => {}
                }
            } else {
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}
