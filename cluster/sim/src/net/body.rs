//! Bodies on their way: streams that break, and streams of raft messages, which may be lost, late
//! or doubled.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body};
use twox_hash::XxHash3_64;

use super::medium::{Net, PREFIX_BYTES};
use crate::{event, life::Life};

/// The answer of a server. It breaks off when the link is cut or one end dies.
pub struct AnswerBody {
    pub inner: Body,
    pub net: Net,
    /// The process that reads.
    pub near: Life,
    /// The process that answers.
    pub far: Life,
    /// Number of frames so far. The first travels with the head.
    pub frames: u64,
    /// Ends with the server.
    pub gone: Gone,
}

/// Ends when a process does.
pub type Gone = Pin<Box<dyn Future<Output = ()> + Send>>;

pub fn gone(life: &Life) -> Gone {
    let life = life.clone();
    Box::pin(async move { life.ended().await })
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.near.is_alive() {
            return Poll::Pending;
        }
        if self.frames > 1 && !self.net.carries(&self.far, &self.near) {
            return Poll::Ready(Some(Err(Status::unavailable("the stream broke"))));
        }
        let frame = match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending if self.gone.as_mut().poll(cx).is_ready() => {
                return Poll::Ready(Some(Err(Status::unavailable("the stream broke"))));
            }
            Poll::Pending => return Poll::Pending,
        };
        self.frames += 1;
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let (near, far) = (self.near.name(), self.far.name());
            event!(self.net.trace(), "{far} > {near} data {} {:016x}", data.len(), XxHash3_64::oneshot(data));
        }
        Poll::Ready(frame)
    }
}

/// A stream of messages.
pub struct MessagesBody {
    inner: Body,
    net: Net,
    from: Life,
    to: Life,
    /// Whether all messages arrive in order or the stream breaks. Otherwise messages are lost, late
    /// and doubled one by one.
    ordered: bool,
    ended: bool,
    buffer: BytesMut,
    /// Messages on their way, in order of arrival.
    flying: BTreeMap<(Instant, u64), Bytes>,
    count: u64,
    arrived: VecDeque<Bytes>,
    sleep: Pin<Box<Sleep>>,
    gone: Gone,
}

impl MessagesBody {
    pub fn new(inner: Body, net: Net, from: Life, to: Life, ordered: bool) -> Self {
        Self {
            ordered,
            gone: gone(&from),
            inner,
            net,
            from,
            to,
            ended: false,
            buffer: BytesMut::new(),
            flying: BTreeMap::new(),
            count: 0,
            arrived: VecDeque::new(),
            sleep: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Takes the messages that the sender has put in.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        while !self.ended {
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(frame)) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
        while self.buffer.len() >= PREFIX_BYTES {
            let length = (&self.buffer[1..PREFIX_BYTES]).get_u32() as usize + PREFIX_BYTES;
            if self.buffer.len() < length {
                break;
            }
            let message = self.buffer.split_to(length).freeze();
            self.launch(&message);
        }
        Ok(())
    }

    fn launch(&mut self, message: &Bytes) {
        let (from, to) = (self.from.name(), self.to.name());
        let hash = XxHash3_64::oneshot(message);
        if !self.from.message() {
            return;
        }
        let delays = if self.ordered {
            let newest = self.flying.last_key_value().map(|((due, _), _)| due.duration_since(Instant::now()));
            vec![newest.unwrap_or_default().max(self.net.delay())]
        } else {
            self.net.overhear(&message[PREFIX_BYTES..]);
            self.net.message_delays(&self.from, &self.to)
        };
        event!(self.net.trace(), "{from} > {to} message {} {hash:016x} in {delays:?}", message.len());
        for delay in delays {
            self.count += 1;
            self.flying.insert((Instant::now() + delay, self.count), message.clone());
        }
    }
}

impl HttpBody for MessagesBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let cut = self.ordered && self.net.is_cut(self.from.name(), self.to.name());
        if cut || self.gone.as_mut().poll(cx).is_ready() || self.net.breaks(&self.from, &self.to) {
            return Poll::Ready(Some(Err(Status::unavailable("the stream broke"))));
        }
        if let Err(error) = self.take_in(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            if let Some(message) = self.arrived.pop_front() {
                if !self.to.message() {
                    return Poll::Ready(Some(Err(Status::unavailable("the stream broke"))));
                }
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            let now = Instant::now();
            let Some((&(due, count), _)) = self.flying.first_key_value() else {
                return if self.ended { Poll::Ready(None) } else { Poll::Pending };
            };
            if due <= now {
                let message = self.flying.remove(&(due, count)).expect("it is the first");
                self.arrived.push_back(message);
                continue;
            }
            self.sleep.as_mut().reset(due.max(now + Duration::from_millis(1)));
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
