//! A verifying client follows a coordinator that tells the truth, and then lies.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{Change, ClusterId, Operation, Params, Reason, Stamp, Version};
use coppice_verify::{
    check,
    hash::RecordBody,
    header::Body,
    journal,
    note::VerifierKey,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Duration, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    super::{Cache, Options, error::Error, error::Evidence},
    model::encoded_list,
};
use crate::fake::{self, Fake};

/// A batch in words. A key may be written twice.
type Batch<'a> = &'a [(&'a str, Option<&'a str>)];
type Lie<T> = Arc<Mutex<Box<dyn FnMut(&mut T) + Send>>>;
/// A ledger with the operations of its batches.
struct Told {
    ledger: Ledger,
    batches: BTreeMap<Stamp, Vec<Commit>>,
}

impl Told {
    fn new() -> Self {
        let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
        let ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        Self { ledger, batches: BTreeMap::new() }
    }

    fn commit(&mut self, batches: &[Batch<'_>]) -> Stamp {
        let operation = |(key, value): &(&str, Option<&str>)| Operation {
            key: Bytes::copy_from_slice(key.as_bytes()),
            change: value.map_or(Change::Delete, |value| Change::Put(Bytes::copy_from_slice(value.as_bytes()))),
        };
        let commit =
            |batch: &Batch<'_>| Commit { operations: batch.iter().map(operation).collect(), ..Commit::default() };
        let commits: Vec<Commit> = batches.iter().map(commit).collect();
        let stamp = self.ledger.commit(&commits).expect("a batch");
        self.batches.insert(stamp, commits);
        stamp
    }

    /// The commit of a stamp, which may be the second name of a version.
    fn find(&self, at: Stamp) -> Result<Stamp, Status> {
        let alias = self.ledger.epochs.pairs().iter().any(|pair| (pair.epoch, pair.base) == (at.epoch, at.version));
        if self.ledger.epochs.stands(at) && at.version <= self.ledger.head().version {
            Ok(at)
        } else if alias {
            Ok(self.ledger.epochs.stamp_of(at.version))
        } else {
            Err(status::refuse(if at > self.ledger.head() { Reason::NotYet } else { Reason::RolledBack }, "no"))
        }
    }

    fn record(&self, at: Stamp, key: &Bytes) -> v1::Record {
        let forest = &self.ledger.versions[&at].forests[self.ledger.shard_map.index_of(key)];
        match (self.ledger.value(at, key), forest.get(key)) {
            (Some(value), Some(record)) => {
                let (value, last_changed) = (value.to_vec().into(), Some(convert::to_stamp(record.stamp)));
                v1::Record { key: key.clone(), found: true, value, last_changed }
            }
            _ => v1::Record { key: key.clone(), ..v1::Record::default() },
        }
    }

    fn batch_get(&self, request: &v1::BatchGetRequest) -> Result<v1::BatchGetResponse, Status> {
        let at = request.read.and_then(|read| read.at).expect("the cache names the version");
        let at = self.find(convert::from_stamp(at))?;
        let keys: Vec<&[u8]> = request.keys.iter().map(AsRef::as_ref).collect();
        let proof = self.ledger.prove_keys(at, &keys, true).encode().expect("a small file").into();
        let records = request.keys.iter().map(|key| self.record(at, key)).collect();
        Ok(v1::BatchGetResponse { records, read_at: Some(convert::to_stamp(at)), proof })
    }

    fn head(&self) -> v1::HeadResponse {
        let (stamp, log_size) = (Some(convert::to_stamp(self.ledger.head())), self.ledger.headers.len() as u64);
        v1::HeadResponse { stamp, log_size, ..v1::HeadResponse::default() }
    }

    fn checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Status> {
        let size = self.ledger.headers.len() as u64;
        if old_size > size {
            return Err(status::refuse(Reason::NotYet, "no"));
        }
        let standing = self.ledger.standing(old_size, size).encode().expect("a small file").into();
        Ok(v1::GetCheckpointResponse { standing, ..v1::GetCheckpointResponse::default() })
    }

    /// The messages of a header on the stream.
    fn messages(&self, sequence: usize, request: &v1::WatchHeadsRequest) -> Vec<v1::WatchHeadsResponse> {
        let header = &self.ledger.headers[sequence];
        let part = v1::WatchHeadsResponse { header: header.encode().into(), ..v1::WatchHeadsResponse::default() };
        if header.body != Body::Commit || !request.want_changed_keys {
            return vec![part];
        }
        if !self.ledger.epochs.stands(header.stamp) {
            return vec![v1::WatchHeadsResponse { rolled_back: true, ..part }];
        }
        let part_of = |journal| v1::WatchHeadsResponse { journal: Some(journal), continued: true, ..part.clone() };
        let entries = self.ledger.versions[&header.stamp].journal.iter().map(|entry| entry.encode().into()).collect();
        let mut messages = vec![part_of(v1::WatchedJournal { entries, ..v1::WatchedJournal::default() })];
        let batches = &self.batches[&header.stamp];
        for (index, shard) in self.ledger.shard_map.shards().iter().enumerate() {
            let of_shard = |batch: &Commit| -> Vec<Operation> {
                let own = |operation: &&Operation| self.ledger.shard_map.index_of(&operation.key) == index;
                batch.operations.iter().filter(own).cloned().collect()
            };
            let lists: Vec<Bytes> =
                batches.iter().map(of_shard).filter(|own| !own.is_empty()).map(|own| list(&own)).collect();
            if !lists.is_empty() {
                messages.push(part_of(v1::WatchedJournal {
                    shard: shard.id.0,
                    lists,
                    ..v1::WatchedJournal::default()
                }));
            }
        }
        let keys = batches.iter().flat_map(|batch| &batch.operations).map(|operation| operation.key.clone());
        let keys: std::collections::BTreeSet<Bytes> = keys.collect();
        let changes = keys.iter().map(|key| self.record(header.stamp, key)).collect();
        messages.push(v1::WatchHeadsResponse { changes, continued: true, ..part.clone() });
        messages.push(part);
        messages
    }
}

fn list(operations: &[Operation]) -> Bytes {
    let bodies: Vec<(&[u8], RecordBody)> =
        operations.iter().map(|operation| (operation.key.as_ref(), RecordBody::of(&operation.change))).collect();
    encoded_list(&bodies)
}

/// A coordinator, and a cache that follows it.
struct Scene {
    told: Arc<Mutex<Told>>,
    fake: Fake,
    key: VerifierKey,
    cache: Cache,
    follower: JoinHandle<Error>,
    /// Counts the logs that the coordinator showed. Streams of earlier ones break.
    moved: watch::Sender<u32>,
    on_heads: Lie<v1::WatchHeadsResponse>,
    /// Withholds the messages of streams.
    silent: Arc<AtomicBool>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

fn serve(fake: &Fake, told: &Arc<Mutex<Told>>) {
    let of = told.clone();
    fake.batch_get.set(move |request| of.lock().expect("no panic").batch_get(&request));
    let of = told.clone();
    fake.head.set(move |_| Ok(of.lock().expect("no panic").head()));
    let of = told.clone();
    fake.get_checkpoint
        .set(move |request: v1::GetCheckpointRequest| of.lock().expect("no panic").checkpoint(request.old_size));
}

impl Scene {
    async fn new(options: Options) -> Self {
        let told = Arc::new(Mutex::new(Told::new()));
        let key = told.lock().expect("no panic").ledger.key.verifier().clone();
        let (fake, moved, silent) = (Fake::default(), watch::Sender::new(0), Arc::<AtomicBool>::default());
        let on_heads: Lie<v1::WatchHeadsResponse> = Arc::new(Mutex::new(Box::new(|_| {})));
        serve(&fake, &told);
        let (of, moves, lie, quiet) = (told.clone(), moved.clone(), on_heads.clone(), silent.clone());
        fake.watch_heads.set(move |request: v1::WatchHeadsRequest| {
            let (sender, receiver) = mpsc::channel(8);
            tokio::spawn(show(request, sender, of.clone(), moves.subscribe(), lie.clone(), quiet.clone()));
            Ok(Box::pin(ReceiverStream::new(receiver)))
        });
        let client = fake::client(&[&fake], &crate::Options { trust: Some(key.clone()), ..crate::Options::new("") });
        let cache = Cache::new(client, options).expect("good options");
        let follows = cache.clone();
        let follower = tokio::spawn(async move { follows.follow().await });
        cache.head().await.expect("the first header");
        Self { told, fake, key, cache, follower, moved, on_heads, silent }
    }

