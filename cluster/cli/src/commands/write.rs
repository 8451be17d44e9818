//! Writes: `commit`, `prune`, `rollback`, `rotate-key`, `lead`.

use coppice_client::{Client, Error};
use coppice_env::{Rng, SystemRng};
use coppice_http::forms::commit_json;
use coppice_proto::v1;
use coppice_types::{Batch, Change, Condition, Digest, Operation, Precondition, Reason, SessionId, Stamp};
use coppice_verify::{
    hash::journal_leaf_hash,
    header::{Body, Header},
    proof::{Proof, ProofFile},
};
use serde_json::{Value, json};

use crate::{
    args::{Commit, Lead, Named, Prune, Rollback, RotateKey},
    bytes,
    commands::{
        consent,
        read::{standing, version},
    },
    failure::{Code, Failure},
    files::Prepared,
    output::Output,
    text,
};

pub async fn commit(client: &Client, args: &Commit, output: Output) -> Result<(), Failure> {
    let mut batch = parse_batch(args)?;
    // The receipt's file is opened before anything is written to the ledger.
    let output = output.beside(args.receipt.as_deref());
    let receipt = args.receipt.as_deref().map(Prepared::new).transpose()?;
    if let Some(Named { epoch, version }) = args.expect_version {
        if args.expect_epoch.is_some_and(|other| epoch.is_some_and(|epoch| epoch != other)) {
            return Err(Failure::usage("--expect-version and --expect-epoch name different epochs"));
        }
        let epoch = match epoch.or(args.expect_epoch) {
            Some(epoch) => epoch,
            None => client.head().await?.stamp.ok_or(Error::Malformed("no head"))?.epoch,
        };
        batch.expected_head = Some(Stamp::new(epoch, version));
    }
    commit_batch(client, batch, receipt, output).await
}

/// Commits a batch and prints its version. The batch has a session of its own, so that it can be
/// sent again if an answer is lost. A caller with no sessions left in its quota commits without
/// one: then a lost answer leaves the outcome unknown.
pub(super) async fn commit_batch(
    client: &Client,
    batch: Batch,
    receipt: Option<Prepared>,
    output: Output,
) -> Result<(), Failure> {
    let mut name = [0; 16];
    SystemRng.fill(&mut name);
    let (batch, want_receipt) = (coppice_client::batch(batch), receipt.is_some());
    let done = match client.open_session(SessionId(name)).await {
        Err(error) if error.reason() == Some(Reason::QuotaExceeded) => client.commit(batch, want_receipt).await,
        Err(error) => return Err(Failure::before_write(error)),
        Ok(mut session) => session.commit(batch, want_receipt).await,
    };
    let done = done.map_err(Failure::of_write)?;
    let stamp = done.stamp.ok_or(Error::Malformed("no version"))?;
    let header = coppice_client::header(&done.header)?;
    let mut object = commit_json(stamp, &header, &done);
    if receipt.is_some() {
        object["entry_hash"] = json!(entry_hash(&done.receipt).map(|hash| hash.to_string()));
    }
    // If the reader of the result has gone away, the receipt is written anyway.
    let told = output.result(&object, || format!("version {}, state root {}", version(stamp), header.state_root));
    let Some(receipt) = receipt else { return told };
    if done.receipt.is_empty() {
        return Err(Error::Malformed("no receipt, though one was asked for").into());
    }
    receipt.write(&done.receipt).map_err(|failure| {
        let failure = Failure { code: Code::Unavailable, ..failure };
        let what = format!("version {} is committed, and its receipt is not written", version(stamp));
        failure.during(&what).hint("Do not commit again: `coppice get KEY --proof FILE` proves what is there.")
    })?;
    told
}

/// The hash of the batch's journal entry, which `coppice verify --expect-batch` takes. `None` if
/// the bytes are not a receipt: the batch is committed anyway.
fn entry_hash(receipt: &[u8]) -> Option<Digest> {
    match ProofFile::decode(receipt).ok()?.proof {
        Proof::Receipt(proof) => Some(journal_leaf_hash(&proof.entry)),
        _ => None,
    }
}

