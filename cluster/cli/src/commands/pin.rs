//! Pins: `pin`, `unpin`, `pins`.

use std::time::Duration;

use coppice_client::{Client, Error};
use coppice_env::{Rng, SystemRng};
use coppice_proto::v1;
use coppice_types::PinId;
use serde_json::{Value, json};

use crate::{
    args::{Pin, Unpin},
    failure::Failure,
    output::Output,
    text,
};

/// `coppice pin`.
///
/// # Errors
/// If the version can't be pinned, or there is no answer.
pub async fn pin(client: &Client, args: &Pin, output: Output) -> Result<(), Failure> {
    let id = match &args.id {
        Some(id) => parse_id(id)?,
        None => {
            let mut id = [0; 16];
            SystemRng.fill(&mut id);
            PinId(id)
        }
    };
    let version = match args.version {
        Some(version) => version,
        None => client.head().await?.stamp.ok_or(Error::Malformed("no head"))?.version,
    };
    let pin = client.pin(id, version, Duration::from_secs(args.seconds)).await?;
    output.result(&describe(&pin), || format!("version {} is pinned for {} s by {id}", pin.version, args.seconds))
}

/// `coppice unpin`.
///
/// # Errors
/// If there is no answer.
pub async fn unpin(client: &Client, args: &Unpin, output: Output) -> Result<(), Failure> {
    let id = parse_id(&args.id)?;
    let found = client.unpin(id).await?;
    output.result(&json!({ "pin": id.to_string(), "found": found }), || {
        if found { format!("{id} is gone") } else { format!("{id} was gone already") }
    })
}

/// `coppice pins`.
///
/// # Errors
/// If there is no answer.
pub async fn pins(client: &Client, output: Output) -> Result<(), Failure> {
    for pin in client.pins().await? {
        let object = describe(&pin);
        output.result(&object, || format!("{} version {} until {} ms", id_of(&pin), pin.version, pin.expires_ms))?;
    }
    Ok(())
}

fn id_of(pin: &v1::VersionPin) -> String {
    pin.id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn describe(pin: &v1::VersionPin) -> Value {
    json!({ "pin": id_of(pin), "version": pin.version, "expires_ms": pin.expires_ms })
}

fn parse_id(text: &str) -> Result<PinId, Failure> {
    PinId::from_slice(&text::parse_hex(text)?).ok_or_else(|| Failure::usage("a pin's id has 32 hex digits"))
}
