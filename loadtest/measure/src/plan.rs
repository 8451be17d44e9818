//! Which jobs a run consists of, in which order, and where their figures go.

use std::{collections::BTreeMap, fmt, path::Path, time::Duration};

use anyhow::{Result, ensure};
use coppice_types::Params;
use serde::{Deserialize, Serialize};

use crate::{
    coppice::{Coppice, Durability, Settings},
    jobs::{self, Outcome, PlateauScale, Sample, Scale},
    report::{Lines, Series, number},
    system::{Facts, System},
};

/// A store to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    Coppice,
    CoppiceFlush,
    RocksdbSynced,
    RocksdbUnsynced,
    Redb,
    Fjall,
    Nomt,
    Qmdb,
}

impl Store {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 8] = [
        Self::Coppice,
        Self::CoppiceFlush,
        Self::RocksdbSynced,
        Self::RocksdbUnsynced,
        Self::Redb,
        Self::Fjall,
        Self::Nomt,
        Self::Qmdb,
    ];

    /// Its name among the figures.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Coppice => "coppice",
            Self::CoppiceFlush => "coppice-flush",
            Self::RocksdbSynced => "rocksdb-synced",
            Self::RocksdbUnsynced => "rocksdb-unsynced",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Nomt => "nomt",
            Self::Qmdb => "qmdb",
        }
    }

    /// What is to be said of ours; none for others.
    #[must_use]
    pub fn own_facts(self) -> Option<Facts> {
        let (name, timed, durable) = match self {
            Self::Coppice => (
                "Coppice",
                "sort, raft log, stage with the shard digest, settle, merges that are due, flushes that are due",
                "the batch: a raft log is synced; the forest follows",
            ),
            Self::CoppiceFlush => (
                "Coppice, flushed",
                "sort, stage with the shard digest, settle, merges that are due, a flush",
                "the batch: the forest is flushed; there is no log",
            ),
            _ => return None,
        };
        Some(Facts {
            name: name.to_owned(),
            timed: timed.to_owned(),
            durable: durable.to_owned(),
            proven: "presence, absence and complete ranges, in every version; all versions are kept".to_owned(),
            memory: "node and hash caches, 32 MiB or a little more that wait for the flush, filters; values are in no cache \
                     of its own; page cache"
                .to_owned(),
        })
    }
}

/// What is done with a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// [`jobs::compare`].
    Compare(Scale),
    /// [`jobs::load`] in no order.
    Load(Scale),
    /// [`jobs::point`], with a capacity for ours.
    Point(Scale, Option<u32>),
    /// [`jobs::proofs`].
    Proofs(Scale),
    /// [`jobs::proofs_by_trees`]; ours alone.
    ProofsByTrees(Scale),
    /// [`jobs::history`]; ours alone.
    History(Scale),
    /// [`jobs::plateau`]; ours alone.
    Plateau(PlateauScale),
    /// [`jobs::reads_per_get`]; ours alone.
    Reads(Scale),
    /// [`jobs::growth`]; ours keeps one version.
    Growth(Scale),
    /// [`jobs::growth_ours`] with reads for each get by memory; ours alone.
    GrowthAndReads(Scale),
    /// [`jobs::beside_merges`]; ours alone.
    BesideMerges(Scale),
    /// [`jobs::beside_moves`]; ours alone.
    BesideMoves(Scale),
}

/// Records that the capacity of the active tree is meant for. Where less data stands for as much, it is less in proportion.
const FULL_RECORDS: u64 = 10_000_000;

