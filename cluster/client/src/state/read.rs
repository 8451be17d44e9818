//! Reads of the ledger that fill the cache.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use coppice_types::{Reason, Stamp};
use tokio::time::{sleep, timeout};

use super::{
    error::{Error, Evidence},
    flights::{Flight, Landing},
    ledger::Got,
    lineage::Place,
    metrics::count,
    shared::Shared,
};

/// Most repetitions of a read that meets a coordinator which is behind.
const BEHIND_MAX: usize = 100;

/// Ends a call, also if its task is dropped.
struct Arrival {
    shared: Arc<Shared>,
    at: Place,
    flight: Arc<Flight>,
    outcome: Result<Arc<Landing>, Error>,
}

impl Arrival {
    async fn fly(mut self, joined: bool) {
        let shared = self.shared.clone();
        if joined {
            shared.flights.gather(self.at.stamp, &self.flight).await;
        }
        let outcome = timeout(shared.options.timeout, shared.load(self.at, self.flight.keys())).await;
        self.outcome = outcome.unwrap_or(Err(Error::Timeout("a read"))).map(Arc::new);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Err(Error::GivenUp(self.at.stamp)));
        self.shared.flights.land(self.at.stamp, &self.flight, outcome);
    }
}

impl Shared {
    /// Reads a key by the call that has it, or by the next one.
    pub(super) async fn get(self: &Arc<Self>, at: Place, key: &[u8]) -> Result<(Option<Bytes>, u64), Error> {
        let (flight, new) = self.flights.join(at.stamp, key);
        if new {
            self.send(at, flight.clone(), true);
        }
        let landing = flight.landing(at.stamp).await?;
        let value = landing.values.get(key).cloned().ok_or(Error::GivenUp(at.stamp))?;
        Ok((value, landing.confirmed))
    }

    /// Reads keys, in ascending order and each once, by calls that have some each. The results of
    /// the calls may have other keys, too.
    pub(super) async fn get_all(self: &Arc<Self>, at: Place, keys: Vec<Bytes>) -> Result<Vec<Arc<Landing>>, Error> {
        let (awaited, parts) = self.flights.divide(at.stamp, keys);
        for part in parts {
            self.send(at, part, false);
        }
        let mut landings = Vec::with_capacity(awaited.len());
        for flight in awaited {
            landings.push(flight.landing(at.stamp).await?);
        }
        Ok(landings)
    }

    /// Sends a call. With `joined`, others first have the chance to join it.
    fn send(self: &Arc<Self>, at: Place, flight: Arc<Flight>, joined: bool) {
        let outcome = Err(Error::GivenUp(at.stamp));
        tokio::spawn(Arrival { shared: self.clone(), at, flight, outcome }.fly(joined));
    }

    /// Reads keys of a version, and fills the cache. An answer that would be too large is read in
    /// halves.
    async fn load(&self, at: Place, keys: Vec<Bytes>) -> Result<Landing, Error> {
        let _slot = self.flights.slots.acquire().await.map_err(|_| Error::GivenUp(at.stamp))?;
        let confirmed = self.store().line().confirmed();
        let mut values = HashMap::with_capacity(keys.len());
        let mut parts = vec![keys];
        while let Some(mut part) = parts.pop() {
            match self.ask(at.stamp, &part).await {
                Ok(got) => self.fill(at, part, got, &mut values)?,
                Err(error) if part.len() > 1 && error.is_too_large() => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Landing { values, confirmed })
    }

    /// Asks for keys of a version, as far checked as the options say.
    async fn ask(&self, at: Stamp, keys: &[Bytes]) -> Result<Got, Error> {
        let level = self.options.level;
        let got = self.read(at, keys, level.proves()).await?;
        if level.picks() {
            self.compare(at, keys, &got).await?;
        }
        Ok(got)
    }

    /// Adds an answer to the cache and to the result of a call.
    fn fill(
        &self,
        at: Place,
        keys: Vec<Bytes>,
        got: Got,
        values: &mut HashMap<Bytes, Option<Bytes>>,
    ) -> Result<(), Error> {
        for (key, record) in keys.into_iter().zip(got.records) {
            let changed = record.as_ref().map_or(0, |(_, changed)| changed.version.0);
            // A slice would keep the whole answer in memory.
            let value = record.map(|(value, _)| Bytes::copy_from_slice(&value));
            let filled = self.store().fill(&key, at, value.clone(), changed);
            let held = filled.map_err(|why| self.fail(Evidence::new(why, &got.proof)))?;
            count(if held { &self.counts.fills } else { &self.counts.refused_fills }, 1);
            values.insert(key, value);
        }
        Ok(())
    }

    /// Proves what a read took on trust.
    async fn compare(&self, at: Stamp, keys: &[Bytes], told: &Got) -> Result<(), Error> {
        let got = self.read(at, keys, true).await?;
        for ((key, told), proven) in keys.iter().zip(&told.records).zip(&got.records) {
            if told != proven {
                let why = format!("the value of `{}` was read, and is not the proven one at {at}", key.escape_ascii());
                return Err(self.fail(Evidence::new(why, &got.proof)));
            }
        }
        Ok(())
    }

    /// Asks the ledger for keys of a version. A coordinator that does not know a version yet,
    /// although the stream has shown it, is asked again for a while.
    pub(super) async fn read(&self, at: Stamp, keys: &[Bytes], proven: bool) -> Result<Got, Error> {
        let mut tries = 0;
        loop {
            count(&self.counts.reads, 1);
            let got = self.ledger.batch_get(keys, at, proven).await;
            if got.is_ok() && proven {
                count(&self.counts.proven, keys.len() as u64);
            }
            let behind = got.as_ref().is_err_and(|error| error.reason() == Some(Reason::NotYet));
            if !behind || tries == BEHIND_MAX || self.store().line().is_above(at) {
                return got;
            }
            tries += 1;
            sleep(self.pause).await;
        }
    }
}
