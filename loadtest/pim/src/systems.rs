//! Panther's placement and its rivals: where each puts the objects of blocks, what each moves after
//! a batch, and how long a batch takes by the emulator's model.
//!
//! Each rival replaces one part of Panther, as in the paper. A lookup costs what the kernel took
//! for it on the same tree in the emulator. Queues are exact: each lookup is counted where it goes.

use std::collections::{BinaryHeap, HashMap, HashSet};

use coppice_env::{Rng, SimRng};
use coppice_pim::Calibration;

use crate::{shapes::Object, trees::Tree};

/// DPUs of one module, as in the paper.
pub const DPUS: usize = 128;
/// Bytes of a query with a key of 20 bytes, and of a result.
pub const QUERY_BYTES: usize = 32;
pub const RESULT_BYTES: usize = 1024;
/// Bytes of a node with its sibling's hash in a round of SDN, and of its query.
const NODE_BYTES: usize = 80;
const NODE_QUERY_BYTES: usize = 16;
/// Times that differ by less are taken as equal.
const HYSTERESIS: f64 = 0.05;
/// Most objects that move after a batch. The paper gives no number.
const MOVES_MAX: usize = 1000;
/// Bytes a second from and to a single DPU.
const FROM_DPU_S: f64 = 0.12e9;
const TO_DPU_S: f64 = 0.33e9;

/// A compared system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    Panther,
    /// Panther, with equal lookups of a batch done once.
    Coppice,
    /// Hash tables instead of lines.
    Ht,
    /// Whole blocks on DPUs.
    Sdb,
    /// Hot objects go to the host, and none comes back.
    Pp,
    /// Keywords are on fixed DPUs.
    Ss,
    /// Keywords move between DPUs, by way of the host.
    Ds,
    /// Nodes on DPUs, as wide as the engine's.
    SdnWide,
    /// Nodes of binary trees on DPUs, as in the paper.
    SdnBinary,
}

impl System {
    pub const ALL: [Self; 9] = [
        Self::Panther,
        Self::Coppice,
        Self::Ht,
        Self::Sdb,
        Self::Pp,
        Self::Ss,
        Self::Ds,
        Self::SdnWide,
        Self::SdnBinary,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Panther => "Panther",
            Self::Coppice => "Panther, equal lookups once",
            Self::Ht => "HT",
            Self::Sdb => "SDB",
            Self::Pp => "PP",
            Self::Ss => "SS",
            Self::Ds => "DS",
            Self::SdnWide => "SDN, the engine's nodes",
            Self::SdnBinary => "SDN, binary trees",
        }
    }
}

/// The blocks of a data set on DPUs.
#[derive(Debug)]
pub struct Placement {
    /// Number of the first leaf of each block, and behind the last block.
    first: Vec<u32>,
    /// DPUs of leaves, and the bytes on each DPU.
    dpus: Vec<u8>,
    pub bytes: Vec<u64>,
}

impl Placement {
    /// Largest leaf first, each to the least filled DPU.
    #[must_use]
    pub fn of_leaves(records: &[u32], tree: &Tree) -> Self {
        let leaf_records = tree.records.div_ceil(tree.leaves());
        let record_bytes = tree.bytes / u64::from(tree.records);
        let mut first = vec![0];
        let mut sizes = Vec::new();
        for records in records {
            let leaves = records.div_ceil(leaf_records);
            let size = |leaf| (records / leaves + u32::from(leaf < records % leaves), number_of(&first, leaf));
            sizes.extend((0..leaves).map(size));
            first.push(first[first.len() - 1] + leaves);
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut bytes = vec![0; DPUS];
        let mut dpus = vec![0; sizes.len()];
        let mut least: BinaryHeap<_> = (0..DPUS).map(|dpu| std::cmp::Reverse((0_u64, dpu))).collect();
        for (records, leaf) in sizes {
            let std::cmp::Reverse((filled, dpu)) = least.pop().expect("there are DPUs");
            dpus[leaf as usize] = dpu as u8;
            bytes[dpu] = filled + u64::from(records) * record_bytes;
            least.push(std::cmp::Reverse((bytes[dpu], dpu)));
        }
        Self { first, dpus, bytes }
    }

    fn leaf(&self, object: Object) -> u32 {
        let (first, end) = (self.first[object.block as usize], self.first[object.block as usize + 1]);
        first + (mixed(object) % u64::from(end - first)) as u32
    }
}

/// The number of a leaf of the block that comes next.
fn number_of(first: &[u32], leaf: u32) -> u32 {
    first[first.len() - 1] + leaf
}

/// A number that looks random and follows from the object.
fn mixed(object: Object) -> u64 {
    SimRng::new(u64::from(object.block) << 32 | u64::from(object.keyword)).next_u64()
}

/// What the host needs for each lookup besides the tree, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct HostCosts {
    /// To put it into a queue.
    pub dispatch_s: f64,
    /// To find its block by lines, and by a hash table.
    pub lines_s: f64,
    pub table_s: f64,
}

