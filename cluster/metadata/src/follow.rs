//! Keeps a copy of the store's content up to date.
//!
//! A watch only shows *that* something has changed; the content comes from a snapshot. So a store
//! that was wiped, set back or restarted needs no special care.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{Metadata, Revision, Snapshot};

/// The pause between two reads of the store if the watch reports nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pause after a call to the store failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Reports the store's content, again and again, for ever. While the store does not answer, nothing
/// is reported.
pub async fn follow(store: Arc<dyn Metadata>, mut tell: impl FnMut(Snapshot)) {
    loop {
        match store.snapshot().await {
            Ok(snapshot) => {
                let revision = snapshot.revision;
                tell(snapshot);
                // A timeout is treated like a change.
                let _ = timeout(LOOK_AGAIN, changed(&*store, revision)).await;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn changed(store: &dyn Metadata, after: Revision) {
    let mut watch = match store.watch(after).await {
        Ok(watch) => watch,
        Err(_) => return sleep(PAUSE).await,
    };
    if watch.next().await.is_err() {
        sleep(PAUSE).await;
    }
}
