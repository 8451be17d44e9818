//! Changes of members: `ledger member`.

use coppice_client::Client;
use coppice_types::{LedgerId, MemberId};
use coppice_verify::{
    hash::member_id,
    ledgers::{Grant, MemberChange, Roles},
};

use super::{Names, appended, author, describe, member_key, names::id_of, nonce, show::role_names};
use crate::{
    args::{LedgerMember, MemberRole, Signer},
    bytes,
    dev::home::secret_key,
    failure::Failure,
    output::Output,
    text::safe,
};

pub async fn change(client: &Client, change: &LedgerMember, output: Output) -> Result<(), Failure> {
    let (ledger, signer) = match change {
        LedgerMember::Add { ledger, signer, .. }
        | LedgerMember::Roles { ledger, signer, .. }
        | LedgerMember::Key { ledger, signer, .. }
        | LedgerMember::Revoke { ledger, signer, .. }
        | LedgerMember::Dispute { ledger, signer, .. }
        | LedgerMember::Agent { ledger, signer, .. } => (ledger, signer),
    };
    let id = id_of(client, ledger).await?;
    let change = match change {
        LedgerMember::Add { new, roles, .. } => {
            let (name, key) = member_key(new)?;
            MemberChange::Grant(Grant { name, roles: roles_of(roles), key, certificate: Vec::new() })
        }
        LedgerMember::Roles { name, roles, .. } => MemberChange::Roles(member_id(name), roles_of(roles)),
        LedgerMember::Key { name, new_key, .. } => {
            let cluster = client.cluster().await?;
            MemberChange::to_key(cluster, id, member_id(name), &secret_key(new_key)?)
        }
        LedgerMember::Revoke { name, .. } => MemberChange::Revoke(member_id(name)),
        LedgerMember::Dispute { name, from, .. } => MemberChange::Dispute(member_id(name), *from),
        LedgerMember::Agent { new, prefix, until, .. } => {
            let (name, key) = member_key(new)?;
            MemberChange::Agent { name, key, prefix: bytes::parse(prefix)?, until: *until }
        }
    };
    send(client, id, signer, change, output).await
}

async fn send(
    client: &Client,
    ledger: LedgerId,
    signer: &Signer,
    change: MemberChange,
    output: Output,
) -> Result<(), Failure> {
    let mut author = author(client, ledger, signer).await?;
    let number = author.number();
    let done = author.change_members(&[change], nonce(), false).await.map_err(Failure::of_write)?;
    output.result(&appended(&done, 1, number), || describe(&done, 1))
}

/// The changes of a journal in words.
pub fn describe_changes(payload: &[u8], names: &Names) -> String {
    let Ok(changes) = MemberChange::decode_all(payload) else { return "?".to_owned() };
    let name = |id: &MemberId| names.get(id).map_or_else(|| id.to_string(), |name| safe(name));
    let one = |change: &MemberChange| match change {
        MemberChange::Grant(grant) => format!("{} joins as {}", safe(&grant.name), role_names(grant.roles).join(", ")),
        MemberChange::Roles(id, roles) => format!("{} is {}", name(id), role_names(*roles).join(", ")),
        MemberChange::Key { member, .. } => format!("{} has a new key", name(member)),
        MemberChange::Revoke(id) => format!("{} has no key any more", name(id)),
        MemberChange::Dispute(id, from) => format!("journals of {} from {from} on are disputed", name(id)),
        MemberChange::Agent { name, .. } => format!("{} appends for the signer", safe(name)),
    };
    changes.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn roles_of(roles: &[MemberRole]) -> Roles {
    let role = |role: &MemberRole| match role {
        MemberRole::Owner => Roles::OWNER,
        MemberRole::Regulator => Roles::REGULATOR,
        MemberRole::Writer => Roles::WRITER,
        MemberRole::Reader => Roles::READER,
        MemberRole::Verifier => Roles::VERIFIER,
    };
    roles.iter().map(role).fold(Roles(0), Roles::and)
}
