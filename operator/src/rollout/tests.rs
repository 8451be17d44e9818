//! The order of replacement: by examples, and by a model in which anything may fail at any time.

use super::*;

fn member(index: usize, state: State, outdated: bool) -> Member {
    Member { name: format!("node-{index}"), outdated, state }
}

/// Three nodes that host two groups; node 0 leads the first, node 1 the second.
fn fleet(outdated: [bool; 3]) -> Fleet {
    let group = |name: &str, leader: usize| Group {
        name: name.to_owned(),
        parts: (0..3).map(|index| (index, if index == leader { Part::Leads } else { Part::Votes })).collect(),
        quorum: 2,
        led: true,
        ghosts: 0,
    };
    Fleet {
        members: (0..3).map(|index| member(index, State::Ready, outdated[index])).collect(),
        groups: Some(vec![group("root", 0), group("shard-0", 1)]),
        unborn: false,
    }
}

fn set(fleet: &mut Fleet, group: usize, member: usize, part: Part) {
    fleet.groups.as_mut().expect("the groups are known")[group].parts.insert(member, part);
}

fn restarted(fleet: &Fleet) -> usize {
    match next(fleet) {
        Step::Restart { member, .. } => member,
        step => panic!("{step:?}"),
    }
}

#[test]
fn nothing_is_done_when_all_is_current() {
    assert_eq!(next(&fleet([false; 3])), Step::Done);
}

#[test]
fn followers_go_first_and_the_leader_of_the_root_group_last() {
    assert_eq!(restarted(&fleet([true; 3])), 2);
    assert_eq!(restarted(&fleet([true, true, false])), 1);
    assert_eq!(restarted(&fleet([true, false, false])), 0);
}

#[test]
fn the_next_one_waits_until_the_groups_are_whole() {
    for (part, words) in [
        (Part::Silent, "does not vote in shard-0"),
        (Part::Unknown, "does not tell whether it votes in shard-0"),
        (Part::Behind, "is far behind in shard-0"),
    ] {
        let mut fleet = fleet([true, true, false]);
        set(&mut fleet, 1, 2, part);
        assert_eq!(next(&fleet), Step::Wait(format!("node-2 {words}")));
    }
    let mut leaderless = fleet([true; 3]);
    leaderless.groups.as_mut().expect("the groups are known")[1].led = false;
    assert_eq!(next(&leaderless), Step::Wait("shard-0 has no leader".to_owned()));
    let mut haunted = fleet([true; 3]);
    let group = &mut haunted.groups.as_mut().expect("the groups are known")[1];
    (group.quorum, group.ghosts) = (3, 1);
    assert_eq!(next(&haunted), Step::Wait("shard-0 still counts the vote of a replica that is gone".to_owned()));
    set(&mut haunted, 0, 0, Part::Silent);
    assert_eq!(next(&haunted), Step::Wait("node-0 does not vote in root".to_owned()), "shard-0 needs three of four");
    for (state, words) in [(State::Gone, "is being replaced"), (State::Running, "is not ready yet")] {
        let mut fleet = fleet([true, true, false]);
        fleet.members[2].state = state;
        assert_eq!(next(&fleet), Step::Wait(format!("node-2 {words}")));
    }
}

#[test]
fn without_news_from_the_groups_no_healthy_pod_goes() {
    let mut fleet = fleet([true; 3]);
    fleet.groups = None;
    assert_eq!(next(&fleet), Step::Wait("no coordinator reports the state of the groups".to_owned()));
    fleet.members[1].state = State::Running;
    assert_eq!(next(&fleet), Step::Wait("node-1 is not ready yet".to_owned()));
    fleet.unborn = true;
    assert_eq!(restarted(&fleet), 1, "there is nothing to be lost");
    fleet.unborn = false;
    fleet.members[0].state = State::Stalled;
    assert_eq!(restarted(&fleet), 0, "what was silent for so long has no part in a quorum");
}

