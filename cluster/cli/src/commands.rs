//! The commands.

pub mod anchor;
pub mod audit;
mod consent;
pub mod cosigner;
pub mod evidence;
pub mod fsck;
pub mod keygen;
pub mod ledger;
pub mod log;
pub mod log_check;
pub mod merge;
pub mod order;
pub mod pim;
pub mod pin;
pub mod query;
pub mod read;
pub mod verify;
pub mod watch;
pub mod write;

use std::{path::Path, time::Duration};

use coppice_client::{Client, Expected, Options, Tls};
use serde_json::json;

use crate::{
    args::{self, Arguments, Command, Common},
    console, dev,
    failure::Failure,
    load,
    output::{Output, raw},
    text,
};

/// Runs a command to its end.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let output = Output::new(&arguments.common);
    let client = || connect(&arguments.common);
    let verifies = arguments.common.trust.is_some();
    match &arguments.command {
        Command::Load(args) => load::load(&client()?, args, output).await,
        Command::Commit(args) => write::commit(&client()?, args, output).await,
        Command::Get(args) => read::get(&client()?, args, output).await,
        Command::Range(args) => read::range(&client()?, args, verifies, output).await,
        Command::History(args) => read::history(&client()?, args, output).await,
        Command::Query(args) => query::query(&client()?, args, output).await,
        Command::Diff(args) => read::diff(&client()?, args, output).await,
        Command::Merge(args) => merge::merge(&client()?, args, verifies, output).await,
        Command::Head => log::head(&client()?, output).await,
        Command::Header(args) => log::header(&client()?, args, output).await,
        Command::Time(args) => read::time(&client()?, args, output).await,
        Command::Checkpoint(args) => log::checkpoint(&client()?, args, output).await,
        Command::Log(args) => match &args.action {
            Some(args::LogAction::Check(check)) => {
                log_check::check(&client()?, check, arguments.common.trust.as_deref(), output).await
            }
            None => log::log(&client()?, args, output).await,
        },
        Command::Watch(args) => watch::watch(&client()?, args, output).await,
        Command::Prune(args) => write::prune(&client()?, args, output).await,
        Command::Pin(args) => pin::pin(&client()?, args, output).await,
        Command::Unpin(args) => pin::unpin(&client()?, args, output).await,
        Command::Pins => pin::pins(&client()?, output).await,
        Command::Rollback(args) => write::rollback(&client()?, args, output).await,
        Command::RotateKey(args) => write::rotate_key(&client()?, args, output).await,
        Command::Console(args) => {
            // The browser judges the proofs, so that it can show those that do not hold.
            let (key, common) = trusted(&arguments.common)?;
            console::console(connect(&common)?, args, key, output).await
        }
        Command::Status => log::status(&client()?, output).await,
        Command::Lead(args) => write::lead(&client()?, args, output).await,
        Command::Audit(args) => audit::audit(&client()?, args, arguments.common.trust.as_deref(), output).await,
        Command::Ledger(args::Ledger::Audit(args)) => {
            audit::ledger(&client()?, args, arguments.common.trust.as_deref(), output).await
        }
        Command::Anchor(command) => anchor::anchor(&client()?, command, output).await,
        Command::Ledger(args::Ledger::Anchor(args)) => ledger::anchor(&client()?, args, verifies, output).await,
        Command::Ledger(args::Ledger::Verify(args)) => ledger::verify(&client()?, args, verifies, output).await,
        Command::Ledger(command) => ledger::ledger(&client()?, command, output).await,
        Command::Order(args::Order::Submit(args)) => order::submit(&client()?, args, output).await,
        Command::Order(command) => order::offline(command, output),
        Command::Verify(args) => verify::verify(args, output),
        Command::Evidence(command) => evidence::evidence(command, output).await,
        Command::Cosigner(command) => cosigner::cosigner(command, output).await,
        Command::Keygen(args) => keygen::keygen(args, output),
        Command::Completions { shell } => {
            // The script goes into memory first: a reader that goes away early is not an error.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut args::command(), "coppice", &mut script);
            raw(&script)
        }
        Command::Man { out } => man(out),
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            output.result(&json!({ "version": version }), || format!("coppice {version}"))
        }
        Command::Fsck(args) => fsck::fsck(args, output),
        Command::Pim(command) => pim::pim(command, output),
        Command::Dev(args) => dev::serve::dev(args, output).await,
        Command::Serve(_) => unreachable!("it makes its own runtime"),
    }
}

fn connect(common: &Common) -> Result<Client, Failure> {
    let Some(endpoint) = common.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) else {
        let failure = Failure::usage("no ledger is named: set --endpoint or COPPICE_ENDPOINT");
        return Err(failure.hint(
            "Start one with `coppice dev`, and set COPPICE_ENDPOINT to the endpoint that it prints after `ready`.",
        ));
    };
    let trust = common.trust.as_deref().map(verify::parse_vkey).transpose()?;
    if endpoint.starts_with("https://") && common.ca.is_none() {
        let failure = Failure::usage(format!(
            "{}: https needs the authority of the server: set --ca or COPPICE_CA",
            text::safe(endpoint)
        ));
        return Err(failure.hint("It is the PEM file of the authority that issued the coordinators' certificates."));
    }
    if let Some(key) = &common.client_key {
        coppice_env::check_secret(key).map_err(|error| Failure::file(key, &error))?;
    }
    let mut options = Options {
        trust,
        tls: tls(common)?,
        attempt_timeout: Duration::from_secs(common.timeout),
        patience: Duration::from_secs(common.patience),
        ..Options::new(endpoint)
    };
    if common.any_server {
        options.expected = Expected::Anybody;
    }
    Ok(Client::new(options)?)
}

/// The trusted key as text, and the options without it.
fn trusted(common: &Common) -> Result<(Option<String>, Common), Failure> {
    let key = common.trust.as_deref().map(verify::parse_vkey).transpose()?;
    Ok((key.map(|key| key.to_string()), Common { trust: None, ..common.clone() }))
}

fn tls(common: &Common) -> Result<Option<Tls>, Failure> {
    let identity = match (&common.client_cert, &common.client_key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => return Err(Failure::usage("--client-cert and --client-key belong together: one of them is missing")),
    };
    match &common.ca {
        Some(ca) => Ok(Some(Tls::Files { ca: ca.clone(), identity })),
        None if identity.is_some() => Err(Failure::usage("--client-cert needs --ca, the authority of the server")),
        None => Ok(None),
    }
}

/// Writes the manual pages.
fn man(out: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(out).map_err(|error| Failure::file(out, &error))?;
    clap_mangen::generate_to(args::command(), out).map_err(|error| Failure::file(out, &error))
}
