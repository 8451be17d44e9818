//! The status of a cluster, as a pure function of what was observed.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    build::Role,
    dereference::Dereferenced,
    observe::{node_groups, reader_lag},
};
use crate::{
    crd::{Group, Head, LedgerCluster, LedgerClusterStatus},
    ledger::{Report, signed},
    rollout::{self, Fleet, Part, State},
};

/// The condition that says whether all readers serve.
pub const READERS_READY: &str = "ReadersReady";

/// The observations that the status is made from.
#[derive(Clone, Debug)]
pub struct Outcome<'a> {
    /// The cluster, with everything that it names.
    pub found: &'a Dereferenced,
    /// The pods of each role; a role is missing while nothing is known about it.
    pub fleets: &'a [(Role, Fleet)],
    /// The ledger's report.
    pub report: Option<&'a Report>,
    /// The rollout's current action, or the reason why it waits; `None` if all pods are current.
    pub progress: Option<String>,
}

impl Outcome<'_> {
    fn has_readers(&self) -> bool {
        self.found.facts.count(Role::Reader) > 0
    }
}

/// The status of a cluster after a reconciliation, which may have stopped at a step that must wait.
#[must_use]
pub fn status(cluster: &LedgerCluster, outcome: &Outcome<'_>, now: Timestamp) -> LedgerClusterStatus {
    let old = cluster.status.clone().unwrap_or_default();
    let facts = &outcome.found.facts;
    let fleet = |role: Role| outcome.fleets.iter().find(|(of, _)| *of == role).map(|(_, fleet)| fleet);
    let ready = |role: Role| {
        let members = fleet(role).map(|fleet| fleet.members.as_slice()).unwrap_or_default();
        let ready = members.iter().filter(|member| member.state == State::Ready).count();
        format!("{ready}/{}", facts.count(role))
    };
    let report = outcome.report;
    let head = report.and_then(|report| {
        let stamp = report.status.head?;
        let state_root = hex::encode(&report.state_root);
        Some(Head { epoch: signed(stamp.epoch), version: signed(stamp.version), state_root })
    });
    LedgerClusterStatus {
        observed_generation: cluster.metadata.generation,
        conditions: conditions(cluster, outcome, now),
        cluster_id: Some(facts.cluster_id.clone()),
        vkey: Some(outcome.found.vkey.clone()),
        endpoint: Some(facts.endpoint()),
        // The old value stays until there is a newer one.
        head: head.or(old.head),
        pruned_boundary: report.map(|report| signed(report.status.pruned_boundary)).or(old.pruned_boundary),
        leader: report.map(|report| report.status.leader.clone()).filter(|leader| !leader.is_empty()),
        groups: groups(outcome),
        nodes: Some(ready(Role::Node)),
        readers: (facts.count(Role::Reader) > 0).then(|| ready(Role::Reader)),
        reader_lag: report.and_then(|report| reader_lag(facts, report)).map(signed),
        coordinators: Some(ready(facts.serving())),
    }
}

/// The status of a cluster that can't be carried out. All other known values stay.
#[must_use]
pub fn blocked(cluster: &LedgerCluster, reason: &str, message: &str, now: Timestamp) -> LedgerClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    status.observed_generation = cluster.metadata.generation;
    for kind in ["Valid", "Ready"] {
        put(&mut status.conditions, cluster, now, (kind, false, reason, message));
    }
    status
}