impl Job {
    /// How large it is.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        match self {
            Self::Compare(scale)
            | Self::Load(scale)
            | Self::Point(scale, _)
            | Self::Proofs(scale)
            | Self::ProofsByTrees(scale)
            | Self::History(scale)
            | Self::Reads(scale)
            | Self::Growth(scale)
            | Self::GrowthAndReads(scale)
            | Self::BesideMerges(scale)
            | Self::BesideMoves(scale) => scale,
            Self::Plateau(plateau) => &plateau.scale,
        }
    }

    /// Does it with any open store.
    ///
    /// # Errors
    /// If the store fails, or the job is for ours alone.
    pub fn run(&self, system: &mut dyn System, dir: &Path) -> Result<Outcome> {
        match self {
            Self::Compare(scale) => jobs::compare(system, dir, scale),
            Self::Load(scale) => jobs::load(system, scale, false),
            Self::Point(scale, _) => jobs::point(system, dir, scale),
            Self::Proofs(scale) => jobs::proofs(system, scale),
            Self::Growth(scale) => jobs::growth(system, dir, scale),
            _ => anyhow::bail!("{self:?} is for Coppice alone"),
        }
    }

    /// Does it with ours, set up as the job wants it.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run_ours(&self, store: Store, dir: &Path) -> Result<Outcome> {
        ensure!(store.own_facts().is_some(), "{} is not ours", store.id());
        let mut settings = Settings::new(self.scale().cache_bytes);
        if store == Store::CoppiceFlush {
            settings.durability = Durability::Flush;
        }
        let capacity = settings.params.capacity;
        let of_capacity = |capacity: u32| Params { capacity, ..Params::default() };
        match self {
            Self::Point(_, Some(capacity)) => settings.params = of_capacity(*capacity),
            Self::Plateau(plateau) => {
                settings.params = of_capacity(plateau.capacity);
                settings.durability = Durability::Later;
                settings.retain = Some(plateau.retain);
                settings.flush_bytes = plateau.flush_bytes;
                settings.waiting_percent = plateau.waiting_percent;
            }
            Self::Reads(scale) => {
                let part = scale.records * u64::from(capacity) / FULL_RECORDS;
                settings.params = of_capacity(u32::try_from(part)?.clamp(64, capacity));
                settings.retain = Some(1);
            }
            Self::Growth(_) | Self::GrowthAndReads(_) => settings.retain = Some(1),
            Self::BesideMerges(scale) => {
                // So that several merges begin and end in a short time.
                settings.params = of_capacity(u32::try_from(scale.records / 10)?.clamp(64, capacity / 4));
                settings.durability = Durability::Later;
                settings.retain = Some(40);
            }
            Self::BesideMoves(scale) => {
                settings.durability = Durability::Later;
                settings.retain = Some(40);
                settings.hot_value_bytes = Some((scale.records * scale.value_bytes as u64 / 2).min(64 << 20));
            }
            _ => {}
        }
        let mut store = Coppice::create(dir, settings)?;
        match self {
            Self::ProofsByTrees(scale) => jobs::proofs_by_trees(store, scale),
            Self::History(scale) => jobs::history(store, scale),
            Self::Plateau(plateau) => jobs::plateau(store, dir, plateau),
            Self::Reads(scale) => jobs::reads_per_get(store, dir, scale),
            Self::Growth(scale) => jobs::growth_ours(store, dir, scale, false),
            Self::GrowthAndReads(scale) => jobs::growth_ours(store, dir, scale, true),
            Self::BesideMerges(scale) => jobs::beside_merges(store, scale),
            Self::BesideMoves(scale) => jobs::beside_moves(store, scale),
            _ => self.run(&mut store, dir),
        }
    }
}

/// Where a job's figures go.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// To the store's own figures, by the job's names.
    Figures,
    /// To the figures of another name, for what is measured at a second size.
    Under(&'static str),
    /// To figures with a prefix.
    Prefixed(&'static str),
    /// To a point of a curve, at this place on its axis.
    Curve(&'static str, f64),
}

/// A job in a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// With what.
    pub store: Store,
    /// What.
    pub job: Job,
    /// Where to.
    pub target: Target,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, scale) = (format!("{:?}", self.job), self.job.scale());
        let kind = job.split('(').next().unwrap_or_default();
        write!(f, "{kind}, {} records of {} B", number(scale.records as f64), scale.value_bytes)?;
        match self.target {
            Target::Curve(curve, x) => write!(f, ", {curve} of {x}"),
            _ => Ok(()),
        }
    }
}

