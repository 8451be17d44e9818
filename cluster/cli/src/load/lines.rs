//! JSON lines, gzipped or not: each line is one batch.
//!
//! The metadata field `input` of each batch is a hash of all lines up to its own, in hex. It is the
//! SHA-256 of the previous hash (nothing for the first line) and the line, without surrounding
//! white space. So a batch occurs in two inputs only if the inputs are equal up to there.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use coppice_http::line::Line;
use coppice_proto::v1;
use coppice_types::Params;
use coppice_verify::hash::sha256;
use flate2::bufread::MultiGzDecoder;
use serde_json::{Map, Value, json};

use super::source::{Item, Source};
use crate::failure::Failure;

/// An open input of JSON lines.
pub(crate) struct Lines {
    name: String,
    input: Box<dyn BufRead>,
    number: u64,
    read: Arc<AtomicU64>,
    total: Option<u64>,
    line_bytes_max: u64,
    /// The hash of the lines so far.
    so_far: Vec<u8>,
}

/// Counts the bytes that pass, before they are decompressed.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Lines {
    /// Opens a file, or standard input for `-`.
    pub(crate) fn open(path: &Path, params: &Params) -> Result<Self, Failure> {
        let read = Arc::new(AtomicU64::new(0));
        let (raw, total): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
            let total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
            (Box::new(file), total)
        };
        let mut input = BufReader::with_capacity(1 << 16, Counted { inner: raw, count: Arc::clone(&read) });
        let start = input.fill_buf().map_err(|error| Failure::file(path, &error))?;
        let gzipped = start.starts_with(&[0x1f, 0x8b]);
        let input: Box<dyn BufRead> =
            if gzipped { Box::new(BufReader::new(MultiGzDecoder::new(input))) } else { Box::new(input) };
        // JSON writes a byte in up to six characters (`\u0000`), hex in two.
        let line_bytes_max = u64::from(params.batch_bytes_max) * 6 + (1 << 20);
        Ok(Self { name: path.display().to_string(), input, number: 0, read, total, line_bytes_max, so_far: Vec::new() })
    }

    fn read_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut line = Vec::new();
        let place = format!("{} line {}", self.name, self.number + 1);
        let mut limited = self.input.by_ref().take(self.line_bytes_max);
        let read = limited.read_until(b'\n', &mut line).map_err(|error| Failure::usage(format!("{place}: {error}")))?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if read as u64 == self.line_bytes_max {
            return Err(Failure::usage(format!(
                "{place}: longer than any batch may be ({} bytes)",
                self.line_bytes_max
            )));
        }
        self.number += 1;
        Ok(Some(line))
    }
}

impl Source for Lines {
    fn next(&mut self) -> Result<Option<Item>, Failure> {
        loop {
            let Some(line) = self.read_line()? else { return Ok(None) };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let place = format!("{} line {}", self.name, self.number);
            let line = line.trim_ascii();
            self.so_far.extend_from_slice(line);
            self.so_far = sha256(&self.so_far).0.to_vec();
            let batch = parse(line, &self.so_far).map_err(|failure| failure.during(&place))?;
            return Ok(Some(Item { batch, identity: line.to_vec(), place }));
        }
    }

    fn progress(&self) -> (u64, Option<u64>) {
        (self.read.load(Ordering::Relaxed), self.total)
    }

    fn skipped(&self) -> &[String] {
        &[]
    }
}

