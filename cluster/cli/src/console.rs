//! `coppice console`: pages in a browser that read a ledger and verify what they show.
//!
//! The browser verifies, and not this process. So the calls go on unchecked, by a client that
//! trusts no key, and a lie is shown as one. What to trust comes from the command line alone.

mod forward;

use coppice_client::Client;
use coppice_console::{Guard, Settings};
use coppice_env::{Rng, SystemRng};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::Console,
    dev::Listener,
    failure::{Code, Failure},
    input,
    output::{Output, line, object},
};
use forward::Forward;

/// Bytes of the secret: nobody guesses as many.
const SECRET_BYTES: usize = 16;

/// Serves the pages until Ctrl-C or SIGTERM. `client` trusts no key.
pub async fn console(client: Client, args: &Console, key: Option<String>, output: Output) -> Result<(), Failure> {
    if !args.listen.ip().is_loopback() {
        let failure = Failure::usage(format!("--listen {}: other machines could reach it", args.listen));
        return Err(failure.hint("Listen on 127.0.0.1 or [::1]; from elsewhere, forward the port: ssh -L."));
    }
    let policy = args.policy.as_deref().map(policy).transpose()?;
    let settings =
        Settings { key, policy, program: env!("CARGO_PKG_VERSION").to_owned(), endpoints: client.endpoints() };
    let failed = |error: std::io::Error| Failure::new(Code::Unavailable, error.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (listener, address) = Listener::bind(args.listen, "--listen")?.open()?;
    let mut secret = [0; SECRET_BYTES];
    SystemRng.fill(&mut secret);
    let secret = hex::encode(secret);
    let url = format!("http://{address}/#{secret}");
    let routes = coppice_console::routes(Forward(client), Guard::new(address.port(), secret), &settings);
    if output.json {
        object(&json!({ "event": "ready", "url": url }))?;
    } else {
        line(&format!("ready {url}"))?;
    }
    tokio::select! {
        () = coppice_console::serve(listener, routes) => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    if output.json { object(&json!({ "event": "stopped" })) } else { Ok(()) }
}

/// The text of a policy that makes sense.
fn policy(path: &std::path::Path) -> Result<String, Failure> {
    let bytes = input::read(path)?;
    let refuse = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    coppice_verify::policy::Policy::parse(&bytes).map_err(|error| refuse(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| refuse("it is not text".to_owned()))
}
