//! The network between simulated processes: carries calls straight into a process's services, or loses them on the way.
//!
//! A call may be late, lost, or answered in vain (the answer is lost); a call between the cluster's own processes may also arrive twice,
//! as if the caller had sent it again. Links are cut in one direction or both. Raft's messages are lost, delayed, doubled and overtaken one
//! by one; other streams stay in order and whole until they break. Everything follows from the seed, and everything is in the trace.
//!
//! The network also sees what replicas tell each other: two that computed different digests from one entry are wrong at once.

mod body;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{Rng, SimRng};
use coppice_proto::{Channel, HttpRequest, HttpResponse, v1};
use coppice_shard_node::Connector;
use http_body_util::BodyExt;
use prost::Message;
use tokio::{sync::oneshot, time::sleep};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, StdError, http},
    service::Routes,
};
use tower::ServiceExt;
use twox_hash::XxHash3_64;

use self::body::{AnswerBody, MessagesBody};
use crate::{event, history::Scribe, life::Life, trace::Trace};

/// Bytes before each message of a gRPC body: a flag and the length.
const PREFIX_BYTES: usize = 5;

/// What the network does to what it carries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Calls and answers lost, of a thousand; peers' messages, too.
    pub lose_per_mille: u64,
    /// Calls and peers' messages that arrive twice, of a thousand.
    pub double_per_mille: u64,
    /// Longest usual delay, in ms.
    pub delay_ms: u64,
    /// Messages that are very late, of a thousand.
    pub late_per_mille: u64,
    /// How late they may be, in ms.
    pub late_ms: u64,
}

/// How long a caller may wait for a connection that is dead before it notices.
const HANG_MS_MAX: u64 = 3000;

#[derive(Clone, Debug)]
struct Endpoint {
    life: Life,
    routes: Routes,
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

/// Waits for the next call of one kind: whoever sends or receives it dies soon after. So the rare calls are interrupted, too.
#[derive(Clone, Copy, Debug)]
pub struct Ambush {
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// The sender dies, not the receiver.
    pub sender: bool,
    /// As for [`Life::light_fuse`].
    pub messages: u64,
    /// As for [`Life::light_fuse`].
    pub turns: u64,
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

/// The network. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Net {
    state: Arc<Mutex<State>>,
    trace: Trace,
    scribe: Scribe,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug)]
struct Fate {
    there: Duration,
    lost: bool,
    back: Duration,
    answer_lost: bool,
    /// When the same call arrives once more.
    again: Option<Duration>,
    /// How long the caller is left in doubt if it is lost.
    hang: Duration,
    /// The server goes on when the caller has given up.
    detached: bool,
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

    /// Where everything is noted.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// A process serves from now on, in place of an earlier run of it.
    pub fn serve(&self, life: &Life, routes: Routes) {
        self.lock().endpoints.insert(life.name().to_owned(), Endpoint { life: life.clone(), routes });
    }

    /// Forgets who serves: their routes lead to the network again, and would keep it, and all disks, for ever.
    pub fn end(&self) {
        self.lock().endpoints.clear();
    }

    /// The weather from now on.
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

    /// A way from a process to another, by its name.
    #[must_use]
    pub fn channel(&self, from: &Life, to: &str) -> Channel {
        Channel::new(Link { net: self.clone(), from: from.clone(), to: to.to_owned() })
    }

    /// The ways of a process to all others.
    #[must_use]
    pub fn connector(&self, from: &Life) -> Arc<dyn Connector> {
        Arc::new(SimConnector { net: self.clone(), from: from.clone() })
    }

    /// Waits for a call, in place of any other that is waited for.
    pub fn set_ambush(&self, ambush: Option<Ambush>) {
        self.lock().ambush = ambush;
    }

