//! The command `coppice dev`: a cluster from start to Ctrl-C.

use std::time::Duration;

use coppice_coordinator::{Retention, Witness};
use coppice_env::SystemRng;
use coppice_shard_node::Tuning;
use coppice_verify::cosignature::CosignerKey;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{Cluster, Options, home::Home, shape::Wanted};
use crate::{
    args,
    failure::{Code, Failure},
    output::{Output, line},
};

/// Runs a cluster until Ctrl-C or SIGTERM.
///
/// # Errors
/// If it cannot be started, or does not stop cleanly.
pub async fn dev(args: &args::Dev, output: Output) -> Result<(), Failure> {
    let filter = EnvFilter::try_from_env("COPPICE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if !args.listen.ip().is_loopback() && !args.plaintext {
        let failure = Failure::usage(format!("--listen {}: whoever reaches it might do anything", args.listen));
        return Err(failure.hint("A development cluster has no certificates. Listen on 127.0.0.1, or add --plaintext."));
    }
    let wanted = Wanted::parse(args)?;
    // Before anything is made: the signals stop a start, too.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let temporary = match args.data_dir {
        Some(_) => None,
        None => Some(tempfile::tempdir().map_err(|error| Failure::usage(format!("no temporary directory: {error}")))?),
    };
    let dir = args.data_dir.as_deref().or_else(|| temporary.as_ref().map(tempfile::TempDir::path));
    let home = Home::open(dir.ok_or_else(|| Failure::usage("no data directory"))?, &wanted, &mut SystemRng)?;
    let (key, next_key) = home.keys()?;
    let options = Options {
        storage: home.storage(),
        shape: home.shape().clone(),
        key,
        next_key,
        listen: args.listen,
        http_listen: args.http_listen,
        witnesses: witnesses(&args.witness)?,
        retention: retention(args),
        tuning: Tuning::default(),
    };
    let cluster = tokio::select! {
        cluster = Cluster::start(options) => cluster?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    line(&format!("ready {}", cluster.endpoint()))?;
    let (shards, replicas) = (cluster.groups().len() - 1, cluster.nodes().len());
    let exposed = !args.listen.ip().is_loopback();
    let object = json!({
        "data_dir": home.dir(),
        "vkey": home.vkey(),
        "shards": shards,
        "replicas": replicas,
        "log_url": cluster.log_url(),
        "exposed": exposed,
    });
    output.note(&object, || {
        let log = cluster.log_url().map_or_else(String::new, |url| format!("\nroot log   {url}"));
        let warning = if exposed { "\nwarning    whoever reaches this address may read and write" } else { "" };
        format!(
            "{shards} shards and the root group, {replicas} replicas each, in {}\npublic key {}{log}{warning}",
            home.dir().display(),
            home.vkey()
        )
    });
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    cluster.stop().await
}

fn witnesses(words: &[String]) -> Result<Vec<Witness>, Failure> {
    let witness = |pair: &[String]| {
        let [key, url] = pair else { return Err(Failure::usage("--witness takes a key and a URL")) };
        let refuse = |error| Failure::usage(format!("`{key}` is no key of a witness: {error}"));
        Ok(Witness { key: CosignerKey::parse(key).map_err(refuse)?, url: url.clone() })
    };
    words.chunks(2).map(witness).collect()
}

fn retention(args: &args::Dev) -> Option<Retention> {
    let hours = args.retain_hours.map(|hours| Retention::Age(Duration::from_secs(3600 * u64::from(hours))));
    args.retain_versions.map(Retention::Versions).or(hours)
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::new(Code::Unavailable, format!("signals cannot be waited for: {error}"))
}
