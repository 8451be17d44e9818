//! Numbers of a session, for every outcome of a batch.

use std::sync::{Arc, Mutex};

use coppice_proto::status;
use coppice_types::ErrorKind;
use tonic::Status;

use super::*;
use crate::{
    Options,
    fake::{self, Fake, put},
};

/// A coordinator that answers the batches by this script, and the numbers that it was sent. The
/// last answer repeats.
fn scripted(answers: Vec<Result<(), Status>>) -> (Fake, Arc<Mutex<Vec<u64>>>) {
    let (fake, seen) = (Fake::with_session(0), Arc::<Mutex<Vec<u64>>>::default());
    let noted = Arc::clone(&seen);
    fake.commit.set(move |request: v1::CommitRequest| {
        let mut noted = noted.lock().expect("no panic");
        let answer = answers.get(noted.len()).or(answers.last()).cloned().expect("a script has an answer");
        noted.push(request.number);
        let stamp = Some(v1::Stamp { epoch: 0, version: request.number });
        answer.map(|()| v1::CommitResponse { stamp, ..Default::default() })
    });
    (fake, seen)
}

async fn open(fake: &Fake) -> Session {
    fake::client(&[fake], &Options::new("")).open_session(SessionId([6; 16])).await.expect("a session")
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_after_its_highest_number() {
    let fake = Fake::with_session(41);
    fake.commit.set(|request: v1::CommitRequest| {
        assert_eq!((request.number, request.session_id.as_ref()), (42, &[6; 16][..]));
        Ok(v1::CommitResponse::default())
    });
    let mut session = open(&fake).await;
    assert_eq!((session.highest(), session.id()), (41, SessionId([6; 16])));
    session.commit(put("k"), false).await.expect("it is committed");
    assert_eq!(session.highest(), 42);
}

#[tokio::test(start_paused = true)]
async fn a_session_without_numbers_left_is_malformed() {
    let client = fake::client(&[&Fake::with_session(u64::MAX)], &Options::new(""));
    let result = client.open_session(SessionId([6; 16])).await;
    assert!(matches!(result, Err(Error::Malformed(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_batch_uses_up_no_number_and_a_rolled_back_one_does() {
    for (reason, highest, next) in
        [(Reason::PreconditionFailed, 0, 1), (Reason::LimitExceeded, 0, 1), (Reason::RolledBack, 1, 2)]
    {
        let (fake, seen) = scripted(vec![Err(status::refuse(reason, "no")), Ok(())]);
        let mut session = open(&fake).await;
        let error = session.commit(put("k"), false).await.expect_err("it is refused");
        assert_eq!((error.reason(), error.outcome_unknown(), session.highest()), (Some(reason), false, highest));
        session.commit(put("k"), false).await.expect("it is committed");
        assert_eq!(*seen.lock().expect("no panic"), [1, next], "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again_under_the_same_number() {
    let lost = || Err(Status::unavailable("connection reset"));
    let (fake, seen) = scripted(vec![lost(), lost(), Ok(()), Ok(())]);
    let mut session = open(&fake).await;
    session.commit(put("k"), false).await.expect("the third attempt is answered");
    session.commit(put("l"), false).await.expect("it is committed");
    assert_eq!(*seen.lock().expect("no panic"), [1, 1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_an_answer_keeps_its_number_for_the_next_try() {
    let (fake, seen) = scripted(vec![Err(Status::unavailable("connection reset"))]);
    let mut session = open(&fake).await;
    let error = session.commit(put("k"), false).await.expect_err("nobody answers");
    assert_eq!((error.kind(), error.outcome_unknown(), session.highest()), (ErrorKind::Unavailable, true, 0));
    fake.commit.set(|request: v1::CommitRequest| {
        assert_eq!(request.number, 1);
        Ok(v1::CommitResponse::default())
    });
    session.commit(put("k"), false).await.expect("it is committed");
    let seen = seen.lock().expect("no panic");
    assert!(seen.len() > 2 && seen.iter().all(|number| *number == 1), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_number_that_the_caller_chooses_leaves_the_session_where_it_is() {
    let (fake, seen) = scripted(vec![Ok(())]);
    let session = open(&fake).await;
    session.commit_as(7, put("k"), false).await.expect("it is committed");
    assert_eq!((session.highest(), &*seen.lock().expect("no panic")), (0, &vec![7]));
}
