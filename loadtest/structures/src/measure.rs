//! Puts the same questions to each subject, checks the answers, and measures the processor time of
//! all threads of this process. Other users of the machine disturb it less than wall-clock time.

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::{
    structures,
    subject::{Footprint, Hashed, Subject, Tpbf, Write},
    workload::Workload,
};

/// The number of keys that are proven.
const PROOFS: usize = 1000;

/// Minimum, median and maximum of the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Summarises figures.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Self {
        assert!(!figures.is_empty(), "something was measured");
        figures.sort_by(f64::total_cmp);
        Self { min: figures[0], median: figures[figures.len() / 2], max: figures[figures.len() - 1] }
    }
}

/// Times of one repetition, in microseconds of processor time.
#[derive(Clone, Copy, Debug)]
struct Times {
    load: f64,
    update: f64,
    lookup: f64,
    lookup_old: f64,
    diff_near: f64,
    diff_far: f64,
    merge: f64,
    prove: f64,
    verify: f64,
}

/// Figures that do not vary between repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    pub newest_nodes: u64,
    pub newest_bytes: u64,
    /// Nodes of the last loaded version and all later ones, each counted once.
    pub all_nodes: u64,
    /// Bytes of these versions; shared bytes count once.
    pub all_bytes: u64,
    /// 1 - bytes of the union / sum of the versions' bytes.
    pub deduplication: f64,
    /// 1 - nodes of the union / sum of the versions' nodes.
    pub node_sharing: f64,
    /// Mean bytes of a proof of a present key.
    pub proof_present_bytes: f64,
    /// Mean bytes of a proof of an absent key.
    pub proof_absent_bytes: f64,
    /// Keys in conflict in the merge.
    pub conflicts: usize,
    /// Keys that differ between the last loaded and the newest version.
    pub changed: usize,
}

/// A row of the tables; times are in microseconds of processor time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub structure: String,
    /// For a record of the load.
    pub load_us: Spread,
    /// For a put or delete of the later versions, including the computation of the root.
    pub update_us: Spread,
    /// For a lookup in the newest version, with the value.
    pub lookup_us: Spread,
    /// For a lookup in the last loaded version.
    pub lookup_old_us: Spread,
    /// For each key that differs between neighbouring versions.
    pub diff_near_us: Spread,
    /// For each key that differs between the last loaded and the newest version.
    pub diff_far_us: Spread,
    /// For each key of the two batches that are merged, including the new root.
    pub merge_us: Spread,
    /// For the proof of a key.
    pub prove_us: Spread,
    /// For the verification of a proof.
    pub verify_us: Spread,
    pub sizes: Sizes,
}

/// The rows of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub workload: String,
    /// A description of the workload.
    pub about: String,
    /// One row for each structure.
    pub rows: Vec<Row>,
}

type Maker = Box<dyn Fn() -> Result<Box<dyn Subject>>>;

fn subjects() -> Vec<Maker> {
    let mut makers: Vec<Maker> = vec![Box::new(|| Ok(Box::new(Tpbf::new()?)))];
    for at in 0..structures().len() {
        makers.push(Box::new(move || Ok(Box::new(Hashed::new(structures().swap_remove(at))))));
    }
    makers
}

