//! Forming the groups of a cluster of processes, and the return of a node without its disk
//! (protocol.md 1.4).
//!
//! An empty directory never votes, unless its group is new. A group is new only if *all* its hosts
//! say so, each durably. A node that may form a group first *pledges*: it writes the replica's
//! identity alone, and only while every other host is reachable and none has begun. It begins when
//! all hosts have pledged, or when one has begun, because that one had seen all pledges. So the
//! order of starts does not matter. A node that comes back empty, whatever its configuration says,
//! finds a host that has begun and joins as a learner under a new raft id; if it finds none, it
//! waits.
//!
//! ```text
//!  nothing ──pledge──► pledged ──all hosts have pledged, or one has begun──► begun
//!     │
//!     └──a host has begun──► joins as a learner under a new raft id
//! ```
//!
//! Why that is safe: a replica that voted or acknowledged anything did so together with another
//! replica that has begun, and the node asks that one before it pledges again.
//!
//! A node that hosts readers forms nothing. It joins as a learner, and stays one.
//!
//! A crash before the pledge leaves nothing. A crash after it leaves a promise that holds however
//! far the others are. After the beginning it leaves an ordinary replica, and during a join a
//! learner that continues from the members that it finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError},
    time::Duration,
};

use coppice_env::Storage;
use coppice_proto::v1::{NodeStatusRequest, NodeStatusResponse};
use coppice_types::{ClusterId, Digest, GroupId, RaftId};

use super::{claim::Owner, handle::Handle, options::ReplicaOptions};
use crate::{
    Error,
    hosted::Hosted,
    replica::{
        Bootstrap,
        home::{self, Home, Identity},
    },
};

/// The incarnation of a group's first voters.
const FIRST: u32 = 1;
/// Pause between two looks at the other nodes.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two looks, while nothing changes.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed attempt to form a group.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// How long another node may take to answer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A node's part in forming its groups.
#[derive(Clone, Debug)]
pub struct Formation {
    /// The ordinals of the hosts of the voters of each group that this node hosts. A reader is no
    /// such host.
    pub groups: BTreeMap<GroupId, BTreeSet<u32>>,
    /// Groups that no node has formed may be formed. Otherwise, a group that is not here is joined.
    pub new: bool,
    /// Digest of the genesis parameters and the first shards. Nodes form groups only with nodes
    /// that have the same digest.
    pub ledger: Digest,
}

/// The groups in a node's directory.
#[derive(Debug, Default)]
pub struct Survey {
    /// Replicas to start from their directories.
    pub replicas: Vec<ReplicaOptions>,
    /// Groups without a replica here, and whether this node has pledged to form them.
    pub pending: BTreeMap<GroupId, bool>,
}

/// The state of a group on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// The host does not answer.
    Unreachable,
    /// The host belongs to another cluster or ledger.
    Foreign,
    Absent,
    Pledged,
    Started,
}

/// The next step for a group without a replica here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Wait(String),
    Pledge,
    Begin,
    Join,
}

/// The rule of the module's head, as a pure function.
fn next(pledged: bool, new: bool, others: &BTreeMap<String, Seen>) -> Step {
    let names = |what: &dyn Fn(&Seen) -> bool| {
        let names = others.iter().filter(|(_, seen)| what(seen)).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let started = others.values().any(|seen| *seen == Seen::Started);
    let foreign = names(&|seen| *seen == Seen::Foreign);
    let unreachable = names(&|seen| *seen == Seen::Unreachable);
    let absent = names(&|seen| *seen == Seen::Absent);
    if pledged && (started || others.values().all(|seen| *seen == Seen::Pledged)) {
        Step::Begin
    } else if !pledged && started {
        Step::Join
    } else if !foreign.is_empty() {
        Step::Wait(format!("{foreign} to have the cluster_id and [ledger] of this node: compare --print-config"))
    } else if !unreachable.is_empty() {
        Step::Wait(format!("{unreachable} to answer"))
    } else if pledged {
        Step::Wait(format!("{absent} to form it too: all its hosts have to, with bootstrap = \"new\""))
    } else if new {
        Step::Pledge
    } else {
        let others = if others.is_empty() { "anybody" } else { "another host" };
        Step::Wait(format!("{others} to have it: the first start of a cluster is with bootstrap = \"new\""))
    }
}

/// Finds the groups in a node's directory.
///
/// # Errors
/// If the directory cannot be read, or holds a replica of another cluster or node.
pub fn survey(
    storage: &dyn Storage,
    owner: &Owner,
    groups: impl IntoIterator<Item = GroupId>,
) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    for group in groups {
        match find(storage, owner.cluster, owner.ordinal, group)? {
            Found::Replica(replica) => survey.replicas.push(replica),
            Found::Nothing => drop(survey.pending.insert(group, false)),
            Found::Pledge => drop(survey.pending.insert(group, true)),
        }
    }
    Ok(survey)
}

