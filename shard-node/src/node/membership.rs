//! Bringing back a replica that lost its disk, under a new raft id (protocol.md 1.4), and adding
//! a reader.
//!
//! An empty directory never votes. So the replica joins as a learner, gets its vote when it has
//! caught up, and then its old ids leave the group. A reader never gets a vote. Every step asks the
//! group's leader and can be repeated. A driver that is cut off is started again and continues from
//! the members that it finds.

use std::{collections::BTreeSet, time::Duration};

use coppice_env::bug::{Bug, planted};
use coppice_proto::{
    status,
    v1::{ChangeMemberRequest, NodeStatusRequest, ReplicaReport},
};
use coppice_types::{Backoff, ErrorKind, GroupId, RaftId};
use tonic::Status;

use super::{handle::Handle, options::ReplicaOptions};
use crate::{
    Error,
    hosted::Hosted,
    replica::{Bootstrap, Role, home},
};

/// How long a replacement may take.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(120);
/// The pauses between two attempts at a step.
const STEP_DELAYS: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// How long another node may take to change members, and to report its status.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(12);
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// A group's leading node, and its report of the group.
async fn leader(hosted: &Hosted, group: GroupId) -> Option<(String, ReplicaReport)> {
    for node in hosted.nodes() {
        let mut client = hosted.ask(node);
        let call = tokio::time::timeout(STATUS_TIMEOUT, client.node_status(NodeStatusRequest {})).await;
        let Ok(Ok(answer)) = call else { continue };
        let reports = answer.into_inner().replicas;
        let leads = |report: &ReplicaReport| {
            report.group == group.number()
                && report.status.as_ref().is_some_and(|status| status.role == Role::Leader.as_str())
        };
        if let Some(report) = reports.into_iter().find(leads) {
            return Some((node.to_owned(), report));
        }
    }
    None
}

async fn change(hosted: &Hosted, node: &str, group: GroupId, raft_id: RaftId, change: &str) -> Result<(), Status> {
    let mut client = hosted.ask(node);
    let request = ChangeMemberRequest {
        group: group.number(),
        raft_id: raft_id.0,
        node: hosted.node.clone(),
        change: change.to_owned(),
    };
    match tokio::time::timeout(CHANGE_TIMEOUT, client.change_member(request)).await {
        Ok(result) => result.map(|_| ()),
        Err(_) => Err(Status::deadline_exceeded("the change of members took too long")),
    }
}

/// A raft id that this node has never used. It is above all ids that the group knows. It is also
/// above the seconds since 1970, so that an id that the group has forgotten, or that a deposed
/// leader does not know, is not used again.
fn new_id(own: u32, report: &ReplicaReport, wall_ms: u64) -> Option<RaftId> {
    let taken = report.voters.iter().chain(&report.learners).map(|id| RaftId(*id)).filter(|id| id.ordinal() == own);
    let newest = taken.map(RaftId::incarnation).max().unwrap_or(0);
    let incarnation = (u64::from(newest) + 1).max(wall_ms / 1000).max(2);
    Some(RaftId::new(own, u32::try_from(incarnation).ok()?))
}

/// The next change of members; `None` if the new replica votes, or is a reader, and is this node's
/// only one. A reader takes no voter's place: that would leave the group with fewer voters.
fn next_step(report: &ReplicaReport, new_id: RaftId, reads: bool) -> Option<(RaftId, &'static str)> {
    let members: BTreeSet<RaftId> = report.voters.iter().chain(&report.learners).copied().map(RaftId).collect();
    if !members.contains(&new_id) {
        return Some((new_id, "add_learner"));
    }
    if report.learners.contains(&new_id.0) && (!reads || planted(Bug::ReaderPromoted)) {
        return Some((new_id, "promote"));
    }
    let leaves = |id: &RaftId| !reads || report.learners.contains(&id.0);
    let old = members.into_iter().find(|id| id.ordinal() == new_id.ordinal() && *id != new_id && leaves(id));
    old.map(|id| (id, "remove"))
}

impl Handle {
    /// Replaces this node's replica of the group by one with an empty disk and a new raft id. Waits
    /// until it votes, or is a member if the node hosts readers, and returns the id.
    ///
    /// # Errors
    /// If a replica of the group runs or has a directory here, the group has no leader, or the
    /// replica does not catch up in time.
    pub async fn replace_replica(&self, group: GroupId) -> Result<RaftId, Error> {
        let replaced = tokio::time::timeout(REPLACE_TIMEOUT, self.replace(group)).await;
        replaced.unwrap_or(Err(Error::Overdue("the replacement of a replica")))
    }

    /// Like [`replace_replica`](Self::replace_replica), without a time limit.
    pub(crate) async fn join_group(&self, group: GroupId) -> Result<RaftId, Error> {
        self.replace(group).await
    }

