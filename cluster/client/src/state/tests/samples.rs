//! The level of samples: lies are found by chance, in the expected number of versions.

use bytes::Bytes;
use coppice_types::Stamp;

use super::{
    super::{Level, Options, error::Error, follow::SAMPLE_FAILURES_MAX},
    model::Words,
    world::{World, words},
};

/// If k of n cached keys are proven for each version, a version misses a lie with the probability
/// 1 - k/n. On average it takes n/k versions.
const CACHED: usize = 20;
const SAMPLES: usize = 4;
/// Bounds the versions of one trial: 0.8^100 is below 10^-9.
const MISSED_MAX: u32 = 100;
const TRIALS: u32 = 300;

/// Counts the versions until a wrong value on the stream is found.
async fn lie_on_stream() -> u32 {
    let options = Options { level: Level::Sample(0.05), samples: Some(SAMPLES), ..Options::default() };
    let mut world = World::followed(options).await;
    world.model.lock().on_heads = Some(Box::new(|headed| {
        for change in headed.changes.iter_mut().filter(|change| change.key == "k0") {
            change.value = Bytes::from_static(b"a lie");
        }
    }));
    let all: Words = (0..CACHED).map(|key| (format!("k{key}"), Some("true".to_owned()))).collect();
    world.write(&all);
    for versions in 1..=MISSED_MAX {
        match world.show().await {
            Err(Error::Evidence(_)) => return versions,
            Err(error) => panic!("{error}"),
            // The versions behind it write a key that is cached already, so that their number
            // stays.
            Ok(()) => world.write(&words([("k1", Some(&versions.to_string()))])),
        };
    }
    panic!("{MISSED_MAX} versions do not find it");
}

#[tokio::test(start_paused = true)]
async fn samples_find_a_lie_on_the_stream_in_time() {
    let mut sum = 0;
    for _ in 0..TRIALS {
        sum += lie_on_stream().await;
    }
    let (mean, expected) = (f64::from(sum) / f64::from(TRIALS), CACHED as f64 / SAMPLES as f64);
    // The deviation of one trial is below n/k = 5, so that of the mean of 300 is below 0.3. This
    // bound is five times as far.
    assert!((mean - expected).abs() < 1.5, "{mean} versions on average, and not {expected}");
}

#[tokio::test(start_paused = true)]
async fn sampled_reads_find_lies() {
    let mut world = World::followed(Options { level: Level::Sample(0.1), ..Options::default() }).await;
    let at = world.write(&words([("a", Some("1"))]));
    world.show().await.expect("an honest stream");
    world.model.lock().lie = Some(Box::new(|got| {
        got.records[0] = Some((Bytes::from_static(b"a lie"), Stamp::new(0, 1)));
    }));
    let view = world.cache.at(at);
    // 0.9^200 is below 10^-9.
    for read in 0..200 {
        match view.get(format!("other {read}").as_bytes()).await {
            Ok(_) => {}
            Err(Error::Evidence(evidence)) => {
                assert!(evidence.why.contains("is not the proven one"), "{evidence}");
                assert!(world.cache.evidence().is_some() && world.cache.metrics().keys == 0);
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("200 reads do not find it");
}

/// At the level of proofs, samples find a ledger whose state does not follow from its journals.
#[tokio::test(start_paused = true)]
async fn samples_find_a_state_that_does_not_follow() {
    let world = World::followed(Options { samples: Some(1), ..Options::default() }).await;
    {
        let mut state = world.model.lock();
        state.commit(&words([("a", Some("in the journal"))]));
        let head = state.versions.last_mut().expect("a version");
        head.values.get_mut("a").expect("it was written").0 = "in the state".to_owned();
    }
    let Err(Error::Evidence(evidence)) = world.show().await else { panic!("it is believed") };
    assert!(!evidence.known.is_empty() && !evidence.shown.is_empty(), "{evidence:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_refuses_samples_loses_the_cache() {
    let options = Options { level: Level::Sample(0.0), samples: Some(1), ..Options::default() };
    let mut world = World::followed(options).await;
    world.write(&words([("a", Some("1"))]));
    world.show().await.expect("an honest stream");
    world.model.lock().refuse_proofs = true;
    let drops = world.cache.metrics().drops;
    for version in 0..SAMPLE_FAILURES_MAX {
        world.write(&words([("b", Some(&version.to_string()))]));
        world.show().await.expect("nothing contradicts anything");
    }
    let metrics = world.cache.metrics();
    assert_eq!((metrics.sample_failures, metrics.drops), (16, drops + 1));
}