impl Step {
    /// How long it takes, about, on two cores of today.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let scale = self.job.scale();
        let million = scale.records as f64 / 1e6;
        let rate = match self.store {
            Store::Coppice if scale.value_bytes >= 256 && scale.records >= FULL_RECORDS / 2 => 65e3,
            Store::Redb | Store::Nomt => 80e3,
            Store::Coppice | Store::Qmdb => 120e3,
            Store::CoppiceFlush | Store::RocksdbSynced | Store::RocksdbUnsynced | Store::Fjall => 180e3,
        };
        let (phases, beside) = match &self.job {
            Job::Compare(scale) => (5.5, 2.0 * scale.put_seconds + 2.0 + 8.0 * million),
            Job::Point(..) => (3.0, 0.5),
            Job::Growth(_) => (5.0, 2.0),
            Job::GrowthAndReads(_) => (5.0, 30.0),
            Job::History(_) => (4.2, 7.0),
            Job::BesideMerges(_) | Job::BesideMoves(_) => (1.0, 1.0),
            Job::Load(_) | Job::Proofs(_) | Job::ProofsByTrees(_) => (0.0, 2.0),
            Job::Reads(_) => (0.0, 5.0),
            Job::Plateau(plateau) => {
                let updates = (plateau.rounds * scale.records) as f64 / 100e3;
                (0.0, updates.min(scale.seconds))
            }
        };
        Duration::from_secs_f64(0.5 + scale.records as f64 / rate + phases * scale.seconds + beside)
    }

    /// After so long it is given up.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_secs(60) + 3 * self.expected()
    }
}

/// Everything of a run, in order. Repetitions of the comparison are interleaved: each round takes the systems once.
#[must_use]
pub fn plan(quick: bool) -> Vec<Step> {
    let scale = base_scale(quick);
    let step = |store, job, target| Step { store, job, target };
    let mut steps = Vec::new();
    for round in 0..3 {
        let scale = Scale { seed: round + 1, ..scale.clone() };
        // Repeated is what goals are about.
        let again = |store: &Store| match store {
            Store::Coppice | Store::RocksdbSynced => true,
            Store::Qmdb => round == 0 || !quick,
            _ => round == 0,
        };
        for store in Store::ALL.into_iter().filter(again) {
            steps.push(step(store, Job::Compare(scale.clone()), Target::Figures));
        }
        for store in [Store::Coppice, Store::RocksdbSynced].into_iter().filter(|_| !quick || round == 0) {
            steps.push(step(store, Job::Load(scale.clone()), Target::Figures));
        }
    }
    steps.push(step(Store::Coppice, Job::History(scale.clone()), Target::Figures));
    steps.push(step(Store::Coppice, Job::History(fifth(&scale)), Target::Under("coppice-fifth")));
    steps.push(step(Store::Coppice, Job::ProofsByTrees(scale.clone()), Target::Figures));
    for store in [Store::Nomt, Store::Qmdb] {
        steps.push(step(store, Job::Proofs(fifth(&scale)), Target::Figures));
    }
    // While they are long enough for many merges, and moves.
    let beside = Scale { records: 160_000, seconds: if quick { 8.0 } else { 32.0 }, ..scale.clone() };
    steps.push(step(Store::Coppice, Job::BesideMerges(beside.clone()), Target::Figures));
    steps.push(step(Store::Coppice, Job::BesideMoves(beside), Target::Figures));
    // What goals are about comes first, should there not be time for all.
    steps.extend(sizes(&scale, quick));
    for plateau in plateaus(quick) {
        steps.push(step(Store::Coppice, Job::Plateau(plateau), Target::Figures));
    }
    steps.extend(sweeps(&scale, quick));
    steps
}

