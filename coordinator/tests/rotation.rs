//! The ledger's key is changed while clients write and read. Clients that know one of its keys
//! follow, and no coordinator signs with a key that was replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_client::{Client, Options, audit::Audit};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{ErrorKind, GroupId, Params, Reason, ShardId, Version};
use coppice_verify::{
    checkpoint::Checkpoint,
    header::{Body, Header},
    note::{SignerKey, VerifierKey},
    verify,
};
use tokio::time::{sleep, timeout};

mod common;

use common::{LIMIT, Running, World, at, bytes, commit, get, proxy::Fate, put, reason};

/// Seeds of the first keys.
const KEYS: [u8; 3] = [9, 10, 11];

async fn world(nodes: u32) -> World {
    World::of(nodes, &[b"m".to_vec()], Params { journals_kept: true, ..Params::default() }).await
}

fn public(world: &World, number: usize) -> VerifierKey {
    world.key_of(KEYS[number]).verifier().clone()
}

/// A coordinator with one or two of the ledger's keys.
fn start(world: &World, name: &str, key: usize, next: Option<usize>) -> Running {
    let signer = |number: usize| -> SignerKey { world.key_of(KEYS[number]) };
    world.coordinator_with_keys(name, signer(key), next.map(signer))
}

async fn leading(running: &Running) {
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
}

/// The request to change to a key, with a reason.
fn to(world: &World, number: usize) -> v1::RotateKeyRequest {
    let vkey = public(world, number).to_string();
    v1::RotateKeyRequest { vkey, reason: "schedule".to_owned(), principal: "ops".to_owned(), expected_head: None }
}

async fn rotate(world: &World, client: &mut LedgerClient<Channel>, number: usize) -> v1::AdminResponse {
    client.rotate_key(to(world, number)).await.expect("the key is changed").into_inner()
}

async fn write(client: &mut LedgerClient<Channel>, key: &str) -> v1::CommitResponse {
    let mut request = commit(vec![put(key, key)], Vec::new());
    request.want_receipt = true;
    client.commit(request).await.expect("it commits").into_inner()
}

async fn proof(client: &mut LedgerClient<Channel>, version: u64) -> Vec<u8> {
    client.get(get("a1", Some(at(0, version)))).await.expect("it is read").into_inner().proof.to_vec()
}

/// A client of these coordinators that trusts one of the ledger's keys.
fn trusting(world: &World, key: usize, names: &[&str]) -> Client {
    let connector = world.net.connector("sdk");
    let routes = names.iter().map(|name| ((*name).to_owned(), connector.channel(name))).collect();
    let options = Options { trust: Some(public(world, key)), ..Options::new("http://ledger:1") };
    Client::over(routes, 1, &options)
}

async fn audit(world: &World, name: &str, key: usize) -> Option<u64> {
    let client = trusting(world, key, &[name]);
    let audit = Audit { key: public(world, key), from: Version(0), to: None };
    let report = timeout(LIMIT, client.audit(&audit, |_| {})).await.expect("it ends").expect("the ledger answers");
    assert_eq!(report.difference, None);
    Some(report.compared)
}

