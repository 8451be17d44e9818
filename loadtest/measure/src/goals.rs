//! What the engine is to reach, and whether a run shows that it does. Most goals are ratios of figures of one run: they hold on
//! any machine.

use serde::{Deserialize, Serialize};

use crate::report::{Cells, number};

const OURS: &str = "coppice";
const ROCKSDB: &str = "rocksdb-synced";
/// The small half of what is measured at two sizes.
const OURS_SMALL: &str = "coppice-fifth";
/// Ten times the data of the comparison.
const OURS_LARGE: &str = "coppice-tenfold";

/// A goal and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// What it is about.
    pub name: String,
    /// What is to be reached.
    pub goal: String,
    /// What was.
    pub measured: String,
    /// Whether that is enough; none if this run did not measure it.
    pub met: Option<bool>,
}

/// A bound.
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
    goals.extend(judge.reads());
    goals
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

    fn no_crate(name: &str, goal: &str) -> Goal {
        let measured = "QMDB is no crate of the registry".to_owned();
        Goal { name: name.to_owned(), goal: goal.to_owned(), measured, met: None }
    }

    fn puts(&self) -> Vec<Goal> {
        vec![
            self.beside_rocksdb("put, batch 4,000", "put_4000", 2.0),
            self.beside_rocksdb("put, batch 4,000, the floor", "put_4000", 1.5),
            Self::no_crate("put, batch 4,000", "3 x QMDB"),
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
            Self::no_crate("get, random, warm, one thread", "2 x QMDB"),
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
        for (figure, name) in [("put", "put at ten times the data"), ("get", "get at ten times the data")] {
            let value = self.ratio(figure, OURS_LARGE, &format!("scaling_{figure}"), OURS);
            goals.push(Self::goal(name, "falls by less than 20 %".to_owned(), value, " x", Bound::AtLeast(0.8)));
        }
        goals
    }

    fn bounds(&self) -> Vec<Goal> {
        let disk = self.median(OURS, "plateau_disk");
        let written = self.median(OURS, "plateau_written");
        let disk_goal = "2.3 x live data and kept history".to_owned();
        let mut goals = vec![
            Self::goal("endless updates: disk", disk_goal, disk, " x", Bound::AtMost(2.3)),
            Self::goal("endless updates: written", "3 x user bytes".to_owned(), written, " x", Bound::AtMost(3.0)),
        ];
        for what in ["disk", "memory", "trees", "get", "proof"] {
            let rests = self.median(OURS, &format!("plateau_{what}_rests"));
            let met = rests.map(|rests| rests >= 1.0);
            let measured = met.map_or("", |met| if met { "rests" } else { "grows" });
            goals.push(Goal {
                name: format!("endless updates: {what} comes to rest"),
                goal: "the last quarter within 1.1 x of the second".to_owned(),
                measured: measured.to_owned(),
                met,
            });
        }
        goals
    }

    fn reads(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for value_bytes in [100, 1024] {
            for (share, words, most) in [(10, "1 %", 1.1), (5, "0.5 %", 1.6)] {
                let figure = format!("reads_{value_bytes}_at_{share}_per_mille");
                let name = format!("reads for a get, values of {value_bytes} B, memory {words} of the data");
                goals.push(Self::goal(&name, number(most), self.median(OURS, &figure), "", Bound::AtMost(most)));
            }
            let absent = self.median(OURS, &format!("reads_{value_bytes}_at_10_per_mille_absent"));
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
    fn a_slower_past_misses_the_goal_and_a_faster_one_does_not() {
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
    fn what_grows_is_named() {
        let goals = judge(&cells(&[(OURS, "plateau_disk_rests", 0.0), (OURS, "plateau_get_rests", 1.0)]));
        let disk = goals.iter().find(|goal| goal.name.contains("disk comes")).expect("there is one");
        assert_eq!((disk.measured.as_str(), disk.met), ("grows", Some(false)));
        assert_eq!(verdict(&goals, "endless updates: get comes to rest"), Some(true));
    }
}
