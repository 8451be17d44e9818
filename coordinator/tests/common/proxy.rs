//! A proxy between a coordinator and a node. It loses or delays calls as a test says.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex},
};

use coppice_proto::{
    Channel,
    v1::{
        self,
        node_client::NodeClient,
        node_server::{Node, NodeServer},
        root_client::RootClient,
        root_server::{Root, RootServer},
        shard_client::ShardClient,
        shard_server::{Shard, ShardServer},
    },
};
use coppice_shard_node::DuplexNet;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, transport::Server};

/// A call that passes the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call's name: "prepare", "adopt", "append_header" and so on.
    pub name: &'static str,
    /// The group that is called.
    pub group: u32,
}

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The call passes.
    Pass,
    /// The call never arrives, and no error is returned.
    Lost,
    /// The call arrives, but its answer does not.
    AnswerLost,
    /// The call never arrives, and the answer claims that it was carried out.
    Feigned,
}

type Rule = Box<dyn FnMut(Call) -> Fate + Send>;

/// Changes a prepare on its way.
type Tamper = Box<dyn FnMut(&mut v1::PrepareRequest) + Send>;

/// A replica's message on its way to a coordinator.
#[derive(Debug)]
pub enum Said<'a> {
    /// The number of entries that were asked about, and the attestation.
    Attest(u64, &'a mut v1::AttestResponse),
    Read(&'a mut v1::ReadRootResponse),
    TakeOver(&'a mut v1::TakeOverResponse),
    /// An answer of a shard's replica.
    Shard(&'a mut v1::ShardReadResponse),
}

/// Changes the messages of the replica on a node.
type Lie = Box<dyn FnMut(&str, Said<'_>) + Send>;

/// The rule in force, for all nodes.
#[derive(Clone, Default)]
pub struct Faults(
    Arc<Mutex<Option<Rule>>>,
    Arc<Mutex<Option<Tamper>>>,
    Arc<Mutex<BTreeSet<String>>>,
    Arc<Mutex<Option<Lie>>>,
);

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

impl Faults {
    /// Sets the rule.
    pub fn set(&self, rule: impl FnMut(Call) -> Fate + Send + 'static) {
        *self.0.lock().expect("no rule panics") = Some(Box::new(rule));
    }

    /// Lets this many prepares and headers pass; later ones meet this fate. The receiver gets a
    /// message for the last call that passes, and for each later one.
    pub fn after(&self, passing: u64, fate: Fate) -> mpsc::UnboundedReceiver<()> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut seen = 0;
        self.set(move |call| {
            if !matches!(call.name, "prepare" | "append_header") {
                return Fate::Pass;
            }
            seen += 1;
            if seen >= passing {
                // The test may have ended.
                let _ = tell.send(());
            }
            if seen > passing { fate } else { Fate::Pass }
        });
        told
    }

    /// Loses calls with this name from now on. The receiver gets a message for each.
    pub fn lose(&self, name: &'static str) -> mpsc::UnboundedReceiver<()> {
        let (tell, told) = mpsc::unbounded_channel();
        self.set(move |call| {
            if call.name != name {
                return Fate::Pass;
            }
            // The test may have ended.
            let _ = tell.send(());
            Fate::Lost
        });
        told
    }

    /// Changes every prepare from now on.
    pub fn tamper(&self, tamper: impl FnMut(&mut v1::PrepareRequest) + Send + 'static) {
        *self.1.lock().expect("no rule panics") = Some(Box::new(tamper));
    }

    /// Changes the messages of replicas from now on.
    pub fn lie(&self, lie: impl FnMut(&str, Said<'_>) + Send + 'static) {
        *self.3.lock().expect("no lie panics") = Some(Box::new(lie));
    }

    /// Passes the messages of replicas unchanged from now on.
    pub fn tell_the_truth(&self) {
        *self.3.lock().expect("no lie panics") = None;
    }

    fn is_lying(&self) -> bool {
        self.3.lock().expect("no lie panics").is_some()
    }

    fn said(&self, node: &str, said: Said<'_>) {
        if let Some(lie) = self.3.lock().expect("no lie panics").as_mut() {
            lie(node, said);
        }
    }

    /// Makes these nodes look like an older version, which does not report the headers that it
    /// knows.
    pub fn outdate(&self, nodes: &[&str]) {
        *self.2.lock().expect("no rule panics") = nodes.iter().map(|node| (*node).to_owned()).collect();
    }

    /// Lets everything pass again.
    pub fn clear(&self) {
        *self.0.lock().expect("no rule panics") = None;
    }

    fn fate(&self, name: &'static str, group: u32) -> Fate {
        match self.0.lock().expect("no rule panics").as_mut() {
            Some(rule) => rule(Call { name, group }),
            None => Fate::Pass,
        }
    }

    async fn pass<T>(
        &self,
        name: &'static str,
        group: u32,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Response<T>, Status> {
        let feigned = || Err(Status::unimplemented("only appends are feigned"));
        self.pass_or(name, group, call, feigned).await
    }

    async fn pass_or<T>(
        &self,
        name: &'static str,
        group: u32,
        call: impl Future<Output = Result<Response<T>, Status>>,
        feigned: impl FnOnce() -> Result<Response<T>, Status>,
    ) -> Result<Response<T>, Status> {
        match self.fate(name, group) {
            Fate::Pass => call.await,
            Fate::Lost => std::future::pending().await,
            Fate::Feigned => feigned(),
            Fate::AnswerLost => {
                // The call's answer is dropped.
                let _ = call.await;
                std::future::pending().await
            }
        }
    }
}

/// The name under which a node's proxy listens.
pub fn proxy_of(node: &str) -> String {
    format!("proxy-{node}")
}

#[derive(Clone, Debug)]
struct Proxy {
    node: String,
    channel: Channel,
    faults: Faults,
}

const BYTES: usize = 16 << 20;

impl Proxy {
    fn shard(&self) -> ShardClient<Channel> {
        ShardClient::new(self.channel.clone()).max_decoding_message_size(BYTES)
    }

    fn root(&self) -> RootClient<Channel> {
        RootClient::new(self.channel.clone()).max_decoding_message_size(BYTES)
    }
}

/// Starts the proxy of a node.
pub fn start(net: &DuplexNet, node: &str, faults: Faults) {
    let proxy = Proxy { node: node.to_owned(), channel: net.connector(&proxy_of(node)).channel(node), faults };
    let incoming = net.listen(&proxy_of(node));
    let server = Server::builder()
        .add_service(ShardServer::new(proxy.clone()).max_decoding_message_size(BYTES))
        .add_service(RootServer::new(proxy.clone()).max_decoding_message_size(BYTES))
        .add_service(NodeServer::new(proxy))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
}

#[tonic::async_trait]
impl Shard for Proxy {
    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        let mut request = request.into_inner();
        if let Some(tamper) = self.faults.1.lock().expect("no rule panics").as_mut() {
            tamper(&mut request);
        }
        let group = request.group;
        self.faults.pass("prepare", group, self.shard().prepare(request)).await
    }

    async fn command(
        &self,
        request: Request<v1::ShardCommandRequest>,
    ) -> Result<Response<v1::ShardCommandResponse>, Status> {
        use v1::shard_command_request::Command;
        let request = request.into_inner();
        let name = match &request.command {
            Some(Command::Adopt(_)) => "adopt",
            Some(Command::Finalize(_)) => "finalize",
            Some(Command::Abort(_)) => "abort",
            Some(Command::Fence(_)) => "fence",
            Some(Command::Unfence(_)) => "unfence",
            Some(Command::Execute(_)) => "execute",
            None => "nothing",
        };
        let group = request.group;
        self.faults.pass(name, group, self.shard().command(request)).await
    }

    async fn read(&self, request: Request<v1::ShardReadRequest>) -> Result<Response<v1::ShardReadResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        let mut answer = self.faults.pass("read", group, self.shard().read(request)).await?;
        self.faults.said(&self.node, Said::Shard(answer.get_mut()));
        Ok(answer)
    }

    async fn scan(&self, request: Request<v1::ShardScanRequest>) -> Result<Response<v1::ShardScanResponse>, Status> {
        let request = request.into_inner();
        let group = request.group;
        self.faults.pass("scan", group, self.shard().scan(request)).await
    }
}

#[tonic::async_trait]
impl Root for Proxy {
    async fn take_over(&self, request: Request<v1::TakeOverRequest>) -> Result<Response<v1::TakeOverResponse>, Status> {
        let mut answer = self.faults.pass("take_over", 0, self.root().take_over(request.into_inner())).await?;
        self.faults.said(&self.node, Said::TakeOver(answer.get_mut()));
        Ok(answer)
    }

    async fn append_header(
        &self,
        request: Request<v1::AppendHeaderRequest>,
    ) -> Result<Response<v1::AppendHeaderResponse>, Status> {
        let mut root = self.root();
        let call = root.append_header(request.into_inner());
        self.faults.pass_or("append_header", 0, call, || Ok(Response::new(v1::AppendHeaderResponse::default()))).await
    }

    async fn open_root_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        self.faults.pass("open_session", 0, self.root().open_root_session(request.into_inner())).await
    }

    async fn set_pin(&self, request: Request<v1::PinRequest>) -> Result<Response<v1::PinResponse>, Status> {
        self.faults.pass("set_pin", 0, self.root().set_pin(request.into_inner())).await
    }

    async fn drop_pin(&self, request: Request<v1::UnpinRequest>) -> Result<Response<v1::UnpinResponse>, Status> {
        self.faults.pass("drop_pin", 0, self.root().drop_pin(request.into_inner())).await
    }

    async fn read_root(&self, request: Request<v1::ReadRootRequest>) -> Result<Response<v1::ReadRootResponse>, Status> {
        use v1::read_root_request::Read;
        let mut request = request.into_inner();
        if self.faults.is_lying() && matches!(request.read, Some(Read::ViewUnless(_))) {
            // A liar has to show a view.
            request.read = Some(Read::View(true));
        }
        let name = match &request.read {
            Some(Read::LogProof(_)) => "prove_log",
            _ => "read_root",
        };
        let mut answer = self.faults.pass(name, 0, self.root().read_root(request)).await?;
        self.faults.said(&self.node, Said::Read(answer.get_mut()));
        Ok(answer)
    }

    async fn attest(&self, request: Request<v1::AttestRequest>) -> Result<Response<v1::AttestResponse>, Status> {
        let request = request.into_inner();
        let mut answer = self.faults.pass("attest", 0, self.root().attest(request)).await?;
        self.faults.said(&self.node, Said::Attest(request.size, answer.get_mut()));
        Ok(answer)
    }
}

#[tonic::async_trait]
impl Node for Proxy {
    async fn node_status(
        &self,
        request: Request<v1::NodeStatusRequest>,
    ) -> Result<Response<v1::NodeStatusResponse>, Status> {
        let mut answer = NodeClient::new(self.channel.clone()).node_status(request.into_inner()).await?;
        if self.faults.2.lock().expect("no rule panics").contains(&answer.get_ref().node) {
            answer.get_mut().header_kinds.clear();
        }
        Ok(answer)
    }

    async fn leads(&self, request: Request<v1::LeadsRequest>) -> Result<Response<v1::LeadsResponse>, Status> {
        NodeClient::new(self.channel.clone()).leads(request.into_inner()).await
    }

    async fn change_member(
        &self,
        request: Request<v1::ChangeMemberRequest>,
    ) -> Result<Response<v1::ChangeMemberResponse>, Status> {
        NodeClient::new(self.channel.clone()).change_member(request.into_inner()).await
    }
}
