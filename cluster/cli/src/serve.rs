//! `coppice serve`: a node and a coordinator in one process.
//!
//! The coordinator calls the node beside it without a connection, and all other nodes over the
//! network. Everything else is as in two processes: the settings, what others see of each role, and
//! what each role promises. They end together: a failure of one stops the other.
//!
//! A start reads keys and certificates and binds the addresses for clients, then opens the node,
//! then lets the coordinator call it. A stop goes the other way, so that the last calls of the
//! coordinator still find the node. A crash at any point is a crash of both.

mod config;

use clap::ArgMatches;
use coppice_coordinator::process::{self as coordinator, Beside};
use coppice_process::{Failure, Stop, health, net, run_parsed};
use coppice_shard_node::process as node;

pub use config::{Config, PROGRAM};

use crate::failure;

/// Runs the process until it is told to stop. `matches` are those of its arguments.
///
/// # Errors
/// If it could not start, or a role failed.
pub fn run(matches: &ArgMatches) -> Result<(), failure::Failure> {
    run_parsed(matches, &PROGRAM, serve).map_err(failure::Failure::from)
}

async fn serve(config: Config, stop: Stop) -> Result<(), Failure> {
    // Both roles write to one access log.
    let access = config.access.open(config.tls.is_some())?;
    let (coordinator, coordinates) = coordinator::Prepared::new(config.coordinator(), access.clone()).await?;
    let (node, hosts) = node::Prepared::new(config.node(), access)?;
    // Health is served from the beginning, since opening the replicas may take long.
    let _health = match config.health_listen {
        None => None,
        Some(address) => {
            let look = move || hosts.health().and(coordinates.health());
            Some(health::serve(net::listen(address).await?, stop.clone(), look))
        }
    };
    let (node, services) = node.start().await?;
    let beside = Beside { node: config.node, services };
    let served = match coordinator.start(Some(beside)) {
        Ok(coordinator) => coordinator.serve(stop.asked()).await,
        Err(failure) => Err(failure),
    };
    let stopped = node.stop().await;
    served.and(stopped)
}
