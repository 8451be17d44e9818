//! Readiness and liveness of a node, for `grpc.health.v1.Health` and for its process's HTTP port.
//!
//! A node is ready if each of its replicas has its state, votes, and knows a leader. A reader is
//! ready without a vote. A node is alive if no replica has stopped for good: then it can become
//! ready without a restart.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use coppice_types::GroupId;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    hosted::Hosted,
    replica::{Role, Status},
};

/// Pause between two looks at the replicas.
const INTERVAL: Duration = Duration::from_millis(250);

/// Keeps the health service up to date until the node ends.
pub(crate) async fn report(hosted: Arc<Hosted>, reporter: HealthReporter) {
    let mut closing = hosted.closing.subscribe();
    let mut told = None;
    loop {
        let serving = readiness(&hosted).is_ok();
        if told != Some(serving) {
            let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status("", status).await;
            told = Some(serving);
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    reporter.set_service_status("", ServingStatus::NotServing).await;
}

/// Whether the node can serve its role, or why not.
pub(crate) fn readiness(hosted: &Hosted) -> Result<(), String> {
    let replicas = hosted.all();
    let forming = hosted.forming.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = forming.expected.iter().find(|group| !replicas.contains_key(group)) {
        return Err(format!("{group} is not here yet: it is to be formed or joined"));
    }
    drop(forming);
    if replicas.is_empty() {
        return Err("no replica is here".to_owned());
    }
    let reads = hosted.hosts_readers();
    replicas.iter().try_for_each(|(group, replica)| serves(*group, &replica.status(), replica.is_open(), reads))
}

/// Whether all replicas can become ready without a restart, or which one can't.
pub(crate) fn liveness(hosted: &Hosted) -> Result<(), String> {
    hosted.all().iter().try_for_each(|(group, replica)| goes_on(*group, &replica.status()))
}

fn goes_on(group: GroupId, status: &Status) -> Result<(), String> {
    if status.broken { Err(format!("the replica of {group} has stopped for good: {}", status.note)) } else { Ok(()) }
}

/// Whether a replica has its part in its group: a vote, or none if it is a reader (`reads`).
fn serves(group: GroupId, status: &Status, is_open: bool, reads: bool) -> Result<(), String> {
    match status.role {
        Role::Candidate => Err(format!("{group} has no leader")),
        Role::Leader | Role::Follower if reads => {
            Err(format!("the replica of {group} votes: the configuration may not name a voter's node as a reader"))
        }
        Role::Leader | Role::Follower | Role::Learner if reads != (status.role == Role::Learner) => {
            Err(format!("the replica of {group}: {}", status.role))
        }
        Role::Leader | Role::Follower | Role::Learner if !is_open => {
            Err(format!("the replica of {group} waits for a snapshot"))
        }
        Role::Leader | Role::Follower | Role::Learner if status.leader.is_none() => {
            Err(format!("{group} has no leader"))
        }
        Role::Leader | Role::Follower | Role::Learner => Ok(()),
        role => Err(format!("the replica of {group}: {role}")),
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::RaftId;

    use super::*;
    use crate::{
        DuplexNet,
        hosted::tests::{SHARD, hosted},
        shard::tests::Talk,
    };

    #[test]
    fn a_replica_that_waits_for_what_ran_out_lives_and_one_that_stopped_for_good_does_not() {
        let status = |broken| Status { role: Role::Stopped, note: "why".to_owned(), broken, ..Status::default() };
        assert_eq!(goes_on(GroupId::Root, &status(false)), Ok(()));
        let dead = "the replica of root has stopped for good: why".to_owned();
        assert_eq!(goes_on(GroupId::Root, &status(true)), Err(dead));
    }

    #[test]
    fn a_replica_votes_if_it_has_its_state_and_its_group_a_leader() {
        let known = Some(RaftId(1));
        let answer = |role, leader, is_open| {
            serves(GroupId::Root, &Status { role, leader, ..Status::default() }, is_open, false)
        };
        assert_eq!(answer(Role::Leader, known, true), Ok(()));
        assert_eq!(answer(Role::Follower, known, true), Ok(()));
        // The replica may be campaigning right now.
        let nobody = Err("root has no leader".to_owned());
        assert_eq!([answer(Role::Follower, None, true), answer(Role::Candidate, None, true)], [nobody.clone(), nobody]);
        assert_eq!(answer(Role::Follower, known, false), Err("the replica of root waits for a snapshot".to_owned()));
        for role in [Role::Learner, Role::Quarantined, Role::Stopped] {
            assert_eq!(answer(role, known, true), Err(format!("the replica of root: {role}")));
        }
    }

    #[test]
    fn a_reader_serves_without_a_vote_and_may_not_have_one() {
        let answer =
            |role, leader, is_open| serves(GroupId::Root, &Status { role, leader, ..Status::default() }, is_open, true);
        let known = Some(RaftId(1));
        assert_eq!(answer(Role::Learner, known, true), Ok(()));
        assert!(answer(Role::Learner, known, false).is_err_and(|why| why.contains("waits for a snapshot")));
        assert!(answer(Role::Learner, None, true).is_err_and(|why| why.contains("no leader")));
        for role in [Role::Leader, Role::Follower] {
            assert!(answer(role, known, true).is_err_and(|why| why.contains("votes")));
        }
        assert!(answer(Role::Quarantined, known, true).is_err());
    }

    #[tokio::test]
    async fn a_node_is_ready_once_every_expected_group_is_here_and_votes() {
        let hosted = hosted(&DuplexNet::new());
        assert_eq!(readiness(&hosted), Err("no replica is here".to_owned()));
        assert_eq!(liveness(&hosted), Ok(()), "a node without replicas can get some");
        let root = hosted.put_root(1);
        hosted.forming.write().expect("nobody panicked").expected = [GroupId::Root, SHARD].into();
        assert!(readiness(&hosted).is_err_and(|why| why.contains("is to be formed or joined")));
        let shard = hosted.put_shard(None);
        let lead = |status: &std::sync::RwLock<Status>| {
            let mut status = status.write().expect("nobody panicked");
            (status.role, status.leader) = (Role::Leader, Some(RaftId(1)));
        };
        lead(&root.shared.status);
        lead(&shard.shared.status);
        assert!(readiness(&hosted).is_err_and(|why| why.contains("waits for a snapshot")));
        hosted.put_shard(Some(Talk::new().machine)).shared.status.write().expect("nobody panicked").role =
            Role::Learner;
        assert!(readiness(&hosted).is_err_and(|why| why.ends_with("learner")));
        lead(&hosted.shard(SHARD).expect("it is there").shared.status);
        assert_eq!(readiness(&hosted), Ok(()));
        root.shared.status.write().expect("nobody panicked").broken = true;
        assert!(liveness(&hosted).is_err_and(|why| why.contains("root")));
    }
}
