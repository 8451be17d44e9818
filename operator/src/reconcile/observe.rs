//! The state of a cluster's pods as [`crate::rollout`] sees it: pure functions of objects and of
//! the ledger's report.

use coppice_proto::v1::ReplicaStatus;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::build::{Facts, Role};
use crate::{
    ledger::Report,
    rollout::{Fleet, Group, Member, Part, State},
};

/// A pod whose process has run for this long without being ready is stalled. It is longer than a
/// replica takes to recover from its log.
const STALLED_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// A reader that has not been ready for this long holds nothing up any more. It is longer than a
/// restarted reader takes, except one that needs a snapshot.
const READER_LATE_AFTER: SignedDuration = SignedDuration::from_mins(3);
/// A follower that lacks this many entries of its leader is far behind.
const BEHIND_ENTRIES: u64 = 1000;

/// The observations of a cluster's pods that were made before the ledger was asked.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub sets: Vec<StatefulSet>,
    pub pods: Vec<Pod>,
}

impl Observed {
    fn set(&self, facts: &Facts, role: Role) -> Option<&StatefulSet> {
        self.sets.iter().find(|set| set.name_any() == facts.set(role))
    }

    /// A pod by its name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.name_any() == name)
    }

    /// The pods of a role; `None` while the StatefulSet's controller has not seen its newest
    /// template.
    #[must_use]
    pub fn members(&self, facts: &Facts, role: Role, now: Timestamp) -> Option<Vec<Member>> {
        let set = self.set(facts, role)?;
        let status = set.status.as_ref()?;
        if status.observed_generation != set.metadata.generation {
            return None;
        }
        let revision = status.update_revision.as_deref()?;
        let member = |name: String| {
            let pod = self.pod(&name);
            let made_from = pod.and_then(|pod| pod.labels().get("controller-revision-hash"));
            let outdated = pod.is_some() && made_from.map(String::as_str) != Some(revision);
            let state = if role == Role::Reader { reader_state(pod, now) } else { state(pod, now) };
            Member { name, outdated, state }
        };
        Some(facts.pods(role).into_iter().map(member).collect())
    }

    /// The pods of a role with the groups that they form. The nodes' groups are known only from the
    /// ledger's report.
    #[must_use]
    pub fn fleet(&self, facts: &Facts, role: Role, report: Option<&Report>, now: Timestamp) -> Option<Fleet> {
        let members = self.members(facts, role, now)?;
        let groups = match role {
            Role::Node => report.map(|report| node_groups(facts, report)),
            // Readers decide nothing.
            Role::Reader => Some(Vec::new()),
            // A member that isn't ready may still vote.
            Role::Etcd => Some(vec![ready_group("etcd", &members, members.len() / 2 + 1, None, Part::Unknown)]),
            Role::Coordinator => {
                let leader = report.map(|report| report.status.leader.as_str());
                Some(vec![ready_group("the coordinators", &members, 1, leader, Part::Silent)])
            }
        };
        Some(Fleet { members, groups, unborn: !facts.founded })
    }
}

/// The state of a pod.
#[must_use]
pub fn state(pod: Option<&Pod>, now: Timestamp) -> State {
    let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { return State::Gone };
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let runs = |container: &k8s_openapi::api::core::v1::ContainerStatus| {
        container.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    if containers.is_empty() || !containers.iter().all(runs) {
        return State::Stopped;
    }
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => State::Ready,
        Some(condition) => {
            let since = condition.last_transition_time.as_ref().map_or(now, |time| time.0);
            if now.duration_since(since) > STALLED_AFTER { State::Stalled } else { State::Running }
        }
        None => State::Running,
    }
}

/// The state of a reader's pod. It is stalled if it has not been ready for a while, for whatever
/// reason, or if there is no pod at all.
fn reader_state(pod: Option<&Pod>, now: Timestamp) -> State {
    let state = state(pod, now);
    let Some(pod) = pod else { return State::Stalled };
    if state == State::Ready {
        return state;
    }
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let since = match &pod.metadata.deletion_timestamp {
        Some(time) => Some(time),
        None => ready
            .and_then(|condition| condition.last_transition_time.as_ref())
            .or(pod.metadata.creation_timestamp.as_ref()),
    };
    if since.is_some_and(|since| now.duration_since(since.0) > READER_LATE_AFTER) { State::Stalled } else { state }
}

/// The number of entries that the slowest reader lacks in one group, as far as replicas report it.
#[must_use]
pub fn reader_lag(facts: &Facts, report: &Report) -> Option<u64> {
    let readers = facts.pods(Role::Reader);
    let lags = report.status.groups.iter().flat_map(|group| {
        let newest = group.replicas.iter().map(|replica| replica.applied).max().unwrap_or(0);
        let of_readers = group.replicas.iter().filter(|replica| readers.contains(&replica.node));
        of_readers.map(move |replica| newest - replica.applied)
    });
    lags.max()
}

/// A group whose members are in no raft group of the ledger. Its ready members count as voters.
fn ready_group(name: &str, members: &[Member], quorum: usize, leader: Option<&str>, unready: Part) -> Group {
    let part = |member: &Member| match member.state {
        State::Ready if leader == Some(&*member.name) => Part::Leads,
        State::Ready => Part::Votes,
        _ => unready,
    };
    let led = members.iter().filter(|member| member.state == State::Ready).count() >= quorum;
    Group { name: name.to_owned(), parts: members.iter().map(part).enumerate().collect(), quorum, led, ghosts: 0 }
}

/// The raft groups, by the ledger's report.
#[must_use]
pub fn node_groups(facts: &Facts, report: &Report) -> Vec<Group> {
    let names = facts.pods(Role::Node);
    let group = |(name, hosts): (String, Vec<usize>)| {
        let reported = report.status.groups.iter().find(|group| group.group == name);
        let replicas = reported.map(|group| group.replicas.as_slice()).unwrap_or_default();
        let leaders = replicas.iter().filter(|replica| replica.role == "leader").count();
        let newest = replicas.iter().map(|replica| replica.applied).max().unwrap_or(0);
        // Raft ids; empty if the coordinator's version does not report them.
        let voters = reported.map(|group| group.voters.as_slice()).unwrap_or_default();
        let votes = |replica: &ReplicaStatus| voters.is_empty() || voters.contains(&replica.raft_id);
        let part = |host: &usize| {
            // A node that lost its volume may be reported twice for a moment; the replica with the
            // greater part counts.
            let own = replicas.iter().filter(|replica| replica.node == names[*host]);
            let parts = own.map(|replica| match replica.role.as_str() {
                "leader" => Part::Leads,
                "stopped" => Part::Silent,
                _ if !votes(replica) => Part::Silent,
                "follower" if replica.applied + BEHIND_ENTRIES >= newest => Part::Votes,
                // A replica in quarantine still keeps the log, and votes.
                "follower" | "quarantined" => Part::Behind,
                "learner" if voters.is_empty() => Part::Silent,
                // A candidate, or a replica that does not know yet that it may vote.
                _ => Part::Unknown,
            });
            (*host, parts.max().unwrap_or(Part::Unknown))
        };
        // The quorum is of the voters that raft counts. They may be more than the hosts: a new
        // replica gets its vote before the one that it replaces loses its own.
        let quorum = if voters.is_empty() { hosts.len() } else { voters.len() } / 2 + 1;
        let ghosts = voters.len().saturating_sub(hosts.len());
        Group { name, parts: hosts.iter().map(part).collect(), quorum, led: leaders == 1, ghosts }
    };
    facts.placement().into_iter().map(group).collect()
}

#[cfg(test)]
mod tests;
