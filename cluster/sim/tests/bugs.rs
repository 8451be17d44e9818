//! The simulator finds each deliberate bug. `make sim-bugs` searches for them from the first seed
//! on.

mod common;

use coppice_env::bug::{self, Bug};
use coppice_sim::Settings;

/// A seed that found each bug. A change of a run may move the bug to another seed, so later seeds
/// are tried, too.
const FINDERS: &[(Bug, u64)] = &[
    (Bug::SkippedSync, 2),
    (Bug::VoteForgotten, 3),
    (Bug::TermUnchecked, 139),
    (Bug::OneDigestBelieved, 1),
    (Bug::FinalizedBeforeAppend, 15),
    (Bug::PageReusedEarly, 7),
    (Bug::StaleLeaderRead, 7),
    (Bug::SessionNumberLost, 56),
    (Bug::NewTermDropsDecided, 2),
    (Bug::FenceNotLifted, 7),
    (Bug::SnapshotCutShort, 5),
    (Bug::RefusalUnheeded, 12),
    (Bug::MissedAdminServed, 10),
];

/// Number of seeds that are tried: enough to find a bug that no longer shows at its own seed.
const TRIED: u64 = 200;

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
