//! Many clients at once, and a coordinator that dies again and again. Money is neither made nor
//! lost, no acknowledged transfer is missing, and none is applied twice.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_env::{Rng, SimRng};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{GroupId, Params, Reason, ShardId};
use coppice_verify::header::{Body, Header};
use tokio::time::{sleep, timeout};

mod common;

use common::{World, bytes, commit, proxy::Fate, put, reason};

const ACCOUNTS: u64 = 12;
const BALANCE: i64 = 100;

/// The name of an account. Accounts lie on both shards.
fn account(number: u64) -> String {
    format!("{}{number}", if number.is_multiple_of(2) { "a" } else { "z" })
}

async fn read(client: &mut LedgerClient<Channel>, keys: &[String]) -> Result<Vec<v1::Record>, tonic::Status> {
    let keys = keys.iter().map(|key| bytes(key)).collect();
    let answer = client.batch_get(v1::BatchGetRequest { keys, read: None }).await?;
    Ok(answer.into_inner().records)
}

fn balance(record: &v1::Record) -> i64 {
    String::from_utf8_lossy(&record.value).parse().expect("balances are numbers")
}

fn unchanged(record: &v1::Record) -> v1::Precondition {
    let condition = v1::precondition::Condition::LastChanged(record.last_changed.expect("it was changed once"));
    v1::Precondition { key: record.key.clone(), condition: Some(condition) }
}

