//! Deliberate bugs, to see whether tests find them.
//!
//! A release holds none: without `debug_assertions` [`planted`] is a constant (a test). In a build for
//! development nothing changes until the simulator plants a bug in its own thread.

use std::fmt;

macro_rules! bugs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $variant,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[$(Bug::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

bugs! {
    /// The raft log says that it is durable without having synced.
    SkippedSync = "skipped-fsync";
    /// Term and vote are not made durable before they are spoken of.
    VoteForgotten = "vote-not-durable";
    /// The root group takes a header from a leader whose term is over.
    TermUnchecked = "term-check-left-out";
    /// A shard answers with its own digest, whatever the other replicas computed; and now and then one computes a wrong one.
    OneDigestBelieved = "one-digest-believed";
    /// Shards are told that a version is decided before its header is in the root log.
    FinalizedBeforeAppend = "finalize-before-append";
    /// A page is reused one superblock too early.
    PageReusedEarly = "page-reused-early";
    /// A replica of the root group answers reads without asking whether it is behind.
    StaleLeaderRead = "stale-leader-read";
    /// The root group forgets some numbers of sessions.
    SessionNumberLost = "session-number-lost";
    /// A new leader's first message drops what was decided and not yet told.
    NewTermDropsDecided = "new-term-drops-decided";
    /// A fence stands for ever if its rollback came to nothing.
    FenceNotLifted = "fence-not-lifted";
    /// A snapshot lacks its last page, and its hashes are not checked.
    SnapshotCutShort = "snapshot-without-last-page";
    /// A sender does not look at a snapshot that was refused as damaged.
    RefusalUnheeded = "refusal-unheeded";
    /// A shard finds the state that is read by the number of its version alone, and though it missed a rollback.
    MissedAdminServed = "missed-rollback-served";
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

    /// Plants a bug in everything that runs in this thread from now on, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
        TURNS.set(0);
    }

    /// The bug is planted.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// The bug is planted, and it is its turn: one of `every` calls.
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

    /// Plants nothing in this build.
    ///
    /// # Panics
    /// If a bug is to be planted.
    pub fn plant(bug: Option<Bug>) {
        assert!(bug.is_none(), "only a build with debug_assertions has bugs to plant");
    }

    /// No bug is planted in this build.
    #[must_use]
    #[inline(always)]
    pub const fn planted(_bug: Bug) -> bool {
        false
    }

    /// No bug is planted in this build.
    #[must_use]
    #[inline(always)]
    pub const fn strikes(_bug: Bug, _every: u64) -> bool {
        false
    }
}

pub use switch::*;
