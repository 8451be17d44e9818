//! A storage together with a second, cheaper one.

use std::{io, sync::Arc};

use crate::storage::{File, OpenMode, Storage};

/// Two storages. Every call goes to the hot one. Users put files into the cold one themselves,
/// through [`Storage::cold`].
#[derive(Clone, Debug)]
pub struct TieredStorage {
    hot: Arc<dyn Storage>,
    cold: Arc<dyn Storage>,
}

impl TieredStorage {
    #[must_use]
    pub fn new(hot: Arc<dyn Storage>, cold: Arc<dyn Storage>) -> Self {
        Self { hot, cold }
    }
}

impl Storage for TieredStorage {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.hot.open(path, mode)
    }

    fn open_direct(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.hot.open_direct(path, mode)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.hot.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.hot.rename(from, to)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.hot.list(dir)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.hot.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.hot.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.hot.free_bytes()
    }

    fn remove_dir_all(&self, dir: &str) -> io::Result<()> {
        self.hot.remove_dir_all(dir)
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.hot.lock(path)
    }

    fn subdir(&self, dir: &str) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Self { hot: self.hot.subdir(dir)?, cold: self.cold.subdir(dir)? }))
    }

    fn cold(&self) -> Option<Arc<dyn Storage>> {
        Some(Arc::clone(&self.cold))
    }
}
