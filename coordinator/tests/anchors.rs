//! Authorities stamp the log: what is kept, what it proves, and that no authority delays anything.
//! Tokens are by OpenSSL and sigstore's server, and `openssl ts -verify` must accept each.
#![expect(clippy::disallowed_methods, reason = "OpenSSL reads real files, and authorities have the real time")]

use std::{
    fs,
    num::NonZeroUsize,
    process::Command,
    time::{Duration, SystemTime},
};

use coppice_coordinator::{Anchoring, Tsa};
use coppice_proto::v1::{self, get_interval_request::Entry};
use coppice_timestamp::{
    Moment, Token,
    interval::{self, Interval, Stamp, Timeline},
};
use coppice_types::{Params, Reason};
use coppice_verify::{
    anchor::{Anchor, Stamps},
    check::{self, Claim, IntervalClaim},
    checkpoint::{Checkpoint, origin},
    header::{Body, Header},
    policy::Policy,
};
use tokio::time::{Instant, sleep, timeout};

mod common;

use common::{
    CLUSTER, LIMIT, Running, World,
    authority::{Habit, Server, authorities, run, scratch, sigstore},
    commit,
    member::{Habit as WitnessHabit, Member},
    put, reason,
};

const EVERY: Duration = Duration::from_millis(400);

async fn world() -> World {
    World::of(1, &[], Params::default()).await
}

fn quorum(of: usize) -> NonZeroUsize {
    NonZeroUsize::new(of).expect("at least one")
}

fn anchoring(authorities: Vec<Tsa>, of: usize) -> Anchoring {
    Anchoring { authorities, time_ledgers: Vec::new(), quorum: quorum(of), every: EVERY, cosigned: false, idle: false }
}

async fn leader(world: &World, anchoring: Anchoring) -> Running {
    let running = world.coordinator_with_anchors("a", &[], anchoring);
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
    running
}

async fn write(running: &mut Running, value: &str) -> u64 {
    let answer = running.client.commit(commit(vec![put("a", value)], Vec::new())).await.expect("it commits");
    answer.into_inner().stamp.expect("a stamp").version
}

/// All headers of the log.
async fn log(running: &mut Running) -> Vec<Header> {
    let mut stream = running.client.watch_heads(v1::WatchHeadsRequest::default()).await.expect("a log").into_inner();
    let mut headers = Vec::new();
    while let Some(message) = stream.message().await.expect("it goes on") {
        headers.push(Header::decode(&message.header).expect("a header"));
    }
    headers
}

fn stamps(header: &Header) -> Option<&Stamps> {
    match &header.body {
        Body::Anchor(Anchor::Stamps(stamps)) => Some(stamps),
        _ => None,
    }
}

