//! Groups under every fault that they promise to survive, from many seeds.

mod world;

use coppice_consensus::{Change, RaftId};
use coppice_env::Rng;
use world::World;

/// Disturbs the world by means other than lost, duplicated and delayed messages.
fn disturb(world: &mut World) {
    let ids = world.ids();
    let pick = |world: &mut World| {
        let at = world.rng.below(ids.len() as u64);
        ids[usize::try_from(at).expect("small")]
    };
    let down = ids.iter().filter(|id| world.nodes[id].group.is_none()).count();
    match world.rng.below(1000) {
        0..8 if down == 0 => {
            let id = pick(world);
            world.crash(id);
        }
        8..14 if down == 0 => {
            let id = pick(world);
            let after = world.rng.below(12);
            world.node(id).disk.crash_after(after);
        }
        14..60 => {
            for id in &ids {
                world.restart(*id);
            }
        }
        60..66 => {
            let (a, b) = (pick(world), pick(world));
            world.network.partition(&[&a.to_string()], &[&b.to_string()]);
            world.note(format!("{a} and {b} lose each other"));
        }
        66..90 => world.network.heal(),
        90..94 => {
            if let Some(leader) = world.leader() {
                let to = pick(world);
                // The transfer is refused if it makes no sense.
                let _ = world.group(leader).transfer_leader(to);
            }
        }
        94..140 => {
            let id = pick(world);
            world.persist(id);
        }
        140..160 => {
            let id = pick(world);
            world.read(id);
        }
        160..168 => {
            let id = pick(world);
            let sound = |id: &RaftId| world.nodes[id].group.as_ref().is_none_or(|group| group.quarantined().is_none());
            if world.nodes[&id].group.is_some() && ids.iter().all(sound) {
                world.note(format!("{id} is quarantined"));
                if let Err(error) = world.group(id).quarantine(b"a digest differs") {
                    assert!(world.nodes[&id].disk.crashed(), "{id}: {error}");
                    world.crash(id);
                }
            }
        }
        _ => {}
    }
    for id in ids {
        if world.rng.chance(300) {
            for _ in 0..=world.rng.below(4) {
                world.propose(id);
            }
            world.settle(id);
        }
    }
}

fn run(seed: u64, voters: u32, ticks: u64) -> World {
    let mut world = World::new(seed, voters);
    world.set_lossy(true);
    for _ in 0..ticks {
        disturb(&mut world);
        world.tick();
    }
    world.converge();
    world
}

#[test]
fn no_acknowledged_entry_is_lost_and_replicas_agree() {
    let (mut acknowledged, mut reads, mut restarts, mut snapshots, mut quarantines) = (0, 0, 0, 0, 0);
    for seed in 0..60 {
        let voters = 3 + u32::try_from(seed % 3).expect("small");
        let world = run(seed, voters, 600);
        acknowledged += world.acknowledged.len();
        reads += world.reads_done;
        restarts += world.nodes.values().map(|node| node.restarts).sum::<u64>();
        snapshots += world.snapshots_installed;
        let quarantined = |line: &&String| line.ends_with("is quarantined");
        quarantines += world.trace.iter().filter(quarantined).count();
    }
    assert!(acknowledged > 60 * 50, "only {acknowledged} entries were acknowledged");
    assert!(reads > 60, "only {reads} reads were answered");
    assert!(restarts > 60, "only {restarts} restarts");
    assert!(snapshots > 0, "no snapshot was installed");
    assert!(quarantines > 60, "only {quarantines} quarantines");
    println!(
        "{acknowledged} acknowledged, {reads} reads, {restarts} restarts, {snapshots} snapshots, {quarantines} quarantines"
    );
}

#[test]
fn one_seed_run_twice_gives_the_same_trace() {
    for seed in 1000..1004 {
        let (first, second) = (run(seed, 3, 300), run(seed, 3, 300));
        let differs = first.trace.iter().zip(&second.trace).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len());
    }
}

#[test]
fn a_replica_without_its_disk_is_replaced_under_load() {
    for seed in 2000..2015 {
        let mut world = World::new(seed, 3);
        world.set_lossy(true);
        let (old, new) = (RaftId::new(2, 1), RaftId::new(2, 2));
        for tick in 0..1200 {
            if tick == 100 {
                world.crash(old);
                world.nodes.remove(&old);
                world.add_empty(new);
            }
            if tick > 100 {
                // Each change is refused until it makes sense, and after it was made.
                if world.change(&[Change::AddLearner(new)]).is_none() {
                    world.change(&[Change::Promote(new), Change::Remove(old)]);
                }
            }
            for id in world.ids() {
                if world.rng.chance(300) {
                    world.propose(id);
                }
                if world.rng.chance(30) {
                    world.persist(id);
                }
            }
            world.tick();
        }
        world.converge();
        let leader = world.leader().expect("there is one");
        let membership = world.group(leader).status().membership;
        assert_eq!(membership.voters, [RaftId::new(1, 1), new, RaftId::new(3, 1)], "seed {seed}");
        assert!(!membership.is_joint() && membership.learners.is_empty(), "seed {seed}");
        assert!(world.snapshots_installed > 0, "a new replica starts from a snapshot");
    }
}
