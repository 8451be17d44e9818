//! Costs of operations in nodes read and written, as the counters report them. They are promises of
//! the design, not tuning. The tests also check invariants while threads merge and write.

mod flushes;
mod merges;
mod reads;
mod versions;

use coppice_engine::{Counters, Engine, Options, Position, PrepareId, StageRequest, Writes};
use coppice_env::SimStorage;
use coppice_types::{Change, Epoch, Operation, Params, ShardId, Stamp, Term, Version};

const RECORDS: u64 = 8000;

struct Shard {
    engine: Engine,
    version: u64,
    index: u64,
}

impl Shard {
    fn new(params: Params, options: Options) -> Self {
        Self::on(&SimStorage::new(), params, options)
    }

    /// A shard in a directory that the test also inspects.
    fn on(sim: &SimStorage, params: Params, options: Options) -> Self {
        let engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
        Self { engine, version: 0, index: 0 }
    }

    /// A shard with one version of `RECORDS` records.
    fn loaded() -> Self {
        let mut shard = Self::new(Params::default(), Options::default());
        shard.commit((0..RECORDS).map(|number| put(number, b"first")).collect());
        shard.flush();
        shard
    }

    fn stage(&mut self, operations: &[Operation]) -> coppice_engine::ShardState {
        self.version += 1;
        let merges = self.engine.built_merges();
        let request = StageRequest {
            stamp: Stamp { epoch: self.engine.epoch(), version: Version(self.version) },
            prepare_id: PrepareId { term: Term(1), attempt: self.version },
            base: self.engine.decided(),
            merges: &merges,
            operations,
            erases: &[],
        };
        self.engine.stage(&request).expect("it follows the decided state").state
    }

    fn commit(&mut self, operations: Vec<Operation>) {
        let state = self.stage(&operations);
        self.engine.settle(&state).expect("staged");
    }

    fn flush(&mut self) {
        self.index += 1;
        self.engine.flush(Position { index: self.index, term: 1 }, b"").expect("room");
    }

    /// Runs and ends writes that were begun.
    fn write(&mut self, mut writes: Writes) {
        writes.run();
        self.engine.end_writes(writes).expect("nothing fails");
    }

    /// The amount that `run` adds to the counters, and its result.
    fn cost<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> (Counters, T) {
        let before = self.engine.counters();
        let out = run(self);
        let after = self.engine.counters();
        let gained = Counters {
            nodes_made: after.nodes_made - before.nodes_made,
            span_reads: after.span_reads - before.span_reads,
            inner_reads: after.inner_reads - before.inner_reads,
            span_writes: after.span_writes - before.span_writes,
            node_dirty_hits: after.node_dirty_hits - before.node_dirty_hits,
            node_young_hits: after.node_young_hits - before.node_young_hits,
            node_old_hits: after.node_old_hits - before.node_old_hits,
            value_reads: after.value_reads - before.value_reads,
            value_file_reads: after.value_file_reads - before.value_file_reads,
            shortcut_reads: after.shortcut_reads - before.shortcut_reads,
            shortcut_hits: after.shortcut_hits - before.shortcut_hits,
            ..Counters::default()
        };
        (gained, out)
    }
}

fn nodes_read(counters: &Counters) -> u64 {
    counters.span_reads + counters.node_dirty_hits + counters.node_young_hits + counters.node_old_hits
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:08}").into_bytes()
}

fn put(number: u64, value: &[u8]) -> Operation {
    Operation { key: key(number).into(), change: Change::Put(value.to_vec().into()) }
}

#[test]
fn prune_rollback_and_abort_read_and_write_no_page() {
    let mut shard = Shard::loaded();
    for round in 1..=30 {
        shard.commit(vec![put(round, b"next"), put(round * 100, b"next")]);
        if round % 7 == 0 {
            shard.flush();
        }
    }
    shard.stage(&[put(1, b"staged")]);
    let (cost, ()) = shard.cost(|shard| {
        shard.engine.prune(Version(10)).expect("usable");
        shard.engine.abort_all_staged();
        shard.engine.rollback(Version(20), Epoch(1)).expect("not pruned");
    });
    assert_eq!(cost, Counters::default());
}

#[test]
fn a_commit_touches_every_node_once() {
    let mut shard = Shard::loaded();
    let (cost, ()) = shard.cost(|shard| shard.commit((0..RECORDS).map(|number| put(number, b"again")).collect()));
    let (all, _) = shard.cost(|shard| {
        let state = shard.engine.decided();
        shard.engine.view(&state).expect("decided").range(b"", None, usize::MAX, false).expect("sound pages").records
    });
    let nodes = nodes_read(&all);
    assert!(nodes > 100);
    assert!(nodes_read(&cost) <= nodes && cost.nodes_made <= nodes, "{cost:?} for {nodes} nodes");
}