#[test]
fn an_unhealthy_pod_goes_first_if_the_others_can_do_without_it() {
    let mut fleet = fleet([true; 3]);
    set(&mut fleet, 0, 0, Part::Silent);
    assert_eq!(restarted(&fleet), 0);
    set(&mut fleet, 1, 2, Part::Silent);
    assert_eq!(
        next(&fleet),
        Step::Wait("node-0 does not vote in root".to_owned()),
        "node-0 is needed in the one group, node-2 in the other"
    );
    fleet.members[2].state = State::Stopped;
    assert_eq!(restarted(&fleet), 2, "what does not run takes nothing away");
}

#[test]
fn a_pod_without_news_counts_neither_as_voter_nor_as_spare() {
    let mut fleet = fleet([true, true, false]);
    fleet.members[2] = member(2, State::Gone, false);
    for (part, state) in
        [(Part::Unknown, State::Ready), (Part::Unknown, State::Running), (Part::Behind, State::Stalled)]
    {
        set(&mut fleet, 1, 0, part);
        fleet.members[0].state = state;
        assert!(
            matches!(next(&fleet), Step::Wait(_)),
            "with node-2 away, shard-0 may need {part:?} of a pod that is {state:?}"
        );
    }
    fleet.members[2].state = State::Ready;
    assert_eq!(restarted(&fleet), 0, "two others vote");
    set(&mut fleet, 1, 1, Part::Unknown);
    assert!(matches!(next(&fleet), Step::Wait(_)), "one of them may not");
    for group in 0..2 {
        set(&mut fleet, group, 0, Part::Unknown);
    }
    assert!(matches!(next(&fleet), Step::Wait(_)), "shard-0 is led, so it may be by the voice of node-0");
    fleet.groups.as_mut().expect("the groups are known")[1].led = false;
    assert_eq!(restarted(&fleet), 0, "what did not answer for so long gives no majority");
    fleet.members[0].state = State::Running;
    assert!(matches!(next(&fleet), Step::Wait(_)), "it may have begun just now");
    fleet.unborn = true;
    assert_eq!(restarted(&fleet), 0, "there is nothing to be lost");
}

#[test]
fn a_rollout_that_is_stuck_on_a_bad_image_can_be_reverted() {
    let mut fleet = fleet([true; 3]);
    // The first pod got the new template and can't start; the others wait.
    fleet.members[2] = member(2, State::Stopped, false);
    assert_eq!(next(&fleet), Step::Wait("node-2 does not start".to_owned()));
    // Now the old template is the current one again.
    fleet.members[0].outdated = false;
    fleet.members[1].outdated = false;
    fleet.members[2].outdated = true;
    assert_eq!(restarted(&fleet), 2);
}

/// xorshift: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits fit") % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// More steps than any start takes.
const STALLED_STEPS: usize = 12;
/// Steps for which a replaced replica is still counted.
const GHOST_STEPS: usize = 3;

/// The behaviour of pods made from a template.
#[derive(Clone, Copy, PartialEq)]
enum Quality {
    Good,
    /// The image can't be pulled.
    Absent,
    /// The process runs and never gets ready.
    Mute,
}

struct Pod {
    template: usize,
    /// Steps until the pod is there again.
    returns_in: usize,
    /// For each group, steps until the replica votes.
    votes_in: Vec<usize>,
    /// For each group, whether the replica waits for a vote in place of a former one.
    joins: Vec<bool>,
    /// For each group, steps until the former replica's vote is no longer counted; it is still
    /// counted when the new replica has its own.
    ghost_for: Vec<usize>,
    /// Steps for which the pod has existed.
    age: usize,
}

