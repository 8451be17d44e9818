//! Requests that remove data must name the target, the reason and the principal. A request with a
//! missing or deceptive text is refused before anything happens.

use coppice_proto::v1;
use coppice_types::{Params, Reason};
use coppice_verify::header::{Body, Header};

mod common;

use common::{World, at, commit, get, prune_before, put, reason, roll_back};

/// Texts with characters that are not shown as themselves.
const HIDDEN: [&str; 9] =
    ["a\nb", "a\r", "\u{1b}[2J", "\u{7f}", "\u{85}", "a\u{202e}b", "a\u{2028}b", "\u{feff}a", "a\u{200b}b"];

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_message_does_nothing() {
    let world = World::new(Params::default()).await;
    let leader = world.leader().await;
    let mut client = leader.client.clone();
    for version in 1..=3 {
        client.commit(commit(vec![put("a", &version.to_string())], Vec::new())).await.expect("committed");
    }
    let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    let refused = [
        client.rollback(v1::RollbackRequest::default()).await.map(drop).expect_err("no target"),
        client.rollback(v1::RollbackRequest { to: None, ..roll_back(0) }).await.map(drop).expect_err("no target"),
        client.prune(v1::PruneRequest::default()).await.map(drop).expect_err("no boundary"),
        client.prune(v1::PruneRequest { before: None, ..prune_before(0) }).await.map(drop).expect_err("no boundary"),
        client.rotate_key(v1::RotateKeyRequest::default()).await.map(drop).expect_err("no key"),
        client.pin(v1::PinRequest::default()).await.map(drop).expect_err("no version"),
        client.unpin(v1::UnpinRequest::default()).await.map(drop).expect_err("no pin"),
        client.discard(v1::DiscardRequest::default()).await.map(drop).expect_err("no stage"),
        client.finalize(v1::FinalizeRequest::default()).await.map(drop).expect_err("no stage"),
        client.open_session(v1::OpenSessionRequest::default()).await.map(drop).expect_err("no session"),
        client.commit(v1::CommitRequest::default()).await.map(drop).expect_err("no batch"),
    ];
    for error in refused {
        assert_eq!(reason(&error), Reason::InvalidArgument, "{error}");
    }
    let nowhere = client.transfer_leader(v1::TransferLeaderRequest::default()).await.expect_err("no node");
    assert_eq!(reason(&nowhere), Reason::NotFound, "{nowhere}");
    let after = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    assert_eq!((head.stamp, head.log_size), (after.stamp, after.log_size), "nothing happened");
    let done = client.rollback(roll_back(0)).await.expect("it was said").into_inner();
    assert_eq!(done.head, Some(at(1, 0)), "genesis has to be asked for");
    let read = client.get(get("a", None)).await.expect("it is read").into_inner();
    assert!(!read.record.expect("a record").found);
}

#[tokio::test(flavor = "multi_thread")]
async fn reason_and_principal_are_required_and_have_no_hidden_characters() {
    let world = World::new(Params::default()).await;
    let leader = world.leader().await;
    let mut client = leader.client.clone();
    client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("committed");
    let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    let vkey = world.key().verifier().to_string();
    let rotate = |reason: &str, principal: &str| v1::RotateKeyRequest {
        vkey: vkey.clone(),
        reason: reason.to_owned(),
        principal: principal.to_owned(),
        expected_head: None,
    };
    for text in HIDDEN.into_iter().chain(["", " "]) {
        let words = text.to_owned();
        let refused = [
            client.rollback(v1::RollbackRequest { reason: words.clone(), ..roll_back(0) }).await,
            client.rollback(v1::RollbackRequest { principal: words.clone(), ..roll_back(0) }).await,
            client.prune(v1::PruneRequest { reason: words.clone(), ..prune_before(1) }).await,
            client.prune(v1::PruneRequest { principal: words.clone(), ..prune_before(1) }).await,
            client.rotate_key(rotate(text, "p")).await,
            client.rotate_key(rotate("r", text)).await,
        ];
        for error in refused.into_iter().map(|answer| answer.expect_err("it is refused")) {
            assert_eq!(reason(&error), Reason::InvalidArgument, "{text:?}: {error}");
            assert!(error.message().contains("principal") || error.message().contains("reason"), "{error}");
            let shown = error.message().chars().all(|c| !coppice_types::text::is_control(c));
            assert!(shown, "the answer says it in printable characters: {error:?}");
        }
    }
    let long = v1::PruneRequest { principal: "\"".repeat(100), ..prune_before(1) };
    let error = client.prune(long).await.expect_err("escapes count");
    assert_eq!(reason(&error), Reason::LimitExceeded, "{error}");
    let after = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    assert_eq!(head.log_size, after.log_size, "nothing was written");
    let claim = "The \"Queen\") CN=alice (says \"x";
    let prune = v1::PruneRequest { principal: claim.to_owned(), reason: "für Platz".to_owned(), ..prune_before(1) };
    let done = client.prune(prune).await.expect("it is one line").into_inner();
    let Body::Prune(prune) = Header::decode(&done.header).expect("a header").body else { panic!("it is a prune") };
    assert_eq!(prune.reason, "für Platz");
    assert_eq!(prune.principal, "unauthenticated (says \"The \\\"Queen\\\") CN=alice (says \\\"x\")");
    assert_eq!(coppice_verify::principal::claim_of(&prune.principal).as_deref(), Some(claim));
}
