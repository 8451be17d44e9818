//! `coppice evidence`: two signed checkpoints that no honest ledger signs, as a file for others.

use std::path::Path;

use coppice_cosigner::{
    Error, Web, config,
    prove::{self, Given, NoEvidence},
    tiles::TileLog,
};
use coppice_verify::{
    evidence::{self, Evidence, Ground, Verdict},
    header::Header,
    note::VerifierKey,
    policy::Policy,
    proof::ProofFile,
    report,
};
use serde_json::{Value, json};

use super::verify::parse_vkey;
use crate::{
    args::{self, EvidenceMake, EvidenceReport, EvidenceVerify},
    failure::{Code, Failure},
    input,
    output::{self, Output, tell_line},
    text::{self, count, safe},
};

pub async fn evidence(command: &args::Evidence, output: Output) -> Result<(), Failure> {
    match command {
        args::Evidence::Make(args) => make(args, output).await,
        args::Evidence::Verify(args) => verify(args, output),
        args::Evidence::Report(args) => report_to(args, output).await,
    }
}

fn verify(args: &EvidenceVerify, output: Output) -> Result<(), Failure> {
    let file = input::read(&args.file)?;
    let policy = args.policy.as_deref().map(witnesses).transpose()?;
    let keys = match (&args.key, &policy) {
        (Some(key), _) => vec![parse_vkey(key)?],
        (None, Some(policy)) => policy.logs().to_vec(),
        (None, None) => Vec::new(),
    };
    let judged = keys.iter().map(|key| evidence::verify(&file, key, policy.as_ref()));
    // The failure at the latest step is the most informative one.
    let best = judged.reduce(|one, other| match (&one, &other) {
        (Ok(_), _) => one,
        (Err(first), Err(second)) if first.step >= second.step => one,
        _ => other,
    });
    match best {
        None => Err(Failure::usage("the policy names no log: name the ledger's key with --key")),
        Some(Ok(verdict)) => show(&verdict, output),
        Some(Err(failure)) => {
            if output.json {
                output.result(&read(&report::no_evidence(&failure)), String::new)?;
            } else {
                let words = safe(&failure.to_string());
                tell_line(&format!("coppice: {}: proves nothing: it fails at step {words}", text::path(&args.file)));
            }
            Err(Failure::new(Code::NotFound, "").silent())
        }
    }
}

/// The witnesses of a policy. Whether it names the ledger does not matter.
fn witnesses(path: &Path) -> Result<Policy, Failure> {
    Policy::parse(&input::read(path)?).map_err(|error| Failure::usage(format!("{}: {error}", text::path(path))))
}

fn read(report: &str) -> Value {
    serde_json::from_str(report).expect("reports are JSON")
}

fn show(verdict: &Verdict, output: Output) -> Result<(), Failure> {
    output.result(&read(&report::evidence(verdict)), || describe(verdict))
}

/// The verdict in a few lines.
fn describe(verdict: &Verdict) -> String {
    let (a, b) = (&verdict.a, &verdict.b);
    let [size_a, size_b] = [a, b].map(|note| count(note.checkpoint.size, "entry"));
    let [key_a, key_b] = [a, b].map(|note| safe(&note.key.to_string()));
    let mut lines = vec![format!("{}: of {}", verdict.ground.name(), safe(&a.checkpoint.origin))];
    lines.push(match &verdict.ground {
        Ground::Contradiction { root } => format!(
            "checkpoint A signs root {} of {size_a}; the log of checkpoint B, of {size_b}, had root {root} there",
            a.checkpoint.root
        ),
        Ground::Late { index, new } => format!(
            "checkpoint A, of {size_a}, is signed by a key that entry {index} replaces by {}; checkpoint B, of {size_b}, has that entry",
            safe(&new.to_string())
        ),
    });
    lines.push(if verdict.is_one_key() {
        format!("CONVICTED: the holder of {key_a}, which signed both")
    } else {
        format!("CONVICTED: at least one of the holders of {key_a}, which signed A, and of {key_b}, which signed B")
    });
    for cosigner in &verdict.cosigners {
        let name = safe(&String::from_utf8_lossy(&cosigner.a.witness));
        let key = safe(&cosigner.a.key_name);
        lines.push(format!("CONVICTED: witness {name}, whose key {key} cosigned both"));
    }
    for line in &verdict.unknown {
        let id = hex::encode(line.key_id);
        lines.push(format!(
            "not judged: lines on both of `{}`, key id {id}; name its key by --policy",
            safe(&line.key_name)
        ));
    }
    lines.join("\n  ")
}

