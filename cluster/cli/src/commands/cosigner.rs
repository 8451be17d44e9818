//! `coppice cosigner`: a federated member's witness and auditor of a ledger.

use std::path::Path;

use coppice_cosigner::{
    Error,
    config::{self, Api, Config, KeyChanges, Peer},
    report::{Audited, Report},
    run,
    witness::{Status, Witness},
};
use coppice_env::SystemRng;
use coppice_process::{Format, Log, health};
use coppice_verify::cosignature::CosignerKey;
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
        Ok(Peer { url: url.clone(), vkey: vkey.clone(), auditor: None })
    };
    let api = (!args.api.is_empty()).then(|| Api {
        endpoints: args.api.clone(),
        ca: args.api_ca.clone(),
        cert: args.api_cert.clone(),
        key: args.api_key.clone(),
    });
    let peers = args.peer.chunks(2).map(peer).collect::<Result<Vec<_>, _>>()?;
    let settings = Config {
        ledger_key: parse_vkey(&args.ledger_key)?.to_string(),
        logs: args.log.clone(),
        listen: args.listen,
        key_changes: if args.ask { KeyChanges::Ask } else { KeyChanges::Follow },
        floor_peers: None,
        gossip_seconds: config::GOSSIP_SECONDS,
        ca: None,
        audit: api.is_some() && !args.no_audit,
        stream: args.stream.clone(),
        tls: None,
        api,
        peers,
    };
    let made = config::init(&args.dir, &settings, &args.name, &mut SystemRng).map_err(refused)?;
    let url = match &args.stream {
        Some(name) => format!("stream:{name}"),
        None => args.url.clone().unwrap_or_else(|| format!("http://{}", args.listen)),
    };
    let policy =
        |key: &CosignerKey, way: &str| format!("witness {} {key} {}/{way}", key.name(), url.trim_end_matches('/'));
    let (key, line) = (&made.witness, policy(&made.witness, "w"));
    let mut object = json!({
        "name": key.name(),
        "vkey": key.to_string(),
        "dir": args.dir,
        "policy_line": line,
        "peers": settings.peers.len(),
    });
    let mut lines = vec![key.to_string(), safe(&line)];
    if let Some(auditor) = &made.auditor {
        let line = policy(auditor, "a");
        object["auditor"] = json!({ "name": auditor.name(), "vkey": auditor.to_string(), "policy_line": line });
        lines.extend([auditor.to_string(), safe(&line)]);
    }
    output.result(&object, || lines.join("\n"))?;
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
    let ready = |url: &str, status: &Status| {
        told = if output.json {
            output::object(&json!({ "event": "ready", "url": url, "vkey": status.vkey, "origin": status.origin }))
        } else {
            line(&format!("ready {url}"))
        };
    };
    run::run(&args.dir, stop, ready).await.map_err(refused)?;
    told
}

fn status(args: &CosignerDir, output: Output) -> Result<(), Failure> {
    let report = run::status(&args.dir).map_err(refused)?;
    let object = serde_json::to_value(&report).map_err(|error| Failure::usage(error.to_string()))?;
    output.result(&object, || describe(&report))?;
    if report.is_halted() { Err(Failure::new(Code::NotFound, "").silent()) } else { Ok(()) }
}

/// The status in a few lines.
fn describe(report: &Report) -> String {
    let status = &report.witness;
    let mut lines = vec![
        format!("{}: {} mirrored", safe(&status.origin), count(status.log_entries, "entry")),
        cosigned(status),
        format!("key    {}", safe(&status.vkey)),
        format!("ledger {}", safe(&status.ledger_key)),
    ];
    if let Some(key) = &status.waits_for_key {
        lines.push(format!("WAITS: the ledger's next key must be accepted: {}", safe(key)));
    }
    lines.extend(evidence(status, "evidence"));
    if let Some(Audited { status, version, vanished_versions: vanished, .. }) = &report.auditor {
        let audited = count(status.log_entries, "entry");
        lines.push(format!("auditor: {audited} audited, up to version {version}; {}", cosigned(status)));
        lines.push(format!("key    {}", safe(&status.vkey)));
        if *vanished > 0 {
            let versions = count(*vanished, "version");
            lines.push(format!("{versions} rolled back before the auditor came: nobody can replay them"));
        }
        lines.extend(evidence(status, "audit/evidence"));
    }
    lines.join("\n  ")
}

fn cosigned(status: &Status) -> String {
    match status.cosigned_at {
        None => "nothing cosigned yet".to_owned(),
        Some(time) => format!("{} cosigned, at {time} s since 1970", count(status.cosigned_entries, "entry")),
    }
}

/// The line on evidence, if there is any.
fn evidence(status: &Status, folder: &str) -> Option<String> {
    match &status.halted {
        Some(file) => Some(format!("HALTED by {folder}/{}", safe(file))),
        None if status.evidence.is_empty() => None,
        None => Some(format!("{} of evidence, all seen", count(status.evidence.len() as u64, "file"))),
    }
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
    on_some(&args.dir, |machine| machine.accept(&key))?;
    output.result(&json!({ "accepted": key.to_string() }), || format!("accepted: {}", safe(&key.to_string())))
}

fn resume(args: &CosignerResume, output: Output) -> Result<(), Failure> {
    let seen = input::read(&args.seen)?;
    on_some(&args.dir, |machine| machine.resume(&seen))?;
    output.result(&json!({ "resumed": true, "seen": args.seen }), || {
        format!("resumed: {} no longer halts this cosigner", text::path(&args.seen))
    })
}

/// Does something to the witness and to the auditor. It must succeed with one of them: the other
/// may not have met what it is about yet.
fn on_some(dir: &Path, mut act: impl FnMut(&mut Witness) -> Result<(), Error>) -> Result<(), Failure> {
    let (mut cosigners, _) = run::open(dir).map_err(refused)?;
    let done: Vec<Result<(), Error>> = cosigners.all().map(&mut act).collect();
    if done.iter().any(Result::is_ok) {
        return Ok(());
    }
    done.into_iter().next().unwrap_or(Ok(())).map_err(refused)
}

fn refused(error: Error) -> Failure {
    let code = match error {
        Error::Refused(_) | Error::Damaged(_) => Code::Refused,
        Error::Disk(_) => Code::Usage,
        Error::Unavailable(_) => Code::Unavailable,
    };
    Failure::new(code, safe(&error.to_string()))
}
