//! Times of entries by time stamps, as `coppice verify` judges and shows them
//! (`docs/verification.md` section 19).

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use coppice_timestamp::{
    Accuracy, Authority, Moment, Token,
    interval::{self, Interval, Stamp, Timeline},
    verify,
};
use coppice_verify::{
    anchor::{self, RFC_3161, TIME_LEDGER},
    check::{self, AnchorClaim, Claim, IntervalClaim, verify_time_receipt},
    checkpoint::Checkpoint,
    hash::sha256,
    note::VerifierKey,
};
use serde_json::{Value, json};

use super::parse_vkey;
use crate::{args, failure::Failure, input, text};

/// How far a header's own time may lie outside of its interval.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The authorities that the caller believes.
pub struct Believed {
    authorities: Vec<Authority>,
    /// The time ledgers, whose numbers as authorities follow.
    ledgers: Vec<TimeLedger>,
    /// The proofs of time ledgers, as files.
    proofs: Vec<Vec<u8>>,
    quorum: NonZeroUsize,
    max_window: Option<Duration>,
}

/// A time ledger that the caller believes as far as its own authority stamps it.
struct TimeLedger {
    key: VerifierKey,
    stamped_by: Box<Believed>,
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
        if args.tsa_root.is_empty() && args.time_ledger.is_empty() {
            return Ok(None);
        }
        if args.time_ledger.len() != args.time_ledger_root.len() {
            return Err(Failure::usage("each --time-ledger needs a --time-ledger-root"));
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
        let ledger = |(key, root): (&String, &PathBuf)| {
            let stamped_by = Self::new(vec![authority(root)?], Vec::new(), NonZeroUsize::MIN);
            Ok(TimeLedger { key: parse_vkey(key)?, stamped_by: Box::new(stamped_by) })
        };
        let ledgers = args.time_ledger.iter().zip(&args.time_ledger_root).map(ledger);
        let ledgers = ledgers.collect::<Result<Vec<_>, Failure>>()?;
        for (index, ledger) in ledgers.iter().enumerate() {
            if ledgers[..index].iter().any(|other| other.key.name() == ledger.key.name()) {
                return Err(Failure::usage("--time-ledger: one ledger stands twice"));
            }
        }
        let count = authorities.len() + ledgers.len();
        let quorum = args.tsa_quorum.unwrap_or_else(|| Authority::majority(count));
        if quorum.get() > count {
            let believed = "--tsa-root and --time-ledger";
            return Err(Failure::usage(format!("--tsa-quorum {quorum}: there are {count} of {believed}")));
        }
        let proofs = args.time_proof.iter().map(|path| input::read(path)).collect::<Result<Vec<_>, Failure>>()?;
        Ok(Some(Self { proofs, max_window: args.max_window, ..Self::new(authorities, ledgers, quorum) }))
    }

    fn new(authorities: Vec<Authority>, ledgers: Vec<TimeLedger>, quorum: NonZeroUsize) -> Self {
        Self { authorities, ledgers, proofs: Vec::new(), quorum, max_window: None }
    }

    /// The stamp of a token, if one of the authorities made it.
    fn judge(&self, token: &anchor::Token, checkpoint: &Checkpoint, imprint: &[u8; 32]) -> Result<Stamp, String> {
        if (token.kind, token.chain) == (TIME_LEDGER, 0) {
            return self.judge_receipt(&token.bytes, checkpoint);
        }
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

    /// The stamp of a receipt: the time ledger's own proof of time says between which stamps it
    /// took the checkpoint in.
    fn judge_receipt(&self, receipt: &[u8], checkpoint: &Checkpoint) -> Result<Stamp, String> {
        let mut reason = "a receipt of a time ledger counts with --time-ledger alone".to_owned();
        for (index, ledger) in self.ledgers.iter().enumerate() {
            let header = match verify_time_receipt(receipt, &ledger.key, checkpoint) {
                Ok(header) => header,
                Err(failure) => {
                    reason = format!("a receipt of a time ledger: {failure}");
                    continue;
                }
            };
            for proof in &self.proofs {
                let Ok(verified) = check::verify(proof, &ledger.key, None) else { continue };
                let Claim::Interval(claim) = &verified.claim else { continue };
                if claim.header != header {
                    continue;
                }
                let judged = judge(claim, &verified.checkpoint.origin, Some(&ledger.stamped_by))?;
                let Some(Interval { lower: Some(earliest), upper: Some(latest) }) = judged.interval else {
                    return Err("the time ledger has no stamp on one side of the receipt yet".to_owned());
                };
                // The ledger is its own signer, whichever key signed the receipt.
                let signer = sha256(ledger.key.name().as_bytes()).0;
                return Ok(Stamp { authority: self.authorities.len() + index, signer, earliest, latest });
            }
            let version = header.stamp;
            return Err(format!("no --time-proof says when version {version} of the time ledger was stamped"));
        }
        Err(reason)
    }

    fn anchor(&self, claim: &AnchorClaim, origin: &str, notes: &mut Vec<String>) -> interval::Anchor {
        let mut stamps: Vec<Stamp> = Vec::new();
        let checkpoint = claim.stamps.checkpoint(origin);
        for token in &claim.stamps.tokens {
            match self.judge(token, &checkpoint, &claim.imprint.0) {
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

/// Judges the time of an entry in the log of this origin.
///
/// # Errors
/// The reason for the failure, in words: a demand of the caller is not met, or the stamps
/// contradict each other or the ledger's clock.
pub fn judge(claim: &IntervalClaim, origin: &str, believed: Option<&Believed>) -> Result<Judged, String> {
    let lower = claim.below.iter().flat_map(claimed_times).max();
    let upper = claim.above.iter().flat_map(claimed_times).min();
    let Some(believed) = believed else {
        return Ok(Judged { interval: None, quorum: 0, notes: Vec::new(), claimed: (lower, upper) });
    };
    let mut notes = Vec::new();
    let anchors = claim.below.iter().chain(&claim.above);
    let anchors: Vec<interval::Anchor> = anchors.map(|anchor| believed.anchor(anchor, origin, &mut notes)).collect();
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
