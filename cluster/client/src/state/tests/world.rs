//! A cache that follows a model, with what the model said of every version that it ever had.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use coppice_types::Stamp;
use tokio::{
    task::JoinHandle,
    time::{Duration, sleep, timeout},
};

use super::{
    super::{Cache, Options, View, error::Error, shared::Shared},
    model::{Gate, Model, State, Words},
};

/// The values of a version.
pub(super) type Values = BTreeMap<String, String>;

pub(super) struct World {
    pub model: Model,
    pub cache: Cache,
    /// The values of each name of a version, also of those that were rolled back.
    pub history: BTreeMap<Stamp, Values>,
    pub follower: Option<JoinHandle<Error>>,
}

pub(super) fn words<const N: usize>(writes: [(&str, Option<&str>); N]) -> Words {
    writes.into_iter().map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).collect()
}

impl Drop for World {
    fn drop(&mut self) {
        self.follower.iter().for_each(JoinHandle::abort);
    }
}

impl World {
    /// A cache that does not follow yet.
    pub(super) fn new(options: Options) -> Self {
        let model = Model::new();
        let mut shared = Shared::new(Box::new(model.clone()), options).expect("good options");
        shared.pause = Duration::from_millis(1);
        let cache = Cache { shared: Arc::new(shared) };
        Self { model, cache, history: BTreeMap::from([(Stamp::default(), Values::new())]), follower: None }
    }

    /// A cache that has followed the first header.
    pub(super) async fn followed(options: Options) -> Self {
        let mut world = Self::new(options);
        let cache = world.cache.clone();
        world.follower = Some(tokio::spawn(async move { cache.follow().await }));
        world.settle().await.expect("an honest model");
        world
    }

    /// Waits until the cache has applied what the stream shows.
    pub(super) async fn settle(&self) -> Result<(), Error> {
        let shared = &self.cache.shared;
        let mut moved = shared.moved.subscribe();
        let settled = async {
            loop {
                let (shown, whole) = {
                    let state = self.model.lock();
                    (state.shown as u64, state.shown == state.log.len() && !state.cut)
                };
                shared.evidence()?;
                let reached = shared.status().broken.is_none() && shared.applied() >= shown;
                // If a part of the log is not shown, the checkpoint lies above it, and nothing is
                // applied.
                if !whole || reached {
                    return Ok(());
                }
                moved.changed().await.expect("the cache lives");
            }
        };
        let settled = timeout(Duration::from_secs(3600), settled).await;
        settled.unwrap_or_else(|_| panic!("{:?} of {} headers", shared.applied(), self.model.lock().shown))
    }

    fn remember(&mut self) {
        let state = self.model.lock();
        let values = state.head().values.iter().map(|(key, (value, _))| (key.clone(), value.clone()));
        self.history.insert(state.present(), values.collect());
    }

    pub(super) fn write(&mut self, writes: &Words) -> Stamp {
        let stamp = self.model.lock().commit(writes);
        self.remember();
        stamp
    }

    pub(super) fn roll_back(&mut self, base: u64) -> Stamp {
        let stamp = self.model.lock().roll_back(base);
        self.remember();
        stamp
    }

    /// Shows the stream all headers, and waits for the cache.
    pub(super) async fn show(&self) -> Result<(), Error> {
        self.model.show();
        self.settle().await
    }

    /// Breaks the stream, or lets it go on.
    pub(super) async fn cut(&self, cut: bool) -> Result<(), Error> {
        self.model.cut(cut);
        if !cut {
            return self.settle().await;
        }
        // The cache has to notice before anything else happens.
        self.until(|state| state.streams == 0).await;
        Ok(())
    }

    /// Waits for a condition of the model that nothing announces.
    async fn until(&self, met: impl Fn(&State) -> bool) {
        let met = async {
            while !met(&self.model.lock()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), met).await.expect("the condition comes");
    }

    /// Begins a read that the model answers now. The answer comes later.
    pub(super) async fn hold(&self, view: &View, key: &str) -> Slow {
        // No sample of the follower may be taken for the read.
        self.until(|state| state.waiting == state.streams).await;
        let gate = Arc::<Gate>::default();
        self.model.lock().gates.insert(key.to_owned(), gate.clone());
        let (reader, wanted) = (view.clone(), key.to_owned());
        let mut task = tokio::spawn(async move { reader.get(wanted.as_bytes()).await });
        let ended = tokio::select! {
            () = gate.begun.notified() => None,
            ended = &mut task => Some(ended.expect("no panic")),
        };
        self.model.lock().gates.remove(key);
        Slow { at: view.stamp(), key: key.to_owned(), gate, task, ended }
    }
}

/// A read that the model holds.
pub(super) struct Slow {
    pub at: Stamp,
    pub key: String,
    gate: Arc<Gate>,
    task: JoinHandle<Result<Option<Bytes>, Error>>,
    ended: Option<Result<Option<Bytes>, Error>>,
}

impl Slow {
    pub(super) async fn land(self) -> Result<Option<Bytes>, Error> {
        self.gate.open.notify_one();
        match self.ended {
            Some(ended) => ended,
            None => self.task.await.expect("no panic"),
        }
    }
}
