//! `coppice anchor`: the time stamps of the root log.

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use coppice_client::{Client, Error};
use coppice_http::forms::{anchor_json, receipt};
use coppice_proto::v1::{self, get_header_request::Which, get_interval_request::Entry};
use coppice_timestamp::{Info, Token, claimed_signer};
use coppice_verify::{
    anchor::{self, Anchor, RFC_3161, Stamps, TIME_LEDGER},
    checkpoint,
    header::{Body, Header},
    proof::{Proof, ProofFile},
};
use serde_json::json;

use crate::{
    args::{self, AnchorExport, AnchorInterval, AnchorList, AnchorProve},
    failure::{Code, Failure},
    input,
    output::{self, Output, Table},
    text::{self, count},
    time::moment,
};

pub async fn anchor(client: &Client, command: &args::Anchor, output: Output) -> Result<(), Failure> {
    match command {
        args::Anchor::List(args) => list(client, args, output).await,
        args::Anchor::Export(args) => export(client, args, output).await,
        args::Anchor::Now => now(client, output).await,
        args::Anchor::Interval(args) => interval(client, args, output).await,
        args::Anchor::Prove(args) => prove(client, args, output).await,
    }
}

/// The stamps of an anchor; `None` for other headers.
fn stamps(header: &Header) -> Option<&Stamps> {
    match &header.body {
        Body::Anchor(Anchor::Stamps(stamps)) => Some(stamps),
        _ => None,
    }
}

async fn list(client: &Client, args: &AnchorList, output: Output) -> Result<(), Failure> {
    let request = v1::WatchHeadsRequest { from_sequence: args.from, ..v1::WatchHeadsRequest::default() };
    let mut stream = client.watch(request).await?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut table = Table::new(output, &["ENTRY", "SIZE", "TIME", "TOKENS"]);
    while left > 0 {
        let Some(message) = stream.next().await? else { break };
        let header = coppice_client::header(&message.header)?;
        let Some(stamps) = stamps(&header) else { continue };
        table.row(&anchor_json(&header, stamps), || {
            let tokens: Vec<String> = stamps.tokens.iter().map(line).collect();
            let time = moment(header.timestamp_ms);
            Ok([header.sequence.to_string(), stamps.size.to_string(), time, tokens.join("; ")])
        })?;
        left -= 1;
    }
    table.end()
}

/// The claim of a token, in some words.
fn line(token: &anchor::Token) -> String {
    if token.kind == TIME_LEDGER {
        let place = receipt(&token.bytes)
            .map(|(header, origin)| format!("version {} of the time ledger {}", header.stamp, text::safe(&origin)));
        return place.unwrap_or_else(|| "an unreadable receipt of a time ledger".to_owned());
    }
    match Token::parse(&token.bytes) {
        Ok(token) => {
            let Info { time, accuracy, .. } = token.info();
            let accuracy = accuracy.map_or_else(|| "unknown".to_owned(), |accuracy| accuracy.to_string());
            let by = claimed_signer(&token).unwrap_or_else(|| "an unnamed authority".to_owned());
            format!("{time} +-{accuracy} by {}", text::safe(&by))
        }
        Err(error) => text::safe(&format!("unreadable: {error}")),
    }
}

async fn now(client: &Client, output: Output) -> Result<(), Failure> {
    let answer = client.anchor().await.map_err(Failure::of_write)?;
    let header = coppice_client::header(&answer.header)?;
    let stamps = stamps(&header).ok_or(Error::Malformed("no anchor"))?;
    output.result(&anchor_json(&header, stamps), || {
        let tokens: String = stamps.tokens.iter().map(|token| format!("\n  {}", line(token))).collect();
        format!("entry {} stamps the first {}{tokens}", header.sequence, count(stamps.size, "entry"))
    })
}

/// The anchor that a command names.
async fn find(client: &Client, entry: &str) -> Result<Header, Failure> {
    if entry == "last" {
        return last(client).await;
    }
    let sequence =
        entry.parse().map_err(|_| Failure::usage("name an anchor by its entry in the root log, or `last`"))?;
    Ok(coppice_client::header(&client.header(Which::Sequence(sequence)).await?)?)
}

/// The newest anchor, found from the end of the log.
async fn last(client: &Client) -> Result<Header, Failure> {
    let mut end = client.head().await?.log_size;
    let mut step = 256;
    while end > 0 {
        let start = end.saturating_sub(step);
        let request = v1::WatchHeadsRequest { from_sequence: start, ..v1::WatchHeadsRequest::default() };
        let mut stream = client.watch(request).await?;
        let mut found = None;
        for _ in start..end {
            let Some(message) = stream.next().await? else { break };
            let header = coppice_client::header(&message.header)?;
            if stamps(&header).is_some() {
                found = Some(header);
            }
        }
        if let Some(found) = found {
            return Ok(found);
        }
        (end, step) = (start, step * 2);
    }
    Err(Failure::new(Code::NotFound, "the root log has no anchor"))
}

