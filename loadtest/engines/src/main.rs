//! `coppice-engines`: the engine beside its peers, as `make bench` runs it.
//!
//! `run` works off a plan: each job in a process of its own (`job`), on a fresh directory below `--dir`; then it writes
//! `bench-report.json`, `bench-report.md` and plots to `--out`. What is measured, and what follows from it, lies in `coppice-measure`.

mod peers;
mod plots;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    jobs::Outcome,
    machine,
    plan::{Collected, Job, Step, Store, plan},
    regression,
    report::{Conditions, Report, markdown},
    system::{Facts, System},
};

/// The engine beside its peers.
#[derive(Debug, Parser)]
#[command(name = "coppice-engines", version, about)]
enum Arguments {
    /// Measure everything, and report.
    Run(Run),
    /// Do one job of a plan, and print what it found as JSON.
    Job {
        /// The store's id.
        store: String,
        /// The job, as JSON.
        job: String,
        /// An empty directory.
        #[arg(long)]
        dir: PathBuf,
    },
}

/// How a run is made.
#[derive(Debug, clap::Args)]
struct Run {
    /// A directory on the disk that is measured; what is made in it is removed again.
    #[arg(long)]
    dir: PathBuf,
    /// Where the report goes.
    #[arg(long)]
    out: PathBuf,
    /// Less data and shorter phases.
    #[arg(long)]
    quick: bool,
    /// Only stores whose id holds this.
    #[arg(long)]
    only: Option<String>,
    /// A program that runs each measured process, for example `taskset -c 1`.
    #[arg(long)]
    under: Option<String>,
    /// A former `bench-report.json`: the run fails if ours became worse.
    #[arg(long)]
    against: Option<PathBuf>,
    /// How much worse a figure may be than in the former report, as a part of it.
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
    }
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
        Store::Coppice | Store::CoppiceFlush => bail!("{} is no peer", store.id()),
    };
    job.run(&mut *system, dir)
}

/// Runs everything. False if ours became worse than in the former report.
fn run(options: &Run) -> Result<bool> {
    // First: a report that can't be read shall not be found out after an hour.
    let former = options.against.as_deref().map(read_report).transpose()?;
    let wanted = |step: &Step| options.only.as_ref().is_none_or(|only| step.store.id().contains(only));
    let steps: Vec<Step> = plan(options.quick).into_iter().filter(wanted).collect();
    ensure!(!steps.is_empty(), "no store has such an id");
    fs::create_dir_all(&options.dir)?;
    fs::create_dir_all(&options.out)?;
    let limit = Duration::from_secs_f64(if options.quick { 0.5 } else { 3.0 });
    let mut ceilings = vec![machine::ceiling(&options.dir, limit)?];
    let (mut collected, mut loads, clock) = (Collected::default(), Vec::new(), SystemClock::new());
    for (at, step) in steps.iter().enumerate() {
        let load = machine::load_average();
        loads.push(format!("{load:.1}"));
        let name = facts(step.store).name;
        let minutes = clock.now().as_secs() / 60;
        eprintln!("[{}/{}, {minutes} min, load {load:.1}] {name}: {}", at + 1, steps.len(), words(&step.job));
        let outcome = job_apart(options, step).with_context(|| format!("{name}: {}", words(&step.job)))?;
        collected.add(step, &name, outcome);
    }
    ceilings.push(machine::ceiling(&options.dir, limit)?);
    let systems: BTreeMap<String, Facts> =
        steps.iter().map(|step| (step.store.id().to_owned(), facts(step.store))).collect();
    let scale = steps[0].job.scale();
    let conditions = Conditions {
        quick: options.quick,
        machine: machine::describe(),
        revision: options.revision.clone(),
        workload: format!(
            "{} records of 32 B + {} B that don't compress, {} MiB of caches for each system, phases of {} s.",
            scale.records,
            scale.value_bytes,
            scale.cache_bytes >> 20,
            scale.seconds
        ),
        load_averages: loads,
    };
    let report = Report::new(conditions, ceilings, systems, &collected.samples, collected.series());
    write(&options.out, &report)?;
    Ok(former.is_none_or(|former| is_no_worse(&former, &report, options.tolerance)))
}

fn read_report(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report of this program", path.display()))
}

/// The job's kind.
fn words(job: &Job) -> String {
    let text = format!("{job:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

/// A job in a process of its own, on a directory of its own.
fn job_apart(options: &Run, step: &Step) -> Result<Outcome> {
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
    command.arg("--dir").arg(dir.path().join("store")).stderr(Stdio::inherit());
    let output = command.output()?;
    ensure!(output.status.success(), "it ended with {}", output.status);
    let outcome = serde_json::from_slice(&output.stdout).context("what it printed is no outcome")?;
    dir.close()?;
    Ok(outcome)
}

fn write(out: &Path, report: &Report) -> Result<()> {
    let json = out.join("bench-report.json");
    fs::write(&json, serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(out.join("bench-report.md"), markdown(report))?;
    plots::write(out, report)?;
    let met = report.goals.iter().filter(|goal| goal.met == Some(true)).count();
    let missed: Vec<_> = report.goals.iter().filter(|goal| goal.met == Some(false)).collect();
    println!("{}: {met} goals met, {} missed", json.display(), missed.len());
    for goal in missed {
        println!("  missed: {}: {} instead of {}", goal.name, goal.measured, goal.goal);
    }
    Ok(())
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
