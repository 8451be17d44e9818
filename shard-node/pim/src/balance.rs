//! What a batch costs, and which subtrees the host answers for.
//!
//! All DPUs wait for the busiest one, and transfers are padded to its queries. So a hot subtree
//! costs every other one time. The host holds all nodes, so a *promotion* moves no data: from then
//! on the host answers for the subtree. A *demotion* is the reverse.

use std::collections::HashMap;

use coppice_types::Digest;

use crate::image::{Image, Unit};

/// Constants of the cost model, in SI units. The defaults are published figures for UPMEM v1A
/// (`docs/pim.md`), not measured on hardware; `selftest` measures some of them there.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Cycles of a DPU in a second.
    pub clock_hz: f64,
    /// Time of a launch, in seconds.
    pub launch_s: f64,
    /// Bytes a second to the DPUs of a rank together.
    pub up_bytes_s: f64,
    /// Bytes a second from the DPUs of a rank together.
    pub down_bytes_s: f64,
    /// DPUs of the largest rank; a reader sets it.
    pub rank_dpus: f64,
    /// Cycles of one lookup on a busy DPU.
    pub lookup_cycles: f64,
    /// Seconds that the host takes for one lookup in a subtree.
    pub host_lookup_s: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            clock_hz: 350e6,
            launch_s: 0.5e-3,
            up_bytes_s: 6.68e9,
            down_bytes_s: 4.74e9,
            rank_dpus: 64.0,
            lookup_cycles: 1600.0,
            host_lookup_s: 0.7e-6,
        }
    }
}

impl Calibration {
    /// Seconds of a batch on the DPUs, of which the busiest has `most` queries.
    #[must_use]
    pub fn pim_s(&self, most: usize, query_bytes: usize, result_bytes: usize) -> f64 {
        self.transfer_s(most, query_bytes, result_bytes) + most as f64 * self.lookup_cycles / self.clock_hz
    }

    /// Seconds of launch and transfers. Ranks work side by side.
    #[must_use]
    pub fn transfer_s(&self, most: usize, query_bytes: usize, result_bytes: usize) -> f64 {
        let bytes = self.rank_dpus * most as f64;
        self.launch_s + bytes * (query_bytes as f64 / self.up_bytes_s + result_bytes as f64 / self.down_bytes_s)
    }

    /// The fewest lookups that all DPUs together answer sooner than one core of the host, if they
    /// are spread evenly. `None` if a batch of a million is not enough.
    #[must_use]
    pub fn break_even(&self, dpus: usize, query_bytes: usize, result_bytes: usize) -> Option<usize> {
        let pays = |most: usize| self.pim_s(most, query_bytes, result_bytes) < self.host_s(most * dpus);
        // Both times are linear, so the first number that pays is found by halving.
        let (mut low, mut high) = (0, 1_000_000_usize.div_ceil(dpus.max(1)));
        if dpus == 0 || !pays(high) {
            return None;
        }
        while low + 1 < high {
            let middle = low.midpoint(high);
            if pays(middle) { high = middle } else { low = middle }
        }
        Some(high * dpus)
    }

    /// Seconds of lookups on one core of the host.
    #[must_use]
    pub fn host_s(&self, lookups: usize) -> f64 {
        lookups as f64 * self.host_lookup_s
    }
}

/// Share of the old value in averages and in the heat of subtrees, for each batch.
const DECAY: f64 = 0.5;
/// Times that differ by less are taken as equal, so that nothing swings.
const HYSTERESIS: f64 = 0.05;
/// Most subtrees that move after one batch.
const MOVES_MAX: usize = 16;

/// Averages of the times of both sides, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    host_s: Option<f64>,
    pim_s: Option<f64>,
    batch: u64,
}

fn average(old: Option<f64>, new: f64) -> f64 {
    old.map_or(new, |old| DECAY * old + (1.0 - DECAY) * new)
}

/// Seconds that a batch took on both sides, and one lookup takes on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) host_s: f64,
    pub(crate) pim_s: f64,
    pub(crate) host_lookup_s: f64,
}

/// How often a batch looked into subtrees, and how much each DPU had to do.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) units: HashMap<Digest, u64>,
    pub(crate) dpus: Vec<u64>,
}

impl Balance {
    /// Notes the times of a batch that was on the DPUs, and moves hot subtrees to the host or cold
    /// ones back.
    pub(crate) fn after(&mut self, image: &mut Image, mut load: Load, times: Times) {
        self.batch += 1;
        self.host_s = Some(average(self.host_s, times.host_s));
        self.pim_s = Some(average(self.pim_s, times.pim_s));
        for (hash, lookups) in &load.units {
            if let Some(unit) = image.unit_mut(hash) {
                unit.heat = unit.heat * DECAY.powf((self.batch - unit.batch) as f64) + *lookups as f64;
                unit.batch = self.batch;
            }
        }
        // The subtrees of this batch that a DPU answered for, hottest last on each DPU.
        let mut hot: Vec<Vec<(u64, Digest)>> = vec![Vec::new(); load.dpus.len()];
        for (hash, lookups) in &load.units {
            let unit = image.unit(hash).filter(|unit| !unit.promoted);
            if let Some((dpu, _)) = unit.and_then(|unit| unit.at)
                && !image.is_bad(dpu)
            {
                hot[dpu].push((*lookups, *hash));
            }
        }
        hot.iter_mut().for_each(|units| units.sort_unstable());
        let (host_s, pim_s) = (self.host_s.unwrap_or_default(), self.pim_s.unwrap_or_default());
        if host_s < pim_s * (1.0 - HYSTERESIS) {
            // As many lookups as let the host end with the DPUs.
            let spare = (pim_s - host_s) / times.host_lookup_s;
            self.promote(image, &mut load, &mut hot, spare);
        } else {
            if host_s > pim_s * (1.0 + HYSTERESIS) {
                self.demote(image, &mut load);
            }
            self.swap(image, &mut load, &mut hot);
        }
    }

