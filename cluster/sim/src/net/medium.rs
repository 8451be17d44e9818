//! The state of the network: which processes serve, which links are cut, and the fate of each call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use coppice_env::{Rng, SimRng};
use coppice_proto::v1;
use prost::Message;
use tokio::time::sleep;
use tonic::service::Routes;

use crate::{event, history::Scribe, life::Life, trace::Trace};

/// Bytes before each message of a gRPC body: a flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;

/// The faults of the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Calls, answers and messages between peers that are lost, per thousand.
    pub lose_per_mille: u64,
    /// Calls and messages between peers that arrive twice, per thousand.
    pub double_per_mille: u64,
    /// Longest usual delay, in ms.
    pub delay_ms: u64,
    /// Messages that are very late, per thousand.
    pub late_per_mille: u64,
    /// Longest delay of a very late message, in ms.
    pub late_ms: u64,
}

/// Longest time until a caller notices that its connection is dead.
const HANG_MS_MAX: u64 = 3000;

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) life: Life,
    pub(super) routes: Routes,
}

#[derive(Debug)]
struct State {
    rng: SimRng,
    weather: Weather,
    endpoints: BTreeMap<String, Endpoint>,
    /// Directions that carry nothing, by the names of their ends.
    cut: BTreeSet<(String, String)>,
    ambush: Option<Ambush>,
}

/// Waits for the next call of one kind. The process that sends or receives it dies soon after, so
/// that rare calls are interrupted, too.
#[derive(Clone, Copy, Debug)]
pub struct Ambush {
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// Whether the sender dies, and not the receiver.
    pub sender: bool,
    /// As in [`Life::light_fuse`].
    pub messages: u64,
    /// As in [`Life::light_fuse`].
    pub turns: u64,
    /// The delay of the call. It arrives even if its sender is dead by then.
    pub late: Duration,
}

/// Kinds of calls that an ambush waits for.
pub const KINDS: [&str; 13] = [
    "Root/TakeOver",
    "Root/AppendHeader",
    "Root/OpenRootSession",
    "Shard/Prepare",
    "Shard/Command abort",
    "Shard/Command adopt",
    "Shard/Command execute",
    "Shard/Command fence",
    "Shard/Command unfence",
    "Peer/FetchSnapshot",
    "Node/ChangeMember",
    "Ledger/Commit",
    "Ledger/Rollback",
];

/// The network. Clones share it.
#[derive(Clone, Debug)]
pub struct Net {
    state: Arc<Mutex<State>>,
    trace: Trace,
    scribe: Scribe,
}

/// The fate of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) there: Duration,
    pub(super) lost: bool,
    pub(super) back: Duration,
    pub(super) answer_lost: bool,
    /// Delay after which the same call arrives once more.
    pub(super) again: Option<Duration>,
    /// The time until the caller of a lost call gets an error.
    pub(super) hang: Duration,
    /// Whether the server goes on after the caller has given up.
    pub(super) detached: bool,
}

