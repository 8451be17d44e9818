//! Compiles the protocol definitions with protox, so that no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=coppice");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let files = ["coppice/v1/ledger.proto", "coppice/v1/node.proto"];
    let descriptors = protox::compile(files, ["."])?;
    fs::write(out.join("descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".coppice.v1").compile_fds(descriptors)?;
    Ok(())
}
