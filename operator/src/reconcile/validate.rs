//! What CEL can't say about a specification: checked here, and told as the condition `Valid`.

use std::fmt;

use coppice_verify::cosignature::CosignerKey;

use crate::crd::LedgerClusterSpec;

/// Why a specification can't be carried out; in words for the user, with the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Invalid {}

/// Checks a specification.
///
/// # Errors
/// If it can't be carried out.
pub fn validate(spec: &LedgerClusterSpec) -> Result<(), Invalid> {
    splits(&spec.shards.splits)?;
    for witness in &spec.witnesses.list {
        CosignerKey::parse(&witness.vkey).map_err(|error| {
            Invalid(format!("witnesses: the vkey of {} is no key of a witness: {error}", witness.url))
        })?;
    }
    if let Some(affinity) = &spec.nodes.pods.affinity {
        check_affinity("nodes", affinity)?;
    }
    if let Some(affinity) = &spec.coordinators.pods.affinity {
        check_affinity("coordinators", affinity)?;
    }
    Ok(())
}

/// Text and hex may be mixed, so the order is that of the bytes that are meant.
fn splits(splits: &[String]) -> Result<(), Invalid> {
    let mut before: Option<(Vec<u8>, &String)> = None;
    for split in splits {
        let bytes = match split.strip_prefix("0x") {
            Some(digits) => {
                hex::decode(digits).map_err(|_| Invalid(format!("shards.splits: {split} is not a key in hex")))?
            }
            None => split.clone().into_bytes(),
        };
        if bytes.is_empty() {
            return Err(Invalid("shards.splits: the first shard begins at the empty key already".to_owned()));
        }
        if let Some((_, name)) = before.filter(|(before, _)| *before >= bytes) {
            return Err(Invalid(format!("shards.splits: {split} is not above {name}")));
        }
        before = Some((bytes, split));
    }
    Ok(())
}

/// The definition takes any object; a misspelt field would be dropped without a word.
fn check_affinity(of: &str, value: &serde_json::Value) -> Result<(), Invalid> {
    let read = serde_json::from_value::<k8s_openapi::api::core::v1::Affinity>(value.clone());
    let kept = read.ok().and_then(|affinity| serde_json::to_value(affinity).ok());
    if kept.as_ref() == Some(value) {
        return Ok(());
    }
    Err(Invalid(format!("{of}.pods.affinity is not an affinity of Kubernetes: a field is misspelt or empty")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::Shards;

    fn with_splits(splits: &[&str]) -> LedgerClusterSpec {
        let splits: Vec<String> = splits.iter().map(|split| (*split).to_owned()).collect();
        let count = u32::try_from(splits.len()).expect("few") + 1;
        LedgerClusterSpec { shards: Shards { count, splits, ..Shards::default() }, ..LedgerClusterSpec::default() }
    }

    #[test]
    fn splits_ascend_by_the_bytes_that_are_meant() {
        assert_eq!(validate(&with_splits(&["m", "0x80"])), Ok(()));
        assert_eq!(validate(&with_splits(&[])), Ok(()));
        for (splits, words) in [
            (vec!["0x80", "m"], "m is not above 0x80"),
            (vec!["a", "0x61"], "0x61 is not above a"),
            (vec!["0xq"], "not a key in hex"),
            (vec!["0x"], "the empty key"),
        ] {
            let said = validate(&with_splits(&splits)).expect_err("it is refused").to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_witness_has_the_key_of_a_witness() {
        let mut spec = LedgerClusterSpec::default();
        let witness = crate::crd::Witness { url: "https://witness.example/".to_owned(), vkey: "nonsense".to_owned() };
        spec.witnesses.list.push(witness);
        assert!(validate(&spec).expect_err("it is refused").to_string().contains("no key of a witness"));
    }

    #[test]
    fn a_misspelt_affinity_is_refused() {
        let mut spec = LedgerClusterSpec::default();
        spec.nodes.pods.affinity = Some(serde_json::json!({ "podAntiAfinity": {} }));
        assert!(validate(&spec).expect_err("it is refused").to_string().contains("nodes.pods.affinity"));
        spec.nodes.pods.affinity = Some(serde_json::json!({ "podAntiAffinity": {} }));
        assert_eq!(validate(&spec), Ok(()));
    }
}
