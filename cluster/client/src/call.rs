//! One call: attempts with a deadline each, repeated by kind of error until patience ends.
//!
//! A coordinator that does not answer, or says that it can't, is not called for a while, and
//! another one is asked. A call that may be repeated waits only briefly for a slow coordinator if
//! there are several.

use std::{future::Future, time::Duration};

use coppice_proto::{status, telemetry::root};
use coppice_types::{Backoff, ErrorKind, Reason, causes};
use opentelemetry::{
    KeyValue,
    context::FutureExt,
    trace::{SpanBuilder, SpanKind, Status as SpanStatus, TraceContextExt},
};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{ConnectError, Response, Status};

use crate::{
    error::{Error, describe},
    routes::{Pick, Routes},
};

/// The pauses before repetitions. [`Routes::pause`] shortens each.
pub(crate) const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// Longest wait of the first attempt for one of several coordinators. Each attempt waits twice as
/// long as the previous one.
const SLOW: Duration = Duration::from_secs(2);

/// The effect of a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A repetition is harmless: reads, and batches that are numbered.
    Safe,
    /// A repetition may do the same thing twice, so only a call that had no effect is repeated.
    Unsafe,
}

/// The time limits of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Longest wait for the answer to one attempt.
    pub attempt: Duration,
    /// Longest time from the start of the call to its last repetition.
    pub total: Duration,
}

/// Calls `attempt` until it succeeds, is refused for good, or patience ends. The call is one span
/// by the conventions for databases; the spans of the attempts lie below it.
pub(crate) async fn call<T, F>(
    operation: &'static str,
    routes: &Routes,
    patience: Patience,
    repeat: Repeat,
    attempt: impl FnMut(Pick, Duration) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let attributes = [KeyValue::new("db.system.name", "coppice"), KeyValue::new("db.operation.name", operation)];
    let span = root(SpanBuilder::from_name(operation).with_kind(SpanKind::Client).with_attributes(attributes));
    let answer = attempts(routes, patience, repeat, attempt).with_context(span.clone()).await;
    let span = span.span();
    if let Err(error) = &answer {
        let cause = error.reason().map_or_else(|| format!("{:?}", error.kind()), |reason| reason.name().to_owned());
        span.set_attribute(KeyValue::new("db.response.status_code", cause.clone()));
        span.set_attribute(KeyValue::new("error.type", cause));
        span.set_status(SpanStatus::error(error.to_string()));
    }
    span.end();
    answer
}

async fn attempts<T, F>(
    routes: &Routes,
    patience: Patience,
    repeat: Repeat,
    mut attempt: impl FnMut(Pick, Duration) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let until = Instant::now() + patience.total;
    let mut backoff = PAUSES;
    let mut attempts = 0;
    // Whether an attempt may have had its effect, or may still have it.
    let mut unknown = false;
    loop {
        let limit = match repeat {
            Repeat::Safe if routes.are_several() => patience.attempt.min(SLOW.saturating_mul(1 << attempts.min(16))),
            _ => patience.attempt,
        };
        attempts += 1;
        let pick = routes.pick();
        let answer = timeout_at(Instant::now() + limit, attempt(pick.clone(), limit)).await;
        let status = match answer {
            Ok(Ok(response)) => {
                routes.succeeded(&pick);
                return Ok(response.into_inner());
            }
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {} ms", limit.as_millis())),
        };
        match status::kind(&status) {
            ErrorKind::Unavailable | ErrorKind::Fenced => routes.failed(&pick),
            // The coordinator is there, and busy. A quota stays exceeded for longer than a call
            // would wait.
            ErrorKind::Exhausted if status::reason(&status) != Some(Reason::QuotaExceeded) => {}
            _ => {
                routes.succeeded(&pick);
                return Err(Error::refused(&status, unknown));
            }
        }
        unknown |= !had_no_effect(&status);
        let pause = backoff.next_pause();
        let over = Instant::now() + pause >= until;
        if over || (repeat == Repeat::Unsafe && !had_no_effect(&status)) {
            return Err(give_up(&pick.address, attempts, &status, unknown));
        }
        sleep(routes.pause(pause)).await;
    }
}

fn give_up(endpoint: &str, attempts: u32, status: &Status, outcome_unknown: bool) -> Error {
    if status::kind(status) == ErrorKind::Exhausted {
        return Error::refused(status, outcome_unknown);
    }
    Error::Unavailable {
        endpoint: endpoint.to_owned(),
        attempts,
        message: describe(status),
        reason: status::reason(status),
        outcome_unknown,
    }
}

