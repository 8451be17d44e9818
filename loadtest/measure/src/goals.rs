//! Goals of the engine, and whether a run shows that they are met. Most goals are ratios of figures
//! of one run, so they hold on any machine.

use serde::{Deserialize, Serialize};

use crate::figures::{Cells, number};

const OURS: &str = "coppice";
const ROCKSDB: &str = "rocksdb-synced";
const QMDB: &str = "qmdb";
const FIREWOOD: &str = "firewood";
/// A fifth of the data, for measurements at two sizes.
const OURS_SMALL: &str = "coppice-fifth";
/// Ten times the data of the comparison.
const OURS_LARGE: &str = "coppice-tenfold";
/// Ten times the number of records, with values of 100 B.
const OURS_LARGE_SHORT: &str = "coppice-tenfold-100";

/// A goal, and whether it was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// The measured quantity.
    pub name: String,
    /// The value to reach.
    pub goal: String,
    /// The value that was reached; empty if this run did not measure it.
    pub measured: String,
    /// Whether the goal is met; `None` if this run did not measure it.
    pub met: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// Judges all goals, in the order of the engine's list of them.
#[must_use]
pub fn judge(cells: &Cells) -> Vec<Goal> {
    let judge = Judge { cells };
    let mut goals = judge.puts();
    goals.extend(judge.gets());
    goals.extend(judge.ranges());
    goals.extend(judge.proofs());
    goals.extend(judge.drops());
    goals.extend(judge.sizes());
    goals.extend(judge.bounds());
    goals.extend(judge.beside());
    goals.extend(judge.reads());
    goals
}

/// A run of endless updates, in words.
fn plateau_words(run: &str) -> &'static str {
    match run {
        "plateau" => "set to write little",
        "plateau_small" => "set to take little disk",
        _ => "more and longer records",
    }
}

struct Judge<'c> {
    cells: &'c Cells,
}

