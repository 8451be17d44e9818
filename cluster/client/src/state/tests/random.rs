//! Random operations on a cache and its model. No read may differ from what the ledger said of its
//! version.

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, RandomState},
};

use bytes::Bytes;
use coppice_types::{Reason, Stamp};
use tokio::{
    runtime::Builder,
    time::{Duration, Instant},
};

use super::{
    super::{Options, View, Writes, error::Error, store::Bug},
    model::Words,
    world::{Slow, World},
};

/// Number of seeds of the model test. Without it, as many as [`MODEL_TIME`] allows.
const SEEDS: &str = "COPPICE_STATE_SEEDS";
const MODEL_TIME: Duration = Duration::from_secs(3);
const STEPS: usize = 60;
/// Most seeds that a planted bug may survive.
const SEEDS_PLANTED: u64 = 3000;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// xorshift64*: any generator will do that gives the same sequence in each run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(random).expect("32 bits") % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

type Tally = BTreeMap<&'static str, u64>;

/// One run of a cache beside its model, which follows from a seed.
struct Trial {
    world: World,
    random: Rng,
    views: Vec<View>,
    slow: Vec<Slow>,
    /// The stream has not shown everything.
    stale: bool,
    tally: Tally,
}

/// A difference between cache and model.
type Found = Result<(), String>;

fn honest(result: Result<(), Error>) -> Found {
    result.map_err(|error| format!("the honest model is refused: {error}"))
}

impl Trial {
    async fn new(seed: u64, planted: Option<Bug>) -> Self {
        let mut random = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Small caches evict, and large ones keep everything.
        let (bytes, samples) = (3000 + random.below(40_000), Some(random.below(2)));
        let keys_only = random.below(3) == 0;
        let world = World::followed(Options { bytes, samples, keys_only, ..Options::default() }).await;
        world.cache.shared.store().planted = planted;
        Self { world, random, views: Vec::new(), slow: Vec::new(), stale: false, tally: Tally::new() }
    }

    fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    async fn run(&mut self) -> Found {
        for step in 0..STEPS {
            self.step().await.map_err(|found| format!("step {step}: {found}"))?;
            self.world.cache.shared.store().check();
        }
        for slow in self.slow.drain(..) {
            // The ledger may refuse it: the version may be gone.
            drop(slow.land().await);
        }
        let metrics = self.world.cache.metrics();
        let counts = [
            ("hits", metrics.hits),
            ("refused fills", metrics.refused_fills),
            ("unknown versions", metrics.unknown),
            ("cuts", metrics.cuts),
        ];
        for (what, count) in counts {
            *self.tally.entry(what).or_default() += count;
        }
        Ok(())
    }

    async fn step(&mut self) -> Found {
        match self.random.below(30) {
            0..6 => self.write().await,
            6..8 => self.roll_back().await,
            8 => self.prune().await,
            9 => {
                self.stale = true;
                honest(self.world.cut(true).await)
            }
            10..12 => self.whole().await,
            12..15 => {
                self.look();
                Ok(())
            }
            15..18 => {
                self.hold_one().await;
                Ok(())
            }
            18..20 => self.land_one().await,
            20 => self.own().await,
            _ => self.read_some().await,
        }
    }

    fn writes(&mut self) -> Words {
        let mut writes = Words::new();
        let sequence = self.world.model.lock().log.len();
        for _ in 0..=self.random.below(2) {
            let key = KEYS[self.random.below(KEYS.len())];
            let value = (!self.random.one_in(4)).then(|| format!("{key}, header {sequence}"));
            writes.insert(key.to_owned(), value);
        }
        writes
    }

    async fn write(&mut self) -> Found {
        let writes = self.writes();
        self.world.write(&writes);
        if self.random.one_in(10) {
            let mut state = self.world.model.lock();
            let newest = state.log.len() - 1;
            state.lists_gone.insert(newest);
        }
        self.next().await
    }

    async fn roll_back(&mut self) -> Found {
        let (versions, boundary) = {
            let state = self.world.model.lock();
            (state.versions.len(), state.boundary)
        };
        let base = self.random.below(versions) as u64;
        if base < boundary || versions == 1 {
            return Ok(());
        }
        self.world.roll_back(base);
        self.note("rollbacks");
        self.next().await
    }

    async fn prune(&mut self) -> Found {
        let (versions, before) = {
            let state = self.world.model.lock();
            (state.versions.len(), state.boundary)
        };
        let boundary = self.random.below(versions) as u64;
        if boundary <= before || !self.random.one_in(3) {
            return Ok(());
        }
        self.world.model.lock().prune(boundary);
        self.next().await
    }

    /// Shows the newest headers at once, or leaves them for later.
    async fn next(&mut self) -> Found {
        if self.stale || self.random.one_in(5) {
            self.stale = true;
            return Ok(());
        }
        honest(self.world.show().await)
    }

    /// Heals the stream, and lets the cache reach the head.
    async fn whole(&mut self) -> Found {
        self.stale = false;
        let (heads, checkpoints) = (self.random.below(2), self.random.below(4));
        {
            let mut state = self.world.model.lock();
            state.old_heads = u32::from(heads > 0);
            state.old_checkpoints = u32::try_from(checkpoints).expect("a few");
        }
        self.world.model.show();
        honest(self.world.cut(false).await)
    }

