//! Lets the mirror grow up to a signed note.

use std::{sync::Arc, time::Duration};

use coppice_types::Sequence;
use coppice_verify::{
    checkpoint::Checkpoint,
    keys::Keys,
    tile::{Content, TileName, WIDTH},
};
use tokio::sync::OwnedMutexGuard;

use super::{Shared, printable};
use crate::{
    convict::signers,
    error::Error,
    mirror::{BUNDLE_BYTES_MAX, Extension, Mirror, entries, key_change},
    prove::{self, Given},
    tiles::TileLog,
    witness::follow,
};

const TILE: u64 = WIDTH as u64;
/// Longest time for one growth from one server.
const GROWTH_MAX: Duration = Duration::from_secs(600);
/// Longest search for the key of a checkpoint that no known key signed.
const SEARCH_MAX: Duration = Duration::from_secs(60);

impl Shared {
    /// Lets the mirror grow up to a note, by the first of these servers that has its log. A server
    /// whose log contradicts the mirror makes evidence.
    ///
    /// # Errors
    /// If none has it.
    pub(super) async fn grow(
        self: &Arc<Self>,
        note: &[u8],
        from: &[String],
        _place: OwnedMutexGuard<()>,
    ) -> Result<(), Error> {
        let mut last = Error::Refused("no server to ask".to_owned());
        for url in from {
            match self.grow_from(note, url).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn grow_from(self: &Arc<Self>, note: &[u8], url: &str) -> Result<(), Error> {
        let target = Checkpoint::claimed(note).map_err(|error| Error::Refused(error.to_string()))?;
        let (size, keys, mirror) = self.with(|it| Ok((it.size(), it.keys(), it.mirror()))).await?;
        if target.origin != keys.first().name() {
            return Err(Error::Refused("a checkpoint of another log".to_owned()));
        }
        if target.size <= size {
            return Ok(());
        }
        let deadline = self.clock.now() + GROWTH_MAX;
        if !is_signed(note, &keys) {
            self.find_signer(note, url, (size, target.size), self.clock.now() + SEARCH_MAX).await?;
        }
        let grown = self.fetch(url, &mirror, (size, target.size), deadline).await?;
        let (signed, place) = (note.to_vec(), note.to_vec());
        match self.with(move |witness| witness.advance(&signed, &grown.grown(size))).await {
            Err(Error::Refused(why)) => {
                self.compare(place, url).await?;
                Err(Error::Refused(why))
            }
            done => {
                self.grown.notify_one();
                done
            }
        }
    }

    /// Fetches the entries of a range, and hashes them.
    async fn fetch(
        &self,
        url: &str,
        mirror: &Mirror,
        (from, to): (u64, u64),
        deadline: Duration,
    ) -> Result<Extension, Error> {
        let mirror = mirror.clone();
        let mut extension = self.blocking(move || mirror.extension(from)).await?;
        while extension.size() < to {
            let at = extension.size();
            let bundle = self.bundle(url, at, to, deadline).await?;
            extension = self
                .blocking(move || {
                    let new = split(&bundle, at, to).ok_or_else(|| malformed(at))?;
                    extension.push(&new)?;
                    Ok(extension)
                })
                .await
                .inspect_err(|error| self.judge_error(error))?;
        }
        Ok(extension)
    }

    /// Looks for a key change among entries that nothing has verified yet, which leads to the key
    /// that signed the note. Both keys sign a change, so it needs no other proof.
    async fn find_signer(
        self: &Arc<Self>,
        note: &[u8],
        url: &str,
        (from, to): (u64, u64),
        deadline: Duration,
    ) -> Result<(), Error> {
        let (mut changes, trusted) = self.with(|it| Ok((it.changes()?, it.ledger().clone()))).await?;
        let mut at = from;
        while at < to {
            let bundle = self.bundle(url, at, to, deadline).await?;
            let new = split(&bundle, at, to).ok_or_else(|| malformed(at))?;
            let found =
                (at..).zip(&new).filter_map(|(index, entry)| Some((Sequence(index), key_change(index, entry)?)));
            let before = changes.len();
            changes.extend(found);
            if changes.len() > before {
                let keys = follow(&Keys::new(trusted.clone()), changes.iter().map(|(at, change)| (*at, change)))?;
                if is_signed(note, &keys) {
                    return Ok(());
                }
            }
            at += new.len() as u64;
        }
        Err(Error::Refused("a checkpoint that no known key of the ledger signed".to_owned()))
    }

    /// The bundle of an entry, as it is in a log of `size` entries.
    async fn bundle(&self, url: &str, index: u64, size: u64, deadline: Duration) -> Result<Vec<u8>, Error> {
        if self.clock.now() >= deadline {
            return Err(Error::Unavailable(format!("entry {index}: not in time")));
        }
        let number = index / TILE;
        let width = u16::try_from((size - number * TILE).min(TILE)).expect("at most 256");
        let name = TileName { content: Content::Entries, number, width };
        let bundle = TileLog::at(self.web.clone(), url).tile(name, BUNDLE_BYTES_MAX).await?;
        bundle.ok_or_else(|| Error::Unavailable(format!("{} does not have entry {index}", printable(url))))
    }

    /// Compares a server's log with the mirror, since its entries do not lead to the note. If two
    /// signed checkpoints contradict each other, that is evidence.
    async fn compare(self: &Arc<Self>, note: Vec<u8>, url: &str) -> Result<(), Error> {
        let (tip, key) = self.with(|it| Ok((it.tip(), it.ledger().clone()))).await?;
        let Some(tip) = tip else { return Ok(()) };
        let given = |note| Given::note(note).map_err(|error| Error::Refused(error.to_string()));
        let pair = [given(tip.into_bytes())?, given(note)?];
        match prove::prove(pair, Some(TileLog::at(self.web.clone(), url)), Some(key)).await {
            Ok((file, _)) => self.with(move |witness| witness.take_evidence(&file)).await,
            Err(error) => {
                tracing::warn!(%error, url = printable(url), "a log leads to no signed root");
                Ok(())
            }
        }
    }
}

fn malformed(index: u64) -> Error {
    Error::Refused(format!("the bundle of entry {index} is malformed"))
}

/// The entries of a bundle from `at` on, in a log of `size` entries.
fn split(bundle: &[u8], at: u64, size: u64) -> Option<Vec<&[u8]>> {
    let first = at - at % TILE;
    let width = u16::try_from((size - first).min(TILE)).ok()?;
    Some(entries(bundle, width)?.split_off((at - first) as usize))
}

/// Whether one of the known keys of the ledger signed a note.
fn is_signed(note: &[u8], keys: &Keys) -> bool {
    signers(note, keys).next().is_some()
}
