//! A job in a plan, and where its figures go.

use std::{fmt, time::Duration};

use super::job::{FULL_RECORDS, Job, Store};
use crate::figures::number;

/// The place for a job's figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// The store's own figures, under the job's names.
    Figures,
    /// The figures of another id, for measurements at a second size.
    Under(&'static str),
    /// The store's own figures, with a prefix.
    Prefixed(&'static str),
    /// A point of a curve, at this place on its axis.
    Curve(&'static str, f64),
}

/// A job in a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub store: Store,
    pub job: Job,
    pub target: Target,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, scale) = (format!("{:?}", self.job), self.job.scale());
        let kind = job.split('(').next().unwrap_or_default();
        write!(f, "{kind}, {} records of {} B", number(scale.records as f64), scale.value_bytes)?;
        match self.target {
            Target::Curve(curve, x) => write!(f, ", {curve} of {x}"),
            _ => Ok(()),
        }
    }
}

impl Step {
    /// The approximate duration on two present-day cores.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let scale = self.job.scale();
        let million = scale.records as f64 / 1e6;
        let rate = match self.store {
            Store::Coppice if scale.value_bytes >= 256 && scale.records >= FULL_RECORDS / 2 => 65e3,
            Store::Redb | Store::Nomt | Store::Firewood => 80e3,
            Store::Coppice | Store::Qmdb => 120e3,
            Store::CoppiceFlush | Store::RocksdbSynced | Store::RocksdbUnsynced | Store::Fjall => 180e3,
        };
        let (phases, beside) = match &self.job {
            Job::Compare(scale) => (5.5, 2.0 * scale.put_seconds + 2.0 + 8.0 * million),
            Job::Point(..) => (3.0, 0.5),
            Job::Growth(_) => (5.0, 2.0),
            Job::GrowthAndReads(_) => (5.0, 30.0),
            Job::History(_) => (4.2, 7.0),
            Job::Versions(_) => (0.0, 120.0 * million),
            Job::BesideMerges(_) | Job::BesideMoves(_) => (1.0, 1.0),
            Job::Load(_) | Job::Proofs(_) | Job::ProofsByTrees(_) => (0.0, 2.0),
            Job::Reads(_) => (0.0, 5.0),
            Job::Plateau(plateau) => {
                let updates = (plateau.rounds * scale.records) as f64 / 100e3;
                (0.0, updates.min(scale.seconds))
            }
        };
        Duration::from_secs_f64(0.5 + scale.records as f64 / rate + phases * scale.seconds + beside)
    }

    /// The time after which the step is given up.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_secs(60) + 3 * self.expected()
    }
}
