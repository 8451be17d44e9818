//! A stand-in for `protoc` in the build scripts of dependencies that insist on one. It answers
//! `--version` and writes descriptor sets. Everything else is refused.

use std::{env, error::Error, fs, process::ExitCode};

/// A version that satisfies every build script that asks.
const VERSION: &str = "libprotoc 3.21.12";

fn main() -> ExitCode {
    match run(env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("protoc (stand-in): {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let (mut includes, mut files, mut output) = (Vec::new(), Vec::new(), None);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--version" => {
                println!("{VERSION}");
                return Ok(());
            }
            "-o" | "--descriptor_set_out" => output = Some(value()?),
            "-I" | "--proto_path" => includes.push(value()?),
            "--include_imports" | "--include_source_info" | "--experimental_allow_proto3_optional" => {}
            other => match other.split_once('=').or_else(|| other.strip_prefix("-I").map(|path| ("-I", path))) {
                Some(("--descriptor_set_out" | "-o", path)) => output = Some(path.to_owned()),
                Some(("--proto_path" | "-I", path)) => includes.push(path.to_owned()),
                _ if other.starts_with('-') => return Err(format!("{other} is not supported").into()),
                _ => files.push(other.to_owned()),
            },
        }
    }
    let output = output.ok_or("only -o is supported: there is no output")?;
    let mut compiler = protox::Compiler::new(includes)?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    // Not `file_descriptor_set`: that one loses the options of extensions.
    Ok(fs::write(output, compiler.encode_file_descriptor_set())?)
}
