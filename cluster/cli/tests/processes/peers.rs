//! The identity of peers, with real processes and mutual TLS. Impostors get nothing, one node's key
//! speaks for no other node, certificates are withdrawn under open connections, and etcd holds
//! entries that somebody else wrote.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use coppice_metadata::{Candidate, EtcdOptions, EtcdStore, Kind, Member, Metadata, Presence};
use coppice_process::{
    access::AccessLog,
    net,
    tls::{Believed, Protocol, ServerTls},
};
use coppice_proto::v1::{self, node_client::NodeClient, peer_client::PeerClient, root_client::RootClient};
use coppice_types::ClusterId;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status};

use crate::{
    common, connect, denials,
    harness::{self, Cluster, until},
    voters_of,
};

/// A listener in place of another process, which shows a certificate that the cluster's authority
/// signed.
struct Impostor {
    _runtime: Runtime,
    /// Number of connections over which it could have heard something.
    heard: Arc<AtomicUsize>,
    log: std::path::PathBuf,
}

impl Impostor {
    fn new(cluster: &Cluster, port: u16, name: &str) -> Self {
        let runtime = Runtime::new().expect("the system gives threads");
        let entered = runtime.enter();
        let log = cluster.path(&format!("impostor-{port}-{name}"));
        // Lines of an earlier impostor must not count.
        let _ = fs::remove_file(&log);
        let path = |kind: &str| cluster.path(&format!("{name}.{kind}"));
        let shown = ServerTls { cert: path("pem"), key: path("key"), client_ca: None };
        let believed = Believed { authorities: vec![cluster.path("ca.pem")], withdrawn: None };
        let denials = AccessLog::to_file(&log).expect("a file can be made");
        let acceptor = shown.acceptor(Protocol::Grpc, believed, denials).expect("the files are whole");
        let listener = runtime.block_on(net::listen(([127, 0, 0, 1], port).into())).expect("the port is free");
        let mut incoming = net::incoming(listener, Some(acceptor));
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        runtime.spawn(async move {
            while incoming.next().await.is_some() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        drop(entered);
        Self { _runtime: runtime, heard, log }
    }

    fn heard(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }

    /// Waits until peers have connected this many times, and left when they saw the certificate.
    fn is_tried(&self, times: usize) {
        until("somebody tries", || {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            (log.lines().count() >= times).then_some(())
        });
    }
}

#[test]
fn an_impostor_at_the_address_of_a_node_that_is_down_gets_nothing() {
    let cluster = Cluster::tls();
    let mut nodes = cluster.nodes();
    let mut coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    let vkey = format!("@{}", cluster.path("ledger.vkey").display());
    for name in ["reader", "client", "node-2", "coordinator-1"] {
        nodes.remove(2).kill();
        let impostor = Impostor::new(&cluster, cluster.port_of(3), name);
        impostor.is_tried(6);
        // There is a majority without the impostor's vote.
        cluster.run(&["commit", "--put", &format!("impostor={name}"), "--trust", &vkey]).expect(0);
        cluster.run(&["get", "impostor", "--trust", &vkey]).expect(0);
        assert_eq!(impostor.heard(), 0, "{name} was spoken to");
        let groups = cluster.replicas().expect("the others serve");
        assert_eq!(voters_of(&groups, "node-3"), 0, "{groups:?}");
        drop(impostor);
        nodes.push(cluster.node(3));
        cluster.until_whole();
    }
    coordinator.says("this coordinator leads");
    drop((coordinator, nodes));
}

#[test]
fn a_client_sends_nothing_to_a_server_that_is_not_a_coordinator_unless_told_to() {
    let cluster = Cluster::tls();
    for name in ["reader", "node-1", "nobody"] {
        let port = cluster.port_of(4);
        let impostor = Impostor::new(&cluster, port, name);
        let refused = common::run(&mut cluster.coppice(&["commit", "--put", "a=b"]));
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains("a coordinator is expected"), "{}", refused.stderr);
        impostor.is_tried(1);
        assert_eq!(impostor.heard(), 0, "{name} was spoken to");
        let reached = cluster.start(&["head", "--any-server"]);
        until("it is spoken to", || (impostor.heard() > 0).then_some(()));
        drop(impostor);
        assert_ne!(reached.finish(common::LIMIT).code, 0, "it answers nothing");
    }
}

/// The id of a cluster.
fn id_of(cluster: &Cluster) -> ClusterId {
    let vkey = fs::read_to_string(cluster.path("ledger.vkey")).expect("it was made");
    let name = vkey.split('+').next().expect("a name");
    let id = hex::decode(name.rsplit('/').next().expect("a cluster id")).expect("it is hex");
    ClusterId::from_slice(&id).expect("it is an id")
}

/// Node 1's answer to an exchange in which the caller claims to be a node.
async fn exchange(cluster: &Cluster, certificate: &str, node: &str, raft_id: u64) -> Result<(), Status> {
    let id = id_of(cluster);
    let message = v1::PeerMessage {
        cluster_id: bytes::Bytes::copy_from_slice(id.as_bytes()),
        from_raft_id: raft_id,
        ..v1::PeerMessage::default()
    };
    let mut request = Request::new(tokio_stream::iter([message]));
    for (entry, text) in [("coppice-node", node), ("coppice-cluster", &id.to_string())] {
        request.metadata_mut().insert(entry, text.parse().expect("it is ASCII"));
    }
    PeerClient::new(connect(cluster, certificate, 1)).exchange(request).await.map(drop)
}

#[test]
fn a_nodes_key_speaks_for_no_other_node_and_a_coordinators_for_no_other_coordinator() {
    let cluster = Cluster::tls();
    let nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    let before = cluster.until_whole();
    let raft_id = |ordinal: u64| ordinal << 32 | 1;
    let runtime = Runtime::new().expect("the system gives threads");
    let denied = |result: Result<(), Status>, words: &str| {
        let status = result.expect_err("it speaks for another");
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
        assert!(status.message().contains(words), "{words}: {status:?}");
    };
    runtime.block_on(async {
        exchange(&cluster, "node-2", "node-2", raft_id(2)).await.expect("it speaks for itself");
        denied(exchange(&cluster, "node-2", "node-3", raft_id(3)).await, "its certificate is for node-2");
        denied(exchange(&cluster, "node-2", "node-2", raft_id(3)).await, "which is node-3's");
        denied(exchange(&cluster, "node-2", "node-2", raft_id(9)).await, "is not in [nodes]");
        denied(exchange(&cluster, "coordinator-1", "node-2", raft_id(2)).await, "its roles do not allow it");

        let change = async |certificate: &str, ordinal: u64, node: &str, change: &str| {
            let (node, change) = (node.to_owned(), change.to_owned());
            let request = v1::ChangeMemberRequest { group: 0, raft_id: raft_id(ordinal), node, change };
            NodeClient::new(connect(&cluster, certificate, 1)).change_member(request).await.map(drop)
        };
        denied(change("node-2", 3, "", "remove").await, "it says it is node-3");
        denied(change("node-2", 2, "node-3", "add_learner").await, "it says it is node-3");
        denied(change("node-2", 2, "", "lead").await, "only coordinators");

        let take_over = async |candidate: &str| {
            let request = v1::TakeOverRequest { candidate: candidate.to_owned(), ..v1::TakeOverRequest::default() };
            RootClient::new(connect(&cluster, "coordinator-1", 1)).take_over(request).await.map(drop)
        };
        denied(take_over("coordinator-2").await, "its certificate is for coordinator-1");
    });
    assert_eq!(cluster.until_whole(), before, "nobody was removed or added");
    drop((coordinator, nodes));
}

/// The serial number of a certificate of the cluster, in hex.
fn serial_of(cluster: &Cluster, name: &str) -> String {
    let pem = fs::read(cluster.path(&format!("{name}.pem"))).expect("it was made");
    let shown = coppice_proto::secure::certificates(&pem).expect("it is PEM");
    coppice_proto::certificate::Said::of(&shown[0]).expect("it is a certificate").serial
}

#[test]
fn a_withdrawn_certificate_ends_its_open_connections_and_is_let_in_no_more() {
    let cluster = Cluster::tls();
    let list = cluster.path("withdrawn");
    let write = |lines: &str| {
        fs::write(cluster.path("withdrawn.new"), lines).expect("a file can be written");
        fs::rename(cluster.path("withdrawn.new"), &list).expect("a file can be renamed");
    };
    write("end\n");
    let setting = format!("tls.withdrawn={}", list.display());
    let flags = ["--set", setting.as_str()];
    let mut nodes: Vec<_> = (1..=3).map(|ordinal| cluster.node_with(ordinal, &flags, &[])).collect();
    let mut coordinator = cluster.coordinator_with(&flags, &[]);
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    let follow = |name: &str| {
        let log = cluster.path(&format!("follow-{name}.log"));
        let mut follower = harness::Process::spawn("follower", cluster.coppice_as(name, &["log", "--follow"]), log);
        follower.says("1");
        follower
    };
    let (mut reader, auditor) = (follow("reader"), follow("auditor"));

    let readers = format!("serial {}\n", serial_of(&cluster, "reader"));
    write(&format!("{readers}end\n"));
    assert!(!reader.ends().success(), "its connection has ended");
    let refused = |name: &str| assert_ne!(common::run(&mut cluster.coppice_as(name, &["head"])).code, 0, "{name}");
    refused("reader");
    common::run(&mut cluster.coppice_as("auditor", &["head"])).expect(0);
    let lines = |follower: &harness::Process| follower.log().lines().count();
    let before = lines(&auditor);
    cluster.until_it_commits("others=go on");
    until("another's stream goes on", || (lines(&auditor) > before).then_some(()));
    let told = |line: &serde_json::Value| {
        let why = line["why"].as_str().unwrap_or_default();
        why.contains("withdrawn") && line["roles"] == serde_json::json!(["reader"])
    };
    assert!(denials(&cluster).iter().any(told), "the ended connection is recorded: {:?}", denials(&cluster));

    // A malformed list changes nothing, and no process starts with it.
    write(&format!("{readers}serial of the auditor\nend\n"));
    coordinator.says("what they held before stays in force");
    refused("reader");
    common::run(&mut cluster.coppice_as("auditor", &["head"])).expect(0);
    let mut broken = cluster.node_command(3, &["--set", &setting]);
    let broken = broken.output().expect("it can be run");
    assert_eq!(broken.status.code(), Some(2), "{}", String::from_utf8_lossy(&broken.stderr));
    let told = String::from_utf8_lossy(&broken.stderr);
    assert!(told.contains("line 2"), "it names the line: {told}");

    // The certificate of a node is withdrawn: the others go on without it, and it comes back with a
    // different certificate.
    write(&format!("{readers}serial {}\nend\n", serial_of(&cluster, "node-3")));
    nodes[0].says("an open connection ends: its other end is no longer trusted");
    until("nobody speaks with it", || cluster.replicas().filter(|groups| voters_of(groups, "node-3") == 0).map(drop));
    cluster.until_it_commits("without=node-3");
    let authority = cluster.authority();
    authority.certify_only(cluster.dir.path(), "node-3");
    cluster.until_whole();
    drop((coordinator, nodes));
}

/// The metadata store of a cluster, as anybody who reaches it sees it.
fn store_of(cluster: &Cluster) -> Arc<dyn Metadata> {
    let options = EtcdOptions::new(cluster.etcd().endpoints(), id_of(cluster));
    Arc::new(EtcdStore::connect(options).expect("it is an etcd"))
}

const LEASE: Duration = Duration::from_secs(60);

#[test]
fn a_nodes_address_that_somebody_wrote_into_etcd_gets_nothing_and_keeps_no_node_away() {
    let mut cluster = Cluster::tls_registered();
    let mut nodes = cluster.nodes();
    let mut coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    let port = cluster.port_of(5);
    let impostor = Impostor::new(&cluster, port, "reader");
    nodes.remove(2).kill();
    let runtime = Runtime::new().expect("the system gives threads");
    let hostile = runtime.block_on(async {
        let member = Member { kind: Kind::Node, name: "node-3".to_owned(), address: format!("127.0.0.1:{port}") };
        Presence::keep(store_of(&cluster), LEASE, member)
    });
    coordinator.says("a node is registered somewhere else now");
    nodes[0].says("a node is registered somewhere else now");
    impostor.is_tried(6);
    // The store is away, so the node can't register. It is at its configured address, and needed
    // for a majority.
    cluster.kill_etcd();
    nodes.push(cluster.node(3));
    cluster.until_whole();
    nodes.remove(1).kill();
    cluster.until_it_commits("found=yes");
    assert_eq!(impostor.heard(), 0, "it was spoken to");
    drop((coordinator, nodes, hostile));
}

#[test]
fn a_leader_that_somebody_wrote_into_etcd_is_sent_no_write() {
    let cluster = Cluster::tls_registered();
    let nodes = cluster.nodes();
    let first = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    first.kill();
    let port = cluster.port_of(5);
    let impostor = Impostor::new(&cluster, port, "reader");
    let runtime = Runtime::new().expect("the system gives threads");
    // A stranger is chosen once the leader's lease is over, and registers as a coordinator at the
    // impostor's address.
    let (tenure, hostile) = runtime.block_on(async {
        let store = store_of(&cluster);
        let member =
            Member { kind: Kind::Coordinator, name: "coordinator-9".to_owned(), address: format!("127.0.0.1:{port}") };
        let hostile = Presence::keep(Arc::clone(&store), LEASE, member);
        (Candidate::new(store, LEASE).campaign("coordinator-9").await.expect("nobody else is there"), hostile)
    });
    let mut coordinator = cluster.coordinator();
    coordinator.says("another coordinator leads");
    let write = cluster.start(&["commit", "--put", "secret=value"]);
    impostor.is_tried(3);
    assert_ne!(write.finish(common::LIMIT).code, 0, "nobody takes it");
    assert_eq!(impostor.heard(), 0, "it was spoken to");
    runtime.block_on(tenure.resign()).expect("the store is there");
    cluster.until_it_commits("secret=value");
    assert_eq!(impostor.heard(), 0, "it was spoken to");
    drop((coordinator, nodes, hostile));
}
