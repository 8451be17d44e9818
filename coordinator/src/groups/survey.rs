//! The status of all nodes, as they report it. Each survey asks again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use coppice_proto::v1;
use coppice_types::{GroupId, Reason, Version};
use futures::future::join_all;
use tokio::time::timeout;
use tonic::Response;

use super::links::Links;
use crate::plan::Refusal;

/// State of a replica whose disks have none of the erased content.
pub const DONE: &str = "done";

/// The nodes' answers.
#[derive(Debug, Default)]
pub struct Survey {
    answers: Vec<v1::NodeStatusResponse>,
    /// Names of the nodes that gave no answer.
    pub silent: Vec<String>,
}

impl Survey {
    /// Asks all nodes at once, each for at most `limit`.
    pub async fn of(links: &Links, limit: Duration) -> Self {
        let calls = links.all_nodes().map(|(name, mut client)| async move {
            let answer = timeout(limit, client.node_status(v1::NodeStatusRequest {})).await;
            (name, answer.ok().and_then(Result::ok).map(Response::into_inner))
        });
        let mut survey = Self::default();
        for (node, answer) in join_all(calls).await {
            match answer {
                Some(answer) => survey.answers.push(answer),
                None => survey.silent.push(node.to_owned()),
            }
        }
        survey
    }

    /// The replicas of a group, each with its node's answer.
    fn replicas(&self, group: GroupId) -> impl Iterator<Item = (&v1::NodeStatusResponse, &v1::ReplicaReport)> {
        self.answers.iter().flat_map(move |answer| {
            let reports = answer.replicas.iter().filter(move |report| report.group == group.number());
            reports.map(move |report| (answer, report))
        })
    }

    /// The report of the replica that has applied the most entries, which knows the members best.
    fn newest(&self, group: GroupId) -> Option<&v1::ReplicaReport> {
        let reports = self.replicas(group).map(|(_, report)| report).filter(|report| !report.voters.is_empty());
        reports.max_by_key(|report| report.status.as_ref().map(|status| status.applied))
    }