fn parse_batch(args: &Commit) -> Result<Batch, Failure> {
    let mut operations = Vec::new();
    for pair in &args.put {
        let (key, value) = bytes::parse_pair(pair)?;
        operations.push(Operation { key: key.into(), change: Change::Put(value.into()) });
    }
    for key in &args.delete {
        operations.push(Operation { key: bytes::parse_key(key)?.into(), change: Change::Delete });
    }
    let preconditions = parse_preconditions(args)?;
    if operations.is_empty() && preconditions.is_empty() && args.metadata.is_none() && args.expect_version.is_none() {
        return Err(Failure::usage("there is nothing to commit").hint("Use --put KEY=VALUE or --delete KEY."));
    }
    if let Some(key) = repeated_key(&operations) {
        let key = bytes::show(key, None)?;
        return Err(Failure::usage(format!("`{key}` is written more than once in one batch")));
    }
    let metadata = args.metadata.as_deref().map(bytes::parse).transpose()?.unwrap_or_default();
    Ok(Batch { operations, preconditions, metadata, exclusive: false, expected_head: None })
}

fn repeated_key(operations: &[Operation]) -> Option<&[u8]> {
    let mut keys: Vec<&[u8]> = operations.iter().map(|operation| operation.key.as_ref()).collect();
    keys.sort_unstable();
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn parse_preconditions(args: &Commit) -> Result<Vec<Precondition>, Failure> {
    let mut preconditions = Vec::new();
    for key in &args.if_absent {
        preconditions.push(Precondition { key: bytes::parse_key(key)?, condition: Condition::Absent });
    }
    for pair in &args.if_value {
        let (key, value) = bytes::parse_pair(pair)?;
        let hash = coppice_verify::hash::sha256(&value);
        preconditions.push(Precondition { key, condition: Condition::ValueHash(hash) });
    }
    for pair in &args.if_value_sha256 {
        let (key, hash) = bytes::split_pair(pair)?;
        let hash = Digest::from_slice(&bytes::parse_hex(hash)?)
            .ok_or_else(|| Failure::usage(format!("`{}` is no SHA-256: it has 64 hex digits", text::safe(hash))))?;
        preconditions.push(Precondition { key: bytes::parse_key(key)?, condition: Condition::ValueHash(hash) });
    }
    for pair in &args.if_changed {
        let (key, stamp) = bytes::split_pair(pair)?;
        let condition = Condition::LastChanged(parse_stamp(stamp)?);
        preconditions.push(Precondition { key: bytes::parse_key(key)?, condition });
    }
    Ok(preconditions)
}

fn parse_stamp(text: &str) -> Result<Stamp, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("`{}` is {error}", text::safe(text))))
}

pub async fn prune(client: &Client, args: &Prune, output: Output) -> Result<(), Failure> {
    if consent::asks(args.consent) {
        let head = client.head().await?;
        let stamp = head.stamp.ok_or(Error::Malformed("no head"))?;
        let (before, boundary) = (args.before, head.pruned_boundary);
        if before > stamp.version {
            let message = format!("version {before} is above head, {}", version(stamp));
            return Err(Failure { reason: Some(Reason::NotYet), ..Failure::new(Code::Refused, message) });
        }
        let drops = before.saturating_sub(boundary);
        let object = json!({ "would": "prune", "versions": drops, "pruned_boundary": boundary.max(before), "epoch": stamp.epoch, "version": stamp.version });
        let pins = client.pins().await?.iter().filter(|pin| pin.version < before).count() as u64;
        let what = match (drops, pins) {
            (0, _) => format!("Nothing is dropped: versions before {boundary} are gone already."),
            (_, 0) => format!(
                "{} from {boundary} to {} would be dropped for good; head stays {}.",
                text::count(drops, "version"),
                before - 1,
                version(stamp)
            ),
            (_, pins) => format!("It would be refused: {} older versions (`coppice pins`).", held(pins)),
        };
        if !consent::given(args.consent, &object, &what, output)? {
            return Ok(());
        }
    }
    let request = v1::PruneRequest {
        before: Some(args.before),
        reason: args.reason.clone(),
        principal: principal(args.principal.as_deref()),
        expected_head: None,
    };
    let (object, header) = describe(&client.prune(request).await.map_err(Failure::of_write)?)?;
    output.result(&object, || match header.body {
        Body::Prune(prune) => {
            format!("versions before {} are dropped (entry {} of the root log)", prune.boundary, header.sequence)
        }
        _ => format!("entry {} of the root log", header.sequence),
    })
}

