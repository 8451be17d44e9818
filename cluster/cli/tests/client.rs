//! The client against coordinators that are dead, slow or cut off. It goes on with one that
//! answers, and a stream of batches is applied once and in order.

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use coppice::dev::{Cluster, Listener, Options, home::new_key, shape::Wanted};
use coppice_client::{Client, Options as ClientOptions};
use coppice_env::{SimRng, SimStorage};
use coppice_proto::{Channel, HttpRequest, status, v1};
use coppice_shard_node::Tuning;
use coppice_types::{Batch, Change, Operation, PinId, Reason, SessionId};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower::ServiceExt;

async fn cluster() -> (Cluster, coppice_verify::note::VerifierKey) {
    let wanted = Wanted { replicas: Some(1), ..Wanted::default() };
    let key = new_key(None, &mut SimRng::new(1)).expect("a key");
    let vkey = key.verifier().clone();
    let options = Options {
        storage: SimStorage::new().storage(),
        shape: wanted.shape().expect("a shape"),
        readers: 0,
        pim: false,
        key,
        next_key: None,
        listen: Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--listen").expect("a free port"),
        http_listen: None,
        witnesses: None,
        anchoring: None,
        retention: None,
        tuning: Tuning::default(),
    };
    (Cluster::start(options).await.expect("it starts"), vkey)
}

fn batch(key: &str, value: u64) -> v1::Batch {
    let put =
        Operation { key: key.as_bytes().to_vec().into(), change: Change::Put(value.to_string().into_bytes().into()) };
    coppice_client::batch(Batch { operations: vec![put], ..Batch::default() })
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it listens").to_string();
    (listener, address)
}

/// An address without a listener.
async fn dead() -> String {
    listen().await.1
}

/// A coordinator that accepts connections and never answers. The counter counts the connections.
async fn slow() -> (String, Arc<AtomicUsize>) {
    let (listener, address) = listen().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    (address, taken)
}

/// A proxy to the ledger that breaks its connections whenever a value is sent through the channel.
async fn cut_off(endpoint: &str) -> (String, watch::Sender<u64>) {
    let (listener, address) = listen().await;
    let to = endpoint.trim_start_matches("http://").to_owned();
    let (cut, watched) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (to, mut watched) = (to.clone(), watched.clone());
            watched.mark_unchanged();
            tokio::spawn(async move {
                let Ok(mut ledger) = TcpStream::connect(&to).await else { return };
                tokio::select! {
                    _ = copy_bidirectional(&mut stream, &mut ledger) => {}
                    _ = watched.changed() => {}
                }
            });
        }
    });
    (address, cut)
}

/// A client that trusts a key, with a proxy that answers no header requests while the sender holds
/// true. The counter counts those requests.
fn without_headers(
    endpoint: &str,
    vkey: coppice_verify::note::VerifierKey,
    patience: Duration,
) -> (Client, watch::Sender<bool>, watch::Receiver<usize>) {
    let address = tonic::transport::Endpoint::from_shared(endpoint.to_owned()).expect("an endpoint");
    let (way, (closed, is_closed), (count, asked)) =
        (Channel::from(address.connect_lazy()), watch::channel(true), watch::channel(0));
    let service = tower::service_fn(move |request: HttpRequest| {
        let refused = request.uri().path().ends_with("/GetHeader") && *is_closed.borrow();
        if refused {
            count.send_modify(|asked| *asked += 1);
        }
        let way = way.clone();
        async move {
            let busy = || status::refuse(Reason::ResourceExhausted, "it is busy").into_http();
            if refused { Ok(busy()) } else { way.oneshot(request).await }
        }
    });
    let options = ClientOptions { patience, trust: Some(vkey), ..ClientOptions::new("the ledger") };
    (Client::over(vec![("the ledger".to_owned(), Channel::new(service))], 1, &options), closed, asked)
}