    /// A write of this process, which the cache hears of at once.
    async fn own(&mut self) -> Found {
        let words = self.writes();
        let stamp = self.world.write(&words);
        let writes: Writes = words.into_iter().map(|(key, value)| (key.into(), value.map(Bytes::from))).collect();
        honest(self.world.cache.apply(stamp, &writes))?;
        self.next().await
    }

    /// Opens a view of some version: of one that stands, that was rolled back, or that never was.
    fn look(&mut self) {
        let names: Vec<Stamp> = self.world.history.keys().copied().collect();
        let mut name = names[self.random.below(names.len())];
        match self.random.below(8) {
            0 => name.epoch = name.epoch.next(),
            1 => name.version = name.version.next(),
            2..5 => name = self.world.model.lock().present(),
            _ => {}
        }
        self.views.push(self.world.cache.at(name));
        if self.views.len() > 8 {
            self.views.remove(0);
        }
    }

    async fn read_some(&mut self) -> Found {
        if self.views.is_empty() || self.random.one_in(4) {
            self.world.model.lock().behind = u32::try_from(self.random.below(3)).expect("a few");
            let view = self.world.cache.head().await.map_err(|error| error.to_string())?;
            self.views.push(view);
        }
        let view = self.views[self.random.below(self.views.len())].clone();
        for key in KEYS {
            if self.slow.iter().any(|slow| slow.key == key && slow.at == view.stamp()) {
                continue;
            }
            let got = view.get(key.as_bytes()).await;
            self.judge(view.stamp(), key, got, self.stale)?;
        }
        Ok(())
    }

    /// Compares a read with what the model said of the version.
    fn judge(&mut self, at: Stamp, key: &str, got: Result<Option<Bytes>, Error>, stale: bool) -> Found {
        let refused = self.world.model.lock().find(at).err();
        let value = match got {
            Ok(value) => value,
            Err(error) => {
                let reason = error.reason();
                self.note("refused reads");
                let fits = reason.is_some() && (refused.is_some() || reason == Some(Reason::NotYet));
                return if fits { Ok(()) } else { Err(format!("{key} at {at} is refused: {error}")) };
            }
        };
        let history = self.world.history.get(&at).ok_or_else(|| format!("{key} at {at}, which never was"))?;
        if history.get(key).map(String::as_bytes) != value.as_deref() {
            return Err(format!("{key} at {at} is {value:?}, and not {:?}", history.get(key)));
        }
        match refused {
            Some(reason) if !stale => Err(format!("{key} at {at} is served, and the ledger says {reason}")),
            _ => Ok(()),
        }
    }

    async fn hold_one(&mut self) {
        if self.views.is_empty() || self.slow.len() > 3 {
            return;
        }
        let view = self.views[self.random.below(self.views.len())].clone();
        let key = KEYS[self.random.below(KEYS.len())];
        if !self.slow.iter().any(|slow| slow.key == key && slow.at == view.stamp()) {
            let slow = self.world.hold(&view, key).await;
            self.slow.push(slow);
        }
    }

    /// Ends a slow read. Its answer is from when it began, so its version may be gone.
    async fn land_one(&mut self) -> Found {
        if self.slow.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.slow.len());
        let slow = self.slow.remove(at);
        let (stamp, key) = (slow.at, slow.key.clone());
        self.note("slow reads");
        let got = slow.land().await;
        self.judge(stamp, &key, got, true)
    }
}

/// Runs a trial. Returns the first difference between cache and model.
fn trial(seed: u64, planted: Option<Bug>, tally: &mut Tally) -> Found {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut trial = Trial::new(seed, planted).await;
        let found = trial.run().await;
        for (what, count) in &trial.tally {
            *tally.entry(what).or_default() += count;
        }
        found
    })
}

#[test]
fn no_read_differs_from_the_ledgers() {
    let seeds = env::var(SEEDS).ok().map(|seeds| seeds.parse::<u64>().expect("a number of seeds"));
    let (began, mut tally, mut done) = (Instant::now(), Tally::new(), 0);
    // Runs by time begin elsewhere each time. The message of a difference names the seed.
    let first = if seeds.is_some() { 0 } else { RandomState::new().hash_one(0) >> 32 };
    while seeds.map_or_else(|| began.elapsed() < MODEL_TIME, |seeds| done < seeds) {
        let seed = first + done;
        trial(seed, None, &mut tally).unwrap_or_else(|found| panic!("seed {seed}, {found}"));
        done += 1;
    }
    println!("{done} seeds in {:?}: {tally:?}", began.elapsed());
    for what in ["hits", "refused fills", "unknown versions", "cuts", "rollbacks", "refused reads", "slow reads"] {
        assert!(tally.get(what).is_some_and(|count| *count > 0), "no {what} in {done} seeds");
    }
}

#[test]
fn the_model_finds_planted_bugs() {
    for planted in [Bug::DeadFills, Bug::SkippedFrontier, Bug::ReopenedWrongly] {
        let find = |seed| trial(seed, Some(planted), &mut Tally::new()).err().map(|found| (seed, found));
        let found = (0..SEEDS_PLANTED).find_map(find);
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?} survives {SEEDS_PLANTED} seeds");
    }
}

#[test]
fn a_seed_gives_one_run() {
    let run = || {
        let mut tally = Tally::new();
        trial(7, None, &mut tally).expect("no difference");
        tally
    };
    assert_eq!(run(), run());
}
