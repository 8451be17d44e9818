//! Ledgers of members, for which the HTTP API has no resources: lists and descriptions as JSON,
//! journals and lineages as proof files.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, Uri, header},
    response::Response,
};
use coppice_http::{PROOF, code_of};
use coppice_proto::{
    status,
    v1::{self, ledger_name::Which, ledger_server::Ledger},
};
use coppice_types::Reason;
use coppice_verify::ledgers::{Founding, Member, Roles};
use serde_json::{Value, json};
use tokio_stream::StreamExt;
use tonic::{Request, Status};

use crate::assets::protect;

/// The beginning of the paths.
const PREFIX: &str = "/ledgers";
/// Most ledgers or members in a list.
const LIST_MAX: u32 = 1000;
/// Most journals in a proof file.
const JOURNALS_MAX: u32 = 100;

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    List,
    Show([u8; 16]),
    Members([u8; 16]),
    /// Journals from a number on.
    Journals([u8; 16], u64),
    /// The newest journals with a clue.
    Lineage([u8; 16], Vec<u8>),
}

impl Asked {
    /// `None` if there is nothing at the address.
    pub fn at(uri: &Uri) -> Option<Self> {
        let path = uri.path().strip_prefix(PREFIX)?;
        if path.is_empty() {
            return uri.query().is_none().then_some(Self::List);
        }
        let mut parts = path.strip_prefix('/')?.splitn(2, '/');
        let id = bytes(parts.next()?)?.try_into().ok()?;
        let parameter = |name: &str| uri.query()?.strip_prefix(name)?.strip_prefix('=');
        match parts.next() {
            None if uri.query().is_none() => Some(Self::Show(id)),
            Some("members") if uri.query().is_none() => Some(Self::Members(id)),
            Some("journals") => Some(Self::Journals(id, parameter("from")?.parse().ok()?)),
            Some("lineage") => Some(Self::Lineage(id, bytes(parameter("clue")?)?)),
            _ => None,
        }
    }

    /// Asks the ledger.
    pub async fn answer<L: Ledger>(self, ledger: &L) -> Response {
        self.ask(ledger).await.unwrap_or_else(|refused| refusal(&refused))
    }

    async fn ask<L: Ledger>(self, ledger: &L) -> Result<Response, Status> {
        Ok(match self {
            Self::List => json_of(&list(ledger).await?),
            Self::Show(id) => json_of(&show(ledger, id).await?),
            Self::Members(id) => json_of(&members(ledger, id).await?),
            Self::Journals(id, from_jsn) => {
                let request = v1::GetJournalsRequest {
                    ledger: name(id),
                    from_jsn,
                    limit: JOURNALS_MAX,
                    want_payload: true,
                    want_request: true,
                    read: with_proof(),
                    ..v1::GetJournalsRequest::default()
                };
                whole(PROOF, ledger.get_journals(Request::new(request)).await?.into_inner().proof.into())
            }
            Self::Lineage(id, clue) => {
                let request = v1::GetLineageRequest {
                    ledger: name(id),
                    clue: clue.into(),
                    newest: JOURNALS_MAX,
                    want_payload: true,
                    want_request: true,
                    read: with_proof(),
                };
                whole(PROOF, ledger.get_lineage(Request::new(request)).await?.into_inner().proof.into())
            }
        })
    }
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex { text.as_bytes().chunks(2).map(digits).collect() } else { None }
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(id: [u8; 16]) -> Option<v1::LedgerName> {
    Some(v1::LedgerName { which: Some(Which::Id(id.to_vec().into())) })
}

fn with_proof() -> Option<v1::ReadOptions> {
    Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() })
}

async fn list<L: Ledger>(ledger: &L) -> Result<Value, Status> {
    let request = v1::ListLedgersRequest { limit: LIST_MAX, ..v1::ListLedgersRequest::default() };
    let mut listed = std::pin::pin!(ledger.list_ledgers(Request::new(request)).await?.into_inner());
    let mut ledgers = Vec::new();
    while let Some(one) = listed.next().await {
        let one = one?;
        ledgers.push(json!({ "name": one.name, "id": text_of(&one.id) }));
    }
    Ok(json!({ "is_cut": ledgers.len() == LIST_MAX as usize, "ledgers": ledgers }))
}

