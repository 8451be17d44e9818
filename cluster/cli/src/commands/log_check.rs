//! `coppice log check`: checks that the log extends a checkpoint that was saved before.
//!
//! The answer is verified here, so the ledger's word is not trusted. Any verdict other than `fine`
//! leaves the saved checkpoint unchanged.

use std::{fs, path::Path};

use coppice_client::Client;
use coppice_types::Reason;
use coppice_verify::{
    Step,
    check::{self, Claim, Verified},
    checkpoint::Checkpoint,
    evidence::Evidence,
    note::{self, VerifierKey},
    policy::Policy,
    proof::{Proof, ProofFile},
};
use serde_json::{Value, json};

use super::{
    evidence,
    verify::{parse_policy, parse_vkey},
};
use crate::{
    args,
    failure::{Code, Failure},
    input,
    output::{Output, raw},
    text::{self, count, safe},
};

/// The relation of the log to the saved checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The log extends the saved checkpoint.
    Fine,
    /// The log has fewer entries.
    Shrunk,
    /// The log has other entries: two signed checkpoints contradict each other.
    Fork,
    /// The saved checkpoint was signed by a key that the ledger had replaced.
    Late,
    /// The ledger gave no proof that holds.
    Unproven,
    /// The log extends the saved checkpoint, but too few witnesses have cosigned the newest one.
    NotCosigned,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Shrunk => "shrunk",
            Self::Fork => "fork",
            Self::Late => "late",
            Self::Unproven => "unproven",
            Self::NotCosigned => "not cosigned",
        }
    }
}

struct Newest {
    note: Vec<u8>,
    checkpoint: Checkpoint,
}

pub async fn check(client: &Client, args: &args::LogCheck, trust: Option<&str>, output: Output) -> Result<(), Failure> {
    let key = args.key.as_deref().or(trust);
    let (key, policy) = key_and_policy(key, args.policy.as_deref())?;
    let old_note = saved(&args.from)?;
    let wrong = |error: note::Error| Failure::usage(format!("{}: {error}", text::path(&args.from)));
    let old = Checkpoint::claimed(&old_note).map_err(wrong)?;
    let standing = ask(client, policy.is_some(), &old).await?;
    let (verdict, newest) = match check::verify(&standing, &key, None) {
        Ok(verified) => (
            judge(&verified, policy.as_ref(), (&old, &old_note), &standing).map_err(wrong)?,
            Some(newest(verified, &standing)),
        ),
        Err(_) => Checkpoint::open(&old_note, &key).map(|_| (Verdict::Unproven, None)).map_err(wrong)?,
    };
    let output = output.beside(args.save.as_deref());
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
            Verdict::Fork => "FORK: entries differ from those that the saved checkpoint signed; keep both checkpoints",
            Verdict::Late => "LATE: the saved checkpoint was signed by a key that the ledger had replaced before; keep both checkpoints",
            Verdict::Unproven => "NOT PROVEN: the ledger did not show that the log goes on from the saved checkpoint",
            Verdict::NotCosigned => "the log goes on, but too few witnesses of the policy have cosigned it",
        };
        let then = count(old.size, "entry");
        format!("{}: {explained}\n  {then} then, {new} now, of {}", verdict.name(), safe(&old.origin))
    })?;
    match (verdict, newest) {
        (Verdict::Fine, Some(newest)) => replace(args.save.as_deref(), &newest.note),
        (Verdict::Fork | Verdict::Late, _) => {
            convict(&old_note, &standing, &key, args.evidence.as_deref(), output)?;
            Err(Failure::new(Code::NotFound, "").silent())
        }
        _ => Err(Failure::new(Code::NotFound, "").silent()),
    }
}

/// Writes the evidence in a saved checkpoint and a standing proof that contradicts it.
fn convict(old: &[u8], standing: &[u8], key: &VerifierKey, path: Option<&Path>, output: Output) -> Result<(), Failure> {
    let Some(path) = path else {
        output.note(&json!({ "note": "--evidence FILE writes this as evidence for others" }), || {
            "  --evidence FILE writes this as evidence for others".to_owned()
        });
        return Ok(());
    };
    let unfit = || Failure::new(Code::NotFound, "no evidence: the answer does not show the contradiction");
    let file = ProofFile::decode(standing).map_err(|_| unfit())?;
    let verified = check::verify_file(&file, key, None).map_err(|_| unfit())?;
    let Proof::Standing(proof) = &file.proof else { return Err(unfit()) };
    let changed = verified.keys.changes().map(|(_, key)| key.clone());
    let keys: Vec<VerifierKey> = [verified.keys.first().clone()].into_iter().chain(changed).collect();
    let found = Evidence::from_standing(old, &keys, proof).ok_or_else(unfit)?;
    evidence::save(&found, key, path)
}

/// The ledger's key, and the policy. A policy with a single log names the key.
fn key_and_policy(key: Option<&str>, policy: Option<&Path>) -> Result<(VerifierKey, Option<Policy>), Failure> {
    match policy {
        Some(path) => {
            let policy = parse_policy(path, key)?;
            match policy.logs() {
                [key] => Ok((key.clone(), Some(policy))),
                _ => Err(Failure::usage("the policy names several logs: choose one with --key")),
            }
        }
        None => {
            let missing = || Failure::usage("no key to trust: set --key, --policy or --trust");
            Ok((parse_vkey(key.ok_or_else(missing)?)?, None))
        }
    }
}

fn saved(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = input::read(path)?;
    match ProofFile::decode(&bytes) {
        Ok(file) => Ok(file.proof.log().checkpoint.to_vec()),
        Err(_) => Ok(bytes),
    }
}