fn groups(outcome: &Outcome<'_>) -> Vec<Group> {
    let facts = &outcome.found.facts;
    let Some(report) = outcome.report else { return Vec::new() };
    let names = facts.pods(Role::Node);
    let group = |group: rollout::Group| {
        let leader = group.parts.iter().find(|(_, part)| **part == Part::Leads).map(|(host, _)| names[*host].clone());
        let missing: Vec<&str> = group
            .parts
            .iter()
            .filter(|(_, part)| **part < Part::Votes)
            .map(|(host, _)| names[*host].as_str())
            .collect();
        let notes = [
            (!group.led).then(|| "it has no leader".to_owned()),
            (!missing.is_empty()).then(|| format!("not voting, or far behind: {}", missing.join(", "))),
            (group.ghosts > 0).then(|| "the vote of a replica that is gone is still counted".to_owned()),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let reported = report.status.groups.iter().find(|reported| reported.group == group.name);
        let voters = reported
            .filter(|group| !group.voters.is_empty())
            .map(|reported| format!("{}/{}", reported.voters.len(), group.parts.len()));
        Group { name: group.name, leader, whole: note.is_none(), voters, note }
    };
    node_groups(facts, report).into_iter().map(group).collect()
}

fn conditions(cluster: &LedgerCluster, outcome: &Outcome<'_>, now: Timestamp) -> Vec<Condition> {
    let mut conditions = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let unready = unready(outcome);
    let paused = cluster.spec.paused;
    put(&mut conditions, cluster, now, ("Valid", true, "Accepted", "the specification is carried out"));
    put(
        &mut conditions,
        cluster,
        now,
        match outcome.report {
            Some(_) => ("Available", true, "Answering", "coordinators answer, and the root group has a majority"),
            None => ("Available", false, "NotAnswering", "no coordinator answers, or the root group has no majority"),
        },
    );
    put(
        &mut conditions,
        cluster,
        now,
        match (&outcome.progress, paused) {
            (_, true) => ("Progressing", false, "Paused", "spec.paused is true: nothing is changed"),
            (Some(words), false) => ("Progressing", true, "RollingOut", words),
            (None, false) => ("Progressing", false, "Current", "all pods are of the current template"),
        },
    );
    put(
        &mut conditions,
        cluster,
        now,
        match (&unready, &outcome.progress) {
            (Some(words), _) => ("Ready", false, "NotWhole", words),
            (None, Some(words)) => ("Ready", false, "RollingOut", words),
            (None, None) => ("Ready", true, "AllWell", "every pod is ready, every group is whole"),
        },
    );
    conditions.retain(|condition| condition.type_ != READERS_READY || outcome.has_readers());
    if outcome.has_readers() {
        let unready = unready_reader(outcome);
        let (reason, words) = match &unready {
            Some(words) => ("ReaderNotReady", words.as_str()),
            None => ("AllWell", "every reader is ready"),
        };
        put(&mut conditions, cluster, now, (READERS_READY, unready.is_none(), reason, words));
    }
    conditions
}

/// The first reader that is not ready, in words; `None` if all are.
fn unready_reader(outcome: &Outcome<'_>) -> Option<String> {
    let facts = &outcome.found.facts;
    let Some((_, fleet)) = outcome.fleets.iter().find(|(of, _)| *of == Role::Reader) else {
        return Some(format!("{} is being made", facts.set(Role::Reader)));
    };
    let member = fleet.members.iter().find(|member| member.state != State::Ready)?;
    let what = match member.state {
        State::Gone => "is being replaced",
        State::Stopped => "does not start: see its events and logs",
        State::Running | State::Ready => "is not ready yet: it is being filled, or the voters don't know it yet",
        State::Stalled => "is missing, or has not been ready for minutes: see its events and logs",
    };
    Some(format!("{} {what}", member.name))
}

/// The first reason why the cluster is not ready; `None` if it is ready. Readers are not asked for:
/// the ledger does everything without them.
fn unready(outcome: &Outcome<'_>) -> Option<String> {
    let facts = &outcome.found.facts;
    let needed = |role: &Role| *role != Role::Reader && facts.count(*role) > 0;
    for role in Role::ALL.into_iter().filter(needed) {
        let Some((_, fleet)) = outcome.fleets.iter().find(|(of, _)| *of == role) else {
            return Some(format!("{} is being made", facts.set(role)));
        };
        if let Some(member) = fleet.members.iter().find(|member| member.state != State::Ready) {
            let what = match member.state {
                State::Gone => "is not there",
                State::Stopped => "does not start: see its events and logs",
                State::Running | State::Ready => "is not ready yet",
                State::Stalled => "has run for a long time without becoming ready: see its logs",
            };
            return Some(format!("{} {what}", member.name));
        }
    }
    if outcome.report.is_none() {
        return Some("no coordinator answers, or the root group has no majority".to_owned());
    }
    let group = groups(outcome).into_iter().find(|group| !group.whole)?;
    Some(format!("{}: {}", group.name, group.note.unwrap_or_default()))
}

/// Sets a condition; its time is that of the last change of its status.
fn put(conditions: &mut Vec<Condition>, of: &LedgerCluster, now: Timestamp, new: (&str, bool, &str, &str)) {
    let (kind, holds, reason, message) = new;
    let status = if holds { "True" } else { "False" };
    let old = conditions.iter().position(|condition| condition.type_ == kind).map(|at| conditions.remove(at));
    let same = old.filter(|old| old.status == status);
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: of.metadata.generation,
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time),
    });
    conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
}

#[cfg(test)]
mod tests;
