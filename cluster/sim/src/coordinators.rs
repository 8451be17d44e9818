//! Simulated coordinators.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use coppice_coordinator::{Anchoring, Connect, Genesis, Handle, Limits, Options, Routing, Service};
use coppice_env::{Clock, SimRng};
use tokio::task::JoinSet;

use crate::{
    event,
    life::{Life, MachineClock},
    metadata::Store,
    node::{self, Site},
    shape::{self, QUORUM},
};

/// A machine with a coordinator on it.
#[derive(Debug)]
pub struct Coordinator {
    pub name: String,
    pub clock: MachineClock,
    /// The running process, if any. Dropping the tasks ends it.
    pub running: Option<(Life, Handle, JoinSet<()>)>,
    runs: u32,
}

/// The name of a coordinator. Numbers begin at 1.
#[must_use]
pub fn name(number: u32) -> String {
    format!("coordinator-{number}")
}

fn limits() -> Limits {
    let ms = Duration::from_millis;
    Limits {
        commit_timeout: ms(2500),
        prepare_timeout: ms(1000),
        root_timeout: ms(1500),
        attempt_timeout: ms(400),
        read_timeout: ms(1500),
        admin_timeout: ms(3000),
        stages_max: 4,
        stage_age_max: ms(1500),
        lease: ms(1000),
        ..Limits::default()
    }
}

/// The time ledger stamps every log, or those that witnesses have cosigned.
fn anchoring(site: &Site, life: &Life, every: Duration) -> Anchoring {
    Anchoring {
        authorities: Vec::new(),
        time_ledgers: vec![site.time_ledger.of(life)],
        quorum: NonZeroUsize::MIN,
        every,
        cosigned: !site.witnesses.list().is_empty(),
        idle: false,
    }
}

impl Coordinator {
    /// A machine that is off.
    #[must_use]
    pub fn new(number: u32, clock: MachineClock) -> Self {
        Self { name: name(number), clock, running: None, runs: 0 }
    }

    pub async fn start(&mut self, site: &Site, store: &Store) {
        self.runs += 1;
        let life = Life::new(&self.name, self.runs, None);
        event!(site.net.trace(), "{} starts, run {}", self.name, self.runs);
        let (net, from) = (site.net.clone(), life.clone());
        let connect: Connect = Arc::new(move |to| net.channel(&from, to));
        let seed = site.shape.seed ^ (u64::from(self.runs) << 20) ^ self.name.len() as u64;
        let options = Options {
            name: self.name.clone(),
            nodes: (1..=site.shape.nodes + site.shape.readers).map(node::name).collect(),
            routing: Routing { readers: site.shape.reader_ordinals().map(node::name).collect(), ..Routing::default() },
            connect,
            metadata: store.link(&life),
            signing_key: shape::signing_key(),
            next_signing_key: Some(shape::next_signing_key()),
            genesis: Genesis { params: site.shape.params.clone(), shard_map: site.shape.map.clone() },
            limits: limits(),
            clock: Arc::new(self.clock.clone()) as Arc<dyn Clock>,
            rng: Box::new(SimRng::new(seed)),
        };
        let opened = match Service::new(options) {
            Ok((mut service, handle)) => {
                let (witnesses, post) = (site.witnesses.list(), site.witnesses.post(&life));
                let asked = match witnesses.is_empty() {
                    true => Ok(()),
                    false => service.ask_witnesses_by(post, witnesses, QUORUM),
                };
                let stamped = asked.and_then(|()| match site.shape.anchors {
                    None => Ok(()),
                    Some(every) => service.anchor_by(site.witnesses.post(&life), anchoring(site, &life, every)),
                });
                match stamped {
                    Ok(()) => service.open().await.map(|(routes, tasks)| (handle, routes, tasks)),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok((handle, routes, tasks)) => {
                site.net.serve(&life, routes);
                self.running = Some((life, handle, tasks));
            }
            Err(error) => site.scribe.wrong(format!("start: {} does not start: {error}", self.name)),
        }
    }

    /// Kills the process at once.
    pub fn crash(&mut self, site: &Site) {
        if let Some((life, _, _)) = self.running.take() {
            event!(site.net.trace(), "{} is killed", self.name);
            life.end();
        }
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.running.as_ref().is_some_and(|(life, _, _)| life.is_alive())
    }
}
