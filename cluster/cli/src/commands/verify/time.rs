//! Times of entries by time stamps, as `coppice verify` judges and shows them
//! (`docs/verification.md` section 19).

use std::{num::NonZeroUsize, path::Path, time::Duration};

use coppice_timestamp::{
    Accuracy, Authority, Moment, Token,
    interval::{self, Interval, Stamp, Timeline},
    verify,
};
use coppice_verify::{
    anchor::{self, RFC_3161},
    check::{AnchorClaim, IntervalClaim},
};
use serde_json::{Value, json};

use crate::{args, failure::Failure, input, text};

/// How far a header's own time may lie outside of its interval.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The authorities that the caller believes.
pub struct Believed {
    authorities: Vec<Authority>,
    quorum: NonZeroUsize,
    max_window: Option<Duration>,
}

/// The time of an entry by the stamps.
pub struct Judged {
    /// The interval by the authorities that the caller believes. `None` without such authorities;
    /// then all times are claims.
    pub interval: Option<Interval>,
    quorum: usize,
    /// Reasons why tokens don't count, and authorities that are set aside.
    notes: Vec<String>,
    /// The nearest time below and above that tokens claim.
    claimed: (Option<Moment>, Option<Moment>),
}

impl Believed {
    /// Reads the roots. `None` if the caller names none.
    pub fn read(args: &args::Window) -> Result<Option<Self>, Failure> {
        if args.tsa_root.is_empty() {
            return Ok(None);
        }
        let accuracy = args.tsa_accuracy.map(accuracy).transpose()?;
        let authority = |path: &Path| {
            let wrong = |error| Failure::usage(format!("{}: {error}", text::path(path)));
            let authority = Authority::from_certificates(&input::read(path)?).map_err(wrong)?;
            Ok(match accuracy {
                Some(accuracy) => authority.with_accuracy(accuracy),
                None => authority,
            })
        };
        let authorities = args.tsa_root.iter().map(|path| authority(path)).collect::<Result<Vec<_>, Failure>>()?;
        Authority::distinct(&authorities).map_err(|error| Failure::usage(format!("--tsa-root: {error}")))?;
        let quorum = args.tsa_quorum.unwrap_or_else(|| Authority::majority(authorities.len()));
        if quorum.get() > authorities.len() {
            let count = authorities.len();
            return Err(Failure::usage(format!("--tsa-quorum {quorum}: there are {count} of --tsa-root")));
        }
        Ok(Some(Self { authorities, quorum, max_window: args.max_window }))
    }