async fn make(args: &EvidenceMake, output: Output) -> Result<(), Failure> {
    let key = args.key.as_deref().map(parse_vkey).transpose()?;
    let given = [given(&args.a)?, given(&args.b)?];
    let log = args.from.as_deref().map(TileLog::open).transpose().map_err(of_log)?;
    let (file, verdict) = prove::prove(given, log, key).await.map_err(unproven)?;
    match args.out.as_deref() {
        None => output::raw(&file),
        Some(path) => {
            output::file(path, &file)?;
            show(&verdict, output.beside(Some(path)))
        }
    }
}

/// Longest verdict of a member.
const VERDICT_BYTES_MAX: usize = 4 << 10;

/// Shows a checkpoint to members. Each answers for itself, and an answer is only what it says.
async fn report_to(args: &EvidenceReport, output: Output) -> Result<(), Failure> {
    let given = given(&args.file)?;
    let path = format!("{}/report", config::origin_hash(&given.checkpoint.origin));
    let web = Web::new(None).map_err(of_member)?;
    let (mut found, mut failed) = (false, None);
    for url in &args.to {
        let (verdict, evidence) = match web.post(url, &path, given.note.clone(), VERDICT_BYTES_MAX).await {
            Ok((status, body)) => {
                let said: Value = serde_json::from_slice(&body).unwrap_or_default();
                let part = |name: &str| said[name].as_str().map(safe);
                (part("verdict").unwrap_or_else(|| format!("no verdict, status {status}")), part("evidence"))
            }
            Err(error) => {
                failed = failed.or(Some(of_member(error)));
                continue;
            }
        };
        found |= verdict == "evidence";
        output.result(&json!({ "member": url, "verdict": verdict, "evidence": evidence }), || {
            let file = evidence.map(|file| format!(": {}{file}", safe(url.trim_end_matches('/')))).unwrap_or_default();
            format!("{} says: {verdict}{file}", safe(url))
        })?;
    }
    match failed {
        _ if found => Err(Failure::new(Code::NotFound, "").silent()),
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

fn of_member(error: Error) -> Failure {
    let code = if matches!(error, Error::Unavailable(_)) { Code::Unavailable } else { Code::Refused };
    Failure::new(code, format!("--to: {}", safe(&error.to_string())))
}

/// A checkpoint of the command line: a note, or the one in a proof file with its key changes.
fn given(path: &Path) -> Result<Given, Failure> {
    let bytes = input::read(path)?;
    let wrong = |error| Failure::usage(format!("{}: neither a proof file nor a checkpoint: {error}", text::path(path)));
    let Ok(file) = ProofFile::decode(&bytes) else { return Given::note(bytes).map_err(wrong) };
    let log = file.proof.log();
    let changes = log.key_changes.iter().filter_map(|part| Header::decode(&part.header).ok()).collect();
    Ok(Given { changes, ..Given::note(log.checkpoint.to_vec()).map_err(wrong)? })
}

/// Checks evidence under a key, and writes it to a file.
///
/// # Errors
/// If it proves nothing, or does not fit an evidence file.
pub fn save(evidence: &Evidence<'_>, key: &VerifierKey, path: &Path) -> Result<(), Failure> {
    let (file, _) = prove::checked(evidence, key).map_err(unproven)?;
    output::file(path, &file)
}

fn unproven(why: NoEvidence) -> Failure {
    let none = |why: &str| Failure::new(Code::NotFound, format!("no evidence: {why}"));
    match why {
        NoEvidence::OtherLog => Failure::usage("the two checkpoints are of different logs"),
        NoEvidence::NoLog(old, new) => {
            let [old, new] = [old, new].map(|size| count(size, "entry"));
            Failure::usage(format!("--from is missing: only the log can show whether {new} go on from {old}"))
        }
        NoEvidence::NoKey => {
            Failure::usage("the log of --from begins with no genesis: name the ledger's key with --key")
        }
        NoEvidence::Agree(old, new) => {
            let [old, new] = [old, new].map(|size| count(size, "entry"));
            none(&format!("the checkpoints of {old} and {new} agree"))
        }
        NoEvidence::Proves(why) => none(&safe(&why)),
        NoEvidence::Log(error) => of_log(error),
    }
}

fn of_log(error: Error) -> Failure {
    let code = match error {
        Error::Unavailable(_) => Code::Unavailable,
        Error::Disk(_) => Code::Usage,
        Error::Refused(_) | Error::Damaged(_) => Code::NotFound,
    };
    Failure::new(code, format!("--from: {}", safe(&error.to_string())))
}
