//! Writing ahead of the flush: nodes and values that no superblock names yet go to their places while the engine goes on,
//! so that the flush has little left to write and sync.
//!
//! Invariants: what is written is in no state on disk, so a crash at any time leaves nothing but bytes that nothing refers
//! to; a node counts as written only if it is still the one at its place when the work has ended, and only after a sync;
//! a flush begins after the work has ended, so that what came to a place later is written later.

use std::sync::Arc;

use coppice_env::File;

use crate::{
    Engine, Result,
    page::PageFile,
    store::{Span, write_spans},
    values::{Sealed, write_sealed},
};

/// How much is written ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AheadScope {
    /// Values, and what merges made: what a prune or rollback of some recent versions leaves alone. The nodes of the active tree
    /// wait for the flush, since one that dies before it is never written, unless no version was pruned since the flush before the last.
    Lasting,
    /// Everything: a flush is due.
    All,
}

/// Writes that may be done beside the engine, on another thread: [`Engine::begin_ahead`] gives them, [`WriteAhead::run`]
/// does them, [`Engine::end_ahead`] takes them back.
#[derive(Debug)]
#[must_use = "the engine waits for its end"]
pub struct WriteAhead {
    pub(crate) files: [Option<Arc<dyn File>>; 3],
    /// By place.
    pub(crate) spans: Vec<Span>,
    /// In the order of the log.
    pub(crate) values: Vec<Sealed>,
    pub(crate) durable: bool,
}

impl WriteAhead {
    /// Writes and syncs. A failure is no error: the flush writes again, and says what is wrong.
    pub fn run(&mut self) {
        self.durable = self.write().is_ok();
    }

    fn write(&self) -> Result<()> {
        for file in PageFile::ALL {
            write_spans(&self.files, file, &self.spans)?;
        }
        write_sealed(&self.values)
    }
}

impl Engine {
    /// How many bytes of that are not written yet.
    #[must_use]
    pub fn behind_bytes(&self, scope: AheadScope) -> u64 {
        self.store.behind_bytes(self.lasting(scope))
    }

    /// How many bytes are worth a write ahead of a flush of so many. Where the active tree's nodes are among them, there are more, and none
    /// that may die.
    #[must_use]
    pub fn ahead_bytes_min(&self, flush_bytes: u64) -> u64 {
        flush_bytes / if self.keeps_all() { 4 } else { 16 }
    }

    /// Whether no version was pruned since the flush before the last.
    fn keeps_all(&self) -> bool {
        self.flushed_boundaries == [Some(self.meta.boundary); 2]
    }

    /// Where versions are not pruned, nodes of the active tree last, too.
    fn lasting(&self, scope: AheadScope) -> AheadScope {
        if self.keeps_all() { AheadScope::All } else { scope }
    }

    /// Those nodes and values, to be written ahead.
    ///
    /// # Panics
    /// If what was begun before was not given back.
    pub fn begin_ahead(&mut self, scope: AheadScope) -> WriteAhead {
        assert!(!self.ahead, "one at a time");
        self.ahead = true;
        self.store.begin_ahead(self.lasting(scope))
    }

    /// Takes back what [`Engine::begin_ahead`] gave; what was written durably, the next flush need not write.
    ///
    /// # Panics
    /// If it is not this engine's.
    pub fn end_ahead(&mut self, ahead: WriteAhead) {
        assert!(self.ahead, "none was begun");
        self.ahead = false;
        self.store.end_ahead(ahead);
    }
}
