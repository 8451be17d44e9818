//! The simulator finds each deliberate bug. `make sim-bugs` searches for them from the first seed
//! on.

mod common;

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
};

use coppice_env::bug::{self, Bug};
use coppice_sim::Settings;

/// A seed that found each bug. A change of a run may move the bug to another seed, so later seeds
/// are tried, too.
const FINDERS: &[(Bug, u64)] = &[
    (Bug::SkippedSync, 2),
    (Bug::VoteForgotten, 7),
    (Bug::OneDigestBelieved, 1),
    (Bug::FinalizedBeforeAppend, 1),
    (Bug::PageReusedEarly, 29),
    (Bug::StaleLeaderRead, 2),
    (Bug::SessionNumberLost, 4),
    (Bug::NewTermDropsDecided, 2),
    (Bug::FenceNotLifted, 129),
    (Bug::SnapshotCutShort, 12),
    (Bug::RefusalUnheeded, 14),
    (Bug::MissedAdminServed, 47),
    (Bug::TermUnchecked, 14),
    (Bug::TieBroken, 25),
    (Bug::RepeatedAppendRefused, 13),
    (Bug::LaneForgotten, 2),
    (Bug::CellLeftOut, 1),
    (Bug::FloorLeftOut, 1),
    (Bug::ErasuresLost, 8),
    (Bug::NameLost, 7),
    (Bug::SegmentsKept, 10),
    (Bug::OnlyHidden, 8),
    (Bug::ErasedWhenStaged, 23),
    (Bug::AffectedMissed, 98),
    (Bug::AnchorNamesNewer, 4),
    (Bug::ReaderPromoted, 4),
    (Bug::ReaderServesAny, 4),
    (Bug::SignedBeforeSync, 1),
    (Bug::SignedBeforeReplay, 1),
    (Bug::CosignerFloorSkipped, 1),
    (Bug::ChangeSignedOnce, 1),
    (Bug::EvidenceBelieved, 1),
    (Bug::HaltForgotten, 1),
];

/// Number of seeds that are tried: enough to find a bug that no longer shows at its own seed.
const TRIED: u64 = 600;

/// The first seed from this one on that finds a bug.
fn found(bug: Bug, first: u64) -> Option<u64> {
    // A bug is planted in one thread.
    bug::plant(Some(bug));
    let (ledgers, federation) = (bug.is_of_ledgers(), bug.is_of_cosigners());
    let settings = Settings { ledgers, federation, ..Settings::default() };
    (first..first + TRIED).find(|seed| {
        let finding = common::run(*seed, settings).wrong;
        if let Some(finding) = &finding {
            println!("{bug} at seed {seed}: {finding}");
        }
        finding.is_some()
    })
}

#[test]
fn every_planted_bug_is_found() {
    let has_finder = |bug: &Bug| FINDERS.iter().any(|(found, _)| found == bug);
    assert!(Bug::ALL.iter().all(has_finder), "each bug has a seed");
    let next = &AtomicUsize::new(0);
    let search = || {
        while let Some(&(bug, first)) = FINDERS.get(next.fetch_add(1, Ordering::Relaxed)) {
            assert!(found(bug, first).is_some(), "{bug} is not found by seed {first} and {TRIED} behind it");
        }
    };
    let lanes = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..lanes).for_each(|_| drop(scope.spawn(search))));
}
