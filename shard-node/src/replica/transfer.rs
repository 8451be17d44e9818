//! Snapshots: pinned on the leader, fetched file by file into a side directory, checked, then switched to.
//!
//! A transfer that is interrupted goes on with what is there already: the receiver tells the hashes of its parts, and the sender sends only
//! those that it has otherwise. A pin is kept for a while after its last use, and the same snapshot offered again. After a restart of the
//! sender, or from another one, it is another snapshot, of which the most part is at the same places: pages are never rewritten in
//! place, though other replicas may have placed them otherwise. While the receiver checks what it has, which may take
//! longer than anything else, it tells the sender that it is still there. If it finds damage, it tells the sender, too (`doubt`), and
//! begins anew.
//!
//! What a crash leaves on the receiver: before the copy is noted as complete, a side directory that is resumed or dropped; after that,
//! raft tells whether it has taken the snapshot, and the start finishes the switch if it has; if not, the copy is used when the same
//! snapshot is offered again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_consensus::{Position, SnapshotOffer};
use coppice_env::{Shortage, Storage};
use coppice_proto::{
    Channel,
    v1::{FetchSnapshotRequest, SnapshotChunk, SnapshotRefused, peer_client::PeerClient, peer_message::Body},
};
use coppice_types::ErrorKind;
use coppice_verify::hash::sha256;
use tokio::time::Instant;
use tonic::{Request, Streaming};

use super::{
    actor::Actor,
    handle::{Input, Traffic},
    start::Config,
};
use crate::{
    Error,
    limits::{HASH_BYTES, SNAPSHOT_CHUNK_BYTES, SNAPSHOT_HELD_MAX},
    net::peers,
    replica::home::Home,
    replica::machine::{Receiver, StateMachine},
    replica::mailbox::{Lane, Mailbox},
    replica::runner::Runner,
};

