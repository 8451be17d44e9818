//! The coordinator's own verdict on a journal, for callers that trust it.

use bytes::Bytes;
use coppice_proto::v1;
use coppice_verify::{
    check::{Question, Subject, verify_known},
    keys::Keys,
    ledgers::{Envelope, Leaf},
    note::VerifierKey,
    proof::ProofFile,
};
use tonic::Status;

use super::{Sight, decoded};
use crate::{groups::wire, read::reads::Reads};

impl Reads {
    /// Verifies a journal as a client does, by the proof that a client would get, and compares its
    /// payload with the given one.
    ///
    /// # Errors
    /// Those of [`Reads::journals`]. A journal that does not hold is no error.
    pub async fn verify_journal(
        &self,
        request: v1::VerifyJournalRequest,
        sight: &Sight,
    ) -> Result<v1::VerifyJournalResponse, Status> {
        let v1::VerifyJournalRequest { ledger, jsn, payload, read } = request;
        let asked = v1::GetJournalsRequest {
            ledger,
            from_jsn: jsn,
            limit: 1,
            want_payload: payload.is_some(),
            want_request: true,
            known_size: 0,
            anchor_size: 0,
            read: Some(v1::ReadOptions { want_proof: true, ..read.unwrap_or_default() }),
        };
        let told = self.journals(&asked, sight).await?;
        let journal = told.journals.into_iter().next().ok_or_else(|| wire::broken("ledger: a journal is missing"))?;
        let leaf = decoded(Leaf::decode(&journal.leaf))?;
        let file = ProofFile::decode(&told.proof).map_err(|_| wire::broken("proof"))?;
        let subject = Subject::Journals { ledger: leaf.ledger, numbers: vec![jsn], known: None };
        let verified = verify_known(&file, &self.first_key()?, None, &Question::about(subject));
        let failed = match (verified, payload) {
            (Err(failure), _) => failure.step.name(),
            (Ok(_), Some(_)) if journal.occulted_by.is_some() => "occulted",
            (Ok(_), Some(payload)) if !has_payload(&journal.envelope, &payload)? => "payload",
            (Ok(_), _) => "",
        };
        Ok(v1::VerifyJournalResponse {
            valid: failed.is_empty(),
            failed: failed.to_owned(),
            leaf: journal.leaf,
            read_at: told.read_at,
            checkpoint: Bytes::copy_from_slice(&file.proof.log().checkpoint),
        })
    }

    /// The key of genesis. A proof shows the changes since.
    fn first_key(&self) -> Result<Keys, Status> {
        let broken = || wire::broken("genesis header");
        let view = self.log.last_view().ok_or_else(broken)?;
        let key = VerifierKey::new(self.log.keys.origin(), &view.genesis.public_key).map_err(|_| broken())?;
        Ok(Keys::new(key))
    }
}

fn has_payload(envelope: &[u8], payload: &[u8]) -> Result<bool, Status> {
    Ok(decoded(Envelope::decode(envelope))?.payload == payload)
}