    /// The promoted subtrees with their heat and the DPUs that have them, hottest first.
    fn promoted(&self, image: &Image) -> Vec<(f64, Digest, usize)> {
        let of = |(hash, unit): (&Digest, &Unit)| {
            let heat = unit.heat * DECAY.powf((self.batch - unit.batch) as f64);
            unit.at.filter(|(dpu, _)| !image.is_bad(*dpu)).map(|(dpu, _)| (heat, *hash, dpu))
        };
        let mut promoted: Vec<_> = image.promoted().filter_map(of).collect();
        promoted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        promoted
    }

    /// The DPUs wait for the host by far: it gives back what makes no DPU the busiest one, or
    /// busier than an even share of all lookups.
    fn demote(&self, image: &mut Image, load: &mut Load) {
        let share = load.units.values().sum::<u64>() / load.dpus.len().max(1) as u64;
        let most = busiest(&load.dpus).map_or(0, |(_, most)| most).max(share);
        let mut moves = 0;
        for (heat, hash, home) in self.promoted(image) {
            let after = load.dpus[home] + heat.round() as u64;
            if moves == MOVES_MAX || after > most {
                continue;
            }
            image.unit_mut(&hash).expect("it is promoted").promoted = false;
            load.dpus[home] = after;
            moves += 1;
        }
    }

    /// The host waits for the DPUs: the busiest of them give their hottest subtrees away.
    fn promote(&self, image: &mut Image, load: &mut Load, hot: &mut [Vec<(u64, Digest)>], mut spare: f64) {
        let mean = load.dpus.iter().sum::<u64>() as f64 / load.dpus.len().max(1) as f64;
        for _ in 0..MOVES_MAX {
            let Some((dpu, most)) = busiest(&load.dpus) else { return };
            // With even loads there is nothing to gain.
            if most as f64 <= mean * (1.0 + HYSTERESIS) {
                return;
            }
            let Some((lookups, hash)) = hot[dpu].pop() else { return };
            spare -= lookups as f64;
            if spare < 0.0 {
                return;
            }
            image.unit_mut(&hash).expect("it was looked into").promoted = true;
            load.dpus[dpu] -= lookups.min(most);
        }
    }

    /// The DPUs wait for the host: one subtree comes, and as much as it weighs goes, if that makes
    /// the busiest DPU less busy.
    fn swap(&self, image: &mut Image, load: &mut Load, hot: &mut [Vec<(u64, Digest)>]) {
        let mut cold = self.promoted(image);
        for _ in 0..MOVES_MAX {
            let Some((dpu, before)) = busiest(&load.dpus) else { return };
            let hottest = hot[dpu].last().copied();
            let mut loads = load.dpus.clone();
            let lookups = hottest.map_or(0, |(lookups, _)| lookups);
            loads[dpu] -= lookups.min(before);
            let mut back = Vec::new();
            let mut weight = 0.0;
            while weight < (lookups as f64).max(1.0)
                && let Some((heat, hash, home)) = cold.pop()
            {
                weight += heat;
                loads[home] += heat.round() as u64;
                back.push(hash);
            }
            let after = busiest(&loads).map_or(0, |(_, most)| most);
            if back.is_empty() || after >= before {
                return;
            }
            if let Some((_, hash)) = hot[dpu].pop() {
                image.unit_mut(&hash).expect("it was looked into").promoted = true;
            }
            back.iter().for_each(|hash| image.unit_mut(hash).expect("it is promoted").promoted = false);
            load.dpus = loads;
        }
    }
}

/// The DPU with the most lookups, and their number. `None` if there is no DPU.
fn busiest(loads: &[u64]) -> Option<(usize, u64)> {
    loads.iter().copied().enumerate().max_by_key(|(dpu, load)| (*load, std::cmp::Reverse(*dpu)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_worth_it_from_the_break_even_on() {
        let calibration = Calibration::default();
        let lookups = calibration.break_even(128, 40, 512).expect("many DPUs pay at last");
        let most = lookups / 128;
        assert!(calibration.pim_s(most, 40, 512) < calibration.host_s(lookups));
        assert!(calibration.pim_s(most - 1, 40, 512) >= calibration.host_s((most - 1) * 128));
        assert_eq!(calibration.break_even(0, 40, 512), None);
        assert_eq!(calibration.break_even(1, 40, 512), None, "one DPU never catches up with a core");
        let slow_host = Calibration { host_lookup_s: 1.0, ..calibration };
        assert_eq!(slow_host.break_even(128, 40, 512), Some(128));
    }
}