/// The log, once an anchor stamps more than this many entries.
async fn stamped(running: &mut Running, entries: u64) -> Vec<Header> {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let headers = log(running).await;
        if headers.iter().filter_map(stamps).any(|stamps| stamps.size > entries) {
            return headers;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("no anchor stamps more than {entries} entries");
}

/// The log, once an anchor stamps all of its commits.
async fn closed(running: &mut Running) -> Vec<Header> {
    let headers = log(running).await;
    let newest = headers.iter().rposition(|header| matches!(header.body, Body::Commit)).expect("a commit");
    stamped(running, newest as u64).await
}

fn log_origin() -> String {
    origin("coppice.test", &CLUSTER)
}

/// The anchors in these headers, by these authorities. Each token must be one of theirs, and
/// satisfy OpenSSL with no more than the root.
fn judged(headers: &[Header], roots: &[&str]) -> Vec<interval::Anchor> {
    let judge = |header: &Header| {
        let stamps = stamps(header)?;
        let imprint = stamps.imprint(&log_origin()).0;
        let by_whom = |token: &coppice_verify::anchor::Token| {
            let parsed = Token::parse(&token.bytes).expect("a token");
            let verdicts = roots.iter().enumerate().map(|(index, root)| {
                let trusted = common::authority::trusted(root);
                (index, coppice_timestamp::verify(&parsed, &trusted, &imprint, None))
            });
            let (index, stamped) =
                verdicts.into_iter().find_map(|(index, verdict)| Some((index, verdict.ok()?))).expect("a known root");
            openssl_verifies(stamps, &parsed, roots[index]);
            Stamp::new(index, &stamped)
        };
        let stamps_of = stamps.tokens.iter().map(by_whom).collect();
        Some(interval::Anchor { stamped_size: stamps.size, sequence: header.sequence.0, stamps: stamps_of })
    };
    headers.iter().filter_map(judge).collect()
}

fn openssl_verifies(stamps: &Stamps, token: &Token, root: &str) {
    let dir = scratch();
    fs::write(dir.path().join("checkpoint"), stamps.checkpoint(&log_origin()).text()).expect("it is written");
    fs::write(dir.path().join("token.tsr"), token.to_response()).expect("it is written");
    let mut command = Command::new("openssl");
    command.args(["ts", "-verify", "-data", "checkpoint", "-in", "token.tsr", "-CAfile"]);
    run(command.arg(authorities().join(format!("{root}.pem"))).current_dir(dir.path()));
}

/// The moment at which this is called.
fn now() -> Moment {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is past 1970");
    Moment::from_nanoseconds(i128::try_from(since.as_nanos()).expect("a small number"))
}

/// The interval proof of an entry, verified.
async fn proven(running: &mut Running, world: &World, entry: Entry, anchors: u32) -> IntervalClaim {
    let request = v1::GetIntervalRequest { entry: Some(entry), anchors, cosigned: false };
    let proof = running.client.get_interval(request).await.expect("a proof").into_inner().proof;
    let verified = check::verify(&proof, world.key().verifier(), None).expect("it holds");
    let Claim::Interval(claim) = verified.claim else { panic!("another kind") };
    claim
}

fn interval_of(claim: &IntervalClaim, roots: &[&str], of: usize) -> Result<Interval, interval::Error> {
    let headers = claim.below.iter().chain(&claim.above).map(|anchor| {
        let body = Body::Anchor(Anchor::Stamps(anchor.stamps.clone()));
        Header { sequence: anchor.sequence, body, ..claim.header.clone() }
    });
    let anchors = judged(&headers.collect::<Vec<_>>(), roots);
    Timeline::new(&anchors, quorum(of)).expect("anchors in order").interval(claim.header.sequence.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_authorities_outvote_one_whose_clock_is_an_hour_fast() {
    let world = world().await;
    let servers = [
        Server::start("millis", Habit::Sound).await,
        Server::start("rsa", Habit::HourFast).await,
        Server::start("other", Habit::Sound).await,
    ];
    let roots = ["first", "second", "third"];
    let tsas = servers.iter().zip(roots).map(|(server, root)| server.tsa(root)).collect();
    // Every anchor waits for all three, so the nearest ones say as much as the whole log.
    let mut running = leader(&world, anchoring(tsas, 3)).await;
    write(&mut running, "0").await;
    stamped(&mut running, 1).await;
    let mut times = Vec::new();
    for round in 0..4 {
        let before = now();
        let version = write(&mut running, &round.to_string()).await;
        times.push((version, before, now()));
        sleep(Duration::from_millis(300)).await;
    }
    let headers = closed(&mut running).await;
    let anchors = judged(&headers, &roots);
    assert!(anchors.len() >= 2 && anchors.iter().all(|anchor| anchor.stamps.len() == 3));
    let timeline = Timeline::new(&anchors, quorum(2)).expect("anchors in order");
    assert_eq!(timeline.set_aside(), [] as [usize; 0]);
    for (version, before, after) in times {
        let claim = proven(&mut running, &world, Entry::Version(version), 1).await;
        let interval = interval_of(&claim, &roots, 2).expect("no contradiction");
        assert_eq!(Ok(interval), timeline.interval(claim.header.sequence.0), "the nearest anchors say all");
        assert!(interval.is_within(Duration::from_secs(30)), "{interval:?}");
        let (lower, upper) = (interval.lower.expect("one before"), interval.upper.expect("one behind"));
        assert!(lower <= before && after <= upper, "{interval:?} holds {before} to {after}");
        assert!(interval.admits(Moment::from_milliseconds(claim.header.timestamp_ms), Duration::from_secs(1)));
        // With a quorum of one, the fast clock contradicts the others.
        let alone = interval_of(&claim, &roots, 1);
        assert!(matches!(alone, Err(interval::Error::Contradiction { .. })), "{alone:?}");
    }
    for header in headers.iter().filter(|header| matches!(header.body, Body::Commit)) {
        let interval = timeline.interval(header.sequence.0).expect("no contradiction");
        assert!(interval.admits(Moment::from_milliseconds(header.timestamp_ms), Duration::from_secs(1)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_sound_tokens_is_kept_and_no_authority_holds_a_commit_up() {
    let world = world().await;
    let habits = [
        ("other", Habit::Silent),
        ("other", Habit::Endless),
        ("other", Habit::Broken),
        ("other", Habit::Nonsense),
        ("other", Habit::OtherImprint),
        ("other", Habit::OtherNonce),
        ("millis", Habit::TwoPurposes),
        ("past", Habit::Sound),
        ("vague", Habit::Sound),
        ("sha1", Habit::Sound),
    ];
    let sound = Server::start("rsa", Habit::Sound).await;
    for (section, habit) in habits {
        let bad = Server::start(section, habit).await;
        let root = if section == "other" { "third" } else { "first" };
        let running = world.coordinator_with_anchors("a", &[], anchoring(vec![bad.tsa(root), sound.tsa("second")], 1));
        let mut running = running;
        timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
        let size = running.handle.log_size();
        let begun = Instant::now();
        for round in 0..5 {
            write(&mut running, &round.to_string()).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(8), "{habit:?}: commits wait for nobody");
        let headers = stamped(&mut running, size.max(1)).await;
        assert!(!bad.asked().is_empty(), "{habit:?}");
        for anchor in judged(&headers, &["second"]) {
            assert_eq!(anchor.stamps.len(), 1, "{habit:?}");
        }
        running.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_go_on_without_authorities_and_an_order_says_so() {
    let world = world().await;
    let server = Server::start("millis", Habit::Broken).await;
    let mut running = leader(&world, anchoring(vec![server.tsa("first")], 1)).await;
    for round in 0..5 {
        write(&mut running, &round.to_string()).await;
    }
    let error = running.client.anchor(v1::AnchorRequest {}).await.expect_err("the authority is broken");
    assert_eq!(reason(&error), Reason::Unavailable);
    assert!(error.message().contains("0 of 1"), "{error:?}");
    assert!(log(&mut running).await.iter().all(|header| stamps(header).is_none()));
    server.behave(Habit::Slow(700));
    let answer = running.client.anchor(v1::AnchorRequest {}).await.expect("it is back").into_inner();
    let header = Header::decode(&answer.header).expect("a header");
    assert_eq!(judged(&[header], &["first"]).len(), 1);
    // The versions between two stamps have both bounds as soon as there is another anchor.
    let version = write(&mut running, "between").await;
    let claim = proven(&mut running, &world, Entry::Version(version), 3).await;
    assert!(interval_of(&claim, &["first"], 1).expect("one authority").upper.is_none());
    closed(&mut running).await;
    let claim = proven(&mut running, &world, Entry::Version(version), 3).await;
    assert!(interval_of(&claim, &["first"], 1).expect("one authority").is_within(Duration::from_secs(30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_log_gets_a_closing_anchor_and_no_more() {
    let world = world().await;
    let server = Server::start("millis", Habit::Slow(200)).await;
    let mut running = leader(&world, anchoring(vec![server.tsa("first")], 1)).await;
    write(&mut running, "1").await;
    stamped(&mut running, 1).await;
    sleep(EVERY * 4).await;
    let settled = log(&mut running).await;
    sleep(EVERY * 4).await;
    let size = settled.len();
    assert_eq!(log(&mut running).await.len(), size, "nothing was committed");
    let last = settled.iter().rev().find_map(stamps).expect("an anchor");
    let newest = settled.iter().rposition(|header| matches!(header.body, Body::Commit)).expect("a commit");
    assert!(last.size > newest as u64, "all commits are stamped");
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_see_only_what_witnesses_have_cosigned() {
    let world = world().await;
    let server = Server::start("millis", Habit::Sound).await;
    let member = Member::start(1, world.key().verifier().clone(), WitnessHabit::Broken).await;
    let settings = Anchoring { cosigned: true, ..anchoring(vec![server.tsa("first")], 1) };
    let mut running = world.coordinator_with_anchors("a", &[member.witness()], settings);
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
    for round in 0..3 {
        write(&mut running, &round.to_string()).await;
        sleep(EVERY).await;
    }
    let until = Instant::now() + LIMIT;
    while member.asked() == 0 {
        assert!(Instant::now() < until, "the witness is asked");
        sleep(EVERY).await;
    }
    sleep(EVERY * 2).await;
    assert_eq!(server.asked(), [] as [[u8; 32]; 0], "nobody has cosigned");
    member.behave(WitnessHabit::Sound);
    write(&mut running, "more").await;
    let headers = stamped(&mut running, 3).await;
    let cosigned: Vec<Checkpoint> = member.cosigned();
    let imprints: Vec<[u8; 32]> =
        cosigned.iter().map(|checkpoint| coppice_verify::hash::sha256(checkpoint.text().as_bytes()).0).collect();
    assert!(server.asked().iter().all(|asked| imprints.contains(asked)), "each was cosigned before");
    assert!(!judged(&headers, &["first"]).is_empty());
    // A proof under a cosigned checkpoint satisfies a policy.
    let policy = format!("log {}\n{}quorum w\n", world.key().verifier(), member.policy_line("w"));
    let policy = Policy::parse(policy.as_bytes()).expect("a policy");
    let request = v1::GetIntervalRequest { entry: Some(Entry::Version(2)), anchors: 1, cosigned: true };
    let proof = running.client.get_interval(request).await.expect("a proof").into_inner().proof;
    let (verified, _) = check::verify_under(&proof, &policy, None).expect("it is cosigned");
    let Claim::Interval(claim) = verified.claim else { panic!("another kind") };
    assert_eq!(claim.above.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_stop_at_anchors_holds_the_first_one_up() {
    let world = World::of(3, &[], Params::default()).await;
    let server = Server::start("millis", Habit::Sound).await;
    world.faults.outdate(&["node-2"]);
    let mut running = leader(&world, anchoring(vec![server.tsa("first")], 1)).await;
    write(&mut running, "1").await;
    let error = running.client.anchor(v1::AnchorRequest {}).await.expect_err("node-2 would stop");
    assert_eq!(reason(&error), Reason::PreconditionFailed);
    assert!(error.message().contains("node-2") && server.asked().is_empty(), "{error:?}");
    world.faults.outdate(&[]);
    running.client.anchor(v1::AnchorRequest {}).await.expect("all know anchors");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_goes_on_where_the_anchors_are() {
    let world = world().await;
    let server = Server::start("millis", Habit::Sound).await;
    let mut first = leader(&world, anchoring(vec![server.tsa("first")], 1)).await;
    write(&mut first, "1").await;
    stamped(&mut first, 1).await;
    first.kill();
    let mut second = leader(&world, anchoring(vec![server.tsa("first")], 1)).await;
    write(&mut second, "2").await;
    let headers = closed(&mut second).await;
    let sizes: Vec<u64> = headers.iter().filter_map(stamps).map(|stamps| stamps.size).collect();
    assert!(sizes.len() >= 2 && sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigstores_tokens_are_kept_whole() {
    let world = world().await;
    let tsa = Tsa { url: "http://sigstore.test/".to_owned(), authority: common::authority::sigstores() };
    let settings = Anchoring { every: Duration::from_secs(600), ..anchoring(vec![tsa], 1) };
    let mut running = world.coordinator_with_anchors_by("a", sigstore(), settings);
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
    write(&mut running, "1").await;
    let answer = running.client.anchor(v1::AnchorRequest {}).await.expect("it stamps").into_inner();
    let header = Header::decode(&answer.header).expect("a header");
    assert_eq!(judged(&[header], &["first"]).len(), 1, "the intermediate certificate is in the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_are_refused() {
    let world = world().await;
    let mut running = world.leader().await;
    let error = running.client.anchor(v1::AnchorRequest {}).await.expect_err("no authority is configured");
    assert_eq!(reason(&error), Reason::PreconditionFailed);
    let mut ask = async |entry, anchors| {
        running
            .client
            .get_interval(v1::GetIntervalRequest { entry, anchors, cosigned: false })
            .await
            .map(|answer| answer.into_inner())
    };
    for (entry, anchors, expected) in [
        (None, 0, Reason::InvalidArgument),
        (Some(Entry::Sequence(99)), 0, Reason::NotFound),
        (Some(Entry::Version(99)), 0, Reason::NotYet),
        (Some(Entry::Sequence(0)), 17, Reason::LimitExceeded),
    ] {
        assert_eq!(reason(&ask(entry, anchors).await.expect_err("it makes no sense")), expected, "{entry:?}");
    }
    let proof = ask(Some(Entry::Sequence(0)), 16).await.expect("a proof without anchors").proof;
    let verified = check::verify(&proof, world.key().verifier(), None).expect("it holds");
    let Claim::Interval(claim) = verified.claim else { panic!("another kind") };
    assert!(claim.below.is_empty() && claim.above.is_empty());
}
