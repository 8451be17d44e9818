//! Small files of the folder, each written whole.

use std::io;

use coppice_env::{OpenMode, Storage};

/// Writes a file of a folder beside its place, and puts it there once it is durable. A crash leaves
/// the old file or the new one.
pub fn put(storage: &dyn Storage, dir: &str, path: &str, bytes: &[u8]) -> io::Result<()> {
    storage.create_dir_all(dir)?;
    let aside = format!("{path}.new");
    let file = storage.open(&aside, OpenMode::OpenOrCreate)?;
    file.set_len(0)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    storage.rename(&aside, path)?;
    storage.sync_dir(dir)
}

/// The first bytes of a file, at most so many.
pub fn get(storage: &dyn Storage, path: &str, most: usize) -> io::Result<Vec<u8>> {
    let file = storage.open(path, OpenMode::Existing)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX).min(most)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
