//! Ledgers of members: `ledger`.

mod anchor;
mod members;
pub(super) mod names;
mod purge;
mod show;
mod verify;

use std::collections::BTreeMap;

use coppice_client::{
    Client, Error,
    ledgers::{Appended, Author, Journals, LedgerJournal, Wanted, ledger_name},
};
use coppice_env::{Rng, SystemRng};
use coppice_proto::v1;
use coppice_types::{LedgerId, MemberId, Reason};
use coppice_verify::{
    hash::{clue_hash, member_id},
    ledgers::{Condition, DATA, Envelope, FOUNDING, Founding, Grant, Member, NONCE_BYTES, ORDER, Policy, Roles},
    note::VerifierKey,
};
use serde_json::{Map, Value, json};

use crate::{
    args::{
        Ledger, LedgerAppend, LedgerCreate, LedgerGet, LedgerJournals, LedgerLineage, LedgerOccult, MayOccult, Signer,
    },
    bytes,
    commands::order,
    dev::home::secret_key,
    failure::{Code, Failure},
    files::Prepared,
    input,
    output::{Output, Table, raw, tell_line},
    text,
};

pub use anchor::anchor;
use names::{clue_of, found, id_of};
pub use verify::verify;

/// Journals that are read at a time.
const PAGE: u32 = 256;

pub async fn ledger(client: &Client, command: &Ledger, output: Output) -> Result<(), Failure> {
    match command {
        Ledger::Create(args) => create(client, args, output).await,
        Ledger::List => list(client, output).await,
        Ledger::Show(args) => show::show(client, args, output).await,
        Ledger::Members { ledger } => show::members(client, ledger, output).await,
        Ledger::Append(args) => append(client, args, output).await,
        Ledger::Get(args) => get(client, args, output).await,
        Ledger::Journals(args) => journals(client, args, output).await,
        Ledger::Lineage(args) => lineage(client, args, output).await,
        Ledger::Member(change) => members::change(client, change, output).await,
        Ledger::Audit(_) | Ledger::Verify(_) | Ledger::Anchor(_) => {
            unreachable!("they need to know whether a key is trusted")
        }
        Ledger::Occult(LedgerOccult::Prepare(args)) => order::prepare(client, args, output).await,
        Ledger::Occult(LedgerOccult::Status { ledger, jsn, wait }) => {
            let ledger = id_of(client, ledger).await?;
            order::status(client, (ledger, *jsn), *wait, output).await
        }
        Ledger::Purge(command) => purge::run(client, command, output).await,
    }
}

/// Reads a member's name and public key: `FILE`, or `NAME=FILE`.
fn member_key(argument: &str) -> Result<(String, [u8; 32]), Failure> {
    let (name, file) = match argument.split_once('=') {
        Some((name, file)) => (Some(name), file),
        None => (None, argument),
    };
    let path = std::path::Path::new(file);
    let content = input::read(path)?;
    let content = String::from_utf8_lossy(&content);
    let key = VerifierKey::parse(content.trim()).map_err(|error| {
        let failure = Failure::usage(format!("{}: no public key: {error}", text::path(path)));
        failure.hint("`coppice keygen --name MEMBER --out FILE.key` writes it to FILE.vkey.")
    })?;
    Ok((name.unwrap_or(key.name()).to_owned(), key.public_key()))
}

pub(super) fn nonce() -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    SystemRng.fill(&mut nonce);
    nonce
}

/// The hand of a signer, behind the newest request of its lane.
pub(super) async fn author(client: &Client, ledger: LedgerId, signer: &Signer) -> Result<Author, Failure> {
    let key = secret_key(&signer.key)?;
    let member = signer.member.clone().unwrap_or_else(|| key.name().to_owned());
    let author = client.author(ledger, &member, signer.lane, key).await.map_err(Failure::before_write)?;
    author.ok_or_else(|| {
        let message = format!("the ledger has no member or agent {}", text::safe(&member));
        let failure = Failure { reason: Some(Reason::NotAMember), ..Failure::new(Code::Refused, message) };
        failure.hint("`coppice ledger members` lists them; --member names the one that signs. Nothing was written.")
    })
}