/// The true state of a cluster. The operator sees only what it can ask for.
struct World {
    random: Random,
    templates: Vec<Quality>,
    pods: Vec<Pod>,
    /// Hosts and leader of each group.
    groups: Vec<(Vec<usize>, Option<usize>)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let count = [1, 3, 4, 5][random.below(4)];
        let replicas = if count >= 5 && random.one_in(2) { 5 } else { count.min(3) };
        let groups = 1 + random.below(4);
        let hosts = |group: usize| (0..replicas).map(|index| (group + index) % count).collect();
        let pod = || Pod {
            template: 0,
            returns_in: 0,
            votes_in: vec![0; groups],
            joins: vec![false; groups],
            ghost_for: vec![0; groups],
            age: 0,
        };
        Self {
            random,
            templates: vec![Quality::Good],
            pods: (0..count).map(|_| pod()).collect(),
            groups: (0..groups).map(|group| (hosts(group), None)).collect(),
        }
    }

    fn runs(&self, pod: usize) -> bool {
        self.pods[pod].returns_in == 0 && self.templates[self.pods[pod].template] != Quality::Absent
    }

    fn votes(&self, group: usize, pod: usize) -> bool {
        self.runs(pod)
            && self.templates[self.pods[pod].template] == Quality::Good
            && self.pods[pod].votes_in[group] == 0
    }

    /// Replicas that are gone but still counted in addition to their successors.
    fn ghosts(&self, group: usize) -> usize {
        self.groups[group].0.iter().filter(|pod| self.pods[**pod].ghost_for[group] > 0).count()
    }

    /// The number of votes that make a majority.
    fn quorum(&self, group: usize) -> usize {
        (self.groups[group].0.len() + self.ghosts(group)) / 2 + 1
    }

    fn has_quorum(&self, group: usize) -> bool {
        let hosts = &self.groups[group].0;
        hosts.iter().filter(|pod| self.votes(group, **pod)).count() >= self.quorum(group)
    }

    fn current(&self) -> usize {
        self.templates.len() - 1
    }

    fn observe(&mut self, calm: bool) -> Fleet {
        let current = self.current();
        let state = |world: &Self, pod: usize| {
            let ready =
                (0..world.groups.len()).all(|group| !world.groups[group].0.contains(&pod) || world.votes(group, pod));
            match (world.pods[pod].returns_in, world.runs(pod)) {
                (1.., _) => State::Gone,
                (0, false) => State::Stopped,
                (0, true) if ready => State::Ready,
                (0, true) if world.pods[pod].age > STALLED_STEPS => State::Stalled,
                (0, true) => State::Running,
            }
        };
        let members =
            (0..self.pods.len()).map(|pod| member(pod, state(self, pod), self.pods[pod].template != current)).collect();
        // In bad times any answer may be late.
        let part = |world: &mut Self, group: usize, pod: usize| match world.groups[group].1 {
            _ if !calm && world.random.one_in(4) => Part::Unknown,
            Some(leader) if leader == pod => Part::Leads,
            _ if world.votes(group, pod) => Part::Votes,
            // A new replica is not among those that raft counts.
            _ if world.pods[pod].joins[group] => Part::Silent,
            _ => Part::Unknown,
        };
        let group = |world: &mut Self, index: usize| Group {
            name: format!("group-{index}"),
            parts: world.groups[index].0.clone().into_iter().map(|pod| (pod, part(world, index, pod))).collect(),
            quorum: world.quorum(index),
            led: world.groups[index].1.is_some(),
            ghosts: world.ghosts(index),
        };
        let groups = (0..self.groups.len()).map(|index| group(self, index)).collect();
        // Coordinators answer only while the root group has a quorum, and in bad times not even
        // then.
        let answered = self.has_quorum(0) && (calm || !self.random.one_in(8));
        Fleet { members, groups: answered.then_some(groups), unborn: false }
    }

    fn pass_time(&mut self) {
        for pod in &mut self.pods {
            pod.returns_in = pod.returns_in.saturating_sub(1);
            pod.ghost_for.iter_mut().for_each(|left| *left = left.saturating_sub(1));
            if pod.returns_in == 0 {
                pod.age += 1;
                pod.votes_in.iter_mut().for_each(|left| *left = left.saturating_sub(1));
                for (group, votes_in) in pod.votes_in.iter().enumerate() {
                    if *votes_in == 0 && std::mem::take(&mut pod.joins[group]) {
                        pod.ghost_for[group] = GHOST_STEPS;
                    }
                }
            }
        }
        for group in 0..self.groups.len() {
            let candidates: Vec<usize> =
                self.groups[group].0.iter().copied().filter(|pod| self.votes(group, *pod)).collect();
            let stays = self.groups[group].1.is_some_and(|leader| candidates.contains(&leader));
            if !self.has_quorum(group) {
                self.groups[group].1 = None;
            } else if !stays {
                self.groups[group].1 = Some(candidates[self.random.below(candidates.len())]);
            }
        }
    }

    fn break_something(&mut self) {
        let pod = self.random.below(self.pods.len());
        match self.random.below(3) {
            // A pod was evicted, and its StatefulSet makes it from the current template.
            0 => self.replace(pod),
            // A volume was lost.
            1 => {
                self.replace(pod);
                self.pods[pod].votes_in.fill(6);
                for group in 0..self.groups.len() {
                    // A group with one host can't replace its replica.
                    self.pods[pod].joins[group] = self.groups[group].0.len() > 1;
                }
            }
            _ => {
                let quality = [Quality::Good, Quality::Absent, Quality::Mute][self.random.below(3)];
                self.templates.push(quality);
            }
        }
    }

    fn replace(&mut self, pod: usize) {
        let (away, behind) = (1 + self.random.below(3), 1 + self.random.below(4));
        let template = self.current();
        let pod = &mut self.pods[pod];
        pod.template = template;
        pod.returns_in = away;
        pod.age = 0;
        pod.votes_in.iter_mut().for_each(|left| *left = (*left).max(behind));
    }

    /// One look and one step of the operator.
    fn reconcile(&mut self, calm: bool) -> Step {
        let step = next(&self.observe(calm));
        if let Step::Restart { member, .. } = step {
            let before: Vec<bool> = (0..self.groups.len()).map(|group| self.has_quorum(group)).collect();
            self.replace(member);
            for (group, had) in before.into_iter().enumerate() {
                let alone = self.groups[group].0.len() == 1;
                assert!(!had || alone || self.has_quorum(group), "group {group} lost its quorum by {step:?}");
            }
        }
        self.pass_time();
        step
    }
}

