use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::replica::tests::LIMIT;

/// A pipe from `a` to `b`, and its end at `b`.
async fn pipe(net: &DuplexNet, incoming: &mut Incoming) -> (Pipe, Pipe) {
    let near = net.connect("a", "b").expect("b listens");
    let far = incoming.next().await.expect("the net is there").expect("it is a pipe");
    (near, far)
}

#[tokio::test]
async fn bytes_cross_a_pipe_in_both_directions_until_an_end_is_shut() {
    let net = DuplexNet::new();
    let mut incoming = net.listen("b");
    let (mut near, mut far) = pipe(&net, &mut incoming).await;
    near.write_all(b"ping").await.expect("it is open");
    let mut bytes = [0; 4];
    far.read_exact(&mut bytes).await.expect("it is open");
    far.write_all(b"pong").await.expect("it is open");
    far.shutdown().await.expect("it is open");
    let mut all = Vec::new();
    let read = tokio::time::timeout(LIMIT, near.read_to_end(&mut all)).await;
    read.expect("the end comes").expect("it was shut in order");
    assert_eq!((&bytes, &all[..]), (b"ping", &b"pong"[..]));
}

#[tokio::test]
async fn a_cut_breaks_both_ends_of_open_pipes_and_refuses_new_ones_until_it_is_healed() {
    let net = DuplexNet::new();
    let (mut incoming, _other) = (net.listen("b"), net.listen("c"));
    let (mut near, mut far) = pipe(&net, &mut incoming).await;
    net.cut("b", "a");
    net.cut("a", "b");
    for end in [&mut near, &mut far] {
        let read = tokio::time::timeout(LIMIT, end.read_u8()).await.expect("it is noticed");
        let reset = read.expect_err("it is cut");
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        end.write_all(b"x").await.expect_err("it is cut");
    }
    let refused = |from: &str, to: &str| net.connect(from, to).map(drop).map_err(|error| error.kind());
    assert_eq!(refused("a", "b"), Err(io::ErrorKind::ConnectionRefused));
    assert_eq!(refused("a", "c"), Ok(()), "other links are whole");
    net.heal("b", "a");
    assert_eq!(refused("a", "b"), Ok(()), "two cuts are one");
    near.read_u8().await.expect_err("an old pipe stays broken");
}

#[tokio::test]
async fn a_pipe_to_nobody_or_to_a_listener_that_accepts_nothing_is_refused() {
    let net = DuplexNet::new();
    let refused = || net.connect("a", "b").map(drop).map_err(|error| error.to_string());
    assert_eq!(refused(), Err("b does not listen".to_owned()));
    let incoming = net.listen("b");
    let waiting: Vec<_> = (0..ACCEPT_QUEUE_MAX).map(|_| net.connect("a", "b").expect("there is room")).collect();
    assert_eq!(refused(), Err("b does not accept".to_owned()));
    drop((waiting, incoming));
    assert_eq!(refused(), Err("b does not accept".to_owned()), "the listener has gone");
    let _again = net.listen("b");
    assert_eq!(refused(), Ok(()), "a new listener takes its place");
}

#[tokio::test]
async fn pipes_that_were_closed_are_forgotten() {
    let net = DuplexNet::new();
    let mut incoming = net.listen("b");
    for _ in 0..100 {
        drop(pipe(&net, &mut incoming).await);
    }
    let open: usize = net.lock().open.values().map(Vec::len).sum();
    assert!(open <= 2, "{open} ends of closed pipes are kept");
}