async fn create(client: &Client, args: &LedgerCreate, output: Output) -> Result<(), Failure> {
    let key = secret_key(&args.owner)?;
    let founder = key.name().to_owned();
    let grant = |name: String, roles: Roles, key| Grant { name, roles, key, certificate: Vec::new() };
    let reads = Roles::WRITER.and(Roles::READER);
    let mut members = vec![grant(founder.clone(), Roles::OWNER.and(reads), key.verifier().public_key())];
    for (arguments, roles) in [
        (&args.member, reads),
        (&args.regulator, Roles::REGULATOR.and(Roles::READER)),
        (&args.reader, Roles::READER),
        (&args.verifier, Roles::VERIFIER),
    ] {
        for argument in arguments {
            let (name, key) = member_key(argument)?;
            members.push(grant(name, roles, key));
        }
    }
    let occult = match args.occult {
        MayOccult::Nobody => 0,
        MayOccult::Regulator => 1,
        MayOccult::Owner => 2,
    };
    let notice_s = u32::try_from(args.notice.as_secs() + u64::from(args.notice.subsec_nanos() > 0));
    let policy = Policy {
        notice_s: notice_s.map_err(|_| Failure::usage("a time of notice is below 136 years"))?,
        absent_days: args.absent_days,
        retain_max: args.retain,
        occult,
        anchor_every_s: args.anchor_every,
    };
    let founding = Founding {
        name: args.name.clone(),
        spread: args.spread,
        policy,
        members,
        authorities: Vec::new(),
        time_authorities: Vec::new(),
    };
    Founding::decode(&founding.encode()).map_err(|error| {
        let failure = Failure::usage(format!("these members and rules found no ledger: {error}"));
        failure.hint("No name and no key may be given twice; names have lower-case letters, digits, `-`, `_` and `.`.")
    })?;
    let done = client.found_ledger(&key, &founder, &founding, nonce()).await.map_err(Failure::of_write)?;
    let object = json!({
        "ledger": args.name,
        "id": done.ledger.to_string(),
        "epoch": done.stamp.epoch.0,
        "version": done.stamp.version.0,
    });
    let name = text::safe(&args.name);
    output.result(&object, || format!("ledger {name} is founded: id 0x{}, version {}", done.ledger, done.stamp))
}

async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let mut stream = client.list_ledgers(v1::ListLedgersRequest::default()).await?;
    let mut table = Table::new(output, &["LEDGER", "ID"]);
    while let Some(found) = stream.next().await? {
        let id = hex::encode(&found.id);
        table.row(&json!({ "ledger": found.name, "id": id }), || Ok([text::safe(&found.name), format!("0x{id}")]))?;
    }
    table.end()
}

async fn append(client: &Client, args: &LedgerAppend, output: Output) -> Result<(), Failure> {
    // The receipt's file is opened before anything is written to the ledger.
    let output = output.beside(args.receipt.as_deref());
    let receipt = args.receipt.as_deref().map(Prepared::new).transpose()?;
    let clues = args.clue.iter().map(|clue| clue_of(clue)).collect::<Result<Vec<_>, _>>()?;
    let envelope = |data: &String| Ok(Envelope { nonce: nonce(), clues: clues.clone(), payload: bytes::parse(data)? });
    let envelopes = args.data.iter().map(envelope).collect::<Result<Vec<_>, Failure>>()?;
    let ledger = id_of(client, &args.ledger).await?;
    let mut conditions: Vec<Condition> = args.if_size.iter().map(|size| Condition::Size(*size)).collect();
    for pair in &args.if_count {
        let (clue, count) = bytes::split_pair(pair)?;
        let count = count.parse();
        let count = count.map_err(|_| Failure::usage("--if-count takes CLUE=N, with a number after `=`"))?;
        conditions.push(Condition::Count(clue_hash(ledger, &clue_of(clue)?), count));
    }
    let mut author = author(client, ledger, &args.signer).await?;
    let number = author.number();
    let done = author.append(envelopes, conditions, receipt.is_some()).await.map_err(Failure::of_write)?;
    let count = args.data.len() as u64;
    let told = output.result(&appended(&done, count, number), || describe(&done, count));
    let Some(file) = receipt else { return told };
    if done.receipt.is_empty() {
        return Err(Error::Malformed("no receipt, though one was asked for").into());
    }
    file.write(&done.receipt).map_err(|failure| {
        let failure = Failure { code: Code::Unavailable, ..failure };
        let what = format!("journal {} is committed, and its receipt is not written", done.first_jsn);
        failure.during(&what).hint("Do not append again: `coppice ledger get --proof FILE` proves what is there.")
    })?;
    told
}

