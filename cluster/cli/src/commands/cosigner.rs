//! `coppice cosigner`: a federated member's witness of a ledger.

use coppice_cosigner::{
    Error,
    config::{self, Config, KeyChanges, Peer},
    run,
    witness::Status,
};
use coppice_env::SystemRng;
use coppice_process::{Format, Log, health};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::verify::parse_vkey;
use crate::{
    args::{self, CosignerAccept, CosignerDir, CosignerInit, CosignerResume},
    failure::{Code, Failure},
    input,
    output::{self, Output, line},
    text::{self, count, safe},
};

pub async fn cosigner(command: &args::Cosigner, output: Output) -> Result<(), Failure> {
    match command {
        args::Cosigner::Init(args) => init(args, output),
        args::Cosigner::Run(args) => serve(args, output).await,
        args::Cosigner::Status(args) => status(args, output),
        args::Cosigner::Recover(args) => recover(args, output),
        args::Cosigner::Accept(args) => accept(args, output),
        args::Cosigner::Resume(args) => resume(args, output),
    }
}

fn init(args: &CosignerInit, output: Output) -> Result<(), Failure> {
    let peer = |pair: &[String]| {
        let [vkey, url] = pair else { return Err(Failure::usage("--peer takes a key and a URL")) };
        Ok(Peer { url: url.clone(), vkey: vkey.clone() })
    };
    let peers = args.peer.chunks(2).map(peer).collect::<Result<Vec<_>, _>>()?;
    let settings = Config {
        ledger_key: parse_vkey(&args.ledger_key)?.to_string(),
        logs: args.log.clone(),
        listen: args.listen,
        key_changes: if args.ask { KeyChanges::Ask } else { KeyChanges::Follow },
        floor_peers: None,
        gossip_seconds: config::GOSSIP_SECONDS,
        ca: None,
        peers,
    };
    let key = config::init(&args.dir, &settings, &args.name, &mut SystemRng).map_err(refused)?;
    let url = args.url.clone().unwrap_or_else(|| format!("http://{}", args.listen));
    let policy = format!("witness {} {key} {}/w", key.name(), url.trim_end_matches('/'));
    let object = json!({
        "name": key.name(),
        "vkey": key.to_string(),
        "dir": args.dir,
        "policy_line": policy,
        "peers": settings.peers.len(),
    });
    output.result(&object, || format!("{key}\n{}", safe(&policy)))?;
    if settings.peers.is_empty() {
        output.note(&json!({ "note": "no peers: only the ledger would show that the folder was set back" }), || {
            "no peers yet: name other members' cosigners in cosigner.toml, so that a folder that was set back is noticed"
                .to_owned()
        });
    }
    Ok(())
}

/// Runs until Ctrl-C or SIGTERM.
async fn serve(args: &CosignerDir, output: Output) -> Result<(), Failure> {
    let filter = std::env::var("COPPICE_LOG").ok().filter(|filter| !filter.is_empty());
    let log = Log { filter: filter.unwrap_or_else(|| "warn".to_owned()), format: Format::Text };
    log.start().map_err(|refused| Failure::usage(refused.message))?;
    health::note_panics();
    let no_signals = |error| Failure::new(Code::Unavailable, format!("cannot wait for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let mut told = Ok(());
    let ready = |address, status: &Status| {
        told = if output.json {
            let url = format!("http://{address}");
            output::object(&json!({ "event": "ready", "url": url, "vkey": status.vkey, "origin": status.origin }))
        } else {
            line(&format!("ready http://{address}"))
        };
    };
    run::run(&args.dir, stop, ready).await.map_err(refused)?;
    told
}

fn status(args: &CosignerDir, output: Output) -> Result<(), Failure> {
    let status = run::status(&args.dir).map_err(refused)?;
    let object = serde_json::to_value(&status).map_err(|error| Failure::usage(error.to_string()))?;
    output.result(&object, || describe(&status))?;
    if status.halted.is_some() { Err(Failure::new(Code::NotFound, "").silent()) } else { Ok(()) }
}

/// The status in a few lines.
fn describe(status: &Status) -> String {
    let mut lines = vec![
        format!("{}: {} mirrored", safe(&status.origin), count(status.log_entries, "entry")),
        match status.cosigned_at {
            None => "nothing cosigned yet".to_owned(),
            Some(time) => format!("{} cosigned, at {time} s since 1970", count(status.cosigned_entries, "entry")),
        },
        format!("key    {}", safe(&status.vkey)),
        format!("ledger {}", safe(&status.ledger_key)),
    ];
    if let Some(key) = &status.waits_for_key {
        lines.push(format!("WAITS: the ledger's next key must be accepted: {}", safe(key)));
    }
    match &status.halted {
        Some(file) => lines.push(format!("HALTED by evidence/{}", safe(file))),
        None if !status.evidence.is_empty() => {
            lines.push(format!("{} of evidence, all seen", count(status.evidence.len() as u64, "file")));
        }
        None => {}
    }
    lines.join("\n  ")
}

fn recover(args: &CosignerDir, output: Output) -> Result<(), Failure> {
    let record = run::recover(&args.dir).map_err(refused)?;
    let cosigned = record.cosigned.is_some();
    let object: Value =
        json!({ "recovered": true, "kept_a_cosignature": cosigned, "kept_the_log": record.tip.is_some() });
    output.result(&object, || {
        let kept = if cosigned { "the newest cosignature that is left" } else { "no cosignature" };
        format!("a new state with {kept}; `coppice cosigner run` signs nothing before a peer has said what it saw")
    })
}

fn accept(args: &CosignerAccept, output: Output) -> Result<(), Failure> {
    let key = parse_vkey(&args.key)?;
    let (mut witness, _) = run::open(&args.dir).map_err(refused)?;
    witness.accept(&key).map_err(refused)?;
    output.result(&json!({ "accepted": key.to_string() }), || format!("accepted: {}", safe(&key.to_string())))
}

fn resume(args: &CosignerResume, output: Output) -> Result<(), Failure> {
    let seen = input::read(&args.seen)?;
    let (mut witness, _) = run::open(&args.dir).map_err(refused)?;
    witness.resume(&seen).map_err(refused)?;
    output.result(&json!({ "resumed": true, "seen": args.seen }), || {
        format!("resumed: {} no longer halts this cosigner", text::path(&args.seen))
    })
}

fn refused(error: Error) -> Failure {
    let code = match error {
        Error::Refused(_) | Error::Damaged(_) => Code::Refused,
        Error::Disk(_) => Code::Usage,
        Error::Unavailable(_) => Code::Unavailable,
    };
    Failure::new(code, safe(&error.to_string()))
}
