//! Snapshots: pinned on the leader, fetched file by file into a side directory, checked, then switched to.
//!
//! What a crash leaves on the receiver: before the copy is noted as complete, a side directory that is resumed or dropped; after that,
//! raft tells whether it has taken the snapshot, and the start finishes the switch if it has.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use coppice_consensus::{Position, SnapshotOffer};
use coppice_env::Storage;
use coppice_proto::v1::{FetchSnapshotRequest, peer_client::PeerClient};
use coppice_types::ErrorKind;
use tonic::{Request, transport::Channel};

use super::{actor::Actor, handle::Input, start::Config};
use crate::{
    Error,
    home::IncomingCopy,
    limits::SNAPSHOT_CHUNK_BYTES,
    machine::{Receiver, StateMachine},
    mailbox::{Lane, Mailbox},
    peers,
};

/// How long a pin is kept after its last use.
const PIN_IDLE: Duration = Duration::from_secs(10);
/// How long a peer may show no sign of fetching before it is sent the snapshot again.
const FETCH_IDLE: Duration = Duration::from_secs(3);
/// How long one part of a file may take to arrive.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(2);
/// Failures in a row, without a byte between them, after which a fetch is given up.
const FAILURES_MAX: u32 = 20;
/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(100);

impl<M: StateMachine> Actor<M> {
    /// A follower wants a snapshot at this entry or a later one.
    pub(super) fn want_pin(&mut self, index: u64) -> Result<(), Error> {
        self.wanted = Some(index);
        self.pin()
    }

    /// Pins a copy of the present state, once enough is applied.
    pub(super) fn pin(&mut self) -> Result<(), Error> {
        if self.wanted.is_none_or(|wanted| wanted > self.applied.index) {
            return Ok(());
        }
        self.unpin();
        let position = self.applied;
        let pinned = match self.machine().as_mut() {
            Some(machine) => machine.pin_snapshot(position),
            None => return Ok(()),
        };
        match pinned {
            Ok(pinned) => {
                self.wanted = None;
                self.pinned = Some(pinned.id);
                self.snapshot_used_at = self.now();
                if let Err(error) = self.group.set_snapshot(pinned.position.index, pinned.manifest.into()) {
                    tracing::warn!(%error, "raft has no use for the pinned snapshot");
                    self.unpin();
                }
                Ok(())
            }
            // Tried again by and by.
            Err(error) if error.kind() != ErrorKind::Corrupted => {
                tracing::warn!(error = error.chain(), "no snapshot could be pinned");
                Ok(())
            }
            Err(error) => self.failed(error),
        }
    }

    pub(super) fn unpin(&mut self) {
        if let Some(id) = self.pinned.take() {
            self.group.clear_snapshot();
            if let Some(machine) = self.machine().as_mut() {
                machine.unpin_snapshot(id);
            }
        }
    }

    /// A snapshot from before a change of members is of no use to new ones: it goes, unless someone is fetching it.
    pub(super) fn unpin_outdated(&mut self) {
        if self.now().saturating_sub(self.handed_out_at()) > FETCH_IDLE {
            self.unpin();
        }
    }

    /// Repeats snapshots that got lost, and ends pins that nobody uses.
    pub(super) fn care_for_snapshots(&mut self) -> Result<(), Error> {
        let now = self.now();
        let used = self.snapshot_used_at.max(self.handed_out_at());
        let status = self.group.status();
        let receiving: Vec<_> = status.peers.iter().filter(|peer| peer.snapshotting).map(|peer| peer.id).collect();
        if !receiving.is_empty() && now.saturating_sub(used) > FETCH_IDLE {
            // A new one: the old one may be from before the receiver became a member, and then it is of no use to it.
            self.unpin();
            receiving.into_iter().for_each(|id| self.group.report_snapshot(id, false));
            self.snapshot_used_at = now;
        } else if receiving.is_empty() && now.saturating_sub(used) > PIN_IDLE {
            self.unpin();
        }
        self.pin()
    }

    /// Another replica offers its state: it is fetched on a thread of its own while this one goes on.
    pub(super) fn take_in(&mut self, offer: SnapshotOffer) -> Result<(), Error> {
        let SnapshotOffer { position, from, manifest } = offer;
        if self.fetching.is_some() {
            return Ok(());
        }
        let Some(node) = self.config.hosted.node_of(from.0) else {
            return Ok(self.group.refuse_snapshot(position)?);
        };
        let incoming = self.home.begin_incoming(position, &manifest)?;
        let fetch = Fetch {
            config: self.config.clone(),
            mailbox: Arc::clone(&self.shared.mailbox),
            storage: self.home.state_of(&incoming)?,
            manifest: manifest.to_vec(),
            node,
        };
        let thread = std::thread::Builder::new()
            .name(format!("{} fetch", self.config.identity.group))
            .spawn(move || {
                let result = fetch.run().map_err(|error| error.chain());
                // A closed mailbox needs no news.
                let _ = fetch.mailbox.put(Lane::Requests, Input::Fetched(position, result));
            })
            .map_err(crate::error::storage("start a thread"))?;
        self.fetching = Some((incoming, thread));
        Ok(())
    }

