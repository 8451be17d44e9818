//! Fetching a snapshot from another replica, file by file, and checking it.
//!
//! A fetch writes into a side directory only. Bytes that an earlier transfer left there are kept:
//! the receiver sends the hashes of their parts, and the sender sends only parts that differ. A
//! crash leaves a side directory, with which the next fetch continues.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::Storage;
use coppice_proto::{
    Channel,
    v1::{FetchSnapshotRequest, SnapshotChunk, peer_client::PeerClient},
};
use coppice_types::ErrorKind;
use coppice_verify::hash::sha256;
use tokio::time::Instant;
use tonic::{Request, Streaming};

use super::{
    config::Config,
    input::Input,
    machine::{Receiver, StateMachine},
    mailbox::Mailbox,
    runner::Runner,
    shared::Traffic,
};
use crate::{
    Error,
    limits::{HASH_BYTES, SNAPSHOT_CHUNK_BYTES, SNAPSHOT_HELD_MAX},
    net::peers,
};

/// How often a receiver that checks its copy tells the sender to keep the pin.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long one part of a file may take to arrive.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a fetch waits without receiving a byte. The bytes that it has are kept.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// One fetch, run as its own task.
pub(super) struct Fetch<M: StateMachine> {
    pub(super) config: Arc<Config<M>>,
    pub(super) mailbox: Arc<Mailbox<Input<M>>>,
    pub(super) traffic: Arc<Traffic>,
    /// The directory that the copy goes to.
    pub(super) storage: Arc<dyn Storage>,
    pub(super) manifest: Vec<u8>,
    /// The node to fetch from.
    pub(super) node: String,
}

impl<M: StateMachine> Fetch<M> {
    /// Fetches and checks the copy.
    pub(super) async fn run(&self) -> Result<(), Error> {
        let site = &self.config.site;
        let (id, _) = M::manifest_position(&self.manifest)?;
        let client =
            PeerClient::new(site.connector.channel(&self.node)).max_decoding_message_size(2 * SNAPSHOT_CHUNK_BYTES);
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
                // The pin is gone. The leader will offer another snapshot.
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

    /// Checks the copy. Meanwhile the sender is told that its pin is still needed.
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
            peers::name_caller(&mut touch, &self.config.site.node, self.config.identity.cluster);
            let mut client = client.clone();
            // The copy is complete, so it does not matter if the sender is gone.
            let _ = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(touch)).await;
        }
    }

    /// Runs a job that reads or writes files.
    async fn blocking<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let runner: &Runner = &self.config.site.tuning.runner;
        runner.blocking(job).await.ok_or(Error::Overdue("a write of a snapshot"))
    }

    /// Fetches one file from `request.offset` to its end, or until something fails. The receiver is
    /// returned in either case.
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
        peers::name_caller(&mut request, &self.config.site.node, self.config.identity.cluster);
        let call = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(request));
        let mut chunks = match call.await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Ok((receiver, Err(status.into()))),
            Err(_) => return Ok((receiver, Err(Error::Overdue("a part of a snapshot")))),
        };
        while !self.mailbox.is_closed() {
            let chunk = match next_chunk(&mut chunks).await {
                Ok(Some(chunk)) => chunk,
                // The end of the file. An empty file is received as one empty part.
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

/// The hashes of the parts of a file that are here already, beginning at an offset.
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

/// Passes a part to the receiver: the bytes sent, or those that are here already.
fn take_part<R: Receiver>(receiver: &mut R, file: &str, offset: u64, chunk: &SnapshotChunk) -> Result<(), Error> {
    if chunk.same_bytes == 0 {
        return receiver.write(file, offset, &chunk.data);
    }
    let len = (chunk.same_bytes as usize).min(SNAPSHOT_CHUNK_BYTES);
    let held = receiver.held(file, offset, len)?;
    receiver.write(file, offset, &held)
}

/// The next part of a file; `None` at its end.
async fn next_chunk(chunks: &mut Streaming<SnapshotChunk>) -> Result<Option<SnapshotChunk>, Error> {
    let chunk = tokio::time::timeout(CHUNK_TIMEOUT, chunks.message()).await;
    Ok(chunk.map_err(|_| Error::Overdue("a part of a snapshot"))??)
}

#[cfg(test)]
mod tests;
