//! Messages to the replicas of other nodes: one stream a node, fed from a bounded queue.
//!
//! Nothing here is reliable: a full queue or a broken stream loses messages, and raft repeats what matters. Snapshots travel on
//! connections of their own, so that they cannot hold up heartbeats.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use coppice_proto::v1::{PeerMessage, peer_client::PeerClient};
use coppice_types::ClusterId;
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};

use crate::{limits::OUTGOING_QUEUE_MAX, net::Connector};

/// The metadata entry of an Exchange that names the sending node.
pub const NODE: &str = "coppice-node";
/// The metadata entry of an Exchange that names the cluster.
pub const CLUSTER: &str = "coppice-cluster";

/// Says in a call's metadata who calls; a name that cannot stand there is left out, and the call is refused.
pub fn name_caller<T>(request: &mut Request<T>, node: &str, cluster: ClusterId) {
    for (entry, text) in [(NODE, node), (CLUSTER, &cluster.to_string())] {
        if let Ok(value) = text.parse::<MetadataValue<Ascii>>() {
            request.metadata_mut().insert(entry, value);
        }
    }
}

/// How long a node that could not be reached is left alone.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Messages between the queue and the open stream.
const STREAM_MESSAGES_MAX: usize = 16;

/// Told of a node that cannot be reached.
pub type Unreachable = Arc<dyn Fn(&str) + Send + Sync>;

/// What sending needs to know.
#[derive(Clone)]
pub struct Sender {
    /// This node.
    pub node: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// The way to other nodes.
    pub connector: Arc<dyn Connector>,
    /// The largest message.
    pub message_bytes_max: usize,
    /// Whom to tell.
    pub unreachable: Unreachable,
}

/// The queues to all other nodes, made when first used.
pub struct Peers {
    sender: Sender,
    runtime: tokio::runtime::Handle,
    queues: std::sync::Mutex<BTreeMap<String, (mpsc::Sender<PeerMessage>, AbortHandle)>>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("node", &self.sender.node).finish_non_exhaustive()
    }
}

impl Peers {
    /// No queue yet; streams run on `runtime`.
    #[must_use]
    pub fn new(sender: Sender, runtime: tokio::runtime::Handle) -> Self {
        Self { sender, runtime, queues: std::sync::Mutex::default() }
    }

    /// Queues a message; `false` if there is no room for it.
    pub fn send(&self, node: &str, message: PeerMessage) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((queue, _)) = queues.get(node) {
            return queue.try_send(message).is_ok();
        }
        let (queue, receiver) = mpsc::channel(OUTGOING_QUEUE_MAX);
        let task = self.runtime.spawn(run(self.sender.clone(), node.to_owned(), receiver));
        let sent = queue.try_send(message).is_ok();
        queues.insert(node.to_owned(), (queue, task.abort_handle()));
        sent
    }

    /// Ends all streams.
    pub fn stop(&self) {
        let queues = std::mem::take(&mut *self.queues.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        queues.values().for_each(|(_, task)| task.abort());
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps a stream to one node open for as long as there is something to send.
async fn run(sender: Sender, node: String, mut queue: mpsc::Receiver<PeerMessage>) {
    let channel = sender.connector.channel(&node);
    let client = PeerClient::new(channel).max_encoding_message_size(sender.message_bytes_max);
    while let Some(first) = queue.recv().await {
        exchange(&sender, client.clone(), &mut queue, first).await;
        (sender.unreachable)(&node);
        tokio::time::sleep(RETRY_DELAY).await;
        // What queued meanwhile is old: raft has better to say by now.
        while queue.try_recv().is_ok() {}
    }
}

/// Sends until the stream breaks.
async fn exchange(
    sender: &Sender,
    mut client: PeerClient<tonic::transport::Channel>,
    queue: &mut mpsc::Receiver<PeerMessage>,
    first: PeerMessage,
) {
    let (feed, stream) = mpsc::channel(STREAM_MESSAGES_MAX);
    let mut request = Request::new(ReceiverStream::new(stream));
    name_caller(&mut request, &sender.node, sender.cluster);
    let call = client.exchange(request);
    let pump = async {
        if feed.send(first).await.is_err() {
            return;
        }
        while let Some(message) = queue.recv().await {
            if feed.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        result = call => if let Err(status) = result {
            tracing::debug!(node = sender.node, %status, "a stream to a peer broke");
        },
        () = pump => {}
    }
}
