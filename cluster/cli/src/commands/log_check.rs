//! `coppice log check`: does the log go on from a checkpoint that was saved before?
//!
//! The answer is verified here; what the ledger says is not believed. A verdict other than `fine` leaves the saved checkpoint
//! as it is.

use std::{fs, path::Path};

use coppice_client::Client;
use coppice_types::Reason;
use coppice_verify::{
    check::{self, Claim},
    checkpoint::Checkpoint,
    note::VerifierKey,
    policy::Policy,
    proof::ProofFile,
};
use serde_json::{Value, json};

use super::verify::{parse_policy, parse_vkey};
use crate::{
    args,
    failure::{Code, Failure},
    output::Output,
};

/// What has become of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes on from the saved checkpoint.
    Fine,
    /// It has fewer entries.
    Shrunk,
    /// It has other entries: two signed checkpoints contradict each other.
    Fork,
    /// The ledger gave no proof that holds.
    Unproven,
    /// It goes on, but too few witnesses have cosigned the newest checkpoint.
    NotCosigned,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Shrunk => "shrunk",
            Self::Fork => "fork",
            Self::Unproven => "unproven",
            Self::NotCosigned => "not cosigned",
        }
    }
}

struct Newest {
    note: Vec<u8>,
    checkpoint: Checkpoint,
}

/// `coppice log check`.
///
/// # Errors
/// If the log does not go on from the checkpoint, or there is no answer.
pub async fn check(client: &Client, args: &args::LogCheck, trust: Option<&str>, output: Output) -> Result<(), Failure> {
    let key = args.key.as_deref().or(trust);
    let (key, policy) = key_and_policy(key, args.policy.as_deref())?;
    let old_note = saved(&args.from)?;
    let old = Checkpoint::open(&old_note, &key)
        .map_err(|error| Failure::usage(format!("{}: {error}", args.from.display())))?;
    let (verdict, newest) = compare(client, &key, policy.as_ref(), &old).await?;
    let text = |note: &[u8]| String::from_utf8_lossy(note).into_owned();
    let object = json!({
        "verdict": verdict.name(),
        "fine": verdict == Verdict::Fine,
        "old": describe(&old, &text(&old_note)),
        "new": newest.as_ref().map_or(Value::Null, |newest| describe(&newest.checkpoint, &text(&newest.note))),
    });
    output.result(&object, || {
        let new = newest.as_ref().map_or_else(|| "unknown".to_owned(), |newest| newest.checkpoint.size.to_string());
        let explained = match verdict {
            Verdict::Fine => "the log goes on from the saved checkpoint",
            Verdict::Shrunk => "the log has SHRUNK: entries that were signed are gone",
            Verdict::Fork => "FORK: the log has other entries than the saved checkpoint signed; keep both checkpoints",
            Verdict::Unproven => "NOT PROVEN: the ledger did not show that the log goes on from the saved checkpoint",
            Verdict::NotCosigned => "the log goes on, but too few witnesses of the policy have cosigned it",
        };
        format!("{}: {explained}\n  {} entries then, {new} now, of {}", verdict.name(), old.size, old.origin)
    })?;
    match (verdict, newest) {
        (Verdict::Fine, Some(newest)) => replace(args.save.as_deref(), &newest.note),
        _ => Err(Failure::new(Code::NotFound, "").silent()),
    }
}

/// The ledger's key, and the policy, which may name it.
fn key_and_policy(key: Option<&str>, policy: Option<&Path>) -> Result<(VerifierKey, Option<Policy>), Failure> {
    match policy {
        Some(path) => {
            let policy = parse_policy(path, key)?;
            match policy.logs() {
                [key] => Ok((key.clone(), Some(policy))),
                _ => Err(Failure::usage("the policy names several logs: say which by --key")),
            }
        }
        None => {
            let missing = || Failure::usage("whose log? There is neither --key, --policy nor --trust");
            Ok((parse_vkey(key.ok_or_else(missing)?)?, None))
        }
    }
}

fn saved(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path, &error))?;
    match ProofFile::decode(&bytes) {
        Ok(file) => Ok(file.proof.log().checkpoint.to_vec()),
        Err(_) => Ok(bytes),
    }
}

async fn compare(
    client: &Client,
    key: &VerifierKey,
    policy: Option<&Policy>,
    old: &Checkpoint,
) -> Result<(Verdict, Option<Newest>), Failure> {
    let answer = if policy.is_some() {
        client.cosigned_checkpoint(old.size).await?
    } else {
        match client.checkpoint(old.size).await {
            // The log may be smaller than it was; its newest checkpoint tells.
            Err(error) if error.reason() == Some(Reason::InvalidArgument) => client.checkpoint(0).await?,
            answer => answer?,
        }
    };
    let note = answer.checkpoint.to_vec();
    let opened = Checkpoint::open(&note, key);
    let Ok(checkpoint) = opened else { return Ok((Verdict::Unproven, None)) };
    let mut verdict = judge(key, old, &checkpoint, &answer.standing);
    if verdict == Verdict::Fine
        && let Some(policy) = policy
        && !policy.examine(&note).is_ok_and(|examined| examined.quorum)
    {
        verdict = Verdict::NotCosigned;
    }
    Ok((verdict, Some(Newest { note, checkpoint })))
}

/// Both checkpoints are signed by the key.
fn judge(key: &VerifierKey, old: &Checkpoint, new: &Checkpoint, standing: &[u8]) -> Verdict {
    if new.size < old.size {
        return Verdict::Shrunk;
    }
    if new.size == old.size {
        return if new.root == old.root { Verdict::Fine } else { Verdict::Fork };
    }
    if old.size == 0 {
        return Verdict::Fine;
    }
    let Ok(verified) = check::verify(standing, key, None) else { return Verdict::Unproven };
    match &verified.claim {
        Claim::Standing(claim) if verified.checkpoint == *new && claim.old_size == old.size => {
            // The new root commits to another beginning than the one that was signed.
            if claim.old_root == old.root { Verdict::Fine } else { Verdict::Fork }
        }
        _ => Verdict::Unproven,
    }
}

fn describe(checkpoint: &Checkpoint, note: &str) -> Value {
    json!({
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.to_string(),
        "note": note,
    })
}

/// Writes the new checkpoint aside and renames it: the old one is there until the new one is.
fn replace(path: Option<&Path>, note: &[u8]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    fs::write(&aside, note).and_then(|()| fs::rename(&aside, path)).map_err(|error| Failure::file(path, &error))
}

#[cfg(test)]
mod tests {
    use coppice_types::Digest;
    use coppice_verify::note::SignerKey;

    use super::*;

    #[test]
    fn what_contradicts_a_saved_checkpoint_is_told_apart() {
        let key = SignerKey::from_seed("ledger.example/x", &[1; 32]).expect("a name");
        let at = |size, root| Checkpoint { origin: key.name().to_owned(), size, root: Digest([root; 32]) };
        let judge = |old: &Checkpoint, new: &Checkpoint| judge(key.verifier(), old, new, b"");
        assert_eq!(judge(&at(5, 1), &at(5, 1)), Verdict::Fine);
        assert_eq!(judge(&at(5, 1), &at(5, 2)), Verdict::Fork);
        assert_eq!(judge(&at(5, 1), &at(4, 1)), Verdict::Shrunk);
        assert_eq!(judge(&at(5, 1), &at(6, 1)), Verdict::Unproven, "growth needs a proof");
    }
}
