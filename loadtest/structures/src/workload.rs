//! Data for writes and reads: records like YCSB's, a history of documents, accounts of a chain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use coppice_env::{Rng, SimRng};
use flate2::read::GzDecoder;
use serde::Deserialize;

use crate::subject::Write;

/// The greatest number of keys for lookups and proofs.
const READS: usize = 20_000;

/// The amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Less than two minutes.
    Quick,
    /// The full amount.
    Full,
}

/// Versions to make, and questions to ask.
#[derive(Debug)]
pub struct Workload {
    /// The name in reports.
    pub name: String,
    /// A description for reports.
    pub about: String,
    /// The first versions, whose cost is counted separately.
    pub load: Vec<Vec<Write>>,
    /// The later versions.
    pub updates: Vec<Vec<Write>>,
    /// The content of the newest version.
    pub state: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Keys in the newest version, in the order of lookups.
    pub reads: Vec<Vec<u8>>,
    /// Keys that are not in the newest version.
    pub absent: Vec<Vec<u8>>,
    /// Two batches on the newest version, to merge.
    pub branches: [Vec<Write>; 2],
    /// The number of keys that both batches set to different values.
    pub conflicts: usize,
}

impl Workload {
    fn new(name: String, about: String, load: Vec<Vec<Write>>, updates: Vec<Vec<Write>>, seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let mut state = BTreeMap::new();
        for Write { key, value } in load.iter().chain(&updates).flatten() {
            match value {
                Some(value) => state.insert(key.clone(), value.clone()),
                None => state.remove(key),
            };
        }
        let keys: Vec<&Vec<u8>> = state.keys().collect();
        let reads = (0..READS).map(|_| pick(&mut rng, &keys).to_vec()).collect();
        let absent =
            keys.iter().take(READS).map(|key| [key, &b"~"[..]].concat()).filter(|key| !state.contains_key(key));
        let absent = absent.collect();
        let (branches, conflicts) = branches(&state, &keys, &mut rng);
        Self { name, about, load, updates, state, reads, absent, branches, conflicts }
    }
}

fn pick<'k>(rng: &mut SimRng, keys: &[&'k Vec<u8>]) -> &'k [u8] {
    keys[rng.below(keys.len() as u64) as usize]
}

/// Makes two batches: 90 in 100 keys of each occur only there, and the others occur in both, with
/// different values.
fn branches(state: &BTreeMap<Vec<u8>, Vec<u8>>, keys: &[&Vec<u8>], rng: &mut SimRng) -> ([Vec<Write>; 2], usize) {
    let count = (keys.len() / 20).clamp(10, 1000);
    let mut chosen = BTreeSet::new();
    while chosen.len() < 2 * count - count / 10 {
        chosen.insert(pick(rng, keys));
    }
    let mut chosen: Vec<&[u8]> = chosen.into_iter().collect();
    // The keys are shuffled so that the two batches interleave.
    for at in (1..chosen.len()).rev() {
        chosen.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let batch = |keys: &[&[u8]], mark: u8| {
        let write = |key: &&[u8]| {
            let mut value = state[*key].clone();
            match value.last_mut() {
                Some(last) => *last ^= mark,
                None => value.push(mark),
            }
            Write { key: key.to_vec(), value: Some(value) }
        };
        let mut batch: Vec<Write> = keys.iter().map(write).collect();
        batch.sort_by(|a, b| a.key.cmp(&b.key));
        batch
    };
    let shared = count / 10;
    let (left, right) = (&chosen[..count], &chosen[count - shared..]);
    ([batch(left, 0x55), batch(right, 0x2a)], shared)
}

/// Keeps one write for each key, in key order.
fn fold(writes: impl IntoIterator<Item = Write>) -> Vec<Write> {
    let folded: BTreeMap<Vec<u8>, Option<Vec<u8>>> = writes.into_iter().map(|write| (write.key, write.value)).collect();
    folded.into_iter().map(|(key, value)| Write { key, value }).collect()
}

/// Ranks by Zipf's law, drawn as YCSB does (Gray et al., SIGMOD 1994).
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// A source of ranks below `items`; `theta` is in 0..1, and 0 is even.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let (all, two) = (zeta(items), zeta(2));
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - two / all);
        Self { items, theta, alpha: 1.0 / (1.0 - theta), zeta: all, eta }
    }

    /// Draws a rank.
    pub fn next(&self, rng: &mut SimRng) -> u64 {
        let even = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = even * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * even - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// A key of YCSB: the rank's hash in decimal, so that neighbours in rank are not neighbours in the
/// key space.
fn ycsb_key(rank: u64) -> Vec<u8> {
    // The finaliser of SplitMix64.
    let mut hash = rank.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("user{:020}", hash ^ hash >> 31).into_bytes()
}

fn field(rng: &mut SimRng) -> Vec<u8> {
    let mut field = vec![0; 100];
    rng.fill(&mut field);
    field.iter_mut().for_each(|byte| *byte = b' ' + *byte % 95);
    field
}

/// Records with one field of 100 bytes, then updates by Zipf's law.
#[must_use]
pub fn ycsb(scale: Scale, theta: f64) -> Workload {
    let (records, batch, versions) = match scale {
        Scale::Quick => (20_000, 500, 20),
        Scale::Full => (100_000, 1000, 40),
    };
    let mut rng = SimRng::new(7);
    let zipf = Zipf::new(records, theta);
    let load = (0..records / batch).map(|at| {
        let write = |rank| Write { key: ycsb_key(rank), value: Some(field(&mut rng)) };
        fold((at * batch..(at + 1) * batch).map(write))
    });
    let load = load.collect();
    let updates = (0..versions)
        .map(|_| fold((0..batch).map(|_| Write { key: ycsb_key(zipf.next(&mut rng)), value: Some(field(&mut rng)) })));
    let updates = updates.collect();
    let about = format!(
        "{records} records of 24 B + 100 B, loaded {batch} a version; then {versions} versions of {batch} puts by Zipf {theta}"
    );
    let mut workload = Workload::new(format!("YCSB-like, Zipf {theta}"), about, load, updates, 8);
    workload.reads = (0..READS).map(|_| ycsb_key(zipf.next(&mut rng))).collect();
    workload
}

/// The loads of several parties that share some of their records, each in an order of its own.
#[must_use]
pub fn parties(scale: Scale, count: usize, overlap_percent: u64) -> Vec<Vec<Vec<Write>>> {
    let (records, batch) = match scale {
        Scale::Quick => (5_000, 500),
        Scale::Full => (20_000, 1000),
    };
    let value = |rank: u64| Some(field(&mut SimRng::new(rank)));
    (0..count as u64)
        .map(|party| {
            let shared = records * overlap_percent / 100;
            let mut ranks: Vec<u64> =
                (0..shared).chain((shared..records).map(|rank| rank + (party + 1) * records)).collect();
            let mut rng = SimRng::new(party);
            for at in (1..ranks.len()).rev() {
                ranks.swap(at, rng.below(at as u64 + 1) as usize);
            }
            ranks
                .chunks(batch)
                .map(|ranks| fold(ranks.iter().map(|rank| Write { key: ycsb_key(*rank), value: value(*rank) })))
                .collect()
        })
        .collect()
}

/// A line of a file of batches.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    put: Vec<(String, String)>,
    #[serde(default)]
    delete: Vec<String>,
}

