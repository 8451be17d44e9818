//! Attribution: the root log and the access logs name the certificate's subject. Neither the
//! caller's claim nor the choice of a coordinator changes that.

use std::fs;

use coppice_proto::{
    status,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::Reason;
use serde_json::Value;
use tonic::{
    Code, Request,
    metadata::MetadataValue,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use crate::{
    common,
    harness::{Cluster, until},
};

/// The access-log lines about something, once there are this many.
fn actions(cluster: &Cluster, file: &str, what: &str, count: usize) -> Vec<Value> {
    until(&format!("{count} lines on {what} in {file}"), || {
        let text = fs::read_to_string(cluster.path(file)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines: Vec<Value> = lines.filter(|line| line["action"] == what).collect();
        (lines.len() >= count).then_some(lines)
    })
}

/// A client of a coordinator, with the certificate of this name.
fn client(cluster: &Cluster, name: &str, address: &str) -> LedgerClient<Channel> {
    let read = |name: String| fs::read_to_string(cluster.path(&name)).expect("it was made");
    let own = Identity::from_pem(read(format!("{name}.pem")), read(format!("{name}.key")));
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem".to_owned()))).identity(own);
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an endpoint");
    LedgerClient::new(endpoint.tls_config(tls).expect("the files are whole").connect_lazy())
}

#[test]
fn the_log_names_the_subject_even_through_another_coordinator_and_nobody_can_claim_one() {
    let cluster = Cluster::tls_registered();
    let (nodes, first) = (cluster.nodes(), cluster.coordinator());
    for value in 1..=4 {
        cluster.until_it_commits(&format!("held={value}"));
    }
    let (second, address) = cluster.second_coordinator();
    let as_operator = |endpoint: Option<&str>, words: &[&str]| {
        let mut command = cluster.coppice_as("operator", words);
        if let Some(endpoint) = endpoint {
            command.env("COPPICE_ENDPOINT", format!("https://{endpoint}"));
        }
        common::run(command.args(["--reason", "a test", "--principal", "The Queen", "--json"]))
    };
    until("the second coordinator serves", || {
        let mut command = cluster.coppice_as("operator", &["status", "--json"]);
        let done = common::run(command.env("COPPICE_ENDPOINT", format!("https://{address}")));
        (done.code == 0 && done.json()["leader"] == "coordinator-1").then_some(())
    });
    as_operator(None, &["prune", "--before", "1"]).expect(0);
    as_operator(Some(&address), &["rollback", "--to", "2"]).expect(0);
    let principals = || {
        let log = cluster.run(&["log", "--json"]).expect(0).lines();
        let texts = log
            .iter()
            .flat_map(|header| ["prune", "rollback"].into_iter().filter_map(|kind| header[kind]["principal"].as_str()));
        texts.map(str::to_owned).collect::<Vec<_>>()
    };
    let named = "CN=operator (says \"The Queen\")";
    assert_eq!(principals(), [named, named]);

    let direct = actions(&cluster, "access-log", "prune", 2);
    assert_eq!([&direct[0]["step"], &direct[1]["step"]], ["asked", "done"]);
    assert_eq!((&direct[0]["caller"], &direct[0]["claim"]), (&"CN=operator".into(), &"The Queen".into()));
    assert_eq!((&direct[0]["target"], &direct[0]["reason"]), (&"before 1".into(), &"a test".into()));
    assert_eq!(direct[0]["vouched_by"], Value::Null);
    let asked = actions(&cluster, "access-log-2", "rollback", 2);
    let done = actions(&cluster, "access-log", "rollback", 2);
    for lines in [&asked, &done] {
        assert_eq!([&lines[0]["step"], &lines[1]["step"]], ["asked", "done"]);
        assert_eq!((&lines[0]["caller"], &lines[0]["target"]), (&"CN=operator".into(), &"to 2".into()));
    }
    assert_eq!((&asked[0]["vouched_by"], &done[0]["vouched_by"]), (&Value::Null, &"CN=coordinator-2".into()));

    let runtime = tokio::runtime::Runtime::new().expect("the system gives threads");
    let order = |name: &str, entries: &[(&'static str, &[u8])], address: &str| {
        let (reason, principal) = ("a test".to_owned(), "me".to_owned());
        let mut request =
            Request::new(v1::PruneRequest { before: Some(2), reason, principal, ..v1::PruneRequest::default() });
        for (key, value) in entries {
            if key.ends_with("-bin") {
                request.metadata_mut().insert_bin(*key, MetadataValue::from_bytes(value));
            } else {
                let value = std::str::from_utf8(value).expect("it is text").parse().expect("it is ASCII");
                request.metadata_mut().insert(*key, value);
            }
        }
        runtime.block_on(async { client(&cluster, name, address).prune(request).await })
    };
    let leading = cluster.endpoint().replace("http://", "");
    for entries in [
        &[("coppice-forwarded", &b"1"[..])][..],
        &[("coppice-caller-bin", b"CN=alice")],
        &[("coppice-forwarded", b"1"), ("coppice-caller-bin", b"CN=alice")],
    ] {
        for address in [&leading, &address] {
            let refused = order("operator", entries, address).expect_err("it is not a coordinator");
            assert_eq!(refused.code(), Code::PermissionDenied, "{entries:?}: {refused}");
            assert_eq!(status::reason(&refused), Some(Reason::Denied));
        }
    }
    assert_eq!(principals(), [named, named], "nothing was done");
    let empty = async { client(&cluster, "operator", &address).rollback(v1::RollbackRequest::default()).await };
    let refused = runtime.block_on(empty).expect_err("it says no version");
    assert_eq!(status::reason(&refused), Some(Reason::InvalidArgument), "{refused}");
    let failed = actions(&cluster, "access-log-2", "rollback", 4);
    assert_eq!((&failed[3]["step"], &failed[3]["target"]), (&"failed".into(), &"".into()));
    assert!(failed[3]["answer"].as_str().is_some_and(|answer| answer.contains("to is missing")), "{failed:?}");
    assert_eq!(principals(), [named, named], "nothing was done");
    drop((first, second, nodes));
}