pub(super) fn appended(done: &Appended, count: u64, number: u64) -> Value {
    json!({
        "ledger_id": done.ledger.to_string(),
        "first_jsn": done.first_jsn,
        "journals": count,
        "number": number,
        "epoch": done.stamp.epoch.0,
        "version": done.stamp.version.0,
        "replayed": done.replayed,
    })
}

fn describe(done: &Appended, count: u64) -> String {
    let journals = match count {
        1 => format!("journal {}", done.first_jsn),
        _ => format!("journals {} to {}", done.first_jsn, done.first_jsn.saturating_add(count - 1)),
    };
    format!("{journals}, version {}", done.stamp)
}

async fn get(client: &Client, args: &LedgerGet, output: Output) -> Result<(), Failure> {
    let files = [args.proof.as_deref(), args.out.as_deref()];
    let output = files.into_iter().fold(output, |output, file| output.beside(file));
    let proof = args.proof.as_deref().map(Prepared::new).transpose()?;
    let out = args.out.as_deref().map(Prepared::new).transpose()?;
    let ledger = id_of(client, &args.ledger).await?;
    let wanted = Wanted { payload: true, request: proof.is_some(), proof: proof.is_some() };
    let found = client.journals(ledger, (args.jsn, 1), wanted, None).await?;
    let [journal] = &found.journals[..] else { return Err(Error::Malformed("no journal").into()) };
    if let Some(file) = proof {
        file.write(&found.proof)?;
    }
    if let Some(jsn) = journal.occulted_by {
        return Err(order::occulted(client, (ledger, args.jsn), jsn).await);
    }
    let LedgerJournal { envelope: Some(envelope), .. } = journal else {
        return Err(Error::Malformed("no envelope of a journal").into());
    };
    if let Some(file) = out {
        return file.write(&envelope.payload);
    }
    if !output.json && output.encoding.is_none() && !output.terminal && !output.is_aside() {
        return raw(&envelope.payload);
    }
    let object = one(journal, output)?;
    let payload = output.text(&envelope.payload)?;
    output.result(&object, || payload)
}

/// A journal as `--json` shows it.
fn one(journal: &LedgerJournal, output: Output) -> Result<Value, Failure> {
    let LedgerJournal { leaf, envelope, occulted_by } = journal;
    let mut object = Map::new();
    object.insert("jsn".to_owned(), json!(leaf.jsn));
    object.insert("kind".to_owned(), json!(leaf.kind));
    object.insert("epoch".to_owned(), json!(leaf.stamp.epoch.0));
    object.insert("version".to_owned(), json!(leaf.stamp.version.0));
    object.insert("member_id".to_owned(), json!(leaf.member.to_string()));
    object.insert("agent_id".to_owned(), json!(leaf.agent.map(|agent| agent.to_string())));
    object.insert("lane".to_owned(), json!(leaf.lane));
    object.insert("number".to_owned(), json!(leaf.number));
    object.insert("leaf_hash".to_owned(), json!(leaf.hash().to_string()));
    object.insert("commitment".to_owned(), json!(leaf.commitment.to_string()));
    if let Some(order) = occulted_by {
        object.insert("occulted_by".to_owned(), json!(order));
    }
    if let Some(envelope) = envelope {
        let mut clues = Vec::new();
        for clue in &envelope.clues {
            let mut shown = Map::new();
            let encoding = output.bytes(&mut shown, "clue", clue)?;
            shown.insert("encoding".to_owned(), json!(encoding));
            clues.push(Value::Object(shown));
        }
        object.insert("clues".to_owned(), Value::Array(clues));
        let encoding = output.bytes(&mut object, "payload", &envelope.payload)?;
        object.insert("encoding".to_owned(), json!(encoding));
    }
    Ok(Value::Object(object))
}

/// The headings of a table of journals.
const JOURNAL_HEADINGS: &[&str] = &["JSN", "KIND", "VERSION", "MEMBER", "LANE", "NUMBER", "PAYLOAD"];

/// Most members whose names are looked up for a table.
const NAMES_MAX: u32 = 4096;

/// Names of members and agents by their ids.
type Names = BTreeMap<MemberId, String>;