#[test]
fn no_rollout_takes_a_quorum_and_every_rollout_ends() {
    let mut restarts = 0;
    for seed in 1..=4000 {
        let mut world = World::new(seed);
        world.pass_time();
        for _ in 0..60 {
            if world.random.one_in(6) {
                world.break_something();
            }
            restarts += usize::from(matches!(world.reconcile(false), Step::Restart { .. }));
        }
        // Somebody mends the specification, and the other faults heal.
        world.templates.push(Quality::Good);
        let ended = (0..200).any(|_| world.reconcile(true) == Step::Done);
        assert!(ended, "seed {seed} is not done: {:?}", next(&world.observe(true)));
        assert!(world.pods.iter().all(|pod| pod.template == world.current()), "seed {seed}");
    }
    assert!(restarts > 10_000, "the model is about rollouts: {restarts}");
}

/// A healthy fleet whose leaders are anywhere.
fn uneven(random: &mut Random) -> Fleet {
    let count = 1 + random.below(6);
    let replicas = [1, 3, 5].into_iter().filter(|replicas| *replicas <= count).max().unwrap_or(1);
    let group = |index: usize, random: &mut Random| {
        let hosts: Vec<usize> = (0..replicas).map(|place| (index + place) % count).collect();
        let leader = hosts[random.below(replicas).min(random.below(replicas))];
        let part = |host: &usize| (*host, if *host == leader { Part::Leads } else { Part::Votes });
        let parts = hosts.iter().map(part).collect();
        Group { name: format!("group-{index}"), parts, quorum: replicas / 2 + 1, led: true, ghosts: 0 }
    };
    let groups = (0..1 + random.below(12)).map(|index| group(index, random)).collect();
    let members = (0..count).map(|index| member(index, State::Ready, false)).collect();
    Fleet { members, groups: Some(groups), unborn: false }
}

/// The number of shards that each member leads.
fn led(fleet: &Fleet) -> Vec<usize> {
    let shards = &fleet.known()[1..];
    let leads = |group: &&Group, member: usize| group.parts.get(&member) == Some(&Part::Leads);
    (0..fleet.members.len()).map(|member| shards.iter().filter(|group| leads(group, member)).count()).collect()
}

