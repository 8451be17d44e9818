//! Groups that sleep, and the beats between nodes that let them (protocol.md 9).
//!
//! A replica of a quiet group sleeps: it neither ticks nor sends. In place of the heartbeats of all
//! sleeping groups, each node sends one *beat* to each other node, which names the groups that
//! sleep there. A group sleeps only as long as every member's node says that it does. A replica
//! wakes if
//! - an input arrives for it;
//! - a beat of a member's node stops naming its group, because the member woke or has ended;
//! - a member's node is silent for [`SILENT_TICKS`]. Those ticks count for the election timeout of
//!   a follower, so a dead leader is replaced as soon as without sleep.
//!
//! Raft knows nothing of this. A sleeping replica is to the others like one whose clock stands
//! still, and safety rests on no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use coppice_proto::v1::Beat;
use coppice_types::GroupId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A node sends a beat each time this many ticks have passed: as often as a raft leader.
pub const BEAT_TICKS: u32 = 2;
/// A node that was silent for this many ticks may be dead. It is half of the shortest election
/// timeout, so that a leader that sleeps in vain is heard in time.
pub const SILENT_TICKS: u32 = 5;

/// A replica that sleeps.
#[derive(Debug)]
struct Sleeper {
    /// Raft's term. A node that names another one is at odds with this replica.
    term: u64,
    since: Duration,
    /// The nodes of the other members, and when each last named the group.
    named: BTreeMap<String, Option<Duration>>,
}

/// The replicas of a node that sleep.
#[derive(Debug, Default)]
pub struct Sleepers {
    sleeping: Mutex<BTreeMap<GroupId, Sleeper>>,
    /// The nodes that the last beats went to.
    told: Mutex<BTreeSet<String>>,
    /// Told when a replica falls asleep.
    fell: Notify,
}

impl Sleepers {
    /// Notes that a replica sleeps, in a group with members on these other nodes.
    pub fn fall_asleep(&self, group: GroupId, term: u64, others: impl IntoIterator<Item = String>, now: Duration) {
        let named = others.into_iter().map(|node| (node, None)).collect();
        self.sleeping.lock().insert(group, Sleeper { term, since: now, named });
        self.fell.notify_one();
    }

    /// Notes that a replica is awake, or has ended.
    pub fn wake(&self, group: GroupId) {
        self.sleeping.lock().remove(&group);
    }

    /// Whether this node's replica of a group sleeps.
    #[must_use]
    pub fn is_asleep(&self, group: GroupId) -> bool {
        self.sleeping.lock().contains_key(&group)
    }

    /// Waits until a beat is due.
    pub async fn until_due(&self) {
        while !self.is_due() {
            self.fell.notified().await;
        }
    }

    /// Whether a beat is due: a replica sleeps whose group has other members, or the nodes that
    /// were told of one must be told that it does not any more.
    pub fn is_due(&self) -> bool {
        let has_others = |sleeper: &Sleeper| !sleeper.named.is_empty();
        self.sleeping.lock().values().any(has_others) || !self.told.lock().is_empty()
    }

    /// The beats to send now, by node. A node that was told of sleepers last time, and has none any
    /// more, gets an empty one.
    pub fn beats(&self) -> BTreeMap<String, Beat> {
        let mut told = self.told.lock();
        let mut beats: BTreeMap<String, Beat> = told.iter().map(|node| (node.clone(), Beat::default())).collect();
        for (group, sleeper) in &*self.sleeping.lock() {
            for node in sleeper.named.keys() {
                let beat = beats.entry(node.clone()).or_default();
                beat.groups.push(group.number());
                beat.terms.push(sleeper.term);
            }
        }
        *told = beats.iter().filter(|(_, beat)| !beat.groups.is_empty()).map(|(node, _)| node.clone()).collect();
        beats
    }

    /// Takes a node's beat. Returns the groups that it does not name any more.
    pub fn heard(&self, node: &str, beat: &Beat, now: Duration) -> Vec<GroupId> {
        let groups: BTreeMap<u32, u64> = beat.groups.iter().copied().zip(beat.terms.iter().copied()).collect();
        let mut woken = Vec::new();
        for (group, sleeper) in &mut *self.sleeping.lock() {
            let Some(named) = sleeper.named.get_mut(node) else { continue };
            if groups.get(&group.number()) == Some(&sleeper.term) {
                *named = Some(now);
            } else if named.is_some() {
                woken.push(*group);
            }
        }
        woken
    }

