//! One run: a cluster is formed, suffers faults, recovers in peace, and is judged.

use std::{sync::Arc, time::Duration};

use coppice_env::watch;
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    author::{AUTHORS, Author},
    check,
    client::{Client, Phase},
    coordinators, event, federation,
    nemesis::Nemesis,
    shape::{Faults, Shape},
    trace::Trace,
    world::World,
};

/// Longest time for a cluster to form.
const FORM_LIMIT: Duration = Duration::from_secs(20);
/// Longest time after the faults until everything works again.
const CALM_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub seed: u64,
    /// Hash of the trace.
    pub trace: u64,
    /// Number of events in the trace.
    pub events: u64,
    /// Number of commits and reads that succeeded.
    pub done: (u64, u64),
    /// The first finding.
    pub wrong: Option<String>,
}

/// The settings of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Whether the trace is printed to the standard output.
    pub print: bool,
    /// Whether there are no faults at all.
    pub peaceful: bool,
    /// Whether the cluster keeps ledgers of members, and members append to one.
    pub ledgers: bool,
    /// Whether the run is one of a federation: members' cosigners, and a ledger that forks.
    pub federation: bool,
}

/// Runs a seed on a new runtime of one thread with paused time. Time goes on by itself when nothing
/// else can be done.
#[must_use]
pub fn run(runtime: Runtime, seed: u64, settings: Settings) -> Verdict {
    if settings.federation {
        return runtime.block_on(federation::run(seed, settings.print));
    }
    let verdict = runtime.block_on(async {
        let mut shape = Shape::new(seed);
        if settings.ledgers {
            shape.keep_ledgers();
        }
        if settings.peaceful {
            shape.faults = Faults::default();
        }
        let world = World::new(shape, Trace::new(settings.print));
        live(world).await
    });
    // Dropping the runtime drops the tasks of dead processes.
    drop(runtime);
    verdict
}

async fn live(mut world: World) -> Verdict {
    if form(&mut world).await {
        suffer(&mut world).await;
    }
    if world.site.scribe.lock().wrong.is_none() {
        check::all(&world).await;
    }
    world.site.net.end();
    let history = world.site.scribe.lock();
    let trace = world.site.net.trace();
    Verdict {
        seed: world.site.shape.seed,
        trace: trace.hash(),
        events: trace.events(),
        done: history.done,
        wrong: history.wrong.clone(),
    }
}

async fn form(world: &mut World) -> bool {
    for machine in world.machines.values_mut() {
        machine.start(&world.site, false).await;
    }
    for coordinator in &mut world.coordinators {
        coordinator.start(&world.site, &world.store).await;
    }
    let led = timeout(FORM_LIMIT, async {
        while !world.is_led() {
            sleep(LOOK).await;
        }
    });
    if led.await.is_err() {
        world.site.scribe.wrong("progress: no coordinator leads at the start".to_owned());
        return false;
    }
    world.formed = true;
    if world.site.shape.readers > 0 {
        // They join now.
        world.mend().await;
    }
    true
}

/// Clients work while faults come and go. Then the faults end, and everything must work again.
async fn suffer(world: &mut World) {
    let shape = Arc::clone(&world.site.shape);
    let names: Vec<String> = (1..=shape.coordinators).map(coordinators::name).collect();
    let (phase, watched) = watch::channel(Phase::Chaos);
    let mut clients = JoinSet::new();
    for id in 1..=shape.clients {
        let client = Client::new(id, Arc::clone(&shape), world.site.scribe.clone(), &world.site.net, &names);
        clients.spawn(client.run(watched.clone()));
    }
    for id in 1..=if shape.params.ledgers { AUTHORS } else { 0 } {
        let author = Author::new(id, &shape, world.site.scribe.clone(), &world.site.net, &names);
        clients.spawn(author.run(watched.clone()));
    }
    let mut nemesis = Nemesis::new(&shape);
    let end = Instant::now() + shape.chaos;
    while Instant::now() < end && world.site.scribe.lock().wrong.is_none() {
        nemesis.act(world).await;
        check::observe(world);
    }
    world.calm().await;
    phase.send_replace(Phase::Calm);
    event!(world.site.net.trace(), "calm");
    settle(world, &mut clients, false).await;
    // No client reads any more, so only a replica that needs a snapshot meets the bad byte.
    nemesis.spoil_snapshots(world);
    settle(world, &mut clients, false).await;
    event!(world.site.net.trace(), "all is well");
    settle(world, &mut clients, true).await;
    phase.send_replace(Phase::Over);
    clients.abort_all();
}

/// Waits until everything works again. Without an operator, this must happen by itself, bad bytes
/// or not. With one, replicas with a bad byte are rebuilt.
async fn settle(world: &mut World, clients: &mut JoinSet<()>, with_operator: bool) {
    let limit = Instant::now() + CALM_LIMIT;
    while world.site.scribe.lock().wrong.is_none() {
        sleep(LOOK).await;
        while clients.try_join_next().is_some() {}
        world.mend().await;
        if with_operator {
            world.rebuild().await;
        }
        check::observe(world);
        let waits = if clients.is_empty() { world.unsettled() } else { Some("clients wait".to_owned()) };
        match waits {
            None => break,
            Some(why) if Instant::now() > limit => {
                world.site.scribe.wrong(format!("progress: after the faults {why}"));
            }
            Some(_) => {}
        }
    }
}