/// A group in a node's directory.
enum Found {
    Nothing,
    Pledge,
    Replica(ReplicaOptions),
}

fn find(storage: &dyn Storage, cluster: ClusterId, own: u32, group: GroupId) -> Result<Found, Error> {
    let Some((identity, started)) = home::stored_progress(storage, group)? else { return Ok(Found::Nothing) };
    if identity.cluster != cluster || identity.raft_id.ordinal() != own {
        let directory = home::directory(group);
        return Err(Error::Identity(format!("{directory} holds {identity}, of another cluster or node")));
    }
    if !started && identity.raft_id == RaftId::new(own, FIRST) {
        return Ok(Found::Pledge);
    }
    Ok(Found::Replica(ReplicaOptions { group, raft_id: identity.raft_id, bootstrap: Bootstrap::Join }))
}

impl Handle {
    /// Forms or joins the groups that have no replica here yet, in the background and without a
    /// time limit.
    pub fn form(&self, formation: &Formation, pending: &BTreeMap<GroupId, bool>) {
        let mut forming = self.hosted().forming.write().unwrap_or_else(PoisonError::into_inner);
        forming.ledger = Some(formation.ledger);
        forming.expected = pending.keys().copied().filter(|group| formation.groups.contains_key(group)).collect();
        forming.pledged = pending.iter().filter(|(_, pledged)| **pledged).map(|(group, _)| *group).collect();
        drop(forming);
        for (&group, &pledged) in pending {
            let Some(hosts) = formation.groups.get(&group).cloned() else { continue };
            let (handle, new) = (self.clone(), formation.new && !self.hosted().hosts_readers());
            tokio::spawn(async move {
                let mut closing = handle.hosted().closing.subscribe();
                tokio::select! {
                    biased;
                    _ = closing.wait_for(|closing| *closing) => {}
                    () = handle.form_at_last(group, &hosts, new, pledged) => {}
                }
            });
        }
    }

    /// Forms or joins a group. After a failure, for instance because of a full disk, there is
    /// another attempt, which begins like the start of a node: with the directory's content at that
    /// time.
    async fn form_at_last(&self, group: GroupId, hosts: &BTreeSet<u32>, new: bool, mut pledged: bool) {
        loop {
            let Err(error) = self.form_group(group, hosts, new, pledged).await else { return };
            tracing::error!(%group, error = error.chain(), "a group could not be formed or joined here");
            loop {
                tokio::time::sleep(RETRY_PAUSE).await;
                match self.find_again(group).await {
                    Ok(Some(there)) => {
                        pledged = there;
                        break;
                    }
                    Ok(None) => return self.resume_joining(group),
                    Err(error) => tracing::error!(%group, error = error.chain(), "a replica could not be started"),
                }
            }
        }
    }

    /// Starts the replica of a group that is in the directory. If there is none, returns whether
    /// there is a pledge.
    async fn find_again(&self, group: GroupId) -> Result<Option<bool>, Error> {
        let hosted = self.hosted();
        if hosted.replica(group).is_some() {
            return Ok(None);
        }
        let own = hosted.ordinal().ok_or_else(|| Error::Identity("this node has no ordinal".to_owned()))?;
        let (storage, cluster) = (Arc::clone(&hosted.storage), hosted.cluster);
        let found = hosted.tuning.runner.blocking(move || find(storage.as_ref(), cluster, own, group)).await;
        match found.unwrap_or(Err(Error::Overdue("a look at the directory")))? {
            Found::Nothing => Ok(Some(false)),
            Found::Pledge => Ok(Some(true)),
            Found::Replica(replica) => self.start_replica(replica).await.map(|()| None),
        }
    }