impl Judge<'_> {
    fn median(&self, system: &str, figure: &str) -> Option<f64> {
        Some(self.cells.get(system)?.get(figure)?.median)
    }

    fn ratio(&self, figure: &str, system: &str, over: &str, other: &str) -> Option<f64> {
        Some(self.median(system, figure)? / self.median(other, over)?)
    }

    fn goal(name: &str, goal: String, value: Option<f64>, unit: &str, bound: Bound) -> Goal {
        let measured = value.map_or_else(String::new, |value| format!("{}{unit}", number(value)));
        Goal { name: name.to_owned(), goal, measured, met: value.map(|value| bound.holds(value)) }
    }

    fn beside_rocksdb(&self, name: &str, figure: &str, least: f64) -> Goal {
        let value = self.ratio(figure, OURS, figure, ROCKSDB);
        Self::goal(name, format!("{least} x RocksDB, synced per batch"), value, " x", Bound::AtLeast(least))
    }

    fn beside_qmdb(&self, name: &str, figure: &str, least: f64) -> Goal {
        let value = self.ratio(figure, OURS, figure, QMDB);
        Self::goal(name, format!("{least} x QMDB, as Commonware has it"), value, " x", Bound::AtLeast(least))
    }

    fn beside_firewood(&self, name: &str, figure: &str, least: f64) -> Goal {
        let value = self.ratio(figure, OURS, figure, FIREWOOD);
        Self::goal(name, format!("{least} x Firewood, synced per batch"), value, " x", Bound::AtLeast(least))
    }

    fn puts(&self) -> Vec<Goal> {
        vec![
            self.beside_rocksdb("put, batch 4,000", "put_4000", 2.0),
            self.beside_rocksdb("put, batch 4,000, the floor", "put_4000", 1.5),
            self.beside_qmdb("put, batch 4,000", "put_4000", 3.0),
            self.beside_firewood("put, batch 4,000", "put_4000", 3.0),
            self.beside_firewood("put, batch 500", "put_500", 3.0),
            self.beside_rocksdb("put, batch 500", "put_500", 1.2),
            self.load("load in key order", "load_sorted"),
            self.load("load in no order", "load_unsorted"),
        ]
    }

    fn load(&self, name: &str, figure: &str) -> Goal {
        let user = 32.0 + 1024.0;
        let value = self.median(OURS, figure).map(|rate| rate * user / 1e6);
        Self::goal(name, "300 MB/s of user data".to_owned(), value, " MB/s", Bound::AtLeast(300.0))
    }

    fn gets(&self) -> Vec<Goal> {
        let threads = self.ratio("get_2", OURS, "get_1", OURS);
        let mut goals = vec![
            self.beside_rocksdb("get, random, warm, one thread", "get_1", 2.0),
            self.beside_qmdb("get, random, warm, one thread", "get_1", 2.0),
            Self::goal("get on two threads", "1.6 x one thread".to_owned(), threads, " x", Bound::AtLeast(1.6)),
        ];
        for age in [10, 40, 1000] {
            let value = self.ratio("get_back_0", OURS, &format!("get_back_{age}"), OURS);
            let name = format!("get, {age} versions back");
            goals.push(Self::goal(&name, "1.1 x the time at head".to_owned(), value, " x", Bound::AtMost(1.1)));
        }
        goals
    }

    fn ranges(&self) -> Vec<Goal> {
        let kinds = [("loaded", "on data loaded in key order", 1.0), ("updated", "after random updates", 0.4)];
        let mut goals = Vec::new();
        for (when, words, least) in kinds {
            for length in [100, 1000] {
                let (name, figure) = (format!("range of {length}, {words}"), format!("range_{length}_{when}"));
                let value = self.ratio(&figure, OURS, &figure, ROCKSDB);
                let goal = format!("{least} x RocksDB's iterator");
                goals.push(Self::goal(&name, goal, value, " x", Bound::AtLeast(least)));
            }
        }
        goals
    }

    fn proofs(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for younger in 0..4_u32 {
            let trees = younger + 1;
            let figure = |what: &str| self.median(OURS, &format!("proof_{trees}_trees_{what}"));
            let k = f64::from(younger);
            let name = |what: &str| format!("proof in the oldest of {trees} trees: {what}");
            let bounds = [
                ("bytes", "size", 800.0 + 750.0 * k, " B"),
                ("make_us", "made in", 20.0 + 15.0 * k, " us"),
                ("verify_us", "verified in", 5.0 + 4.0 * k, " us"),
            ];
            for (id, what, most, unit) in bounds {
                let goal = format!("{}{unit}", number(most));
                goals.push(Self::goal(&name(what), goal, figure(id), unit, Bound::AtMost(most)));
            }
        }
        goals
    }

    fn drops(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for what in ["prune_1", "prune_40", "rollback_5", "rollback_50", "rollback_1000"] {
            let figure = format!("{what}_us_per_version");
            let name = what.replacen('_', " of ", 1);
            let goal = "1 ms a version".to_owned();
            goals.push(Self::goal(&name, goal, self.median(OURS, &figure), " us a version", Bound::AtMost(1000.0)));
        }
        let pages = self.median(OURS, "drop_pages_read");
        goals.push(Self::goal("prunes and rollbacks read", "no page".to_owned(), pages, " pages", Bound::AtMost(0.0)));
        let figure = "rollback_1000_us_per_version";
        let value = self.ratio(figure, OURS, figure, OURS_SMALL);
        let goal = "the same time (1.5 x at most) with a fifth of the data".to_owned();
        goals.push(Self::goal("rollback of 1000, by the volume of data", goal, value, " x", Bound::AtMost(1.5)));
        goals
    }

    fn sizes(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (large, prefix, words) in
            [(OURS_LARGE, "scaling_", ""), (OURS_LARGE_SHORT, "scaling_100_", ", values of 100 B")]
        {
            for what in ["put", "get"] {
                let value = self.ratio(what, large, &format!("{prefix}{what}"), OURS);
                let name = format!("{what} at ten times the data{words}");
                goals.push(Self::goal(&name, "falls by less than 20 %".to_owned(), value, " x", Bound::AtLeast(0.8)));
            }
            let difference =
                |figure: &str| Some(self.median(large, figure)? - self.median(OURS, &format!("{prefix}{figure}"))?);
            let memory = difference("memory_beside_caches_mib").zip(difference("records"));
            let each = memory.map(|(mib, records)| mib * f64::from(1 << 20) / records);
            let name = format!("memory outside caches for each further record{words}");
            goals.push(Self::goal(&name, "16 B".to_owned(), each, " B", Bound::AtMost(16.0)));
        }
        let cache = self.median(OURS_LARGE, "cache_of_budget");
        let goal = "1.05 x its budget".to_owned();
        goals.push(Self::goal("cache memory, as it is counted", goal, cache, " x", Bound::AtMost(1.05)));
        goals
    }

    fn bounds(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (run, disk, written) in [("plateau", 2.3, 3.0), ("plateau_small", 1.6, 4.0), ("plateau_large", 2.3, 3.0)] {
            let name = |what: &str| format!("endless updates, {}: {what}", plateau_words(run));
            let value = |what: &str| self.median(OURS, &format!("{run}_{what}"));
            let goal = format!("{disk} x live data and kept history");
            goals.push(Self::goal(&name("disk"), goal, value("disk"), " x", Bound::AtMost(disk)));
            let goal = format!("{written} x user bytes");
            goals.push(Self::goal(&name("written"), goal, value("written"), " x", Bound::AtMost(written)));
            for what in ["disk", "memory", "trees", "get", "proof"] {
                let met = value(&format!("{what}_rests")).map(|rests| rests >= 1.0);
                goals.push(Goal {
                    name: name(&format!("{what} comes to rest")),
                    goal: "the last quarter within 1.1 x of the second".to_owned(),
                    measured: met.map_or("", |met| if met { "rests" } else { "grows" }).to_owned(),
                    met,
                });
            }
        }
        goals
    }

    /// The 99th percentile of commits, and of gets, while something else goes on.
    fn beside(&self) -> Vec<Goal> {
        let kinds = [
            ("merging_commit", "p99 of a commit while merging", 1.5),
            ("merging_get", "p99 of a get while merging", 1.5),
            ("moving_get", "p99 of a get of what stays, while old values move to a second directory", 1.1),
        ];
        let goal = |(figure, name, most): (&str, &str, f64)| {
            let value = self.median(OURS, &format!("{figure}_p99_ratio"));
            Self::goal(name, format!("{most} x without"), value, " x", Bound::AtMost(most))
        };
        kinds.into_iter().map(goal).collect()
    }

    fn reads(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        // A larger amount of data says more; a quick run has only the smaller one.
        let of = |value_bytes: u32, figure: &str| {
            let large = if value_bytes == 100 { OURS_LARGE_SHORT } else { OURS_LARGE };
            self.median(large, figure).or_else(|| self.median(OURS, figure))
        };
        for value_bytes in [100, 1024] {
            for (share, words, most) in [(10, "1 %", 1.1), (5, "0.5 %", 1.6)] {
                let figure = format!("reads_{value_bytes}_at_{share}_per_mille");
                let name = format!("reads for a get, values of {value_bytes} B, memory {words} of the data");
                goals.push(Self::goal(&name, number(most), of(value_bytes, &figure), "", Bound::AtMost(most)));
            }
            let absent = of(value_bytes, &format!("reads_{value_bytes}_at_10_per_mille_absent"));
            let name = format!("reads for a get of an absent key, values of {value_bytes} B, memory 1 % of the data");
            goals.push(Self::goal(&name, "0.02".to_owned(), absent, "", Bound::AtMost(0.02)));
        }
        goals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Summary;

    fn cells(figures: &[(&str, &str, f64)]) -> Cells {
        let mut cells = Cells::new();
        for (system, figure, value) in figures {
            let summary = Summary::of(&[*value]).expect("one value");
            cells.entry((*system).to_owned()).or_default().insert((*figure).to_owned(), summary);
        }
        cells
    }

    fn verdict(goals: &[Goal], name: &str) -> Option<bool> {
        goals.iter().find(|goal| goal.name == name).unwrap_or_else(|| panic!("no goal {name}")).met
    }

    #[test]
    fn without_figures_no_goal_is_met_or_missed() {
        let goals = judge(&Cells::new());
        assert!(goals.iter().all(|goal| goal.met.is_none()));
        assert!(goals.iter().all(|goal| !goal.goal.is_empty()));
    }

    #[test]
    fn ratios_are_those_of_the_same_run() {
        let judged = |ours: f64| {
            judge(&cells(&[(OURS, "put_4000", ours), (ROCKSDB, "put_4000", 100.0), (OURS, "put_500", 119.0)]))
        };
        assert_eq!(verdict(&judged(200.0), "put, batch 4,000"), Some(true));
        assert_eq!(verdict(&judged(199.0), "put, batch 4,000"), Some(false));
        assert_eq!(verdict(&judged(199.0), "put, batch 4,000, the floor"), Some(true));
        assert_eq!(verdict(&judged(200.0), "put, batch 500"), None);
    }

    #[test]
    fn puts_are_compared_with_firewoods_of_the_same_batch() {
        let judged = |ours: f64| {
            let goals = judge(&cells(&[(OURS, "put_4000", ours), (FIREWOOD, "put_4000", 100.0)]));
            let of = |goal: &&Goal| goal.goal.contains("Firewood") && goal.name == "put, batch 4,000";
            goals.iter().find(of).expect("there is one").met
        };
        assert_eq!((judged(300.0), judged(299.0)), (Some(true), Some(false)));
    }

    #[test]
    fn slower_gets_of_old_versions_miss_the_goal_and_faster_ones_do_not() {
        let judged = |past: f64| judge(&cells(&[(OURS, "get_back_0", 100.0), (OURS, "get_back_40", past)]));
        assert_eq!(verdict(&judged(80.0), "get, 40 versions back"), Some(false));
        assert_eq!(verdict(&judged(95.0), "get, 40 versions back"), Some(true));
        assert_eq!(verdict(&judged(130.0), "get, 40 versions back"), Some(true));
    }

    #[test]
    fn a_proof_may_grow_with_each_younger_tree() {
        let judged =
            |bytes: f64| judge(&cells(&[(OURS, "proof_1_trees_bytes", bytes), (OURS, "proof_3_trees_bytes", bytes)]));
        assert_eq!(verdict(&judged(2300.0), "proof in the oldest of 1 trees: size"), Some(false));
        assert_eq!(verdict(&judged(2300.0), "proof in the oldest of 3 trees: size"), Some(true));
        assert_eq!(verdict(&judged(2301.0), "proof in the oldest of 3 trees: size"), Some(false));
    }

    #[test]
    fn memory_is_judged_by_what_further_records_add() {
        let judged = |mib: f64| {
            judge(&cells(&[
                (OURS, "scaling_records", f64::from(1 << 20)),
                (OURS, "scaling_memory_beside_caches_mib", 100.0),
                (OURS_LARGE, "records", f64::from(11 << 20)),
                (OURS_LARGE, "memory_beside_caches_mib", mib),
            ]))
        };
        let name = "memory outside caches for each further record";
        assert_eq!(verdict(&judged(260.0), name), Some(true));
        assert_eq!(verdict(&judged(261.0), name), Some(false));
        assert_eq!(verdict(&judged(261.0), "memory outside caches for each further record, values of 100 B"), None);
    }

    #[test]
    fn each_run_of_endless_updates_has_a_bound_of_its_own() {
        let goals = judge(&cells(&[(OURS, "plateau_disk", 2.0), (OURS, "plateau_small_disk", 2.0)]));
        assert_eq!(verdict(&goals, "endless updates, set to write little: disk"), Some(true));
        assert_eq!(verdict(&goals, "endless updates, set to take little disk: disk"), Some(false));
        assert_eq!(verdict(&goals, "endless updates, more and longer records: disk"), None);
    }

    #[test]
    fn merging_may_slow_commits_by_half_and_moving_hardly_slows_hot_gets() {
        let goals = judge(&cells(&[(OURS, "merging_commit_p99_ratio", 1.4), (OURS, "moving_get_p99_ratio", 1.4)]));
        assert_eq!(verdict(&goals, "p99 of a commit while merging"), Some(true));
        let moving = "p99 of a get of what stays, while old values move to a second directory";
        assert_eq!(verdict(&goals, moving), Some(false));
    }

    #[test]
    fn reads_are_judged_at_the_largest_size_of_a_run() {
        let figure = "reads_1024_at_10_per_mille";
        let name = "reads for a get, values of 1024 B, memory 1 % of the data";
        assert_eq!(verdict(&judge(&cells(&[(OURS, figure, 1.0)])), name), Some(true));
        assert_eq!(verdict(&judge(&cells(&[(OURS, figure, 1.0), (OURS_LARGE, figure, 2.0)])), name), Some(false));
    }

    #[test]
    fn what_grows_is_named() {
        let goals = judge(&cells(&[(OURS, "plateau_disk_rests", 0.0), (OURS, "plateau_get_rests", 1.0)]));
        let disk = goals.iter().find(|goal| goal.name.contains("little: disk comes")).expect("there is one");
        assert_eq!((disk.measured.as_str(), disk.met), ("grows", Some(false)));
        assert_eq!(verdict(&goals, "endless updates, set to write little: get comes to rest"), Some(true));
    }
}
