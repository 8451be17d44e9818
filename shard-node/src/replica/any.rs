//! A replica with any kind of state machine: the operations that a node uses on all its replicas.

use std::{sync::atomic::Ordering, time::Duration};

use coppice_proto::v1;
use coppice_types::{ErrorKind, RaftId, Reason};
use futures::{FutureExt, future::BoxFuture};

use super::{
    handle::ReplicaHandle,
    input::{Change, Input},
    machine::StateMachine,
    mailbox::Lane,
    shared::{Counts, Traffic},
    status::Status,
};
use crate::{Error, limits::SNAPSHOT_CHUNK_BYTES, refusal::Refusal};

/// How long a replica may take to hand over leadership and flush.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running replica of any group.
pub trait AnyReplica: Send + Sync {
    fn raft_id(&self) -> RaftId;

    /// The replica's current status.
    fn status(&self) -> Status;

    /// Whether the replica has a state: it is not quarantined, and does not wait for a first
    /// snapshot.
    fn is_open(&self) -> bool;

    /// How many messages from other replicas, and how many requests, wait in the mailbox.
    fn waiting(&self) -> (u64, u64);

    fn counts(&self) -> &Counts;

    fn traffic(&self) -> &Traffic;

    /// Passes on a message of another replica; it may be dropped.
    fn peer(&self, message: v1::PeerMessage, node: &str);

    /// Tells the replica that a node cannot be reached.
    fn unreachable(&self, node: &str);

    /// Wakes the replica, if it sleeps. The node of another member was silent for `silence`.
    fn wake(&self, silence: Duration);

    /// Changes the group's members. The replica must lead.
    ///
    /// # Errors
    /// If the replica does not lead, or the change is refused or not done in time.
    fn change(&self, limit: Duration, change: Change) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Bytes of a pinned snapshot.
    ///
    /// # Errors
    /// If the snapshot is not pinned, or no longer, or cannot be read.
    fn read_snapshot<'a>(
        &'a self,
        request: &'a v1::FetchSnapshotRequest,
        offset: u64,
        now: Duration,
    ) -> BoxFuture<'a, Result<Vec<u8>, Refusal>>;

    /// Ends the replica gracefully. Leadership is handed over first if `hand_over` is set.
    fn retire(&self, hand_over: bool) -> BoxFuture<'_, ()>;

    /// Ends the replica as if its process had died.
    fn close(&self);
}

impl<M: StateMachine> AnyReplica for ReplicaHandle<M> {
    fn raft_id(&self) -> RaftId {
        self.raft_id
    }

    fn status(&self) -> Status {
        Self::status(self)
    }

    fn is_open(&self) -> bool {
        Self::is_open(self)
    }

    fn waiting(&self) -> (u64, u64) {
        self.shared.mailbox.waiting()
    }

    fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    fn peer(&self, message: v1::PeerMessage, node: &str) {
        if self.shared.mailbox.put(Lane::Peers, Input::Peer(message, node.to_owned())).is_err() {
            tracing::trace!(group = %self.group, "a peer's message was dropped: the replica is behind");
        }
    }

    fn unreachable(&self, node: &str) {
        // If the lane is full, the report is dropped. The next lost message repeats it.
        let _ = self.shared.mailbox.put(Lane::Peers, Input::Unreachable(node.to_owned()));
    }

    fn wake(&self, silence: Duration) {
        // If the lane is full, what is in it wakes the replica.
        let _ = self.shared.mailbox.put(Lane::Peers, Input::Wake(silence));
    }

