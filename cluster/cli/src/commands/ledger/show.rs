//! What a ledger is: `ledger show`.

use coppice_client::{Client, Error};
use coppice_proto::v1;
use coppice_types::MemberId;
use coppice_verify::ledgers::{Founding, Member, Roles};
use serde_json::{Value, json};

use super::name_of;
use crate::{
    args::LedgerShow,
    failure::Failure,
    files::Prepared,
    output::Output,
    text::{count, safe},
};

pub async fn show(client: &Client, args: &LedgerShow, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.proof.as_deref());
    let proof = args.proof.as_deref().map(Prepared::new).transpose()?;
    let name = name_of(&args.ledger)?;
    let read = v1::ReadOptions { want_proof: proof.is_some(), ..v1::ReadOptions::default() };
    let request = v1::DescribeLedgerRequest { ledger: Some(name.clone()), read: Some(read) };
    let told = client.describe_ledger(request).await?;
    if let Some(file) = proof {
        file.write(&told.proof)?;
    }
    let founding = Founding::decode(&told.founding).map_err(|_| Error::Malformed("founding of a ledger"))?;
    let id = v1::LedgerName { which: Some(v1::ledger_name::Which::Id(told.id.clone())) };
    let members = members(client, id).await?;
    let stamp = told.read_at.ok_or(Error::Malformed("no version"))?;
    let object = json!({
        "ledger": founding.name,
        "id": hex::encode(&told.id),
        "size": told.size,
        "root": hex::encode(&told.root),
        "purged": told.purged,
        "spread": founding.spread,
        "notice_s": founding.policy.notice_s,
        "anchor_every_s": founding.policy.anchor_every_s,
        "epoch": stamp.epoch,
        "version": stamp.version,
        "members": members.iter().map(|(id, member)| one(*id, member, told.size)).collect::<Vec<_>>(),
    });
    output.result(&object, || {
        let lines: Vec<String> = members.iter().map(|(_, member)| line(member, told.size)).collect();
        format!(
            "ledger {}, id 0x{}\n  {}, root {}\n  members:\n{}",
            safe(&founding.name),
            hex::encode(&told.id),
            count(told.size, "journal"),
            hex::encode(&told.root),
            lines.join("\n")
        )
    })
}

async fn members(client: &Client, ledger: v1::LedgerName) -> Result<Vec<(MemberId, Member)>, Failure> {
    let mut stream = client.list_members(v1::ListMembersRequest { ledger: Some(ledger), limit: 0, read: None }).await?;
    let mut members = Vec::new();
    while let Some(found) = stream.next().await? {
        let id = MemberId::from_slice(&found.id).ok_or(Error::Malformed("id of a member"))?;
        let member = Member::decode(&found.record).map_err(|_| Error::Malformed("record of a member"))?;
        members.push((id, member));
    }
    members.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    Ok(members)
}

fn roles(roles: Roles) -> Vec<&'static str> {
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
        "roles": roles(member.roles),
        "agent_of": member.agency.as_ref().map(|agency| agency.principal.to_string()),
        "public_key": member.key_at(size).map(hex::encode),
        "journals": member.journals.map_or(0, |(_, _, count)| count),
        "lanes": lanes.collect::<Vec<_>>(),
        "disputed_from": member.disputed_from,
    })
}

fn line(member: &Member, size: u64) -> String {
    let what = if member.agency.is_some() { "agent".to_owned() } else { roles(member.roles).join(", ") };
    let key = member.key_at(size).map_or_else(|| "no key".to_owned(), |key| format!("key {}", hex::encode(key)));
    let journals = count(member.journals.map_or(0, |(_, _, count)| count), "journal");
    let disputed = member.disputed_from.map_or_else(String::new, |from| format!(", disputed from journal {from} on"));
    format!("    {}: {what}; {journals}; {key}{disputed}", safe(&member.name))
}
