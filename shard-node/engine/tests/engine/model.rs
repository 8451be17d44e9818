//! Random operations against a map for each version.

use coppice_env::{Rng, SimRng};
use coppice_types::{Change, Operation, Params};

use crate::common::{
    checks::{check_all, check_names, check_refusals, check_some, reader},
    for_each_seed,
    model::{Model, Outcome},
    pick,
    replica::{Replica, check_gone},
    tiny_options, tiny_params,
    workload::{Command, Generator},
};

struct Run {
    rng: SimRng,
    generator: Generator,
    model: Model,
    replica: Replica,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let params = tiny_params(&mut rng);
        Self::with(rng, &params)
    }

    fn with(mut rng: SimRng, params: &Params) -> Self {
        let key_count = 8 + pick(&mut rng, 120);
        let generator = Generator::new(SimRng::new(rng.next_u64()), params, key_count);
        let options = tiny_options(&mut rng);
        Self { generator, model: Model::new(params), replica: Replica::new(params, options), rng }
    }

    fn apply(&mut self, command: &Command) -> Outcome {
        let expected = self.model.apply(command);
        assert_eq!(self.replica.apply(command), expected, "{command:?}");
        expected
    }

    fn step(&mut self) {
        let command = self.generator.next(&self.model);
        self.apply(&command);
        check_names(self.replica.engine(), &self.model);
        if self.rng.chance(300) {
            self.replica.act(&mut self.rng);
            check_names(self.replica.engine(), &self.model);
        }
        let mut reader = reader(&mut self.rng, &self.generator);
        check_some(self.replica.engine(), &self.model, &mut reader);
    }

    /// Stages operations on the tip and settles the version.
    fn commit(&mut self, operations: Vec<Operation>) {
        let tip = self.model.tip().clone();
        let mut forest = tip.forest.clone();
        let mut merges = Vec::new();
        if forest.frozen().len() >= 2 {
            let inputs = forest.frozen().to_vec();
            forest = forest.merge(0, inputs.len());
            merges.push(coppice_engine::MergeName { inputs, output: forest.frozen()[0] });
        }
        let stage = self.generator.stage_on(&self.model, &tip, merges, operations);
        let Outcome::State(state) = self.apply(&stage) else { panic!("the stage follows the tip") };
        self.apply(&Command::Settle(state));
    }

    /// Deletes every key and drops all history. Almost nothing may be left.
    fn finish(mut self) {
        self.replica.check_directory();
        self.replica.end_erasures().expect("erases");
        let sim = self.replica.sim.power_loss(1);
        check_gone(&sim, self.model.erased.values().map(|value| &value[..]));
        self.replica.check_directory();
        check_all(self.replica.engine(), &self.model);
        check_refusals(self.replica.engine(), &self.model);
        self.apply(&Command::AbortAll);
        let keys: Vec<Vec<u8>> = self.model.tip().live.keys().cloned().collect();
        let delete = |key: Vec<u8>| Operation { key: key.into(), change: Change::Delete };
        self.commit(keys.into_iter().map(delete).collect());
        // The tombstones are frozen and merged away.
        for byte in 0..4 {
            let count = u8::try_from(self.model.params.capacity.min(200)).expect("bounded");
            let key = |at: u8| vec![b'z', at];
            let put = |at| Operation { key: key(at).into(), change: Change::Put(vec![byte].into()) };
            self.commit((0..count).map(put).collect());
        }
        self.commit((0..200).map(|at| delete(vec![b'z', at])).collect());
        self.commit(Vec::new());
        self.apply(&Command::Prune { before: self.model.tip().stamp.version });
        for _ in 0..3 {
            self.replica.flush().expect("flushes");
        }
        check_all(self.replica.engine(), &self.model);
        let report = self.replica.check_directory();
        let usage = self.replica.engine().disk_usage().expect("asks");
        assert_eq!((report.versions, usage.versions), (1, 1));
        let records: u64 = self.model.tip().forest.entries().iter().sum();
        assert!(report.pages_used <= 12 + 4 * records, "{} pages for {records} records", report.pages_used);
        assert!(usage.value_live_bytes < 10_000, "{} value bytes for no value", usage.value_live_bytes);
    }
}

#[test]
fn an_engine_answers_as_the_model_does() {
    for_each_seed("an_engine_answers_as_the_model_does", 60, |seed| {
        let mut run = Run::new(seed);
        let steps = 60 + pick(&mut run.rng, 120);
        for _ in 0..steps {
            run.step();
        }
        run.finish();
    });
}

/// The left leaf, untouched since version 1, becomes the root. Its version does not show when the
/// right leaf was removed.
#[test]
fn a_delete_that_lowers_a_tree_is_in_the_history() {
    let params = Params { key_bytes_max: 16, node_bytes: 352, fanout: 4, capacity: 100, ..Params::default() };
    let mut run = Run::with(SimRng::new(0), &params);
    let put = |key: u8| Operation { key: vec![key].into(), change: Change::Put(vec![key].into()) };
    let delete = |key: u8| Operation { key: vec![key].into(), change: Change::Delete };
    let steps = [(1..=5).map(put).collect(), vec![put(5)], vec![delete(4), delete(5)], vec![put(1)]];
    let mut stamps = Vec::new();
    for operations in steps {
        run.commit(operations);
        stamps.push(run.model.tip().stamp);
    }
    let tip = run.model.tip().state;
    let view = run.replica.engine().view(&tip).expect("it is here");
    let changes = view.history(&[5], 10).expect("reads").changes;
    let found: Vec<_> = changes.iter().map(|change| (change.stamp, change.record.is_some())).collect();
    assert_eq!(found, [(stamps[2], false), (stamps[1], true), (stamps[0], true)]);
}