/// A client that trusts the first key. It writes and reads until it is told to stop, and checks
/// every answer against its proof.
async fn load(client: Client, name: u8, done: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{}{round}", if round % 2 == 0 { "a" } else { "z" });
        let batch = v1::Batch { operations: vec![put(&key, &name.to_string())], ..v1::Batch::default() };
        client.commit(batch, true).await.expect("a commit that is proven");
        let record = client.get(get(&key, None)).await.expect("a read that is proven").record.expect("a record");
        assert!(record.found);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_the_first_key_follow_under_load() {
    let world = world(3).await;
    let mut first = start(&world, "a", 0, Some(1));
    leading(&first).await;
    write(&mut first.client, "a1").await;
    let before = proof(&mut first.client, 1).await;
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> =
        (0..3).map(|name| tokio::spawn(load(trusting(&world, 0, &["a"]), name, done.clone(), stop.clone()))).collect();
    let more = async |count: u64| {
        let enough = done.load(Ordering::Relaxed) + count;
        let wait = async {
            while done.load(Ordering::Relaxed) < enough {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, wait).await.expect("the load goes on");
    };
    more(5).await;
    let answer = rotate(&world, &mut first.client, 1).await;
    let header = Header::decode(&answer.header).expect("a header");
    let Body::Key(change) = &header.body else { panic!("a key change") };
    assert_eq!(
        (change.number, change.principal.as_str(), change.reason.as_str()),
        (1, "unauthenticated (says \"ops\")", "schedule")
    );
    // The key change is under the first checkpoint of the new key.
    let checkpoint = Checkpoint::open(&answer.checkpoint, &public(&world, 1)).expect("signed by the new key");
    assert_eq!(checkpoint.size, header.sequence.0 + 1);
    more(15).await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        timeout(LIMIT, client).await.expect("it ends").expect("no answer was refused");
    }
    let after = proof(&mut first.client, 1).await;
    for key in [0, 1] {
        let verified = verify(&after, &public(&world, key), None).expect("either key leads there");
        assert_eq!(verified.keys.newest(), &public(&world, 1));
    }
    assert!(verify(&before, &public(&world, 0), None).is_ok(), "an earlier proof still holds");
    assert!(verify(&before, &public(&world, 1), None).is_err(), "the replaced key is not believed by itself");
    let old_size = verify(&before, &public(&world, 0), None).expect("a proof").checkpoint.size;
    let request = v1::GetCheckpointRequest { old_size, ..v1::GetCheckpointRequest::default() };
    let newer = first.client.get_checkpoint(request).await.expect("a checkpoint").into_inner().standing;
    for key in [0, 1] {
        assert!(
            verify(&before, &public(&world, key), Some(&newer)).is_ok(),
            "it is shown to be a beginning of the log"
        );
    }
    let status = first.client.status(v1::StatusRequest::default()).await.expect("it answers").into_inner();
    assert_eq!(status.vkey, public(&world, 1).to_string());
    let receipt = write(&mut first.client, "a1").await.receipt;
    assert!(verify(&receipt, &public(&world, 0), None).is_ok() && verify(&receipt, &public(&world, 1), None).is_ok());
    assert!(audit(&world, "a", 0).await > Some(10));
    assert!(audit(&world, "a", 1).await > Some(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_without_the_key_does_not_lead_and_says_what_to_do() {
    let world = world(1).await;
    let mut first = start(&world, "a", 0, Some(1));
    leading(&first).await;
    write(&mut first.client, "a1").await;
    rotate(&world, &mut first.client, 1).await;
    let term = first.client.status(v1::StatusRequest::default()).await.expect("it answers").into_inner().term;
    // This coordinator was not given the new key.
    let mut forgotten = start(&world, "b", 0, None);
    world.picked.pick("b");
    let says = async {
        loop {
            match forgotten.handle.readiness() {
                Err(why) if why.contains("next_signing_key_file") => return why,
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let why = timeout(LIMIT, says).await.expect("it says so");
    assert!(why.contains(&public(&world, 1).to_string()), "{why}");
    let error = forgotten.client.get(get("a1", None)).await.expect_err("it can't sign");
    assert_eq!(reason(&error), Reason::Unavailable);
    assert!(error.message().contains("is not here"), "{error}");
    let plain = v1::GetRequest { read: None, ..get("a1", None) };
    forgotten.client.get(plain).await.expect("what needs no signature is answered");
    // A replica that is started again still knows the change.
    for group in [GroupId::Shard(ShardId(0)), GroupId::Shard(ShardId(1)), GroupId::Root] {
        world.nodes[0].stop_replica(group).await.expect("it stops");
        world.nodes[0].start_replica(world.replica(1, group)).await.expect("it starts");
    }
    assert_eq!(forgotten.handle.leadership().term, None);
    let mut second = start(&world, "c", 1, None);
    world.picked.pick("c");
    leading(&second).await;
    let status = second.client.status(v1::StatusRequest::default()).await.expect("it answers").into_inner();
    assert_eq!(status.term, term + 1, "the one without the key began no term");
    let receipt = write(&mut second.client, "a1").await.receipt;
    assert!(verify(&receipt, &public(&world, 0), None).is_ok(), "the first key leads to the one that signs");
    assert!(audit(&world, "c", 0).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_change_that_does_not_fit_is_refused() {
    let world = world(1).await;
    let mut running = start(&world, "a", 0, Some(1));
    leading(&running).await;
    let size = write(&mut running.client, "a1").await.stamp.expect("a stamp").version + 1;
    let good = to(&world, 1);
    let foreign = SignerKey::from_seed("coppice.test/elsewhere", &[1; 32]).expect("a name").verifier().to_string();
    for (request, expected, words) in [
        (v1::RotateKeyRequest { vkey: "nonsense".to_owned(), ..good.clone() }, Reason::InvalidArgument, "vkey"),
        (v1::RotateKeyRequest { vkey: foreign, ..good.clone() }, Reason::InvalidArgument, "name"),
        (to(&world, 0), Reason::InvalidArgument, "already"),
        (to(&world, 2), Reason::PreconditionFailed, "next_signing_key_file"),
        (v1::RotateKeyRequest { expected_head: Some(at(0, 7)), ..good.clone() }, Reason::PreconditionFailed, "head"),
        (v1::RotateKeyRequest { principal: "p".repeat(300), ..good.clone() }, Reason::LimitExceeded, "principal"),
    ] {
        let error = running.client.rotate_key(request).await.expect_err(words);
        assert_eq!(reason(&error), expected, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let head = running.client.head(v1::HeadRequest::default()).await.expect("it answers").into_inner();
    assert_eq!(head.log_size, size, "nothing was appended");
    rotate(&world, &mut running.client, 1).await;
    let error = running.client.rotate_key(to(&world, 0)).await.expect_err("an earlier key");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    assert!(error.message().contains("before"), "{error}");
    // The leader continues.
    write(&mut running.client, "a1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_stop_at_a_key_change_holds_it_up() {
    let world = world(3).await;
    let mut running = start(&world, "a", 0, Some(1));
    leading(&running).await;
    let size = write(&mut running.client, "a1").await.stamp.expect("a stamp").version + 1;
    world.faults.outdate(&["node-2"]);
    let error = running.client.rotate_key(to(&world, 1)).await.expect_err("node-2 would stop");
    assert_eq!(reason(&error), Reason::PreconditionFailed, "{error}");
    assert!(error.message().contains("node-2") && !error.message().contains("node-3"), "{error}");
    let head = running.client.head(v1::HeadRequest::default()).await.expect("it answers").into_inner();
    assert_eq!(head.log_size, size, "nothing was appended");
    world.faults.outdate(&[]);
    rotate(&world, &mut running.client, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_changed_again_and_again() {
    let world = world(1).await;
    let mut running = start(&world, "a", 0, Some(1));
    leading(&running).await;
    let client = trusting(&world, 0, &["a", "b"]);
    let read = async || client.get(get("a1", None)).await.expect("it is proven").record.expect("a record").found;
    write(&mut running.client, "a1").await;
    rotate(&world, &mut running.client, 1).await;
    assert!(read().await);
    running.kill();
    let mut running = start(&world, "b", 1, Some(2));
    world.picked.pick("b");
    leading(&running).await;
    rotate(&world, &mut running.client, 2).await;
    assert!(read().await, "a client that knows the second key follows to the third");
    let file = proof(&mut running.client, 1).await;
    for key in 0..3 {
        let verified = verify(&file, &public(&world, key), None).expect("every key leads there");
        assert_eq!(verified.keys.changes().count(), 2);
    }
}

/// After a key change, a receipt takes another read of the root group, which may fail although the
/// version is decided.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_receipt_can_not_be_made_is_to_be_sent_again() {
    let world = world(1).await;
    let leader = start(&world, "a", 0, Some(1));
    leading(&leader).await;
    let mut client = leader.client.clone();
    rotate(&world, &mut client, 1).await;
    let session_id = bytes("0123456789abcdef");
    client.open_session(v1::OpenSessionRequest { session_id: session_id.clone() }).await.expect("it is opened");
    let batch = commit(vec![put("a1", "numbered")], Vec::new());
    let numbered = v1::CommitRequest { session_id, number: 1, want_receipt: true, ..batch };
    world.faults.set(|call| if call.name == "prove_log" { Fate::Lost } else { Fate::Pass });
    let library = trusting(&world, 0, &["a"]);
    let unnumbered = v1::Batch { operations: vec![put("z", "unnumbered")], ..v1::Batch::default() };
    let (told, unproven) = tokio::join!(client.commit(numbered.clone()), library.commit(unnumbered, true));
    let told = told.expect_err("an answer without what was asked for is none");
    assert_eq!(reason(&told), Reason::Unavailable);
    let unproven = unproven.expect_err("a commit without a receipt is not believed");
    assert_eq!(unproven.kind(), ErrorKind::Unavailable, "and it is not a lie: {unproven}");
    assert!(unproven.outcome_unknown(), "{unproven}");
    world.faults.clear();
    let again = client.commit(numbered).await.expect("it is answered again").into_inner();
    assert!(again.replayed, "it was committed");
    verify(&again.receipt, &public(&world, 0), None).expect("the receipt is sound");
    let record = library.get(get("z", None)).await.expect("it is read").record.expect("a record");
    assert_eq!(record.value, "unnumbered", "it was committed, too");
}
