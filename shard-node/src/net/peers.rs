//! Messages to the replicas of other nodes: one stream for each node, fed from a bounded queue.
//!
//! Delivery is not reliable: a full queue or a broken stream loses messages, and raft repeats those
//! that matter. Snapshots travel on separate connections, so that they cannot delay heartbeats.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use coppice_proto::{
    Channel,
    v1::{PeerMessage, peer_client::PeerClient},
};
use coppice_types::ClusterId;
use coppice_verify::hash::sha256;
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};

use super::connector::Connector;
use crate::limits::OUTGOING_QUEUE_MAX;

/// The metadata entry of an Exchange that names the sending node.
pub const NODE: &str = "coppice-node";
/// The metadata entry of an Exchange that names the cluster.
pub const CLUSTER: &str = "coppice-cluster";

/// Names the calling node and its cluster in a call's metadata. A name that is not valid metadata
/// is left out, and the call is then refused.
pub fn name_caller<T>(request: &mut Request<T>, node: &str, cluster: ClusterId) {
    for (entry, text) in [(NODE, node), (CLUSTER, &cluster.to_string())] {
        if let Ok(value) = text.parse::<MetadataValue<Ascii>>() {
            request.metadata_mut().insert(entry, value);
        }
    }
}

/// First and longest pause after a node could not be reached. The pause doubles each time. It is
/// reduced by up to half, differently on each node, so that a returning node is not called by all
/// others at once. Raft's elections take longer than the longest pause.
const RETRY_DELAY: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(400);
/// After a stream that lasted this long, the next failure counts as the first.
const GOOD_STREAM: Duration = Duration::from_secs(5);
/// Limit on the messages between the queue and the open stream.
const STREAM_MESSAGES_MAX: usize = 16;

/// A function that is called with the name of a node that cannot be reached.
pub type Unreachable = Arc<dyn Fn(&str) + Send + Sync>;

/// The names and channels that sending needs.
#[derive(Clone)]
pub struct Sender {
    /// This node's name.
    pub node: String,
    pub cluster: ClusterId,
    pub connector: Arc<dyn Connector>,
    pub message_bytes_max: usize,
    pub unreachable: Unreachable,
}

/// The queues to all other nodes. Each is made when it is first used.
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
    /// An empty set of queues. Their streams will run on `runtime`.
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

/// Keeps a stream to one node open as long as there are messages to send.
async fn run(sender: Sender, node: String, mut queue: mpsc::Receiver<PeerMessage>) {
    let channel = sender.connector.channel(&node);
    let client = PeerClient::new(channel).max_encoding_message_size(sender.message_bytes_max);
    let mut failures = 0;
    while let Some(first) = queue.recv().await {
        let began = tokio::time::Instant::now();
        exchange(&sender, client.clone(), &mut queue, first).await;
        (sender.unreachable)(&node);
        failures = if began.elapsed() > GOOD_STREAM { 0 } else { failures + 1 };
        tokio::time::sleep(retry_delay(&sender.node, &node, failures)).await;
        // Messages that queued meanwhile are outdated: raft sends newer ones.
        while queue.try_recv().is_ok() {}
    }
}

/// The pause after this many failures in a row. Its random part follows from the names of both
/// nodes, so that a run can be repeated.
fn retry_delay(from: &str, to: &str, failures: u32) -> Duration {
    let whole = (RETRY_DELAY * 2_u32.pow(failures.min(8))).min(RETRY_DELAY_MAX);
    let hash = sha256(format!("{from} {to} {failures}").as_bytes());
    whole / 2 + whole / 2 * u32::from(hash.0[0]) / 255
}

/// Sends until the stream breaks.
async fn exchange(
    sender: &Sender,
    mut client: PeerClient<Channel>,
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
        biased;
        result = call => if let Err(status) = result {
            tracing::debug!(node = sender.node, %status, "a stream to a peer broke");
        },
        () = pump => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DuplexNet,
        replica::tests::{CLUSTER, Ears, LIMIT},
    };

    #[test]
    fn pauses_grow_to_a_bound_and_differ_from_node_to_node() {
        let delays = |from: &str| (0..12).map(|failures| retry_delay(from, "node-1", failures)).collect::<Vec<_>>();
        let (two, three) = (delays("node-2"), delays("node-3"));
        assert!(two.iter().chain(&three).all(|delay| (RETRY_DELAY / 2..=RETRY_DELAY_MAX).contains(delay)), "{two:?}");
        assert!(two[11] >= RETRY_DELAY_MAX / 2);
        assert_ne!(two, three);
        assert_eq!(two, delays("node-2"), "a run can be repeated");
    }

    /// The queues of node 1, and the names of nodes that could not be reached.
    fn peers(net: &DuplexNet) -> (Peers, mpsc::Receiver<String>) {
        let (told, unreachable) = mpsc::channel(64);
        let sender = Sender {
            node: "node-1".to_owned(),
            cluster: CLUSTER,
            connector: net.connector("node-1"),
            message_bytes_max: 1 << 20,
            unreachable: Arc::new(move |node| told.try_send(node.to_owned()).unwrap_or_default()),
        };
        (Peers::new(sender, tokio::runtime::Handle::current()), unreachable)
    }

    fn message(group: u32) -> PeerMessage {
        PeerMessage { group, ..PeerMessage::default() }
    }

    #[tokio::test]
    async fn messages_to_a_node_arrive_in_order_on_a_stream_that_names_their_sender() {
        let net = DuplexNet::new();
        let mut ears = Ears::of(&net, "node-2");
        let (peers, _) = peers(&net);
        assert!((0..100).all(|group| peers.send("node-2", message(group))));
        for group in 0..100 {
            assert_eq!(ears.next().await, ("node-1".to_owned(), message(group)));
        }
    }

    #[tokio::test]
    async fn a_queue_that_nobody_empties_takes_a_bounded_number_and_leaves_the_others_alone() {
        let net = DuplexNet::new();
        let (peers, _) = peers(&net);
        let sent = (0..2 * OUTGOING_QUEUE_MAX).filter(|_| peers.send("node-2", message(1))).count();
        assert_eq!(sent, OUTGOING_QUEUE_MAX, "no task has run since");
        assert!(peers.send("node-3", message(1)));
    }

    #[tokio::test]
    async fn a_broken_stream_is_told_and_begins_again_with_new_messages() {
        let net = DuplexNet::new();
        let mut ears = Ears::of(&net, "node-2");
        let (peers, mut unreachable) = peers(&net);
        peers.send("node-2", message(1));
        ears.next().await;
        net.cut("node-1", "node-2");
        let told = tokio::time::timeout(LIMIT, unreachable.recv()).await.expect("it is noticed");
        assert_eq!(told.as_deref(), Some("node-2"));
        net.heal("node-1", "node-2");
        // Messages of the pause are dropped, so the test repeats its message as raft does.
        let heard = async {
            loop {
                peers.send("node-2", message(2));
                if let Some(heard) = ears.try_next() {
                    break heard;
                }
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(tokio::time::timeout(LIMIT, heard).await.expect("it arrives"), message(2));
    }

    #[tokio::test]
    async fn a_name_that_is_no_metadata_is_left_out() {
        let mut request = Request::new(());
        name_caller(&mut request, "nö\n", CLUSTER);
        assert!(request.metadata().get(NODE).is_none());
        assert_eq!(
            request.metadata().get(super::CLUSTER).map(MetadataValue::as_encoded_bytes),
            Some(CLUSTER.to_string().as_bytes())
        );
    }
}
