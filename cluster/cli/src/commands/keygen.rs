//! `coppice keygen`: a signing key and its public key.

use coppice_env::SystemRng;
use serde_json::json;

use crate::{
    args,
    dev::home,
    failure::{Code, Failure},
    output::Output,
};

/// `coppice keygen`. An existing key is never replaced.
///
/// # Errors
/// If a file is there already or cannot be written, or the name cannot be one.
pub fn keygen(args: &args::Keygen, output: Output) -> Result<(), Failure> {
    let public = args.out.with_extension("vkey");
    if public == args.out {
        return Err(Failure::usage("the private key cannot have the name of the public one: use another --out"));
    }
    for path in [&args.out, &public] {
        if path.exists() {
            let failure = Failure::new(Code::Refused, format!("{}: there already", path.display()));
            return Err(failure.hint("A key is never replaced; name another file with --out."));
        }
    }
    let key = home::new_key(args.name.as_deref(), &mut SystemRng)?;
    home::write_key(&args.out, &key)?;
    home::write_file(&public, format!("{}\n", key.verifier()).as_bytes(), 0o644)?;
    let vkey = key.verifier().to_string();
    let object = json!({ "name": key.name(), "vkey": vkey, "private_key": args.out, "public_key": public });
    output.result(&object, || vkey.clone())
}
