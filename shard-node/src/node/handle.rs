//! A node: its replicas, the services in front of them, and the handle that starts and stops them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_env::Storage;
use coppice_process::{
    access::Guard,
    net::{Front, Services},
};
use coppice_proto::v1::{
    self, node_server::NodeServer, peer_server::PeerServer, root_server::RootServer, shard_server::ShardServer,
};
use coppice_types::{GroupId, RaftId};
use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};
use tonic::{service::Routes, transport::server::Connected};

use super::{
    beats, health, metrics,
    options::{Options, ReplicaOptions},
};
use crate::{
    Error,
    hosted::{Hosted, Replica},
    limits::{PEER_MESSAGE_EXTRA_BYTES, message_bytes},
    net::peers::{Peers, Sender, Unreachable},
    replica::{
        self, Config, Durations, ReplicaHandle, Reserve, Site, Sleepers, Work,
        home::{self, Identity},
    },
    service::{NodeService, PeerService, RootService, ShardService},
    shard::{ShardConfig, ShardMachine},
};

/// How long open calls may take to end when the node stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running node. All clones refer to the same node. When the last one is dropped, the node ends
/// as if its process had died.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    hosted: Arc<Hosted>,
    work: Mutex<BTreeMap<GroupId, Work>>,
    /// Held while a replica is started or stopped, so that one change is made at a time.
    changing: tokio::sync::Mutex<()>,
    shutdown: Mutex<Option<oneshot::Sender<()>>>,
    server: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let replicas = std::mem::take(&mut *self.hosted.replicas.write().unwrap_or_else(PoisonError::into_inner));
        replicas.values().for_each(|replica| replica.close());
        // A prover without its handle ends by itself.
        replicas.keys().for_each(|group| drop(self.hosted.take_prover(*group)));
        self.hosted.hang_up();
    }
}

/// Starts nodes.
#[derive(Debug)]
pub struct Node;

impl Node {
    /// The raft id of the group's replica in a node's directory; `None` if there is no replica.
    ///
    /// # Errors
    /// If the directory cannot be read or is damaged.
    pub fn stored_raft_id(storage: &dyn Storage, group: GroupId) -> Result<Option<RaftId>, Error> {
        Ok(home::stored(storage, group)?.map(|identity| identity.raft_id))
    }

    /// Starts a node's replicas and serves them on `incoming`. Runs on the present tokio runtime.
    ///
    /// # Errors
    /// If a replica cannot be started; then none runs.
    pub async fn start<I, IO, E>(options: Options, incoming: I) -> Result<Handle, Error>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IO::ConnectInfo: Clone + Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let (handle, _) = Self::start_guarded(options, incoming, None).await?;
        Ok(handle)
    }

    /// Like [`start`](Self::start), but also checks callers' roles on connections that authenticate
    /// them. Returns the services for callers in this process, too.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn start_guarded<I, IO, E>(
        options: Options,
        incoming: I,
        guard: Option<Guard>,
    ) -> Result<(Handle, Services), Error>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IO::ConnectInfo: Clone + Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let (handle, routes) = Self::open(options).await?;
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut routes = routes.add_service(health);
        if let Some(guard) = guard {
            routes = guard.over(routes);
        }
        tokio::spawn(health::report(Arc::clone(handle.hosted()), reporter));
        let (shutdown, ended) = oneshot::channel();
        *handle.inner.shutdown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shutdown);
        let front = Front::new();
        let services = front.services(routes.clone());
        let server = tokio::spawn(serve(front, routes, incoming, ended));
        *handle.inner.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok((handle, services))
    }

    /// Starts a node's replicas and returns its services, for the caller's own transport. Runs on
    /// the present tokio runtime.
    ///
    /// # Errors
    /// If a replica cannot be started; then none runs.
    pub async fn open(options: Options) -> Result<(Handle, Routes), Error> {
        let runtime = tokio::runtime::Handle::current();
        let replicas = options.replicas.clone();
        let ended = home::end_removals(options.storage.as_ref());
        ended.map_err(crate::error::storage("end the removal of a directory"))?;
        let pim = options.pim.clone();
        let hosted = Arc::new_cyclic(|weak| {
            let hosted = Hosted::new(weak, |unreachable| site(options, unreachable, runtime));
            hosted.with_modules(pim.as_ref())
        });
        metrics::show(&hosted);
        let (site, closing) = (Arc::clone(&hosted.site), hosted.closing.subscribe());
        tokio::spawn(beats::send(site, Arc::downgrade(&hosted), closing));
        let inner = Inner {
            hosted: Arc::clone(&hosted),
            work: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            shutdown: Mutex::default(),
            server: Mutex::default(),
        };
        let handle = Handle { inner: Arc::new(inner) };
        for replica in replicas {
            if let Err(error) = handle.start_replica(replica).await {
                handle.kill().await;
                return Err(error);
            }
        }
        for (group, _) in handle.hosted().all() {
            handle.resume_joining(group);
        }
        Ok((handle, routes(&hosted)))
    }
}

