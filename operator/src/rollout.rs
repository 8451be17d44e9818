//! In which order pods are replaced: a pure function of what was observed.
//!
//! The StatefulSets of a cluster replace no pod by themselves (`OnDelete`): their own order is that of ordinals, which takes a healthy replica while
//! another is down. Here a pod goes only if every group that has a quorum keeps it, but for groups of a single host, which can't. First go pods
//! whose process doesn't run (they take nothing away, and so a rollout of a bad image can be reverted), then those that are unhealthy, then
//! the others, one at a time and only while every group is whole; the leader of the root group comes last. A node that is stopped hands its
//! leaderships over before it ends.

use std::{cmp::Reverse, collections::BTreeMap};

#[cfg(test)]
mod tests;

/// What a pod is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none, or it is being deleted.
    Gone,
    /// It is there, and its process doesn't run: it has no machine yet, its image can't be had, or it crashed.
    Stopped,
    /// Its process runs, and isn't ready.
    Running,
    /// It is so for longer than any start takes: something in its template keeps it from serving.
    Stalled,
    /// It says that it can serve its role.
    Ready,
}

/// One pod of those that are replaced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The pod's name.
    pub name: String,
    /// It was made from another template than the current one.
    pub outdated: bool,
    /// What it is doing.
    pub state: State,
}

/// What a member does in a group that it hosts; the greater, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// It is known not to vote.
    Silent,
    /// It may vote or not: it was not heard of, or looks for a leader. One answer that is late says nothing.
    Unknown,
    /// It votes, but is far behind, or can't be read.
    Behind,
    /// It votes, and has what the leader has.
    Votes,
    /// It leads.
    Leads,
}

/// Replicas that decide together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name, for messages.
    pub name: String,
    /// Its hosts, by their place among the members.
    pub parts: BTreeMap<usize, Part>,
    /// How many must vote.
    pub quorum: usize,
    /// Somebody leads it.
    pub led: bool,
    /// Replicas of before that are gone, and whose votes are still counted.
    pub ghosts: usize,
}

/// What was observed: the pods first, then the groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The pods.
    pub members: Vec<Member>,
    /// The groups, the most important one first; `None` if nobody could be asked.
    pub groups: Option<Vec<Group>>,
    /// No commit was ever acknowledged, so there is nothing to be lost yet.
    pub unborn: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All pods are as they should be.
    Done,
    /// Nothing may be replaced now.
    Wait(String),
    /// This pod is to be deleted; its StatefulSet makes it anew.
    Restart {
        /// Its place among the members.
        member: usize,
        /// Why it, and why now.
        why: &'static str,
    },
}

/// What is to be done next.
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
    // The last ones first, as is usual; the names of the first are those that people type.
    match outdated.into_iter().min_by_key(|member| (fleet.leaderships(*member), Reverse(*member))) {
        Some(member) => Step::Restart { member, why: "all is well without it" },
        None => Step::Done,
    }
}

/// A leadership that another member should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The group's name.
    pub group: String,
    /// Who leads it, by its place among the members.
    pub from: usize,
    /// Who should.
    pub to: usize,
}

/// The leadership to move for leaders to be spread, if all is current and whole: raft elects whoever is there, so after failures and rollouts
/// one node may lead all shards. Only those count, and only a member that leads two more than another one gives one away: each move makes it
/// more even, so moves come to an end.
#[must_use]
pub fn spread(fleet: &Fleet) -> Option<Handover> {
    if next(fleet) != Step::Done || fleet.blemish().is_some() {
        return None;
    }
    // The root group is the first.
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

    /// What a member does in a group now: a pod that is going, or whose process doesn't run, does nothing, whatever was reported.
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

    /// Each group in which the member may have a voice has a quorum without it.
    fn can_do_without(&self, member: usize) -> bool {
        let Some(groups) = &self.groups else { return self.may_be_tried(member) };
        groups.iter().all(|group| {
            let others = group.parts.keys().filter(|other| **other != member);
            let voices = others.filter(|other| self.part(group, **other) >= Part::Votes).count();
            let has_no_voice = match self.part(group, member) {
                Part::Silent => true,
                // Without a leader there is no majority to be lost.
                Part::Unknown => self.unborn || (!group.led && self.members[member].state == State::Stalled),
                Part::Behind | Part::Votes | Part::Leads => false,
            };
            !group.parts.contains_key(&member) || group.parts.len() == 1 || voices >= group.quorum || has_no_voice
        })
    }

    /// Nobody can be asked about the groups: only what can't serve anyway may go.
    fn may_be_tried(&self, member: usize) -> bool {
        match self.members[member].state {
            State::Stalled => true,
            State::Running => self.unborn,
            State::Gone | State::Stopped | State::Ready => false,
        }
    }

    /// What stands against replacing a healthy pod.
    fn blemish(&self) -> Option<String> {
        if let Some(member) = self.members.iter().find(|member| member.state != State::Ready) {
            let what = match member.state {
                State::Gone => "is being replaced",
                State::Stopped => "does not start",
                State::Running | State::Stalled | State::Ready => "is not ready yet",
            };
            return Some(format!("{} {what}", member.name));
        }
        let Some(groups) = &self.groups else { return Some("no coordinator tells how the groups are".to_owned()) };
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

    /// Whether it leads the most important group, then how many it leads.
    fn leaderships(&self, member: usize) -> (bool, usize) {
        let leads = |group: &&Group| self.part(group, member) == Part::Leads;
        (self.known().first().is_some_and(|group| leads(&group)), self.known().iter().filter(leads).count())
    }
}