    /// A call arrives; it may be the one that is waited for.
    fn spring(&self, from: &Life, to: &Life, path: &str, request: &[u8]) {
        let mut state = self.lock();
        let met = state.ambush.take_if(|ambush| {
            let (call, command) = ambush.kind.split_once(' ').unwrap_or((ambush.kind, ""));
            path.ends_with(call) && (command.is_empty() || command_name(request) == Some(command))
        });
        drop(state);
        if let Some(ambush) = met {
            // A client is nobody's loss: it is not started again.
            let victim = if ambush.sender && !path.contains("Ledger") { from } else { to };
            event!(self.trace, "{} will die of {ambush:?}", victim.name());
            victim.light_fuse(ambush.messages, ambush.turns);
        }
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.lock().cut.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Something that is on its way arrives.
    fn carries(&self, from: &Life, to: &Life) -> bool {
        from.is_alive() && to.is_alive() && !self.is_cut(from.name(), to.name())
    }

    /// An open stream across this link breaks now. Some only fall silent.
    fn breaks(&self, from: &Life, to: &Life) -> bool {
        if !to.is_alive() {
            return true;
        }
        let mut state = self.lock();
        state.cut.contains(&(from.name().to_owned(), to.name().to_owned())) && state.rng.chance(100)
    }

    /// When one message between peers arrives: never, once, or twice.
    fn message_delays(&self, from: &Life, to: &Life) -> Vec<Duration> {
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

    /// Reads a message between replicas: a digest that it reports is that of every other replica that applied the entry.
    fn overhear(&self, message: &[u8]) {
        use v1::peer_message::Body;
        let Ok(message) = v1::PeerMessage::decode(message) else { return };
        if let Some(Body::Digest(report)) = message.body {
            self.scribe.lock().digest(message.group, report.raft_index, message.from_raft_id, report.digest);
        }
    }

    fn delay(&self) -> Duration {
        self.lock().delay()
    }

    fn fate(&self, may_double: bool) -> Fate {
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

    /// Something is on its way between a process and the world outside; false if it gets lost.
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

    fn endpoint(&self, from: &Life, to: &str) -> Option<Endpoint> {
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

#[derive(Debug)]
struct SimConnector {
    net: Net,
    from: Life,
}

impl Connector for SimConnector {
    fn channel(&self, node: &str) -> Channel {
        self.net.channel(&self.from, node)
    }
}

/// One process's way to another.
#[derive(Clone, Debug)]
struct Link {
    net: Net,
    from: Life,
    to: String,
}

impl Service<HttpRequest> for Link {
    type Response = HttpResponse;
    type Error = StdError;
    type Future = BoxFuture<HttpResponse, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let link = self.clone();
        Box::pin(async move { link.carry(request).await.map_err(StdError::from) })
    }
}

/// The calls whose requests are streams.
fn streams(path: &str) -> bool {
    path.ends_with("/Exchange") || path.ends_with("/CommitStream")
}

/// What a shard is commanded to do.
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

/// Calls of the cluster's own processes: each may be repeated by design. Clients' calls are not repeated for them.
fn may_double(path: &str) -> bool {
    !path.starts_with("/coppice.v1.Ledger/")
}

impl Link {
    async fn carry(&self, request: HttpRequest) -> Result<HttpResponse, Status> {
        if !self.from.message() {
            // Nobody is left who could go on.
            std::future::pending::<()>().await;
        }
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        if streams(&path) {
            return self.carry_stream(head, body, &path).await;
        }
        let bytes = body.collect().await?.to_bytes();
        let fate = self.net.fate(may_double(&path));
        let (from, to) = (self.from.name(), &self.to);
        event!(self.net.trace, "{from} > {to} {path} {} {:016x} {fate:?}", bytes.len(), XxHash3_64::oneshot(&bytes));
        sleep(fate.there).await;
        let endpoint = if fate.lost { None } else { self.net.endpoint(&self.from, to) };
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.life.message()) else {
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{to} can't be reached")));
        };
        self.net.spring(&self.from, &endpoint.life, &path, &bytes);
        if let Some(again) = fate.again {
            let (link, endpoint, request) = (self.clone(), endpoint.clone(), request_of(&head, bytes.clone()));
            let path = path.clone();
            tokio::spawn(async move {
                sleep(again).await;
                event!(link.net.trace, "{} > {} {path} once more", link.from.name(), link.to);
                let (unheard, _) = oneshot::channel();
                serve(endpoint, request, unheard, true).await;
            });
        }
        let (answer, answered) = oneshot::channel();
        tokio::spawn(serve(endpoint.clone(), request_of(&head, bytes), answer, fate.detached));
        let answered = answered.await;
        self.bring_back(answered.ok(), &endpoint, fate, &path).await
    }

    /// A call whose request is a stream: the service reads it as it comes.
    async fn carry_stream(&self, head: http::request::Parts, body: Body, path: &str) -> Result<HttpResponse, Status> {
        let fate = self.net.fate(false);
        event!(self.net.trace, "{} > {} {path}", self.from.name(), self.to);
        sleep(fate.there).await;
        let Some(endpoint) = self.net.endpoint(&self.from, &self.to) else {
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{} can't be reached", self.to)));
        };
        let ordered = !path.ends_with("/Exchange");
        let body = MessagesBody::new(body, self.net.clone(), self.from.clone(), endpoint.life.clone(), ordered);
        let request = http::Request::from_parts(head, Body::new(body));
        let (answer, answered) = oneshot::channel();
        tokio::spawn(serve(endpoint.clone(), request, answer, false));
        let answered = answered.await;
        self.bring_back(answered.ok(), &endpoint, fate, path).await
    }

    async fn bring_back(
        &self,
        answer: Option<HttpResponse>,
        endpoint: &Endpoint,
        fate: Fate,
        path: &str,
    ) -> Result<HttpResponse, Status> {
        let (from, to) = (self.from.name(), &self.to);
        let Some(answer) = answer.filter(|_| endpoint.life.message()) else {
            event!(self.net.trace, "{to} > {from} {path} breaks");
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{to} has gone")));
        };
        sleep(fate.back).await;
        if fate.answer_lost || !self.net.carries(&endpoint.life, &self.from) {
            event!(self.net.trace, "{to} > {from} {path} answer lost");
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("the answer of {to} was lost")));
        }
        if !self.from.message() {
            std::future::pending::<()>().await;
        }
        let header = |name| answer.headers().get(name).and_then(|text| text.to_str().ok()).unwrap_or("-");
        let (status, message) = (header("grpc-status"), header("grpc-message"));
        event!(self.net.trace, "{to} > {from} {path} status {status} {message}");
        let (near, far) = (self.from.clone(), endpoint.life.clone());
        let (net, gone) = (self.net.clone(), body::gone(&far));
        Ok(answer.map(|inner| Body::new(AnswerBody { inner, net, near, far, frames: 0, gone })))
    }
}

fn request_of(head: &http::request::Parts, bytes: Bytes) -> HttpRequest {
    http::Request::from_parts(head.clone(), Body::new(http_body_util::Full::new(bytes)))
}

/// Has a process serve a call, until it is dead; and, unless `detached`, as long as somebody waits for the answer.
async fn serve(endpoint: Endpoint, request: HttpRequest, mut answer: oneshot::Sender<HttpResponse>, detached: bool) {
    let served = endpoint.routes.oneshot(request);
    let gone = async {
        if detached {
            std::future::pending::<()>().await;
        }
        answer.closed().await;
    };
    let response = tokio::select! {
        biased;
        () = endpoint.life.ended() => return,
        () = gone => return,
        response = served => response,
    };
    let Ok(response) = response;
    // A caller that has gone needs no answer.
    let _ = answer.send(response.map(Body::new));
}
