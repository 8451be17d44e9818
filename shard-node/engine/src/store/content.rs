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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use coppice_env::{Fault, OpenMode, Operation, SimStorage, Storage};

    use super::*;
    use crate::place::page::PAGE_BYTES;

    /// The pages of a file, each filled with one byte.
    fn content(sim: &SimStorage, spans: &[(PageFile, u64, usize, u8)]) -> Content {
        let files = PageFile::ALL.map(|file| sim.open(file.name(), OpenMode::OpenOrCreate).expect("room"));
        sim.sync_dir("").expect("a sound disk");
        let span = |(file, first, pages, byte): &(PageFile, u64, usize, u8)| {
            (Pid::new(*file, *first, *pages), Class::Old, vec![*byte; pages * PAGE_BYTES].into())
        };
        Content { files, spans: spans.iter().map(span).collect(), values: Vec::new(), workers: Workers::Inline }
    }

    fn durable(sim: &SimStorage, file: PageFile) -> Vec<u8> {
        let file = sim.power_loss(1).open(file.name(), OpenMode::Existing).expect("it is there");
        let pages = file.len().expect("readable") / PAGE_BYTES as u64;
        let page = |page: u64| {
            let mut bytes = vec![0; PAGE_BYTES];
            file.read_exact_at(&mut bytes, page * PAGE_BYTES as u64).expect("readable");
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0]
        };
        (0..pages).map(page).collect()
    }

    #[test]
    fn spans_are_durable_at_their_places() {
        let sim = SimStorage::new();
        let (index, data) = (PageFile::Index, PageFile::Data);
        content(&sim, &[(index, 1, 1, 7), (data, 0, 2, 1), (data, 2, 1, 2), (data, 5, 1, 3)]).write().expect("room");
        assert_eq!(durable(&sim, index), [0, 7]);
        assert_eq!(durable(&sim, data), [1, 1, 2, 0, 0, 3]);
        assert_eq!(durable(&sim, PageFile::Patches), [0; 0]);
    }

    #[test]
    fn neighbouring_spans_take_one_write_up_to_its_limit() {
        let most = (WRITE_BYTES_MAX / PAGE_BYTES) as u64;
        let calls = |pages: &[u64]| {
            let sim = SimStorage::new();
            let spans: Vec<_> = pages.iter().map(|page| (PageFile::Data, *page, 1, 1)).collect();
            let content = content(&sim, &spans);
            let before = sim.io_count();
            content.write().expect("room");
            sim.io_count() - before
        };
        let run = |len| (0..len).collect::<Vec<u64>>();
        // The sync is one more.
        assert_eq!([calls(&[]), calls(&[3]), calls(&[3, 4, 5]), calls(&[3, 5])], [0, 2, 2, 3]);
        assert_eq!([calls(&run(most)), calls(&run(most + 1))], [2, 3]);
    }

    #[test]
    fn a_failure_of_any_file_is_reported() {
        for file in [PageFile::Index, PageFile::Data] {
            for operation in [Operation::Write, Operation::Sync] {
                let sim = SimStorage::new();
                let content = content(&sim, &[(PageFile::Index, 0, 1, 1), (PageFile::Data, 0, 1, 1)]);
                let path_part = file.name().to_owned();
                sim.inject(Fault { operation, path_part, skip: 0, kind: ErrorKind::TimedOut });
                assert!(matches!(content.write(), Err(Error::Io { file: failed, .. }) if failed == file.name()));
                content.write().expect("it can be repeated");
            }
        }
    }
}