/// Reads a line; `so_far` is the hash of the lines up to it.
fn parse(line: &[u8], so_far: &[u8]) -> Result<v1::Batch, Failure> {
    let line = Line::parse(line).map_err(|what| {
        Failure::usage(format!("no batch: {what}")).hint("`coppice load --help` shows what a line looks like.")
    })?;
    let operations = line.operations;
    let mut metadata = Map::from_iter([("input".to_owned(), json!(hex::encode(so_far)))]);
    metadata.extend(line.notes);
    let metadata = Value::Object(metadata).to_string().into_bytes();
    Ok(v1::Batch { operations, metadata: metadata.into(), exclusive: true, ..v1::Batch::default() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read_all(path: &Path) -> Result<Vec<Item>, Failure> {
        let mut lines = Lines::open(path, &Params::default())?;
        let mut items = Vec::new();
        while let Some(item) = lines.next()? {
            items.push(item);
        }
        Ok(items)
    }

    #[test]
    fn plain_and_gzipped_files_read_the_same() {
        let text = "{\"put\":[[\"k\",\"v\"]],\"note\":\"n\",\"time_ms\":5}\n\n{\"encoding\":\"hex\",\"put\":[[\"0x00\",\"ff\"]],\"delete\":[\"0x01\"]}";
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (plain, packed) = (dir.path().join("plain"), dir.path().join("packed.gz"));
        std::fs::write(&plain, text).expect("a file can be written");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory takes it");
        std::fs::write(&packed, encoder.finish().expect("memory takes it")).expect("a file can be written");
        for path in [plain, packed] {
            let items = read_all(&path).expect("two batches");
            assert_eq!(items.len(), 2);
            let lines: Vec<&str> = text.split("\n\n").collect();
            let first = sha256(lines[0].as_bytes());
            let second = sha256(&[&first.0[..], lines[1].as_bytes()].concat());
            let metadata = format!("{{\"input\":\"{first}\",\"note\":\"n\",\"time_ms\":5}}");
            assert_eq!(items[0].batch.metadata, metadata.as_bytes());
            assert_eq!(items[1].batch.metadata, format!("{{\"input\":\"{second}\"}}").as_bytes());
            assert!(items.iter().all(|item| item.batch.exclusive));
            assert_eq!(items[1].batch.operations[0].key.as_ref(), [0]);
            assert_eq!(items[1].batch.operations[1].change, Some(v1::operation::Change::Delete(true)));
            assert!(items[1].place.ends_with("line 3"));
        }
    }

    #[test]
    fn inputs_share_batches_only_as_far_as_they_are_the_same() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lines");
        let batches = |text: &str| {
            std::fs::write(&path, text).expect("a file can be written");
            let items = read_all(&path).expect("lines");
            items.into_iter().map(|item| item.batch).collect::<Vec<_>>()
        };
        let monday = batches("{\"delete\":[\"begin\"]}\n{\"put\":[[\"k\",\"1\"]]}\n{\"delete\":[\"end\"]}\n");
        let tuesday = batches("{\"delete\":[\"begin\"]}\n{\"put\":[[\"k\",\"2\"]]}\n{\"delete\":[\"end\"]}\n");
        let same: Vec<bool> = monday.iter().zip(&tuesday).map(|(left, right)| left == right).collect();
        assert_eq!(same, [true, false, false]);
        let longer = batches("{\"delete\":[\"begin\"]}\r\n\n {\"put\":[[\"k\",\"1\"]]}\n{\"delete\":[\"end\"]}\n{}");
        assert_eq!(longer[..3], monday[..]);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lines");
        let cases = [
            ("{\"put\":[[\"k\"]]}", "line 1"),
            ("{}\nnot json", "line 2"),
            ("{\"puts\":[]}", "unknown field"),
            ("{\"encoding\":\"base64\"}", "unknown variant"),
            ("{\"encoding\":\"hex\",\"put\":[[\"xyz\",\"00\"]]}", "is not hex"),
            ("{\"put\":[[\"\",\"v\"]]}", "at least one byte"),
            ("[1,2]", "no batch"),
            ("{}\n[]", "line 2: no batch"),
            ("[null,null,\"utf8\",[[\"k\",\"v\"]],[]]", "no batch"),
            ("\"text\"", "no batch"),
            ("null", "no batch"),
            ("{\"put\":[[\"k\",\"v\"]]", "EOF"),
        ];
        for (text, expected) in cases {
            std::fs::write(&path, text).expect("a file can be written");
            let failure = read_all(&path).map(|items| items.len()).expect_err(text);
            assert!(failure.message.contains(expected), "{text}: {}", failure.message);
        }
        std::fs::write(&path, [0x1f, 0x8b, 8, 0, 1, 2]).expect("a file can be written");
        assert!(read_all(&path).is_err(), "a torn gzip file is not an input");
    }
}
