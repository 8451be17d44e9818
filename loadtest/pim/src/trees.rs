//! The tree of one block of each shape, in the engine and in emulated DPUs: how many leaves it has,
//! and what one lookup costs.

use anyhow::{Result, ensure};
use coppice_engine::{Engine, PrepareId, ShardState, StageRequest};
use coppice_env::{SimRng, SimStorage, Workers};
use coppice_pim::{DpuApi, Dpus, ImageOptions, LookupCost, Options, Query, Reader};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term};

/// DPUs that measure a lookup; each gets as many lookups as fill its tasklets many times.
const DPUS: u32 = 8;
const LOOKUPS: u32 = 4096;
/// Bytes of a record: a time, an amount and two addresses.
const VALUE_BYTES: usize = 56;

/// What the engine and the emulator say about the tree of an average block.
#[derive(Clone, Debug)]
pub struct Tree {
    pub records: u32,
    /// Nodes of each level, from the root to the leaves.
    pub widths: Vec<u32>,
    /// Bytes of the pages in the memories.
    pub bytes: u64,
    pub cost: LookupCost,
}

impl Tree {
    #[must_use]
    pub fn leaves(&self) -> u32 {
        self.widths[self.widths.len() - 1]
    }

    /// Levels of nodes, the leaves' among them.
    #[must_use]
    pub fn levels(&self) -> u32 {
        self.widths.len() as u32
    }
}

fn key(number: u32) -> Vec<u8> {
    // Addresses have no common beginnings.
    format!("{:08x}{number:012}", number.wrapping_mul(0x9e37_79b9)).into_bytes()
}

/// Makes the tree and looks its keys up, each in a batch of all.
///
/// # Errors
/// If the engine or the emulator fails.
pub fn measure(records: u32) -> Result<Tree> {
    let (engine, state) = ledger(records)?;
    let view = engine.view(&state)?;
    let place = view.tree_places()[0];
    let mut widths = vec![1];
    let mut level: Vec<_> = place.root.into_iter().collect();
    while level.first().is_some_and(|node| node.level() > 0) {
        let below: Result<Vec<_>, _> = level.iter().map(|node| view.whole_node(node)).collect();
        level = below?.into_iter().flat_map(|node| node.children).collect();
        widths.push(level.len() as u32);
    }
    ensure!(!level.is_empty(), "the tree of a block has records");
    let dpus = Dpus::allocate(&DpuApi::emulator(), DPUS, "", "emulator:kernel")?;
    let image = ImageOptions { entries_min: 1, ..ImageOptions::default() };
    let options =
        Options { image, dpu_lookups_max: LOOKUPS as usize, small_batches_on_host: false, ..Options::default() };
    let mut reader = Reader::new(Some(dpus), options, Box::new(SimRng::new(1)))?;
    reader.insert(&view)?;
    reader.publish();
    let bytes = reader.counts().refreshed_bytes;
    // Keys that are there and keys between them: equal ones would be looked up once.
    let query = |number: u32| {
        let mut key = key(number % records);
        key.extend(
            (number / records > 0).then_some(format!("/{}", number / records)).into_iter().flat_map(String::into_bytes),
        );
        Query { state, key }
    };
    let queries: Vec<Query> = (0..LOOKUPS.max(records)).map(query).collect();
    reader.answer(&queries).into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure!(reader.counts().dpus_out == 0 && reader.counts().pim_lookups > 0, "the emulator answers");
    Ok(Tree { records, widths, bytes, cost: reader.lookup_cost() })
}

fn ledger(records: u32) -> Result<(Engine, ShardState)> {
    let options = coppice_engine::Options { workers: Workers::Inline, ..coppice_engine::Options::default() };
    let mut engine = Engine::create(SimStorage::new().storage(), ShardId(0), Params::default(), options)?;
    let put = |number: u32| Operation {
        key: key(number).into(),
        change: Change::Put(vec![number as u8; VALUE_BYTES].into()),
    };
    let mut operations: Vec<Operation> = (0..records).map(put).collect();
    operations.sort_by(|a, b| a.key.cmp(&b.key));
    let request = StageRequest {
        stamp: Stamp::new(0, 1),
        prepare_id: PrepareId { term: Term(1), attempt: 1 },
        base: engine.decided(),
        merges: &[],
        operations: &operations,
        erases: &[],
    };
    let state = engine.stage(&request)?.state;
    engine.settle(&state)?;
    Ok((engine, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_a_block_has_its_records_in_leaves_and_a_lookup_costs_transfers() {
        let small = measure(10).expect("it can be made");
        assert_eq!(small.widths, [1]);
        let large = measure(3285).expect("it can be made");
        assert!((2..=3).contains(&large.levels()) && (50..200).contains(&large.leaves()), "{large:?}");
        assert!(large.bytes > 3285 * 56, "{large:?}");
        assert!(large.cost.cycles > 300.0 && large.cost.transfers > 5.0, "{large:?}");
    }
}
