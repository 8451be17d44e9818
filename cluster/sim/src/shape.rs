//! The cluster of a seed, and the faults that it suffers. Each seed draws some of the faults, since
//! a bug may show only if another fault is absent.

use std::{collections::BTreeMap, time::Duration};

use coppice_env::{Rng, SimRng};
use coppice_types::{ClusterId, GroupId, Params};
use coppice_verify::{checkpoint::origin, note::SignerKey, shard_map::ShardMap};

/// Keys at which shards begin, and the first letter of the keys in each shard.
const SPLITS: [&str; 3] = ["g", "n", "t"];
const LETTERS: [&str; 4] = ["a", "g", "p", "x"];

/// The kinds of faults that a seed suffers.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each fault is drawn on its own")]
pub struct Faults {
    /// Lost, doubled and late messages.
    pub weather: bool,
    /// Links cut, in one direction or both.
    pub cuts: bool,
    /// Processes crash, with or without a loss of power.
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
    /// The metadata store restarts, is wiped, or can't be reached.
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
    /// With false answers.
    Lying,
    /// Without any answer.
    Dead,
}

/// Number of witnesses that must have cosigned a checkpoint.
pub const QUORUM: usize = 2;

/// The cluster of a seed.
#[derive(Clone, Debug)]
pub struct Shape {
    pub seed: u64,
    /// Ordinals of the nodes of each group.
    pub groups: BTreeMap<GroupId, Vec<u32>>,
    /// Number of nodes with voters, whose ordinals begin at 1.
    pub nodes: u32,
    /// Number of nodes with readers, whose ordinals come next.
    pub readers: u32,
    /// Number of coordinators.
    pub coordinators: u32,
    /// Number of clients.
    pub clients: u64,
    /// Number of keys in each shard.
    pub keys_per_shard: u64,
    pub map: ShardMap,
    /// The genesis parameters.
    pub params: Params,
    /// The duration of the faults.
    pub chaos: Duration,
    /// The kinds of faults.
    pub faults: Faults,
    /// Longest pause between two chances for a fault, in ms.
    pub pause_ms: u64,
    /// Prunes and rollbacks per thousand actions of a client.
    pub admin_per_mille: u64,
    /// The witnesses of the root log; most seeds have none.
    pub witnesses: Vec<Habit>,
    /// Time from one anchor to the next; most seeds have none.
    pub anchors: Option<Duration>,
}

/// The cluster id of every run.
pub const CLUSTER: ClusterId = ClusterId([7; 16]);

/// The first key that signs checkpoints.
#[must_use]
pub fn signing_key() -> SignerKey {
    key(3)
}

/// The key to which some runs change it.
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
        // Seeds without readers draw as if there were none.
        let mut of_readers = SimRng::new(seed ^ 0x4ead);
        let readers = if of_readers.chance(300) { 1 + u32::from(of_readers.chance(500)) } else { 0 };
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
            ledgers: false,
        };
        Self {
            seed,
            groups,
            nodes,
            readers,
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
            anchors: rng.chance(350).then(|| Duration::from_millis(150 + rng.below(1000))),
        }
    }

    /// Makes the cluster one that keeps ledgers of members: in two shards more, on the nodes of the
    /// root group.
    pub fn keep_ledgers(&mut self) {
        let splits = [vec![0, 0x80], vec![1]].into_iter();
        let others = self.map.shards().iter().skip(1).map(|shard| shard.low.clone());
        self.map = ShardMap::from_splits(&splits.chain(others).collect::<Vec<_>>()).expect("the splits ascend");
        let root = self.groups[&GroupId::Root].clone();
        for shard in self.map.shards() {
            self.groups.entry(GroupId::Shard(shard.id)).or_insert_with(|| root.clone());
        }
        self.params = Params {
            ledgers: true,
            journals_kept: true,
            key_bytes_max: 256,
            node_bytes: 1536,
            value_bytes_max: 64 << 10,
            batch_bytes_max: 64 << 10,
            ..self.params.clone()
        };
    }

    /// The ordinals of the nodes with readers.
    pub fn reader_ordinals(&self) -> impl Iterator<Item = u32> + use<> {
        self.nodes + 1..self.nodes + self.readers + 1
    }

    #[must_use]
    pub fn is_reader(&self, ordinal: u32) -> bool {
        ordinal > self.nodes
    }

    /// The ordinals of the nodes that have a replica of a group: its voters, and the readers of a
    /// shard.
    pub fn hosts(&self, group: GroupId) -> impl Iterator<Item = u32> {
        let readers = (group != GroupId::Root).then(|| self.reader_ordinals());
        self.groups.get(&group).into_iter().flatten().copied().chain(readers.into_iter().flatten())
    }

    /// Number of shards that hold only reserved keys.
    fn reserved(&self) -> usize {
        if self.params.ledgers { 2 } else { 0 }
    }

    fn witnesses(rng: &mut SimRng) -> Vec<Habit> {
        const HABITS: [Habit; 5] = [Habit::Sound, Habit::Sound, Habit::Slow, Habit::Lying, Habit::Dead];
        let count = if rng.chance(250) { 3 } else { 0 };
        (0..count).map(|_| HABITS[usize::try_from(rng.below(5)).expect("it is below 5")]).collect()
    }

    /// Whether enough witnesses answer for a quorum.
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

    /// A random key of a random shard.
    #[must_use]
    pub fn key(&self, rng: &mut SimRng) -> String {
        let shards = self.map.shards().len() - self.reserved();
        let shard = usize::try_from(rng.below(shards as u64)).expect("shards are few");
        format!("{}{:02}", LETTERS[shard], rng.below(self.keys_per_shard))
    }

    /// One key of each shard, which only shows that the shard takes writes.
    #[must_use]
    pub fn probes(&self) -> Vec<String> {
        (0..self.map.shards().len() - self.reserved()).map(|shard| format!("{}-probe", LETTERS[shard])).collect()
    }
}