    /// Continues a join that was cut off. A join was cut off if the replica is a learner, knows no
    /// members yet, or votes while an older replica of this node is still a member. A replica that
    /// was removed knows other members, and stays out, unless it is a reader: those come and go
    /// with the configuration.
    pub fn resume_joining(&self, group: GroupId) {
        let Some(replica) = self.hosted().replica(group) else { return };
        let (status, id) = (replica.status(), replica.raft_id());
        let learns = status.learners.iter().any(|member| member.raft_id == id);
        let votes = status.voters.iter().any(|member| member.raft_id == id);
        let knows_nobody = status.voters.is_empty() && status.learners.is_empty();
        let mut members = status.voters.iter().chain(&status.learners);
        let older = members.any(|member| member.raft_id.ordinal() == id.ordinal() && member.raft_id != id);
        let comes_back = self.hosted().hosts_readers() && !votes;
        let cut_off = learns || knows_nobody || (votes && older) || comes_back;
        if !cut_off {
            return;
        }
        let handle = self.clone();
        tokio::spawn(async move {
            let mut closing = handle.hosted().closing.subscribe();
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => {}
                joined = handle.admit(group, id) => if let Err(error) = joined {
                    tracing::error!(%group, error = error.chain(), "a replica could not join its group");
                },
            }
        });
    }

    async fn replace(&self, group: GroupId) -> Result<RaftId, Error> {
        let hosted = self.hosted();
        if hosted.replica(group).is_some() || home::stored(hosted.storage.as_ref(), group)?.is_some() {
            return Err(Error::ReplicaRuns(group));
        }
        let own = hosted.ordinal().ok_or_else(|| Error::Identity("this node has no ordinal".to_owned()))?;
        let mut backoff = STEP_DELAYS;
        let report = loop {
            match leader(hosted, group).await {
                Some((_, report)) => break report,
                None => tokio::time::sleep(backoff.next_pause()).await,
            }
        };
        let new_id = new_id(own, &report, hosted.clock.wall_ms())
            .ok_or_else(|| Error::Identity("no incarnation is left".to_owned()))?;
        self.start_replica(ReplicaOptions { group, raft_id: new_id, bootstrap: Bootstrap::Join }).await?;
        self.admit(group, new_id).await?;
        Ok(new_id)
    }

    /// Changes the members step by step, until the replica has its part in the group and is this
    /// node's only one.
    ///
    /// # Errors
    /// If the leader refuses for good.
    async fn admit(&self, group: GroupId, new_id: RaftId) -> Result<(), Error> {
        let hosted = self.hosted();
        let mut backoff = STEP_DELAYS;
        loop {
            if let Some((node, report)) = leader(hosted, group).await {
                let Some((id, step)) = next_step(&report, new_id, hosted.hosts_readers()) else { return Ok(()) };
                match change(hosted, &node, group, id, step).await {
                    Ok(()) => {
                        backoff.reset();
                        continue;
                    }
                    // The leader may not have the configuration yet that names a reader.
                    Err(refused) if may_pass(status::kind(&refused)) || hosted.hosts_readers() => {
                        tracing::debug!(%group, step, %refused, "a change of members is tried again");
                    }
                    Err(refused) => return Err(refused.into()),
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

/// Whether the call may succeed later. A driver that gives up leaves the group with a learner, or
/// with a dead voter in addition to its successor, until the node starts again.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::NotFound | ErrorKind::Exhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_replica_learns_votes_and_only_then_the_old_one_leaves() {
        let (old, new) = (RaftId::new(2, 1), RaftId::new(2, 2));
        let others = [RaftId::new(1, 1), RaftId::new(3, 1)];
        let report = |voters: &[RaftId], learners: &[RaftId]| ReplicaReport {
            voters: others.iter().chain(voters).map(|id| id.0).collect(),
            learners: learners.iter().map(|id| id.0).collect(),
            ..ReplicaReport::default()
        };
        assert_eq!(next_step(&report(&[old], &[]), new, false), Some((new, "add_learner")));
        assert_eq!(next_step(&report(&[old], &[new]), new, false), Some((new, "promote")));
        assert_eq!(next_step(&report(&[old, new], &[]), new, false), Some((old, "remove")));
        assert_eq!(next_step(&report(&[new], &[]), new, false), None);
        // A reader takes the place of a reader, and of no voter.
        assert_eq!(next_step(&report(&[], &[old]), new, true), Some((new, "add_learner")));
        assert_eq!(next_step(&report(&[], &[old, new]), new, true), Some((old, "remove")));
        assert_eq!(next_step(&report(&[], &[new]), new, true), None);
        assert_eq!(next_step(&report(&[old], &[new]), new, true), None);
        assert_eq!(next_step(&report(&[new], &[]), new, true), None, "readiness tells that it votes");
    }

    #[test]
    fn a_new_raft_id_was_never_used() {
        let report = |voters: &[RaftId]| ReplicaReport {
            voters: voters.iter().map(|id| id.0).collect(),
            ..ReplicaReport::default()
        };
        let id = |voters: &[RaftId], wall_ms| new_id(2, &report(voters), wall_ms);
        assert_eq!(id(&[RaftId::new(1, 9), RaftId::new(2, 1)], 0), Some(RaftId::new(2, 2)));
        assert_eq!(id(&[], 0), Some(RaftId::new(2, 2)), "the first incarnation is that of founders");
        assert_eq!(id(&[RaftId::new(2, 1)], 1_800_000_000_000), Some(RaftId::new(2, 1_800_000_000)));
        assert_eq!(
            id(&[RaftId::new(2, 1_800_000_000)], 5_000),
            Some(RaftId::new(2, 1_800_000_001)),
            "the clock went back"
        );
        assert_eq!(id(&[RaftId::new(2, u32::MAX)], 0), None);
    }

    #[test]
    fn a_step_that_may_succeed_later_is_repeated_and_a_wrong_one_is_not() {
        use coppice_types::Reason;
        let repeated: Vec<_> = Reason::ALL.iter().copied().filter(|reason| may_pass(reason.kind())).collect();
        let kept = [Reason::NotLeader, Reason::Unavailable, Reason::NotFound, Reason::ResourceExhausted];
        assert!(kept.iter().all(|reason| repeated.contains(reason)), "{repeated:?}");
        let given_up = [Reason::InvalidArgument, Reason::Denied, Reason::WrongCluster, Reason::Internal];
        assert!(!given_up.iter().any(|reason| repeated.contains(reason)), "{repeated:?}");
    }
}
