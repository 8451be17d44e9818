//! A shortage of file descriptors: after any failure by it, the directory opens again when
//! descriptors are free, and nothing is lost.

use coppice_engine::{Engine, Error};
use coppice_env::{Rng, Shortage, SimRng};
use coppice_types::ErrorKind;

use crate::common::{
    checks::{check_all, check_some},
    for_each_seed,
    model::{Model, Outcome},
    pick,
    replica::{Replica, check_directory, dir, execute},
    tiny_options, tiny_params,
    workload::Generator,
};

/// Limit on the number of opens of files and directories before all further ones fail.
const OPENS_MAX: u64 = 3;

fn is_shortage(error: &Error) -> bool {
    let shortage = Shortage::behind(error) == Some(Shortage::Handles);
    assert!(!shortage || error.kind() == ErrorKind::Exhausted, "{error:?}");
    shortage
}

/// Opens the directory again, which fails while there are too few descriptors.
fn start_again(replica: Replica, rng: &mut SimRng) -> Replica {
    let (sim, options, log) = (replica.sim.clone(), replica.options.clone(), replica.log.clone());
    drop(replica.into_engine());
    for _ in 0..rng.below(4) {
        sim.set_opens_left(Some(rng.below(OPENS_MAX)));
        match Engine::open(dir(&sim), options.clone()) {
            Ok(engine) => drop(engine),
            Err(error) => assert!(is_shortage(&error), "{error:?}"),
        }
    }
    sim.set_opens_left(None);
    check_directory(&sim.process_loss());
    Replica::reopen(sim, options, log).expect("it opens when there are descriptors")
}

/// Background work of a replica.
fn work(replica: &mut Replica, rng: &mut SimRng) -> Result<(), Error> {
    match rng.below(4) {
        0 => replica.flush(),
        1 => {
            let mut writes = replica.begin_flush()?;
            writes.run();
            replica.engine_mut().end_writes(writes)
        }
        2 => {
            let mut writes = replica.engine_mut().begin_ahead();
            writes.run();
            replica.engine_mut().end_writes(writes)
        }
        _ => {
            let budget = [1, 5, 1000][pick(rng, 3)];
            replica.engine_mut().merge_step(budget).map(|_| ())
        }
    }
}

#[test]
fn a_replica_without_descriptors_opens_again_when_there_are_some_and_has_lost_nothing() {
    // Some seeds open nothing during a shortage.
    let all_shortages = std::cell::Cell::new(0);
    for_each_seed("a_replica_without_descriptors_opens_again_when_there_are_some_and_has_lost_nothing", 20, |seed| {
        let mut rng = SimRng::new(seed + 6_000_000);
        let params = tiny_params(&mut rng);
        let mut generator = Generator::new(SimRng::new(rng.next_u64()), &params, 40);
        let mut model = Model::new(&params);
        let mut replica = Replica::new(&params, tiny_options(&mut rng));
        let mut shortages = 0;
        for _ in 0..150 {
            if rng.chance(400) {
                replica.sim.set_opens_left(Some(rng.below(OPENS_MAX)));
            }
            let command = generator.next(&model);
            let expected = model.apply(&command);
            let outcome = execute(replica.engine_mut(), &command);
            replica.log.push((command, expected.clone()));
            // A replica starts again after a failed apply. After other failed work it continues,
            // unless the engine is unusable.
            let again = match outcome {
                Ok(outcome) => {
                    assert_eq!(outcome, expected);
                    match work(&mut replica, &mut rng) {
                        Err(Error::Poisoned) => true,
                        Err(error) => {
                            assert!(is_shortage(&error), "{error:?}");
                            shortages += 1;
                            false
                        }
                        Ok(()) => false,
                    }
                }
                Err(error) if is_shortage(&error) => {
                    shortages += 1;
                    true
                }
                Err(error) => {
                    assert_eq!(Outcome::Refused(error.reason()), expected);
                    false
                }
            };
            if again {
                replica = start_again(replica, &mut rng);
            }
            replica.sim.set_opens_left(None);
            let mut reader = generator.with_rng(SimRng::new(rng.next_u64()));
            check_some(replica.engine(), &model, &mut reader);
            if rng.chance(50) {
                let loss = replica.sim.power_loss(rng.next_u64());
                check_directory(&loss);
            }
        }
        replica = start_again(replica, &mut rng);
        check_all(replica.engine(), &model);
        replica.flush().expect("there are descriptors");
        replica.check_directory();
        all_shortages.set(all_shortages.get() + shortages);
    });
    assert!(all_shortages.get() > 0, "there was no shortage");
}