/// Whether the request certainly did nothing. Either the server said so, or it was never reached:
/// there was no address, no connection or no handshake, so nothing was sent.
pub(crate) fn had_no_effect(status: &Status) -> bool {
    match status::reason(status) {
        Some(reason) => reason == Reason::NotLeader || reason.kind() == ErrorKind::Exhausted,
        None => causes(status).any(|cause| cause.is::<ConnectError>()),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use super::*;

    const PATIENCE: Patience = Patience { attempt: Duration::from_secs(1), total: Duration::from_secs(3) };

    fn routes(names: &[&str]) -> Routes {
        routes_of(names, 1)
    }

    fn routes_of(names: &[&str], seed: u64) -> Routes {
        let channel = || tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy().into();
        let ledger = || coppice_proto::v1::ledger_client::LedgerClient::new(channel());
        Routes::new(names.iter().map(|name| ((*name).to_owned(), ledger())).collect(), seed)
    }

    async fn run(repeat: Repeat, answers: &[Result<u8, Status>]) -> (Result<u8, Error>, usize) {
        let asked = Cell::new(0);
        let result = call("test", &routes(&["http://test"]), PATIENCE, repeat, |_, _| {
            let answer = answers.get(asked.get()).or(answers.last()).cloned();
            asked.set(asked.get() + 1);
            async move { answer.expect("a script has at least one answer").map(Response::new) }
        })
        .await;
        (result, asked.get())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_unavailable_for_a_moment_is_asked_again() {
        let lost = Status::unavailable("broken pipe");
        let (result, asked) = run(Repeat::Safe, &[Err(lost.clone()), Err(lost), Ok(7)]).await;
        assert_eq!((result.ok(), asked), (Some(7), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_failed_at_one_moment_come_back_at_different_ones() {
        let mut pauses = BTreeSet::new();
        for client in 1..=50_u64 {
            let (routes, asked) =
                (routes_of(&["http://test"], client.wrapping_mul(0x9e37_79b9_7f4a_7c15)), Cell::new(0));
            let started = Instant::now();
            let answer = call("test", &routes, PATIENCE, Repeat::Safe, |_, _| {
                asked.set(asked.get() + 1);
                let first = asked.get() == 1;
                async move { if first { Err(Status::unavailable("it restarts")) } else { Ok(Response::new(())) } }
            });
            answer.await.expect("the second answer");
            pauses.insert(started.elapsed().as_millis());
        }
        let most = { PAUSES }.next_pause().as_millis();
        assert!(pauses.len() > 5 && pauses.iter().all(|pause| (most / 2..=most + 1).contains(pause)), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_has_an_end() {
        let (result, asked) = run(Repeat::Safe, &[Err(Status::unavailable("gone"))]).await;
        assert!(
            matches!(result, Err(Error::Unavailable { attempts, outcome_unknown: true, .. }) if attempts as usize == asked)
        );
        assert!((5..20).contains(&asked), "{asked} attempts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final() {
        for reason in [
            Reason::Pruned,
            Reason::QuotaExceeded,
            Reason::PreconditionFailed,
            Reason::InvalidArgument,
            Reason::NotFound,
        ] {
            let (result, asked) = run(Repeat::Safe, &[Err(status::refuse(reason, "no")), Ok(1)]).await;
            assert_eq!((result.err().and_then(|error| error.reason()), asked), (Some(reason), 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_answer_leaves_the_outcome_open_whatever_the_later_ones_say() {
        let lost = Status::unavailable("broken pipe");
        for reason in [Reason::NotLeader, Reason::ResourceExhausted, Reason::PreconditionFailed] {
            let refusal = status::refuse(reason, "no");
            let (result, _) = run(Repeat::Safe, &[Err(lost.clone()), Err(refusal.clone())]).await;
            assert!(result.expect_err("it is refused").outcome_unknown(), "{reason}");
            let (result, _) = run(Repeat::Safe, &[Err(refusal)]).await;
            assert!(!result.expect_err("it is refused").outcome_unknown(), "{reason}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_a_number_is_repeated_only_if_it_did_nothing() {
        let lost = Status::unavailable("connection reset");
        let (result, asked) = run(Repeat::Unsafe, &[Err(lost), Ok(1)]).await;
        assert!(matches!(result, Err(Error::Unavailable { outcome_unknown: true, .. })) && asked == 1);
        let (result, asked) = run(Repeat::Unsafe, &[Err(status::refuse(Reason::NotLeader, "")), Ok(1)]).await;
        assert_eq!((result.ok(), asked), (Some(1), 2));
    }

    #[tokio::test]
    async fn a_write_that_never_left_had_no_effect_whatever_kept_it_back() {
        // An address without a listener, and a host that does not exist.
        for endpoint in ["http://127.0.0.1:1", "http://no-such-host.invalid:1"] {
            let channel = tonic::transport::Endpoint::from_static(endpoint).connect_lazy();
            let mut ledger = coppice_proto::v1::ledger_client::LedgerClient::new(channel);
            let status = ledger.commit(coppice_proto::v1::CommitRequest::default()).await.expect_err("it is not there");
            assert!(had_no_effect(&status), "{endpoint}: {status:?}");
        }
        // These words alone prove nothing: any server can send them.
        assert!(!had_no_effect(&Status::unavailable("Connection refused")));
        assert!(!had_no_effect(&Status::unavailable("broken pipe")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_answer_ends() {
        let routes = routes(&["http://test"]);
        let result: Result<(), Error> =
            call("test", &routes, PATIENCE, Repeat::Unsafe, |_, _| std::future::pending()).await;
        assert!(matches!(result, Err(Error::Unavailable { attempts: 1, .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_and_a_slow_coordinator_are_left_for_one_that_answers() {
        let routes = routes(&["dead", "slow", "well"]);
        let patience = Patience { attempt: Duration::from_secs(30), total: Duration::from_secs(30) };
        let started = Instant::now();
        for _ in 0..5 {
            let answer = call("test", &routes, patience, Repeat::Safe, |pick, _| async move {
                match pick.address.as_str() {
                    "dead" => Err(Status::unavailable("connection refused")),
                    "slow" => std::future::pending().await,
                    _ => Ok(Response::new(pick.address.clone())),
                }
            });
            assert_eq!(answer.await.expect("one of them answers"), "well");
        }
        assert!(started.elapsed() < 3 * SLOW, "the slow one is waited for once, and not for all of patience");
    }
}
