use std::time::Duration;

use coppice_process::access::Role;
use coppice_proto::{
    Channel, status,
    v1::{peer_client::PeerClient, peer_message::Body, peer_server::PeerServer},
};
use coppice_types::ClusterId;

use super::*;
use crate::{
    DuplexNet,
    hosted::tests::{SHARD, hosted},
    net::peers::name_caller,
    replica::{
        Input,
        machine::{Position, StateMachine},
        tests::{CLUSTER, LIMIT, raft_id},
    },
    service::tests::certified,
    shard::ShardMachine,
};

/// A node that serves the others, and a client of it.
fn served() -> (Arc<Hosted>, PeerClient<Channel>) {
    let net = DuplexNet::new();
    let hosted = hosted(&net);
    let server = PeerServer::new(PeerService { hosted: Arc::clone(&hosted) });
    tokio::spawn(tonic::transport::Server::builder().add_service(server).serve_with_incoming(net.listen("node-1")));
    (hosted, PeerClient::new(net.connector("node-2").channel("node-1")))
}

fn message(from: RaftId, to: RaftId) -> v1::PeerMessage {
    v1::PeerMessage {
        cluster_id: Bytes::copy_from_slice(CLUSTER.as_bytes()),
        group: SHARD.number(),
        from_raft_id: from.0,
        to_raft_id: to.0,
        unfit: false,
        body: Some(Body::Refused(v1::SnapshotRefused { snapshot_id: from.0 })),
    }
}

/// A request in the name of a node.
fn of<T>(node: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    name_caller(&mut request, node, CLUSTER);
    request
}

async fn exchange(client: &mut PeerClient<Channel>, node: &str, messages: Vec<v1::PeerMessage>) -> Option<Reason> {
    let answer = client.exchange(of(node, futures::stream::iter(messages))).await;
    answer.err().map(|refusal| status::reason(&refusal).expect("it has a reason"))
}

/// The senders of the messages that reached the shard's replica, with their nodes.
fn arrived(hosted: &Hosted) -> Vec<(u64, String)> {
    let replica = hosted.shard(SHARD).expect("it is there");
    let inputs: Vec<Input<ShardMachine>> = replica.shared.mailbox.take(Duration::ZERO);
    let sender = |input| match input {
        Input::Peer(message, node) => (message.from_raft_id, node),
        other => panic!("no peer sends {other:?}"),
    };
    inputs.into_iter().map(sender).collect()
}

#[tokio::test]
async fn a_message_reaches_the_replica_that_it_names_and_no_other_one() {
    let (hosted, mut client) = served();
    hosted.put_shard(None);
    let to_another = message(raft_id(2), RaftId::new(1, 7));
    let to_another_group = v1::PeerMessage { group: 9, ..message(raft_id(2), raft_id(1)) };
    let messages = vec![to_another, to_another_group, message(raft_id(2), raft_id(1))];
    assert_eq!(exchange(&mut client, "node-2", messages).await, None);
    assert_eq!(arrived(&hosted), [(raft_id(2).0, "node-2".to_owned())]);
}

#[tokio::test]
async fn a_message_that_speaks_for_another_nodes_replica_ends_the_stream() {
    let (hosted, mut client) = served();
    hosted.put_shard(None);
    let later = message(raft_id(2), raft_id(1));
    let refusal = exchange(&mut client, "node-2", vec![message(raft_id(3), raft_id(1)), later]).await;
    assert_eq!((refusal, arrived(&hosted)), (Some(Reason::InvalidArgument), Vec::new()));
    // This node may learn of a new node later than others do.
    assert_eq!(exchange(&mut client, "node-8", vec![message(raft_id(8), raft_id(1))]).await, None);
    assert_eq!(arrived(&hosted), [(raft_id(8).0, "node-8".to_owned())]);
}

#[tokio::test]
async fn callers_that_name_no_node_or_another_cluster_are_refused() {
    let (hosted, mut client) = served();
    hosted.put_shard(None);
    let foreign = v1::PeerMessage { cluster_id: Bytes::new(), ..message(raft_id(2), raft_id(1)) };
    assert_eq!(exchange(&mut client, "node-2", vec![foreign]).await, Some(Reason::WrongCluster));
    assert_eq!(exchange(&mut client, "né", Vec::new()).await, Some(Reason::InvalidArgument));
    let service = PeerService { hosted: Arc::clone(&hosted) };
    let mut request = Request::new(());
    name_caller(&mut request, "node-2", ClusterId([1; 16]));
    let refusal = service.caller(EXCHANGE, &request).expect_err("another cluster");
    assert_eq!(status::reason(&refusal), Some(Reason::WrongCluster));
}