/// The environment that a node with these options shares with its replicas.
fn site(options: Options, unreachable: Unreachable, runtime: tokio::runtime::Handle) -> Site {
    let message_bytes_max = message_bytes(&options.params);
    let sender = Sender {
        node: options.node.clone(),
        cluster: options.cluster_id,
        connector: Arc::clone(&options.connector),
        message_bytes_max: message_bytes_max + PEER_MESSAGE_EXTRA_BYTES,
        unreachable,
    };
    Site {
        peers: Peers::new(sender, runtime.clone()),
        node: options.node,
        cluster: options.cluster_id,
        params: options.params,
        message_bytes_max,
        reserve: Reserve::new(Arc::clone(&options.storage), options.replicas.iter().map(|replica| replica.group)),
        storage: options.storage,
        connector: options.connector,
        clock: options.clock,
        seed: options.seed,
        tuning: options.tuning,
        runtime,
        durations: Durations::new(),
        sleepers: Sleepers::default(),
        nodes: options.nodes,
        readers: options.readers,
        learned: Default::default(),
    }
}

/// The services of a node.
fn routes(hosted: &Arc<Hosted>) -> Routes {
    let hosted = Arc::clone(hosted);
    let max = hosted.message_bytes_max;
    let peer_max = max + PEER_MESSAGE_EXTRA_BYTES;
    let peer = PeerServer::new(PeerService { hosted: Arc::clone(&hosted) }).max_decoding_message_size(peer_max);
    let shard = ShardServer::new(ShardService { hosted: Arc::clone(&hosted) });
    let root = RootServer::new(RootService { hosted: Arc::clone(&hosted) });
    Routes::new(peer)
        .add_service(shard.max_decoding_message_size(max).max_encoding_message_size(max))
        .add_service(root.max_decoding_message_size(max).max_encoding_message_size(max))
        .add_service(NodeServer::new(NodeService { hosted }))
}

/// Runs the node's gRPC server until it is told to end.
async fn serve<I, IO, E>(front: Front, routes: Routes, incoming: I, ended: oneshot::Receiver<()>)
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IO::ConnectInfo: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let router = front.server().add_routes(routes);
    let shutdown = async {
        // This also ends when the handle is dropped.
        let _ = ended.await;
    };
    if let Err(error) = router.serve_with_incoming_shutdown(incoming, shutdown).await {
        tracing::error!(%error, "the node's server ended");
        coppice_process::health::cannot_recover(&format!("the node's server ended: {error}"));
    }
}

impl Handle {
    /// The replicas of the node, and the state that they share.
    #[must_use]
    pub fn hosted(&self) -> &Arc<Hosted> {
        &self.inner.hosted
    }

    /// The status of the node and of all its replicas.
    #[must_use]
    pub fn status(&self) -> v1::NodeStatusResponse {
        self.inner.hosted.report()
    }

    /// Whether the node can serve its role: each of its replicas has its state, votes, and knows a
    /// leader.
    ///
    /// # Errors
    /// Names a replica that does not.
    pub fn readiness(&self) -> Result<(), String> {
        health::readiness(self.hosted())
    }

