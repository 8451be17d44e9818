//! The `Peer` service: messages of other nodes' replicas, and the files of pinned snapshots.
//!
//! **Invariant.** A message speaks only for a replica of the node that sent it. The caller's node
//! has the ordinal of the message's raft id, and with TLS it is the node that the caller's
//! certificate names.

use std::sync::Arc;

use bytes::Bytes;
use coppice_process::access::Claimant;
use coppice_proto::v1::{self, peer_message::Body, peer_server::Peer};
use coppice_types::{GroupId, RaftId, Reason};
use coppice_verify::hash::sha256;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    hosted::{Hosted, Replica},
    limits::{HASH_BYTES, STREAM_QUEUE_MAX},
    net::peers::{CLUSTER, NODE},
    refusal::Refusal,
};

const EXCHANGE: &str = "/coppice.v1.Peer/Exchange";
const FETCH_SNAPSHOT: &str = "/coppice.v1.Peer/FetchSnapshot";

/// Serves the other nodes.
#[derive(Clone, Debug)]
pub struct PeerService {
    pub hosted: Arc<Hosted>,
}

impl PeerService {
    /// Refuses a caller from another cluster, and a caller that claims to be another node. Returns
    /// the caller's node, and its claimant if callers are authenticated.
    fn caller<T>(&self, path: &str, request: &Request<T>) -> Result<(String, Option<Claimant>), Status> {
        let text = |name| request.metadata().get(name).and_then(|value| value.to_str().ok());
        if text(CLUSTER) != Some(self.hosted.cluster.to_string().as_str()) {
            let message = format!("this node is of cluster {}", self.hosted.cluster);
            return Err(Refusal::new(Reason::WrongCluster, message).into());
        }
        let node = text(NODE).map(str::to_owned);
        let node = node.ok_or_else(|| Refusal::new(Reason::InvalidArgument, "the caller does not name its node"))?;
        let caller = Claimant::of(request.extensions());
        if let Some(caller) = &caller {
            caller.must_be(path, &node)?;
        }
        Ok((node, caller))
    }

    /// Refuses a message that speaks for a replica of a different node than its sender.
    fn check_sender(&self, node: &str, caller: Option<&Claimant>, raft_id: RaftId) -> Result<(), Status> {
        let why = match self.hosted.node_at(raft_id.ordinal()) {
            Some(owner) if owner == node => return Ok(()),
            // Other nodes may know a new node earlier than this one. Without certificates, its
            // identity can't be checked.
            None if caller.is_none() => return Ok(()),
            Some(owner) => format!("a message of {node} for the replica {:#x}, which is {owner}'s", raft_id.0),
            None => format!("a message of {node} for the replica {:#x}, whose node is not in [nodes]", raft_id.0),
        };
        Err(match caller {
            Some(caller) => caller.deny(EXCHANGE, &why),
            None => Refusal::new(Reason::InvalidArgument, why).into(),
        })
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    type FetchSnapshotStream = ReceiverStream<Result<v1::SnapshotChunk, Status>>;

    async fn exchange(&self, request: Request<Streaming<v1::PeerMessage>>) -> Result<Response<v1::PeerDone>, Status> {
        let (node, caller) = self.caller(EXCHANGE, &request)?;
        let mut messages = request.into_inner();
        let mut closing = self.hosted.closing.subscribe();
        loop {
            let next = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => None,
                next = messages.next() => next,
            };
            let Some(message) = next.transpose()? else { break };
            if message.cluster_id.as_ref() != self.hosted.cluster.as_bytes() {
                return Err(Refusal::new(Reason::WrongCluster, "a message of another cluster").into());
            }
            self.check_sender(&node, caller.as_ref(), RaftId(message.from_raft_id))?;
            if let Some(Body::Beat(beat)) = &message.body {
                self.hosted.beat(&node, beat);
                continue;
            }
            // A message to a replica that is not here is dropped, which raft expects.
            match self.hosted.replica(GroupId::from_number(message.group)) {
                Some(replica) if replica.raft_id().0 == message.to_raft_id => replica.peer(message, &node),
                _ => tracing::trace!(group = message.group, "a message to a replica that is not here"),
            }
        }
        Ok(Response::new(v1::PeerDone {}))
    }

    async fn fetch_snapshot(
        &self,
        request: Request<v1::FetchSnapshotRequest>,
    ) -> Result<Response<Self::FetchSnapshotStream>, Status> {
        self.caller(FETCH_SNAPSHOT, &request)?;
        let request = request.into_inner();
        let group = GroupId::from_number(request.group);
        let replica = self
            .hosted
            .replica(group)
            .ok_or_else(|| Refusal::new(Reason::Unavailable, format!("no replica of {group} runs here")))?;
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_MAX);
        let hosted = Arc::clone(&self.hosted);
        tokio::spawn(async move {
            if let Err(refusal) = stream(&hosted, &replica, &request, &sender).await {
                // A caller that has gone needs no error.
                let _ = sender.send(Err(refusal.into())).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Sends a file from an offset to its end, or as far as the caller has sent hashes. A part with a
/// matching hash is not sent again.
async fn stream(
    hosted: &Hosted,
    replica: &Replica,
    request: &v1::FetchSnapshotRequest,
    sender: &mpsc::Sender<Result<v1::SnapshotChunk, Status>>,
) -> Result<(), Refusal> {
    let mut offset = request.offset;
    let mut held = request.held.chunks_exact(HASH_BYTES);
    loop {
        let data = replica.read_snapshot(request, offset, hosted.clock.now()).await?;
        let same = held.next();
        if data.is_empty() || (same.is_none() && !request.held.is_empty()) {
            return Ok(());
        }
        offset = offset.saturating_add(data.len() as u64);
        let same_bytes = u32::try_from(data.len()).expect("a part is small");
        let chunk = match same.is_some_and(|same| sha256(&data).0 == same) {
            true => v1::SnapshotChunk { data: Bytes::new(), same_bytes },
            false => v1::SnapshotChunk { data: data.into(), same_bytes: 0 },
        };
        if sender.send(Ok(chunk)).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