    /// The groups that nodes report: the root group first, even if no node reports it, then shards
    /// by number.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        let told = self.answers.iter().flat_map(|answer| answer.replicas.iter().map(|report| report.group));
        let numbers: BTreeSet<u32> = told.chain([GroupId::Root.number()]).collect();
        numbers.into_iter().map(GroupId::from_number)
    }

    /// Completes the known status of a group with the reports of its replicas.
    pub fn group(&self, id: GroupId, known: v1::GroupStatus) -> v1::GroupStatus {
        let mut group = v1::GroupStatus { group: id.to_string(), ..known };
        for (_, report) in self.replicas(id) {
            if let Some(shape) = &report.shape {
                let current = report.decided.as_ref().is_some_and(|state| state.version == group.shard_version);
                if current || group.trees == 0 {
                    group.entries = shape.entries.iter().sum();
                    group.trees = u32::try_from(shape.entries.len()).unwrap_or(u32::MAX);
                }
            }
            group.replicas.extend(report.status.clone());
        }
        if let Some(newest) = self.newest(id) {
            (group.voters, group.learners) = (newest.voters.clone(), newest.learners.clone());
        }
        group
    }

    /// How far each replica of a shard is with the erasures of a version, voters and learners. A
    /// member that no node reports is unreachable, and so is a group that nobody knows.
    pub fn erasure(&self, shard: GroupId, version: Version) -> Vec<v1::ReplicaErasure> {
        let unknown = |raft_id| v1::ReplicaErasure {
            group: shard.to_string(),
            node: String::new(),
            raft_id,
            state: "unreachable".to_owned(),
        };
        let Some(newest) = self.newest(shard) else { return vec![unknown(0)] };
        let members: BTreeSet<u64> = newest.voters.iter().chain(&newest.learners).copied().collect();
        let reports: BTreeMap<u64, (&v1::NodeStatusResponse, &v1::ReplicaReport)> = self
            .replicas(shard)
            .filter_map(|(node, report)| Some((report.status.as_ref()?.raft_id, (node, report))))
            .collect();
        // A replica that is no member any more may still have its disk.
        let all: BTreeSet<u64> = members.into_iter().chain(reports.keys().copied()).collect();
        let of = |id: u64| match reports.get(&id) {
            None => unknown(id),
            Some((node, report)) => {
                let state = if report.erased_through >= version.0 { DONE } else { "open" };
                v1::ReplicaErasure { node: node.node.clone(), state: state.to_owned(), ..unknown(id) }
            }
        };
        all.into_iter().map(of).collect()
    }

    /// Checks that each member of the root group is on a node that knows this kind of header. A
    /// replica that does not know it would stop there for good.
    ///
    /// # Errors
    /// If a node does not know it, or could not be asked. The message names the node.
    pub fn check_kind(&self, kind: u8) -> Result<(), Refusal> {
        let unasked = || {
            let silent = if self.silent.is_empty() { String::new() } else { format!(" ({})", self.silent.join(", ")) };
            let message = format!(
                "nothing was done: a replica of the root group can't be asked whether its version knows this{silent}. \
                 Start it, or replace it, and repeat this"
            );
            Refusal::new(Reason::Unavailable, message)
        };
        let members = self.newest(GroupId::Root).ok_or_else(unasked)?;
        for member in members.voters.iter().chain(&members.learners) {
            let is_it =
                |report: &v1::ReplicaReport| report.status.as_ref().is_some_and(|status| status.raft_id == *member);
            let (node, _) = self.replicas(GroupId::Root).find(|(_, report)| is_it(report)).ok_or_else(unasked)?;
            if !node.header_kinds.contains(&u32::from(kind)) {
                let message = format!(
                    "nothing was done: {} runs a version that does not know this, and would stop. Upgrade it, and repeat this",
                    node.node
                );
                return Err(Refusal::new(Reason::PreconditionFailed, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: u8 = 6;

    /// A node with a replica of each of these groups, under this raft id.
    fn node(name: &str, id: u64, groups: &[GroupId], kinds: &[u32]) -> v1::NodeStatusResponse {
        let replica = |group: &GroupId| v1::ReplicaReport {
            group: group.number(),
            status: Some(v1::ReplicaStatus { raft_id: id, node: name.to_owned(), applied: id, ..Default::default() }),
            voters: vec![1, 2],
            learners: vec![3],
            ..Default::default()
        };
        v1::NodeStatusResponse {
            node: name.to_owned(),
            replicas: groups.iter().map(replica).collect(),
            header_kinds: kinds.to_vec(),
            ..Default::default()
        }
    }

    fn survey(answers: Vec<v1::NodeStatusResponse>, silent: &[&str]) -> Survey {
        Survey { answers, silent: silent.iter().map(|name| (*name).to_owned()).collect() }
    }

    const ROOT: &[GroupId] = &[GroupId::Root];
    const SHARD: &[GroupId] = &[GroupId::Shard(coppice_types::ShardId(0))];

    #[test]
    fn an_erasure_is_done_when_every_member_says_so() {
        let shard = SHARD[0];
        let at = |name, id, erased_through| {
            let mut node = node(name, id, SHARD, &[]);
            node.replicas.iter_mut().for_each(|report| report.erased_through = erased_through);
            node
        };
        let states = |answers: Vec<_>| {
            let told = survey(answers, &[]).erasure(shard, Version(7));
            told.into_iter().map(|replica| (replica.raft_id, replica.state)).collect::<Vec<_>>()
        };
        let state = |id, state: &str| (id, state.to_owned());
        let all = vec![at("a", 1, 7), at("b", 2, 9), at("c", 3, 6)];
        assert_eq!(states(all), [state(1, DONE), state(2, DONE), state(3, "open")]);
        let gone = vec![at("a", 1, 7), at("c", 3, 7)];
        assert_eq!(states(gone), [state(1, DONE), state(2, "unreachable"), state(3, DONE)]);
        let left = vec![at("a", 1, 7), at("b", 2, 7), at("c", 3, 7), at("d", 4, 0)];
        assert_eq!(states(left)[3], state(4, "open"), "a former member has a disk, too");
        assert_eq!(states(Vec::new()), [state(0, "unreachable")], "silence is no success");
    }

    #[test]
    fn every_member_of_the_root_group_must_know_a_kind_and_nobody_else() {
        let know = |name, id| node(name, id, ROOT, &[1, 6]);
        let shards_only = node("d", 1, SHARD, &[]);
        assert_eq!(
            survey(vec![know("a", 1), know("b", 2), know("c", 3), shards_only], &["e"]).check_kind(KIND),
            Ok(())
        );
        for old in [&[][..], &[1, 2]] {
            for place in 0..3 {
                let mut answers = vec![know("a", 1), know("b", 2), know("c", 3)];
                answers[place].header_kinds = old.to_vec();
                let name = answers[place].node.clone();
                let refusal = survey(answers, &[]).check_kind(KIND).expect_err("it would stop");
                assert_eq!(refusal.reason, Reason::PreconditionFailed);
                assert!(refusal.message.contains(&format!("{name} runs a version")), "{}", refusal.message);
            }
        }
        for answers in [vec![know("a", 1), know("b", 2)], vec![know("a", 1), know("c", 3)], vec![]] {
            let refusal = survey(answers, &["z"]).check_kind(KIND).expect_err("one was not asked");
            assert_eq!(refusal.reason, Reason::Unavailable);
            assert!(refusal.message.contains("(z)"), "{}", refusal.message);
        }
    }

    #[test]
    fn members_are_those_known_to_the_replica_that_applied_most() {
        let mut answers = vec![node("a", 1, SHARD, &[]), node("b", 2, SHARD, &[]), node("c", 3, SHARD, &[])];
        answers[1].replicas[0].voters = vec![1, 2, 3];
        answers[1].replicas[0].learners = vec![];
        // The replica is empty and knows no members.
        answers[2].replicas[0].voters = vec![];
        let group = survey(answers, &[]).group(SHARD[0], v1::GroupStatus::default());
        assert_eq!((group.group.as_str(), group.replicas.len()), ("shard-0", 3));
        assert_eq!((group.voters, group.learners), (vec![1, 2, 3], vec![]));
    }
    #[test]
    fn groups_are_reported_without_the_root_group() {
        let answers = vec![node("a", 1, SHARD, &[]), node("b", 2, SHARD, &[])];
        let seen: Vec<GroupId> = survey(answers, &["c"]).groups().collect();
        assert_eq!(seen, [GroupId::Root, SHARD[0]]);
        assert_eq!(survey(vec![], &["a"]).groups().collect::<Vec<_>>(), ROOT);
    }
}