    /// Whether the node can become ready without a restart: none of its replicas has stopped for
    /// good.
    ///
    /// # Errors
    /// Names a replica that has stopped, and the reason.
    pub fn liveness(&self) -> Result<(), String> {
        health::liveness(self.hosted())
    }

    /// Starts a replica from its directory, or as its options say if it has none.
    ///
    /// # Errors
    /// If a replica of the group runs here, or the directory is in use, another replica's, or
    /// damaged beyond repair by raft.
    pub async fn start_replica(&self, options: ReplicaOptions) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        let group = options.group;
        if self.inner.hosted.replica(group).is_some() {
            return Err(Error::ReplicaRuns(group));
        }
        let hosted = Arc::clone(&self.inner.hosted);
        let runner = hosted.tuning.runner.clone();
        let started = runner.blocking(move || start(&hosted, options)).await;
        let (replica, work) = started.unwrap_or(Err(Error::Overdue("the start of a replica")))?;
        if let Replica::Shard(replica) = &replica {
            self.start_prover(replica).await;
        }
        self.inner.hosted.replicas.write().unwrap_or_else(PoisonError::into_inner).insert(group, replica);
        self.inner.work.lock().unwrap_or_else(PoisonError::into_inner).insert(group, work);
        Ok(())
    }

    /// Starts what makes proofs of a reader's shard in memory modules, if the node has some.
    async fn start_prover(&self, replica: &ReplicaHandle<ShardMachine>) {
        let (hosted, replica) = (Arc::clone(self.hosted()), replica.clone());
        let runner = hosted.tuning.runner.clone();
        let _ = runner.blocking(move || hosted.start_prover(&replica)).await;
    }

    /// Stops a replica as if its process had died: nothing is flushed or handed over.
    ///
    /// # Errors
    /// If no replica of the group runs here.
    pub async fn stop_replica(&self, group: GroupId) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.end(group).await
    }

    async fn end(&self, group: GroupId) -> Result<(), Error> {
        let replica = self.inner.hosted.replicas.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
        let prover = self.inner.hosted.take_prover(group);
        replica.ok_or(Error::NoReplica(group))?.close();
        if let Some(prover) = prover {
            // A later replica of the group may want the same DPUs.
            let _ = self.inner.hosted.tuning.runner.blocking(move || prover.close()).await;
        }
        let work = self.inner.work.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        if let Some(work) = work {
            work.ended().await;
        }
        Ok(())
    }

    /// Stops a replica, if it runs, and removes its directory.
    ///
    /// # Errors
    /// If the directory cannot be removed.
    pub async fn wipe_replica(&self, group: GroupId) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        match self.end(group).await {
            Ok(()) | Err(Error::NoReplica(_)) => {}
            Err(error) => return Err(error),
        }
        let storage = Arc::clone(&self.inner.hosted.storage);
        let runner = self.inner.hosted.tuning.runner.clone();
        let removed = runner.blocking(move || home::remove(storage.as_ref(), group)).await;
        match removed {
            Some(result) => {
                result.map_err(crate::error::storage("remove the replica's directory"))?;
                self.inner.hosted.reserve.leave(group)
            }
            None => Err(Error::Overdue("the removal of a directory")),
        }
    }

    /// Stops the node gracefully: leaderships are handed over, and everything is flushed.
    pub async fn stop(&self) {
        self.retire(true).await;
    }

    /// Stops the node gracefully along with its whole cluster: everything is flushed, and no
    /// leadership is handed over.
    pub async fn stop_with_cluster(&self) {
        self.retire(false).await;
    }

    async fn retire(&self, hand_over: bool) {
        let retiring = self.inner.hosted.all().into_values();
        futures::future::join_all(retiring.map(|replica| async move { replica.retire(hand_over).await })).await;
        self.close(DRAIN_TIMEOUT).await;
    }

    /// Stops the node as if its process had died.
    pub async fn kill(&self) {
        self.close(Duration::ZERO).await;
    }

    /// Ends replicas, streams and server. Open calls have `drain` to end.
    async fn close(&self, drain: Duration) {
        let _one_at_a_time = self.inner.changing.lock().await;
        for group in self.inner.hosted.all().into_keys() {
            // The lock is held, so the replica is still there.
            let _ = self.end(group).await;
        }
        self.inner.hosted.hang_up();
        drop(self.inner.shutdown.lock().unwrap_or_else(PoisonError::into_inner).take());
        let server = self.inner.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut server) = server
            && tokio::time::timeout(drain, &mut server).await.is_err()
        {
            server.abort();
        }
    }
}

