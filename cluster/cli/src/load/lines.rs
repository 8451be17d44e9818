//! JSON lines, gzipped or not: one line is one batch.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use coppice_proto::v1::{self, operation::Change};
use coppice_types::Params;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use serde_json::json;

use super::{Item, Source};
use crate::{failure::Failure, text};

/// One line, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    time_ms: Option<u64>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    encoding: LineEncoding,
    #[serde(default)]
    put: Vec<(String, String)>,
    #[serde(default)]
    delete: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LineEncoding {
    #[default]
    Utf8,
    Hex,
}

/// An open input of JSON lines.
pub(crate) struct Lines {
    name: String,
    input: Box<dyn BufRead>,
    number: u64,
    read: Arc<AtomicU64>,
    total: Option<u64>,
    line_bytes_max: u64,
}

/// Counts the bytes that pass, before they are unpacked.
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
        // JSON writes a byte as up to six characters (`\u0000`), hex as two.
        let line_bytes_max = u64::from(params.batch_bytes_max) * 6 + (1 << 20);
        Ok(Self { name: path.display().to_string(), input, number: 0, read, total, line_bytes_max })
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
            let batch = parse(&line).map_err(|failure| failure.during(&place))?;
            return Ok(Some(Item { batch, identity: line, place }));
        }
    }

    fn progress(&self) -> (u64, Option<u64>) {
        (self.read.load(Ordering::Relaxed), self.total)
    }

    fn skipped(&self) -> &[String] {
        &[]
    }
}

fn parse(line: &[u8]) -> Result<v1::Batch, Failure> {
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        Failure::usage(format!("no batch: {error}")).hint("`coppice load --help` shows what a line looks like.")
    })?;
    let bytes = |text: String| match line.encoding {
        LineEncoding::Utf8 => Ok(text.into_bytes()),
        LineEncoding::Hex => text::parse_hex(&text),
    };
    let mut operations = Vec::with_capacity(line.put.len() + line.delete.len());
    for (key, value) in line.put {
        operations.push(v1::Operation { key: bytes(key)?.into(), change: Some(Change::Put(bytes(value)?.into())) });
    }
    for key in line.delete {
        operations.push(v1::Operation { key: bytes(key)?.into(), change: Some(Change::Delete(true)) });
    }
    if operations.iter().any(|operation| operation.key.is_empty()) {
        return Err(Failure::usage("a key has at least one byte"));
    }
    let metadata = match (line.time_ms, line.note) {
        (None, None) => Vec::new(),
        (time_ms, note) => json!({ "time_ms": time_ms, "note": note }).to_string().into_bytes(),
    };
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
            assert_eq!(items[0].batch.metadata, "{\"note\":\"n\",\"time_ms\":5}".as_bytes());
            assert!(items.iter().all(|item| item.batch.exclusive));
            assert_eq!(items[1].batch.operations[0].key.as_ref(), [0]);
            assert_eq!(items[1].batch.operations[1].change, Some(Change::Delete(true)));
            assert!(items[1].place.ends_with("line 3"));
        }
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
            ("{\"encoding\":\"hex\",\"put\":[[\"xyz\",\"00\"]]}", "no hex"),
            ("{\"put\":[[\"\",\"v\"]]}", "at least one byte"),
            ("[1,2]", "no batch"),
            ("{\"put\":[[\"k\",\"v\"]]", "EOF"),
        ];
        for (text, expected) in cases {
            std::fs::write(&path, text).expect("a file can be written");
            let failure = read_all(&path).map(|items| items.len()).expect_err(text);
            assert!(failure.message.contains(expected), "{text}: {}", failure.message);
        }
        std::fs::write(&path, [0x1f, 0x8b, 8, 0, 1, 2]).expect("a file can be written");
        assert!(read_all(&path).is_err(), "a torn gzip file is no input");
    }
}
