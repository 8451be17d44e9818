//! Pins: `pin`, `unpin`, `pins`.

use std::time::Duration;

use coppice_client::{Client, Error};
use coppice_env::{Rng, SystemRng};
use coppice_proto::v1;
use coppice_types::PinId;
use serde_json::{Value, json};

use crate::{
    args::{Pin, Unpin},
    bytes,
    failure::Failure,
    output::{Output, Table},
    time::moment,
};

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
        Some(named) if named.epoch.is_some() => super::read::standing(client, named).await?.version,
        Some(named) => named.version,
        None => client.head().await?.stamp.ok_or(Error::Malformed("no head"))?.version,
    };
    let pin = client.pin(id, version, Duration::from_secs(args.seconds)).await.map_err(Failure::of_write)?;
    output.result(&describe(&pin), || {
        format!("version {} is pinned until {} by {id}", pin.version, moment(pin.expires_ms))
    })
}

pub async fn unpin(client: &Client, args: &Unpin, output: Output) -> Result<(), Failure> {
    let id = parse_id(&args.id)?;
    let found = client.unpin(id).await.map_err(Failure::of_write)?;
    output.result(&json!({ "pin": id.to_string(), "found": found }), || {
        if found { format!("{id} is gone") } else { format!("{id} was gone already") }
    })
}

pub async fn pins(client: &Client, output: Output) -> Result<(), Failure> {
    let mut table = Table::new(output, &["PIN", "VERSION", "UNTIL"]);
    for pin in client.pins().await? {
        table.row(&describe(&pin), || Ok([id_of(&pin), pin.version.to_string(), moment(pin.expires_ms)]))?;
    }
    table.end()
}

fn id_of(pin: &v1::VersionPin) -> String {
    hex::encode(&pin.id)
}

fn describe(pin: &v1::VersionPin) -> Value {
    json!({ "pin": id_of(pin), "version": pin.version, "expires_ms": pin.expires_ms })
}

fn parse_id(text: &str) -> Result<PinId, Failure> {
    PinId::from_slice(&bytes::parse_hex(text)?).ok_or_else(|| Failure::usage("a pin's id must have 32 hex digits"))
}