    /// A fetch has ended.
    pub(super) fn fetched(&mut self, position: Position, result: Result<(), String>) -> Result<(), Error> {
        let Some((incoming, thread)) = self.fetching.take() else { return Ok(()) };
        // The thread's last act was to say so.
        let _ = thread.join();
        match result {
            Ok(()) => {
                self.home.complete_incoming(&incoming)?;
                self.incoming = Some(incoming);
                Ok(self.group.accept_snapshot(position)?)
            }
            Err(note) => {
                tracing::warn!(group = %self.config.identity.group, note, "a snapshot could not be fetched");
                Ok(self.group.refuse_snapshot(position)?)
            }
        }
    }

    /// Raft had no use for a snapshot that was fetched: entries have brought this replica further.
    pub(super) fn discarded(&mut self, position: Position) -> Result<(), Error> {
        if self.incoming.take_if(|incoming| incoming.position == position).is_some() {
            self.home.drop_incoming()?;
        }
        Ok(())
    }

    /// Raft has taken the snapshot: the fetched state is the state from now on.
    pub(super) fn install(&mut self, position: Position) -> Result<(), Error> {
        let incoming = self.incoming.take().filter(|incoming| incoming.position == position);
        let Some(incoming) = incoming else {
            return Err(Error::Damaged {
                file: "incoming",
                what: "raft took another snapshot than was fetched".to_owned(),
            });
        };
        let quarantined = self.group.quarantined().is_some();
        self.unpin();
        *self.machine() = None;
        self.home.install_incoming(&incoming, quarantined)?;
        let machine = M::open(self.home.state()?, &self.config.machine)?;
        if machine.durable() != position {
            return Err(Error::Damaged { file: "current", what: "the snapshot is of another entry".to_owned() });
        }
        *self.machine() = Some(machine);
        if quarantined {
            self.group.clear_quarantine()?;
        }
        self.installed(position);
        Ok(())
    }
}

/// Ends the thread that fetches; the mailbox is closed.
pub(super) fn join(fetching: Option<(IncomingCopy, JoinHandle<()>)>) {
    if let Some((_, thread)) = fetching {
        // It ends by itself when it sees the closed mailbox.
        let _ = thread.join();
    }
}

/// What a fetching thread needs.
struct Fetch<M: StateMachine> {
    config: Config<M>,
    mailbox: Arc<Mailbox<Input<M>>>,
    storage: Arc<dyn Storage>,
    manifest: Vec<u8>,
    node: String,
}

impl<M: StateMachine> Fetch<M> {
    fn run(&self) -> Result<(), Error> {
        let hosted = &self.config.hosted;
        let _in_runtime = hosted.runtime.enter();
        let (id, _) = M::manifest_position(&self.manifest)?;
        let client =
            PeerClient::new(hosted.connector.channel(&self.node)).max_decoding_message_size(2 * SNAPSHOT_CHUNK_BYTES);
        let mut receiver = M::receive(Arc::clone(&self.storage), &self.manifest)?;
        let mut failures = 0;
        while let Some((file, offset)) = receiver.next() {
            if self.mailbox.is_closed() {
                return Err(Error::Overdue("the fetch of a snapshot"));
            }
            let request = FetchSnapshotRequest {
                group: self.config.identity.group.number(),
                snapshot_id: id,
                file: file.clone(),
                offset,
            };
            let fetched = hosted.runtime.block_on(self.fetch_file(client.clone(), request, &mut receiver));
            let moved = receiver.next() != Some((file, offset));
            match fetched {
                Err(error) if moved => tracing::debug!(error = error.chain(), "a fetch is resumed"),
                Err(error) if failures >= FAILURES_MAX => return Err(error),
                Ok(()) if !moved && failures >= FAILURES_MAX => return Err(Error::Overdue("a part of a snapshot")),
                _ => {}
            }
            if moved {
                failures = 0;
            } else {
                failures += 1;
                hosted.runtime.block_on(tokio::time::sleep(RETRY_DELAY));
            }
        }
        receiver.finish()
    }

    /// Fetches one file from where it stands to its end, or as far as it goes.
    async fn fetch_file(
        &self,
        mut client: PeerClient<Channel>,
        request: FetchSnapshotRequest,
        receiver: &mut M::Receiver,
    ) -> Result<(), Error> {
        let (file, mut offset) = (request.file.clone(), request.offset);
        let mut request = Request::new(request);
        peers::name_caller(&mut request, &self.config.hosted.node, self.config.identity.cluster);
        let overdue = |_| Error::Overdue("a part of a snapshot");
        let call = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(request));
        let mut chunks = call.await.map_err(overdue)??.into_inner();
        while !self.mailbox.is_closed() {
            let chunk = tokio::time::timeout(CHUNK_TIMEOUT, chunks.message()).await.map_err(overdue)??;
            let Some(chunk) = chunk else {
                // The sender has no more. For an empty file that is all there is to take.
                return if offset == 0 { receiver.write(&file, 0, &[]) } else { Ok(()) };
            };
            receiver.write(&file, offset, &chunk.data)?;
            offset = offset.saturating_add(chunk.data.len() as u64);
            if receiver.next().is_none_or(|(next, at)| next != file || at != offset) {
                break;
            }
        }
        Ok(())
    }
}
