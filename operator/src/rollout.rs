//! The order in which pods are replaced, as a pure function of what was observed.
//!
//! The StatefulSets of a cluster replace no pod by themselves (`OnDelete`): their own order is that
//! of ordinals, which would stop a healthy replica while another is down. Here a pod is replaced
//! only if every group that has a quorum keeps it; groups with a single host are exempt, since they
//! can't.
//!
//! The order is: first, pods whose process doesn't run, since stopping them takes nothing away (so
//! a rollout of a bad image can be reverted); then unhealthy pods; then the others, one at a time
//! and only while every group is whole. The leader of the root group comes last. A node that is
//! stopped hands over its leaderships before it ends.

use std::{cmp::Reverse, collections::BTreeMap};

#[cfg(test)]
mod tests;

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no pod, or it is being deleted.
    Gone,
    /// The pod exists but its process doesn't run: it has no machine yet, its image can't be
    /// pulled, or it crashed.
    Stopped,
    /// The process runs, and isn't ready.
    Running,
    /// The process runs, and has not become ready in the time that any start takes. Something in
    /// its template keeps it from serving. A reader is also stalled if its process doesn't run.
    Stalled,
    /// The process reports that it can serve its role.
    Ready,
}

/// One pod of those that are replaced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// Whether the pod was made from a template other than the current one.
    pub outdated: bool,
    pub state: State,
}

/// A member's part in a group that it hosts, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The member is known not to vote.
    Silent,
    /// The member may vote or not: it was not heard of, or looks for a leader. A single late answer
    /// proves nothing.
    Unknown,
    /// The member votes, but is far behind, or can't be read.
    Behind,
    /// The member votes, and is not far behind the leader.
    Votes,
    /// The member leads.
    Leads,
}

/// Replicas that decide together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's name, for messages.
    pub name: String,
    /// The hosts, by their place among the members, and the part of each.
    pub parts: BTreeMap<usize, Part>,
    /// The number of votes that make a quorum.
    pub quorum: usize,
    /// Whether the group has a leader.
    pub led: bool,
    /// The number of former replicas that are gone but whose votes are still counted.
    pub ghosts: usize,
}

/// The observed state: the pods were read first, then the groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    pub members: Vec<Member>,
    /// The groups, the most important one first; `None` if the ledger didn't answer.
    pub groups: Option<Vec<Group>>,
    /// No commit was ever acknowledged, so there is nothing to lose yet.
    pub unborn: bool,
}

/// The next step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All pods are current.
    Done,
    /// No pod may be replaced now, for this reason.
    Wait(String),
    /// This pod is to be deleted; its StatefulSet makes it again.
    Restart {
        /// The pod's place among the members.
        member: usize,
        /// The reason to restart this pod now.
        why: &'static str,
    },
}

/// The next step of a rollout.
#[must_use]
pub fn next(fleet: &Fleet) -> Step {
    let outdated: Vec<usize> = (0..fleet.members.len()).filter(|member| fleet.members[*member].outdated).collect();
    if outdated.is_empty() {
        return Step::Done;
    }
    let state = |member: &usize| fleet.members[*member].state;
    if let Some(member) = outdated.iter().find(|member| state(member) == State::Stopped) {
        return Step::Restart { member: *member, why: "its process does not run" };
    }
    let unhealthy = outdated.iter().filter(|member| state(member) != State::Gone && !fleet.is_healthy(**member));
    if let Some(member) = unhealthy.copied().find(|member| fleet.can_do_without(*member)) {
        return Step::Restart { member, why: "it is not healthy, and the others can do without it" };
    }
    if let Some(reason) = fleet.blemish() {
        return Step::Wait(reason);
    }
    // Higher ordinals go first, as is usual; people type the names of the lower ones.
    match outdated.into_iter().min_by_key(|member| (fleet.leaderships(*member), Reverse(*member))) {
        Some(member) => Step::Restart { member, why: "all is well without it" },
        None => Step::Done,
    }
}

/// The next step of a rollout of readers: one at a time. No group depends on them, so a reader that
/// is stalled holds nothing up: neither the other readers, nor the voters that come after them.
#[must_use]
pub fn next_reader(readers: &[Member]) -> Step {
    let outdated = || (0..readers.len()).rev().filter(|member| readers[*member].outdated);
    let broken = |member: &usize| matches!(readers[*member].state, State::Stopped | State::Stalled);
    if let Some(member) = outdated().find(broken) {
        return Step::Restart { member, why: "it does not serve" };
    }
    let Some(member) = outdated().next() else { return Step::Done };
    match readers.iter().find(|reader| !matches!(reader.state, State::Ready | State::Stalled)) {
        Some(reader) => Step::Wait(format!("{} is not ready yet", reader.name)),
        None => Step::Restart { member, why: "the other readers serve, or are not waited for" },
    }
}

