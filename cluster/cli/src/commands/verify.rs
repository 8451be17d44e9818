//! `coppice verify`: checks a proof file and says what it proves, offline.

mod ledgers;
mod time;

use std::path::Path;

use coppice_types::{Digest, Version};
use coppice_verify::{
    check::{self, Answer, Claim, IntervalClaim, Question, Record, Subject, TimeClaim, Verified},
    checkpoint::Checkpoint,
    note::VerifierKey,
    policy::{Examined, Policy},
    report,
};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    args::{self, Encoding},
    bytes,
    failure::{Code, Failure},
    input,
    output::{Output, tell_line},
    text::{self, count, safe},
    time::moment,
};

pub fn verify(args: &args::Verify, output: Output) -> Result<(), Failure> {
    let file = input::read(&args.file)?;
    let newer = args.checkpoint.as_deref().map(input::read).transpose()?;
    let trust = Trust::parse(args)?;
    let verified = trust.verify(&file, newer.as_deref());
    let expected = Expectation::parse(args)?;
    let times = Times::read(args, trust)?;
    let answered = verified.and_then(|(verified, examined)| {
        verified.answers(&expected.question())?;
        Ok((verified, examined))
    });
    match answered {
        Ok((verified, examined)) => match times.judge(&verified)? {
            Ok(judged) => {
                let mut object = proven(&verified, examined.as_ref(), output)?;
                if let (Some(judged), Value::Object(fields)) = (&judged, &mut object) {
                    fields.insert("time".to_owned(), judged.json());
                }
                let time = judged.map_or_else(String::new, |judged| judged.describe());
                output.result(&object, || describe(&verified, examined.as_ref(), output) + &time)
            }
            Err(why) => refuse_time(args, &why, output),
        },
        Err(failure) => {
            if output.json {
                output.result(&read(report::refused(&failure)), String::new)?;
            } else {
                let words = text::safe(&failure.to_string());
                tell_line(&format!("coppice: {}: does not hold, at step {words}", text::path(&args.file)));
            }
            Err(Failure::new(Code::NotFound, "").silent())
        }
    }
}

/// The caller's demands on time, with the bytes of the proof of time, if there is one.
struct Times {
    believed: Option<time::Believed>,
    file: Option<Vec<u8>>,
    trust: Trust,
}

/// The key or policy of the command line.
enum Trust {
    Key(Box<VerifierKey>),
    Policy(Box<Policy>),
}

impl Trust {
    fn parse(args: &args::Verify) -> Result<Self, Failure> {
        match (&args.policy, &args.key) {
            (Some(policy), key) => Ok(Self::Policy(Box::new(parse_policy(policy, key.as_deref())?))),
            (None, Some(key)) => Ok(Self::Key(Box::new(parse_vkey(key)?))),
            (None, None) => Err(Failure::usage("no key to trust: set --key or --policy")),
        }
    }

    fn verify<'f>(
        &self,
        file: &'f [u8],
        newer: Option<&[u8]>,
    ) -> Result<(Verified<'f>, Option<Examined>), check::Failure> {
        match self {
            Self::Policy(policy) => {
                check::verify_under(file, policy, newer).map(|(verified, examined)| (verified, Some(examined)))
            }
            Self::Key(key) => check::verify(file, key, newer).map(|verified| (verified, None)),
        }
    }
}

/// Whether two checkpoints can't be of one log.
fn forked(one: &Checkpoint, other: &Checkpoint) -> bool {
    one.size == other.size && one.root != other.root
}

impl Times {
    fn read(args: &args::Verify, trust: Trust) -> Result<Self, Failure> {
        let file = args.time.time.as_deref().map(input::read).transpose()?;
        Ok(Self { believed: time::Believed::read(&args.time)?, file, trust })
    }

    /// Judges the time of the proven entry, by the proof itself or by the one of `--time`. `None`
    /// if there are no time stamps, and none are asked for. The inner error says why it does not
    /// hold.
    fn judge(&self, verified: &Verified<'_>) -> Result<Result<Option<time::Judged>, String>, Failure> {
        let origin = &verified.checkpoint.origin;
        let judge = |claim: &IntervalClaim| time::judge(claim, origin, self.believed.as_ref()).map(Some);
        let Some(file) = &self.file else {
            return match &verified.claim {
                Claim::Interval(claim) => Ok(judge(claim)),
                _ if self.believed.is_none() => Ok(Ok(None)),
                _ => {
                    let failure = Failure::usage("the proof has no time stamps");
                    Err(failure.hint("Get those of its entry with `coppice anchor interval`, and name them as --time."))
                }
            };
        };
        let other = match self.trust.verify(file, None) {
            Ok((other, _)) => other,
            Err(failure) => return Ok(Err(format!("the proof of time: {failure}"))),
        };
        Ok(match &other.claim {
            _ if forked(&verified.checkpoint, &other.checkpoint) => {
                Err("the proof of time is of another log: two checkpoints of one size differ".to_owned())
            }
            Claim::Interval(claim) if verified.header() == Some(&claim.header) => judge(claim),
            Claim::Interval(_) => Err("the proof of time is for another entry of the log".to_owned()),
            _ => Err("the proof of time is of another kind".to_owned()),
        })
    }
}

