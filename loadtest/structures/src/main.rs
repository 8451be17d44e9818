//! `coppice-structures [--quick] [--data DIR] --out DIR`: measures all structures, and writes
//! `structures.json` and `structures.md`. Without `--data`, `COPPICE_DATA` names the directory of
//! the real data.

use std::{env, fs, path::PathBuf, thread};

use anyhow::{Context, Result, bail};
use coppice_structures::{
    measure::{sharing, table},
    report::{Conditions, Report, load_average, markdown, processor},
    workload::{Scale, accounts, documents, parties, ycsb},
};

const REPETITIONS: usize = 3;
const PARTIES: usize = 5;

struct Arguments {
    scale: Scale,
    data: Option<PathBuf>,
    out: PathBuf,
}

fn arguments() -> Result<Arguments> {
    let (mut scale, mut out) = (Scale::Full, None);
    let mut data = env::var_os("COPPICE_DATA").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let mut given = env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut dir = || given.next().map(PathBuf::from).with_context(|| format!("{argument} takes a directory"));
        match argument.as_str() {
            "--quick" => scale = Scale::Quick,
            "--data" => data = Some(dir()?),
            "--out" => out = Some(dir()?),
            _ => bail!("what is {argument}? Usage: coppice-structures [--quick] [--data DIR] --out DIR"),
        }
    }
    Ok(Arguments { scale, data, out: out.context("--out DIR is missing: where the report goes")? })
}

fn main() -> Result<()> {
    let Arguments { scale, data, out } = arguments()?;
    let load_before = load_average();
    let (mut tables, mut missing) = (Vec::new(), Vec::new());
    for theta in [0.0, 0.9] {
        tables.push(table(&ycsb(scale, theta), REPETITIONS)?);
    }
    match &data {
        Some(dir) => {
            tables.push(table(&documents(dir)?, REPETITIONS)?);
            tables.push(table(&accounts(dir, scale)?, REPETITIONS)?);
        }
        None => missing.push(
            "the EIPs history and the Ethereum accounts. Name the directory that holds eips-history.jsonl.gz and \
             ethereum-genesis.jsonl.gz with --data or COPPICE_DATA."
                .to_owned(),
        ),
    }
    let mut shared = Vec::new();
    for percent in [50, 90, 100] {
        shared.extend(sharing(&parties(scale, PARTIES, percent), percent)?);
    }
    let conditions = Conditions {
        scale: if scale == Scale::Quick { "quick" } else { "full" }.to_owned(),
        repetitions: REPETITIONS,
        processor: processor(),
        processors: thread::available_parallelism()?.get(),
        load_before,
        load_after: load_average(),
    };
    let report = Report { conditions, tables, sharing: shared, missing };
    fs::create_dir_all(&out)?;
    let write = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        println!("{}", path.display());
        Ok::<_, anyhow::Error>(())
    };
    write("structures.json", serde_json::to_string_pretty(&report)? + "\n")?;
    write("structures.md", markdown(&report))?;
    for missing in &report.missing {
        eprintln!("NOT MEASURED: {missing}");
    }
    Ok(())
}
