//! The stores, and the jobs that are run on them.

use std::path::Path;

use anyhow::{Result, ensure};
use coppice_types::Params;
use serde::{Deserialize, Serialize};

use crate::{
    coppice::{Coppice, Durability, Settings},
    jobs::{self, Outcome, PlateauScale, Scale},
    system::{Facts, System},
};

/// A store to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    Coppice,
    CoppiceFlush,
    RocksdbSynced,
    RocksdbUnsynced,
    Redb,
    Fjall,
    Nomt,
    Qmdb,
    Firewood,
}

impl Store {
    /// All stores, in the order of the tables.
    pub const ALL: [Self; 9] = [
        Self::Coppice,
        Self::CoppiceFlush,
        Self::RocksdbSynced,
        Self::RocksdbUnsynced,
        Self::Redb,
        Self::Fjall,
        Self::Nomt,
        Self::Qmdb,
        Self::Firewood,
    ];

    /// The id among the figures.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Coppice => "coppice",
            Self::CoppiceFlush => "coppice-flush",
            Self::RocksdbSynced => "rocksdb-synced",
            Self::RocksdbUnsynced => "rocksdb-unsynced",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Nomt => "nomt",
            Self::Qmdb => "qmdb",
            Self::Firewood => "firewood",
        }
    }

    /// The facts about our engine; `None` for other stores.
    #[must_use]
    pub fn own_facts(self) -> Option<Facts> {
        let (name, timed, durable) = match self {
            Self::Coppice => (
                "Coppice",
                "sort, raft log, stage with the shard digest, settle, merges that are due, flushes that are due",
                "the batch: a raft log is synced; the forest follows",
            ),
            Self::CoppiceFlush => (
                "Coppice, flushed",
                "sort, stage with the shard digest, settle, merges that are due, a flush",
                "the batch: the forest is flushed; there is no log",
            ),
            _ => return None,
        };
        Some(Facts {
            name: name.to_owned(),
            timed: timed.to_owned(),
            durable: durable.to_owned(),
            proven: "presence, absence and complete ranges, in every version; all versions are kept".to_owned(),
            memory: "node and hash caches, 32 MiB or a little more that wait for the flush, filters; values are in no cache \
                     of its own; page cache"
                .to_owned(),
        })
    }
}

/// A job on a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// [`jobs::compare`].
    Compare(Scale),
    /// [`jobs::load`] in random order.
    Load(Scale),
    /// [`jobs::point`], with the active tree's capacity for our engine.
    Point(Scale, Option<u32>),
    /// [`jobs::proofs`].
    Proofs(Scale),
    /// [`jobs::proofs_by_trees`]; our engine only.
    ProofsByTrees(Scale),
    /// [`jobs::history`]; our engine only.
    History(Scale),
    /// [`jobs::versions`], with as many versions as records; our engine only.
    Versions(Scale),
    /// [`jobs::plateau`]; our engine only.
    Plateau(PlateauScale),
    /// [`jobs::reads_per_get`]; our engine only.
    Reads(Scale),
    /// [`jobs::growth`]; our engine keeps one version.
    Growth(Scale),
    /// [`jobs::growth_ours`], with the reads of a get for each size of memory; our engine only.
    GrowthAndReads(Scale),
    /// [`jobs::beside_merges`]; our engine only.
    BesideMerges(Scale),
    /// [`jobs::beside_moves`]; our engine only.
    BesideMoves(Scale),
}

/// The number of records that the active tree's default capacity is meant for. Runs with fewer
/// records reduce the capacity in proportion.
pub(super) const FULL_RECORDS: u64 = 10_000_000;

impl Job {
    #[must_use]
    pub fn scale(&self) -> &Scale {
        match self {
            Self::Compare(scale)
            | Self::Load(scale)
            | Self::Point(scale, _)
            | Self::Proofs(scale)
            | Self::ProofsByTrees(scale)
            | Self::History(scale)
            | Self::Versions(scale)
            | Self::Reads(scale)
            | Self::Growth(scale)
            | Self::GrowthAndReads(scale)
            | Self::BesideMerges(scale)
            | Self::BesideMoves(scale) => scale,
            Self::Plateau(plateau) => &plateau.scale,
        }
    }

    /// Runs the job on any open store.
    ///
    /// # Errors
    /// If the store fails, or the job is for our engine only.
    pub fn run(&self, system: &mut dyn System, dir: &Path) -> Result<Outcome> {
        match self {
            Self::Compare(scale) => jobs::compare(system, dir, scale),
            Self::Load(scale) => jobs::load(system, scale, false),
            Self::Point(scale, _) => jobs::point(system, dir, scale),
            Self::Proofs(scale) => jobs::proofs(system, scale),
            Self::Growth(scale) => jobs::growth(system, dir, scale),
            _ => anyhow::bail!("{self:?} is only for Coppice"),
        }
    }

    /// Runs the job on our engine, set up as the job needs it.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run_ours(&self, store: Store, dir: &Path) -> Result<Outcome> {
        ensure!(store.own_facts().is_some(), "{} is not ours", store.id());
        let mut settings = Settings::new(self.scale().cache_bytes);
        if store == Store::CoppiceFlush {
            settings.durability = Durability::Flush;
        }
        let capacity = settings.params.capacity;
        let of_capacity = |capacity: u32| Params { capacity, ..Params::default() };
        match self {
            Self::Point(_, Some(capacity)) => settings.params = of_capacity(*capacity),
            Self::Plateau(plateau) => {
                settings.params = of_capacity(plateau.capacity);
                settings.durability = Durability::Later;
                settings.retain = Some(plateau.retain);
                settings.flush_bytes = plateau.flush_bytes;
                settings.waiting_percent = plateau.waiting_percent;
            }
            Self::Reads(scale) => {
                let part = scale.records * u64::from(capacity) / FULL_RECORDS;
                settings.params = of_capacity(u32::try_from(part)?.clamp(64, capacity));
                settings.retain = Some(1);
            }
            Self::Growth(_) | Self::GrowthAndReads(_) => settings.retain = Some(1),
            Self::Versions(_) => settings.durability = Durability::Later,
            Self::BesideMerges(scale) => {
                // Several merges have to begin and end in a short time.
                settings.params = of_capacity(u32::try_from(scale.records / 10)?.clamp(64, capacity / 4));
                settings.durability = Durability::Later;
                settings.retain = Some(40);
            }
            Self::BesideMoves(scale) => {
                settings.durability = Durability::Later;
                settings.retain = Some(40);
                settings.hot_value_bytes = Some((scale.records * scale.value_bytes as u64 / 2).min(64 << 20));
            }
            _ => {}
        }
        let mut store = Coppice::create(dir, settings)?;
        match self {
            Self::ProofsByTrees(scale) => jobs::proofs_by_trees(store, scale),
            Self::History(scale) => jobs::history(store, scale),
            Self::Versions(scale) => jobs::versions(store, dir, scale),
            Self::Plateau(plateau) => jobs::plateau(store, dir, plateau),
            Self::Reads(scale) => jobs::reads_per_get(store, dir, scale),
            Self::Growth(scale) => jobs::growth_ours(store, dir, scale, false),
            Self::GrowthAndReads(scale) => jobs::growth_ours(store, dir, scale, true),
            Self::BesideMerges(scale) => jobs::beside_merges(store, scale),
            Self::BesideMoves(scale) => jobs::beside_moves(store, scale),
            _ => self.run(&mut store, dir),
        }
    }
}