/// A system with what it has moved so far.
#[derive(Debug)]
pub struct Running<'a> {
    system: System,
    placement: &'a Placement,
    tree: &'a Tree,
    calibration: Calibration,
    costs: HostCosts,
    /// Objects that the host answers for.
    promoted: HashSet<Object>,
    heat: HashMap<Object, f64>,
    /// DPUs of keywords that were moved.
    moved: HashMap<u32, usize>,
}

/// What a batch was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    pub seconds: f64,
    /// Lookups of the busiest DPU over the mean.
    pub imbalance: f64,
    /// Share of lookups that the host answers.
    pub host_share: f64,
}

impl<'a> Running<'a> {
    #[must_use]
    pub fn new(
        system: System,
        placement: &'a Placement,
        tree: &'a Tree,
        calibration: &Calibration,
        costs: HostCosts,
    ) -> Self {
        let calibration = Calibration { lookup_cycles: tree.cost.cycles, rank_dpus: 64.0, ..calibration.clone() };
        let (promoted, heat, moved) = Default::default();
        Self { system, placement, tree, calibration, costs, promoted, heat, moved }
    }

    /// The DPU of an object.
    #[must_use]
    pub fn home(&self, object: Object) -> usize {
        let random = |number: u32| (SimRng::new(u64::from(number)).next_u64() % DPUS as u64) as usize;
        match self.system {
            System::Sdb => random(object.block),
            System::Ss => random(object.keyword),
            System::Ds => self.moved.get(&object.keyword).copied().unwrap_or_else(|| random(object.keyword)),
            _ => usize::from(self.placement.dpus[self.placement.leaf(object) as usize]),
        }
    }