#[tokio::test]
async fn with_certificates_a_node_speaks_only_for_itself() {
    let (hosted, _) = served();
    let service = PeerService { hosted };
    let claims = |node: &str| {
        let mut request = certified((), Role::Node, "node-2");
        name_caller(&mut request, node, CLUSTER);
        service.caller(EXCHANGE, &request)
    };
    let (node, caller) = claims("node-2").expect("that is its name");
    assert!(caller.is_some());
    let refusal = claims("node-3").expect_err("it has another name");
    assert_eq!(status::reason(&refusal), Some(Reason::Denied));
    let speaks_for = |raft_id| {
        let checked = service.check_sender(&node, caller.as_ref(), raft_id);
        checked.map_err(|refusal| status::reason(&refusal))
    };
    assert_eq!(speaks_for(RaftId::new(2, 77)), Ok(()));
    assert_eq!(speaks_for(raft_id(3)), Err(Some(Reason::Denied)));
    assert_eq!(speaks_for(raft_id(8)), Err(Some(Reason::Denied)), "its node is not in the list");
}

#[tokio::test]
async fn a_node_that_ends_closes_the_streams_of_its_peers() {
    let (hosted, mut client) = served();
    hosted.hang_up();
    let endless = client.exchange(of("node-2", futures::stream::pending()));
    tokio::time::timeout(LIMIT, endless).await.expect("it ends").expect("in order");
}

/// All chunks of an answer: the bytes that were sent and the bytes that are the same.
async fn fetch(client: &mut PeerClient<Channel>, request: v1::FetchSnapshotRequest) -> Result<(Vec<u8>, u64), Reason> {
    let reason = |refusal: Status| status::reason(&refusal).expect("it has a reason");
    let mut chunks = client.fetch_snapshot(of("node-2", request)).await.map_err(reason)?.into_inner();
    let (mut sent, mut same) = (Vec::new(), 0);
    while let Some(chunk) = chunks.message().await.map_err(reason)? {
        sent.extend_from_slice(&chunk.data);
        same += u64::from(chunk.same_bytes);
    }
    Ok((sent, same))
}

#[tokio::test]
async fn a_snapshot_is_sent_without_the_parts_that_its_receiver_has() {
    let (hosted, mut client) = served();
    let replica = hosted.put_root(20);
    let (pin, file, whole) = {
        let mut machine = replica.shared.machine.write();
        let machine = machine.as_mut().expect("it serves");
        let pinned = machine.pin_snapshot(Position { index: 20, term: 1 }).expect("there is room");
        let receiver = coppice_env::SimStorage::new().storage();
        let receiver = crate::root::RootMachine::receive(receiver, &crate::Runner::Threads, &pinned.manifest)
            .expect("it is whole");
        let (file, _) = crate::replica::machine::Receiver::next(&receiver).expect("there are files");
        let whole = machine.read_snapshot(pinned.id, &file, 0, 1 << 20).expect("it is pinned");
        (pinned.id, file, whole)
    };
    assert!(whole.len() > 100);
    let request = |offset, held: &[u8]| v1::FetchSnapshotRequest {
        group: 0,
        snapshot_id: pin,
        file: file.clone(),
        offset,
        held: Bytes::copy_from_slice(held),
    };
    assert_eq!(fetch(&mut client, request(0, &[])).await, Ok((whole.clone(), 0)));
    assert_eq!(fetch(&mut client, request(40, &[])).await, Ok((whole[40..].to_vec(), 0)));
    assert_eq!(fetch(&mut client, request(0, &sha256(&whole).0)).await, Ok((Vec::new(), whole.len() as u64)));
    assert_eq!(fetch(&mut client, request(0, &[7; HASH_BYTES])).await, Ok((whole.clone(), 0)), "another hash");
    let end = whole.len() as u64;
    assert_eq!(fetch(&mut client, request(end, &[])).await, Ok((Vec::new(), 0)));
    assert_eq!(fetch(&mut client, request(u64::MAX, &[])).await, Err(Reason::NotFound), "no file is so long");
    let gone = v1::FetchSnapshotRequest { snapshot_id: pin + 1, ..request(0, &[]) };
    assert_eq!(fetch(&mut client, gone).await, Err(Reason::NotFound));
    let elsewhere = v1::FetchSnapshotRequest { group: 5, ..request(0, &[]) };
    assert_eq!(fetch(&mut client, elsewhere).await, Err(Reason::Unavailable));
}
