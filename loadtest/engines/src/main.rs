//! `coppice-engines`: compares the engine with other stores, for `make bench`.
//!
//! `run` works through a plan: each job in a process of its own (`job`), on a fresh directory below
//! `--dir`. It then writes `bench-report.json`, `bench-report.md` and plots to `--out`. The jobs,
//! and the conclusions from their figures, are in `coppice-measure`.

mod peers;
mod plots;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    figures::number,
    jobs::Outcome,
    machine,
    memory::Kept,
    plan::{Collected, Job, Step, Store, plan},
    regression,
    report::{CURVES_DIR, Conditions, Report, markdown},
    system::{Facts, System},
};
use tikv_jemallocator::Jemalloc;

/// The allocator of a shard node. RocksDB is not a Rust program and uses the C library's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Memory that the largest job of a run uses, including the page cache.
const MEMORY_BYTES: usize = 20 << 30;
const MEMORY_BYTES_QUICK: usize = 4 << 30;

const JSON: &str = "bench-report.json";

/// Compare the engine with other stores
#[derive(Debug, Parser)]
#[command(name = "coppice-engines", version, about)]
enum Arguments {
    /// Measure everything, and report.
    Run(Run),
    /// Do one job of a plan, and print its outcome as JSON.
    Job {
        /// The id of the store.
        store: String,
        /// The job, as JSON.
        job: String,
        /// An empty directory.
        #[arg(long)]
        dir: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// A directory on the disk that is measured; files made in it are removed again.
    #[arg(long)]
    dir: PathBuf,
    /// The directory for the report.
    #[arg(long)]
    out: PathBuf,
    /// Use less data and shorter phases.
    #[arg(long)]
    quick: bool,
    /// The time limit. Jobs that would probably not end in time are left out; a job that is running
    /// then is given up.
    #[arg(long)]
    minutes: Option<u32>,
    /// Only stores whose id contains this.
    #[arg(long)]
    only: Option<String>,
    /// A program that runs each measured process, for example `taskset -c 1`.
    #[arg(long)]
    under: Option<String>,
    /// An earlier `bench-report.json`: the run fails if our engine became worse.
    #[arg(long)]
    against: Option<PathBuf>,
    /// The tolerated deterioration against the earlier report, as a share of the earlier figure.
    #[arg(long, default_value_t = 0.25)]
    tolerance: f64,
    /// The commit that was built, for the report.
    #[arg(long, default_value = "unknown")]
    revision: String,
}

fn main() -> ExitCode {
    let done = match Arguments::parse() {
        Arguments::Run(options) => run(&options),
        Arguments::Job { store, job, dir } => job_alone(&store, &job, &dir).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("coppice-engines: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn facts(store: Store) -> Facts {
    match store {
        Store::Coppice | Store::CoppiceFlush => store.own_facts().expect("it is ours"),
        Store::RocksdbSynced => peers::rocksdb::facts(true),
        Store::RocksdbUnsynced => peers::rocksdb::facts(false),
        Store::Redb => peers::redb::facts(),
        Store::Fjall => peers::fjall::facts(),
        Store::Nomt => peers::nomt::facts(),
        Store::Qmdb => peers::qmdb::facts(),
        #[cfg(feature = "firewood")]
        Store::Firewood => peers::firewood::facts(),
        #[cfg(not(feature = "firewood"))]
        Store::Firewood => unreachable!("it is left out of the plan"),
    }
}

/// Whether this program has a store: Firewood's licence lets it be built only on demand.
fn is_built(store: Store) -> bool {
    cfg!(feature = "firewood") || store != Store::Firewood
}

fn job_alone(store: &str, job: &str, dir: &Path) -> Result<()> {
    let store =
        Store::ALL.into_iter().find(|known| known.id() == store).with_context(|| format!("no store {store}"))?;
    let job: Job = serde_json::from_str(job).context("no job")?;
    fs::create_dir_all(dir)?;
    let outcome = if store.own_facts().is_some() { job.run_ours(store, dir)? } else { job_of_peer(store, &job, dir)? };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn job_of_peer(store: Store, job: &Job, dir: &Path) -> Result<Outcome> {
    let scale = job.scale();
    let mut system: Box<dyn System> = match store {
        Store::RocksdbSynced => Box::new(peers::rocksdb::create(dir, scale.cache_bytes, true)?),
        Store::RocksdbUnsynced => Box::new(peers::rocksdb::create(dir, scale.cache_bytes, false)?),
        Store::Redb => Box::new(peers::redb::create(dir, scale.cache_bytes)?),
        Store::Fjall => Box::new(peers::fjall::create(dir, scale.cache_bytes)?),
        Store::Nomt => Box::new(peers::nomt::create(dir, scale.cache_bytes, scale.records)?),
        Store::Qmdb => Box::new(peers::qmdb::create(dir, scale.cache_bytes)?),
        #[cfg(feature = "firewood")]
        Store::Firewood => Box::new(peers::firewood::create(dir, scale.cache_bytes)?),
        #[cfg(not(feature = "firewood"))]
        Store::Firewood => bail!("this program was built without Firewood"),
        Store::Coppice | Store::CoppiceFlush => bail!("{} is not a peer", store.id()),
    };
    job.run(&mut *system, dir)
}

/// Runs everything, and writes the report after each job, so that a stopped run leaves a report.
/// Returns false if a job failed or was left out, or if our engine became worse than in the earlier
/// report.
fn run(options: &Run) -> Result<bool> {
    // The earlier report is read first, so that an unreadable one is noticed now and not after an
    // hour.
    let former = options.against.as_deref().map(read_report).transpose()?;
    let named = |store: Store| options.only.as_ref().is_none_or(|only| store.id().contains(only));
    let wanted = |step: &Step| is_built(step.store) && named(step.store);
    let steps: Vec<Step> = plan(options.quick).into_iter().filter(wanted).collect();
    ensure!(!steps.is_empty(), "no store has such an id");
    fs::create_dir_all(&options.dir)?;
    fs::create_dir_all(&options.out)?;
    let limit = Duration::from_secs_f64(if options.quick { 0.5 } else { 3.0 });
    let mut report = Report { conditions: conditions(options, &steps), ..Report::default() };
    let memory = if options.quick { MEMORY_BYTES_QUICK } else { MEMORY_BYTES };
    eprintln!("writes to {} GiB of free memory first", memory >> 30);
    let kept = Kept::new(memory)?;
    report.conditions.kept_memory_gib = kept.bytes() as f64 / f64::from(1 << 30);
    report.conditions.first_touch_4k_us.push(kept.first_touch_4k_us);
    report.systems = steps.iter().map(|step| (step.store.id().to_owned(), facts(step.store))).collect();
    report.ceilings.push(machine::ceiling(&options.dir, limit)?);
    let (mut collected, clock) = (Collected::default(), SystemClock::new());
    let end = options.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(60 * u64::from(minutes)));
    for (at, step) in steps.iter().enumerate() {
        let (load, now, expected) = (machine::load_average(), clock.now(), step.expected());
        let whole = now + steps[at..].iter().map(Step::expected).sum::<Duration>();
        let words = format!("{}: {step}", report.systems[step.store.id()].name);
        eprintln!(
            "[{}/{}, minute {} of about {}, load {load:.1}] {words}, about {} s",
            at + 1,
            steps.len(),
            now.as_secs() / 60,
            whole.as_secs().div_ceil(60),
            expected.as_secs()
        );
        let left = end.saturating_sub(now);
        let outcome = if expected <= left {
            job_apart(options, step, step.longest().min(left))
        } else {
            Err(anyhow!("left out for lack of time"))
        };
        match outcome {
            Ok(outcome) => collected.add(step, &report.systems[step.store.id()].name, outcome),
            Err(error) => {
                eprintln!("  not measured: {error:#}");
                report.conditions.missing.push(format!("{words}: {error:#}"));
            }
        }
        report.conditions.load_averages.push(format!("{load:.1}"));
        report.take(&collected);
        write(&options.out, &report)?;
    }
    report.ceilings.push(machine::ceiling(&options.dir, limit)?);
    report.conditions.first_touch_4k_us.push(Kept::new(kept.bytes())?.first_touch_4k_us);
    write(&options.out, &report)?;
    show(&options.out, &report);
    let no_worse = former.is_none_or(|former| is_no_worse(&former, &report, options.tolerance));
    Ok(no_worse && report.conditions.missing.is_empty())
}

fn conditions(options: &Run, steps: &[Step]) -> Conditions {
    let scale = steps[0].job.scale();
    Conditions {
        quick: options.quick,
        machine: machine::describe(),
        revision: options.revision.clone(),
        workload: format!(
            "{} records of 32 B + {} B that don't compress, {} MiB of caches for each system, phases of {} s ({} s for each kind of \
             puts side by side), unless stated otherwise.",
            number(scale.records as f64),
            scale.value_bytes,
            scale.cache_bytes >> 20,
            scale.seconds,
            scale.put_seconds
        ),
        ..Conditions::default()
    }
}

fn read_report(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a report of this program", path.display()))
}

/// Runs a job in a process of its own, on a directory of its own, with a time limit.
fn job_apart(options: &Run, step: &Step, longest: Duration) -> Result<Outcome> {
    let dir = tempfile::tempdir_in(&options.dir)?;
    let program = std::env::current_exe()?;
    let mut command =
        match options.under.as_deref().unwrap_or_default().split_whitespace().collect::<Vec<_>>().as_slice() {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
    command.arg("job").arg(step.store.id()).arg(serde_json::to_string(&step.job)?);
    command.arg("--dir").arg(dir.path().join("store")).stdout(Stdio::piped());
    let printed = output(command.spawn()?, longest)?;
    let outcome = serde_json::from_slice(&printed).context("what it printed is not an outcome")?;
    dir.close()?;
    Ok(outcome)
}

/// Returns what a process prints; kills the process after the time limit.
fn output(mut process: Child, longest: Duration) -> Result<Vec<u8>> {
    let mut stdout = process.stdout.take().context("its output is not a pipe")?;
    let (sender, printed) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // Nobody receives this if the process was given up.
        let _ = sender.send(stdout.read_to_end(&mut text).map(|_| text));
    });
    let printed = match printed.recv_timeout(longest) {
        Ok(printed) => printed?,
        Err(RecvTimeoutError::Timeout) => {
            process.kill()?;
            process.wait()?;
            bail!("given up after {} s", longest.as_secs());
        }
        Err(RecvTimeoutError::Disconnected) => bail!("its output could not be read"),
    };
    let status = process.wait()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(printed)
}

fn write(out: &Path, report: &Report) -> Result<()> {
    let curves = out.join(CURVES_DIR);
    fs::create_dir_all(&curves)?;
    fs::write(out.join(JSON), serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(out.join("bench-report.md"), markdown(report))?;
    plots::write(&curves, report)
}

fn show(out: &Path, report: &Report) {
    let met = report.goals.iter().filter(|goal| goal.met == Some(true)).count();
    let missed: Vec<_> = report.goals.iter().filter(|goal| goal.met == Some(false)).collect();
    println!("{}: {met} goals met, {} missed", out.join(JSON).display(), missed.len());
    for goal in missed {
        println!("  missed: {}: {} instead of {}", goal.name, goal.measured, goal.goal);
    }
    for job in &report.conditions.missing {
        println!("  not measured: {job}");
    }
}

fn is_no_worse(former: &Report, report: &Report, tolerance: f64) -> bool {
    if former.conditions.quick != report.conditions.quick {
        println!("the former report is of a run of another length: they are not compared");
        return true;
    }
    let regressions = regression::compare(former, report, tolerance);
    for regression in &regressions {
        println!("worse than before: {regression}");
    }
    regressions.is_empty()
}
