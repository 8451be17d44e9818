//! Vector files: compared with the computed vectors, or written if `COPPICE_WRITE_VECTORS` is set.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

pub fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "vectors", name].iter().collect()
}

/// The vectors of a file.
pub fn stored(name: &str) -> Value {
    let text = fs::read_to_string(path(name)).expect("the file is there");
    serde_json::from_str(&text).expect("the file is JSON")
}

/// Compares vectors with the file, after writing it if that is asked for.
pub fn compare(name: &str, vectors: &Value) {
    if env::var_os("COPPICE_WRITE_VECTORS").is_some() {
        let text = serde_json::to_string_pretty(vectors).expect("a value is JSON");
        fs::write(path(name), text + "\n").expect("the file is written");
    }
    // `assert_eq` would print both documents.
    assert!(stored(name) == *vectors, "{name} is not what the code makes now");
}

pub fn text(bytes: &[u8]) -> String {
    hex::encode(bytes)
}
