//! The path of a write into the sequencer: it is checked, takes its part of the queue, and waits
//! for its answer.
//!
//! Invariant: at most `queue_max` batches of at most `queue_bytes_max` bytes wait or are being
//! decided. A batch keeps its slot and its bytes until it is answered.

use std::{sync::Arc, time::Duration};

use coppice_proto::{status, timeout::asked, v1};
use coppice_types::{ClusterId, Params, Reason, SessionId};
use coppice_verify::header::Genesis;
use tokio::{
    sync::{OnceCell, Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};
use tonic::{Status, metadata::MetadataMap};

use crate::{
    groups::root_log::RootLog,
    metrics::{self, Metrics},
    options::Limits,
    plan::{Leaves, Refusal, Request},
    quotas::Quotas,
    write::{
        command::{Command, Committed, Entry, Permit},
        trace::Trace,
    },
};

/// The receiving end of a channel for an answer.
pub type Receive<T> = oneshot::Receiver<Result<T, Status>>;

/// The content of the genesis header. It never changes.
#[derive(Clone, Debug)]
pub struct Founded {
    pub cluster: ClusterId,
    pub params: Params,
    /// The shards. Their states are those of an empty ledger.
    pub map: Leaves,
}

/// The entrance to the sequencer. Clones share it.
#[derive(Clone, Debug)]
pub struct Intake {
    pub log: Arc<RootLog>,
    pub limits: Arc<Limits>,
    pub metrics: Arc<Metrics>,
    pub quotas: Arc<Quotas>,
    commands: mpsc::Sender<Command>,
    /// Free places for batches that wait or are being decided, and free bytes.
    queue_slots: Arc<Semaphore>,
    queue_bytes: Arc<Semaphore>,
    genesis: Arc<OnceCell<Founded>>,
}

impl Intake {
    /// An entrance with an empty queue. `message_bytes` is the size of the largest message, which
    /// always fits the queue.
    pub fn new(
        log: Arc<RootLog>,
        limits: Arc<Limits>,
        metrics: Arc<Metrics>,
        commands: mpsc::Sender<Command>,
        message_bytes: usize,
    ) -> Self {
        let bytes_max = message_bytes.max(limits.queue_bytes_max as usize);
        let queue_bytes = Arc::new(Semaphore::new(bytes_max));
        let queue_slots = Arc::new(Semaphore::new(limits.queue_max));
        metrics::show_queue((&queue_slots, limits.queue_max), (&queue_bytes, bytes_max));
        let quotas = Arc::new(Quotas::new(&limits));
        Self { log, limits, metrics, quotas, commands, queue_slots, queue_bytes, genesis: Arc::default() }
    }

    /// The content of the genesis header, read from the first view.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum of the root group.
    pub async fn genesis(&self) -> Result<&Founded, Status> {
        let found = || async {
            let view = self.log.any_view().await?;
            let Genesis { params, shard_map, .. } = &view.genesis;
            let map = Leaves::new(shard_map.genesis_leaves())?;
            Ok(Founded { cluster: view.tail.header.cluster, params: params.clone(), map })
        };
        self.genesis.get_or_try_init(found).await
    }

    /// Checks and routes a batch.
    ///
    /// # Errors
    /// The limit that the batch exceeds, or the field that is wrong.
    pub async fn admit(&self, batch: Option<v1::Batch>, session: Option<(SessionId, u64)>) -> Result<Request, Status> {
        let batch = batch.ok_or_else(|| Refusal::invalid("a batch is missing"))?;
        let Founded { params, map, .. } = self.genesis().await?;
        Ok(Request::admit(batch, session, map, params)?)
    }

    /// Sends a command to the sequencer.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if too many wait; `UNAVAILABLE` if the coordinator stops.
    pub fn send(&self, command: Command) -> Result<(), Status> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.full(),
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })
    }

    /// Tells the sequencer that a session was opened. If the channel is full, nothing is sent, and
    /// the sequencer asks the root group when it first meets the session.
    pub fn tell_opened(&self, id: SessionId, highest: u64) {
        let _ = self.commands.try_send(Command::SessionOpened(id, highest));
    }

    fn full(&self) -> Status {
        let message = format!("queue_max is {}: too many batches wait; try again later", self.limits.queue_max);
        status::refuse(Reason::ResourceExhausted, message)
    }

    /// Sends a batch to the sequencer once the queue has room for it.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the coordinator stops.
    pub async fn queue(
        &self,
        request: Arc<Request>,
        want_receipt: bool,
        limit: Duration,
    ) -> Result<Receive<Committed>, Status> {
        let slot = self.queue_slots.clone().acquire_owned().await.map_err(|_| stopping())?;
        let bytes = self.queue_bytes.clone().acquire_many_owned(weight(&request)).await.map_err(|_| stopping())?;
        let command = self.commands.reserve().await.map_err(|_| stopping())?;
        // Batches of a stream are not traced, since a stream's span would not end for a long time.
        let (entry, receive) = entry(request, want_receipt, limit, Trace::new(), [slot, bytes]);
        command.send(Command::Commit(entry));
        Ok(receive)
    }

    /// Makes an entry for the sequencer, if the queue has room for it.
    ///
    /// # Errors
    /// Those of [`Intake::permits`].
    pub fn entry(
        &self,
        request: Arc<Request>,
        want_receipt: bool,
        limit: Duration,
    ) -> Result<(Entry, Receive<Committed>), Status> {
        let permits = self.permits(&request)?;
        Ok(entry(request, want_receipt, limit, Trace::current(), permits))
    }

    /// Takes a slot and bytes of the queue for a batch.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the queue is full.
    pub fn permits(&self, request: &Request) -> Result<[Permit; 2], Status> {
        let slot = self.queue_slots.clone().try_acquire_owned().map_err(|_| self.full())?;
        let bytes = self.queue_bytes.clone().try_acquire_many_owned(weight(request)).map_err(|_| {
            let bytes_max = self.limits.queue_bytes_max;
            let message = format!("queue_bytes_max is {bytes_max}: too much waits; try again later");
            status::refuse(Reason::ResourceExhausted, message)
        })?;
        Ok([slot, bytes])
    }

    /// How long a batch may wait: no longer than its client does.
    pub fn limit(&self, metadata: &MetadataMap) -> Duration {
        let limit = self.limits.commit_timeout;
        asked(metadata).map_or(limit, |asked| asked.min(limit))
    }

    /// How long a caller waits for the outcome of a write.
    pub fn patience(&self) -> Duration {
        self.limits.commit_timeout + self.limits.root_timeout
    }
}

