//! Another node's ears: they note the messages that reach it, and answer nothing.

use coppice_proto::v1::{
    self,
    peer_server::{Peer, PeerServer},
};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::LIMIT;
use crate::DuplexNet;

/// Messages that wait to be looked at. Further ones wait in their streams.
const HEARD_MAX: usize = 1024;

/// The messages that reached a node, each with the node that its stream was from.
pub(crate) struct Ears {
    heard: mpsc::Receiver<(String, v1::PeerMessage)>,
}

struct Listening(mpsc::Sender<(String, v1::PeerMessage)>);

#[tonic::async_trait]
impl Peer for Listening {
    type FetchSnapshotStream = futures::stream::Empty<Result<v1::SnapshotChunk, Status>>;

    async fn exchange(&self, request: Request<Streaming<v1::PeerMessage>>) -> Result<Response<v1::PeerDone>, Status> {
        let from = request.metadata().get(crate::net::peers::NODE).and_then(|node| node.to_str().ok());
        let from = from.unwrap_or_default().to_owned();
        let mut messages = request.into_inner();
        while let Some(message) = messages.next().await {
            self.0.send((from.clone(), message?)).await.map_err(|_| Status::aborted("the test is over"))?;
        }
        Ok(Response::new(v1::PeerDone {}))
    }

    async fn fetch_snapshot(
        &self,
        _: Request<v1::FetchSnapshotRequest>,
    ) -> Result<Response<Self::FetchSnapshotStream>, Status> {
        Err(Status::unimplemented("ears send nothing"))
    }
}

impl Ears {
    /// Listens under a node's name.
    pub fn of(net: &DuplexNet, node: &str) -> Self {
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let server = tonic::transport::Server::builder().add_service(PeerServer::new(Listening(sender)));
        tokio::spawn(server.serve_with_incoming(net.listen(node)));
        Self { heard }
    }

    /// The next message, and the name of its sender.
    pub async fn next(&mut self) -> (String, v1::PeerMessage) {
        let heard = tokio::time::timeout(LIMIT, self.heard.recv()).await;
        heard.expect("a message comes").expect("the server runs")
    }

    /// A message that has come already.
    pub fn try_next(&mut self) -> Option<v1::PeerMessage> {
        self.heard.try_recv().ok().map(|(_, message)| message)
    }
}
