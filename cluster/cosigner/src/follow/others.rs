//! Asks other members: what they saw of this cosigner, what they have, and what they can prove.

use std::sync::Arc;

use coppice_verify::{evidence::EVIDENCE_BYTES_MAX, note::NOTE_BYTES_MAX};

use super::{Peer, Shared, Which, printable};
use crate::{config::key_hash, error::Error, witness::EVIDENCE_ENDING};

/// Most bytes of a list of evidence files.
const LIST_BYTES_MAX: usize = 16 << 10;
/// Most files that are taken from one peer in one round.
const FILES_MAX: usize = 16;

impl Shared {
    /// Asks peers which lines of this cosigner they saw, until enough have answered.
    pub(super) async fn ask_for_floor(self: &Arc<Self>) {
        for which in self.machines() {
            self.ask_for_floor_of(which).await;
        }
    }

    async fn ask_for_floor_of(self: &Arc<Self>, which: Which) {
        let Ok((false, key)) = self.machine(which).map(|it| (it.has_floor(), it.key().public_key())) else { return };
        let path = format!("{}/cosigned/{}", self.hash, key_hash(&key));
        let mut answered = 0;
        for peer in &self.peers {
            match self.ask_peer(peer, &path).await {
                Ok(true) => answered += 1,
                // A line that was given must be adopted before anything else is signed.
                Ok(false) => return,
                Err(error) => tracing::warn!(%error, peer = printable(&peer.url), "a peer did not say what it saw"),
            }
        }
        match self.with_one(which, move |machine| machine.asked(answered)).await {
            Ok(true) => tracing::info!("others have said what they saw of this cosigner: it may sign"),
            Ok(false) => tracing::warn!(answered, "too few peers have said what they saw of this cosigner"),
            Err(error) => tracing::error!(%error, "the state could not be written"),
        }
    }

    /// Asks one peer. Returns false if it has a later line that could not be adopted.
    async fn ask_peer(self: &Arc<Self>, peer: &Peer, path: &str) -> Result<bool, Error> {
        match self.web.get(&peer.url, path, NOTE_BYTES_MAX).await? {
            None => Err(Error::Unavailable("it does not know this cosigner".to_owned())),
            Some(note) if note.is_empty() => Ok(true),
            Some(note) => self.offer(note).await,
        }
    }

    /// Looks at what peers have cosigned and can prove.
    pub(super) async fn gossip(self: &Arc<Self>) {
        for peer in &self.peers {
            if let Err(error) = self.look_at(peer).await {
                tracing::warn!(%error, peer = printable(&peer.url), "a peer was not followed");
            }
        }
    }

    async fn look_at(self: &Arc<Self>, peer: &Peer) -> Result<(), Error> {
        self.look(&peer.url, &format!("{}/checkpoint", self.hash)).await?;
        if peer.audits {
            self.look(&peer.url, &format!("{}/audited", self.hash)).await?;
        }
        self.take_evidence_of(peer).await
    }

    async fn take_evidence_of(self: &Arc<Self>, peer: &Peer) -> Result<(), Error> {
        let Some(list) = self.web.get(&peer.url, "evidence/", LIST_BYTES_MAX).await? else { return Ok(()) };
        let known = self.with(|witness| witness.evidence()).await?;
        let list = String::from_utf8_lossy(&list).into_owned();
        let names = list.lines().filter(|name| is_name(name) && !known.iter().any(|known| known == name));
        for name in names.take(FILES_MAX) {
            let Some(file) = self.web.get(&peer.url, &format!("evidence/{name}"), EVIDENCE_BYTES_MAX).await? else {
                continue;
            };
            if let Err(Error::Refused(why)) = self.with(move |witness| witness.take_evidence(&file)).await {
                tracing::warn!(why, peer = printable(&peer.url), "a peer's evidence proves nothing");
            }
        }
        Ok(())
    }
}

/// Whether a name is one of an evidence file: 64 hex digits and the ending.
fn is_name(name: &str) -> bool {
    let digits = name.strip_suffix(EVIDENCE_ENDING).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
