//! The in-process network behind the [`Connector`] seam.
//!
//! [`DuplexNet`] connects services of one process by memory pipes. No port is opened, but every
//! byte goes through HTTP/2 as it would between processes. Tests can cut links: open pipes break,
//! and new ones are refused until the link is healed.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use coppice_proto::Channel;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::{mpsc, oneshot},
};
use tonic::transport::{Uri, server::Connected};

use super::connector::{Connector, endpoint};

/// Limit on the bytes that a pipe holds before its writer waits.
const PIPE_BYTES_MAX: usize = 256 << 10;
/// Limit on the connections that wait to be accepted.
const ACCEPT_QUEUE_MAX: usize = 64;

/// Pipes between the services of one process, by name.
#[derive(Clone, Default)]
pub struct DuplexNet {
    state: Arc<Mutex<NetState>>,
}

#[derive(Default)]
struct NetState {
    listeners: BTreeMap<String, mpsc::Sender<io::Result<Pipe>>>,
    /// Links that are cut, by the sorted names of their ends.
    cut: Vec<(String, String)>,
    /// The breakers of open pipes: dropping one breaks both ends.
    open: BTreeMap<(String, String), Vec<oneshot::Sender<()>>>,
}

impl fmt::Debug for DuplexNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DuplexNet").finish_non_exhaustive()
    }
}

fn link(a: &str, b: &str) -> (String, String) {
    if a <= b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) }
}

impl DuplexNet {
    /// A network without listeners.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections to `name` from now on, replacing an earlier listener of that name.
    #[must_use]
    pub fn listen(&self, name: &str) -> Incoming {
        let (sender, receiver) = mpsc::channel(ACCEPT_QUEUE_MAX);
        self.lock().listeners.insert(name.to_owned(), sender);
        Incoming { receiver }
    }

    /// A connector that connects as `from`.
    #[must_use]
    pub fn connector(&self, from: &str) -> Arc<dyn Connector> {
        Arc::new(DuplexConnector { net: self.clone(), from: from.to_owned() })
    }

    /// Breaks all pipes between two names and refuses new ones.
    pub fn cut(&self, a: &str, b: &str) {
        let mut state = self.lock();
        let link = link(a, b);
        state.open.remove(&link);
        if !state.cut.contains(&link) {
            state.cut.push(link);
        }
    }

    /// Allows connections between two names again.
    pub fn heal(&self, a: &str, b: &str) {
        let link = link(a, b);
        self.lock().cut.retain(|cut| *cut != link);
    }

    fn connect(&self, from: &str, to: &str) -> io::Result<Pipe> {
        let mut state = self.lock();
        let link = link(from, to);
        if state.cut.contains(&link) {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("the link {from} - {to} is cut")));
        }
        let Some(listener) = state.listeners.get(to) else {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("{to} does not listen")));
        };
        let (near, far) = tokio::io::duplex(PIPE_BYTES_MAX);
        let (near_breaker, near_broken) = oneshot::channel();
        let (far_breaker, far_broken) = oneshot::channel();
        listener
            .try_send(Ok(Pipe { inner: far, broken: far_broken }))
            .map_err(|_| io::Error::new(io::ErrorKind::ConnectionRefused, format!("{to} does not accept")))?;
        let breakers = state.open.entry(link).or_default();
        breakers.retain(|breaker| !breaker.is_closed());
        breakers.extend([near_breaker, far_breaker]);
        Ok(Pipe { inner: near, broken: near_broken })
    }
}

struct DuplexConnector {
    net: DuplexNet,
    from: String,
}

impl fmt::Debug for DuplexConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DuplexConnector").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Connector for DuplexConnector {
    fn channel(&self, node: &str) -> Channel {
        let (net, from, to) = (self.net.clone(), self.from.clone(), node.to_owned());
        let service = tower::service_fn(move |_: Uri| {
            let pipe = net.connect(&from, &to);
            async move { pipe.map(TokioIo::new) }
        });
        endpoint(&self.from).connect_with_connector_lazy(service).into()
    }
}

/// The connections that reach a listener.
#[derive(Debug)]
pub struct Incoming {
    receiver: mpsc::Receiver<io::Result<Pipe>>,
}

impl futures::Stream for Incoming {
    type Item = io::Result<Pipe>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(cx)
    }
}

/// One end of an in-process connection; it breaks when its link is cut.
#[derive(Debug)]
pub struct Pipe {
    inner: DuplexStream,
    broken: oneshot::Receiver<()>,
}

impl Pipe {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // A receiver that has told of the cut panics if it is asked again.
        match self.broken.is_terminated() || Pin::new(&mut self.broken).poll(cx).is_ready() {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl Connected for Pipe {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

#[cfg(test)]
mod tests;
