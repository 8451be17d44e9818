//! The simulator bites: each deliberate bug is found, and the seed that finds it first is known.

mod common;

use coppice_env::bug::{self, Bug};
use coppice_sim::Settings;

/// Seeds that a bug may need.
const SEEDS_MAX: u64 = 2000;

/// The first seed that finds a bug, and what it found.
fn hunt(bug: Bug) -> Option<(u64, String)> {
    let first: u64 = std::env::var("FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    (first..first + SEEDS_MAX).find_map(|seed| {
        bug::plant(Some(bug));
        let verdict = common::run(seed, Settings::default());
        bug::plant(None);
        Some((seed, verdict.wrong?))
    })
}

#[test]
fn every_planted_bug_is_found() {
    let wanted = std::env::var("BUG").ok();
    let bugs = Bug::ALL.iter().filter(|bug| wanted.as_ref().is_none_or(|wanted| bug.name() == wanted));
    let mut missed = Vec::new();
    for &bug in bugs {
        match hunt(bug) {
            Some((seed, finding)) => println!("| {bug} | {seed} | {finding} |"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS_MAX} seeds: {missed:?}");
}