/// Says that the time of a proof does not hold.
fn refuse_time(args: &args::Verify, why: &str, output: Output) -> Result<(), Failure> {
    if output.json {
        let object = serde_json::json!({ "valid": false, "failed_step": "time", "error": format!("time: {why}") });
        output.result(&object, String::new)?;
    } else {
        let words = text::safe(why);
        tell_line(&format!("coppice: {}: does not hold, at step time: {words}", text::path(&args.file)));
    }
    Err(Failure::new(Code::NotFound, "").silent())
}

/// The question that the proof must answer, from the command line.
struct Expectation {
    keys: Vec<Vec<u8>>,
    range: Option<(Vec<u8>, Vec<u8>)>,
    batch: Option<Digest>,
    time_ms: Option<u64>,
    version: Option<Version>,
}

impl Expectation {
    fn parse(args: &args::Verify) -> Result<Self, Failure> {
        let keys = args.expect_key.iter().map(|key| bytes::parse_key(key)).collect::<Result<_, _>>()?;
        let range = match args.expect_range.as_slice() {
            [low, high] => Some((bytes::parse(low)?, bytes::parse(high)?)),
            _ => None,
        };
        let batch = args.expect_batch.as_deref().map(parse_hash).transpose()?;
        let time_ms = args.expect_time;
        Ok(Self { keys, range, batch, time_ms, version: args.expect_version.map(Version) })
    }

    fn question(&self) -> Question<'_> {
        let subject = match (&self.range, self.batch, self.time_ms) {
            (Some((low, high)), ..) => {
                Some(Subject::Range { low, high: Some(high.as_slice()).filter(|high| !high.is_empty()) })
            }
            (None, Some(batch), _) => Some(Subject::Batch(batch)),
            (None, None, Some(time_ms)) => Some(Subject::Time(time_ms)),
            (None, None, None) => {
                (!self.keys.is_empty()).then(|| Subject::Keys(self.keys.iter().map(Vec::as_slice).collect()))
            }
        };
        Question { subject, version: self.version, epoch: None }
    }
}

fn parse_hash(text: &str) -> Result<Digest, Failure> {
    let bytes = bytes::parse(&format!("0x{}", text.trim_start_matches("0x")))?;
    Digest::from_slice(&bytes).ok_or_else(|| Failure::usage("a hash must have 64 hex digits"))
}

/// Reads a public key: the text itself, or `@` and a file with it.
pub fn parse_vkey(argument: &str) -> Result<VerifierKey, Failure> {
    // The argument is never repeated in an error: it may be a private key.
    let (text, given) = match argument.strip_prefix('@') {
        Some(path) => (Zeroizing::new(String::from_utf8_lossy(&input::read(Path::new(path))?).into_owned()), path),
        None => (Zeroizing::new(argument.to_owned()), "the text given"),
    };
    VerifierKey::parse(text.trim()).map_err(|error| {
        Failure::usage(format!("{given} is not a public key: {error}"))
            .hint("A ledger's public key is in its `ledger.vkey`: --key @FILE takes it from there.")
    })
}

/// Reads a policy. If a key is given, it is the only log that the policy accepts.
///
/// # Errors
/// If the file is not a policy, names logs other than the key's, or names none and no key is given.
pub fn parse_policy(path: &Path, key: Option<&str>) -> Result<Policy, Failure> {
    let wrong = |what: String| Failure::usage(format!("{}: {what}", text::path(path)));
    let mut policy = Policy::parse(&input::read(path)?).map_err(|error| wrong(error.to_string()))?;
    match key {
        Some(key) if policy.believe_only(&parse_vkey(key)?) => Ok(policy),
        Some(_) => Err(wrong("it names logs other than the key's".to_owned())),
        None if policy.logs().is_empty() => Err(wrong("it names no log: name its key with --key".to_owned())),
        None => Ok(policy),
    }
}

/// The proven facts, as an object.
fn proven(verified: &Verified<'_>, examined: Option<&Examined>, output: Output) -> Result<Value, Failure> {
    let encoding = output.encoding.map(|encoding| match encoding {
        Encoding::Utf8 => report::Encoding::Utf8,
        Encoding::Hex => report::Encoding::Hex,
    });
    let report = report::proven(verified, examined, encoding);
    report.map(read).ok_or_else(bytes::no_text)
}

fn read(report: String) -> Value {
    serde_json::from_str(&report).expect("reports are JSON")
}

