//! The parts that the write path works with. The state that is shown to others
//! ([`Shown`](crate::shown::Shown)) is not among them.

use std::sync::Arc;

use coppice_env::Clock;

use crate::{
    groups::{root_log::RootLog, shards::Shards},
    metrics::Metrics,
    options::Limits,
    random::Random,
};

/// The root log, the shards, the clock and the random numbers. Clones share them.
#[derive(Clone, Debug)]
pub struct Resources {
    pub log: Arc<RootLog>,
    pub shards: Shards,
    pub limits: Arc<Limits>,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<Random>,
}
