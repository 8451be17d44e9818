//! The Kubernetes operator's operations against a real cluster: each is done once, even if the
//! operator dies after it asked.

use std::{net::SocketAddr, time::Duration};

use coppice::dev::{Cluster, Listener, Options, home::new_key, shape::Wanted};
use coppice_client::{Client, Options as ClientOptions};
use coppice_env::{SimRng, SimStorage};
use coppice_operator::{
    crd::{LedgerOperationSpec, LedgerOperationStatus, Phase},
    ledger::{Operator, report},
    operation::{Step, principal},
};
use coppice_shard_node::Tuning;
use coppice_types::{Batch, Change, Operation};
use serde_json::json;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for any step on a machine that is not stuck.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause before a request that the ledger could not serve yet is repeated.
const LATER: Duration = Duration::from_millis(200);

async fn cluster(replicas: u32) -> Cluster {
    let wanted = Wanted { replicas: Some(replicas), ..Wanted::default() };
    let options = Options {
        storage: SimStorage::new().storage(),
        shape: wanted.shape().expect("a shape"),
        readers: 0,
        pim: false,
        key: new_key(None, &mut SimRng::new(1)).expect("a key"),
        next_key: None,
        listen: Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--listen").expect("a free port"),
        http_listen: None,
        witnesses: None,
        anchoring: None,
        retention: None,
        tuning: Tuning::default(),
    };
    Cluster::start(options).await.expect("it starts")
}

async fn commit(client: &Client, value: u64) {
    let put = Operation { key: b"key".to_vec().into(), change: Change::Put(value.to_string().into_bytes().into()) };
    let batch = coppice_client::batch(Batch { operations: vec![put], ..Batch::default() });
    client.commit(batch, false).await.expect("it is committed");
}

fn spec(operation: serde_json::Value) -> LedgerOperationSpec {
    serde_json::from_value(operation).expect("it can be read")
}

/// Does what the controller does, except for writing to Kubernetes. Returns the statuses that it
/// would have written.
async fn run(endpoint: &str, spec: &LedgerOperationSpec, uid: &str) -> Vec<LedgerOperationStatus> {
    let principal = principal("bank", uid);
    let operator = Operator { endpoint, tls: None, spec, principal: &principal, creator: None, patience: PATIENCE };
    let mut statuses = vec![LedgerOperationStatus::default()];
    let started = Instant::now();
    loop {
        match operator.advance(statuses.last().expect("there is a first one")).await.expect("the ledger answers") {
            Step::Record(status) => statuses.push(status),
            Step::Over => return statuses,
            Step::Later(_) if started.elapsed() < LIMIT => sleep(LATER).await,
            step => panic!("{step:?}"),
        }
    }
}

/// Repeats the request until the replica on the node leads its group. On a busy machine, a new
/// leader may have to give up leadership at once.
async fn lead(endpoint: &str, group: &str, node: &str, uid: &str) {
    let transfer = spec(json!({ "cluster": "ledger", "transfer": { "group": group, "node": node } }));
    let started = Instant::now();
    loop {
        let statuses = run(endpoint, &transfer, uid).await;
        assert_eq!(statuses.last().map(|status| status.phase), Some(Phase::Succeeded), "{statuses:?}");
        let now = report(endpoint, None, PATIENCE).await.expect("it answers");
        let replicas = &now.status.groups.iter().find(|now| now.group == group).expect("it is there").replicas;
        let leaders: Vec<&str> =
            replicas.iter().filter(|replica| replica.role == "leader").map(|replica| replica.node.as_str()).collect();
        if leaders == [node] {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{node} does not lead: {replicas:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_are_done_once_and_found_again_in_the_root_log() {
    let cluster = cluster(1).await;
    let endpoint = cluster.endpoint().to_owned();
    let client = Client::new(ClientOptions::new(endpoint.clone())).expect("it is an endpoint");
    for value in 1..=8 {
        commit(&client, value).await;
    }
    let head = report(&endpoint, None, PATIENCE).await.expect("it answers").status.head.expect("there is a head");

    let back = spec(json!({ "cluster": "ledger", "rollback": {
        "to": 5, "expectedHead": { "epoch": head.epoch, "version": head.version }, "reason": "a test",
        "confirm": "roll back ledger to 5" } }));
    let statuses = run(&endpoint, &back, "one").await;
    let phases: Vec<Phase> = statuses.iter().map(|status| status.phase).collect();
    assert_eq!(phases, [Phase::Pending, Phase::Running, Phase::Succeeded]);
    let rolled = report(&endpoint, None, PATIENCE).await.expect("it answers").status.head.expect("there is a head");
    assert_eq!(rolled.epoch, head.epoch + 1);

    // The operator died after its request: it comes back to `Running`, and finds what it did.
    let principal = principal("bank", "one");
    let operator = Operator {
        endpoint: &endpoint,
        tls: None,
        spec: &back,
        principal: &principal,
        creator: None,
        patience: PATIENCE,
    };
    let again = operator.advance(&statuses[1]).await.expect("it answers");
    assert_eq!(again, Step::Record(statuses[2].clone()));
    // The same manifest under another resource does nothing.
    let other = run(&endpoint, &back, "two").await;
    assert_eq!(other.last().map(|status| status.phase), Some(Phase::Failed));
    let still = report(&endpoint, None, PATIENCE).await.expect("it answers").status.head;
    assert_eq!(still, Some(rolled));

    let prune = spec(json!({ "cluster": "ledger", "prune": { "before": 4, "reason": "a test" } }));
    let pruned = run(&endpoint, &prune, "three").await;
    assert_eq!(pruned.last().map(|status| status.phase), Some(Phase::Succeeded), "{pruned:?}");
    let boundary = report(&endpoint, None, PATIENCE).await.expect("it answers").status.pruned_boundary;
    assert_eq!(boundary, 4);
    let refused =
        run(&endpoint, &spec(json!({ "cluster": "ledger", "prune": { "before": 900, "reason": "r" } })), "four").await;
    assert_eq!(refused.last().map(|status| status.phase), Some(Phase::Failed), "there is no such version: {refused:?}");
    cluster.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leadership_of_every_group_goes_to_the_node_that_is_named() {
    let cluster = cluster(3).await;
    let endpoint = cluster.endpoint().to_owned();
    let started = Instant::now();
    let groups = loop {
        let groups = report(&endpoint, None, PATIENCE).await.expect("it answers").status.groups;
        if groups.iter().all(|group| group.replicas.len() == 3) {
            break groups;
        }
        assert!(started.elapsed() < LIMIT, "{groups:?}");
    };
    for (number, group) in groups.iter().enumerate() {
        // The last node gets the request twice: it leads already.
        for (turn, node) in group.replicas.iter().chain(group.replicas.last()).map(|replica| &replica.node).enumerate()
        {
            lead(&endpoint, &group.group, node, &format!("{number}-{turn}")).await;
        }
    }
    for (group, node) in [("root", "nobody"), ("shard-9", groups[0].replicas[0].node.as_str())] {
        let transfer = spec(json!({ "cluster": "ledger", "transfer": { "group": group, "node": node } }));
        let statuses = run(&endpoint, &transfer, group).await;
        assert_eq!(statuses.last().map(|status| status.phase), Some(Phase::Failed), "{statuses:?}");
    }
    let client = Client::new(ClientOptions::new(endpoint)).expect("it is an endpoint");
    commit(&client, 1).await;
    cluster.stop().await.expect("it stops");
}