/// A standing proof that names all key changes. It begins at the old checkpoint's size if the log
/// has that many entries.
async fn ask(client: &Client, cosigned: bool, old: &Checkpoint) -> Result<Vec<u8>, Failure> {
    let size = old.size.max(1);
    let answer = if cosigned {
        client.cosigned_checkpoint(size).await?
    } else {
        match client.checkpoint(size).await {
            // The log may have shrunk: its newest checkpoint shows that.
            Err(error) if error.reason() == Some(Reason::InvalidArgument) => client.checkpoint(1).await?,
            answer => answer?,
        }
    };
    Ok(answer.standing.to_vec())
}

fn newest(verified: Verified<'_>, standing: &[u8]) -> Newest {
    let note = ProofFile::decode(standing).map(|file| file.proof.log().checkpoint.to_vec());
    Newest { note: note.unwrap_or_default(), checkpoint: verified.checkpoint }
}

/// Compares the proven newest checkpoint with the saved one.
fn judge(
    newest: &Verified<'_>,
    policy: Option<&Policy>,
    (old, old_note): (&Checkpoint, &[u8]),
    standing: &[u8],
) -> Result<Verdict, note::Error> {
    match Checkpoint::open(old_note, newest.keys.in_force(old.size)) {
        Err(note::Error::Unsigned) if newest.keys.another_signed(old_note, old.size) => return Ok(Verdict::Late),
        opened => drop(opened?),
    }
    let grown = grown(newest, old);
    if let (Verdict::Fine, Some(policy)) = (grown, policy) {
        return Ok(match check::verify_under(standing, policy, None) {
            Ok(_) => Verdict::Fine,
            Err(failure) if failure.step == Step::Cosignatures => Verdict::NotCosigned,
            Err(_) => Verdict::Unproven,
        });
    }
    Ok(grown)
}

fn grown(newest: &Verified<'_>, old: &Checkpoint) -> Verdict {
    let new = &newest.checkpoint;
    if new.size < old.size {
        return Verdict::Shrunk;
    }
    if new.size == old.size {
        return if new.root == old.root { Verdict::Fine } else { Verdict::Fork };
    }
    match &newest.claim {
        _ if old.size == 0 => Verdict::Fine,
        Claim::Standing(claim) if claim.old_size == old.size => {
            // If the roots differ, the log's first entries are not those that were signed.
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

/// Writes the new checkpoint to another file and renames it, so that the old one stays until the
/// new one is complete.
fn replace(path: Option<&Path>, note: &[u8]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    if input::is_standard(path) {
        return raw(note);
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    fs::write(&aside, note).and_then(|()| fs::rename(&aside, path)).map_err(|error| Failure::file(path, &error))
}

#[cfg(test)]
mod tests {
    use coppice_types::{ClusterId, Params};
    use coppice_verify::{note::SignerKey, replay::Ledger, shard_map::ShardMap};

    use super::*;

    /// A log with this many entries; different kinds give different roots.
    fn ledger(entries: usize, kind: u64) -> Ledger {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
        while ledger.headers.len() < entries {
            ledger.append_unknown(9, kind.to_le_bytes().to_vec());
        }
        ledger
    }

    /// The verdict on a saved note if the ledger's log is `log`.
    fn verdict(saved: &[u8], log: &Ledger, from: u64) -> Result<Verdict, note::Error> {
        let size = log.headers.len() as u64;
        let standing = log.standing(from.min(size), size).encode().expect("it fits");
        let first = SignerKey::from_seed(log.key.name(), &[1; 32]).expect("a name");
        let verified = check::verify(&standing, first.verifier(), None).expect("an honest proof");
        let old = Checkpoint::claimed(saved).expect("a checkpoint");
        judge(&verified, None, (&old, saved), &standing)
    }

    fn note(log: &Ledger, size: u64) -> Vec<u8> {
        log.log_part(size).checkpoint.into_owned()
    }

    #[test]
    fn contradictions_of_a_saved_checkpoint_are_told_apart() {
        let saved = note(&ledger(5, 1), 5);
        assert_eq!(verdict(&saved, &ledger(5, 1), 5), Ok(Verdict::Fine));
        assert_eq!(verdict(&saved, &ledger(6, 1), 5), Ok(Verdict::Fine));
        assert_eq!(verdict(&saved, &ledger(6, 1), 4), Ok(Verdict::Unproven), "growth from elsewhere");
        assert_eq!(verdict(&saved, &ledger(5, 2), 5), Ok(Verdict::Fork));
        assert_eq!(verdict(&saved, &ledger(6, 2), 5), Ok(Verdict::Fork));
        assert_eq!(verdict(&saved, &ledger(4, 1), 1), Ok(Verdict::Shrunk));
    }

    #[test]
    fn a_saved_checkpoint_is_checked_against_the_key_in_force_then() {
        let mut log = ledger(5, 1);
        let before = note(&log, 5);
        log.rotate(&[2; 32]);
        log.append_unknown(9, Vec::new());
        assert_eq!(verdict(&before, &log, 5), Ok(Verdict::Fine));
        assert_eq!(verdict(&note(&log, 6), &log, 6), Ok(Verdict::Fine), "signed by the new key");
        let first = SignerKey::from_seed(log.key.name(), &[1; 32]).expect("a name");
        let late = log.checkpoint(7).sign(&first).expect("the same name");
        assert_eq!(verdict(late.as_bytes(), &log, 7), Ok(Verdict::Late));
        let stranger = SignerKey::from_seed(log.key.name(), &[3; 32]).expect("a name");
        let strange = log.checkpoint(7).sign(&stranger).expect("the same name");
        assert_eq!(verdict(strange.as_bytes(), &log, 7), Err(note::Error::Unsigned));
    }
}
