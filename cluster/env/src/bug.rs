//! Deliberate bugs, which show whether the tests find them.
//!
//! A release contains none: without `debug_assertions`, [`planted`] is a constant (checked by a
//! test). In a development build, no bug is active until the simulator plants one in its own
//! thread.

use std::fmt;

macro_rules! bugs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $variant,)*
        }

        impl Bug {
            pub const ALL: &'static [Bug] = &[$(Bug::$variant,)*];

            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

bugs! {
    /// The raft log reports that it is durable without a sync.
    SkippedSync = "skipped-fsync";
    /// Term and vote are told to others before they are durable.
    VoteForgotten = "vote-not-durable";
    /// The root group accepts a header from a leader whose term is over.
    TermUnchecked = "term-check-left-out";
    /// A shard answers with its own digest, whatever the other replicas computed. Now and then, a
    /// replica computes a wrong one.
    OneDigestBelieved = "one-digest-believed";
    /// Shards are told that a version is decided before its header is in the root log.
    FinalizedBeforeAppend = "finalize-before-append";
    /// A page is reused one superblock too early.
    PageReusedEarly = "page-reused-early";
    /// A replica of the root group answers reads without checking whether it lags.
    StaleLeaderRead = "stale-leader-read";
    /// The root group forgets some session numbers.
    SessionNumberLost = "session-number-lost";
    /// A new leader's first message drops versions that are decided but not yet told to the shard.
    NewTermDropsDecided = "new-term-drops-decided";
    /// A fence stays for ever if its rollback failed.
    FenceNotLifted = "fence-not-lifted";
    /// A snapshot lacks its last page, and its hashes are not checked.
    SnapshotCutShort = "snapshot-without-last-page";
    /// The sender of a snapshot does not check it after a replica refused it as damaged.
    RefusalUnheeded = "refusal-unheeded";
    /// A shard finds the state of a read by its version number alone, even though it missed a
    /// rollback.
    MissedAdminServed = "missed-rollback-served";
    /// Of several versions with one time, the first is taken for the newest.
    TieBroken = "first-of-equal-times";
    /// A member's request that was applied is refused when it is sent again.
    RepeatedAppendRefused = "repeated-append-refused";
    /// Now and then, the leader forgets the lanes of a member.
    LaneForgotten = "lane-forgotten";
    /// A journal has no cell for its second clue.
    CellLeftOut = "second-clue-without-cell";
    /// A rollback takes journals of members back.
    FloorLeftOut = "ledger-floor-left-out";
    /// A copy of the table of a state lacks the erased keys.
    ErasuresLost = "erasures-lost";
    /// A value loses the name by which an erasure finds all copies of it.
    NameLost = "name-lost";
    /// Segments of the raft log that held erased values are kept, and used again.
    SegmentsKept = "segments-kept";
    /// A replica hides what is erased, and leaves it on its disk.
    OnlyHidden = "only-hidden";
    /// A shard erases as soon as a version is staged, which may be dropped.
    ErasedWhenStaged = "erased-when-staged";
    /// Now and then, a purge goes without the signature of a member whose journals go.
    AffectedMissed = "affected-member-missed";
    /// A reader is made a voter, so that it counts for every majority.
    ReaderPromoted = "reader-counts-for-quorum";
    /// A reader takes the newest state that it has for the one that a read names.
    ReaderServesAny = "reader-serves-unnamed";
    /// An anchor keeps the stamps of an older checkpoint for the newest one.
    AnchorNamesNewer = "anchor-names-newer-size";
    /// A cosigner's signature leaves before the record of it is durable.
    SignedBeforeSync = "signed-before-sync";
    /// An auditor signs versions that it has not replayed.
    SignedBeforeReplay = "signed-before-replay";
    /// A cosigner signs before others have said which of its lines they saw.
    CosignerFloorSkipped = "cosigner-floor-skipped";
    /// A cosigner follows a key change that one of the two keys has signed.
    ChangeSignedOnce = "key-change-with-one-signature";
    /// A cosigner halts by a file that proves nothing.
    EvidenceBelieved = "evidence-of-a-consistent-pair";
    /// A cosigner that has halted goes on after a restart.
    HaltForgotten = "halt-forgotten-at-restart";
}

impl Bug {
    /// Whether the bug concerns cosigners of a federation, and shows in runs of these alone.
    #[must_use]
    pub fn is_of_cosigners(self) -> bool {
        matches!(
            self,
            Self::SignedBeforeSync
                | Self::SignedBeforeReplay
                | Self::CosignerFloorSkipped
                | Self::ChangeSignedOnce
                | Self::EvidenceBelieved
                | Self::HaltForgotten
        )
    }

    /// Whether the bug concerns ledgers of members, and shows in runs with them alone.
    #[must_use]
    pub fn is_of_ledgers(self) -> bool {
        matches!(
            self,
            Self::RepeatedAppendRefused
                | Self::LaneForgotten
                | Self::CellLeftOut
                | Self::FloorLeftOut
                | Self::ErasuresLost
                | Self::NameLost
                | Self::SegmentsKept
                | Self::OnlyHidden
                | Self::ErasedWhenStaged
                | Self::AffectedMissed
        )
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(debug_assertions)]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static TURNS: Cell<u64> = const { Cell::new(0) };
    }

    /// Plants a bug, or none, in everything that runs on this thread from now on.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
        TURNS.set(0);
    }

    /// Whether the bug is planted.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Whether the bug is planted and strikes in this call, which it does once in `every` calls.
    #[must_use]
    pub fn strikes(bug: Bug, every: u64) -> bool {
        if !planted(bug) {
            return false;
        }
        TURNS.set(TURNS.get() + 1);
        TURNS.get().is_multiple_of(every)
    }
}

#[cfg(not(debug_assertions))]
mod switch {
    use super::Bug;

    /// Accepts `None` only, since this build has no bugs.
    ///
    /// # Panics
    /// If a bug is to be planted.
    pub fn plant(bug: Option<Bug>) {
        assert!(bug.is_none(), "only a build with debug_assertions has bugs to plant");
    }

    /// False: this build has no bugs.
    #[must_use]
    #[inline(always)]
    pub const fn planted(_bug: Bug) -> bool {
        false
    }

    /// False: this build has no bugs.
    #[must_use]
    #[inline(always)]
    pub const fn strikes(_bug: Bug, _every: u64) -> bool {
        false
    }
}

pub use switch::*;
