//! What the store holds, kept up to date.
//!
//! A watch only says *that* something changed; what there is comes from a snapshot. So a store that was wiped, set back or restarted needs
//! no care of its own.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{Metadata, Revision, Snapshot};

/// How often the store is asked, whether a watch says something or not.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pause before a store that failed is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Tells what the store holds, again and again for ever. While it does not answer, nothing is told.
pub async fn follow(store: Arc<dyn Metadata>, mut tell: impl FnMut(Snapshot)) {
    loop {
        match store.snapshot().await {
            Ok(snapshot) => {
                let revision = snapshot.revision;
                tell(snapshot);
                // Over time is as good as a change.
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
