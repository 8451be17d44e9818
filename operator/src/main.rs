//! The binary `coppice-operator`.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use coppice_operator::{
    controller::{self, Options},
    log,
};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Parser)]
#[command(version, about = "Runs Coppice on Kubernetes")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make resources true while this process holds the lease
    Run {
        /// Watch only this namespace
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// The namespace of the lease
        #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "default")]
        lease_namespace: String,
        /// A name that no other operator has: the pod's name
        #[arg(long, value_name = "NAME", env = "POD_NAME")]
        identity: String,
        /// The log filter: a level, or a filter like `info,kube=warn`
        #[arg(long, value_name = "FILTER", default_value = "info")]
        log: String,
    },
    /// Write the reference of all fields of the resources, as Markdown
    Fields {
        /// The file; an existing one is replaced
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Write the custom resource definitions, one file for each
    Crd {
        /// The directory; existing files are replaced
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Crd { dir } => write_definitions(&dir),
        Command::Fields { file } => std::fs::write(&file, coppice_operator::crd::reference())
            .map_err(|error| format!("{}: {error}", file.display())),
        Command::Run { namespace, lease_namespace, identity, log } => {
            run(&log, Options { namespace, lease_namespace, identity }).await
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // The message may quote the API server.
            eprintln!("coppice-operator: {}", coppice_types::escape::escape_lines(message.as_bytes()));
            ExitCode::FAILURE
        }
    }
}

async fn run(log: &str, options: Options) -> Result<(), String> {
    log::start(log)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let client = kube::Client::try_default().await.map_err(|error| {
        format!("no Kubernetes is configured: {error}\n  it is found by KUBECONFIG, or in a pod by its service account")
    })?;
    controller::run(client, options, stop).await.map_err(|error| error.to_string())
}

fn write_definitions(dir: &std::path::Path) -> Result<(), String> {
    for (name, definition) in coppice_operator::crd::definitions() {
        let path = dir.join(name);
        let text = serde_saphyr::to_string(&definition).map_err(|error| format!("{name}: {error}"))?;
        let text = format!("# Made from the types of the operator by `make crds`.\n{text}");
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