    /// The stamp of a token, if one of the authorities made it.
    fn judge(&self, token: &anchor::Token, imprint: &[u8; 32]) -> Result<Stamp, String> {
        if token.kind != RFC_3161 || token.chain != 0 {
            return Err(format!("a token of type {} and chain {} counts for nothing", token.kind, token.chain));
        }
        let token = Token::parse(&token.bytes).map_err(|error| error.to_string())?;
        let mut reason = String::new();
        for (index, authority) in self.authorities.iter().enumerate() {
            match verify(&token, authority, imprint, None) {
                Ok(stamped) => return Ok(Stamp::new(index, &stamped)),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }

    fn anchor(&self, claim: &AnchorClaim, notes: &mut Vec<String>) -> interval::Anchor {
        let mut stamps: Vec<Stamp> = Vec::new();
        for token in &claim.stamps.tokens {
            match self.judge(token, &claim.imprint.0) {
                // An authority counts once, so one of its tokens is enough.
                Ok(stamp) if stamps.iter().any(|known| known.authority == stamp.authority) => {}
                Ok(stamp) => stamps.push(stamp),
                Err(reason) => notes.push(format!("anchor {}: {reason}", claim.sequence)),
            }
        }
        interval::Anchor { stamped_size: claim.stamps.size, sequence: claim.sequence.0, stamps }
    }
}

fn accuracy(duration: Duration) -> Result<Accuracy, Failure> {
    if duration.is_zero() {
        return Err(Failure::usage("--tsa-accuracy 0: no authority is exact"));
    }
    let millis = u32::try_from(duration.as_micros().div_ceil(1000));
    millis.map(Accuracy::from_millis).map_err(|_| Failure::usage("--tsa-accuracy is too long"))
}

/// Judges the time of an entry.
///
/// # Errors
/// The reason for the failure, in words: a demand of the caller is not met, or the stamps
/// contradict each other or the ledger's clock.
pub fn judge(claim: &IntervalClaim, believed: Option<&Believed>) -> Result<Judged, String> {
    let lower = claim.below.iter().flat_map(claimed_times).max();
    let upper = claim.above.iter().flat_map(claimed_times).min();
    let Some(believed) = believed else {
        return Ok(Judged { interval: None, quorum: 0, notes: Vec::new(), claimed: (lower, upper) });
    };
    let mut notes = Vec::new();
    let anchors = claim.below.iter().chain(&claim.above);
    let anchors: Vec<interval::Anchor> = anchors.map(|anchor| believed.anchor(anchor, &mut notes)).collect();
    let timeline = Timeline::new(&anchors, believed.quorum).map_err(|error| error.to_string())?;
    let aside = timeline.set_aside().iter();
    notes.extend(aside.map(|index| format!("authority {index} goes back in time, and counts for nothing")));
    let sequence = claim.header.sequence.0;
    let interval = timeline.interval(sequence).map_err(|error| error.to_string())?;
    let own = Moment::from_milliseconds(claim.header.timestamp_ms);
    if !interval.admits(own, TOLERANCE) {
        return Err(format!("the ledger's clock lies: entry {sequence} says {own}, and is from {}", range(&interval)));
    }
    let why = || notes.iter().map(|note| format!("; {note}")).collect::<String>();
    match believed.max_window {
        // With a limit on the width, a missing bound counts as too far away.
        Some(window) if !interval.is_within(window) => {
            Err(format!("wider than {}: {}{}", seconds(window), range(&interval), why()))
        }
        _ if interval.lower.is_none() && interval.upper.is_none() => {
            Err(format!("no quorum of the believed authorities has stamped around the entry{}", why()))
        }
        _ => Ok(Judged { interval: Some(interval), quorum: believed.quorum.get(), notes, claimed: (lower, upper) }),
    }
}

/// The times that tokens claim, without any judgement on them.
pub fn claimed_times(anchor: &AnchorClaim) -> Vec<Moment> {
    let tokens = anchor.stamps.tokens.iter().filter(|token| token.kind == RFC_3161);
    tokens.filter_map(|token| Some(Token::parse(&token.bytes).ok()?.info().time)).collect()
}

/// An interval in words.
fn range(interval: &Interval) -> String {
    let bound = |bound: Option<Moment>| bound.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string());
    let width = interval.width().map_or_else(String::new, |width| format!(" ({} apart)", seconds(width)));
    format!("after {}, by {}{width}", bound(interval.lower), bound(interval.upper))
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

impl Judged {
    /// The judgement as an object.
    pub fn json(&self) -> Value {
        let text = |moment: Option<Moment>| moment.map(|moment| moment.to_string());
        let (proven, (lower, upper)) = match &self.interval {
            Some(interval) => (true, (interval.lower, interval.upper)),
            None => (false, self.claimed),
        };
        let width = self.interval.and_then(|interval| interval.width());
        json!({
            "proven": proven,
            "after_proven": proven && lower.is_some(),
            "by_proven": proven && upper.is_some(),
            "after": text(lower),
            "by": text(upper),
            "window_s": width.map(|width| width.as_secs_f64()),
            "quorum": self.quorum,
            "notes": self.notes,
        })
    }

    /// The judgement for people, in lines that are indented.
    pub fn describe(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("\n  {}", text::safe(note))).collect();
        match &self.interval {
            Some(interval) => format!("\n  sequenced {}{notes}", range(interval)),
            None => {
                let (lower, upper) = self.claimed;
                let claimed = range(&Interval { lower, upper });
                format!("\n  sequenced {claimed}, as its tokens claim: nothing of it is proven without --tsa-root")
            }
        }
    }
}
