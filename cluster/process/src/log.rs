//! Logs: to standard error, as text for people or as JSON for machines.

use std::io::IsTerminal;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use crate::Failure;

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter such as `info` or `warn,coppice_shard_node=debug`.
    pub filter: String,
    /// The form of a line.
    pub format: Format,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Log {
    /// Logs from now on.
    ///
    /// # Errors
    /// If the filter is none.
    pub fn start(&self) -> Result<(), Failure> {
        let filter = EnvFilter::try_new(&self.filter).map_err(|error| {
            Failure::usage(format!("log = {:?}: {error}", self.filter)).hint(
                "It is a level (error, warn, info, debug, trace), or a list such as warn,coppice_shard_node=debug.",
            )
        })?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.format {
            Format::Text => lines.init(),
            Format::Json => lines.json().init(),
        }
        Ok(())
    }
}