fn entry(
    request: Arc<Request>,
    want_receipt: bool,
    limit: Duration,
    trace: Trace,
    permits: [Permit; 2],
) -> (Entry, Receive<Committed>) {
    let (reply, receive) = oneshot::channel();
    let deadline = Instant::now() + limit;
    let came = Instant::now();
    (Entry { request, reply, deadline, want_receipt, came, trace, _permits: permits }, receive)
}

/// Waits for the sequencer's answer.
///
/// # Errors
/// The sequencer's refusal; `UNAVAILABLE` if no answer comes in time; the outcome is then unknown.
pub async fn answer<T>(receive: Receive<T>, limit: Duration) -> Result<T, Status> {
    match timeout(limit, receive).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(stopping()),
        Err(_) => Err(status::refuse(Reason::Unavailable, "not decided in time; the outcome is unknown")),
    }
}

/// The queue bytes that a batch takes.
fn weight(request: &Request) -> u32 {
    u32::try_from(request.bytes.max(1)).unwrap_or(u32::MAX)
}

/// The answer to a client whose request ends with the coordinator.
pub fn stopping() -> Status {
    status::refuse(Reason::Unavailable, "the coordinator stopped; the outcome is unknown")
}

/// Reads session and number of a request; `None` if it has neither.
///
/// # Errors
/// `INVALID_ARGUMENT` if one of them is missing or malformed.
pub fn session_of(id: &[u8], number: u64) -> Result<Option<(SessionId, u64)>, Refusal> {
    if id.is_empty() {
        return if number == 0 { Ok(None) } else { Err(Refusal::invalid("a number needs a session_id")) };
    }
    let id = SessionId::from_slice(id).ok_or_else(|| Refusal::invalid("a session_id must have 16 bytes"))?;
    if number == 0 {
        return Err(Refusal::invalid("numbers of a session must be at least 1"));
    }
    Ok(Some((id, number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_needs_both_its_parts() {
        let id = [7; 16];
        assert_eq!(session_of(&[], 0), Ok(None));
        assert_eq!(session_of(&id, 1), Ok(Some((SessionId(id), 1))));
        for (id, number) in [(&[][..], 1), (&id, 0), (&[7; 15], 1)] {
            let refusal = session_of(id, number).expect_err("the session is not whole");
            assert_eq!(refusal.reason, Reason::InvalidArgument);
        }
    }
}
