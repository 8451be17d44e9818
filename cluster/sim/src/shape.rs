//! What a seed's cluster looks like, and which faults it suffers. Each seed draws a part of all faults: a bug may need that another one is
//! absent.

use std::{collections::BTreeMap, time::Duration};

use coppice_env::{Rng, SimRng};
use coppice_types::{ClusterId, GroupId, Params};
use coppice_verify::{checkpoint::origin, note::SignerKey, shard_map::ShardMap};

/// Where shards begin, and a first letter of the keys of each.
const SPLITS: [&str; 3] = ["g", "n", "t"];
const LETTERS: [&str; 4] = ["a", "g", "p", "x"];

/// Which faults a seed suffers.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each fault is drawn on its own")]
pub struct Faults {
    /// Lost, doubled and late messages.
    pub weather: bool,
    /// Links cut, in one direction or both.
    pub cuts: bool,
    /// Processes crash, with or without power.
    pub crashes: bool,
    /// Nodes crash in the middle of an I/O.
    pub io_crashes: bool,
    /// A node loses its disk.
    pub lost_disks: bool,
    /// A byte goes bad.
    pub rot: bool,
    /// A disk is full for a while, or a process can open no more files.
    pub full_disks: bool,
    /// A disk is slow for a while.
    pub slow_disks: bool,
    /// A write or sync fails once.
    pub io_errors: bool,
    /// Wall clocks jump.
    pub clocks: bool,
    /// The metadata store restarts, is wiped, is out of reach.
    pub metadata: bool,
    /// Prunes and rollbacks.
    pub admin: bool,
}

/// How a witness behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// As specified.
    Sound,
    /// As specified, after seconds.
    Slow,
    /// It answers anything.
    Lying,
    /// It never answers.
    Dead,
}

/// How many of a ledger's witnesses make a checkpoint a cosigned one.
pub const QUORUM: usize = 2;

/// What a seed's cluster looks like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The seed.
    pub seed: u64,
    /// Node ordinals of each group.
    pub groups: BTreeMap<GroupId, Vec<u32>>,
    /// Nodes, from ordinal 1.
    pub nodes: u32,
    /// Coordinators.
    pub coordinators: u32,
    /// Clients.
    pub clients: u64,
    /// Keys of each shard.
    pub keys_per_shard: u64,
    /// The shards.
    pub map: ShardMap,
    /// The genesis parameters.
    pub params: Params,
    /// How long the faults last.
    pub chaos: Duration,
    /// Which ones.
    pub faults: Faults,
    /// The longest pause between two moments in which something may happen, in ms.
    pub pause_ms: u64,
    /// Prunes and rollbacks, of a thousand things that a client does.
    pub admin_per_mille: u64,
    /// The witnesses of the root log; most seeds have none.
    pub witnesses: Vec<Habit>,
}

/// The cluster of every run.
pub const CLUSTER: ClusterId = ClusterId([7; 16]);

/// The key that signs checkpoints at first.
#[must_use]
pub fn signing_key() -> SignerKey {
    key(3)
}

/// The key that it is changed to in some runs.
#[must_use]
pub fn next_signing_key() -> SignerKey {
    key(4)
}

fn key(seed: u8) -> SignerKey {
    SignerKey::from_seed(&origin("sim.coppice.test", &CLUSTER), &[seed; 32]).expect("the origin is a name")
}

impl Shape {
    /// The cluster of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed ^ 0x5a9e);
        let shards = 2 + usize::try_from(rng.below(3)).expect("it is below 3");
        let splits: Vec<Vec<u8>> = SPLITS[..shards - 1].iter().map(|split| split.as_bytes().to_vec()).collect();
        let map = ShardMap::from_splits(&splits).expect("the splits ascend");
        let nodes = [3, 3, 3, 4, 5][usize::try_from(rng.below(5)).expect("it is below 5")];
        let ids = map.shards().iter().map(|shard| GroupId::Shard(shard.id));
        let groups: BTreeMap<GroupId, Vec<u32>> = std::iter::once(GroupId::Root)
            .chain(ids)
            .map(|group| {
                let first = u32::try_from(rng.below(u64::from(nodes))).expect("nodes are few");
                let mut ordinals: Vec<u32> = (0..3).map(|offset| (first + offset) % nodes + 1).collect();
                ordinals.sort_unstable();
                (group, ordinals)
            })
            .collect();
        let faults = Self::faults(&mut rng);
        let params = Params {
            key_bytes_max: 32,
            value_bytes_max: 8 << 10,
            batch_bytes_max: 32 << 10,
            message_bytes_max: 256 << 10,
            session_window: 4 + u32::try_from(rng.below(12)).expect("it is below 12"),
            capacity: 8 + u32::try_from(rng.below(17)).expect("it is below 17"),
            fanout: 4 + u16::try_from(rng.below(8)).expect("it is below 8"),
            node_bytes: 512,
            inline_bytes: 64,
            filter_bits: 8,
            tree_limit: 3 + u8::try_from(rng.below(2)).expect("it is below 2"),
            tier_ratio: 2 + u8::try_from(rng.below(3)).expect("it is below 3"),
            journals_kept: rng.chance(300),
        };
        Self {
            seed,
            groups,
            nodes,
            coordinators: 2 + u32::try_from(rng.below(2)).expect("it is below 2"),
            clients: 3 + rng.below(4),
            keys_per_shard: 6 + rng.below(20),
            map,
            params,
            chaos: Duration::from_millis(4000 + rng.below(4000)),
            faults,
            pause_ms: [60, 60, 150, 300][usize::try_from(rng.below(4)).expect("it is below 4")],
            admin_per_mille: if faults.admin { 10 + rng.below(90) } else { 0 },
            witnesses: Self::witnesses(&mut rng),
        }
    }

    fn witnesses(rng: &mut SimRng) -> Vec<Habit> {
        const HABITS: [Habit; 5] = [Habit::Sound, Habit::Sound, Habit::Slow, Habit::Lying, Habit::Dead];
        let count = if rng.chance(250) { 3 } else { 0 };
        (0..count).map(|_| HABITS[usize::try_from(rng.below(5)).expect("it is below 5")]).collect()
    }

    /// Enough of its witnesses answer.
    #[must_use]
    pub fn can_be_cosigned(&self) -> bool {
        let answers = |habit: &&Habit| matches!(habit, Habit::Sound | Habit::Slow);
        self.witnesses.iter().filter(answers).count() >= QUORUM
    }

    fn faults(rng: &mut SimRng) -> Faults {
        let mut draw = || rng.chance(450);
        Faults {
            weather: draw(),
            cuts: draw(),
            crashes: draw(),
            io_crashes: draw(),
            lost_disks: draw(),
            rot: draw(),
            full_disks: draw(),
            slow_disks: draw(),
            io_errors: draw(),
            clocks: draw(),
            metadata: draw(),
            admin: draw() || draw(),
        }
    }

    /// A key of some shard.
    #[must_use]
    pub fn key(&self, rng: &mut SimRng) -> String {
        let shard = usize::try_from(rng.below(self.map.shards().len() as u64)).expect("shards are few");
        format!("{}{:02}", LETTERS[shard], rng.below(self.keys_per_shard))
    }

    /// A key of each shard, for nothing but to see that it takes writes.
    #[must_use]
    pub fn probes(&self) -> Vec<String> {
        (0..self.map.shards().len()).map(|shard| format!("{}-probe", LETTERS[shard])).collect()
    }
}
