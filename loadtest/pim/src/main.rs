//! `make bench-pim`: Panther's placement and its rivals in the modelled clock of emulated memory
//! modules. `--quick` takes smaller batches; `--out DIR` is where `report.md` goes.

mod index;
mod report;
mod run;
mod shapes;
mod systems;
mod trees;

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use run::Plan;

fn main() -> Result<()> {
    let (mut out, mut plan) = (PathBuf::from("target/bench-pim"), Plan::WHOLE);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => plan = Plan::QUICK,
            "--out" => out = arguments.next().context("--out needs a directory")?.into(),
            other => bail!("{other}: the options are --quick and --out DIR"),
        }
    }
    let report = report::markdown(&run::run(plan, None)?);
    fs::create_dir_all(&out).with_context(|| format!("{} can't be made", out.display()))?;
    let path = out.join("report.md");
    fs::write(&path, report).with_context(|| format!("{} can't be written", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
