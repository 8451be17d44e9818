//! What the metadata store says, kept up to date for everyone: which coordinator leads, and which coordinators and nodes there are.

use std::{sync::Arc, time::Duration};

use coppice_metadata::{Kind, Member, Metadata, Snapshot};
use coppice_proto::v1;
use tokio::time::Instant;

use super::context::Context;

/// For how long the store counts as answering after it did.
const FRESH: Duration = Duration::from_secs(3);

/// Follows the store for ever. While it does not answer, what it said last stands.
pub async fn follow(context: Arc<Context>, metadata: Arc<dyn Metadata>) {
    coppice_metadata::follow(metadata, |snapshot| context.note_registry(snapshot)).await;
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
