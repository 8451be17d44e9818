//! Purges: records by which they are judged, and orders that are prepared for those who sign.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{LedgerId, MemberId, Reason};
use coppice_verify::{
    check::{Question, Subject},
    hash::member_id,
    ledgers::{
        Absent, AuthorOf, Founding, Head, Member, Purge, PurgeOrder, author_key, founding_key, head_key, leaf_key,
        member_key, purge_key,
    },
};

use super::{ledger_name, proven_value};
use crate::{Client, Error, trust::decoded};

/// Authors that are read at a time.
const AUTHORS_PAGE: u64 = 256;

/// A member that has journals below a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affected {
    /// Id of the member.
    pub id: MemberId,
    /// Its record.
    pub member: Member,
    /// Number of the journal that ended its last key; `None` if it has a key, and signs.
    pub revocation: Option<u64>,
}

/// An order to purge, with those who must sign it beside an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeDraft {
    /// The order.
    pub order: PurgeOrder,
    /// The members whose journals it purges.
    pub affected: Vec<Affected>,
    /// The rules of the ledger.
    pub founding: Founding,
}

impl Client {
    /// Reads records of a ledger at head by their reserved keys. They are proven if a key is
    /// trusted.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn ledger_records(
        &self,
        ledger: LedgerId,
        keys: &[Vec<u8>],
    ) -> Result<BTreeMap<Vec<u8>, Option<Bytes>>, Error> {
        let read = v1::ReadOptions { want_proof: self.trust.is_some(), ..v1::ReadOptions::default() };
        let asked = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let request = v1::GetLedgerRecordsRequest { ledger: Some(ledger_name(ledger)), keys: asked, read: Some(read) };
        let asking = self.asking();
        let answer = self.call_get_ledger_records(request).await?;
        let told: BTreeMap<Vec<u8>, Option<Bytes>> =
            answer.records.into_iter().map(|record| (record.key.to_vec(), record.value)).collect();
        if keys.iter().any(|key| !told.contains_key(key)) {
            return Err(Error::Malformed("other records than were asked for"));
        }
        if let Some(asking) = asking {
            let file = decoded(&answer.proof)?;
            let question = Question::about(Subject::Keys(keys.iter().map(Vec::as_slice).collect()));
            let claim = self.trust_claim(&asking, &file, &question, true).await?;
            for key in keys {
                if proven_value(&claim, key)? != told[key].as_deref() {
                    return Err(Error::Untrusted("the answer and its proof disagree"));
                }
            }
        }
        Ok(told)
    }

    async fn ledger_record<T>(
        &self,
        ledger: LedgerId,
        key: Vec<u8>,
        decode: impl Fn(&[u8]) -> Result<T, coppice_types::codec::Error>,
    ) -> Result<Option<T>, Error> {
        let record = self.ledger_records(ledger, &[key]).await?.into_values().next().flatten();
        record.map(|record| decode(&record)).transpose().map_err(|_| Error::Malformed("record of a ledger"))
    }

    /// The newest purge of a ledger; `None` if there was none.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn newest_purge(&self, ledger: LedgerId) -> Result<Option<Purge>, Error> {
        self.ledger_record(ledger, purge_key(ledger), Purge::decode).await
    }

    /// The answer to a call for journals. If a key is trusted, a refusal because of a purge is
    /// believed only if [`Client::check_purged`] holds for the first journal.
    pub(super) async fn journals_answered(
        &self,
        ledger: LedgerId,
        request: v1::GetJournalsRequest,
    ) -> Result<v1::GetJournalsResponse, Error> {
        let from = request.from_jsn;
        match self.get_journals(request).await {
            Err(error) if error.reason() == Some(Reason::PurgedJournal) && self.trust.is_some() => {
                self.check_purged(ledger, from).await?;
                Err(error)
            }
            answer => answer,
        }
    }

    /// Checks that a purge has taken a journal which is not given: the head is purged above it, and
    /// its leaf is gone. A leaf stays where the purge must keep the journal.
    pub(crate) async fn check_purged(&self, ledger: LedgerId, jsn: u64) -> Result<(), Error> {
        let keys = [head_key(ledger), leaf_key(ledger, jsn)];
        let records = self.ledger_records(ledger, &keys).await.map_err(|error| match error.reason() {
            // A leaf that is gone from head is never refused there.
            Some(Reason::PurgedJournal) => Error::Untrusted("a journal is withheld: its leaf is refused as well"),
            _ => error,
        })?;
        let head = records[&keys[0]].as_ref().map(|record| Head::decode(record)).transpose();
        let head = head.map_err(|_| Error::Malformed("record of a ledger"))?;
        if head.is_none_or(|head| jsn >= head.purged) {
            return Err(Error::Untrusted("a journal is withheld: no purge has taken it"));
        }
        if records[&keys[1]].is_some() {
            return Err(Error::Untrusted("a journal is withheld: the purge below which it lies keeps it"));
        }
        Ok(())
    }

    /// Prepares an order to purge the journals below a number, or all journals. It names those who
    /// must sign it, and whose keys have ended.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn prepare_purge(
        &self,
        ledger: LedgerId,
        before: Option<u64>,
        closes: bool,
    ) -> Result<PurgeDraft, Error> {
        let founding = self.ledger_record(ledger, founding_key(ledger), Founding::decode).await?;
        let head = self.ledger_record(ledger, head_key(ledger), Head::decode).await?;
        let (Some(founding), Some(Head { edge, authors, .. })) = (founding, head) else {
            return Err(Error::Malformed("head of a ledger"));
        };
        let before = before.unwrap_or(edge.size());
        let mut affected = Vec::new();
        let mut from = 1;
        'pages: while from <= authors {
            let to = authors.min(from + AUTHORS_PAGE - 1);
            for id in self.authors(ledger, (from, to), before).await? {
                match id {
                    Some(id) => affected.push(self.affected(ledger, id).await?),
                    None => break 'pages,
                }
            }
            from = to + 1;
        }
        let count = u32::try_from(affected.len()).map_err(|_| Error::Malformed("number of authors"))?;
        let absent = |it: &Affected| it.revocation.map(|revocation| Absent { member: it.id, revocation });
        let mut absent: Vec<Absent> = affected.iter().filter_map(absent).collect();
        absent.sort_by_key(|absent| absent.member);
        let (size, root) = (edge.size(), edge.root());
        let order = PurgeOrder { before, closes, size, root, authors: count, absent };
        Ok(PurgeDraft { order, affected, founding })
    }

    /// Authors by their numbers; `None` for one whose first journal is `before` or above.
    async fn authors(
        &self,
        ledger: LedgerId,
        (from, to): (u64, u64),
        before: u64,
    ) -> Result<Vec<Option<MemberId>>, Error> {
        let keys: Vec<Vec<u8>> = (from..=to).map(|number| author_key(ledger, number)).collect();
        let records = self.ledger_records(ledger, &keys).await?;
        let author = |key: &Vec<u8>| {
            let record = records.get(key).cloned().flatten().ok_or(Error::Malformed("authors of a ledger"))?;
            let author = AuthorOf::decode(&record).map_err(|_| Error::Malformed("record of a ledger"))?;
            Ok(Some(author.member).filter(|_| author.first_jsn < before))
        };
        keys.iter().map(author).collect()
    }

    async fn affected(&self, ledger: LedgerId, id: MemberId) -> Result<Affected, Error> {
        let member = self.ledger_record(ledger, member_key(ledger, id), Member::decode).await?;
        let member = member.filter(|member| member_id(&member.name) == id).ok_or(Error::Malformed("member"))?;
        let ended = member.keys.last().and_then(|span| span.until);
        Ok(Affected { id, revocation: ended.map(|until| until.saturating_sub(1)), member })
    }
}