    async fn form_group(
        &self,
        group: GroupId,
        hosts: &BTreeSet<u32>,
        new: bool,
        mut pledged: bool,
    ) -> Result<(), Error> {
        let hosted = self.hosted();
        let own = hosted.ordinal().ok_or_else(|| Error::Identity("this node has no ordinal".to_owned()))?;
        let identity = Identity { cluster: hosted.cluster, group, raft_id: RaftId::new(own, FIRST) };
        let mut told = String::new();
        let mut pause = LOOK_PAUSE;
        loop {
            match next(pledged, new, &look(hosted, group, hosts, own).await) {
                Step::Wait(what) if what == told => pause = (pause * 2).min(LOOK_PAUSE_MAX),
                Step::Wait(what) => {
                    tracing::info!(%group, "waiting for {what}");
                    (told, pause) = (what, LOOK_PAUSE);
                }
                Step::Pledge => {
                    pledge(hosted, identity).await?;
                    (pledged, pause) = (true, LOOK_PAUSE);
                    continue;
                }
                Step::Begin => {
                    note_started(hosted, group);
                    let voters = hosts.iter().map(|ordinal| RaftId::new(*ordinal, FIRST)).collect();
                    let bootstrap = Bootstrap::New { voters };
                    tracing::info!(%group, "forming the group: all its hosts are here");
                    return self.start_replica(ReplicaOptions { group, raft_id: identity.raft_id, bootstrap }).await;
                }
                Step::Join => {
                    tracing::info!(%group, "joining the group as a learner: others have formed it, and nothing of it is here");
                    note_started(hosted, group);
                    let id = self.join_group(group).await?;
                    let votes = !hosted.hosts_readers();
                    tracing::info!(%group, raft_id = format!("{:#x}", id.0), votes, "joined the group");
                    return Ok(());
                }
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Writes the pledge, then shows it to others.
async fn pledge(hosted: &Arc<Hosted>, identity: Identity) -> Result<(), Error> {
    let storage = Arc::clone(&hosted.storage);
    let written = hosted.tuning.runner.blocking(move || Home::open(storage.as_ref(), identity).map(drop)).await;
    written.unwrap_or(Err(Error::Overdue("a pledge")))?;
    hosted.forming.write().unwrap_or_else(PoisonError::into_inner).pledged.insert(identity.group);
    Ok(())
}

/// Shows other nodes that the group's replica begins. Must be called before it does.
fn note_started(hosted: &Hosted, group: GroupId) {
    let mut forming = hosted.forming.write().unwrap_or_else(PoisonError::into_inner);
    forming.pledged.remove(&group);
    forming.started.insert(group);
}

/// Asks all other hosts of a group.
async fn look(hosted: &Hosted, group: GroupId, hosts: &BTreeSet<u32>, own: u32) -> BTreeMap<String, Seen> {
    let others = hosts.iter().filter(|ordinal| **ordinal != own);
    let calls = others.map(|ordinal| async move {
        let Some(node) = hosted.node_at(*ordinal) else { return (format!("node {ordinal}"), Seen::Unreachable) };
        let mut client = hosted.ask(node);
        let call = tokio::time::timeout(LOOK_TIMEOUT, client.node_status(NodeStatusRequest {})).await;
        let seen = match call {
            Ok(Ok(answer)) => see(hosted, group, node, &answer.into_inner()),
            Ok(Err(_)) | Err(_) => Seen::Unreachable,
        };
        (node.to_owned(), seen)
    });
    futures::future::join_all(calls).await.into_iter().collect()
}

/// The state of a group, according to the answer of the node `asked`.
fn see(hosted: &Hosted, group: GroupId, asked: &str, answer: &NodeStatusResponse) -> Seen {
    let ledger = hosted.forming.read().unwrap_or_else(PoisonError::into_inner).ledger;
    let same_ledger = Digest::from_slice(&answer.ledger) == ledger;
    if answer.cluster_id.as_ref() != hosted.cluster.as_bytes() || answer.node != asked {
        Seen::Foreign
    } else if answer.ledger.is_empty() {
        // The node has just started and does not know its configuration yet.
        Seen::Unreachable
    } else if !same_ledger {
        Seen::Foreign
    } else if answer.started.contains(&group.number()) {
        Seen::Started
    } else if answer.pledged.contains(&group.number()) {
        Seen::Pledged
    } else {
        Seen::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DuplexNet, hosted::tests::hosted, replica::tests::CLUSTER};

    fn others(list: &[Seen]) -> BTreeMap<String, Seen> {
        list.iter().enumerate().map(|(at, seen)| (format!("node-{at}"), seen.clone())).collect()
    }

    #[test]
    fn a_group_is_formed_only_when_all_hosts_have_pledged_and_otherwise_joined() {
        use Seen::{Absent, Foreign, Pledged, Started, Unreachable};
        let step = |pledged, new, seen: &[Seen]| next(pledged, new, &others(seen));
        let waits = |step: &Step| matches!(step, Step::Wait(_));
        assert_eq!(step(false, true, &[Absent, Pledged]), Step::Pledge);
        assert!(waits(&step(false, true, &[Absent, Unreachable])), "the one that is away may have begun");
        assert!(waits(&step(false, true, &[Absent, Foreign])));
        assert!(waits(&step(false, false, &[Absent, Pledged])), "only bootstrap = new forms");
        assert_eq!(step(false, true, &[Unreachable, Started]), Step::Join, "whatever the configuration says");
        assert_eq!(step(false, false, &[Unreachable, Started]), Step::Join);
        assert!(waits(&step(true, true, &[Pledged, Absent])), "two of three could not tell the third what they did");
        assert!(waits(&step(true, true, &[Pledged, Unreachable])));
        assert_eq!(step(true, false, &[Pledged, Pledged]), Step::Begin, "a pledge holds");
        assert_eq!(step(true, true, &[Started, Unreachable]), Step::Begin, "it had seen this one's pledge");
        assert_eq!(step(false, true, &[]), Step::Pledge);
        assert_eq!(step(true, true, &[]), Step::Begin);
        assert!(waits(&step(false, false, &[])));
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    enum Disk {
        Absent,
        Pledged,
        Begun,
        Learner,
    }

    /// Three hosts: their disks, whether their first ids may have voted, and the number of lost
    /// disks.
    type World = ([Disk; 3], [bool; 3], u8);

    /// The worlds after one step of a host, or after the loss of its disk.
    fn after((disks, voted, losses): World, at: usize) -> Vec<World> {
        let told = |disk: &Disk| match disk {
            Disk::Absent => Seen::Absent,
            Disk::Pledged => Seen::Pledged,
            Disk::Begun | Disk::Learner => Seen::Started,
        };
        let with = |disk: Disk| {
            let (mut disks, mut voted) = (disks, voted);
            disks[at] = disk;
            if disks.iter().filter(|disk| **disk == Disk::Begun).count() > 1 {
                disks.iter().zip(&mut voted).for_each(|(disk, voted)| *voted |= *disk == Disk::Begun);
            }
            (disks, voted, losses)
        };
        let mut worlds = Vec::new();
        if losses < 1 {
            let (disks, voted, losses) = with(Disk::Absent);
            worlds.push((disks, voted, losses + 1));
        }
        let seen: Vec<Seen> = (0..3).filter(|other| *other != at).map(|other| told(&disks[other])).collect();
        if matches!(disks[at], Disk::Absent | Disk::Pledged) {
            match next(disks[at] == Disk::Pledged, true, &others(&seen)) {
                Step::Pledge => worlds.push(with(Disk::Pledged)),
                Step::Begin => {
                    assert!(!voted[at], "host {at} begins again under an id that may have voted: {disks:?}");
                    worlds.push(with(Disk::Begun));
                }
                Step::Join => worlds.push(with(Disk::Learner)),
                Step::Wait(_) => {}
            }
        }
        worlds
    }

    #[test]
    fn an_id_that_voted_never_begins_again_whatever_the_order_of_starts_and_the_lost_disk() {
        let mut seen = BTreeSet::new();
        let mut open: Vec<World> = vec![([Disk::Absent; 3], [false; 3], 0)];
        while let Some(world) = open.pop() {
            if seen.insert(world) {
                open.extend((0..3).flat_map(|at| after(world, at)));
            }
        }
        let formed = seen.iter().any(|(disks, ..)| *disks == [Disk::Begun; 3]);
        let rejoined = seen.iter().any(|(disks, ..)| disks.contains(&Disk::Learner));
        assert!(formed && rejoined && seen.len() > 40, "the search went everywhere: {}", seen.len());
    }

    /// Node 1 of three, which was configured with a ledger.
    fn configured() -> Arc<Hosted> {
        let hosted = hosted(&DuplexNet::new());
        hosted.forming.write().expect("nobody panicked").ledger = Some(Digest([4; 32]));
        hosted
    }

    #[tokio::test]
    async fn a_host_counts_only_if_it_is_of_this_cluster_and_ledger_and_the_one_that_was_asked() {
        let hosted = configured();
        let answer = NodeStatusResponse {
            node: "node-2".to_owned(),
            cluster_id: CLUSTER.as_bytes().to_vec().into(),
            ledger: vec![4; 32].into(),
            started: vec![1],
            pledged: vec![2],
            ..Default::default()
        };
        let seen = |group, answer: &NodeStatusResponse| see(&hosted, GroupId::from_number(group), "node-2", answer);
        let groups = [1, 2, 3].map(|group| seen(group, &answer));
        assert_eq!(groups, [Seen::Started, Seen::Pledged, Seen::Absent]);
        let both = NodeStatusResponse { pledged: vec![1], ..answer.clone() };
        assert_eq!(seen(1, &both), Seen::Started);
        let just_started = NodeStatusResponse { ledger: Default::default(), ..answer.clone() };
        assert_eq!(seen(1, &just_started), Seen::Unreachable, "it does not know its configuration yet");
        for foreign in [
            NodeStatusResponse { node: "node-3".to_owned(), ..answer.clone() },
            NodeStatusResponse { cluster_id: vec![1; 16].into(), ..answer.clone() },
            NodeStatusResponse { ledger: vec![5; 32].into(), ..answer.clone() },
            NodeStatusResponse { ledger: vec![4; 31].into(), ..answer },
        ] {
            assert_eq!(seen(1, &foreign), Seen::Foreign, "{foreign:?}");
        }
    }

    #[tokio::test]
    async fn a_host_that_is_in_no_list_or_does_not_answer_holds_a_new_group_up() {
        let hosted = configured();
        let seen = look(&hosted, GroupId::Root, &[1, 2, 9].into(), 1).await;
        let expected = [("node 9", Seen::Unreachable), ("node-2", Seen::Unreachable)];
        assert_eq!(seen, expected.map(|(node, seen)| (node.to_owned(), seen)).into());
        assert!(matches!(next(false, true, &seen), Step::Wait(_)));
    }

    #[tokio::test]
    async fn a_pledge_is_on_disk_before_others_see_it_and_a_beginning_replaces_it() {
        let hosted = configured();
        let identity = Identity { cluster: CLUSTER, group: GroupId::Root, raft_id: RaftId::new(1, FIRST) };
        let disk = Arc::clone(&hosted.storage);
        let found = || find(disk.as_ref(), CLUSTER, 1, GroupId::Root).expect("it is sound");
        assert!(matches!(found(), Found::Nothing));
        pledge(&hosted, identity).await.expect("there is room");
        assert!(matches!(found(), Found::Pledge));
        assert_eq!(hosted.report().pledged, [0]);
        note_started(&hosted, GroupId::Root);
        let report = hosted.report();
        assert_eq!((report.pledged, report.started), (vec![], vec![0]));
    }

    #[tokio::test]
    async fn a_pledge_that_could_not_be_written_is_not_shown() {
        let hosted = configured();
        let identity = Identity { cluster: CLUSTER, group: GroupId::Root, raft_id: RaftId::new(1, FIRST) };
        let held = Home::open(hosted.storage.as_ref(), identity).expect("made");
        assert!(matches!(pledge(&hosted, identity).await, Err(Error::InUse)));
        assert!(hosted.report().pledged.is_empty());
        drop(held);
    }

    #[test]
    fn a_survey_tells_pledges_from_replicas_and_refuses_those_of_others() {
        let node = coppice_env::SimStorage::new().storage();
        let shard = |number| GroupId::Shard(coppice_types::ShardId(number));
        let make = |cluster, group, raft_id, begun| {
            let identity = Identity { cluster, group, raft_id };
            let mut home = Home::open(node.as_ref(), identity).expect("made");
            if begun {
                home.set_started(identity).expect("noted");
            }
        };
        make(CLUSTER, GroupId::Root, RaftId::new(1, FIRST), false);
        make(CLUSTER, shard(0), RaftId::new(1, FIRST), true);
        // A learner that was cut off before its log was made goes on under its id.
        make(CLUSTER, shard(1), RaftId::new(1, 77), false);
        let owner = Owner { cluster: CLUSTER, node: "node-1".to_owned(), ordinal: 1, ledger: Digest::default() };
        let groups = [GroupId::Root, shard(0), shard(1), shard(2)];
        let survey = survey(node.as_ref(), &owner, groups).expect("all is this node's");
        assert_eq!(survey.pending, [(GroupId::Root, true), (shard(2), false)].into());
        let replicas: Vec<_> = survey.replicas.iter().map(|replica| (replica.group, replica.raft_id)).collect();
        assert_eq!(replicas, [(shard(0), RaftId::new(1, FIRST)), (shard(1), RaftId::new(1, 77))]);
        make(CLUSTER, shard(3), RaftId::new(2, FIRST), true);
        make(ClusterId([1; 16]), shard(4), RaftId::new(1, FIRST), true);
        for group in [shard(3), shard(4)] {
            let refused = super::survey(node.as_ref(), &owner, [group]).expect_err("it is another's");
            assert!(matches!(&refused, Error::Identity(what) if what.contains(&home::directory(group))), "{refused}");
        }
    }
}
