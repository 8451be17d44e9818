//! What a cosigner says about itself.

use serde::Serialize;

use super::Witness;
use crate::{error::Error, record::Record};

/// The state of a cosigner, for people and monitors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Origin of the ledger.
    pub origin: String,
    /// Public key of this cosigner.
    pub vkey: String,
    /// Entries of the mirrored log.
    pub log_entries: u64,
    /// Entries of the log that was cosigned last.
    pub cosigned_entries: u64,
    /// Time of that cosignature, in seconds since 1970.
    pub cosigned_at: Option<u64>,
    /// The key that signs the ledger's checkpoints now.
    pub ledger_key: String,
    /// The ledger's next key, if it waits to be accepted.
    pub waits_for_key: Option<String>,
    /// Name of the evidence file that halts this cosigner.
    pub halted: Option<String>,
    /// Names of all evidence files.
    pub evidence: Vec<String>,
    /// Whether others have said since the start what they saw of this cosigner; `None` if it does
    /// not run.
    pub floor: Option<bool>,
    /// Signed checkpoints that are larger than the log.
    pub pending: usize,
}

impl Witness {
    /// The state now.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn status(&self) -> Result<Status, Error> {
        let Record { cosigned, accepted, halted, .. } = &self.record;
        let waits = self.keys.changes().nth(*accepted as usize).map(|(_, key)| key.to_string());
        Ok(Status {
            origin: self.ledger.name().to_owned(),
            vkey: self.signer.verifier().to_string(),
            log_entries: self.size(),
            cosigned_entries: self.cosigned_size(),
            cosigned_at: cosigned.as_ref().map(|cosigned| cosigned.time),
            ledger_key: self.keys.newest().to_string(),
            waits_for_key: waits,
            halted: halted.clone(),
            evidence: self.evidence()?,
            floor: self.lock.is_some().then_some(self.floor),
            pending: self.pending.len(),
        })
    }

    /// Whether this cosigner has halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.record.halted.is_some()
    }

    /// Whether others have said since the start what they saw of this cosigner.
    #[must_use]
    pub fn has_floor(&self) -> bool {
        self.floor
    }
}
