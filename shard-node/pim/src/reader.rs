//! Serves proofs of single keys of some versions of one shard.
//!
//! A version is inserted from a view of the engine, and served from the next [`Reader::publish`]
//! on. Both, prunes and rollbacks happen between batches, so a batch sees one state of all DPUs.
//!
//! What can fail, and what then happens: a DPU that faults, or whose answer fails a check, is taken
//! out of service, and the host answers instead. An error of the library takes out every DPU of the
//! batch. So no answer of theirs is passed on, and every query gets its proof.

use std::{collections::HashMap, sync::Arc};

use coppice_engine::{ShardState, View};
use coppice_env::{Clock, Rng};
use coppice_types::{Digest, Version};

use crate::{
    Calibration, Dpus, Error, ImageOptions, Result,
    balance::{Balance, Load, Times},
    image::{End, Image, Loading, ServedTree, part_hash, proof},
    layout::{KEY_BYTES_MAX, PageName, RESULT_BYTES_MAX, Reply, decode_result, put_query, query_bytes},
    node::{Answer, answers_key},
};

/// A write of touching pages ends behind this many bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// How a reader uses its DPUs.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is served.
    pub image: ImageOptions,
    /// Bytes of each DPU's MRAM that may be used: queries, results and pages.
    pub mram_bytes: u32,
    /// Most lookups of a DPU in one batch; the host does the others.
    pub dpu_lookups_max: usize,
    /// Bytes of a result. A longer answer is the host's.
    pub result_bytes: usize,
    /// The cost model.
    pub calibration: Calibration,
    /// Measures times on hardware. Without it, and with emulated DPUs, times are modelled.
    pub clock: Option<Arc<dyn Clock>>,
    /// Whether a batch that the DPUs would answer later than the host is the host's.
    pub small_batches_on_host: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            image: ImageOptions::default(),
            mram_bytes: 63 << 20,
            dpu_lookups_max: 512,
            result_bytes: 1024,
            calibration: Calibration::default(),
            clock: None,
            small_batches_on_host: true,
        }
    }
}

/// Asks for the proof of one key in one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    /// The exact state.
    pub state: ShardState,
    /// The key.
    pub key: Vec<u8>,
}

/// What a reader has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches.
    pub batches: u64,
    /// Queries of these.
    pub queries: u64,
    /// Different lookups in subtrees; equal ones of a batch count once.
    pub lookups: u64,
    /// Lookups that DPUs answered.
    pub pim_lookups: u64,
    /// Lookups whose answers were longer than a result.
    pub overflows: u64,
    /// DPUs that were taken out of service.
    pub dpus_out: u64,
    /// Lookups of the busiest DPU in the last batch.
    pub most_lookups: u64,
    /// Bytes that were written to refresh the pages of DPUs.
    pub refreshed_bytes: u64,
}

/// What one lookup costs emulated DPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LookupCost {
    /// Cycles on the busiest DPU.
    pub cycles: f64,
    /// Transfers between MRAM and WRAM.
    pub transfers: f64,
    /// Bytes of these.
    pub bytes: f64,
    /// Modelled instructions.
    pub instructions: f64,
}

/// Versions of one shard, served from the memories of DPUs and of the host.
#[derive(Debug)]
pub struct Reader {
    dpus: Option<Dpus>,
    image: Image,
    balance: Balance,
    options: Options,
    rng: Box<dyn Rng>,
    counts: Counts,
    /// Cycles of the slowest DPU in the last batch.
    last_cycles: u64,
}

/// One lookup of a key in a subtree.
struct Lookup<'q> {
    unit: Digest,
    key: &'q [u8],
    answer: Option<Answer>,
}

/// The lookups of a batch that each DPU shall do, with the pages to begin at.
type Bins = Vec<Vec<(usize, PageName)>>;

