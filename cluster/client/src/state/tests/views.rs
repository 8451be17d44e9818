//! Views: shared calls, staged batches, waits, gaps, own writes.

use bytes::Bytes;
use coppice_types::{Reason, Stamp};
use tokio::time::{Duration, Instant, timeout};

use super::{
    super::{
        Cache, Level, Options, View, Writes,
        error::Error,
        follow::{GAP_MAX, HEADERS_MAX, QUEUE_BYTES_MAX},
        options::PART_KEYS,
        shared::WAITS_MAX,
    },
    model::{Model, Words},
    world::{World, words},
};

/// A cache that begins behind these writes, so that it does not hold them.
async fn begun(writes: &Words) -> (World, View) {
    let mut world = World::followed(Options::default()).await;
    let at = world.write(writes);
    world.show().await.expect("an honest model");
    world.cache.begin(at);
    world.model.lock().reads = 0;
    let view = world.cache.at(at);
    (world, view)
}

/// Number of calls, and most keys of one.
fn calls(world: &World) -> (usize, usize) {
    let state = world.model.lock();
    (state.reads, state.largest)
}

fn value(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

fn writes<const N: usize>(writes: [(&str, Option<&str>); N]) -> Writes {
    words(writes).into_iter().map(|(key, value)| (key.into(), value.map(Bytes::from))).collect()
}

#[tokio::test(start_paused = true)]
async fn reads_of_one_key_are_one_call() {
    let (world, view) = begun(&words([("a", Some("1"))])).await;
    let first = world.hold(&view, "a").await;
    let others: Vec<_> = (0..20)
        .map(|_| {
            let view = view.clone();
            tokio::spawn(async move { view.get(b"a").await })
        })
        .collect();
    while world.cache.metrics().misses < 21 {
        tokio::task::yield_now().await;
    }
    assert_eq!(first.land().await.expect("a value"), value("1"));
    for other in others {
        assert_eq!(other.await.expect("no panic").expect("a value"), value("1"));
    }
    assert_eq!(world.model.lock().reads, 1);
}

#[tokio::test(start_paused = true)]
async fn reads_that_come_while_a_call_is_under_way_share_the_next_one() {
    let (world, view) = begun(&words([("a", Some("1")), ("b", Some("2"))])).await;
    let first = world.hold(&view, "a").await;
    let (b, c) = tokio::join!(view.get(b"b"), view.get(b"c"));
    assert_eq!((b.expect("a value"), c.expect("no value")), (value("2"), None));
    assert_eq!(calls(&world), (2, 2));
    first.land().await.expect("a value");
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_reads_parts_and_only_what_is_missing() {
    let count = 3 * PART_KEYS + 5;
    let names: Vec<String> = (0..count).map(|at| format!("{at:05}")).collect();
    let (world, view) = begun(&names.iter().map(|name| (name.clone(), Some(name.clone()))).collect()).await;
    let twice = names.iter().flat_map(|name| [name.clone(), name.clone(), format!("none {name}")]);
    let keys: Vec<Bytes> = twice.map(Bytes::from).collect();
    view.prefetch(keys.clone()).await.expect("values");
    let parts = (2 * count).div_ceil(PART_KEYS);
    assert_eq!(calls(&world), (parts, PART_KEYS));
    for key in &keys {
        let expected = (!key.starts_with(b"none")).then(|| key.clone());
        assert_eq!(view.get(key).await.expect("an answer"), expected);
    }
    view.prefetch(keys).await.expect("values");
    let metrics = world.cache.metrics();
    assert_eq!((metrics.misses, metrics.hits), (0, 3 * count as u64));
    assert_eq!(calls(&world), (parts, PART_KEYS));
}

#[tokio::test(start_paused = true)]
async fn many_keys_are_read_in_their_order() {
    let (world, view) = begun(&words([("a", Some("1")), ("b", Some(""))])).await;
    let keys = ["b", "none", "a", "b"].map(Bytes::from);
    let expected = [value(""), None, value("1"), value("")];
    for (misses, hits) in [(4, 0), (4, 4)] {
        assert_eq!(view.get_all(&keys).await.expect("values"), expected);
        let metrics = world.cache.metrics();
        assert_eq!((metrics.misses, metrics.hits), (misses, hits));
        assert_eq!(calls(&world), (1, 3));
    }
    let staged = view.over(writes([("a", None), ("d", Some("2"))]));
    let keys = ["a", "b", "d"].map(Bytes::from);
    assert_eq!(staged.get_all(&keys).await.expect("values"), [None, value(""), value("2")]);
    assert_eq!(view.get_all(&[]).await.expect("nothing"), []);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_is_read_in_halves() {
    let names: Vec<String> = (0..20).map(|at| format!("{at:02}")).collect();
    let (world, view) = begun(&names.iter().map(|name| (name.clone(), Some(name.clone()))).collect()).await;
    let keys: Vec<Bytes> = names.into_iter().map(Bytes::from).collect();
    world.model.lock().keys_max = 3;
    let values: Vec<Bytes> = view.get_all(&keys).await.expect("values").into_iter().flatten().collect();
    assert_eq!(values, keys);
    // 1 + 2 + 4 of the calls are refused: those for 20, 10 and 5 keys.
    assert_eq!(calls(&world).0, 15);
    world.model.lock().keys_max = 0;
    let refused = view.get(b"other").await.expect_err("one key has no halves");
    assert_eq!(refused.reason(), Some(Reason::LimitExceeded));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_leaves_the_call_to_others() {
    let (world, view) = begun(&words([("a", Some("1"))])).await;
    let first = world.hold(&view, "a").await;
    timeout(Duration::from_millis(1), view.get(b"a")).await.expect_err("it is held");
    assert_eq!(first.land().await.expect("a value"), value("1"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_fails_in_time() {
    let (world, view) = begun(&words([("a", Some("1"))])).await;
    let _held = world.hold(&view, "a").await;
    let began = Instant::now();
    assert!(matches!(view.get(b"a").await, Err(Error::Timeout(_))));
    assert!(began.elapsed() <= Options::default().timeout);
    assert_eq!(view.get(b"a").await.expect("another call"), value("1"));
}

#[tokio::test(start_paused = true)]
async fn staged_batches_are_views_over_their_parents() {
    let (_world, view) = begun(&words([("a", Some("1")), ("b", Some("1"))])).await;
    let one = view.over(writes([("a", Some("2")), ("b", None)]));
    let two = one.over(writes([("b", Some(""))]));
    let expected = [
        (&view, "a", value("1")),
        (&one, "a", value("2")),
        (&one, "b", None),
        (&two, "a", value("2")),
        (&two, "b", value("")),
        (&two, "c", None),
    ];
    for (view, key, expected) in expected {
        assert_eq!(view.get(key.as_bytes()).await.expect("an answer"), expected, "{key}");
    }
    one.discard();
    for dropped in [&one, &two] {
        assert!(matches!(dropped.get(b"b").await, Err(Error::Dropped)));
    }
    assert_eq!(view.get(b"a").await.expect("an answer"), value("1"));
}

async fn expect_hit(cache: &Cache, model: &Model, at: Stamp, key: &str, expected: &str) {
    let before = model.lock().reads;
    assert_eq!(cache.at(at).get(key.as_bytes()).await.expect("an answer"), value(expected), "{key} at {at}");
    assert_eq!(model.lock().reads, before, "{key} at {at} is no hit");
}

#[tokio::test(start_paused = true)]
async fn an_only_writer_needs_no_stream() {
    let World { model, cache, .. } = &World::new(Options::default());
    cache.begin(model.lock().present());
    let apply = |key, value| {
        let at = model.lock().commit(&words([(key, Some(value))]));
        cache.apply(at, &writes([(key, Some(value))])).expect("no contradiction");
        at
    };
    let (one, two) = (apply("a", "1"), apply("a", "2"));
    let back = model.lock().roll_back(1);
    cache.rolled_back(back);
    let three = apply("b", "1");
    for (at, key) in [(one, "a"), (back, "a"), (three, "a"), (three, "b")] {
        expect_hit(cache, model, at, key, "1").await;
    }
    let dead = cache.at(two).get(b"a").await.expect_err("it was rolled back");
    assert_eq!(dead.reason(), Some(Reason::RolledBack));
    // Another writer has written in between. Its writes are unknown.
    model.lock().commit(&words([("a", Some("theirs"))]));
    let four = apply("c", "1");
    assert_eq!(cache.at(four).get(b"a").await.expect("an answer"), value("theirs"));
    expect_hit(cache, model, three, "a", "1").await;
    expect_hit(cache, model, four, "c", "1").await;
}

/// Reads a key, and expects so many calls of the ledger.
async fn expect_calls(world: &World, at: Stamp, key: &str, expected: Option<&str>, calls: usize) {
    world.model.lock().reads = 0;
    let read = world.cache.at(at).get(key.as_bytes()).await.expect("an answer");
    assert_eq!(read, expected.and_then(value), "{key} at {at}");
    assert_eq!(world.model.lock().reads, calls, "calls for {key} at {at}");
}

async fn shown<const N: usize>(world: &mut World, writes: [(&str, Option<&str>); N]) -> Stamp {
    let at = world.write(&words(writes));
    world.show().await.expect("an honest model");
    at
}

#[tokio::test(start_paused = true)]
async fn keys_alone_drop_the_writes_of_others() {
    for level in [Level::Proofs, Level::Trusted] {
        let world = &mut World::followed(Options { level, keys_only: true, ..Options::default() }).await;
        let one = shown(world, [("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]).await;
        for key in ["a", "b", "c"] {
            expect_calls(world, one, key, Some("1"), 1).await;
        }
        let two = shown(world, [("a", Some("2")), ("c", None)]).await;
        expect_calls(world, one, "a", Some("1"), 0).await;
        expect_calls(world, two, "b", Some("1"), 0).await;
        expect_calls(world, two, "a", Some("2"), 1).await;
        expect_calls(world, two, "c", None, 1).await;
        // The program's own writes are kept.
        let own = world.write(&words([("a", Some("3"))]));
        world.cache.apply(own, &writes([("a", Some("3"))])).expect("no contradiction");
        world.show().await.expect("an honest model");
        expect_calls(world, own, "a", Some("3"), 0).await;
        // The stream may have shown them, and another version, before the program tells of them.
        let late = world.write(&words([("a", Some("4")), ("b", Some("4"))]));
        let last = shown(world, [("b", Some("5"))]).await;
        world.cache.apply(late, &writes([("a", Some("4")), ("b", Some("4"))])).expect("no contradiction");
        expect_calls(world, last, "a", Some("4"), 0).await;
        expect_calls(world, last, "b", Some("5"), 1).await;
        expect_calls(world, late, "b", Some("4"), 0).await;
        let back = world.roll_back(1);
        world.show().await.expect("an honest model");
        for key in ["a", "c"] {
            expect_calls(world, back, key, Some("1"), 0).await;
        }
        let watched = world.model.lock().watched;
        assert!(!watched.values && watched.keys != watched.journal, "{watched:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_are_bounded() {
    let mut world = World::followed(Options::default()).await;
    world.cut(true).await.expect("a cut");
    let at = world.write(&words([("a", Some("1"))]));
    for _ in 0..WAITS_MAX + 50 {
        let view = world.cache.at(at);
        // Each view waits once.
        for _ in 0..2 {
            assert_eq!(view.get(b"a").await.expect("an answer"), value("1"));
        }
    }
    let metrics = world.cache.metrics();
    assert_eq!((metrics.waits, metrics.hits), (WAITS_MAX as u64, 0));
    world.model.show();
    world.cut(false).await.expect("an honest model");
    assert_eq!(world.cache.at(at).get(b"a").await.expect("an answer"), value("1"));
    assert_eq!(world.cache.metrics().hits, 1);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_sees_the_version_come() {
    let mut world = World::followed(Options { wait: Duration::from_secs(20), ..Options::default() }).await;
    let at = world.write(&words([("a", Some("1"))]));
    let view = world.cache.at(at);
    let read = tokio::spawn(async move { view.get(b"a").await });
    while world.cache.metrics().waits == 0 {
        tokio::task::yield_now().await;
    }
    world.show().await.expect("an honest model");
    assert_eq!(read.await.expect("no panic").expect("an answer"), value("1"));
    assert_eq!(world.model.lock().reads, 0);
}

/// Far behind, headers alone are read; and further still, everything is dropped.
#[tokio::test(start_paused = true)]
async fn a_long_gap_is_bridged_by_headers() {
    for (versions, held) in [(GAP_MAX + 10, true), (HEADERS_MAX + 10, false)] {
        let mut world = World::followed(Options::default()).await;
        world.write(&words([("a", Some("1"))]));
        world.show().await.expect("an honest model");
        world.cut(true).await.expect("a cut");
        for _ in 0..versions {
            world.model.lock().commit(&words([("b", Some("2"))]));
        }
        world.model.show();
        world.cut(false).await.expect("an honest model");
        let before = world.cache.metrics();
        assert_eq!(world.cache.at(Stamp::new(0, 1)).get(b"a").await.expect("an answer"), value("1"));
        assert_eq!(world.cache.metrics().hits > before.hits, held, "behind {versions} versions");
        let present = world.model.lock().present();
        assert_eq!(world.cache.at(present).get(b"b").await.expect("an answer"), value("2"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stays_broken_is_not_the_head() {
    let mut world = World::followed(Options::default()).await;
    let at = world.write(&words([("a", Some("1"))]));
    assert_ne!(world.cache.head().await.expect("the frontier").stamp(), at);
    let long_ago = Instant::now();
    tokio::time::advance(Options::default().stale_max / 2).await;
    world.cache.shared.status().broken = Some(long_ago);
    assert_ne!(world.cache.head().await.expect("the frontier").stamp(), at);
    tokio::time::advance(Options::default().stale_max / 2).await;
    world.cache.shared.status().broken = Some(long_ago);
    assert_eq!(world.cache.head().await.expect("the ledger's word").stamp(), at);
    world.model.lock().old_heads = 1;
    world.cache.shared.ask_grown().await.expect("a checkpoint");
    let old = world.cache.head().await.expect_err("a checkpoint is newer");
    assert!(matches!(&old, Error::Evidence(evidence) if !evidence.known.is_empty()), "{old}");
}

/// Writes that wait for a checkpoint are bounded: those of later versions are given up.
#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded() {
    let world = World::followed(Options { bytes: 4 * QUEUE_BYTES_MAX, ..Options::default() }).await;
    world.cut(true).await.expect("a cut");
    let large = "x".repeat(QUEUE_BYTES_MAX / 4);
    for key in ["a", "b", "c", "d", "e", "f"] {
        world.model.lock().commit(&words([(key, Some(&large))]));
    }
    world.model.show();
    world.cut(false).await.expect("an honest model");
    let metrics = world.cache.metrics();
    assert_eq!((metrics.versions, metrics.unknown, metrics.keys), (6, 3, 3));
}

/// A read at the base of a rollback holds at head again, although its key was written above the
/// base.
#[tokio::test(start_paused = true)]
async fn fills_behind_a_rollback_are_open() {
    let (mut world, _) = begun(&words([("a", Some("1")), ("b", Some("1"))])).await;
    world.write(&words([("a", Some("2"))]));
    world.show().await.expect("an honest model");
    let back = world.roll_back(1);
    world.show().await.expect("an honest model");
    assert_eq!(world.cache.at(back).get(b"a").await.expect("an answer"), value("1"));
    let next = world.write(&words([("b", Some("2"))]));
    world.show().await.expect("an honest model");
    expect_hit(&world.cache, &world.model, next, "a", "1").await;
}

/// Headers behind a broken stream go on from the one before it, whatever a checkpoint says.
#[tokio::test(start_paused = true)]
async fn another_log_behind_a_broken_stream_is_found() {
    let mut world = World::followed(Options::default()).await;
    world.write(&words([("a", Some("1"))]));
    world.show().await.expect("an honest model");
    world.cut(true).await.expect("a cut");
    {
        let mut state = world.model.lock();
        let newest = state.log.last_mut().expect("a log");
        newest.header.timestamp_ms += 1;
        newest.encoded = newest.header.encode().into();
    }
    world.write(&words([("b", Some("1"))]));
    world.model.show();
    let found = world.cut(false).await.expect_err("it is another log");
    let shown = world.model.lock().log.last().expect("a log").encoded.clone();
    assert!(matches!(&found, Error::Evidence(evidence) if evidence.shown == shown), "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_cache_is_followed_once_at_a_time() {
    let mut world = World::followed(Options::default()).await;
    assert!(matches!(world.cache.follow().await, Error::Following));
    let follower = world.follower.take().expect("it follows");
    follower.abort();
    follower.await.expect_err("it was aborted");
    timeout(Duration::from_secs(1), world.cache.follow()).await.expect_err("it follows again");
}

#[test]
fn settings_are_checked() {
    let good = Options::default;
    for options in [
        Options { level: Level::Sample(2.0), ..good() },
        Options { level: Level::Sample(-1.0), ..good() },
        Options { level: Level::Sample(f64::NAN), ..good() },
        Options { samples: Some(PART_KEYS + 1), ..good() },
        Options { parallel: 0, ..good() },
        Options { timeout: Duration::ZERO, ..good() },
        Options { stale_max: Duration::ZERO, ..good() },
    ] {
        assert!(matches!(Cache::of(Box::new(Model::new()), options.clone()), Err(Error::Options(_))), "{options:?}");
    }
}
