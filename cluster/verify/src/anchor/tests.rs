use alloc::{format, vec::Vec};

use super::*;
use crate::hash::sha256;

#[test]
fn the_stamped_text_is_that_of_the_checkpoint() {
    let stamps = Stamps { size: 12, root: Digest([5; 32]), tokens: Vec::new() };
    let text = stamps.checkpoint("ledger.example/a").text();
    assert_eq!(text, format!("ledger.example/a\n12\n{}\n", crate::base64::encode(&[5; 32])));
    assert_eq!(stamps.imprint("ledger.example/a"), sha256(text.as_bytes()));
}
