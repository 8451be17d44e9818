//! A relay that delays what a client sends, so that each round trip takes longer.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

use coppice_env::{Clock, SystemClock};

/// Messages of one connection that are on their way.
const ON_THE_WAY_MAX: usize = 4_096;

/// A relay. It ends with the process.
pub struct Relay {
    endpoint: String,
}

impl Relay {
    /// Starts a relay to a server. Without a delay there is none.
    pub fn start(server: &str, delay: Duration) -> std::io::Result<Self> {
        if delay.is_zero() {
            return Ok(Self { endpoint: server.to_owned() });
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let server = server.trim_start_matches("http://").to_owned();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let connected = TcpStream::connect(&server).and_then(|server| pass(client, server, delay));
                if let Err(error) = connected {
                    eprintln!("the relay: {error}");
                }
            }
        });
        Ok(Self { endpoint })
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

fn pass(mut client: TcpStream, mut server: TcpStream, delay: Duration) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut back, mut answers) = (client.try_clone()?, server.try_clone()?);
    let clock = SystemClock::new();
    let (sender, receiver) = sync_channel(ON_THE_WAY_MAX);
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            if sender.send((clock.now() + delay, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            wait(&clock, due);
            if server.write_all(&bytes).is_err() {
                break;
            }
        }
        // The other side may have closed it already.
        let _ = server.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        // A broken connection ends it.
        let _ = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Waits until a time. The channel is never written, so only the time ends the wait.
fn wait(clock: &SystemClock, due: Duration) {
    let (_sender, never): (_, Receiver<()>) = sync_channel(0);
    while let Some(left) = due.checked_sub(clock.now()).filter(|left| !left.is_zero()) {
        if never.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}
