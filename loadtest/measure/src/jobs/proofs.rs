//! Sizes and times of proofs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use coppice_env::{Clock, SystemClock};
use coppice_types::Version;

use super::common::{Outcome, Puts, Scale, load_all, settle};
use crate::{
    coppice::Coppice,
    figures::Sample,
    statistics::Summary,
    system::{Proofs, System},
    workload::key,
};

/// Keys that are proven, from the first batch of the load.
const PROVEN: u64 = 2000;
/// Keys of one multiproof.
const TOGETHER: usize = 100;

/// Proofs of any system that makes them, after a load in random order.
///
/// # Errors
/// If the system fails, or a proof does not verify.
pub fn proofs(system: &mut dyn System, scale: &Scale) -> Result<Outcome> {
    load_all(system, &mut scale.workload(), scale.batch, false)?;
    settle(system)?;
    let keys: Vec<Vec<u8>> = (0..PROVEN.min(scale.records)).map(key).collect();
    let mut sample = Sample::new();
    system.prove(&keys)?;
    let proofs = system.prove(&keys)?.context("this system proves nothing")?;
    note(&mut sample, "proof", &proofs);
    Ok(Outcome { sample, series: Vec::new() })
}

fn note(sample: &mut Sample, name: &str, proofs: &Proofs) {
    let sizes = Summary::of(&proofs.bytes).expect("keys were proven");
    let each = |duration: std::time::Duration| duration.as_secs_f64() * 1e6 / proofs.bytes.len() as f64;
    sample.insert(format!("{name}_bytes"), sizes.median);
    sample.insert(format!("{name}_make_us"), each(proofs.made_in));
    sample.insert(format!("{name}_verify_us"), each(proofs.verified_in));
}

/// Proofs of records that lie in the oldest of 1, 2, 3 ... trees. During the load, the number of
/// trees grew from 1, and an old version with each number can still be proven.
///
/// # Errors
/// If the engine fails, or a proof does not verify.
pub fn proofs_by_trees(mut store: Coppice, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    // The newest version with each number of trees, and the entries of its oldest tree.
    let mut newest: BTreeMap<usize, (Version, u64)> = BTreeMap::new();
    for numbers in workload.order(false).chunks(scale.batch) {
        let batch = workload.batch(numbers);
        Puts::default().put(&mut store, batch)?;
        let engine = store.engine();
        let entries = engine.shape(&engine.decided())?.entries;
        newest.insert(entries.len(), (engine.decided().version, entries.last().copied().unwrap_or(0)));
    }
    store.flush()?;
    // The first batch is in the oldest tree.
    let keys: Vec<Vec<u8>> = (0..PROVEN.min(scale.batch as u64)).map(key).collect();
    let mut sample = Sample::new();
    for (trees, (version, entries)) in newest {
        store.prove_at(version, &keys)?;
        note(&mut sample, &format!("proof_{trees}_trees"), &store.prove_at(version, &keys)?);
        sample.insert(format!("proof_{trees}_trees_oldest_entries"), entries as f64);
    }
    let mut together = keys;
    together.sort_unstable();
    let view = store.engine().view(&store.engine().decided())?;
    let (clock, mut bytes, mut count) = (SystemClock::new(), 0, 0);
    for keys in together.chunks_exact(TOGETHER) {
        bytes += view.prove_keys(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())?.len();
        count += keys.len();
    }
    if count > 0 {
        sample.insert("multiproof_100_bytes_per_key".to_owned(), bytes as f64 / count as f64);
        sample.insert("multiproof_100_make_us_per_key".to_owned(), clock.now().as_secs_f64() * 1e6 / count as f64);
    }
    Ok(Outcome { sample, series: Vec::new() })
}
