//! The simulator bites: each deliberate bug is found. `make sim-bugs` looks for them from the first seed on.

mod common;

use coppice_env::bug::{self, Bug};
use coppice_sim::Settings;

/// A seed that found each bug. Whatever changes a run may move it: then some seeds behind it are tried, too.
const FINDERS: &[(Bug, u64)] = &[
    (Bug::SkippedSync, 1),
    (Bug::VoteForgotten, 3),
    (Bug::TermUnchecked, 112),
    (Bug::OneDigestBelieved, 1),
    (Bug::FinalizedBeforeAppend, 16),
    (Bug::PageReusedEarly, 7),
    (Bug::StaleLeaderRead, 7),
    (Bug::SessionNumberLost, 24),
    (Bug::NewTermDropsDecided, 2),
    (Bug::FenceNotLifted, 97),
    (Bug::SnapshotCutShort, 12),
    (Bug::MissedAdminServed, 8),
];

/// Seeds that are tried. All are among those that find nothing wrong without a bug.
const TRIED: u64 = 90;

#[test]
fn every_planted_bug_is_found() {
    let all: Vec<Bug> = FINDERS.iter().map(|(bug, _)| *bug).collect();
    assert_eq!(all, Bug::ALL, "each bug has a seed");
    let finds = |bug, seed| {
        bug::plant(Some(bug));
        let found = common::run(seed, Settings::default()).wrong;
        bug::plant(None);
        found.inspect(|finding| println!("{bug} at seed {seed}: {finding}"))
    };
    for &(bug, first) in FINDERS {
        let found = (first..first + TRIED).find_map(|seed| finds(bug, seed));
        assert!(found.is_some(), "{bug} is not found by seed {first} and {TRIED} behind it");
    }
}