fn base_scale(quick: bool) -> Scale {
    let (records, cache_bytes, seconds, put_seconds) =
        if quick { (160_000, 64 << 20, 1.0, 1.0) } else { (1_000_000, 256 << 20, 3.0, 12.0) };
    Scale { records, value_bytes: 1024, batch: 4000, skew: 0.0, cache_bytes, seconds, put_seconds, seed: 1 }
}

fn fifth(scale: &Scale) -> Scale {
    Scale { records: scale.records / 5, ..scale.clone() }
}

/// Two settings of the engine: one that writes little, one that takes little disk. And a larger amount of data.
fn plateaus(quick: bool) -> [PlateauScale; 3] {
    let of = |name: &str, records: u64, value_bytes, rounds, seconds| {
        let batch = (records / 200).min(4000) as usize;
        let scale =
            Scale { records, value_bytes, batch, skew: 0.0, cache_bytes: 64 << 20, seconds, put_seconds: 0.0, seed: 1 };
        let (name, capacity) = (name.to_owned(), 48 << 10);
        PlateauScale {
            name,
            scale,
            rounds,
            retain: 40,
            looks: 40,
            capacity,
            flush_bytes: 96 << 20,
            waiting_percent: 12,
        }
    };
    let large = |plateau| PlateauScale { capacity: 64 << 10, flush_bytes: 64 << 20, waiting_percent: 15, ..plateau };
    let small = |plateau| PlateauScale { capacity: 20 << 10, flush_bytes: 40 << 20, waiting_percent: 20, ..plateau };
    if quick {
        return [
            of("plateau", 100_000, 256, 6, 15.0),
            small(of("plateau_small", 100_000, 256, 6, 15.0)),
            large(of("plateau_large", 160_000, 1024, 3, 15.0)),
        ];
    }
    [
        of("plateau", 200_000, 256, 200, 270.0),
        small(of("plateau_small", 200_000, 256, 20, 60.0)),
        large(of("plateau_large", 1_000_000, 1024, 5, 75.0)),
    ]
}

/// One quantity at a time is changed.
fn sweeps(scale: &Scale, quick: bool) -> Vec<Step> {
    let scale = if quick { scale.clone() } else { Scale { seconds: 1.5, ..fifth(scale) } };
    let mut steps = Vec::new();
    let mut point = |store, scale: Scale, capacity: Option<u32>, curve, x: f64| {
        steps.push(Step { store, job: Job::Point(scale, capacity), target: Target::Curve(curve, x) });
    };
    let capacities: &[u32] = if quick { &[8, 16, 80] } else { &[4, 8, 16, 32, 64, 80, 128] };
    for capacity in capacities {
        point(Store::Coppice, scale.clone(), Some(capacity << 10), "capacity", f64::from(*capacity));
    }
    if quick {
        return steps;
    }
    for store in [Store::Coppice, Store::RocksdbSynced] {
        for batch in [500, 1000, 2000, 4000] {
            point(store, Scale { batch, ..scale.clone() }, None, "batch", batch as f64);
        }
        for value_bytes in [256, 512, 1024, 2048] {
            point(store, Scale { value_bytes, ..scale.clone() }, None, "value", value_bytes as f64);
        }
        for skew in [0.0, 0.5, 0.9, 0.99] {
            point(store, Scale { skew, ..scale.clone() }, None, "skew", skew);
        }
    }
    steps
}

/// The same at two sizes, and what reads cost at the larger one; a quick run has smaller ones.
fn sizes(scale: &Scale, quick: bool) -> Vec<Step> {
    let step = |store, job, target| Step { store, job, target };
    let mut steps = Vec::new();
    let small = if quick { Scale { records: scale.records / 2, ..scale.clone() } } else { scale.clone() };
    for store in [Store::Coppice, Store::RocksdbSynced] {
        steps.push(step(store, Job::Growth(small.clone()), Target::Prefixed("scaling_")));
    }
    let large = |scale: &Scale| Scale { records: 10 * scale.records, ..scale.clone() };
    if quick {
        steps.push(step(Store::Coppice, Job::Growth(large(&small)), Target::Under("coppice-tenfold")));
        for value_bytes in [100, 1024] {
            let scale = Scale { value_bytes, ..scale.clone() };
            steps.push(step(Store::Coppice, Job::Reads(scale), Target::Figures));
        }
        return steps;
    }
    let short = Scale { value_bytes: 100, ..small.clone() };
    steps.push(step(Store::Coppice, Job::Growth(short.clone()), Target::Prefixed("scaling_100_")));
    steps.push(step(Store::Coppice, Job::GrowthAndReads(large(&small)), Target::Under("coppice-tenfold")));
    steps.push(step(Store::Coppice, Job::GrowthAndReads(large(&short)), Target::Under("coppice-tenfold-100")));
    steps
}

