//! The task that sends a node's beats, and wakes replicas whose group's nodes are silent.
//!
//! It waits while no replica sleeps. [`crate::replica::Sleepers`] has the rules.

use std::sync::{Arc, Weak};

use coppice_env::watch;
use coppice_proto::v1::{PeerMessage, peer_message::Body};
use coppice_types::RaftId;

use crate::{
    hosted::Hosted,
    replica::{BEAT_TICKS, SILENT_TICKS, Site},
};

/// Sends beats until the node ends.
pub(super) async fn send(site: Arc<Site>, hosted: Weak<Hosted>, mut closing: watch::Receiver<bool>) {
    let tick = site.tuning.tick;
    let beat = async {
        loop {
            site.sleepers.until_due().await;
            while site.sleepers.is_due() {
                for (node, beat) in site.sleepers.beats() {
                    // A lost beat is like a late one.
                    let _ = site.peers.send(&node, message(&site, Body::Beat(beat)));
                }
                tokio::time::sleep(tick * BEAT_TICKS).await;
                let Some(hosted) = hosted.upgrade() else { return };
                hosted.wake_overdue(tick * SILENT_TICKS);
            }
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        () = beat => {}
    }
}

/// A message that speaks for the node, and for no replica.
fn message(site: &Site, body: Body) -> PeerMessage {
    PeerMessage {
        cluster_id: bytes::Bytes::copy_from_slice(site.cluster.as_bytes()),
        group: 0,
        from_raft_id: RaftId::new(site.ordinal().unwrap_or_default(), 0).0,
        to_raft_id: 0,
        unfit: false,
        body: Some(body),
    }
}
