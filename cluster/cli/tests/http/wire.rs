//! HTTP/1.1 over a plain socket.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::common::{Dev, LIMIT};

/// An answer, as it was received.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header, which occurs once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        let value = values.next();
        assert!(values.next().is_none(), "{name} occurs twice: {}", self.head);
        value
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("it is text")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A connection to a ledger.
pub struct Wire {
    pub stream: TcpStream,
    /// Bytes that were received and not looked at.
    ahead: Vec<u8>,
}

impl Wire {
    pub fn open(dev: &Dev) -> Self {
        let stream = TcpStream::connect(dev.endpoint.replace("http://", "")).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        Self { stream, ahead: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("it is open");
    }

    fn fill(&mut self) -> usize {
        let mut part = [0; 4096];
        let count = self.stream.read(&mut part).unwrap_or(0);
        self.ahead.extend_from_slice(&part[..count]);
        count
    }

    /// The next answer, whose length is stated.
    pub fn answer(&mut self) -> Answer {
        let end = loop {
            match self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => assert!(self.fill() > 0, "closed: {}", String::from_utf8_lossy(&self.ahead)),
            }
        };
        let head = String::from_utf8(self.ahead.drain(..end).collect()).expect("a head is text");
        let code = head.get(9..12).and_then(|code| code.parse().ok()).expect("a code");
        let mut answer = Answer { code, head, body: Vec::new() };
        let length: usize = answer.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        while self.ahead.len() < length {
            assert!(self.fill() > 0, "closed within a body: {answer:?}");
        }
        answer.body = self.ahead.drain(..length).collect();
        answer
    }

    /// Reads until the other end closes. Fails if that takes longer than `limit`.
    pub fn until_closed(mut self, limit: Duration) -> Vec<u8> {
        self.stream.set_read_timeout(Some(limit)).expect("a limit");
        let mut part = [0; 64 << 10];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return self.ahead,
                Ok(count) => self.ahead.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("still open after {limit:?}"),
                // A reset is an end, too.
                Err(_) => return self.ahead,
            }
        }
    }
}

/// Sends one request on a connection of its own.
pub fn ask(dev: &Dev, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut wire = Wire::open(dev);
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: ledger\r\n");
    if !body.is_empty() || method == "PUT" || method == "POST" {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    headers.iter().for_each(|header| head += &format!("{header}\r\n"));
    wire.send([head.as_bytes(), b"\r\n", body].concat());
    wire.answer()
}