/// A leadership that another member should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The group's name.
    pub group: String,
    /// The present leader's place among the members.
    pub from: usize,
    /// The place of the member that should lead.
    pub to: usize,
}

/// The leadership to move so that leaders are spread, if all pods are current and all groups whole.
/// Raft elects any candidate, so after failures and rollouts one node may lead all shards. Only
/// numbers of shards count, and a member gives one away only to a member that leads at least two
/// fewer. Each move makes the spread more even, so the moves come to an end.
#[must_use]
pub fn spread(fleet: &Fleet) -> Option<Handover> {
    if next(fleet) != Step::Done || fleet.blemish().is_some() {
        return None;
    }
    // The root group comes first; it does not count.
    let shards = fleet.known().get(1..)?;
    let leads = |group: &Group, member: usize| fleet.part(group, member) == Part::Leads;
    let count = |member: usize| shards.iter().filter(|group| leads(group, member)).count();
    let moves = shards.iter().filter_map(|group| {
        let from = group.parts.keys().copied().find(|member| leads(group, *member))?;
        let to = group.parts.keys().copied().min_by_key(|member| count(*member))?;
        let gap = count(from) - count(to);
        (gap >= 2).then(|| (gap, Handover { group: group.name.clone(), from, to }))
    });
    moves.max_by_key(|(gap, _)| *gap).map(|(_, handover)| handover)
}

impl Fleet {
    fn known(&self) -> &[Group] {
        self.groups.as_deref().unwrap_or_default()
    }

    /// A member's present part in a group. A pod that is being deleted, or whose process doesn't
    /// run, has no part, even if one was reported.
    fn part(&self, group: &Group, member: usize) -> Part {
        let runs = !matches!(self.members[member].state, State::Gone | State::Stopped);
        group.parts.get(&member).copied().filter(|_| runs).unwrap_or(Part::Silent)
    }

    fn is_healthy(&self, member: usize) -> bool {
        self.members[member].state == State::Ready
            && self
                .known()
                .iter()
                .all(|group| !group.parts.contains_key(&member) || self.part(group, member) >= Part::Votes)
    }

    /// Whether each group in which the member may have a vote has a quorum without it.
    fn can_do_without(&self, member: usize) -> bool {
        let Some(groups) = &self.groups else { return self.may_be_tried(member) };
        groups.iter().all(|group| {
            let others = group.parts.keys().filter(|other| **other != member);
            let voices = others.filter(|other| self.part(group, **other) >= Part::Votes).count();
            let has_no_voice = match self.part(group, member) {
                Part::Silent => true,
                // Without a leader there is no majority to lose.
                Part::Unknown => self.unborn || (!group.led && self.members[member].state == State::Stalled),
                Part::Behind | Part::Votes | Part::Leads => false,
            };
            !group.parts.contains_key(&member) || group.parts.len() == 1 || voices >= group.quorum || has_no_voice
        })
    }

    /// Whether a member may be replaced although the ledger can't be asked about the groups: only
    /// if it can't serve anyway.
    fn may_be_tried(&self, member: usize) -> bool {
        match self.members[member].state {
            State::Stalled => true,
            State::Running => self.unborn,
            State::Gone | State::Stopped | State::Ready => false,
        }
    }

    /// The reason not to replace a healthy pod now, if there is one.
    fn blemish(&self) -> Option<String> {
        if let Some(member) = self.members.iter().find(|member| member.state != State::Ready) {
            let what = match member.state {
                State::Gone => "is being replaced",
                State::Stopped => "does not start",
                State::Running | State::Stalled | State::Ready => "is not ready yet",
            };
            return Some(format!("{} {what}", member.name));
        }
        let Some(groups) = &self.groups else {
            return Some("no coordinator reports the state of the groups".to_owned());
        };
        let mut blemishes = groups.iter().filter_map(|group| {
            if !group.led {
                return Some(format!("{} has no leader", group.name));
            }
            if group.ghosts > 0 {
                return Some(format!("{} still counts the vote of a replica that is gone", group.name));
            }
            let (member, part) = group.parts.iter().find(|(_, part)| **part < Part::Votes)?;
            let what = match part {
                Part::Silent => "does not vote",
                Part::Unknown => "does not tell whether it votes",
                _ => "is far behind",
            };
            Some(format!("{} {what} in {}", self.members[*member].name, group.name))
        });
        blemishes.next()
    }

    /// Whether the member leads the most important group, and how many groups it leads.
    fn leaderships(&self, member: usize) -> (bool, usize) {
        let leads = |group: &&Group| self.part(group, member) == Part::Leads;
        (self.known().first().is_some_and(|group| leads(&group)), self.known().iter().filter(leads).count())
    }
}