/// Most records that people see; `--json` has all.
const NAMED_MAX: usize = 20;
/// Characters of a key or value that people see.
const SHOWN_CHARS: usize = 100;

/// The proven facts in a few lines.
fn describe(verified: &Verified<'_>, examined: Option<&Examined>, output: Output) -> String {
    let what = match &verified.claim {
        Claim::Query(claim) => match &claim.answer {
            Answer::Keys(keys) => match keys.as_slice() {
                [(key, record)] => describe_key(key, record.as_ref(), output),
                keys => {
                    let lines = keys.iter().map(|(key, record)| describe_key(key, record.as_ref(), output));
                    format!("{}{}", count(keys.len() as u64, "key"), list(lines))
                }
            },
            Answer::Range { low, high, records } => {
                let from = if low.is_empty() { "the first key".to_owned() } else { format!("`{}`", show(low, output)) };
                let to = high
                    .as_ref()
                    .map_or_else(|| "to the last".to_owned(), |high| format!("to before `{}`", show(high, output)));
                let lines = records.iter().map(|record| describe_key(&record.key, Some(record), output));
                let only = match records.len() {
                    0 => "there is no record".to_owned(),
                    1 => "there is this record and no other".to_owned(),
                    more => format!("there are these {more} records and no others"),
                };
                format!("from {from} {to} {only}{}", list(lines))
            }
        },
        Claim::Receipt(claim) => format!("the batch of metadata hash {} was committed", claim.batch.metadata),
        Claim::Standing(claim) => format!(
            "the log of {} goes on from that of {} with root {}",
            count(verified.checkpoint.size, "entry"),
            count(claim.old_size, "entry"),
            claim.old_root
        ),
        Claim::Journals(claim) => ledgers::describe_journals(claim),
        Claim::Time(claim) => describe_time(claim),
        Claim::Lineage(claim) => ledgers::describe_lineage(claim),
        Claim::Interval(claim) => {
            let sequence = claim.header.sequence;
            format!(
                "entry {sequence} of the root log lies between {} and {}",
                count(claim.below.len() as u64, "anchor"),
                count(claim.above.len() as u64, "anchor")
            )
        }
    };
    let stands = verified
        .newer
        .as_ref()
        .map_or_else(String::new, |newer| format!("\n  it still stands at {}", count(newer.size, "entry")));
    let cosigned = examined.map_or_else(String::new, |examined| {
        let names = examined.cosignatures.iter().map(|it| text::safe(&String::from_utf8_lossy(&it.witness)));
        match names.collect::<Vec<_>>() {
            names if names.is_empty() => "\n  the policy asks for no cosignatures".to_owned(),
            names => format!("\n  cosigned by {}", names.join(", ")),
        }
    });
    let changes = verified.keys.changes();
    let changes: String =
        changes.map(|(at, key)| format!("\n  key changed at entry {at} to {}", safe(&key.to_string()))).collect();
    let header = verified.header().unwrap_or(&verified.newest);
    format!(
        "valid: {what}\n  at version {}, committed {} by the ledger's clock\n  signed by {} at {} of its root log{changes}{stands}{cosigned}",
        header.stamp,
        moment(header.timestamp_ms),
        safe(&verified.checkpoint.origin),
        count(verified.checkpoint.size, "entry")
    )
}

fn describe_time(claim: &TimeClaim) -> String {
    let next = claim.next.map_or_else(
        || "it was head".to_owned(),
        |(stamp, ms)| format!("the next one, {stamp}, was committed {}", moment(ms)),
    );
    let is_final = if claim.is_final() { "" } else { "; a later version may have a time up to then, too" };
    format!(
        "version {} was the newest at {} ({} ms since 1970); {next}{is_final}",
        claim.header.stamp,
        moment(claim.time_ms),
        claim.time_ms
    )
}

fn describe_key(key: &[u8], record: Option<&Record<'_>>, output: Output) -> String {
    let key = show(key, output);
    let Some(record) = record else { return format!("`{key}` is not there") };
    match &record.value {
        Some(value) => format!("`{key}` has the value `{}`", show(value, output)),
        None => {
            let bytes = count(record.value_len.into(), "byte");
            format!("`{key}` has a value of {bytes} with SHA-256 {}", record.value_hash)
        }
    }
}

/// Bytes that were printed before, so printing them can't fail.
fn show(bytes: &[u8], output: Output) -> String {
    output.brief(bytes, SHOWN_CHARS).unwrap_or_default()
}

/// The first lines of a list, and the number of lines left out.
fn list(lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = lines.len().saturating_sub(NAMED_MAX);
    let shown: String = lines.take(NAMED_MAX).map(|line| format!("\n    {line}")).collect();
    if more == 0 { shown } else { format!("{shown}\n    and {more} more, which --json shows") }
}
