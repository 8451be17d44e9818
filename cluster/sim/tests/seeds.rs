//! Runs of whole clusters: a peaceful one, many with faults, and some of them twice.

mod common;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use coppice_sim::Settings;

/// Number of seeds of every test run. A slow machine runs those that fit into the time, but never
/// fewer than the minimum. They always begin with the first; `make sim` tries others.
const SEEDS: u64 = 200;
const SEEDS_MIN: u64 = 100;
const TIME: Duration = Duration::from_secs(240);
/// The fewest seeds with ledgers of members, and the time for more.
const LEDGERS_LEAST: (u64, Duration) = (30, Duration::from_secs(60));
/// Number of seeds with a federation, each of which takes a fraction of a second.
const FEDERATIONS: u64 = 60;
/// Longest real time of one seed. In a run that takes longer, simulated time has stopped: some task
/// is always ready, and in a real process it would take a whole processor.
const SEED_TIME_MAX: Duration = Duration::from_secs(300);

/// Ends the process if a seed takes too long. The watch ends with the value that is returned.
fn watch(seed: u64) -> mpsc::Sender<()> {
    let (watched, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(SEED_TIME_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("seed {seed} does not end: `make sim SEED={seed}` shows its last events");
            std::process::abort();
        }
    });
    watched
}

/// Runs seeds on as many threads as there are processors, each seed on one thread. Returns a line
/// for each that failed.
#[expect(
    clippy::disallowed_methods,
    reason = "real time decides how many seeds are tried, and nothing of what they do"
)]
fn run_all(seeds: std::ops::RangeInclusive<u64>, settings: Settings, (least, time): (u64, Duration)) -> Vec<String> {
    let next = AtomicU64::new(*seeds.start());
    let failed = Mutex::new(Vec::new());
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > *seeds.end() || seed > least && began.elapsed() > time {
                        break;
                    }
                    let _watched = watch(seed);
                    if let Some(wrong) = common::run(seed, settings).wrong {
                        failed.lock().expect("no holder panics").push(format!("seed {seed}: {wrong}"));
                    }
                }
            });
        }
    });
    println!("{} seeds in {:?}", next.into_inner().min(*seeds.end() + 1) - *seeds.start(), began.elapsed());
    let mut failed = failed.into_inner().expect("no holder panics");
    failed.sort();
    failed
}

#[test]
fn a_cluster_without_faults_is_sound() {
    let verdict = common::run(1, Settings { peaceful: true, ..Settings::default() });
    assert_eq!(verdict.wrong, None);
    assert!(verdict.done.0 > 50 && verdict.done.1 > 50, "{:?}", verdict.done);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [11, 12, 13] {
        let first = common::run(seed, Settings::default());
        assert_eq!(first, common::run(seed, Settings::default()), "seed {seed} is not repeatable");
        assert_ne!(first.trace, common::run(seed + 100, Settings::default()).trace);
    }
}

#[test]
fn clusters_survive_their_faults() {
    let failed = run_all(1..=SEEDS, Settings::default(), (SEEDS_MIN, TIME));
    assert!(failed.is_empty(), "run `make sim SEED=n` to see what happens:\n{}", failed.join("\n"));
}

/// Members append to a ledger, beside clients that write keys.
#[test]
fn ledgers_of_members_survive_the_same_faults() {
    let failed = run_all(1..=SEEDS, Settings { ledgers: true, ..Settings::default() }, LEDGERS_LEAST);
    assert!(failed.is_empty(), "run `LEDGERS=1 make sim SEED=n` to see what happens:\n{}", failed.join("\n"));
}

/// Members' cosigners crash, lose their state and are set back, and the ledger forks.
#[test]
fn no_member_signs_two_logs() {
    let settings = Settings { federation: true, ..Settings::default() };
    let failed = run_all(1..=FEDERATIONS, settings, (FEDERATIONS, Duration::ZERO));
    assert!(failed.is_empty(), "run `FEDERATION=1 make sim SEED=n` to see what happens:\n{}", failed.join("\n"));
    let (first, again) = (common::run(3, settings), common::run(3, settings));
    assert_eq!(first, again, "a seed is not repeatable");
    assert!(first.done.0 > 5, "members sign: {first:?}");
}