    fn commit(&self, batches: &[Batch<'_>]) -> Stamp {
        self.change(|told| told.commit(batches))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let changed = change(&mut self.told.lock().expect("no panic"));
        self.moved.send_modify(|_| {});
        changed
    }

    fn lie(&self, lie: impl FnMut(&mut v1::WatchHeadsResponse) + Send + 'static) {
        *self.on_heads.lock().expect("no panic") = Box::new(lie);
    }

    /// Waits until the cache has a version.
    async fn reach(&self, at: Stamp) {
        let shared = &self.cache.shared;
        let mut moved = shared.moved.subscribe();
        let reached = async {
            while shared.store().line().is_above(at) {
                assert_eq!(shared.status().evidence, None);
                moved.changed().await.expect("the cache lives");
            }
        };
        timeout(Duration::from_secs(60), reached).await.unwrap_or_else(|_| panic!("{at}: {:?}", self.cache.metrics()));
    }

    /// Waits until following ends, by evidence, and everything is dropped.
    async fn caught(&mut self) -> Arc<Evidence> {
        let ended = timeout(Duration::from_secs(60), &mut self.follower).await.expect("nothing was found");
        let Error::Evidence(evidence) = ended.expect("no panic") else { panic!("no evidence") };
        let refused = self.cache.at(Stamp::default()).get(b"a").await.expect_err("reads are refused");
        assert!(refused.is_untrusted() && self.cache.metrics().keys == 0, "{refused}");
        assert!(signed_by(&evidence.known, &self.key), "no signed checkpoint is kept: {evidence}");
        evidence
    }
}

fn signed_by(file: &[u8], key: &VerifierKey) -> bool {
    check::verify(file, key, None).is_ok()
}

/// Sends the headers from a sequence number on, until another log is shown.
async fn show(
    request: v1::WatchHeadsRequest,
    sender: mpsc::Sender<Result<v1::WatchHeadsResponse, Status>>,
    told: Arc<Mutex<Told>>,
    mut moved: watch::Receiver<u32>,
    lie: Lie<v1::WatchHeadsResponse>,
    silent: Arc<AtomicBool>,
) {
    let (log, mut next) = (*moved.borrow_and_update(), usize::try_from(request.from_sequence).expect("a small log"));
    loop {
        let messages = {
            let told = told.lock().expect("no panic");
            let shown = next < told.ledger.headers.len() && !silent.load(Ordering::Relaxed);
            shown.then(|| told.messages(next, &request))
        };
        if let Some(messages) = messages {
            for mut message in messages {
                lie.lock().expect("no panic")(&mut message);
                // An empty part is left out.
                let void = message.continued && message.changes.is_empty() && message.journal.is_none();
                if !void && sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            next += 1;
            continue;
        }
        tokio::select! {
            changed = moved.changed() => if changed.is_err() || *moved.borrow() != log { return },
            () = sender.closed() => return,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_follows_an_honest_coordinator() {
    let scene = Scene::new(Options { samples: Some(3), ..Options::default() }).await;
    let one = scene.commit(&[&[("a", Some("1")), ("z", Some("1"))]]);
    let two = scene.commit(&[&[("a", Some("x"))], &[("a", Some("2")), ("none", None)]]);
    scene.reach(two).await;
    let view = scene.cache.at(two);
    assert_eq!(view.get(b"a").await.expect("a hit"), Some(Bytes::from_static(b"2")));
    let back = scene.change(|told| {
        told.ledger.roll_back(Version(1));
        told.ledger.head()
    });
    scene.reach(back).await;
    assert_eq!(scene.cache.at(back).get(b"a").await.expect("a hit"), Some(Bytes::from_static(b"1")));
    assert_eq!(view.get(b"a").await.expect_err("a dead version").reason(), Some(Reason::RolledBack));
    let three = scene.commit(&[&[("z", None)]]);
    scene.reach(three).await;
    scene.change(|told| told.ledger.prune(Version(2)));
    let four = scene.commit(&[&[("b", Some("4"))]]);
    scene.reach(four).await;
    let head = scene.cache.head().await.expect("the frontier");
    assert_eq!(head.stamp(), four);
    for (key, expected) in [("a", Some("1")), ("z", None), ("b", Some("4")), ("never", None)] {
        let value = head.get(key.as_bytes()).await.expect("an answer");
        assert_eq!(value.as_deref(), expected.map(str::as_bytes), "{key}");
    }
    assert!(scene.cache.at(back).get(b"new").await.is_ok() && one < back);
    let metrics = scene.cache.metrics();
    assert_eq!((metrics.unknown, metrics.rollbacks, metrics.prunes, metrics.cuts), (0, 1, 1, 0), "{metrics:?}");
    assert!(metrics.hits >= 5 && metrics.proven > 3, "{metrics:?}");
}

/// Changes the operation lists in a message.
fn edit(message: &mut v1::WatchHeadsResponse, change: fn(&mut Vec<(Vec<u8>, RecordBody)>)) {
    for list in message.journal.iter_mut().flat_map(|journal| &mut journal.lists) {
        let mut operations = journal::decode_operations(list).expect("a list");
        change(&mut operations);
        let bodies: Vec<(&[u8], RecordBody)> = operations.iter().map(|(key, body)| (key.as_ref(), *body)).collect();
        *list = encoded_list(&bodies);
    }
}

fn altered(message: &mut v1::WatchHeadsResponse, value: &'static [u8]) {
    message.changes.iter_mut().for_each(|record| record.value = Bytes::from_static(value));
}

#[tokio::test(start_paused = true)]
async fn lies_on_the_stream_are_found_at_once() {
    type Told = fn(&mut v1::WatchHeadsResponse);
    let lies: [(&str, &str, Told); 11] = [
        ("a change left out", "shows no value", |it| drop(it.changes.pop())),
        ("an altered value", "another value of `lie/b`", |it| altered(it, b"last2")),
        ("a value of the same length", "another value of `lie/b`", |it| altered(it, b"lies")),
        ("a deletion that was none", "shows no value", |it| it.changes.iter_mut().for_each(|it| it.found = false)),
        ("a key left out of journal and changes", "operation list of another batch", |it| {
            edit(it, |operations| drop(operations.pop()));
            it.changes.pop();
        }),
        ("an altered value in journal and changes", "operation list of another batch", |it| {
            edit(it, |operations| operations[0].1 = RecordBody::put(b"lies"));
            altered(it, b"lies");
        }),
        ("operations in another order", "operation list of another batch", |it| {
            edit(it, |operations| operations.reverse());
            altered(it, b"once");
        }),
        ("batches in another order", "entries of another journal", |it| {
            it.journal.iter_mut().for_each(|journal| (journal.entries.reverse(), journal.lists.reverse()).0);
            altered(it, b"once");
        }),
        ("an entry too many", "entries of another journal", |it| {
            it.journal.iter_mut().for_each(|journal| journal.entries.extend(journal.entries.first().cloned()));
        }),
        ("no journal", "without its journal", |it| it.journal = None),
        ("a damaged header", "not proven", |it| {
            // The state root has no rule of its own.
            let mut header = it.header.to_vec();
            header[60] ^= 1;
            it.header = header.into();
        }),
    ];
    for (name, why, lie) in lies {
        let mut scene = Scene::new(Options::default()).await;
        scene.lie(lie);
        scene.commit(&[
            &[("lie/b", Some("once")), ("lie/b", Some("last"))],
            &[("lie/b", Some("last")), ("lie/a", None)],
        ]);
        let evidence = scene.caught().await;
        assert!(evidence.why.contains(why) || name == "a damaged header", "{name}: {evidence}");
        assert_eq!(scene.cache.metrics().versions, 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn lies_about_reads_are_found_at_once() {
    type Told = fn(&mut v1::BatchGetResponse, &v1::BatchGetResponse);
    let lies: [(&str, Told); 6] = [
        ("an omitted key", |answer, _| {
            answer.records[0] = v1::Record { key: answer.records[0].key.clone(), ..v1::Record::default() }
        }),
        ("an altered value", |answer, _| answer.records[0].value = Bytes::from_static(b"lie")),
        ("no proof", |answer, _| answer.proof = Bytes::new()),
        ("a damaged proof", |answer, _| {
            let mut proof = answer.proof.to_vec();
            let middle = proof.len() / 2;
            proof[middle] ^= 1;
            answer.proof = proof.into();
        }),
        ("the proof of another key", |answer, other| answer.proof = other.proof.clone()),
        ("another version", |answer, _| answer.read_at = Some(v1::Stamp { epoch: 0, version: 2 })),
    ];
    for (name, lie) in lies {
        let scene = Scene::new(Options::default()).await;
        let at = scene.commit(&[&[("a", Some("1"))]]);
        scene.reach(at).await;
        scene.cache.shared.store().forget(b"a");
        let told = scene.told.clone();
        scene.fake.batch_get.set(move |request: v1::BatchGetRequest| {
            let told = told.lock().expect("no panic");
            let other = v1::BatchGetRequest { keys: vec![Bytes::from_static(b"other")], ..request.clone() };
            let mut answer = told.batch_get(&request)?;
            lie(&mut answer, &told.batch_get(&other)?);
            Ok(answer)
        });
        let error = scene.cache.at(at).get(b"a").await.expect_err(name);
        assert!(error.is_untrusted(), "{name}: {error}");
        serve(&scene.fake, &scene.told);
        // The read fails alone.
        assert_eq!(scene.cache.at(at).get(b"a").await.expect(name), Some(Bytes::from_static(b"1")));
    }
}

/// A coordinator that goes on to show an old head is found by the checkpoints of the log.
#[tokio::test(start_paused = true)]
async fn an_old_head_is_found() {
    let mut scene = Scene::new(Options { stale_max: Duration::from_millis(50), ..Options::default() }).await;
    let at = scene.commit(&[&[("a", Some("1"))]]);
    scene.reach(at).await;
    let old = scene.told.lock().expect("no panic").head();
    scene.silent.store(true, Ordering::Relaxed);
    scene.fake.head.set(move |_| Ok(old.clone()));
    scene.commit(&[&[("a", Some("2"))]]);
    let found = async {
        loop {
            match scene.cache.head().await {
                Err(Error::Evidence(evidence)) => return evidence,
                Err(error) => panic!("{error}"),
                Ok(view) => assert_eq!(view.stamp(), at),
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let evidence = timeout(Duration::from_secs(60), found).await.expect("the old head is still served");
    assert!(signed_by(&evidence.known, &scene.key), "{evidence}");
    // A checkpoint of before is no proof that the log grew.
    let first = scene.told.lock().expect("no panic").checkpoint(1).expect("a proof");
    scene.fake.get_checkpoint.set(move |_| Ok(first.clone()));
    scene.caught().await;
}

/// Two ledgers with one key have gone apart. The cache keeps what both of them signed.
#[tokio::test(start_paused = true)]
async fn a_fork_leaves_two_signatures() {
    let mut scene = Scene::new(Options::default()).await;
    let at = scene.commit(&[&[("fork/a", Some("1"))]]);
    scene.reach(at).await;
    let mut other = Told::new();
    for _ in 0..3 {
        other.commit(&[&[("fork/b", Some("other"))]]);
    }
    *scene.told.lock().expect("no panic") = other;
    scene.moved.send_modify(|log| *log += 1);
    let evidence = scene.caught().await;
    assert!(evidence.why.contains("another root"), "{evidence}");
    assert!(signed_by(&evidence.shown, &scene.key), "{evidence}");
    assert_ne!(evidence.known, evidence.shown);
}

/// Without a key, nothing is proven, and following is refused.
#[tokio::test(start_paused = true)]
async fn proofs_need_a_key() {
    let (told, fake) = (Arc::new(Mutex::new(Told::new())), Fake::default());
    let at = told.lock().expect("no panic").commit(&[&[("a", Some("1"))]]);
    serve(&fake, &told);
    let client = || fake::client(&[&fake], &crate::Options::new(""));
    let strict = Cache::new(client(), Options::default()).expect("good options");
    strict.begin(at);
    assert!(matches!(strict.at(at).get(b"a").await, Err(Error::Options(_))));
    let trusting = Options { level: super::super::Level::Trusted, ..Options::default() };
    let trusting = Cache::new(client(), trusting).expect("good options");
    trusting.begin(at);
    assert_eq!(trusting.at(at).get(b"a").await.expect("an answer"), Some(Bytes::from_static(b"1")));
}