/// How long a pin is kept after its last use by someone who still wants it: the time that a receiver has to restart.
const PIN_KEPT: Duration = Duration::from_secs(60);
/// How long a pin is kept after its last use if nobody wants it.
const PIN_IDLE: Duration = Duration::from_secs(10);
/// How long a peer may show no sign of fetching before it is sent the snapshot again.
const FETCH_IDLE: Duration = Duration::from_secs(3);
/// How often a receiver that fetches nothing shows that it is there.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long one part of a file may take to arrive.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a fetch goes on trying without a byte. What it has is kept.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Why a fetch came to nothing.
#[derive(Debug)]
pub struct Failed {
    /// For the log.
    note: String,
    /// What was fetched so far may be used by the next one.
    resumable: bool,
    /// What was fetched is not what its hashes say.
    damaged: bool,
    /// What ran out, if that is why.
    short_of: Option<Shortage>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let resumable = matches!(error, Error::Call(_) | Error::Overdue(_));
        let damaged = !resumable && error.kind() == ErrorKind::Corrupted;
        let short_of = error.shortage();
        Self { note: error.chain(), resumable, damaged, short_of }
    }
}

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
                self.shared.traffic.pinned.fetch_add(1, Ordering::Relaxed);
                self.pinned = Some(pinned.id);
                self.pinned_at = self.now();
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
            // Pages that go while they are checked would look damaged.
            if self.check.as_ref().is_none_or(|check| check.pin != id)
                && let Some(machine) = self.machine().as_mut()
            {
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
        let (fetched, repeated) = (self.pinned_at.max(self.handed_out_at()), self.snapshot_used_at);
        let idle = now.saturating_sub(fetched);
        let status = self.group.status();
        let receiving: Vec<_> = status.peers.iter().filter(|peer| peer.snapshotting).map(|peer| peer.id).collect();
        if !receiving.is_empty() && idle.min(now.saturating_sub(repeated)) > FETCH_IDLE {
            // The same one again, so that it is resumed; unless it is from before a receiver became a member, or nobody came for long.
            if idle > PIN_KEPT || !receiving.iter().all(|id| self.group.snapshot_covers(*id)) {
                self.unpin();
            }
            receiving.into_iter().for_each(|id| self.group.report_snapshot(id, false));
            self.snapshot_used_at = now;
        } else if receiving.is_empty() && idle.min(now.saturating_sub(repeated)) > PIN_IDLE {
            self.unpin();
        }
        self.pin()
    }

    /// Another replica offers its state: a task fetches it while this replica goes on.
    pub(super) fn take_in(&mut self, offer: SnapshotOffer) -> Result<(), Error> {
        let SnapshotOffer { position, from, manifest } = offer;
        if self.fetching.is_some() {
            return Ok(());
        }
        let Some(node) = self.config.hosted.node_of(from.0) else {
            return Ok(self.group.refuse_snapshot(position)?);
        };
        let complete = self.home.incoming()?.filter(|copy| copy.complete && copy.position == position);
        if let Some(copy) = complete.filter(|copy| copy.manifest[..] == manifest[..]) {
            // A crash came between its completion and raft's taking it.
            self.incoming = Some(copy);
            return Ok(self.group.accept_snapshot(position)?);
        }
        if self.short_of.is_some() {
            return Ok(self.group.refuse_snapshot(position)?);
        }
        let begin = |home: &Home| {
            let incoming = home.begin_incoming(position, &manifest)?;
            Ok((home.state_of(&incoming)?, incoming))
        };
        let Some((storage, incoming)) = self.unless_short(position, begin)? else { return Ok(()) };
        let fetch = Fetch {
            config: self.config.clone(),
            mailbox: Arc::clone(&self.shared.mailbox),
            traffic: Arc::clone(&self.shared.traffic),
            storage,
            manifest: manifest.to_vec(),
            node,
        };
        let task = self.config.hosted.runtime.spawn(async move {
            let result = fetch.run().await.map_err(Failed::from);
            // A closed mailbox needs no news.
            let _ = fetch.mailbox.put(Lane::Own, Input::Fetched(position, result));
        });
        self.fetching = Some((incoming, from, task));
        Ok(())
    }

    /// Notes something of a snapshot, with the room of the reserve if there is no other. Where something else ran out, too, the snapshot is
    /// refused: it is offered again, and until then this replica serves what it has.
    fn unless_short<T>(
        &mut self,
        position: Position,
        note: impl Fn(&Home) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let mut noted = note(&self.home);
        let short_of = noted.as_ref().err().and_then(Error::shortage);
        if let Some(short_of) = short_of {
            self.note_shortage(short_of);
        }
        if short_of == Some(Shortage::Space) {
            self.home.release_reserve()?;
            noted = note(&self.home);
        }
        match noted {
            Err(error) if error.shortage().is_some() => {
                self.group.refuse_snapshot(position)?;
                Ok(None)
            }
            noted => noted.map(Some),
        }
    }

    /// A fetch has ended.
    pub(super) fn fetched(&mut self, position: Position, result: Result<(), Failed>) -> Result<(), Error> {
        // The task's last act was to say so.
        let Some((incoming, from, _)) = self.fetching.take() else { return Ok(()) };
        match result {
            Ok(()) => {
                let complete = |home: &Home| home.complete_incoming(&incoming);
                let Some(()) = self.unless_short(position, complete)? else { return Ok(()) };
                self.incoming = Some(incoming);
                Ok(self.group.accept_snapshot(position)?)
            }
            Err(Failed { note, resumable, damaged, short_of }) => {
                tracing::warn!(group = %self.config.identity.group, note, resumable, "a snapshot could not be fetched");
                if damaged && let Ok((snapshot_id, _)) = M::manifest_position(&incoming.manifest) {
                    self.send_to(from.0, Body::Refused(SnapshotRefused { snapshot_id }));
                }
                if !resumable {
                    self.home.drop_incoming()?;
                }
                if let Some(short_of) = short_of {
                    self.note_shortage(short_of);
                }
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
        self.close();
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

/// What a fetch needs.
struct Fetch<M: StateMachine> {
    config: Config<M>,
    mailbox: Arc<Mailbox<Input<M>>>,
    traffic: Arc<Traffic>,
    storage: Arc<dyn Storage>,
    manifest: Vec<u8>,
    node: String,
}

impl<M: StateMachine> Fetch<M> {
    async fn run(&self) -> Result<(), Error> {
        let hosted = &self.config.hosted;
        let (id, _) = M::manifest_position(&self.manifest)?;
        let client =
            PeerClient::new(hosted.connector.channel(&self.node)).max_decoding_message_size(2 * SNAPSHOT_CHUNK_BYTES);
        let (storage, manifest) = (Arc::clone(&self.storage), self.manifest.clone());
        let machine = self.config.machine.clone();
        let mut receiver = self.blocking(move || M::receive(storage, &machine, &manifest)).await??;
        let began = Instant::now();
        let mut moved_at = began;
        while let Some((file, offset)) = receiver.next() {
            if self.mailbox.is_closed() {
                return Err(Error::Overdue("the fetch of a snapshot"));
            }
            let request = FetchSnapshotRequest {
                group: self.config.identity.group.number(),
                snapshot_id: id,
                file: file.clone(),
                offset,
                held: Bytes::new(),
            };
            let fetched;
            (receiver, fetched) = self.fetch_file(client.clone(), request, receiver).await?;
            let moved = receiver.next() != Some((file, offset));
            if moved {
                moved_at = Instant::now();
            }
            match fetched {
                Err(error) if !matches!(error, Error::Call(_) | Error::Overdue(_)) => return Err(error),
                // The pin is gone: another snapshot will be offered.
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
                Err(error) if moved_at.elapsed() > GIVE_UP => return Err(error),
                Ok(()) if moved_at.elapsed() > GIVE_UP => return Err(Error::Overdue("a part of a snapshot")),
                Err(error) => tracing::debug!(error = error.chain(), "a fetch is resumed"),
                Ok(()) => {}
            }
            if !moved {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
        let (group, fetch_ms) = (self.config.identity.group, began.elapsed().as_millis());
        self.finish(receiver, &client, id).await?;
        let check_ms = began.elapsed().as_millis().saturating_sub(fetch_ms);
        let [sent, held] = [&self.traffic.sent, &self.traffic.held].map(|bytes| bytes.load(Ordering::Relaxed));
        tracing::info!(%group, sent, held, fetch_ms, check_ms, "a snapshot was fetched and checked");
        Ok(())
    }

    /// Checks the copy; meanwhile the sender is told that somebody needs its pin.
    async fn finish(&self, receiver: M::Receiver, client: &PeerClient<Channel>, id: u64) -> Result<(), Error> {
        let finished = self.blocking(move || receiver.finish());
        tokio::pin!(finished);
        loop {
            tokio::select! {
                biased;
                finished = &mut finished => return finished?,
                () = tokio::time::sleep(TOUCH_INTERVAL) => {}
            }
            let group = self.config.identity.group.number();
            let mut touch = Request::new(FetchSnapshotRequest { group, snapshot_id: id, ..Default::default() });
            peers::name_caller(&mut touch, &self.config.hosted.node, self.config.identity.cluster);
            let mut client = client.clone();
            // A sender that is gone does not matter any more.
            let _ = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(touch)).await;
        }
    }

    /// Runs what reads and writes files.
    async fn blocking<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let runner: &Runner = &self.config.hosted.tuning.runner;
        runner.blocking(job).await.ok_or(Error::Overdue("a write of a snapshot"))
    }

    /// Fetches one file from where it stands to its end, or as far as it goes. The receiver comes back either way.
    async fn fetch_file(
        &self,
        mut client: PeerClient<Channel>,
        mut request: FetchSnapshotRequest,
        mut receiver: M::Receiver,
    ) -> Result<(M::Receiver, Result<(), Error>), Error> {
        let (file, mut offset) = (request.file.clone(), request.offset);
        let (name, from) = (file.clone(), offset);
        let hashed = self.blocking(move || hash_held(&receiver, &name, from).map(|held| (receiver, held))).await??;
        (receiver, request.held) = hashed;
        let mut request = Request::new(request);
        peers::name_caller(&mut request, &self.config.hosted.node, self.config.identity.cluster);
        let call = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(request));
        let mut chunks = match call.await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Ok((receiver, Err(status.into()))),
            Err(_) => return Ok((receiver, Err(Error::Overdue("a part of a snapshot")))),
        };
        while !self.mailbox.is_closed() {
            let chunk = match next_chunk(&mut chunks).await {
                Ok(Some(chunk)) => chunk,
                // The sender has no more. For an empty file that is all there is to take.
                Ok(None) if offset == 0 => SnapshotChunk::default(),
                Ok(None) => break,
                Err(error) => return Ok((receiver, Err(error))),
            };
            let (name, at) = (file.clone(), offset);
            let len = chunk.data.len().max(chunk.same_bytes as usize);
            offset = offset.saturating_add(len as u64);
            self.traffic.sent.fetch_add(chunk.data.len() as u64, Ordering::Relaxed);
            self.traffic.held.fetch_add(u64::from(chunk.same_bytes), Ordering::Relaxed);
            let last = len == 0;
            let written;
            (receiver, written) = self
                .blocking(move || {
                    let written = take_part(&mut receiver, &name, at, &chunk);
                    (receiver, written)
                })
                .await?;
            if written.is_err() || last || receiver.next().is_none_or(|(next, at)| next != file || at != offset) {
                return Ok((receiver, written));
            }
        }
        Ok((receiver, Ok(())))
    }
}

/// The hashes of the parts that are at a place of a file already.
fn hash_held<R: Receiver>(receiver: &R, file: &str, from: u64) -> Result<Bytes, Error> {
    let mut hashes = Vec::new();
    let mut offset = from;
    while hashes.len() < SNAPSHOT_HELD_MAX * HASH_BYTES {
        let bytes = receiver.held(file, offset, SNAPSHOT_CHUNK_BYTES)?;
        if bytes.is_empty() {
            break;
        }
        hashes.extend_from_slice(&sha256(&bytes).0);
        offset += bytes.len() as u64;
    }
    Ok(hashes.into())
}

/// Takes a part that was sent, or that is there already.
fn take_part<R: Receiver>(receiver: &mut R, file: &str, offset: u64, chunk: &SnapshotChunk) -> Result<(), Error> {
    if chunk.same_bytes == 0 {
        return receiver.write(file, offset, &chunk.data);
    }
    let len = (chunk.same_bytes as usize).min(SNAPSHOT_CHUNK_BYTES);
    let held = receiver.held(file, offset, len)?;
    receiver.write(file, offset, &held)
}

/// The next part of a file; none at its end.
async fn next_chunk(chunks: &mut Streaming<SnapshotChunk>) -> Result<Option<SnapshotChunk>, Error> {
    let chunk = tokio::time::timeout(CHUNK_TIMEOUT, chunks.message()).await;
    Ok(chunk.map_err(|_| Error::Overdue("a part of a snapshot"))??)
}