/// Measures all subjects in turns.
///
/// # Errors
/// If a subject fails, or gives a wrong answer.
pub fn table(workload: &Workload, repetitions: usize) -> Result<Table> {
    let makers = subjects();
    let mut runs: Vec<Vec<(&'static str, Times, Sizes)>> = makers.iter().map(|_| Vec::new()).collect();
    for repetition in 0..repetitions {
        for (maker, runs) in makers.iter().zip(&mut runs) {
            let mut subject = maker()?;
            eprintln!("{}, {} of {repetitions}: {}", workload.name, repetition + 1, subject.name());
            let (times, sizes) = run(&mut *subject, workload).with_context(|| subject.name())?;
            runs.push((subject.name(), times, sizes));
        }
    }
    let rows = runs.into_iter().map(row).collect::<Result<_>>()?;
    Ok(Table { workload: workload.name.clone(), about: workload.about.clone(), rows })
}

fn row(runs: Vec<(&'static str, Times, Sizes)>) -> Result<Row> {
    let (name, _, sizes) = *runs.first().context("a repetition")?;
    ensure!(runs.iter().all(|run| run.2 == sizes), "{name}: sizes differ between repetitions");
    let spread = |of: fn(&Times) -> f64| Spread::of(runs.iter().map(|run| of(&run.1)).collect());
    Ok(Row {
        structure: name.to_owned(),
        load_us: spread(|times| times.load),
        update_us: spread(|times| times.update),
        lookup_us: spread(|times| times.lookup),
        lookup_old_us: spread(|times| times.lookup_old),
        diff_near_us: spread(|times| times.diff_near),
        diff_far_us: spread(|times| times.diff_far),
        merge_us: spread(|times| times.merge),
        prove_us: spread(|times| times.prove),
        verify_us: spread(|times| times.verify),
        sizes,
    })
}

struct Watch {
    start: f64,
}

/// Processor time of this process, in microseconds.
fn processor_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

impl Watch {
    fn start() -> Self {
        Self { start: processor_us() }
    }

    /// Microseconds for each of `count` operations.
    fn each(&self, count: usize) -> f64 {
        (processor_us() - self.start) / count.max(1) as f64
    }
}

fn writes(versions: &[Vec<Write>]) -> usize {
    versions.iter().map(Vec::len).sum()
}

fn run(subject: &mut dyn Subject, workload: &Workload) -> Result<(Times, Sizes)> {
    let watch = Watch::start();
    workload.load.iter().try_for_each(|version| subject.commit(version))?;
    let load = watch.each(writes(&workload.load));
    let loaded = subject.newest();

    let mut numbers = vec![loaded];
    let watch = Watch::start();
    for version in &workload.updates {
        subject.commit(version)?;
        numbers.push(subject.newest());
    }
    let update = watch.each(writes(&workload.updates));
    let newest = subject.newest();

    let (lookup, lookup_old) = lookups(subject, workload, loaded, newest)?;

    let watch = Watch::start();
    let mut near = 0;
    for pair in numbers.windows(2) {
        near += subject.diff(pair[0], pair[1])?;
    }
    let diff_near = watch.each(near);
    let watch = Watch::start();
    let changed = subject.diff(loaded, newest)?;
    let diff_far = watch.each(changed);

    let (prove, verify, proof_present_bytes) = proofs(subject, newest, &workload.reads, true)?;
    let (_, _, proof_absent_bytes) = proofs(subject, newest, &workload.absent, false)?;

    let all = subject.footprint(&numbers)?;
    let one = subject.footprint(&[newest])?;

    let (left, right) = (subject.branch(&workload.branches[0])?, subject.branch(&workload.branches[1])?);
    let watch = Watch::start();
    let merged = subject.merge(newest, left, right)?;
    let merge = watch.each(writes(&workload.branches));
    ensure!(merged.conflicts == workload.conflicts, "{} conflicts, not {}", merged.conflicts, workload.conflicts);
    let taken = workload.branches[1].len() - workload.conflicts;
    ensure!(merged.taken == taken, "{} keys taken, not {taken}", merged.taken);

    let times = Times { load, update, lookup, lookup_old, diff_near, diff_far, merge, prove, verify };
    let sizes = Sizes {
        newest_nodes: one.nodes,
        newest_bytes: one.bytes,
        all_nodes: all.nodes,
        all_bytes: all.bytes,
        deduplication: all.deduplication(),
        node_sharing: all.node_sharing(),
        proof_present_bytes,
        proof_absent_bytes,
        conflicts: merged.conflicts,
        changed,
    };
    Ok((times, sizes))
}

/// Microseconds for a lookup at the newest version, and at the loaded one.
fn lookups(subject: &mut dyn Subject, workload: &Workload, loaded: usize, newest: usize) -> Result<(f64, f64)> {
    let watch = Watch::start();
    let mut found = 0;
    for key in &workload.reads {
        found += subject.get(newest, key)?.map_or(0, |value| value.len());
    }
    let lookup = watch.each(workload.reads.len());
    let expected: usize = workload.reads.iter().filter_map(|key| workload.state.get(key)).map(Vec::len).sum();
    ensure!(found == expected, "lookups gave {found} bytes, not {expected}");
    for key in workload.reads.iter().take(PROOFS).chain(&workload.absent) {
        ensure!(subject.get(newest, key)?.as_ref() == workload.state.get(key), "a lookup is wrong");
    }
    let watch = Watch::start();
    for key in &workload.reads {
        subject.get(loaded, key)?;
    }
    Ok((lookup, watch.each(workload.reads.len())))
}

/// Microseconds to make a proof, microseconds to verify one, mean bytes.
fn proofs(subject: &dyn Subject, version: usize, keys: &[Vec<u8>], present: bool) -> Result<(f64, f64, f64)> {
    let keys = &keys[..keys.len().min(PROOFS)];
    let watch = Watch::start();
    let proofs = keys.iter().map(|key| subject.prove(version, key)).collect::<Result<Vec<_>>>()?;
    let prove = watch.each(keys.len());
    let watch = Watch::start();
    for (key, proof) in keys.iter().zip(&proofs) {
        ensure!(subject.verify(version, key, proof)? == present, "a proof shows something else");
    }
    let verify = watch.each(keys.len());
    let bytes: usize = proofs.iter().map(Vec::len).sum();
    Ok((prove, verify, bytes as f64 / keys.len().max(1) as f64))
}

/// The sharing between parties that keep histories of their own in one store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sharing {
    pub structure: String,
    /// The share of records that all parties have, in percent.
    pub overlap_percent: u64,
    /// Like [`Sizes`], over the parties' newest versions.
    pub deduplication: f64,
    /// Like [`Sizes`].
    pub node_sharing: f64,
}

/// Lets parties load into one store, and counts what their newest versions share.
///
/// # Errors
/// If a structure fails.
pub fn sharing(parties: &[Vec<Vec<Write>>], overlap_percent: u64) -> Result<Vec<Sharing>> {
    let measure = |structure| {
        let mut subject = Hashed::new(structure);
        let mut newest = Vec::new();
        for party in parties {
            subject.start_over();
            party.iter().try_for_each(|version| subject.commit(version))?;
            newest.push(subject.newest());
        }
        let footprint: Footprint = subject.footprint(&newest)?;
        Ok(Sharing {
            structure: subject.name().to_owned(),
            overlap_percent,
            deduplication: footprint.deduplication(),
            node_sharing: footprint.node_sharing(),
        })
    };
    structures().into_iter().map(measure).collect()
}