    /// Answers a batch, then moves what the system moves.
    pub fn batch(&mut self, lookups: &[Object]) -> Batch {
        let mut counts: HashMap<Object, u64> = HashMap::new();
        lookups.iter().for_each(|object| *counts.entry(*object).or_default() += 1);
        if self.system == System::Coppice {
            counts.values_mut().for_each(|count| *count = 1);
        }
        let mut counts: Vec<(Object, u64)> = counts.into_iter().collect();
        counts.sort_unstable();
        let inter_s = if self.system == System::Ht { self.costs.table_s } else { self.costs.lines_s };
        let each_s = lookups.len() as f64 * (self.costs.dispatch_s + inter_s);
        if matches!(self.system, System::SdnWide | System::SdnBinary) {
            return Batch { seconds: each_s + self.rounds_s(&counts), imbalance: 1.0, host_share: 0.0 };
        }
        let (mut loads, mut on_host) = (vec![0_u64; DPUS], 0_u64);
        for (object, count) in &counts {
            if self.promoted.contains(object) { on_host += count } else { loads[self.home(*object)] += count }
        }
        let (most, all) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<u64>());
        let host_s = self.calibration.host_s(on_host as usize);
        let pim_s = if all == 0 { 0.0 } else { self.calibration.pim_s(most as usize, QUERY_BYTES, RESULT_BYTES) };
        let moves_s = self.rebalance(&counts, loads, host_s, pim_s);
        Batch {
            seconds: each_s + host_s.max(pim_s) + moves_s,
            imbalance: most as f64 * DPUS as f64 / all.max(1) as f64,
            host_share: on_host as f64 / (on_host + all).max(1) as f64,
        }
    }

    /// A round for each level: the host sends each lookup to the DPU of its next node, and to that
    /// of the node's sibling.
    fn rounds_s(&self, counts: &[(Object, u64)]) -> f64 {
        let wide = self.system == System::SdnWide;
        let rounds = if wide { self.tree.levels() } else { self.tree.records.ilog2() + 1 };
        let cycles = if wide {
            self.tree.cost.cycles / f64::from(self.tree.levels())
        } else {
            2.0 * self.tree.cost.cycles / self.tree.cost.transfers
        };
        let bytes = if wide { RESULT_BYTES / self.tree.levels() as usize } else { NODE_BYTES };
        let calibration = Calibration { lookup_cycles: cycles, ..self.calibration.clone() };
        let round = |level: u32| {
            let mut loads = vec![0_u64; DPUS];
            for (object, count) in counts {
                // Below the root, a binary tree has 2^level nodes; all lookups of a block begin at
                // its root.
                let nodes = if wide { self.tree.widths[level as usize] } else { 1 << level };
                let node = mixed(*object) % u64::from(nodes);
                for sibling in [0, 1].into_iter().take(if wide || level == 0 { 1 } else { 2 }) {
                    let name = u64::from(object.block) << 40 | u64::from(level) << 32 | (node ^ sibling);
                    loads[(SimRng::new(name).next_u64() % DPUS as u64) as usize] += count;
                }
            }
            calibration.pim_s(loads.into_iter().max().unwrap_or(0) as usize, NODE_QUERY_BYTES, bytes)
        };
        (0..rounds).map(round).sum()
    }

    /// Moves objects. Returns the seconds that the transfers take.
    fn rebalance(&mut self, counts: &[(Object, u64)], loads: Vec<u64>, host_s: f64, pim_s: f64) -> f64 {
        match self.system {
            System::Ss | System::SdnWide | System::SdnBinary => 0.0,
            System::Ds => self.migrate(counts, loads),
            System::Pp => {
                let mean = counts.iter().map(|(_, count)| count).sum::<u64>() / counts.len().max(1) as u64;
                self.promoted.extend(counts.iter().filter(|(_, count)| *count > mean).map(|(object, _)| *object));
                0.0
            }
            _ => {
                self.adapt(counts, loads, host_s, pim_s);
                0.0
            }
        }
    }

    /// The objects that DPUs answered for, hottest last on each.
    fn hot(&self, counts: &[(Object, u64)]) -> Vec<Vec<(u64, Object)>> {
        let mut hot = vec![Vec::new(); DPUS];
        for (object, count) in counts.iter().filter(|(object, _)| !self.promoted.contains(object)) {
            hot[self.home(*object)].push((*count, *object));
        }
        hot.iter_mut().for_each(|objects| objects.sort_unstable());
        hot
    }

    /// The paper's promotion and demotion.
    fn adapt(&mut self, counts: &[(Object, u64)], mut loads: Vec<u64>, host_s: f64, pim_s: f64) {
        self.heat.values_mut().for_each(|heat| *heat *= 0.5);
        for (object, count) in counts {
            *self.heat.entry(*object).or_default() += *count as f64 / 2.0;
        }
        if host_s < pim_s * (1.0 - HYSTERESIS) {
            let mut hot = self.hot(counts);
            let mut spare = (pim_s - host_s) / self.calibration.host_lookup_s;
            let mean = loads.iter().sum::<u64>() as f64 / DPUS as f64;
            for _ in 0..MOVES_MAX {
                let (dpu, most) = busiest(&loads);
                let Some((count, object)) = hot[dpu].pop() else { return };
                spare -= count as f64;
                if most as f64 <= mean * (1.0 + HYSTERESIS) || spare < 0.0 {
                    return;
                }
                self.promoted.insert(object);
                loads[dpu] -= count;
            }
        } else {
            // The coldest ones go back, as long as they make no DPU the busiest.
            let heat = |object: &Object| self.heat.get(object).copied().unwrap_or_default();
            let mut cold: Vec<(u64, Object)> = self.promoted.iter().map(|it| (heat(it).round() as u64, *it)).collect();
            cold.sort_unstable();
            let (_, most) = busiest(&loads);
            for (count, object) in cold.into_iter().take(MOVES_MAX) {
                let home = self.home(object);
                if loads[home] + count <= most {
                    self.promoted.remove(&object);
                    loads[home] += count;
                }
            }
        }
    }

    /// Moves hot keywords from the busiest DPU to the idlest.
    fn migrate(&mut self, counts: &[(Object, u64)], mut loads: Vec<u64>) -> f64 {
        let mut keywords: HashMap<u32, (u64, u64)> = HashMap::new();
        for (object, count) in counts {
            let (all, objects) = keywords.entry(object.keyword).or_default();
            (*all, *objects) = (*all + count, *objects + 1);
        }
        let mut hot: Vec<Vec<(u64, u32, u64)>> = vec![Vec::new(); DPUS];
        for (keyword, (count, objects)) in keywords {
            hot[self.home(Object { block: 0, keyword })].push((count, keyword, objects));
        }
        hot.iter_mut().for_each(|keywords| keywords.sort_unstable());
        let mean = loads.iter().sum::<u64>() as f64 / DPUS as f64;
        let mut pages = 0;
        for _ in 0..MOVES_MAX {
            let (dpu, most) = busiest(&loads);
            let idlest = (0..DPUS).min_by_key(|dpu| loads[*dpu]).expect("there are DPUs");
            // The hottest one that does not make the other DPU the busiest.
            let fits = hot[dpu].iter().rposition(|(count, ..)| loads[idlest] + count < most);
            let Some(fits) = fits.filter(|_| most as f64 > mean * (1.0 + HYSTERESIS)) else { break };
            let moved = hot[dpu].remove(fits);
            let (count, keyword, objects) = moved;
            self.moved.insert(keyword, idlest);
            (loads[dpu], loads[idlest]) = (most - count, loads[idlest] + count);
            hot[idlest].push(moved);
            hot[idlest].sort_unstable();
            pages += objects;
        }
        let bytes = pages as f64 * self.tree.bytes as f64 / f64::from(self.tree.leaves());
        bytes / FROM_DPU_S + bytes / TO_DPU_S
    }
}

fn busiest(loads: &[u64]) -> (usize, u64) {
    let found = loads.iter().copied().enumerate().max_by_key(|(dpu, load)| (*load, std::cmp::Reverse(*dpu)));
    found.expect("there are DPUs")
}