fn start(hosted: &Arc<Hosted>, options: ReplicaOptions) -> Result<(Replica, Work), Error> {
    let ReplicaOptions { group, raft_id, bootstrap } = options;
    let identity = Identity { cluster: hosted.cluster, group, raft_id };
    let site = Arc::clone(&hosted.site);
    match group {
        GroupId::Root => {
            let machine = site.tuning.runner.clone();
            let (replica, work) = replica::start(Config { identity, bootstrap, machine, site })?;
            Ok((Replica::Root(replica), work))
        }
        GroupId::Shard(shard) => {
            let machine = ShardConfig {
                shard,
                params: site.params.clone(),
                engine: site.tuning.engine.clone(),
                flush_bytes_max: site.tuning.flush_bytes_max,
                runner: site.tuning.runner.clone(),
            };
            let (replica, work) = replica::start(Config { identity, bootstrap, machine, site })?;
            Ok((Replica::Shard(replica), work))
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_process::net::CALLS_PER_CONNECTION_MAX;
    use tokio::sync::{Semaphore, mpsc};
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::DuplexNet;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A service that reports each call, and answers it only when the test allows that.
    struct Slow {
        came: mpsc::Sender<()>,
        go: Arc<Semaphore>,
    }

    #[tonic::async_trait]
    impl v1::node_server::Node for Slow {
        async fn node_status(
            &self,
            _request: Request<v1::NodeStatusRequest>,
        ) -> Result<Response<v1::NodeStatusResponse>, Status> {
            self.came.send(()).await.map_err(|_| Status::internal("the test is over"))?;
            let _go = self.go.acquire().await.map_err(|_| Status::internal("the test is over"))?;
            Ok(Response::new(v1::NodeStatusResponse::default()))
        }

        async fn leads(&self, _request: Request<v1::LeadsRequest>) -> Result<Response<v1::LeadsResponse>, Status> {
            Ok(Response::new(v1::LeadsResponse::default()))
        }

        async fn change_member(
            &self,
            _request: Request<v1::ChangeMemberRequest>,
        ) -> Result<Response<v1::ChangeMemberResponse>, Status> {
            Ok(Response::new(v1::ChangeMemberResponse::default()))
        }
    }

    #[tokio::test]
    async fn calls_beyond_the_limit_of_a_connection_wait_at_their_client_and_hold_up_no_other() {
        let (came, mut coming) = mpsc::channel(1);
        let go = Arc::new(Semaphore::new(0));
        let routes = Routes::new(NodeServer::new(Slow { came, go: Arc::clone(&go) }));
        let net = DuplexNet::new();
        let (end, ended) = oneshot::channel();
        let server = tokio::spawn(serve(Front::new(), routes, net.listen("node"), ended));
        let client = || v1::node_client::NodeClient::new(net.connector("client").channel("node"));
        let busy = client();
        let call = || {
            let mut busy = busy.clone();
            tokio::spawn(async move { busy.node_status(v1::NodeStatusRequest {}).await })
        };
        let calls: Vec<_> = (0..=CALLS_PER_CONNECTION_MAX).map(|_| call()).collect();
        for _ in 0..CALLS_PER_CONNECTION_MAX {
            tokio::time::timeout(LIMIT, coming.recv()).await.expect("so many come").expect("the server lives");
        }
        let mut other = client();
        let answer = other.leads(v1::LeadsRequest { group: 0 });
        tokio::time::timeout(LIMIT, answer).await.expect("it does not wait").expect("another connection has room");
        assert!(coming.try_recv().is_err(), "the last one waits with its client");
        go.add_permits(1);
        for call in calls {
            let answer = tokio::time::timeout(LIMIT, call).await.expect("each is answered, the last one too");
            answer.expect("it does not panic").expect("none is refused");
        }
        drop((end, busy));
        server.abort();
    }
}