/// One attempt to move money. Returns the error of either step.
async fn transfer(client: &mut LedgerClient<Channel>, rng: &mut SimRng) -> Result<(), tonic::Status> {
    let from = rng.below(ACCOUNTS);
    let to = (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
    let records = read(client, &[account(from), account(to)]).await?;
    let amount = 1 + i64::try_from(rng.below(20)).expect("it is small");
    if balance(&records[0]) < amount {
        return Ok(());
    }
    let operations = vec![
        put(&account(from), &(balance(&records[0]) - amount).to_string()),
        put(&account(to), &(balance(&records[1]) + amount).to_string()),
    ];
    client.commit(commit(operations, records.iter().map(unchanged).collect())).await.map(|_| ())
}

async fn found(client: &mut LedgerClient<Channel>) {
    let operations = (0..ACCOUNTS).map(|number| put(&account(number), &BALANCE.to_string())).collect();
    client.commit(commit(operations, Vec::new())).await.expect("the accounts are made");
}

async fn total(client: &mut LedgerClient<Channel>) -> i64 {
    let keys: Vec<String> = (0..ACCOUNTS).map(account).collect();
    read(client, &keys).await.expect("all accounts are read").iter().map(balance).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_neither_made_nor_lost_by_concurrent_transfers() {
    let world = World::new(Params { capacity: 16, ..Params::default() }).await;
    let running = world.leader().await;
    found(&mut running.client.clone()).await;
    let moved = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|seed| {
            let (mut client, moved) = (running.client.clone(), moved.clone());
            tokio::spawn(async move {
                let mut rng = SimRng::new(seed);
                for _ in 0..12 {
                    match transfer(&mut client, &mut rng).await {
                        Ok(()) => {
                            moved.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(reason(&error), Reason::PreconditionFailed, "{error}"),
                    }
                }
            })
        })
        .collect();
    // Every state that is read is consistent.
    let mut client = running.client.clone();
    while tasks.iter().any(|task| !task.is_finished()) {
        assert_eq!(total(&mut client).await, BALANCE * i64::try_from(ACCOUNTS).expect("few"));
    }
    for task in tasks {
        task.await.expect("no client panics");
    }
    assert!(moved.load(Ordering::Relaxed) > 0, "some transfers were made");
    assert_eq!(total(&mut client).await, BALANCE * i64::try_from(ACCOUNTS).expect("few"));
}

/// Whichever of the nine replicas is down, commits continue, and money is neither made nor lost.
#[tokio::test(flavor = "multi_thread")]
async fn commits_go_on_while_each_replica_in_turn_is_down() {
    let world = World::new(Params { capacity: 16, ..Params::default() }).await;
    let running = world.leader().await;
    found(&mut running.client.clone()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let moved = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|seed| {
            let (mut client, stop, moved) = (running.client.clone(), stop.clone(), moved.clone());
            tokio::spawn(async move {
                let mut rng = SimRng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    match transfer(&mut client, &mut rng).await {
                        Ok(()) => {
                            moved.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let expected = [Reason::PreconditionFailed, Reason::Unavailable];
                            assert!(expected.contains(&reason(&error)), "{error}");
                        }
                    }
                }
            })
        })
        .collect();
    let mut client = running.client.clone();
    for group in [GroupId::Root, GroupId::Shard(ShardId(0)), GroupId::Shard(ShardId(1))] {
        for (ordinal, node) in (1..).zip(&world.nodes) {
            node.stop_replica(group).await.expect("it stops");
            let before = moved.load(Ordering::Relaxed);
            let goes_on = timeout(common::LIMIT, async {
                while moved.load(Ordering::Relaxed) < before + 3 {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            goes_on.await.unwrap_or_else(|_| panic!("commits go on without {group} on node {ordinal}"));
            assert_eq!(total(&mut client).await, BALANCE * i64::try_from(ACCOUNTS).expect("few"));
            node.start_replica(world.replica(ordinal, group)).await.expect("it starts again");
        }
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no client panics");
    }
    assert_eq!(total(&mut client).await, BALANCE * i64::try_from(ACCOUNTS).expect("few"));
}

/// Commits `value` under `number`, and repeats that until there is an answer.
async fn commit_once(
    client: &mut LedgerClient<Channel>,
    session: &bytes::Bytes,
    number: u64,
    key: &str,
) -> v1::CommitResponse {
    let request = v1::CommitRequest {
        session_id: session.clone(),
        number,
        ..commit(vec![put(key, &number.to_string()), put(&format!("{key}-{number}"), "1")], Vec::new())
    };
    loop {
        match timeout(Duration::from_secs(5), client.commit(request.clone())).await {
            Ok(Ok(answer)) => return answer.into_inner(),
            Ok(Err(error)) => {
                // An error of a dead coordinator's connection has no reason.
                let reason = coppice_proto::status::reason(&error);
                let transient = coppice_proto::status::kind(&error) == coppice_types::ErrorKind::Unavailable;
                assert!(transient, "{reason:?} {error}");
                sleep(Duration::from_millis(10)).await;
            }
            Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_killed_at_any_moment_loses_nothing_and_applies_nothing_twice() {
    let world = World::new(Params { capacity: 64, ..Params::default() }).await;
    let mut running = world.leader().await;
    let clients = 6_u64;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (mut api, stop) = (running.client.clone(), stop.clone());
            let session = bytes::Bytes::from(vec![u8::try_from(client).expect("few"); 16]);
            tokio::spawn(async move {
                while api.open_session(v1::OpenSessionRequest { session_id: session.clone() }).await.is_err() {
                    sleep(Duration::from_millis(10)).await;
                }
                let key = format!("{}{client}", if client.is_multiple_of(2) { "a" } else { "z" });
                let mut answers = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let number = answers.len() as u64 + 1;
                    answers.push(commit_once(&mut api, &session, number, &key).await);
                }
                (key, answers)
            })
        })
        .collect();
    let mut rng = SimRng::new(11);
    for round in 0..12 {
        // Sometimes a call of the dying coordinator is lost, sometimes its answer. The coordinator
        // dies at the first such call, or a few later.
        let fate = if round % 3 == 0 { Fate::Lost } else { Fate::AnswerLost };
        let mut reached = world.faults.after(1 + rng.below(30), fate);
        for _ in 0..=rng.below(4) {
            timeout(common::LIMIT, reached.recv()).await.expect("commits go on").expect("the rule holds the sender");
        }
        running.kill();
        world.faults.clear();
        running = world.leader().await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut client = running.client.clone();
    let mut acknowledged = 0;
    for task in tasks {
        let (key, answers) = timeout(common::LIMIT, task).await.expect("it ends").expect("no client panics");
        acknowledged += answers.len();
        let last = read(&mut client, std::slice::from_ref(&key)).await.expect("it is read");
        assert_eq!(balance(&last[0]), i64::try_from(answers.len()).expect("few"), "the last acknowledged write stands");
        for (index, answer) in answers.iter().enumerate() {
            let stamp = answer.stamp.expect("a stamp");
            let which = Some(v1::get_header_request::Which::Version(stamp.version));
            let header = client.get_header(v1::GetHeaderRequest { which }).await.expect("it stands").into_inner();
            assert_eq!(header.header, answer.header, "the acknowledged header is the one in the log");
            let own = read(&mut client, &[format!("{key}-{}", index + 1)]).await.expect("it is read");
            assert_eq!(own[0].last_changed, Some(stamp), "it was applied once, where it was acknowledged");
        }
    }
    assert!(acknowledged > 12, "{acknowledged} batches were acknowledged");
    check_log(&mut client).await;
}

/// Reads the log, beginning with genesis. Every header follows the one before, and each session
/// number stands once.
async fn check_log(client: &mut LedgerClient<Channel>) {
    let request = v1::WatchHeadsRequest { from_sequence: 0, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch_heads(request).await.expect("served").into_inner();
    let mut before: Option<Header> = None;
    let mut kinds = BTreeMap::new();
    while let Some(message) = stream.message().await.expect("served") {
        let header = Header::decode(&message.header).expect("it is canonical");
        if let Some(before) = &before {
            header.check_follows(before).expect("it follows");
        }
        *kinds.entry(matches!(header.body, Body::Commit)).or_insert(0) += 1;
        before = Some(header);
    }
    assert_eq!(kinds.get(&false), Some(&1), "only genesis and commits");
}
