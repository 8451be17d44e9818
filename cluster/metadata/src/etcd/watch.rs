//! A watch over all keys of a cluster. After a lost connection it continues by itself, from the
//! revision after the last one that it saw. It fails if etcd's history does not reach back that
//! far, or ends before that revision: then the store was wiped or set back.

use std::{collections::VecDeque, fmt, sync::Arc};

use async_trait::async_trait;
use etcd_client::{Event, EventType, WatchResponse, WatchStream};
use tokio::time::{Duration, Instant, sleep};

use super::{
    endpoints::{forgotten, of_history},
    keys::{Mirror, revision},
    keyspace::Keyspace,
};
use crate::{Change, Changes, Error, Revision, Watch};

/// Pause before a broken watch is made again.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct EtcdWatch {
    keyspace: Arc<Keyspace>,
    mirror: Mirror,
    /// The last revision that was seen.
    seen: Revision,
    stream: Option<WatchStream>,
    /// Changes that were seen but not returned yet.
    ready: VecDeque<Changes>,
}

impl fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdWatch").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl EtcdWatch {
    /// A watch of the changes after `seen`. The mirror is the store's content at that revision.
    pub fn new(keyspace: Arc<Keyspace>, mirror: Mirror, seen: Revision) -> Self {
        Self { keyspace, mirror, seen, stream: None, ready: VecDeque::new() }
    }

    /// The next message. Dropping this at any await loses nothing: messages that were not received
    /// come again with the next stream.
    async fn message(&mut self) -> Result<WatchResponse, Error> {
        let mut broken_since = None;
        loop {
            let stream = match self.stream.take() {
                Some(stream) => Ok(stream),
                None => self.keyspace.stream(self.keyspace.keys.all(), self.seen).await,
            };
            let error = match stream {
                Ok(stream) => match self.stream.insert(stream).message().await {
                    Ok(Some(message)) => return Ok(message),
                    Ok(None) => Error::Unavailable(std::io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => of_history(error, self.seen),
                },
                Err(error) => error,
            };
            self.stream = None;
            let since = *broken_since.get_or_insert_with(Instant::now);
            let over = since.elapsed() >= self.keyspace.outage_max;
            if over || !matches!(error, Error::Unavailable(_)) {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }

    fn take(&mut self, message: &WatchResponse) -> Result<(), Error> {
        if message.compact_revision() > 0 {
            return Err(forgotten(self.seen, revision(message.compact_revision())));
        }
        if message.canceled() {
            // For example, the member has lost its leader. The stream is made again with another
            // member.
            self.stream = None;
            return Ok(());
        }
        let now = message.header().map_or(Revision(0), |header| revision(header.revision()));
        if message.created() && now < self.seen {
            return Err(forgotten(self.seen, Revision(0)));
        }
        for events in message.events().chunk_by(|a, b| revision_of(a) == revision_of(b)) {
            self.apply(revision_of(&events[0]), events);
        }
        Ok(())
    }

    /// Takes over the changes of one revision.
    fn apply(&mut self, at: Revision, events: &[Event]) {
        if at <= self.seen {
            return;
        }
        self.seen = at;
        let before = self.mirror.leader();
        let keys = &self.keyspace.keys;
        let mut changes: Vec<Change> = Vec::new();
        for (event, kv) in events.iter().filter_map(|event| Some((event, event.kv()?))) {
            changes.extend(match event.event_type() {
                EventType::Put => self.mirror.put(keys, kv),
                EventType::Delete => self.mirror.delete(keys, kv.key()),
            });
        }
        let leader = self.mirror.leader();
        if leader != before {
            changes.push(Change::Leader(leader));
        }
        if !changes.is_empty() {
            self.ready.push_back(Changes { revision: at, changes });
        }
    }
}

fn revision_of(event: &Event) -> Revision {
    event.kv().map_or(Revision(0), |kv| revision(kv.mod_revision()))
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Changes, Error> {
        loop {
            if let Some(changes) = self.ready.pop_front() {
                return Ok(changes);
            }
            let message = self.message().await?;
            self.take(&message)?;
        }
    }
}
