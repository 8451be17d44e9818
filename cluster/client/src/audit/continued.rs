//! A replay that goes on as the log grows.
//!
//! The caller verifies the log, and says which versions stand.

use coppice_types::Version;
use coppice_verify::{audit::Line, keys::Keys};

use super::{
    Replay,
    book::{Founding, Versions},
    finding::Stop,
    start,
    state::State,
};
use crate::{Client, Error};

/// The state of a ledger at the version that was replayed last.
pub struct Replayed {
    founding: Founding,
    state: State,
    at: Version,
}

impl std::fmt::Debug for Replayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replayed").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Replayed {
    /// The empty state of genesis.
    #[must_use]
    pub fn genesis(founding: Founding) -> Self {
        Self { state: State::new(&founding), founding, at: Version(0) }
    }

    /// The state at a version that was replayed before, read with proofs. Only the line is trusted.
    ///
    /// # Errors
    /// If the version is pruned or was rolled back, or the ledger does not prove its state.
    pub async fn fetch(client: &Client, founding: Founding, line: &Line, keys: &Keys) -> Result<Self, Error> {
        let state = start::fetch(client, &founding, line, keys).await?;
        Ok(Self { state, founding, at: line.stamp.version })
    }

    /// The version that was replayed last.
    #[must_use]
    pub fn at(&self) -> Version {
        self.at
    }

    /// Number of records in the replayed trees, including superseded ones.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.state.records()
    }

    /// Replays the versions of these lines, which are successive. The first one follows the version
    /// that was replayed last.
    ///
    /// # Errors
    /// [`Stop::Failed`] if the ledger does not tell them. Then [`Replayed::at`] says how far it is,
    /// and the replay can go on. [`Stop::Differs`] if a version is wrong. Then the state is of no
    /// use.
    ///
    /// # Panics
    /// If the lines are not as described.
    pub async fn go_on(&mut self, client: &Client, lines: Vec<Line>) -> Result<(), Stop> {
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Ok(()) };
        assert_eq!(first.stamp.version, self.at.next(), "the versions go on");
        let to = last.stamp.version;
        let versions = Versions::new(self.founding.clone(), lines).expect("the versions are successive");
        let state = std::mem::replace(&mut self.state, State::new(&self.founding));
        let mut replay = Replay { client, versions: &versions, state, at: self.at, to, compared: 0, progress: |_| {} };
        let done = replay.run().await;
        (self.state, self.at) = (replay.state, replay.at);
        done
    }
}