#[test]
fn leaders_are_spread_by_moves_that_come_to_an_end() {
    let (mut random, mut moves) = (Random(7), 0);
    for _ in 0..3000 {
        let mut fleet = uneven(&mut random);
        let root = fleet.known()[0].clone();
        let squares = |fleet: &Fleet| led(fleet).into_iter().map(|count| count * count).sum::<usize>();
        while let Some(Handover { group, from, to }) = spread(&fleet) {
            let before = squares(&fleet);
            let groups = fleet.groups.as_mut().expect("the groups are known");
            let parts = &mut groups.iter_mut().find(|known| known.name == group).expect("it is known").parts;
            assert_eq!(
                (parts.insert(from, Part::Votes), parts.insert(to, Part::Leads)),
                (Some(Part::Leads), Some(Part::Votes))
            );
            assert!(squares(&fleet) < before, "so there is a last one");
            moves += 1;
        }
        assert_eq!(fleet.known()[0], root, "the root group's leader stays");
        let led = led(&fleet);
        for group in &fleet.known()[1..] {
            let leader = group.parts.iter().find(|(_, part)| **part == Part::Leads).expect("somebody leads").0;
            assert!(group.parts.keys().all(|host| led[*leader] <= led[*host] + 1), "{fleet:?}");
        }
    }
    assert!(moves > 1000, "the model is about moves: {moves}");
}

#[test]
fn no_leadership_moves_unless_all_is_current_and_whole() {
    let mut random = Random(8);
    let mut spoilt = 0;
    for _ in 0..3000 {
        let fleet = uneven(&mut random);
        let Some(handover) = spread(&fleet) else { continue };
        let (pod, group) = (random.below(fleet.members.len()), random.below(fleet.known().len()));
        let groups =
            |fleet: &mut Fleet, change: &dyn Fn(&mut Group)| change(&mut fleet.groups.as_mut().expect("known")[group]);
        let spoil: [&dyn Fn(&mut Fleet); 8] = [
            &|fleet| fleet.members[pod].outdated = true,
            &|fleet| fleet.members[pod].state = State::Running,
            &|fleet| fleet.members[pod].state = State::Gone,
            &|fleet| fleet.groups = None,
            &|fleet| groups(fleet, &|group| group.led = false),
            &|fleet| groups(fleet, &|group| group.ghosts = 1),
            &|fleet| groups(fleet, &|group| *group.parts.values_mut().next().expect("a host") = Part::Behind),
            &|fleet| groups(fleet, &|group| *group.parts.values_mut().next().expect("a host") = Part::Unknown),
        ];
        for spoil in spoil {
            let mut fleet = fleet.clone();
            spoil(&mut fleet);
            assert_eq!(spread(&fleet), None, "{handover:?} of {fleet:?}");
            spoilt += 1;
        }
    }
    assert!(spoilt > 5000, "the model is about what is spoilt: {spoilt}");
}

#[test]
fn readers_are_replaced_one_by_one_and_a_stalled_one_holds_nothing_up() {
    let reader = |index: usize, outdated, state| Member { name: format!("r{index}"), outdated, state };
    let step = |states: &[(bool, State)]| {
        let members: Vec<Member> =
            states.iter().enumerate().map(|(index, (outdated, state))| reader(index, *outdated, *state)).collect();
        match next_reader(&members) {
            Step::Restart { member, .. } => Ok(Some(member)),
            Step::Done => Ok(None),
            Step::Wait(words) => Err(words),
        }
    };
    use State::{Gone, Ready, Running, Stalled, Stopped};
    assert_eq!(step(&[]), Ok(None));
    assert_eq!(step(&[(false, Running), (false, Gone), (false, Stopped)]), Ok(None), "voters do not wait for them");
    assert_eq!(step(&[(true, Ready), (true, Ready)]), Ok(Some(1)), "the last one first");
    assert_eq!(step(&[(true, Ready), (false, Running)]), Err("r1 is not ready yet".to_owned()));
    assert_eq!(step(&[(true, Ready), (true, Gone)]), Err("r1 is not ready yet".to_owned()), "it is being replaced");
    assert_eq!(step(&[(true, Ready), (false, Stalled)]), Ok(Some(0)), "it is not waited for for ever");
    assert_eq!(step(&[(true, Stopped), (true, Ready), (false, Gone)]), Ok(Some(0)), "stopping it takes nothing away");
    assert_eq!(step(&[(true, Stalled), (true, Ready)]), Ok(Some(0)));
    assert_eq!(step(&[(true, Running)]), Err("r0 is not ready yet".to_owned()));
}
