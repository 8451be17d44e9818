//! What the metadata store says, kept up to date for everyone: which coordinator leads, and which coordinators there are.
//!
//! A watch only says *that* something changed; what there is comes from a snapshot. So a store that was wiped, set back or restarted needs
//! no care of its own.

use std::{sync::Arc, time::Duration};

use coppice_metadata::{Kind, Member, Metadata, Revision, Snapshot};
use coppice_proto::v1;
use tokio::time::{Instant, sleep, timeout};

use super::context::Context;

/// How often the store is asked, whether a watch says something or not.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// For how long the store counts as answering after it did.
const FRESH: Duration = Duration::from_secs(3);
/// Pause before a store that failed is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the store for ever. While it does not answer, what it said last stands.
pub async fn follow(context: Arc<Context>, metadata: Arc<dyn Metadata>) {
    loop {
        match metadata.snapshot().await {
            Ok(snapshot) => {
                let revision = snapshot.revision;
                context.note_registry(snapshot);
                // Over time is as good as a change.
                let _ = timeout(LOOK_AGAIN, changed(&*metadata, revision)).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the metadata store does not answer");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn changed(metadata: &dyn Metadata, after: Revision) {
    let mut watch = match metadata.watch(after).await {
        Ok(watch) => watch,
        Err(_) => return sleep(PAUSE).await,
    };
    if watch.next().await.is_err() {
        sleep(PAUSE).await;
    }
}

impl Context {
    /// Takes what the store says; who leads is the root group's to say while it is us.
    fn note_registry(&self, snapshot: Snapshot) {
        *self.registry_heard.lock().expect("no holder of the lock panics") = Some(Instant::now());
        let leader = snapshot.leader.as_ref().map(|leader| leader.name.clone());
        // Picked, but without a term yet: nobody leads.
        let leader = leader.filter(|leader| *leader != self.name).unwrap_or_default();
        self.registry.send_if_modified(|known| {
            let news = **known != snapshot;
            if news {
                *known = Arc::new(snapshot);
            }
            news
        });
        self.leadership.send_if_modified(|known| {
            let news = known.term.is_none() && known.leader != leader;
            if news {
                known.leader = leader;
            }
            news
        });
    }

    /// The coordinators that are alive, as far as the metadata store knows.
    pub fn coordinators(&self) -> Vec<v1::CoordinatorStatus> {
        let registry = self.registry.borrow().clone();
        let coordinators = registry.members.iter().filter(|member| member.kind == Kind::Coordinator);
        let status =
            |member: &Member| v1::CoordinatorStatus { name: member.name.clone(), address: member.address.clone() };
        coordinators.map(status).collect()
    }

    /// Whether another coordinator is alive and could be picked, as far as the metadata store told lately: while it is silent, it picks nobody.
    pub fn could_be_replaced(&self) -> bool {
        let heard = *self.registry_heard.lock().expect("no holder of the lock panics");
        let registry = self.registry.borrow().clone();
        heard.is_some_and(|heard| heard.elapsed() < FRESH)
            && registry.members.iter().any(|member| member.kind == Kind::Coordinator && member.name != self.name)
    }

    /// Where a coordinator is reached.
    pub fn address_of(&self, coordinator: &str) -> Option<String> {
        let registry = self.registry.borrow().clone();
        let found =
            registry.members.iter().find(|member| member.kind == Kind::Coordinator && member.name == coordinator);
        found.map(|member| member.address.clone())
    }
}