    fn change(&self, limit: Duration, change: Change) -> BoxFuture<'_, Result<(), Refusal>> {
        self.ask(limit, |answer| Input::Change(change, answer)).boxed()
    }

    fn read_snapshot<'a>(
        &'a self,
        request: &'a v1::FetchSnapshotRequest,
        offset: u64,
        now: Duration,
    ) -> BoxFuture<'a, Result<Vec<u8>, Refusal>> {
        read_snapshot(self, request, offset, now).boxed()
    }

    fn retire(&self, hand_over: bool) -> BoxFuture<'_, ()> {
        let retired = self.ask(RETIRE_TIMEOUT, move |answer| Input::Retire(hand_over, answer));
        let retired = retired.map(|retired| {
            if let Err(refusal) = retired {
                tracing::warn!(reason = %refusal.reason, refusal.message, "a replica did not retire in order");
            }
        });
        retired.boxed()
    }

    fn close(&self) {
        self.shared.mailbox.close();
    }
}

async fn read_snapshot<M: StateMachine>(
    replica: &ReplicaHandle<M>,
    request: &v1::FetchSnapshotRequest,
    offset: u64,
    now: Duration,
) -> Result<Vec<u8>, Refusal> {
    let (id, file) = (request.snapshot_id, request.file.clone());
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    if file.is_empty() {
        // The receiver has the whole copy and checks it. Meanwhile it asks the sender to keep the
        // pin.
        replica.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
        return Ok(Vec::new());
    }
    let read = move |machine: &M| {
        let refuse = |error: Error| {
            let gone = error.kind() == ErrorKind::NotFound;
            Refusal::new(if gone { Reason::NotFound } else { Reason::Unavailable }, error.chain())
        };
        machine.read_snapshot(id, &file, offset, SNAPSHOT_CHUNK_BYTES).map_err(refuse)
    };
    let bytes = replica.read(read).await?;
    replica.shared.traffic.given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    replica.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use coppice_types::GroupId;

    use super::*;
    use crate::replica::{
        machine::Position,
        tests::{Script, Toy, full, handle, toy},
    };

    /// A replica with a pinned snapshot, and the pin.
    fn pinned(script: &Script) -> (ReplicaHandle<Toy>, u64) {
        let mut machine = toy(script);
        let pin = machine.pin_snapshot(Position { index: 3, term: 1 }).expect("there is room").id;
        (handle(GroupId::Root, Some(machine)), pin)
    }

    fn of(snapshot_id: u64, file: &str) -> v1::FetchSnapshotRequest {
        v1::FetchSnapshotRequest { snapshot_id, file: file.to_owned(), ..Default::default() }
    }

    async fn read(replica: &ReplicaHandle<Toy>, request: &v1::FetchSnapshotRequest, ms: u64) -> Result<usize, Reason> {
        let bytes = AnyReplica::read_snapshot(replica, request, 0, Duration::from_millis(ms)).await;
        bytes.map(|bytes| bytes.len()).map_err(|refusal| refusal.reason)
    }

    #[tokio::test]
    async fn a_part_of_a_snapshot_keeps_its_pin_alive_and_is_counted_and_a_failed_read_does_neither() {
        let script = Script::default();
        let (replica, pin) = pinned(&script);
        let told = || {
            (replica.shared.fetched_ms.load(Ordering::Relaxed), replica.shared.traffic.given.load(Ordering::Relaxed))
        };
        assert_eq!(read(&replica, &of(pin + 1, "toy"), 50).await, Err(Reason::NotFound));
        assert_eq!(read(&replica, &of(pin, "../toy"), 50).await, Err(Reason::NotFound));
        script.fail("read_snapshot", full());
        assert_eq!(read(&replica, &of(pin, "toy"), 50).await, Err(Reason::Unavailable), "it may be asked again");
        assert_eq!(told(), (0, 0));
        let len = read(&replica, &of(pin, "toy"), 60).await.expect("it is pinned");
        assert_eq!(told(), (60, len as u64));
        assert_eq!(read(&replica, &of(pin, ""), 70).await, Ok(0), "a receiver that checks its copy");
        assert_eq!(told(), (70, len as u64));
    }

    #[tokio::test]
    async fn a_replica_without_a_state_has_no_snapshot() {
        let replica = handle::<Toy>(GroupId::Root, None);
        assert_eq!(read(&replica, &of(1, "toy"), 50).await, Err(Reason::Unavailable));
    }
}