async fn show<L: Ledger>(ledger: &L, id: [u8; 16]) -> Result<Value, Status> {
    let request = v1::DescribeLedgerRequest { ledger: name(id), read: None };
    let told = ledger.describe_ledger(Request::new(request)).await?.into_inner();
    let founding = Founding::decode(&told.founding).map_err(|_| malformed("the founding of a ledger"))?;
    Ok(json!({
        "name": founding.name,
        "id": text_of(&told.id),
        "size": told.size,
        "root": text_of(&told.root),
        "purged": told.purged,
        "is_closed": told.closed,
        "is_spread": founding.spread,
        "anchor_every_s": founding.policy.anchor_every_s,
    }))
}

async fn members<L: Ledger>(ledger: &L, id: [u8; 16]) -> Result<Value, Status> {
    let request = v1::ListMembersRequest { ledger: name(id), limit: LIST_MAX, read: None };
    let mut listed = std::pin::pin!(ledger.list_members(Request::new(request)).await?.into_inner());
    let mut members = Vec::new();
    while let Some(one) = listed.next().await {
        let one = one?;
        let member = Member::decode(&one.record).map_err(|_| malformed("the record of a member"))?;
        members.push(json!({
            "name": member.name,
            "id": text_of(&one.id),
            "roles": roles(member.roles),
            "is_agent": member.agency.is_some(),
            "public_key": member.key_at(u64::MAX).map(|key| text_of(key.as_ref())),
            "journals": member.journals.map_or(0, |(_, _, count)| count),
            "disputed_from": member.disputed_from,
        }));
    }
    Ok(json!({ "is_cut": members.len() == LIST_MAX as usize, "members": members }))
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

fn malformed(what: &str) -> Status {
    status::refuse(Reason::Corrupted, format!("{what} can't be read"))
}

fn whole(kind: &'static str, bytes: Body) -> Response {
    let mut answer = Response::new(bytes);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    protect(answer)
}

fn json_of(value: &Value) -> Response {
    whole("application/json", value.to_string().into())
}

/// The problem document of a refusal, as the HTTP API gives it.
fn refusal(refused: &Status) -> Response {
    let code = StatusCode::from_u16(code_of(refused).as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let reason = status::reason(refused).map_or("UNAVAILABLE", Reason::name);
    let document = json!({ "status": code.as_u16(), "reason": reason, "detail": refused.message() });
    let mut answer = whole("application/problem+json", document.to_string().into());
    *answer.status_mut() = code;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_one_thing_or_nothing() {
        let at = |text: &str| Asked::at(&text.parse().expect("an address"));
        let id = "000102030405060708090a0b0c0d0e0f";
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(at("/ledgers"), Some(Asked::List));
        assert_eq!(at(&format!("/ledgers/{id}")), Some(Asked::Show(bytes)));
        assert_eq!(at(&format!("/ledgers/{id}/members")), Some(Asked::Members(bytes)));
        assert_eq!(at(&format!("/ledgers/{id}/journals?from=7")), Some(Asked::Journals(bytes, 7)));
        assert_eq!(at(&format!("/ledgers/{id}/lineage?clue=6c6f74")), Some(Asked::Lineage(bytes, b"lot".to_vec())));
        for other in [
            "/ledgers/".to_owned(),
            "/ledgersx".to_owned(),
            "/ledgers?x".to_owned(),
            format!("/ledgers/{id}0"),
            format!("/ledgers/{id}00"),
            format!("/ledgers/+{}", &id[1..]),
            format!("/ledgers/{id}/"),
            format!("/ledgers/{id}/members/"),
            format!("/ledgers/{id}/journals"),
            format!("/ledgers/{id}/journals?from=-1"),
            format!("/ledgers/{id}/journals?from=1&from=2"),
            format!("/ledgers/{id}/lineage?clue=xyz"),
            format!("/ledgers/{id}/orders"),
        ] {
            assert_eq!(at(&other), None, "{other}");
        }
    }
}
