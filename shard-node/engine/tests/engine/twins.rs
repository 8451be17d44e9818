//! Replicas of one log that flush, restart, merge and prune at different times agree on every
//! digest and every proof.

use std::collections::BTreeSet;

use coppice_env::{Rng, SimRng};

use crate::common::{
    checks::check_names,
    for_each_seed,
    model::Model,
    pick,
    replica::Replica,
    tiny_options, tiny_params,
    workload::{Command, Generator},
};

/// A replica with its own schedule. It may postpone prunes until a rollback must find the boundary.
struct Twin {
    rng: SimRng,
    model: Model,
    replica: Replica,
    late: Vec<Command>,
    puts_off: bool,
}

impl Twin {
    fn apply(&mut self, command: &Command) {
        if self.puts_off && matches!(command, Command::Prune { .. }) {
            self.late.push(command.clone());
            return;
        }
        if matches!(command, Command::Rollback { .. }) || self.rng.chance(50) {
            self.catch_up();
        }
        self.execute(command);
        if self.rng.chance(300) {
            self.replica.act(&mut self.rng);
        }
    }

    fn catch_up(&mut self) {
        for prune in std::mem::take(&mut self.late) {
            self.execute(&prune);
        }
    }

    fn execute(&mut self, command: &Command) {
        let expected = self.model.apply(command);
        assert_eq!(self.replica.apply(command), expected, "{command:?}");
    }
}

fn assert_equal_proofs(one: &Twin, two: &Twin, generator: &mut Generator) {
    let shared: Vec<_> = one
        .model
        .entries
        .values()
        .filter(|entry| two.model.entries.values().any(|other| other.state == entry.state))
        .collect();
    let state = shared[pick(&mut generator.rng, shared.len())].state;
    let (one, two) = (one.replica.engine(), two.replica.engine());
    let (one, two) = (one.view(&state).expect("it is here"), two.view(&state).expect("it is here"));
    let keys: BTreeSet<Vec<u8>> = (0..4).map(|_| generator.any_key()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    assert_eq!(one.prove_keys(&keys).expect("proves"), two.prove_keys(&keys).expect("proves"));
    let low = generator.any_key();
    let high = Some(generator.any_key()).filter(|high| *high > low);
    let prove = |view: &coppice_engine::View<'_>| view.prove_range(&low, high.as_deref()).expect("proves");
    assert_eq!(prove(&one), prove(&two));
}

#[test]
fn replicas_agree_whatever_they_do_between() {
    for_each_seed("replicas_agree_whatever_they_do_between", 25, |seed| {
        let mut rng = SimRng::new(seed + 1_000_000);
        let params = tiny_params(&mut rng);
        let mut generator = Generator::new(SimRng::new(rng.next_u64()), &params, 60);
        let mut leader = Model::new(&params);
        let mut twins: Vec<Twin> = [false, false, true]
            .map(|puts_off| Twin {
                replica: Replica::new(&params, tiny_options(&mut rng)),
                rng: SimRng::new(rng.next_u64()),
                model: Model::new(&params),
                late: Vec::new(),
                puts_off,
            })
            .into();
        for _ in 0..150 {
            let command = generator.next(&leader);
            leader.apply(&command);
            for twin in &mut twins {
                twin.apply(&command);
                assert_eq!(twin.replica.engine().decided(), leader.tip().state);
            }
            let mut reader = generator.with_rng(SimRng::new(rng.next_u64()));
            assert_equal_proofs(&twins[0], &twins[1], &mut reader);
            assert_equal_proofs(&twins[0], &twins[2], &mut reader);
        }
        for twin in &mut twins {
            twin.catch_up();
            check_names(twin.replica.engine(), &twin.model);
            twin.replica.check_directory();
        }
    });
}
