//! `coppice-bench ceiling`: the limits of the machine itself, to compare every other figure with.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use coppice_measure::machine;

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A directory on the disk that is measured.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

/// Measures, and prints JSON.
///
/// # Errors
/// If the disk can't be written to.
pub fn run(options: &Options) -> Result<()> {
    let ceiling = machine::ceiling(&options.dir, Duration::from_secs_f64(options.seconds))?;
    println!("{}", serde_json::to_string(&ceiling)?);
    Ok(())
}