/// What a curve shows: its title and its axis.
fn curve_words(curve: &str) -> (&'static str, &'static str) {
    match curve {
        "capacity" => ("By the capacity of the active tree", "Ki records"),
        "batch" => ("By the size of batches", "records of a batch"),
        "value" => ("By the size of values", "bytes of a value"),
        "skew" => ("By the skew of keys", "Zipf's exponent"),
        _ => ("", ""),
    }
}

/// What is changed, and what is measured.
pub(crate) type Curve = (&'static str, &'static str);

/// All figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// By the name of their system.
    pub samples: Vec<(String, Sample)>,
    /// Points by curve and figure, then by line.
    pub(crate) curves: BTreeMap<Curve, Lines>,
    /// By their ids.
    pub(crate) series: BTreeMap<String, Series>,
}

impl Collected {
    /// Takes what a step found.
    pub fn add(&mut self, step: &Step, name: &str, outcome: Outcome) {
        for series in outcome.series {
            self.add_series(name, series);
        }
        match step.target {
            Target::Figures => self.samples.push((step.store.id().to_owned(), outcome.sample)),
            Target::Under(other) => self.samples.push((other.to_owned(), outcome.sample)),
            Target::Prefixed(prefix) => {
                let sample = outcome.sample.into_iter().map(|(figure, value)| (format!("{prefix}{figure}"), value));
                self.samples.push((step.store.id().to_owned(), sample.collect()));
            }
            Target::Curve(curve, x) => {
                let figures = [("put", "records put a second"), ("get", "gets a second")];
                for (figure, axis) in figures {
                    let Some(y) = outcome.sample.get(figure) else { continue };
                    let lines = self.curves.entry((curve, axis)).or_default();
                    lines.entry(name.to_owned()).or_default().push((x, *y));
                }
            }
        }
    }

