//! Leases that are kept alive in the background, with the leadership or registration bound to them.
//!
//! A holder gives up when the store *says* that its lease has ended or that another candidate is
//! picked, and not while the store is silent. The store does not fence: two leaders that both
//! believe they were picked do no harm, since the root group allots the term and refuses the older
//! one. So a healthy leader continues through an outage of the store. If only this leader can't
//! reach the store, the term of the next leader ends its leadership.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_env::watch;
use tokio::sync::oneshot;

use crate::{Error, Leader, LeaseId, Member, Metadata, Revision};

/// Number of times that a lease is renewed within its time.
const KEEP_ALIVES_PER_TTL: u32 = 3;

/// Campaigns under leases that it keeps alive.
#[derive(Clone, Debug)]
pub struct Candidate {
    store: Arc<dyn Metadata>,
    ttl: Duration,
}

/// The time for which a candidate is picked. When it is dropped, the next candidate can soon be
/// picked.
#[derive(Debug)]
pub struct Tenure {
    leader: Leader,
    keeper: Keeper,
}

/// A registration that lasts as long as this lives. If it is lost, it is made again.
#[derive(Debug)]
pub struct Presence {
    _stop: oneshot::Sender<()>,
}

impl Candidate {
    /// Campaigns under leases of `ttl`. A leader that dies is replaced after that time.
    #[must_use]
    pub fn new(store: Arc<dyn Metadata>, ttl: Duration) -> Self {
        Self { store, ttl }
    }

    /// Waits until the candidate is picked. Dropping the call withdraws the candidate.
    ///
    /// # Errors
    /// If the store does not answer, or the candidate was lost while it waited.
    pub async fn campaign(&self, name: &str) -> Result<Tenure, Error> {
        let lease = self.store.grant(self.ttl).await?;
        let keeper = Keeper::start(self.clone(), lease);
        let mut lost = keeper.lost.clone();
        let leader = tokio::select! {
            biased;
            leader = self.store.campaign(lease, name) => leader?,
            _ = lost.wait_for(|lost| *lost) => return Err(Error::LeaseLost(lease)),
        };
        keeper.token.store(leader.token.0, Ordering::Relaxed);
        Ok(Tenure { leader, keeper })
    }
}

impl Tenure {
    /// The leader, with its fencing token.
    #[must_use]
    pub fn leader(&self) -> &Leader {
        &self.leader
    }

    /// Becomes true when the tenure is over, and stays so.
    #[must_use]
    pub fn lost(&self) -> watch::Receiver<bool> {
        self.keeper.lost.clone()
    }

    /// Ends the tenure, so that the next candidate is picked at once.
    ///
    /// # Errors
    /// If the store does not answer. Then the lease ends by itself.
    pub async fn resign(self) -> Result<(), Error> {
        self.keeper.candidate.store.revoke(self.keeper.lease).await
    }
}

impl Presence {
    /// Registers a process, and keeps it registered. While the store does not answer, this is tried
    /// again.
    #[must_use]
    pub fn keep(store: Arc<dyn Metadata>, ttl: Duration, member: Member) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let candidate = Candidate::new(store, ttl);
        tokio::spawn(async move {
            loop {
                let registered = tokio::select! {
                    biased;
                    registered = candidate.register(&member) => registered,
                    _ = &mut stopped => return,
                };
                if let Ok(keeper) = registered {
                    let mut lost = keeper.lost.clone();
                    tokio::select! {
                        biased;
                        _ = lost.wait_for(|lost| *lost) => {}
                        _ = &mut stopped => return,
                    }
                } else {
                    tokio::time::sleep(ttl / KEEP_ALIVES_PER_TTL).await;
                }
            }
        });
        Self { _stop: stop }
    }
}

impl Candidate {
    async fn register(&self, member: &Member) -> Result<Keeper, Error> {
        let lease = self.store.grant(self.ttl).await?;
        let keeper = Keeper::start(self.clone(), lease);
        self.store.register(lease, member.clone()).await?;
        Ok(keeper)
    }
}

/// A task that keeps a lease alive until the lease is lost or this is dropped. Then it revokes the
/// lease.
#[derive(Debug)]
struct Keeper {
    candidate: Candidate,
    lease: LeaseId,
    lost: watch::Receiver<bool>,
    /// The token by which the holder leads; 0 if it does not lead.
    token: Arc<AtomicU64>,
    _stop: oneshot::Sender<()>,
}

impl Keeper {
    fn start(candidate: Candidate, lease: LeaseId) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (lose, lost) = watch::channel(false);
        let token = Arc::new(AtomicU64::new(0));
        let (kept, held) = (candidate.clone(), Arc::clone(&token));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = kept.keep(lease, &held) => {
                    lose.send_replace(true);
                }
                _ = stopped => {}
            }
            // Ends the lease now if the store answers; otherwise it ends by itself.
            drop(tokio::time::timeout(kept.ttl, kept.store.revoke(lease)).await);
        });
        Self { candidate, lease, lost, token, _stop: stop }
    }
}

impl Candidate {
    /// Keeps the lease alive until the store says that it, or the leadership under it, is over.
    async fn keep(&self, lease: LeaseId, token: &AtomicU64) {
        let pause = self.ttl / KEEP_ALIVES_PER_TTL;
        loop {
            tokio::time::sleep(pause).await;
            // No answer does not end the lease.
            let answer = tokio::time::timeout(pause, self.keep_once(lease, token)).await;
            if let Ok(Ok(false) | Err(Error::LeaseLost(_))) = answer {
                return;
            }
        }
    }

    /// Keeps the lease alive once. Returns false if another candidate leads nevertheless.
    async fn keep_once(&self, lease: LeaseId, token: &AtomicU64) -> Result<bool, Error> {
        self.store.keep_alive(lease).await?;
        let token = Revision(token.load(Ordering::Relaxed));
        let leader = if token == Revision(0) { None } else { Some(self.store.snapshot().await?.leader) };
        Ok(leader.is_none_or(|leader| leader.is_some_and(|leader| leader.token == token)))
    }
}
