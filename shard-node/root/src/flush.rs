//! The writes of one flush, apart from the machine. They may run on another thread while the
//! machine applies commands.
//!
//! `durable` says in which order they become durable and what a crash leaves of them.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::Storage;

use crate::{
    Error,
    journal::{self, Unwritten},
    store,
    superblock::{SUPERBLOCK, Superblock, state_path},
};

/// All that one flush writes.
#[derive(Debug)]
pub struct Flush {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) journal: Vec<Arc<Unwritten>>,
    pub(crate) files: BTreeMap<String, Arc<[u8]>>,
    /// The whole state, if it is saved. Its name has the superblock's generation.
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) superblock: Superblock,
    /// The outcome, once the writes have run.
    pub(crate) outcome: Option<Result<(), Error>>,
}

impl Flush {
    /// Runs the writes. [`Root::end_flush`](crate::Root::end_flush) tells whether they succeeded.
    pub fn run(&mut self) {
        self.outcome = Some(self.write());
    }

    fn write(&self) -> Result<(), Error> {
        let storage = &*self.storage;
        journal::write(storage, &self.journal)?;
        store::write_files(storage, &self.files)?;
        if let Some(bytes) = &self.state {
            let name = state_path(self.superblock.generation);
            store::write_file(storage, &name, bytes)?;
            store::sync_parents(storage, [name.as_str()].into_iter())?;
        }
        store::write_file(storage, SUPERBLOCK, &self.superblock.file())?;
        store::sync_parents(storage, [SUPERBLOCK].into_iter())
    }
}