async fn version(client: &Client) -> u64 {
    client.head().await.expect("it is known").stamp.expect("a stamp").version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_not_proven_in_time_may_have_happened() {
    let (cluster, vkey) = cluster().await;
    let (client, closed, _) = without_headers(cluster.endpoint(), vkey.clone(), Duration::from_millis(50));
    let error = client.commit(batch("k", 1), false).await.expect_err("nothing shows that it is so");
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(version(&client).await, 1, "it was committed");
    let mut session = client.open_session(SessionId([1; 16])).await.expect("it is opened");
    let error = session.commit(batch("k", 2), false).await.expect_err("nothing shows that it is so");
    assert!(error.outcome_unknown(), "{error}");
    closed.send_replace(false);
    session.commit(batch("k", 2), false).await.expect("the same batch under the same number");
    assert_eq!((version(&client).await, session.highest()), (2, 1), "nothing is applied twice");
    cluster.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_after_an_answer_that_was_not_proven_in_time_or_not_waited_for() {
    let (cluster, vkey) = cluster().await;
    for (patience, session) in [(Duration::from_millis(50), 1), (common::LIMIT, 2)] {
        let (client, closed, mut asked) = without_headers(cluster.endpoint(), vkey.clone(), patience);
        let before = version(&client).await;
        let mut session = client.open_session(SessionId([session; 16])).await.expect("it is opened");
        let mut stream = session.stream(false);
        for value in 1..=3 {
            assert!(stream.push(batch("k", value)).await.expect("it is sent").is_none());
        }
        tokio::select! {
            answer = stream.next() => {
                let error = answer.expect_err("nothing shows that it is so");
                assert!(error.outcome_unknown() && patience < common::LIMIT, "{error}");
            }
            _ = asked.wait_for(|asked| *asked > 0), if patience == common::LIMIT => {}
        }
        closed.send_replace(false);
        for number in 1..=3 {
            let answer = stream.next().await.expect("it is answered").expect("it has none yet");
            assert_eq!(answer.number, number);
        }
        assert!(stream.next().await.expect("all are answered").is_none());
        assert!((before + 1..=before + 3).contains(&version(&client).await), "nothing is applied twice");
        drop(stream);
        assert_eq!(session.highest(), 3);
    }
    cluster.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_and_a_slow_coordinator_do_not_keep_a_client_from_its_ledger() {
    let (cluster, vkey) = cluster().await;
    let (slow, taken) = slow().await;
    let endpoint = format!("{},{slow},{}", dead().await, cluster.endpoint());
    let options = ClientOptions { patience: common::LIMIT, trust: Some(vkey), ..ClientOptions::new(endpoint) };
    let client = Client::new(options).expect("endpoints");
    let mut session = client.open_session(SessionId([1; 16])).await.expect("one of them answers");
    for number in 1..=20 {
        let answer = session.commit(batch("k", number), false).await.expect("it is committed");
        assert_eq!(answer.stamp.expect("a stamp").version, number, "nothing is applied twice");
    }
    let request = v1::GetRequest { key: b"k".to_vec().into(), ..v1::GetRequest::default() };
    let record = client.get(request).await.expect("it is read").record.expect("a record");
    assert_eq!(record.value, b"20".as_slice());
    assert!(taken.load(Ordering::SeqCst) <= 2, "the slow one is left alone");
    client.learn_endpoints().await.expect("they are known");
    cluster.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_connection_breaks_goes_on_and_applies_nothing_twice() {
    let (cluster, _) = cluster().await;
    let (way, cut) = cut_off(cluster.endpoint()).await;
    let client =
        Client::new(ClientOptions { patience: common::LIMIT, ..ClientOptions::new(way) }).expect("an endpoint");
    let mut session = client.open_session(SessionId([2; 16])).await.expect("it is opened");
    let mut stream = session.stream(false);
    let mut answered = 0;
    let mut note = |answer: Option<coppice_client::Answer>| {
        if let Some(answer) = answer {
            answered += 1;
            assert_eq!(answer.number, answered, "answers come in order");
            assert!(answer.commit.stamp.expect("a stamp").version <= answer.number);
        }
    };
    for number in 1..=300 {
        note(stream.push(batch(&format!("k{}", number % 7), number)).await.expect("it is sent"));
        if number.is_multiple_of(70) {
            cut.send_modify(|times| *times += 1);
        }
    }
    while let Some(answer) = stream.next().await.expect("it is answered") {
        note(Some(answer));
    }
    assert_eq!(answered, 300);
    drop(stream);
    assert_eq!(session.highest(), 300);
    for key in 0..7_u64 {
        let newest = (1..=300).rev().find(|number| number % 7 == key).expect("each key is written");
        let request = v1::GetRequest { key: format!("k{key}").into_bytes().into(), ..v1::GetRequest::default() };
        let record = client.get(request).await.expect("it is read").record.expect("a record");
        assert_eq!(record.value, newest.to_string().into_bytes());
    }
    let pin = client.pin(PinId([4; 16]), 1, Duration::from_secs(60)).await.expect("it stands");
    assert_eq!(client.pins().await.expect("they are listed"), [pin]);
    assert!(client.unpin(PinId([4; 16])).await.expect("it is taken back"));
    cluster.stop().await.expect("it stops");
}
