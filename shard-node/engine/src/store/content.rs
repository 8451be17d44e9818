//! The pages and values to be written, and the code that writes them.

use std::sync::Arc;

use coppice_env::{File, Workers};

use crate::{
    Error, Result,
    cache::Class,
    files::values::{Sealed, write_sealed},
    place::page::{PageFile, Pid},
};

/// Limit on the bytes in one write of neighbouring spans.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Pages to be written: a whole node, or a page of patches under the place of its first patch.
pub(crate) type Span = (Pid, Class, Arc<[u8]>);

/// Nodes and values to be written.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) files: [Arc<dyn File>; 3],
    /// The pages, sorted by place.
    pub(crate) spans: Vec<Span>,
    /// The values, in the order of the log.
    pub(crate) values: Vec<Sealed>,
    pub(crate) workers: Workers,
}

impl Content {
    /// Writes and syncs all files. They do not depend on each other.
    pub(crate) fn write(&self) -> Result<()> {
        let mut outcomes = [const { Ok(()) }; 4];
        let files = PageFile::ALL.into_iter().map(Some).chain([None]);
        let write = |(file, outcome): (Option<PageFile>, &mut Result<()>)| {
            *outcome = match file {
                None => write_sealed(&self.values),
                Some(file) => write_spans(&self.files, file, &self.spans),
            };
        };
        self.workers.share(files.zip(&mut outcomes), write, || ());
        outcomes.into_iter().collect()
    }
}

/// Writes the spans of one file, which are sorted by place, and syncs it if there are any.
/// Neighbouring spans take one write.
fn write_spans(files: &[Arc<dyn File>; 3], file: PageFile, spans: &[Span]) -> Result<()> {
    let mut spans = spans.iter().filter(|(pid, ..)| pid.file() == file).peekable();
    if spans.peek().is_none() {
        return Ok(());
    }
    let handle = &files[file as usize];
    let write = |run: &[&[u8]], at: u64| handle.write_parts_at(run, at).map_err(Error::io("write", file.name()));
    let mut run: Vec<&[u8]> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (pid, _, bytes) in spans {
        let at = pid.offset_bytes();
        let more = (end - start) as usize + bytes.len();
        if !run.is_empty() && (end != at || more > WRITE_BYTES_MAX) {
            write(&run, start)?;
            run.clear();
        }
        if run.is_empty() {
            start = at;
        }
        run.push(bytes);
        end = at + bytes.len() as u64;
    }
    write(&run, start)?;
    handle.sync_data().map_err(Error::io("sync", file.name()))
}