/// The names of a ledger's members, for a table; JSON shows ids. They are not verified.
async fn names(client: &Client, ledger: LedgerId, output: Output) -> Result<Names, Failure> {
    if output.json {
        return Ok(Names::new());
    }
    let request = v1::ListMembersRequest { ledger: Some(ledger_name(ledger)), limit: NAMES_MAX, read: None };
    let mut stream = client.list_members(request).await?;
    let mut names = Names::new();
    while let Some(found) = stream.next().await? {
        if let (Some(id), Ok(member)) = (MemberId::from_slice(&found.id), Member::decode(&found.record)) {
            // A name is believed only for the id that follows from it.
            names.extend((member_id(&member.name) == id).then_some((id, member.name)));
        }
    }
    Ok(names)
}

fn rows(table: &mut Table, found: &Journals, names: &Names, output: Output) -> Result<(), Failure> {
    for journal in &found.journals {
        let LedgerJournal { leaf, envelope, occulted_by } = journal;
        table.row(&one(journal, output)?, || {
            let (kind, payload) = match (leaf.kind, envelope) {
                (DATA, None) if let Some(order) = occulted_by => ("data", format!("occulted by {order}")),
                (DATA, Some(envelope)) => ("data", output.brief(&envelope.payload, 60)?),
                (DATA, None) => ("data", "-".to_owned()),
                (FOUNDING, _) => ("founding", "-".to_owned()),
                (ORDER, Some(envelope)) => ("order", order::describe(&envelope.payload)),
                (ORDER, None) => ("order", "-".to_owned()),
                (_, Some(envelope)) => ("members", members::describe_changes(&envelope.payload, names)),
                (_, None) => ("members", "-".to_owned()),
            };
            let signer = leaf.agent.unwrap_or(leaf.member);
            let member = names.get(&signer).map_or_else(|| signer.to_string(), |name| text::safe(name));
            let (lane, number) = (leaf.lane.to_string(), leaf.number.to_string());
            Ok([leaf.jsn.to_string(), kind.to_owned(), leaf.stamp.to_string(), member, lane, number, payload])
        })?;
    }
    Ok(())
}

async fn journals(client: &Client, args: &LedgerJournals, output: Output) -> Result<(), Failure> {
    let (ledger, size) = found(client, &args.ledger).await?;
    let wanted = Wanted { payload: args.payloads, ..Wanted::default() };
    let mut from = args.from;
    let mut left = size.saturating_sub(from).min(args.limit.unwrap_or(u64::MAX));
    let names = names(client, ledger, output).await?;
    let mut table = Table::new(output, JOURNAL_HEADINGS);
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(u32::MAX).min(PAGE);
        let found = match client.journals(ledger, (from, limit), wanted, None).await {
            Err(error) if error.reason() == Some(Reason::PurgedJournal) => {
                let purged = purge::purged(client, ledger).await?;
                if purged <= from || left <= purged - from {
                    return Err(error.into());
                }
                tell_line(&format!(
                    "note: journals {from} to {} were purged; those of them that are kept can be read by number",
                    purged - 1
                ));
                (from, left) = (purged, left - (purged - from));
                continue;
            }
            found => found?,
        };
        let count = found.journals.len() as u64;
        rows(&mut table, &found, &names, output)?;
        if count == 0 {
            return Err(Error::Malformed("fewer journals than the ledger has").into());
        }
        (from, left) = (from.saturating_add(count), left.saturating_sub(count));
    }
    table.end()
}

async fn lineage(client: &Client, args: &LedgerLineage, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.proof.as_deref());
    let proof = args.proof.as_deref().map(Prepared::new).transpose()?;
    let clue = clue_of(&args.clue)?;
    let ledger = id_of(client, &args.ledger).await?;
    let wanted = Wanted { payload: args.payloads, request: proof.is_some(), proof: proof.is_some() };
    let found = client.lineage(ledger, &clue, args.newest, wanted).await?;
    if let Some(file) = proof {
        file.write(&found.proof)?;
    }
    let names = names(client, ledger, output).await?;
    let mut table = Table::new(output, JOURNAL_HEADINGS);
    rows(&mut table, &found, &names, output)?;
    table.end()?;
    if found.gone > 0 {
        tell_line(&format!("note: the {} oldest with this clue were purged, but for those that are kept", found.gone));
    }
    Ok(())
}
