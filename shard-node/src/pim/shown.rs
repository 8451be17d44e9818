//! What a prover's thread shows to the service and to metrics.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_pim::{Counts, Reader};
use coppice_types::ShardState;

use super::demand::Demand;

/// What became of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The prover gave a proof.
    Answered,
    /// Too few queries come for a batch.
    Small,
    /// The prover does not have the version.
    Unserved,
    /// Too many queries wait, or the prover has ended.
    Busy,
    /// The answer came too late, or the version was dropped meanwhile.
    Late,
}

/// Number of queries by outcome.
#[derive(Debug, Default)]
pub struct Asked([AtomicU64; 5]);

impl Asked {
    pub(super) fn note(&self, outcome: Outcome, queries: u64) {
        self.0[outcome as usize].fetch_add(queries, Ordering::Relaxed);
    }

    /// Queries with an outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

/// Figures of a prover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub counts: Counts,
    /// Number of DPUs, and of those that are in service.
    pub dpus: (usize, usize),
    /// Nodes that the host holds.
    pub nodes: usize,
    /// Number of versions that are served.
    pub versions: usize,
    /// The newest of them.
    pub newest: u64,
    /// Versions that the host has no room for.
    pub too_large: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, sound) = self.dpus;
        write!(f, "pim: {sound} of {all} DPUs")?;
        match self.versions {
            0 => f.write_str(", no version yet"),
            _ => write!(f, ", newest version {}", self.newest),
        }
    }
}

/// What a prover's thread shows.
#[derive(Debug)]
pub struct Shown {
    states: RwLock<Vec<ShardState>>,
    figures: Mutex<Figures>,
    demand: Mutex<Demand>,
    /// The fewest queries of a batch; `u64::MAX` if no batch is worth it.
    least: AtomicU64,
    pub(super) asked: Asked,
    /// Whether the thread shall end.
    pub(super) closed: AtomicBool,
}

impl Shown {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            states: RwLock::default(),
            figures: Mutex::default(),
            demand: Mutex::new(Demand::new(window)),
            least: AtomicU64::new(u64::MAX),
            asked: Asked::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Shows the reader as it is between two batches.
    pub(super) fn show(&self, reader: &Reader, too_large: u64) {
        let states: Vec<ShardState> = reader.states().collect();
        let figures = Figures {
            counts: reader.counts(),
            dpus: reader.dpus(),
            nodes: reader.nodes(),
            versions: states.len(),
            newest: states.last().map_or(0, |state| state.version.0),
            too_large,
        };
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = figures;
        *self.states.write().unwrap_or_else(PoisonError::into_inner) = states;
        let least = reader.break_even().map_or(u64::MAX, |least| least as u64);
        self.least.store(least, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> Figures {
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether queries of a state may be put to the prover. Counts those that may not.
    pub(super) fn takes(&self, state: &ShardState, queries: u64, now: Duration) -> bool {
        let served = self.states.read().unwrap_or_else(PoisonError::into_inner).contains(state);
        if !served {
            self.asked.note(Outcome::Unserved, queries);
            return false;
        }
        let least = self.least.load(Ordering::Relaxed);
        let enough = self.demand.lock().unwrap_or_else(PoisonError::into_inner).note(queries, least, now);
        if !enough {
            self.asked.note(Outcome::Small, queries);
        }
        enough
    }
}