fn held(pins: u64) -> String {
    format!("{} {}", text::count(pins, "pin"), if pins == 1 { "holds" } else { "hold" })
}

pub async fn rollback(client: &Client, args: &Rollback, output: Output) -> Result<(), Failure> {
    if args.to.epoch.is_some() {
        standing(client, args.to).await?;
    }
    let to = args.to.version;
    let mut expected_head = None;
    if consent::asks(args.consent) {
        let target = standing(client, args.to).await?;
        let head = client.head().await?;
        let stamp = head.stamp.ok_or(Error::Malformed("no head"))?;
        if to < head.pruned_boundary {
            let message = format!("version {to} is pruned: the oldest that is left is {}", head.pruned_boundary);
            return Err(Failure { reason: Some(Reason::Pruned), ..Failure::new(Code::Refused, message) });
        }
        let drops = stamp.version.saturating_sub(to);
        let object = json!({ "would": "rollback", "versions": drops, "to": { "epoch": target.epoch, "version": to }, "epoch": stamp.epoch, "version": stamp.version });
        let what = format!(
            "{} above {} would no longer stand; head is {}, and would be version {to} again, in epoch {}.",
            text::count(drops, "version"),
            version(target),
            version(stamp),
            stamp.epoch + 1
        );
        if !consent::given(args.consent, &object, &what, output)? {
            return Ok(());
        }
        // The user agreed to roll back this head, and no later one.
        expected_head = Some(stamp);
    }
    let request = v1::RollbackRequest {
        to: Some(to),
        reason: args.reason.clone(),
        principal: principal(args.principal.as_deref()),
        expected_head,
    };
    let (object, header) = describe(&client.rollback(request).await.map_err(Failure::of_write)?)?;
    let stamp = header.stamp;
    output.result(&object, || {
        let (again, epoch) = (stamp.version, stamp.epoch);
        format!("head is version {again} again, in epoch {epoch} (entry {} of the root log)", header.sequence)
    })
}

pub async fn rotate_key(client: &Client, args: &RotateKey, output: Output) -> Result<(), Failure> {
    let vkey = super::verify::parse_vkey(&args.key)?.to_string();
    let request = v1::RotateKeyRequest {
        vkey: vkey.clone(),
        reason: args.reason.clone(),
        principal: principal(args.principal.as_deref()),
        expected_head: None,
    };
    let (mut object, header) = describe(&client.rotate_key(request).await.map_err(Failure::of_write)?)?;
    object["vkey"] = json!(vkey);
    output.result(&object, || {
        format!("from {} entries of the root log on, {vkey} signs its checkpoints", header.sequence.0.saturating_add(1))
    })
}

pub async fn lead(client: &Client, args: &Lead, output: Output) -> Result<(), Failure> {
    let Lead { group, node } = args;
    client.transfer_leader(group, node).await?;
    output.result(&json!({ "group": group, "leader": node }), || {
        format!("{} leads {}", text::safe(node), text::safe(group))
    })
}

fn principal(given: Option<&str>) -> String {
    let user = || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    given.map(str::to_owned).or_else(user).unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

fn describe(response: &v1::AdminResponse) -> Result<(Value, Header), Failure> {
    let header = coppice_client::header(&response.header)?;
    let head = response.head.ok_or(Error::Malformed("no head"))?;
    let object = json!({
        "kind": header.kind_name(),
        "sequence": header.sequence.0,
        "epoch": head.epoch,
        "version": head.version,
        "pruned_boundary": response.pruned_boundary,
    });
    Ok((object, header))
}
