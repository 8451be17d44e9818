//! Records of what clients saw, as files of lines.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::PathBuf,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use coppice_types::Digest;
use coppice_verify::{checkpoint::Checkpoint, note::VerifierKey};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::options::Options;

/// The number of proof files that are kept for the offline verifier.
const PROOFS_MAX: u64 = 400;

/// One operation, as the checker reads it.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub client: u32,
    pub group: String,
    pub kind: &'static str,
    pub call: u64,
    #[serde(rename = "return")]
    pub answered: u64,
    pub outcome: &'static str,
    pub values: [Option<String>; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
}

/// Files that grow line by line, shared by all clients.
#[derive(Debug)]
pub struct Recorder {
    begin: Instant,
    key: VerifierKey,
    history: Mutex<BufWriter<File>>,
    findings: Mutex<BufWriter<File>>,
    checkpoints: Mutex<(BufWriter<File>, BTreeMap<u64, Digest>)>,
    counts: Mutex<BTreeMap<String, u64>>,
    proofs: PathBuf,
    proofs_kept: AtomicU64,
    slots: Vec<AtomicU64>,
    group_operations: u64,
    seed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no client panics while it writes a line")
}

impl Recorder {
    pub fn create(options: &Options, key: VerifierKey) -> Result<Self> {
        let proofs = options.out.join("proofs");
        fs::create_dir_all(&proofs).with_context(|| proofs.display().to_string())?;
        let file = |name: &str| {
            let path = options.out.join(name);
            File::create(&path).map(BufWriter::new).with_context(|| path.display().to_string())
        };
        Ok(Self {
            begin: Instant::now(),
            key,
            history: Mutex::new(file("history.jsonl")?),
            findings: Mutex::new(file("findings.jsonl")?),
            checkpoints: Mutex::new((file("checkpoints.jsonl")?, BTreeMap::new())),
            counts: Mutex::new(BTreeMap::new()),
            proofs,
            proofs_kept: AtomicU64::new(0),
            slots: (0..options.groups.max(1)).map(|_| AtomicU64::new(0)).collect(),
            group_operations: options.group_operations.max(1),
            seed: options.seed,
        })
    }

    /// Nanoseconds since the start; never 0.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).expect("a run is shorter than 584 years") + 1
    }

    /// The current group of a slot. After a number of operations the slot gets a fresh group.
    pub fn group(&self, choice: u64) -> String {
        let count = u64::try_from(self.slots.len()).expect("few slots");
        let slot = usize::try_from(choice % count).expect("few slots");
        let used = self.slots[slot].fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{slot}-{:05}", self.seed, used / self.group_operations)
    }

    /// Records an operation. The line is flushed at once, for programs that watch the progress.
    pub fn line(&self, line: &Line) -> Result<()> {
        self.count(&format!("{} {}", line.kind, line.outcome));
        let mut file = lock(&self.history);
        writeln!(file, "{}", serde_json::to_string(line)?)?;
        Ok(file.flush()?)
    }

    /// Counts an event.
    pub fn count(&self, what: &str) {
        *lock(&self.counts).entry(what.to_owned()).or_default() += 1;
    }

    /// Records an answer that must never be given.
    pub fn finding(&self, client: u32, what: &str) -> Result<()> {
        self.count("findings");
        let mut file = lock(&self.findings);
        writeln!(file, "{}", json!({ "client": client, "at": self.now(), "what": what }))?;
        Ok(file.flush()?)
    }

    /// Records a checkpoint that a client received, and compares it with others of the same size.
    pub fn checkpoint(&self, client: u32, note: &[u8]) -> Result<()> {
        let checkpoint = match Checkpoint::open(note, &self.key) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return self.finding(client, &format!("a checkpoint that does not hold: {error}")),
        };
        let known = {
            let mut seen = lock(&self.checkpoints);
            let known = seen.1.insert(checkpoint.size, checkpoint.root);
            if known.is_none() {
                let root = checkpoint.root.to_string();
                let line = json!({ "size": checkpoint.size, "root": root, "note": String::from_utf8_lossy(note) });
                writeln!(seen.0, "{line}")?;
            }
            known
        };
        match known {
            Some(root) if root != checkpoint.root => {
                self.finding(client, &format!("two checkpoints of size {}", checkpoint.size))
            }
            _ => Ok(()),
        }
    }

    /// Keeps a proof file for the offline verifier, up to a number of files.
    pub fn proof(&self, kind: &str, file: &[u8]) -> Result<()> {
        let number = self.proofs_kept.fetch_add(1, Ordering::Relaxed);
        if number < PROOFS_MAX {
            let path = self.proofs.join(format!("{kind}-{number:04}.proof"));
            fs::write(&path, file).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Flushes all files.
    pub fn finish(&self) -> Result<()> {
        lock(&self.history).flush()?;
        lock(&self.findings).flush()?;
        Ok(lock(&self.checkpoints).0.flush()?)
    }

    /// The counts of all events, as JSON.
    pub fn summary(&self) -> String {
        json!(*lock(&self.counts)).to_string()
    }
}
