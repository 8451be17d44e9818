//! `coppice keygen`: makes a signing key and its public key.

use std::fs;

use coppice_env::SystemRng;
use coppice_verify::{cosignature::CosignerKey, note::SignerKey};
use serde_json::json;

use crate::{args, dev::home, failure::Failure, files, output::Output};

/// Makes the two files. Existing files are never replaced, even if two commands run at once: only
/// the command that made the private key writes the public one.
pub fn keygen(args: &args::Keygen, output: Output) -> Result<(), Failure> {
    let public = args.out.with_extension("vkey");
    if public == args.out {
        return Err(Failure::usage("the private key cannot have the name of the public one: use another --out"));
    }
    for path in [&args.out, &public] {
        if path.symlink_metadata().is_ok() {
            return Err(files::there_already(path));
        }
    }
    let key = home::new_key(args.name.as_deref(), &mut SystemRng)?;
    let vkey = public_text(&key, args.witness)?;
    home::write_key(&args.out, &key)?;
    if let Err(failure) = files::create(&public, format!("{vkey}\n").as_bytes(), files::PUBLIC) {
        // The private key was not used yet. Next to the public key of a different one it would
        // mislead. The failure to write the public key is the one to report.
        let _ = fs::remove_file(&args.out);
        return Err(failure);
    }
    let object = json!({ "name": key.name(), "vkey": vkey, "private_key": args.out, "public_key": public });
    output.result(&object, || vkey.clone())
}

/// The public key as its type spells it. The private key has one form for both types.
fn public_text(key: &SignerKey, witness: bool) -> Result<String, Failure> {
    if !witness {
        return Ok(key.verifier().to_string());
    }
    let cosigner = CosignerKey::new(key.name(), &key.verifier().public_key());
    cosigner.map(|key| key.to_string()).map_err(|error| Failure::usage(format!("key of a witness: {error}")))
}
