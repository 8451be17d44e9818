//! Judgement of a request, in the words of `coppice verify --json`.

use alloc::{format, string::String, vec::Vec};

use coppice_verify::{
    check::{self, Failure, Question, Verified},
    evidence,
    note::VerifierKey,
    policy::{Examined, Policy},
    report,
};

use crate::request::Request;

/// Returns the answer to a request, as JSON.
#[must_use]
pub fn judge(request: &[u8]) -> String {
    try_judge(request).unwrap_or_else(|misuse| report::misused(&misuse))
}

fn try_judge(request: &[u8]) -> Result<String, String> {
    let request = Request::parse(request)?;
    let file = request.file.ok_or("no proof file")?;
    let (question, encoding) = (request.question()?, request.encoding()?);
    let trusted = trusted(&request)?;
    let mut failed: Option<Failure> = None;
    for trust in &trusted {
        match verify(file, trust, request.newer, &question) {
            Ok((verified, examined)) => {
                let report = report::proven(&verified, examined.as_ref(), encoding);
                return report.ok_or_else(|| "the answer has bytes that are not UTF-8 text".into());
            }
            // With several keys, the failure at the latest step is the most informative one.
            Err(failure) => {
                if failed.is_none_or(|other| other.step < failure.step) {
                    failed = Some(failure);
                }
            }
        }
    }
    failed.as_ref().map(report::refused).ok_or_else(|| "no key to trust: give a key or a policy".into())
}

/// Returns the answer to a request with an evidence file, as JSON.
#[must_use]
pub fn judge_evidence(request: &[u8]) -> String {
    try_judge_evidence(request).unwrap_or_else(|misuse| report::misused(&misuse))
}

/// Judges the file under each key. The policy's logs are keys, too, if no key is given.
fn try_judge_evidence(request: &[u8]) -> Result<String, String> {
    let request = Request::parse(request)?;
    let file = request.file.ok_or("no evidence file")?;
    request.check_no_question()?;
    let (mut keys, policy) = keys_and_policy(&request)?;
    if keys.is_empty() {
        keys.extend(policy.iter().flat_map(|policy| policy.logs().to_vec()));
    }
    let mut failed: Option<evidence::Failure> = None;
    for key in &keys {
        match evidence::verify(file, key, policy.as_ref()) {
            Ok(verdict) => return Ok(report::evidence(&verdict)),
            Err(failure) => {
                if failed.is_none_or(|other| other.step < failure.step) {
                    failed = Some(failure);
                }
            }
        }
    }
    failed
        .as_ref()
        .map(report::no_evidence)
        .ok_or_else(|| "no key to trust: give a key or a policy that names one".into())
}

fn keys_and_policy(request: &Request<'_>) -> Result<(Vec<VerifierKey>, Option<Policy>), String> {
    let keys = request.keys.iter().map(|key| parse_key(key)).collect::<Result<_, _>>()?;
    let policy = request.policy.map(Policy::parse).transpose();
    Ok((keys, policy.map_err(|error| format!("the policy: {error}"))?))
}

/// The trust from which a verification starts.
enum Trust {
    Key(VerifierKey),
    Policy(Policy),
}

/// One trust for each key. A policy without keys is a trust of its own.
fn trusted(request: &Request<'_>) -> Result<Vec<Trust>, String> {
    let (keys, policy) = keys_and_policy(request)?;
    let Some(policy) = policy else { return Ok(keys.into_iter().map(Trust::Key).collect()) };
    if keys.is_empty() {
        return match policy.logs() {
            [] => Err("the policy names no log: give its key".into()),
            _ => Ok(Vec::from([Trust::Policy(policy)])),
        };
    }
    let under = |key: &VerifierKey| {
        let mut policy = policy.clone();
        let believed = policy.believe_only(key);
        believed.then_some(Trust::Policy(policy)).ok_or_else(|| "the policy names logs other than the key's".into())
    };
    keys.iter().map(under).collect()
}

/// The text is never repeated in an error: it may be a private key.
fn parse_key(text: &[u8]) -> Result<VerifierKey, String> {
    let wrong = "a trusted key is not a public key";
    let text = core::str::from_utf8(text).map_err(|_| wrong)?;
    VerifierKey::parse(text.trim()).map_err(|error| format!("{wrong}: {error}"))
}

fn verify<'f>(
    file: &'f [u8],
    trust: &Trust,
    newer: Option<&[u8]>,
    question: &Question<'_>,
) -> Result<(Verified<'f>, Option<Examined>), Failure> {
    let (verified, examined) = match trust {
        Trust::Key(key) => (check::verify(file, key, newer)?, None),
        Trust::Policy(policy) => {
            let (verified, examined) = check::verify_under(file, policy, newer)?;
            (verified, Some(examined))
        }
    };
    verified.answers(question)?;
    Ok((verified, examined))
}