/// Reads the batches of a gzipped file of JSON lines; each becomes a version.
fn read_batches(path: &Path) -> Result<Vec<Vec<Write>>> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let parse = |line: std::io::Result<String>| {
        let line: Line = serde_json::from_str(&line?)?;
        let bytes = |text: String| match line.encoding.as_deref() {
            None | Some("utf8") => Ok(text.into_bytes()),
            Some("hex") => Ok(hex::decode(text.strip_prefix("0x").unwrap_or(&text))?),
            Some(other) => bail!("encoding {other}"),
        };
        let mut writes = Vec::new();
        for key in line.delete {
            writes.push(Write { key: bytes(key)?, value: None });
        }
        for (key, value) in line.put {
            writes.push(Write { key: bytes(key)?, value: Some(bytes(value)?) });
        }
        Ok(fold(writes))
    };
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(parse).collect::<Result<_>>().with_context(|| format!("{}", path.display()))
}

/// The history of the Ethereum Improvement Proposals: documents by path, one version for each
/// commit.
///
/// # Errors
/// If the file is missing or has a different format.
pub fn documents(dir: &Path) -> Result<Workload> {
    let mut versions = read_batches(&dir.join("eips-history.jsonl.gz"))?;
    ensure!(!versions.is_empty(), "{}: no versions", dir.display());
    let updates = versions.split_off(1);
    let about = format!("{} documents, then {} commits as they were made", versions[0].len(), updates.len());
    Ok(Workload::new("EIPs history".to_owned(), about, versions, updates, 9))
}

/// Ethereum's accounts at genesis, then blocks of transfers. The accounts are real; payers and
/// payees are drawn by Zipf's law.
///
/// # Errors
/// If the file is missing or has a different format.
pub fn accounts(dir: &Path, scale: Scale) -> Result<Workload> {
    let load = read_batches(&dir.join("ethereum-genesis.jsonl.gz"))?;
    let (blocks, transfers) = match scale {
        Scale::Quick => (40, 100),
        Scale::Full => (100, 200),
    };
    let accounts: Vec<&[u8]> = load.iter().flatten().map(|write| &write.key[..]).collect();
    let mut rng = SimRng::new(10);
    // Ranks follow a hash of the address, not the address itself.
    let mut ranks: Vec<usize> = (0..accounts.len()).collect();
    for at in (1..ranks.len()).rev() {
        ranks.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let zipf = Zipf::new(ranks.len() as u64, 0.9);
    let updates = (0..blocks).map(|_| {
        let balance = |rng: &mut SimRng| {
            let mut wei = vec![0; 32];
            rng.fill(&mut wei[20..]);
            let key = accounts[ranks[zipf.next(rng) as usize]].to_vec();
            Write { key, value: Some(wei) }
        };
        fold((0..2 * transfers).map(|_| balance(&mut rng)))
    });
    let updates: Vec<_> = updates.collect();
    let about = format!(
        "{} accounts of 20 B + 32 B, then {blocks} blocks of {transfers} made-up transfers by Zipf 0.9",
        accounts.len()
    );
    drop(accounts);
    Ok(Workload::new("Ethereum accounts".to_owned(), about, load, updates, 11))
}