    /// One curve may be put together from several steps; a line without a name is the system's.
    fn add_series(&mut self, name: &str, mut series: Series) {
        let lines = std::mem::take(&mut series.lines);
        let known = self.series.entry(series.id.clone()).or_insert(series);
        for (line, points) in lines {
            let line = if line.is_empty() { name.to_owned() } else { line };
            let all = known.lines.entry(line).or_default();
            all.retain(|(x, _)| points.iter().all(|(other, _)| x.total_cmp(other).is_ne()));
            all.extend(points);
            all.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
    }

    /// All curves.
    #[must_use]
    pub fn series(&self) -> Vec<Series> {
        let curve = |((curve, axis), lines): (&Curve, &Lines)| {
            let (title, x) = curve_words(curve);
            let what = if axis.starts_with("gets") { "get" } else { "put" };
            Series::new(&format!("{what}-by-{curve}"), &format!("{title}: {axis}"), x, axis, lines.clone())
        };
        self.series.values().cloned().chain(self.curves.iter().map(curve)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_takes_all_systems_before_the_next() {
        let compared = |quick| -> Vec<(u64, Store)> {
            let seeds = plan(quick).into_iter().filter_map(|step| match step.job {
                Job::Compare(scale) => Some((scale.seed, step.store)),
                _ => None,
            });
            seeds.collect()
        };
        let full = compared(false);
        assert_eq!(full.len(), Store::ALL.len() + 2 * 3);
        assert!(full.is_sorted_by(|a, b| a.0 <= b.0));
        let quick = compared(true);
        assert_eq!(quick.iter().filter(|(_, store)| *store == Store::Coppice).count(), 3);
        assert_eq!(quick.iter().filter(|(_, store)| *store == Store::Nomt).count(), 1);
    }

    #[test]
    fn all_systems_have_the_same_cache_bytes_and_records_in_a_comparison() {
        for quick in [true, false] {
            let steps = plan(quick);
            let mut scales =
                steps.iter().filter(|step| matches!(step.job, Job::Compare(_))).map(|step| step.job.scale());
            let first = scales.next().expect("there are some");
            assert!(scales.all(|scale| (scale.records, scale.cache_bytes) == (first.records, first.cache_bytes)));
        }
    }

    #[test]
    fn a_run_has_an_end_in_sight() {
        for (quick, minutes) in [(true, 5), (false, 36)] {
            let all: Duration = plan(quick).iter().map(Step::expected).sum();
            assert!(all <= Duration::from_secs(60 * minutes), "{all:?} of {minutes} min");
        }
    }

    #[test]
    fn curves_of_several_steps_are_one_with_a_line_for_each_system() {
        let mut collected = Collected::default();
        let series = |points: &[(f64, f64)]| Series::new("disk", "", "", "", [(String::new(), points.to_vec())].into());
        collected.add_series("ours", series(&[(1.0, 10.0), (2.0, 20.0)]));
        collected.add_series("ours", series(&[(2.0, 21.0), (3.0, 30.0)]));
        collected.add_series("other", series(&[(1.0, 7.0)]));
        let [series] = collected.series().try_into().expect("there is one");
        assert_eq!(series.lines["ours"], [(1.0, 10.0), (2.0, 21.0), (3.0, 30.0)]);
        assert_eq!(series.lines["other"], [(1.0, 7.0)]);
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        for step in plan(false) {
            let text = serde_json::to_string(&step.job).expect("writes");
            assert_eq!(serde_json::from_str::<Job>(&text).expect("reads"), step.job);
        }
    }

    #[test]
    fn points_of_a_sweep_become_one_curve_for_each_figure() {
        let mut collected = Collected::default();
        let scale = base_scale(true);
        for (x, put) in [(8.0, 100.0), (16.0, 200.0)] {
            let target = Target::Curve("capacity", x);
            let step = Step { store: Store::Coppice, job: Job::Point(scale.clone(), Some(8)), target };
            let sample = [("put".to_owned(), put), ("get".to_owned(), 7.0)].into();
            collected.add(&step, "Coppice", Outcome { sample, series: Vec::new() });
        }
        let series = collected.series();
        assert_eq!(
            series.iter().map(|series| series.id.as_str()).collect::<Vec<_>>(),
            ["get-by-capacity", "put-by-capacity"]
        );
        assert_eq!(series[1].lines["Coppice"], [(8.0, 100.0), (16.0, 200.0)]);
    }

    #[test]
    fn ours_does_every_job_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let scale = Scale { records: 2000, value_bytes: 20, batch: 100, seconds: 0.01, ..base_scale(true) };
        let [plateau, ..] = plateaus(true);
        let plateau_scale = Scale { seconds: 10.0, ..scale.clone() };
        let plateau = PlateauScale { scale: plateau_scale, rounds: 1, retain: 3, looks: 4, ..plateau };
        let jobs = [
            Job::Point(scale.clone(), Some(64)),
            Job::Plateau(plateau),
            Job::Reads(scale.clone()),
            Job::Growth(scale.clone()),
            Job::GrowthAndReads(scale),
        ];
        for (at, job) in jobs.iter().enumerate() {
            let dir = dir.path().join(at.to_string());
            assert!(!job.run_ours(Store::Coppice, &dir).expect("runs").sample.is_empty());
        }
        assert!(jobs[0].run_ours(Store::Redb, dir.path()).is_err());
    }
}
