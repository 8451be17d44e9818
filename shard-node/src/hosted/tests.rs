//! The replicas of a node as its services see them, without threads that drive them.

use std::time::Duration;

use coppice_env::{SimClock, SimStorage};
use coppice_types::{ShardId, Version};

use super::*;
use crate::{
    Connector, DuplexNet,
    replica::{
        Input,
        tests::{handle, raft_id, site},
    },
    root::tests::Ledger,
    shard::tests::Talk,
};

pub(crate) const SHARD: GroupId = GroupId::Shard(ShardId(0));

/// Node 1 of three, without replicas.
pub(crate) fn hosted(net: &DuplexNet) -> Arc<Hosted> {
    with_unreachable(net).0
}

fn with_unreachable(net: &DuplexNet) -> (Arc<Hosted>, Unreachable) {
    let mut told = None;
    let hosted = Arc::new_cyclic(|weak| {
        Hosted::new(weak, |unreachable| {
            told = Some(unreachable);
            let clock = Arc::new(SimClock::new(5_000_000));
            site(net, SimStorage::new().storage(), clock, crate::Tuning::default())
        })
    });
    (hosted, told.expect("the site was made"))
}

impl Hosted {
    /// Adds a replica that no thread drives.
    pub(crate) fn put(&self, group: GroupId, replica: Replica) {
        self.replicas.write().expect("nobody panicked").insert(group, replica);
    }

    /// Adds a root replica whose log has this many entries.
    pub(crate) fn put_root(&self, entries: usize) -> ReplicaHandle<RootMachine> {
        let replica = handle(GroupId::Root, Some(Ledger::of(entries).machine));
        self.put(GroupId::Root, Replica::Root(replica.clone()));
        replica
    }

    /// Adds a replica of the first shard.
    pub(crate) fn put_shard(&self, machine: Option<ShardMachine>) -> ReplicaHandle<ShardMachine> {
        let replica = handle(SHARD, machine);
        self.put(SHARD, Replica::Shard(replica.clone()));
        replica
    }
}

#[tokio::test]
async fn a_group_that_is_not_here_is_refused_so_that_its_caller_asks_elsewhere() {
    let hosted = hosted(&DuplexNet::new());
    let reason = |group| hosted.shard(group).map(drop).map_err(|refusal| refusal.reason);
    assert_eq!(reason(SHARD), Err(Reason::Unavailable));
    assert_eq!(reason(GroupId::Root), Err(Reason::InvalidArgument), "no node answers that otherwise");
    assert_eq!(hosted.root().map(drop).map_err(|refusal| refusal.reason), Err(Reason::Unavailable));
    hosted.put_shard(None);
    assert_eq!((reason(SHARD), reason(GroupId::Root)), (Ok(()), Err(Reason::InvalidArgument)));
    hosted.root().map(drop).expect_err("a shard is not the root group");
}

#[tokio::test]
async fn a_report_names_what_was_begun_and_promised_and_the_state_that_each_replica_serves() {
    let hosted = hosted(&DuplexNet::new());
    let mut talk = Talk::new();
    let decided = talk.commit(1, "a");
    hosted.put_shard(Some(talk.machine));
    hosted.put_root(2);
    {
        let mut forming = hosted.forming.write().expect("nobody panicked");
        let other = |shard| GroupId::Shard(ShardId(shard));
        forming.ledger = Some(Digest([4; 32]));
        (forming.pledged, forming.started) = ([other(4)].into(), [other(5), SHARD].into());
    }
    let report = hosted.report();
    assert_eq!((report.node.as_str(), &report.ledger[..]), ("node-1", &[4; 32][..]));
    assert_eq!((report.pledged, report.started), (vec![5], vec![0, 1, 6]), "a replica that runs has begun");
    let [root, shard] = &report.replicas[..] else { panic!("two replicas run: {:?}", report.replicas) };
    assert_eq!((root.group, &root.decided), (0, &None));
    assert_eq!(shard.decided, Some(convert::to_state(decided)));
    let status = shard.status.as_ref().expect("always set");
    assert!(status.bytes_on_disk > 0 && status.raft_id == raft_id(1).0);
    assert_eq!(decided.version, Version(1));
}

#[tokio::test]
async fn a_replica_without_a_state_is_reported_without_one() {
    let hosted = hosted(&DuplexNet::new());
    hosted.put_shard(None).shared.status.write().expect("nobody panicked").note = "waits".to_owned();
    let report = hosted.report().replicas.remove(0);
    assert_eq!((report.decided, report.shape), (None, None));
    let status = report.status.expect("always set");
    assert_eq!((status.note.as_str(), status.bytes_on_disk), ("waits", 0));
}

#[tokio::test]
async fn every_replica_is_told_of_a_node_that_cannot_be_reached_as_long_as_the_node_lives() {
    let (hosted, unreachable) = with_unreachable(&DuplexNet::new());
    let (root, shard) = (hosted.put_root(1), hosted.put_shard(None));
    unreachable("node-2");
    let told = |input: &Input<_>| matches!(input, Input::Unreachable(node) if node == "node-2");
    assert!(root.shared.mailbox.take(Duration::ZERO).iter().all(told));
    assert_eq!(shard.shared.mailbox.waiting(), (1, 0));
    drop(hosted);
    unreachable("node-3");
    assert_eq!(shard.shared.mailbox.waiting(), (1, 0));
}

/// Counts the connections that are made.
#[derive(Debug)]
struct Counting(Arc<dyn Connector>, Mutex<Vec<String>>);

impl Connector for Counting {
    fn channel(&self, node: &str) -> Channel {
        self.1.lock().expect("nobody panicked").push(node.to_owned());
        self.0.channel(node)
    }
}

#[tokio::test]
async fn all_questions_to_a_node_share_one_connection() {
    let net = DuplexNet::new();
    let counting = Arc::new(Counting(net.connector("node-1"), Mutex::default()));
    let connector: Arc<dyn Connector> = Arc::clone(&counting) as _;
    let clock = Arc::new(SimClock::default());
    let of = site(&net, SimStorage::new().storage(), clock, crate::Tuning::default());
    let hosted = Arc::new_cyclic(|weak| Hosted::new(weak, |_| Site { connector, ..of }));
    for node in ["node-2", "node-3", "node-2", "node-2"] {
        drop(hosted.ask(node));
    }
    assert_eq!(*counting.1.lock().expect("nobody panicked"), ["node-2", "node-3"]);
}