impl Net {
    /// A network in fair weather, without endpoints.
    #[must_use]
    pub fn new(seed: u64, trace: Trace, scribe: Scribe) -> Self {
        let state = State {
            rng: SimRng::new(seed),
            weather: Weather { delay_ms: 1, ..Weather::default() },
            endpoints: BTreeMap::new(),
            cut: BTreeSet::new(),
            ambush: None,
        };
        Self { state: Arc::new(Mutex::new(state)), trace, scribe }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Makes a process serve from now on, in place of its earlier run.
    pub fn serve(&self, life: &Life, routes: Routes) {
        self.lock().endpoints.insert(life.name().to_owned(), Endpoint { life: life.clone(), routes });
    }

    /// Forgets all endpoints. Their routes lead back to the network, and would keep it and all
    /// disks in memory forever.
    pub fn end(&self) {
        self.lock().endpoints.clear();
    }

    pub fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    /// Cuts or mends one direction.
    pub fn set_cut(&self, from: &str, to: &str, cut: bool) {
        let link = (from.to_owned(), to.to_owned());
        let mut state = self.lock();
        if cut {
            state.cut.insert(link);
        } else {
            state.cut.remove(&link);
        }
    }

    /// Mends all links.
    pub fn mend(&self) {
        self.lock().cut.clear();
    }

    /// Sets the ambush, in place of an earlier one.
    pub fn set_ambush(&self, ambush: Option<Ambush>) {
        self.lock().ambush = ambush;
    }

    /// Handles the arrival of a call, which may be the one that the ambush waits for. Returns how
    /// late that call is; `None` for other calls.
    pub(super) fn spring(&self, from: &Life, to: &Life, path: &str, request: &[u8]) -> Option<Duration> {
        let mut state = self.lock();
        let met = state.ambush.take_if(|ambush| {
            let (call, command) = ambush.kind.split_once(' ').unwrap_or((ambush.kind, ""));
            path.ends_with(call) && (command.is_empty() || command_name(request) == Some(command))
        });
        drop(state);
        let ambush = met?;
        // Clients are spared, since a dead one would not be started again.
        let victim = if ambush.sender && !path.contains("Ledger") { from } else { to };
        event!(self.trace, "{} will die of {ambush:?}", victim.name());
        victim.light_fuse(ambush.messages, ambush.turns);
        Some(ambush.late).filter(|late| !late.is_zero())
    }

    pub(super) fn is_cut(&self, from: &str, to: &str) -> bool {
        self.lock().cut.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Whether something on its way arrives.
    pub(super) fn carries(&self, from: &Life, to: &Life) -> bool {
        from.is_alive() && to.is_alive() && !self.is_cut(from.name(), to.name())
    }

    /// Whether an open stream across this link breaks now. Some only fall silent.
    pub(super) fn breaks(&self, from: &Life, to: &Life) -> bool {
        if !to.is_alive() {
            return true;
        }
        let mut state = self.lock();
        state.cut.contains(&(from.name().to_owned(), to.name().to_owned())) && state.rng.chance(100)
    }

    /// Delays of a message between peers: none if it is lost, two if it arrives twice.
    pub(super) fn message_delays(&self, from: &Life, to: &Life) -> Vec<Duration> {
        let mut state = self.lock();
        let weather = state.weather;
        if state.cut.contains(&(from.name().to_owned(), to.name().to_owned()))
            || state.rng.chance(weather.lose_per_mille)
        {
            return Vec::new();
        }
        let copies = if state.rng.chance(weather.double_per_mille) { 2 } else { 1 };
        (0..copies).map(|_| state.delay()).collect()
    }

    /// Reads a message between replicas. A digest in it must be that of every other replica that
    /// applied the entry.
    pub(super) fn overhear(&self, message: &[u8]) {
        use v1::peer_message::Body;
        let Ok(message) = v1::PeerMessage::decode(message) else { return };
        if let Some(Body::Digest(report)) = message.body {
            self.scribe.lock().digest(message.group, report.raft_index, message.from_raft_id, report.digest);
        }
    }

    pub(super) fn delay(&self) -> Duration {
        self.lock().delay()
    }

    pub(super) fn fate(&self, may_double: bool) -> Fate {
        let mut state = self.lock();
        let weather = state.weather;
        let hang_ms = if state.rng.chance(300) { HANG_MS_MAX } else { 50 };
        Fate {
            there: state.delay(),
            lost: state.rng.chance(weather.lose_per_mille),
            back: state.delay(),
            answer_lost: state.rng.chance(weather.lose_per_mille),
            again: (may_double && state.rng.chance(weather.double_per_mille)).then(|| state.delay() * 4),
            hang: Duration::from_millis(1 + state.rng.below(hang_ms)),
            detached: state.rng.chance(500),
        }
    }

    /// Carries something between a process and the outside. Returns false if it is lost.
    pub async fn errand(&self, process: &Life, what: &str) -> bool {
        if !process.message() {
            std::future::pending::<()>().await;
        }
        let fate = self.fate(false);
        event!(self.trace, "{} {what} {fate:?}", process.name());
        sleep(if fate.lost { fate.hang } else { fate.there }).await;
        if !process.message() {
            std::future::pending::<()>().await;
        }
        !fate.lost
    }

    pub(super) fn endpoint(&self, from: &Life, to: &str) -> Option<Endpoint> {
        let state = self.lock();
        if state.cut.contains(&(from.name().to_owned(), to.to_owned())) {
            return None;
        }
        state.endpoints.get(to).filter(|endpoint| endpoint.life.is_alive()).cloned()
    }
}

impl State {
    fn delay(&mut self) -> Duration {
        let weather = self.weather;
        let most = if self.rng.chance(weather.late_per_mille) { weather.late_ms } else { weather.delay_ms };
        Duration::from_millis(self.rng.below(most + 1))
    }
}

/// Name of the command to a shard in a request.
fn command_name(request: &[u8]) -> Option<&'static str> {
    use v1::shard_command_request::Command;
    let request = v1::ShardCommandRequest::decode(request.get(PREFIX_BYTES..)?).ok()?;
    Some(match request.command? {
        Command::Finalize(_) => "finalize",
        Command::Abort(_) => "abort",
        Command::Adopt(_) => "adopt",
        Command::Fence(_) => "fence",
        Command::Unfence(_) => "unfence",
        Command::Execute(_) => "execute",
    })
}
