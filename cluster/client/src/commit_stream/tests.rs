//! Streams of batches against coordinators that break off, refuse, lie, or stay silent.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_types::{Reason, SessionId};
use coppice_verify::note::VerifierKey;

use super::*;
use crate::{
    Options,
    fake::{self, Fake, put},
};

type Seen = Arc<Mutex<Vec<u64>>>;

fn answer(number: u64) -> v1::CommitStreamResponse {
    let stamp = Some(v1::Stamp { epoch: 0, version: number });
    v1::CommitStreamResponse { number, commit: Some(v1::CommitResponse { stamp, ..Default::default() }) }
}

async fn session(fakes: &[&Fake], trust: Option<VerifierKey>) -> Session {
    let options = Options { trust, patience: Duration::from_secs(2), ..Options::new("") };
    fake::client(fakes, &options).open_session(SessionId([6; 16])).await.expect("a session")
}

/// A coordinator that answers each batch up to a number, then breaks the stream.
fn breaks_after(last: u64) -> (Fake, Seen) {
    let (fake, seen) = (Fake::with_session(0), Seen::default());
    let noted = Arc::clone(&seen);
    fake.commit_stream.set(move |request| {
        noted.lock().expect("no panic").push(request.number);
        Some(if request.number > last { Err(Status::unavailable("it restarts")) } else { Ok(answer(request.number)) })
    });
    (fake, seen)
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_order_and_move_the_session_on() {
    let fake = Fake::with_session(4);
    fake.commit_stream.set(|request| Some(Ok(answer(request.number))));
    let mut session = session(&[&fake], None).await;
    let mut stream = session.stream(false);
    for _ in 0..3 {
        assert!(stream.push(put("k")).await.expect("there is room").is_none());
    }
    for number in 5..=7 {
        let answer = stream.next().await.expect("it is answered").expect("it is under way");
        assert_eq!((answer.number, answer.commit.stamp.map(|stamp| stamp.version)), (number, Some(number)));
    }
    assert!(stream.next().await.expect("no error").is_none(), "all are answered");
    assert_eq!(session.highest(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_goes_on_with_another_coordinator_from_the_oldest_unanswered_batch() {
    let ((first, _), (second, seen)) = (breaks_after(2), breaks_after(u64::MAX));
    let mut session = session(&[&first, &second], None).await;
    let mut stream = session.stream(false);
    for _ in 0..5 {
        stream.push(put("k")).await.expect("there is room");
    }
    for number in 1..=5 {
        assert_eq!(stream.next().await.expect("one of them answers").map(|answer| answer.number), Some(number));
    }
    assert_eq!(*seen.lock().expect("no panic"), [3, 4, 5]);
    assert_eq!(session.highest(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_full_stream_takes_the_oldest_answer_before_it_sends_more() {
    let fake = Fake::with_session(0);
    fake.commit_stream.set(|request| Some(Ok(answer(request.number))));
    let mut session = session(&[&fake], None).await;
    let mut stream = session.stream(false);
    for _ in 0..UNDER_WAY_MAX {
        assert!(stream.push(put("k")).await.expect("there is room").is_none());
    }
    for number in 1..=10 {
        let answer = stream.push(put("k")).await.expect("the oldest is answered");
        assert_eq!(answer.map(|answer| answer.number), Some(number));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_stream_and_leaves_the_outcome_of_the_rest_unknown() {
    let fake = Fake::with_session(0);
    fake.commit_stream.set(|request| {
        let refused = status::refuse(Reason::PreconditionFailed, "it has another value");
        Some(if request.number == 2 { Err(refused) } else { Ok(answer(request.number)) })
    });
    let mut session = session(&[&fake], None).await;
    let mut stream = session.stream(false);
    for _ in 0..3 {
        stream.push(put("k")).await.expect("there is room");
    }
    stream.next().await.expect("the first is answered");
    let error = stream.next().await.expect_err("the second is refused");
    assert_eq!((error.reason(), error.outcome_unknown()), (Some(Reason::PreconditionFailed), true));
    assert_eq!(session.highest(), 1, "a refused batch uses up no number");
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_another_batch_or_without_a_version_is_malformed() {
    let lies: [fn(u64) -> v1::CommitStreamResponse; 3] = [
        |number| answer(number + 1),
        |number| v1::CommitStreamResponse { number, commit: None },
        |number| v1::CommitStreamResponse { number, commit: Some(v1::CommitResponse::default()) },
    ];
    for lie in lies {
        let fake = Fake::with_session(0);
        fake.commit_stream.set(move |request| Some(Ok(lie(request.number))));
        let mut session = session(&[&fake], None).await;
        let mut stream = session.stream(false);
        stream.push(put("k")).await.expect("there is room");
        let error = stream.next().await.expect_err("a lie");
        assert!(matches!(error, Error::Malformed(_)) && error.outcome_unknown(), "{error:?}");
        assert_eq!(session.highest(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn patience_ends_and_a_later_call_goes_on_with_the_same_batch() {
    let (fake, up) = (Fake::with_session(0), Arc::new(AtomicBool::new(false)));
    let is_up = Arc::clone(&up);
    fake.commit_stream.set(move |request| {
        let up = is_up.load(Ordering::SeqCst);
        Some(if up { Ok(answer(request.number)) } else { Err(Status::unavailable("it restarts")) })
    });
    let mut session = session(&[&fake], None).await;
    let mut stream = session.stream(false);
    stream.push(put("k")).await.expect("a failure shows later");
    let error = stream.next().await.expect_err("nobody answers");
    assert!(matches!(&error, Error::Unavailable { attempts, outcome_unknown: true, .. } if *attempts > 2), "{error:?}");
    up.store(true, Ordering::SeqCst);
    assert_eq!(stream.next().await.expect("it is back").map(|answer| answer.number), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_coordinator_is_left_after_the_limit_of_an_attempt() {
    let (silent, (other, seen)) = (Fake::with_session(0), breaks_after(u64::MAX));
    silent.commit_stream.set(|_| None);
    let mut session = session(&[&silent, &other], None).await;
    let mut stream = session.stream(false);
    stream.push(put("k")).await.expect("there is room");
    let started = Instant::now();
    assert_eq!(stream.next().await.expect("the other one answers").map(|answer| answer.number), Some(1));
    assert!(started.elapsed() >= Options::new("").attempt_timeout);
    assert_eq!(*seen.lock().expect("no panic"), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_given_up_loses_no_answer() {
    let (fake, asked) = (Fake::with_session(0), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    fake.commit_stream.set(move |request| {
        // The first attempt gets no answer.
        (count.fetch_add(1, Ordering::SeqCst) > 0).then(|| Ok(answer(request.number)))
    });
    let mut session = session(&[&fake], None).await;
    let mut stream = session.stream(false);
    stream.push(put("k")).await.expect("there is room");
    timeout(Duration::from_secs(1), stream.next()).await.expect_err("there is no answer yet");
    assert_eq!(stream.next().await.expect("it is sent again").map(|answer| answer.number), Some(1));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_trusts_a_key_asks_for_receipts_and_takes_no_answer_without_one() {
    let ledger = Arc::new(Mutex::new(fake::ledger()));
    let key = ledger.lock().expect("no panic").key.verifier().clone();
    let fake = Fake::honest(&ledger);
    let mut session = session(&[&fake], Some(key)).await;
    let mut stream = session.stream(false);
    for key in ["k", "l", "z"] {
        stream.push(put(key)).await.expect("there is room");
    }
    for number in 1..=3 {
        assert_eq!(stream.next().await.expect("an honest receipt").map(|answer| answer.number), Some(number));
    }
    fake.commit_stream.set(|request| {
        assert!(request.want_receipt, "a receipt is asked for");
        Some(Ok(answer(request.number)))
    });
    // The open connection has the same handlers.
    stream.push(put("k")).await.expect("there is room");
    let error = stream.next().await.expect_err("there is no receipt");
    assert_eq!((error.reason(), error.outcome_unknown()), (Some(Reason::Unavailable), true));
    assert_eq!(session.highest(), 3);
}