async fn export(client: &Client, args: &AnchorExport, output: Output) -> Result<(), Failure> {
    let header = find(client, &args.entry).await?;
    let missing = || Failure::new(Code::NotFound, format!("entry {} is no anchor with tokens", header.sequence));
    let stamps = stamps(&header).ok_or_else(missing)?;
    let genesis = coppice_client::header(&client.header(Which::Sequence(0)).await?)?;
    let Body::Genesis(genesis) = &genesis.body else { return Err(Error::Malformed("no genesis").into()) };
    let origin = checkpoint::origin(&genesis.prefix, &header.cluster);
    fs::create_dir_all(&args.dir).map_err(|error| Failure::file(&args.dir, &error))?;
    let write = |name: &str, bytes: &[u8]| output::file(&args.dir.join(name), bytes);
    write("checkpoint", stamps.checkpoint(&origin).text().as_bytes())?;
    let mut files = vec!["checkpoint".to_owned()];
    for (index, token) in stamps.tokens.iter().enumerate() {
        let tail = if index == 0 { String::new() } else { format!("-{}", index + 1) };
        match Token::parse(&token.bytes) {
            Ok(parsed) if token.kind == RFC_3161 => {
                files.extend(export_token(&args.dir, &tail, &parsed)?);
            }
            _ => {
                let name = format!("token{tail}.bin");
                write(&name, &token.bytes)?;
                files.push(name);
            }
        }
    }
    let object = json!({ "sequence": header.sequence.0, "stamped_size": stamps.size, "files": files });
    output.result(&object, || {
        let files = files.iter().map(|file| text::path(&args.dir.join(file)));
        files.collect::<Vec<_>>().join("\n")
    })
}

/// Writes a token as the response that tools keep, and its certificates as PEM.
fn export_token(dir: &Path, tail: &str, token: &Token) -> Result<[String; 2], Failure> {
    let (response, certificates) = (format!("token{tail}.tsr"), format!("certificates{tail}.pem"));
    output::file(&dir.join(&response), &token.to_response())?;
    let pem: String = token.certificates().iter().map(|der| pem(der)).collect();
    output::file(&dir.join(&certificates), pem.as_bytes())?;
    Ok([response, certificates])
}

/// A certificate in PEM.
fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

async fn interval(client: &Client, args: &AnchorInterval, output: Output) -> Result<(), Failure> {
    let entry = match (args.sequence, args.version) {
        (Some(sequence), _) => Entry::Sequence(sequence),
        (None, Some(named)) if named.epoch.is_some() => {
            Entry::Version(super::read::standing(client, named).await?.version)
        }
        (None, Some(named)) => Entry::Version(named.version),
        (None, None) => return Err(Failure::usage("name an entry: --sequence or --version")),
    };
    let request = v1::GetIntervalRequest { entry: Some(entry), anchors: args.anchors, cosigned: args.cosigned };
    let answer = client.interval(request).await?;
    super::read::save(Some(&args.proof), &answer.proof)?;
    let output = output.beside(Some(&args.proof));
    let bytes = answer.proof.len();
    output.result(&json!({ "bytes": bytes }), || {
        format!("a proof of {}: check it with coppice verify --tsa-root", count(bytes as u64, "byte"))
    })
}

/// Writes a time ledger's proof of time for each of its receipts in a proof of time. Nothing is
/// verified here.
async fn prove(client: &Client, args: &AnchorProve, output: Output) -> Result<(), Failure> {
    let file = input::read(&args.file)?;
    let receipts = receipts(&file).map_err(|error| Failure::usage(format!("{}: {error}", text::path(&args.file))))?;
    if receipts.is_empty() {
        let message = format!("{}: no token is a receipt of a time ledger", text::path(&args.file));
        return Err(Failure::new(Code::NotFound, message));
    }
    fs::create_dir_all(&args.dir).map_err(|error| Failure::file(&args.dir, &error))?;
    let (mut files, mut open) = (Vec::new(), 0);
    for receipt in receipts {
        let sequence = receipt.sequence.0;
        let theirs = coppice_client::header(&client.header(Which::Sequence(sequence)).await?)?;
        if theirs != receipt {
            // Another time ledger stamped it.
            continue;
        }
        let entry = Some(Entry::Sequence(sequence));
        let answer = client.interval(v1::GetIntervalRequest { entry, anchors: 1, cosigned: false }).await?;
        let path = args.dir.join(format!("{sequence}.proof"));
        output::file(&path, &answer.proof)?;
        let proof = ProofFile::decode(&answer.proof).map_err(|_| Error::Malformed("no proof"))?;
        open += u32::from(matches!(proof.proof, Proof::Interval(proof) if proof.above.is_empty()));
        files.push(text::path(&path));
    }
    if files.is_empty() {
        return Err(Failure::new(Code::NotFound, "no receipt in the proof is of this ledger"));
    }
    output.result(&json!({ "files": files, "without_later_stamp": open }), || {
        let later = if open > 0 { "\nthe newest has no stamp after it yet: ask again later" } else { "" };
        files.join("\n") + later
    })
}

/// The headers of the receipts of time ledgers in a proof of time.
fn receipts(file: &[u8]) -> Result<Vec<Header>, coppice_types::codec::Error> {
    let file = ProofFile::decode(file)?;
    let Proof::Interval(proof) = &file.proof else { return Ok(Vec::new()) };
    let anchors = proof.below.iter().chain(proof.above.iter().map(|(anchor, _)| anchor));
    let mut headers = Vec::new();
    for anchor in anchors {
        let header = Header::decode(&anchor.header)?;
        let tokens = stamps(&header).map(|stamps| &stamps.tokens[..]).unwrap_or_default();
        for token in tokens.iter().filter(|token| token.kind == TIME_LEDGER) {
            headers.extend(receipt(&token.bytes).map(|(header, _)| header));
        }
    }
    Ok(headers)
}
