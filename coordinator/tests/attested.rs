//! A lying root replica can't make a coordinator sign. Behind the proxies all replicas are honest,
//! so every signed log is compared with theirs.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{GroupId, Params, Reason};
use coppice_verify::checkpoint::Checkpoint;
use tokio::time::{sleep, timeout};

mod common;

use common::{
    LIMIT, Running, World, commit, get,
    proxy::{Fate, Said, proxy_of},
    put, reason,
};

async fn world(nodes: u32) -> World {
    let mut world = World::of(nodes, &[b"m".to_vec()], Params::default()).await;
    world.limits.root_timeout = Duration::from_millis(700);
    world
}

async fn write(running: &Running, value: &str) -> Result<v1::CommitResponse, tonic::Status> {
    let batch = commit(vec![put("a", value), put("z", value)], Vec::new());
    Ok(running.client.clone().commit(batch).await?.into_inner())
}

/// Commits until it succeeds: a leader that was misled, or has lost its term, recovers in time.
async fn write_again(running: &Running, value: &str) -> v1::CommitResponse {
    let written = async {
        loop {
            match write(running, value).await {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(matches!(reason(&error), Reason::Unavailable | Reason::NotLeader), "what may pass: {error}")
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, written).await.expect("it is committed in time")
}

fn open(world: &World, note: &[u8]) -> Checkpoint {
    Checkpoint::open(note, world.key().verifier()).expect("it is signed")
}

async fn checkpoint(running: &Running) -> Result<Bytes, tonic::Status> {
    let answer = running.client.clone().get_checkpoint(v1::GetCheckpointRequest::default()).await?;
    Ok(answer.into_inner().checkpoint)
}

/// A coordinator that shows the log and does not lead.
async fn follower(world: &World) -> Running {
    let follower = world.coordinator("b");
    let seen = async {
        while checkpoint(&follower).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, seen).await.expect("it reaches the nodes");
    follower
}

/// The node of the leading root replica, and another node.
fn places(world: &World) -> (String, String) {
    let is_leader = |node: &&coppice_shard_node::Handle| {
        let root = node.status().replicas.into_iter().find(|replica| replica.group == GroupId::Root.number());
        root.and_then(|root| root.status).is_some_and(|status| status.role == "leader")
    };
    let leader = world.nodes.iter().find(is_leader).expect("one leads").status().node;
    let other = world.nodes.iter().find(|node| !is_leader(node)).expect("others follow").status().node;
    (leader, other)
}

/// A forgery: changes a view that a replica gives.
type Forge = fn(&mut v1::RootView, old: &v1::RootView);

const FORGERIES: [(&str, Forge); 4] = [
    ("another root", |view, _| view.log_root = Bytes::from_static(&[7; 32])),
    ("an older log", |view, old| view.clone_from(old)),
    ("another log of an older size", |view, old| {
        view.clone_from(old);
        view.log_root = Bytes::from_static(&[7; 32]);
    }),
    ("an older header and root as if they were the newest", |view, old| {
        let header = coppice_verify::header::Header::decode(&old.newest).expect("a header");
        let sequence = coppice_types::Sequence(view.log_size - 1);
        view.newest = coppice_verify::header::Header { sequence, ..header }.encode().into();
        view.log_root = old.log_root.clone();
    }),
];

/// Makes the replica on one node lie consistently, in views and attestations.
fn lie(world: &World, liar: Option<String>, forge: Forge, old: v1::RootView) {
    let forged: Arc<Mutex<Option<(u64, Bytes)>>> = Arc::default();
    world.faults.lie(move |node, said| {
        // A coordinator may ask any node for a view, so the node that is asked first becomes the
        // liar.
        if liar.as_deref().is_some_and(|liar| liar != node) {
            return;
        }
        let mut forged = forged.lock().expect("nobody panics");
        let view = match said {
            Said::Read(answer) => answer.view.as_mut(),
            Said::TakeOver(answer) => answer.view.as_mut(),
            Said::Shard(_) => return,
            Said::Attest(size, answer) => {
                if let Some((_, root)) = forged.as_ref().filter(|(forged, _)| *forged == size) {
                    answer.log_root = root.clone();
                }
                return;
            }
        };
        let Some(view) = view.filter(|view| !view.genesis.is_empty()) else { return };
        forge(view, &old);
        *forged = Some((view.log_size, view.log_root.clone()));
    });
}

/// The view that the replicas have now.
async fn view_of(world: &World) -> v1::RootView {
    let mut root = v1::root_client::RootClient::new(world.net.connector("client").channel("node-1"));
    let read = Some(v1::read_root_request::Read::View(true));
    let answer = root.read_root(v1::ReadRootRequest { stale_ok: false, read }).await.expect("it answers");
    answer.into_inner().view.expect("a view")
}

/// A ledger of two versions: its leader, the replicas' view of the first one, and a coordinator
/// that only shows the log.
async fn with_two_versions(world: &World) -> (Running, v1::RootView, Running) {
    let leader = world.leader().await;
    write_again(&leader, "1").await;
    let old = view_of(world).await;
    write_again(&leader, "2").await;
    let follower = follower(world).await;
    (leader, old, follower)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_replica_gets_no_signature_of_a_coordinator_that_only_shows_the_log() {
    let world = world(3).await;
    let (leader, old, follower) = with_two_versions(&world).await;
    for (name, forge) in FORGERIES {
        let signed = open(&world, &checkpoint(&follower).await.expect("all is well"));
        // The coordinator chooses the node that it asks for a view. Two nodes are tried as the only
        // liar.
        let (raft_leader, _) = places(&world);
        for liar in ["node-1".to_owned(), raft_leader] {
            write_again(&leader, "3").await;
            lie(&world, Some(liar.clone()), forge, old.clone());
            if let Ok(note) = checkpoint(&follower).await {
                let shown = open(&world, &note);
                world.faults.tell_the_truth();
                let truth = open(&world, &checkpoint(&leader).await.expect("it leads"));
                assert!(shown.size >= signed.size, "{name} by {liar}");
                assert_eq!(shown, truth, "{name} by {liar}");
            }
            world.faults.tell_the_truth();
        }
        let truth = open(&world, &write_again(&leader, "4").await.checkpoint);
        let shown = open(&world, &checkpoint(&follower).await.expect("all is well again"));
        assert_eq!(shown, truth, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_view_is_not_signed_whoever_shows_it() {
    let world = world(3).await;
    let leader = world.leader().await;
    let first = open(&world, &write_again(&leader, "1").await.checkpoint);
    let old = view_of(&world).await;
    write_again(&leader, "2").await;
    let follower = follower(&world).await;
    for (name, forge) in FORGERIES {
        // All views are forged, but attestations are not. Only attestations count.
        let old = old.clone();
        world.faults.lie(move |_, said| {
            if let Said::Read(v1::ReadRootResponse { view: Some(view), .. }) = said {
                forge(view, &old);
            }
        });
        let refused = checkpoint(&follower).await.expect_err("no majority has that log");
        assert!(matches!(reason(&refused), Reason::Unavailable | Reason::Internal), "{name}: {refused}");
        match checkpoint(&leader).await {
            // The coordinator signed this log when it was the newest.
            Ok(note) => assert_eq!((open(&world, &note), name), (first.clone(), "an older log")),
            Err(refused) => {
                assert!(matches!(reason(&refused), Reason::Unavailable | Reason::Internal), "{name}: {refused}");
            }
        }
        world.faults.tell_the_truth();
        let truth = open(&world, &write_again(&leader, "3").await.checkpoint);
        assert_eq!(open(&world, &checkpoint(&follower).await.expect("all is well again")), truth, "{name}");
    }
}

/// Two of three replicas tell the same lie. The signed log stands, and nothing is signed that does
/// not extend it.
#[tokio::test(flavor = "multi_thread")]
async fn even_a_majority_gets_no_signature_for_a_log_that_contradicts_the_signed_one() {
    let world = world(3).await;
    let leader = world.leader().await;
    write_again(&leader, "1").await;
    let follower = follower(&world).await;
    let old = view_of(&world).await;
    let signed = open(&world, &checkpoint(&follower).await.expect("all is well"));
    lie(&world, None, |view, _| view.log_root = Bytes::from_static(&[7; 32]), old.clone());
    let refused = checkpoint(&follower).await.expect_err("another root of the size that is signed");
    assert_eq!(reason(&refused), Reason::Internal, "{refused}");
    let forge: Forge = |view, _| {
        let header = coppice_verify::header::Header::decode(&view.newest).expect("a header");
        let sequence = coppice_types::Sequence(view.log_size + 1);
        view.newest = coppice_verify::header::Header { sequence, ..header }.encode().into();
        (view.log_size, view.log_root) = (view.log_size + 2, Bytes::from_static(&[7; 32]));
    };
    write_again(&leader, "2").await;
    write_again(&leader, "3").await;
    // The liars' log is shorter, with two other entries.
    let behind = move |view: &mut v1::RootView| {
        view.clone_from(&old);
        forge(view, &old);
    };
    world.faults.lie(move |_, said| match said {
        Said::Read(v1::ReadRootResponse { view: Some(view), .. }) => behind(view),
        Said::Attest(_, answer) => answer.log_root = Bytes::from_static(&[7; 32]),
        _ => {}
    });
    let refused = checkpoint(&follower).await.expect_err("it does not extend what is signed");
    assert_eq!(reason(&refused), Reason::Internal, "{refused}");
    world.faults.tell_the_truth();
    let now = open(&world, &checkpoint(&follower).await.expect("all is well again"));
    assert_eq!(now.size, signed.size + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_leadership_begins_on_a_log_without_a_majority_or_leaves_outside_its_header() {
    let world = world(3).await;
    let (leader, old, follower) = with_two_versions(&world).await;
    let wrong_leaf: Forge = |view, _| {
        let state = view.leaves[0].state.as_mut().expect("a state");
        state.digest = Bytes::from_static(&[7; 32]);
    };
    let forgeries = FORGERIES.into_iter().chain([("another leaf", wrong_leaf)]);
    let (mut leads, mut shows) = (&leader, &follower);
    for (name, forge) in forgeries {
        let old = old.clone();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        world.faults.lie(move |_, said| {
            if let Said::TakeOver(v1::TakeOverResponse { view: Some(view), .. }) = said {
                forge(view, &old);
                // The test may have ended.
                let _ = tell.send(());
            }
        });
        let names = if std::ptr::eq(leads, &leader) { ("a", "b") } else { ("b", "a") };
        world.picked.pick(names.1);
        // The second attempt shows that the coordinator tries again.
        for _ in 0..2 {
            timeout(LIMIT, told.recv()).await.expect("it tries to lead").expect("the rule holds");
        }
        assert_eq!(shows.handle.leadership().term, None, "{name}");
        world.faults.tell_the_truth();
        timeout(LIMIT, shows.handle.leading()).await.expect("it leads once it is told the truth");
        (leads, shows) = (shows, leads);
        let truth = open(&world, &write_again(leads, name).await.checkpoint);
        assert_eq!(open(&world, &checkpoint(shows).await.expect("it shows the log")), truth, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_only_the_leading_replica_calls_appended_is_not_answered_as_committed() {
    let world = world(3).await;
    let leader = world.leader().await;
    let signed = open(&world, &write_again(&leader, "1").await.checkpoint);
    world.faults.set(|call| if call.name == "append_header" { Fate::Feigned } else { Fate::Pass });
    let refused = write(&leader, "2").await.expect_err("it is in no log");
    assert_eq!(reason(&refused), Reason::Unavailable, "{refused}");
    world.faults.clear();
    let next = open(&world, &write_again(&leader, "3").await.checkpoint);
    assert_eq!(next.size, signed.size + 1);
    let value = leader.client.clone().get(get("a", None)).await.expect("read").into_inner();
    assert_eq!(value.record.expect("a record").value, "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_go_on_while_one_replica_lies_or_is_away_and_not_without_a_majority() {
    let world = world(3).await;
    let leader = world.leader().await;
    write_again(&leader, "1").await;
    let (_, other) = places(&world);
    let liar = other.clone();
    world.faults.lie(move |node, said| {
        if let (true, Said::Attest(_, answer)) = (node == liar, said) {
            answer.log_root = Bytes::from_static(&[7; 32]);
            answer.voters = vec![liar.clone()];
        }
    });
    for value in ["2", "3", "4"] {
        write(&leader, value).await.expect("two of three say the same");
    }
    let silent = other.clone();
    world.faults.lie(move |node, said| {
        if let (true, Said::Attest(_, answer)) = (node == silent, said) {
            answer.log_root.clear();
        }
    });
    for value in ["5", "6"] {
        write(&leader, value).await.expect("two of three say something");
    }
    world.faults.tell_the_truth();
    // No replica answers the coordinator, but the replicas still talk to each other.
    world.faults.set(|call| if call.name == "attest" { Fate::Lost } else { Fate::Pass });
    let stalled = write(&leader, "7").await.expect_err("nobody attests");
    assert_eq!(reason(&stalled), Reason::Unavailable, "{stalled}");
    world.faults.clear();
    let last = open(&world, &write_again(&leader, "8").await.checkpoint);
    assert_eq!(open(&world, &checkpoint(&leader).await.expect("it leads")), last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_voter_is_believed_and_two_voters_must_agree() {
    let one = world(1).await;
    let leader = one.leader().await;
    let signed = open(&one, &write_again(&leader, "1").await.checkpoint);
    assert_eq!(open(&one, &checkpoint(&leader).await.expect("it leads")), signed);
    let two = world(2).await;
    let leader = two.leader().await;
    write_again(&leader, "1").await;
    let (_, other) = places(&two);
    two.net.cut("a", &proxy_of(&other));
    let stalled = write(&leader, "2").await.expect_err("one of two is heard");
    assert_eq!(reason(&stalled), Reason::Unavailable, "{stalled}");
    two.net.heal("a", &proxy_of(&other));
    write_again(&leader, "3").await;
}