impl Reader {
    /// A reader without versions. Without DPUs, the host answers all.
    ///
    /// # Errors
    /// `Setting` for options that do not fit each other.
    pub fn new(dpus: Option<Dpus>, mut options: Options, rng: Box<dyn Rng>) -> Result<Self> {
        let fits = options.result_bytes.is_multiple_of(8) && (16..=RESULT_BYTES_MAX).contains(&options.result_bytes);
        if !fits || options.dpu_lookups_max == 0 || options.dpu_lookups_max > 1 << 16 {
            return Err(Error::Setting("result bytes or lookups of a DPU"));
        }
        let pages_at = options.dpu_lookups_max * (query_bytes(KEY_BYTES_MAX) + options.result_bytes);
        let memory = (pages_at as u32, options.mram_bytes / 8 * 8);
        if memory.0 > memory.1 || options.mram_bytes > 64 << 20 {
            return Err(Error::Setting("the memory of a DPU"));
        }
        let memories = vec![memory; dpus.as_ref().map_or(0, Dpus::count)];
        let largest_rank = dpus.iter().flat_map(Dpus::ranks).map(|rank| rank.len()).max();
        options.calibration.rank_dpus = largest_rank.unwrap_or(1) as f64;
        let image = Image::new(options.image.clone(), &memories)?;
        Ok(Self { dpus, image, balance: Balance::default(), options, rng, counts: Counts::default(), last_cycles: 0 })
    }

    /// Adds a version. It is served once it is published.
    ///
    /// # Errors
    /// `Engine` or `Mismatch` if a node can't be read, `TooLarge`. The versions are then as before.
    pub fn insert(&mut self, view: &View<'_>) -> Result<()> {
        let Some(mut loading) = self.begin(view) else { return Ok(()) };
        while !self.read_part(&mut loading, view, usize::MAX)? {}
        assert!(self.finish(loading), "nothing was dropped meanwhile");
        Ok(())
    }

    /// Begins to add a version in parts, so that none takes long. `None` if it is here already.
    #[must_use]
    pub fn begin(&self, view: &View<'_>) -> Option<Loading> {
        self.image.begin(view)
    }

