//! What a ledger is, and its members: `ledger show`, `ledger members`.

use coppice_client::{Client, Error, ledgers::ledger_name};
use coppice_proto::v1;
use coppice_types::MemberId;
use coppice_verify::ledgers::{Founding, Member, Roles};
use serde_json::{Value, json};

use super::names::{found, name_of};
use crate::{
    args::LedgerShow,
    failure::Failure,
    files::Prepared,
    output::{Output, Table},
    text::{count, safe},
};

pub async fn show(client: &Client, args: &LedgerShow, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.proof.as_deref());
    let proof = args.proof.as_deref().map(Prepared::new).transpose()?;
    let read = v1::ReadOptions { want_proof: proof.is_some(), ..v1::ReadOptions::default() };
    let request = v1::DescribeLedgerRequest { ledger: Some(name_of(&args.ledger)?), read: Some(read) };
    let told = client.describe_ledger(request).await?;
    if let Some(file) = proof {
        file.write(&told.proof)?;
    }
    let founding = Founding::decode(&told.founding).map_err(|_| Error::Malformed("founding of a ledger"))?;
    let stamp = told.read_at.ok_or(Error::Malformed("no version"))?;
    let object = json!({
        "ledger": founding.name,
        "id": hex::encode(&told.id),
        "size": told.size,
        "root": hex::encode(&told.root),
        "purged": told.purged,
        "closed": told.closed,
        "spread": founding.spread,
        "notice_s": founding.policy.notice_s,
        "retain_max": founding.policy.retain_max,
        "absent_days": founding.policy.absent_days,
        "anchor_every_s": founding.policy.anchor_every_s,
        "epoch": stamp.epoch,
        "version": stamp.version,
    });
    output.result(&object, || {
        let rules = match founding.policy.anchor_every_s {
            0 => "no time stamps are promised".to_owned(),
            every => format!("a time stamp at least every {every} s is promised"),
        };
        format!(
            "ledger {}, id 0x{}{}\n  {}{}, root {}\n  {}; a purge begins {} s after its order; {rules}",
            safe(&founding.name),
            hex::encode(&told.id),
            if told.closed { ", closed" } else { "" },
            count(told.size, "journal"),
            if told.purged > 0 { format!(", those below {} purged", told.purged) } else { String::new() },
            hex::encode(&told.root),
            if founding.spread { "spread over the shards" } else { "in one shard" },
            founding.policy.notice_s,
        )
    })
}

/// Lists the members and agents of a ledger.
pub async fn members(client: &Client, ledger: &str, output: Output) -> Result<(), Failure> {
    let (id, size) = found(client, ledger).await?;
    let request = v1::ListMembersRequest { ledger: Some(ledger_name(id)), limit: 0, read: None };
    let mut stream = client.list_members(request).await?;
    let mut table = Table::new(output, &["MEMBER", "ROLES", "JOURNALS", "KEY", "DISPUTED FROM"]);
    while let Some(listed) = stream.next().await? {
        let id = MemberId::from_slice(&listed.id).ok_or(Error::Malformed("id of a member"))?;
        let member = Member::decode(&listed.record).map_err(|_| Error::Malformed("record of a member"))?;
        table.row(&one(id, &member, size), || Ok(cells(&member, size)))?;
    }
    table.end()
}

/// The names of some roles.
pub fn role_names(roles: Roles) -> Vec<&'static str> {
    let names = [
        (Roles::OWNER, "owner"),
        (Roles::REGULATOR, "regulator"),
        (Roles::WRITER, "writer"),
        (Roles::READER, "reader"),
        (Roles::VERIFIER, "verifier"),
    ];
    names.into_iter().filter(|(role, _)| roles.has(*role)).map(|(_, name)| name).collect()
}

fn one(id: MemberId, member: &Member, size: u64) -> Value {
    let lanes = member.lanes.iter().map(|end| json!({ "lane": end.lane, "number": end.number }));
    json!({
        "name": member.name,
        "id": id.to_string(),
        "roles": role_names(member.roles),
        "agent_of": member.agency.as_ref().map(|agency| agency.principal.to_string()),
        "public_key": member.key_at(size).map(hex::encode),
        "journals": member.journals.map_or(0, |(_, _, count)| count),
        "lanes": lanes.collect::<Vec<_>>(),
        "disputed_from": member.disputed_from,
    })
}

fn cells(member: &Member, size: u64) -> [String; 5] {
    let roles = if member.agency.is_some() { "agent".to_owned() } else { role_names(member.roles).join(",") };
    let journals = member.journals.map_or(0, |(_, _, count)| count).to_string();
    let key = member.key_at(size).map_or_else(|| "-".to_owned(), hex::encode);
    let disputed = member.disputed_from.map_or_else(|| "-".to_owned(), |from| from.to_string());
    [safe(&member.name), roles, journals, key, disputed]
}