    /// The groups with a member whose node did not name them for `limit`, and how long the longest
    /// silence is.
    pub fn overdue(&self, now: Duration, limit: Duration) -> Vec<(GroupId, Duration)> {
        let silence = |sleeper: &Sleeper| {
            let heard = sleeper.named.values().map(|named| named.unwrap_or(sleeper.since)).min();
            heard.map_or(Duration::ZERO, |heard| now.saturating_sub(heard))
        };
        let sleeping = self.sleeping.lock();
        let silent = sleeping.iter().map(|(group, sleeper)| (*group, silence(sleeper)));
        silent.filter(|(_, silence)| *silence >= limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::ShardId;

    use super::*;

    const ROOT: GroupId = GroupId::Root;
    const SHARD: GroupId = GroupId::Shard(ShardId(0));

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn others(ordinals: &[u32]) -> Vec<String> {
        ordinals.iter().map(|ordinal| format!("node-{ordinal}")).collect()
    }

    fn beat(groups: &[(GroupId, u64)]) -> Beat {
        Beat {
            groups: groups.iter().map(|(group, _)| group.number()).collect(),
            terms: groups.iter().map(|(_, term)| *term).collect(),
        }
    }

    #[test]
    fn each_node_is_told_of_the_groups_that_it_shares_and_once_that_there_are_none() {
        let sleepers = Sleepers::default();
        assert!(!sleepers.is_due() && sleepers.beats().is_empty());
        sleepers.fall_asleep(ROOT, 3, others(&[2, 3]), at(0));
        sleepers.fall_asleep(SHARD, 5, others(&[2]), at(0));
        let beats = sleepers.beats();
        assert_eq!(beats["node-2"], beat(&[(ROOT, 3), (SHARD, 5)]));
        assert_eq!(beats["node-3"], beat(&[(ROOT, 3)]));
        sleepers.wake(ROOT);
        let beats = sleepers.beats();
        assert_eq!((&beats["node-2"], &beats["node-3"]), (&beat(&[(SHARD, 5)]), &beat(&[])));
        assert_eq!(sleepers.beats().len(), 1, "node-3 knows it");
        sleepers.wake(SHARD);
        assert!(sleepers.is_due());
        assert_eq!(sleepers.beats()["node-2"], beat(&[]));
        assert!(!sleepers.is_due());
    }

    #[test]
    fn a_group_wakes_when_a_node_does_not_name_it_any_more_or_in_another_term() {
        for later in [beat(&[]), beat(&[(SHARD, 4)]), beat(&[(SHARD, 6)]), beat(&[(ROOT, 5)])] {
            let sleepers = Sleepers::default();
            sleepers.fall_asleep(SHARD, 5, others(&[2, 3]), at(0));
            assert!(sleepers.heard("node-2", &later, at(1)).is_empty(), "it may not sleep there yet");
            assert!(sleepers.heard("node-2", &beat(&[(SHARD, 5)]), at(2)).is_empty());
            assert!(sleepers.heard("node-3", &later, at(3)).is_empty());
            assert!(sleepers.heard("node-4", &later, at(4)).is_empty(), "it hosts no member");
            assert_eq!(sleepers.heard("node-2", &later, at(5)), [SHARD]);
        }
    }

    #[test]
    fn a_group_wakes_when_any_of_its_nodes_is_silent() {
        let sleepers = Sleepers::default();
        sleepers.fall_asleep(SHARD, 5, others(&[2, 3]), at(100));
        sleepers.fall_asleep(ROOT, 1, [], at(100));
        let named = beat(&[(SHARD, 5)]);
        sleepers.heard("node-2", &named, at(200));
        assert!(sleepers.overdue(at(349), at(250)).is_empty());
        assert_eq!(sleepers.overdue(at(350), at(250)), [(SHARD, at(250))], "node-3 never named it");
        sleepers.heard("node-3", &named, at(400));
        assert!(sleepers.overdue(at(449), at(250)).is_empty());
        assert_eq!(sleepers.overdue(at(460), at(250)), [(SHARD, at(260))]);
        assert!(!sleepers.overdue(at(1 << 40), at(250)).iter().any(|(group, _)| *group == ROOT), "it is alone");
        // Beats of another term are no signs of life of this one.
        sleepers.heard("node-2", &named, at(500));
        sleepers.heard("node-3", &beat(&[(SHARD, 6)]), at(500));
        assert_eq!(sleepers.overdue(at(650), at(250)), [(SHARD, at(250))]);
    }

    #[tokio::test]
    async fn a_wait_for_a_sleeper_ends_when_one_falls_asleep() {
        let sleepers = std::sync::Arc::new(Sleepers::default());
        let waiting = std::sync::Arc::clone(&sleepers);
        let wait = tokio::spawn(async move { waiting.until_due().await });
        sleepers.fall_asleep(ROOT, 1, [], at(0));
        assert!(!sleepers.is_due(), "there is nobody to tell");
        sleepers.fall_asleep(SHARD, 1, others(&[2]), at(0));
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it ends").expect("it does not panic");
    }
}
