//! Whether a leader is still fit to lead: the root group answers it, its term is the newest, and
//! its clock is near the root replicas' clocks.
//!
//! An unfit leader does no harm, since the root group refuses it. It stops so that another one can
//! begin: otherwise it would stay the metadata store's candidate as long as it keeps its lease
//! alive. A leader that the root group does not answer stays if it can't be replaced: no other
//! coordinator is known, or the metadata store is silent.

use std::time::Duration;

use coppice_types::{Reason, Term};
use tokio::time::{Instant, sleep};

use super::{command::Exit, resources::Resources};
use crate::{plan::Refusal, shown::Shown};

/// How often the root group is asked.
const LOOK: Duration = Duration::from_millis(250);
/// How long a replica of the root group may take to answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// A clock counts as off after this many bad readings in a row, since a slow machine is not a
/// skewed clock.
const SKEWS_MAX: u32 = 4;

/// Waits until this coordinator should no longer lead under the term. Returns the reason.
pub async fn unfit(shown: &Shown, resources: &Resources, term: Term) -> Exit {
    let Resources { log, limits, clock, .. } = resources;
    let silence_max = limits.root_silence_max;
    let mut heard = Instant::now();
    let mut skews = 0;
    loop {
        sleep(LOOK).await;
        let left = (heard + silence_max).saturating_duration_since(Instant::now());
        let patience = if left.is_zero() { ANSWER_MAX } else { ANSWER_MAX.min(left) };
        let asked_ms = clock.wall_ms();
        let answers = log.root.ask_all(patience).await;
        let answered_ms = clock.wall_ms();
        if answers.values().any(|answer| answer.term > term.0) {
            return Exit::Deposed;
        }
        // Fewer replicas can't confirm a log that is to be signed.
        if log.attested.is_majority(|node| answers.contains_key(node)) {
            heard = Instant::now();
        } else if heard.elapsed() >= silence_max && shown.could_be_replaced() {
            return Exit::CutOff;
        }
        let clocks: Vec<u64> = answers.values().map(|answer| answer.clock_ms).collect();
        match check_clock(asked_ms, answered_ms, &clocks, limits.clock_skew_max) {
            Ok(()) => skews = 0,
            Err(refusal) => {
                skews += 1;
                if skews >= SKEWS_MAX {
                    return Exit::Unfit(refusal.message);
                }
            }
        }
    }
}

/// Checks that this clock is near the median of the root replicas' clocks, since a leader stamps
/// headers with it (PROTOCOL 2.7). The replicas' clocks were read at some moment between `asked_ms`
/// and `answered_ms`.
pub fn check_clock(asked_ms: u64, answered_ms: u64, clocks_ms: &[u64], skew_max: Duration) -> Result<(), Refusal> {
    let mut clocks = clocks_ms.to_vec();
    clocks.sort_unstable();
    let Some(median) = clocks.get(clocks.len() / 2) else { return Ok(()) };
    let apart_ms = asked_ms.saturating_sub(*median).max(median.saturating_sub(answered_ms));
    if Duration::from_millis(apart_ms) <= skew_max {
        return Ok(());
    }
    let message = format!("this clock is {apart_ms} ms from the median of the root replicas': it may not lead");
    Err(Refusal::new(Reason::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PROTOCOL 2.7.
    #[test]
    fn a_clock_far_from_the_median_may_not_lead() {
        let check =
            |asked, answered, clocks: &[u64]| check_clock(asked, answered, clocks, Duration::from_secs(1)).is_ok();
        assert!(check(10_000, 10_010, &[9_100, 10_005, 99_000]), "the median counts, not the extremes");
        assert!(check(10_000, 14_000, &[12_000, 12_000, 12_000]), "a slow answer is not skew");
        assert!(!check(10_000, 10_010, &[8_000, 8_500, 10_000]));
        assert!(!check(10_000, 10_010, &[11_500, 11_500, 10_000]));
        assert!(check(10_000, 10_010, &[]));
    }
}
