//! Files that a command reads: by name, or `-` for standard input.

use std::{
    fs,
    io::{self, Read},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::failure::Failure;

/// Most bytes that are read from standard input: a proof file has at most 64 MiB.
const STDIN_BYTES_MAX: u64 = 64 << 20;

/// Whether standard input has been read: a second reader would find nothing.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether a file's name means standard input or output.
#[must_use]
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads a file, or standard input.
///
/// # Errors
/// If the file can't be read, or if standard input was read before or is too large.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    if !is_standard(path) {
        return fs::read(path).map_err(|error| Failure::file(path, &error));
    }
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Failure::usage("`-` is named twice, and standard input can be read once"));
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Failure::usage(format!("standard input has more than {STDIN_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
