//! The arguments of `coppice serve`, which are those of the cluster's other processes.

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::serve::PROGRAM;

/// The arguments of a process. They name settings, and the process reads them as its last source.
#[derive(Clone, Debug)]
pub struct Serve {
    pub matches: ArgMatches,
}

impl Args for Serve {
    fn augment_args(command: Command) -> Command {
        coppice_process::arguments(&PROGRAM, command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Serve {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.matches = matches.clone();
        Ok(())
    }
}