    /// Reads up to `nodes` nodes of a version from a view of it. Returns whether all are read.
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert), and `Mismatch` for a view of another version.
    pub fn read_part(&self, loading: &mut Loading, view: &View<'_>, nodes: usize) -> Result<bool> {
        self.image.gather(loading, view, nodes)
    }

    /// Adds a version whose nodes are all read. It is served once it is published. Returns `false`,
    /// and adds nothing, if a version was dropped since its last part was read. Then begin again.
    ///
    /// # Panics
    /// If nodes are left to be read.
    pub fn finish(&mut self, loading: Loading) -> bool {
        self.image.finish(loading)
    }

    /// Drops the versions whose states are not wanted any more.
    pub fn keep(&mut self, wanted: impl Fn(&ShardState) -> bool) {
        self.image.keep(wanted);
    }

    /// The states that are served, oldest first.
    pub fn states(&self) -> impl Iterator<Item = ShardState> {
        self.image.states()
    }

    /// Number of nodes that the host holds.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.image.nodes()
    }

    /// Number of DPUs, and of those that are in service.
    #[must_use]
    pub fn dpus(&self) -> (usize, usize) {
        let all = self.dpus.as_ref().map_or(0, Dpus::count);
        (all, (0..all).filter(|dpu| !self.image.is_bad(*dpu)).count())
    }

    /// The fewest lookups of a batch that DPUs answer, by the cost model. `None` if the host
    /// answers all.
    #[must_use]
    pub fn break_even(&self) -> Option<usize> {
        let (_, sound) = self.dpus();
        match (sound, self.options.small_batches_on_host) {
            (0, _) => None,
            (_, false) => Some(1),
            _ => self.options.calibration.break_even(sound, query_bytes(KEY_BYTES_MAX / 4), self.options.result_bytes),
        }
    }

    /// The DPUs, for tests that break them.
    pub fn dpus_mut(&mut self) -> Option<&mut Dpus> {
        self.dpus.as_mut()
    }

    /// Drops the versions below a boundary.
    pub fn prune(&mut self, boundary: Version) {
        self.image.prune(boundary);
    }

    /// Drops the versions above the one that stands.
    pub fn roll_back(&mut self, to: Version) {
        self.image.roll_back(to);
    }

    /// Writes the pages of new versions to the DPUs, and serves them from now on. A DPU that can't
    /// be written is taken out of service.
    pub fn publish(&mut self) {
        let writes = self.image.publish();
        let Some(dpus) = &mut self.dpus else { return };
        // Pages that touch are written at once.
        let mut runs: Vec<(usize, u32, Vec<u8>)> = Vec::new();
        for ((dpu, at), bytes) in writes {
            match runs.last_mut() {
                Some((other, start, run))
                    if *other == dpu && *start as usize + run.len() == at as usize && run.len() < RUN_BYTES_MAX =>
                {
                    run.extend(bytes);
                }
                _ => runs.push((dpu, at, bytes)),
            }
        }
        for (dpu, at, bytes) in runs {
            if self.image.is_bad(dpu) {
                continue;
            }
            match dpus.write(dpu, at, &bytes) {
                Ok(()) => self.counts.refreshed_bytes += bytes.len() as u64,
                Err(error) => take_out(&mut self.image, &mut self.counts, dpu, &error),
            }
        }
    }

    /// What one lookup of the last batch cost emulated DPUs, if that was the reader's only batch.
    ///
    /// # Panics
    /// If the DPUs are not emulated.
    #[must_use]
    pub fn lookup_cost(&self) -> LookupCost {
        let dpus = self.dpus.as_ref().expect("an emulated reader has DPUs");
        let mut all = [0_u64; 3];
        for dpu in 0..dpus.count() {
            dpus.counts(dpu).iter().zip(&mut all).for_each(|(count, all)| *all += count);
        }
        let lookups = self.counts.pim_lookups.max(1) as f64;
        let [transfers, bytes, instructions] = all.map(|count| count as f64 / lookups);
        let cycles = self.last_cycles as f64 / self.counts.most_lookups.max(1) as f64;
        LookupCost { cycles, transfers, bytes, instructions }
    }

    /// What the reader has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The proofs of the queries, in their order: the bytes of the engine's own proofs of one key.
    /// A query of a state that is not served gets `NotServed`.
    pub fn answer(&mut self, queries: &[Query]) -> Vec<Result<Vec<u8>>> {
        self.counts.batches += 1;
        self.counts.queries += queries.len() as u64;
        let mut lookups = Vec::new();
        let mut numbers = HashMap::new();
        let mut asked = HashMap::new();
        for query in queries {
            if asked.contains_key(query) {
                continue;
            }
            let trees = self.image.trees(&query.state);
            for tree in trees.unwrap_or_default() {
                let Some(End::Unit(unit)) = self.image.way(tree, &query.key).map(|way| way.end) else { continue };
                numbers.entry((unit, query.key.as_slice())).or_insert_with(|| {
                    lookups.push(Lookup { unit, key: &query.key, answer: None });
                    lookups.len() - 1
                });
            }
            asked.insert(query, None);
        }
        self.counts.lookups += lookups.len() as u64;
        let mut load = Load { units: HashMap::new(), dpus: vec![0; self.dpus.as_ref().map_or(0, Dpus::count)] };
        for lookup in &lookups {
            *load.units.entry(lookup.unit).or_default() += 1;
        }
        let pim_s = self.ask_dpus(&mut lookups, &mut load);
        let host_s = self.ask_host(&mut lookups);
        let answers = queries.iter().map(|query| {
            let answer = asked.get_mut(query).expect("each query was asked");
            let answer = answer.get_or_insert_with(|| self.proof(query, &lookups, &numbers));
            answer.clone().ok_or(Error::NotServed { oldest: self.image.oldest() })
        });
        let answers: Vec<_> = answers.collect();
        if let Some(pim_s) = pim_s {
            let times = Times { host_s, pim_s, host_lookup_s: self.options.calibration.host_lookup_s };
            self.balance.after(&mut self.image, load, times);
        }
        answers
    }

    fn proof(
        &self,
        query: &Query,
        lookups: &[Lookup<'_>],
        numbers: &HashMap<(Digest, &[u8]), usize>,
    ) -> Option<Vec<u8>> {
        let trees: &[ServedTree] = self.image.trees(&query.state)?;
        Some(proof(trees, |number| {
            let way = self.image.way(&trees[number], &query.key)?;
            let end = match way.end {
                End::Leaf(leaf) => leaf.answer_leaf(&query.key),
                End::Unit(unit) => {
                    let number = numbers[&(unit, query.key.as_slice())];
                    lookups[number].answer.clone().expect("the host answered what no DPU did")
                }
            };
            Some(way.finish(end))
        }))
    }

    /// Answers what no DPU answered. Returns the seconds that it took.
    fn ask_host(&mut self, lookups: &mut [Lookup<'_>]) -> f64 {
        let clock = self.options.clock.as_ref().filter(|_| !self.dpus.as_ref().is_some_and(Dpus::are_emulated));
        let start = clock.map(|clock| clock.now());
        let mut answered = 0;
        for lookup in lookups.iter_mut().filter(|lookup| lookup.answer.is_none()) {
            lookup.answer = Some(self.image.answer_unit(lookup.unit, lookup.key));
            answered += 1;
        }
        match (clock, start) {
            (Some(clock), Some(start)) => (clock.now() - start).as_secs_f64(),
            _ => self.options.calibration.host_s(answered),
        }
    }

    /// Has DPUs answer what they shall. Returns the seconds that it took, and `None` if none had a
    /// part in it.
    fn ask_dpus(&mut self, lookups: &mut [Lookup<'_>], load: &mut Load) -> Option<f64> {
        let bins = self.bins(load.dpus.len(), lookups);
        let dpus = self.dpus.as_mut()?;
        let most = bins.iter().map(Vec::len).max().unwrap_or(0);
        let all: usize = bins.iter().map(Vec::len).sum();
        let keys = bins.iter().flatten().map(|(number, _)| lookups[*number].key.len());
        let query_bytes = query_bytes(keys.max().unwrap_or(0));
        let (options, calibration) = (&self.options, &self.options.calibration);
        let expected_s = calibration.pim_s(most, query_bytes, options.result_bytes);
        if all == 0 || options.small_batches_on_host && calibration.host_s(all) <= expected_s {
            return None;
        }
        bins.iter().zip(&mut load.dpus).for_each(|(bin, load)| *load = bin.len() as u64);
        self.counts.most_lookups = most as u64;
        let clock = options.clock.as_ref().filter(|_| !dpus.are_emulated());
        let start = clock.map(|clock| clock.now());
        let results = match run(dpus, &bins, lookups, query_bytes, options) {
            Ok(results) => results,
            Err(error) => {
                let busy = (0..bins.len()).filter(|dpu| !bins[*dpu].is_empty());
                busy.for_each(|dpu| take_out(&mut self.image, &mut self.counts, dpu, &error));
                return None;
            }
        };
        self.last_cycles = dpus.cycles().ok().and_then(|cycles| cycles.into_iter().max()).unwrap_or(0);
        let pim_s = match clock.zip(start) {
            Some((clock, start)) => (clock.now() - start).as_secs_f64(),
            None => {
                let transfers_s = calibration.transfer_s(most, query_bytes, options.result_bytes);
                transfers_s + self.last_cycles as f64 / calibration.clock_hz
            }
        };
        self.judge_all(&bins, results, lookups);
        self.check_samples(&bins, lookups);
        self.counts.pim_lookups += lookups.iter().filter(|lookup| lookup.answer.is_some()).count() as u64;
        Some(pim_s)
    }

    /// The lookups that each DPU shall do.
    fn bins(&self, dpus: usize, lookups: &[Lookup<'_>]) -> Bins {
        let mut bins: Bins = vec![Vec::new(); dpus];
        for (number, lookup) in lookups.iter().enumerate() {
            let unit = self.image.unit(&lookup.unit).filter(|unit| !unit.promoted);
            if let Some((dpu, name)) = unit.and_then(|unit| unit.at)
                && !self.image.is_bad(dpu)
                && lookup.key.len() <= KEY_BYTES_MAX
                && bins[dpu].len() < self.options.dpu_lookups_max
            {
                bins[dpu].push((number, name));
            }
        }
        bins
    }

    /// Takes the answers of DPUs that are sound in all of theirs, and takes the others out.
    fn judge_all(&mut self, bins: &Bins, results: Vec<Result<Vec<u8>>>, lookups: &mut [Lookup<'_>]) {
        for (dpu, result) in results.into_iter().enumerate().filter(|(dpu, _)| !bins[*dpu].is_empty()) {
            let judged = result.and_then(|bytes| judge(&bins[dpu], &bytes, lookups, self.options.result_bytes));
            match judged {
                Ok(overflows) => self.counts.overflows += overflows,
                Err(error) => self.drop_answers(dpu, &bins[dpu], lookups, &error),
            }
        }
    }

    fn drop_answers(&mut self, dpu: usize, bin: &[(usize, PageName)], lookups: &mut [Lookup<'_>], error: &Error) {
        bin.iter().for_each(|(number, _)| lookups[*number].answer = None);
        take_out(&mut self.image, &mut self.counts, dpu, error);
    }

    /// Hashes one answer of each rank, as a client would.
    fn check_samples(&mut self, bins: &Bins, lookups: &mut [Lookup<'_>]) {
        let ranks: Vec<_> = self.dpus.iter().flat_map(Dpus::ranks).collect();
        for rank in ranks {
            let answered: Vec<(usize, usize)> = rank
                .flat_map(|dpu| bins[dpu].iter().map(move |(number, _)| (dpu, *number)))
                .filter(|(_, number)| lookups[*number].answer.is_some())
                .collect();
            if answered.is_empty() {
                continue;
            }
            let (dpu, number) = answered[self.rng.below(answered.len() as u64) as usize];
            let lookup = &lookups[number];
            let part = lookup.answer.as_ref().map(|answer| &answer.part);
            let hash = part.and_then(|part| part_hash(part, self.options.image.cut_level));
            if hash != Some(lookup.unit) {
                self.drop_answers(dpu, &bins[dpu], lookups, &Error::Mismatch("the hash of a sampled answer"));
            }
        }
    }
}

fn take_out(image: &mut Image, counts: &mut Counts, dpu: usize, error: &Error) {
    if !image.is_bad(dpu) {
        tracing::warn!(dpu, %error, "a DPU is taken out of service: the host answers for it");
        image.take_out(dpu);
        counts.dpus_out += 1;
    }
}

/// Sends the queries, launches, and fetches the results of the DPUs that have some.
fn run(
    dpus: &mut Dpus,
    bins: &Bins,
    lookups: &[Lookup<'_>],
    query_bytes: usize,
    options: &Options,
) -> Result<Vec<Result<Vec<u8>>>> {
    let most = bins.iter().map(Vec::len).max().unwrap_or(0);
    let queries = |bin: &Vec<(usize, PageName)>| {
        let mut out = Vec::with_capacity(most * query_bytes);
        bin.iter().for_each(|(number, name)| put_query(&mut out, *name, lookups[*number].key, query_bytes));
        out.resize(most * query_bytes, 0);
        (!bin.is_empty()).then_some(out)
    };
    let results_at = (options.dpu_lookups_max * crate::layout::query_bytes(KEY_BYTES_MAX)) as u32;
    let args = |bin: &Vec<_>| [0, query_bytes as u32, results_at, options.result_bytes as u32, bin.len() as u32, 0];
    dpus.push(0, &mut bins.iter().map(queries).collect::<Vec<_>>())?;
    dpus.set_args(&bins.iter().map(args).collect::<Vec<_>>())?;
    let failed = dpus.launch()?;
    let chosen: Vec<bool> = bins.iter().zip(&failed).map(|(bin, failed)| !bin.is_empty() && !failed).collect();
    let results = dpus.pull(results_at, most * options.result_bytes, &chosen)?;
    Ok(results.into_iter().map(|result| result.ok_or(Error::Mismatch("the run of a DPU"))).collect())
}

/// Takes the answers of one DPU if all of them are sound. Returns how many were too long.
fn judge(bin: &[(usize, PageName)], bytes: &[u8], lookups: &mut [Lookup<'_>], result_bytes: usize) -> Result<u64> {
    let mut overflows = 0;
    for ((number, name), result) in bin.iter().zip(bytes.chunks(result_bytes)) {
        let lookup = &mut lookups[*number];
        match decode_result(result, *name)? {
            Reply::Answer(answer) if answers_key(&answer, lookup.key) => lookup.answer = Some(answer),
            Reply::Answer(_) => return Err(Error::Mismatch("the key of an answer")),
            Reply::Overflow => overflows += 1,
        }
    }
    Ok(overflows)
}

/// Access of tests to the parts.
#[cfg(test)]
impl Reader {
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    pub(crate) fn take_dpus(&mut self) -> Dpus {
        self.dpus.take().expect("the reader has DPUs")
    }

    pub(crate) fn give_dpus(&mut self, dpus: Dpus) {
        self.dpus = Some(dpus);
    }
}
