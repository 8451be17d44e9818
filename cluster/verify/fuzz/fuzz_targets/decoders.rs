//! All decoders under libFuzzer: the first byte selects a decoder, the rest is its input.
#![no_main]

use coppice_verify::fuzz::BODIES;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((choice, input)) = bytes.split_first() {
        let (_, body) = BODIES[usize::from(*choice) % BODIES.len()];
        body(input);
    }
});
