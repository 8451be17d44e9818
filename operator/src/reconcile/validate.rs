//! Rules for a specification that CEL can't express; a violation is reported as the condition
//! `Valid`.
//!
//! A user who may write a `LedgerCluster` may not be allowed to do everything that the operator
//! may. A specification therefore reaches no further than its own namespace. References must be
//! object names ([`check_name`]), since kube puts them into paths without escaping. No text may
//! have hidden characters. The definition states the same by patterns. They are checked here again
//! for an API server that has an older definition.

use std::fmt;

use coppice_types::text::control_in;
use coppice_verify::{cosignature::WitnessKey, policy::Policy};
use serde_json::Value;

use crate::crd::{Coordinators, Etcd, LedgerClusterSpec, TlsSecrets};

/// The reason why a specification can't be carried out, in words for the user, with the field.
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
    names(spec)?;
    let mut texts = serde_json::to_value(spec).expect("a specification is JSON");
    // Splits are keys, which may have any bytes.
    texts["shards"]["splits"] = Value::Null;
    // Certificates have lines, and nothing else that is not shown.
    for (index, authority) in spec.time_stamps.authorities.iter().enumerate() {
        let shown = |byte: u8| byte == b'\n' || (b' '..=b'~').contains(&byte);
        if !authority.roots.starts_with("-----BEGIN CERTIFICATE-----") || !authority.roots.bytes().all(shown) {
            return Err(Invalid(format!("timeStamps: the roots of {} are no PEM", authority.url)));
        }
        texts["timeStamps"]["authorities"][index]["roots"] = Value::Null;
    }
    if let Some(policy) = &spec.witnesses.policy {
        check_policy(spec, policy)?;
        texts["witnesses"]["policy"] = Value::Null;
    }
    no_hidden_characters("spec", &texts)?;
    splits(&spec.shards.splits)?;
    one_process(spec)?;
    for witness in &spec.witnesses.list {
        WitnessKey::parse(&witness.vkey).map_err(|error| {
            Invalid(format!("witnesses: the vkey of {} is not a key of a witness: {error}", witness.url))
        })?;
    }
    if let Some(affinity) = &spec.nodes.pods.affinity {
        check_affinity("nodes", affinity)?;
    }
    if let Some(affinity) = &spec.coordinators.pods.affinity {
        check_affinity("coordinators", affinity)?;
    }
    readers(spec)
}

/// Most witnesses that a coordinator asks.
const WITNESSES_MAX: usize = 32;

/// Checks a policy as coordinators do at their start: whether its quorum can be reached, and by
/// witnesses that can be asked.
fn check_policy(spec: &LedgerClusterSpec, text: &str) -> Result<(), Invalid> {
    let refused = |words: String| Err(Invalid(format!("witnesses.policy: {words}")));
    if !spec.witnesses.list.is_empty() || spec.witnesses.quorum.is_some() {
        return refused("it takes the place of list and quorum: leave them out".to_owned());
    }
    let shown = |byte: u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
    if !text.bytes().all(shown) {
        return refused("it has a character that is not shown".to_owned());
    }
    let policy = match Policy::parse(text.as_bytes()) {
        Ok(policy) => policy,
        Err(error) => return refused(error.to_string()),
    };
    let mut keys: Vec<&WitnessKey> = Vec::new();
    for (name, key, url) in policy.witnesses() {
        let name = String::from_utf8_lossy(name);
        if !url.is_some_and(can_be_asked) {
            return refused(format!("the witness {name} has no URL to be asked at"));
        }
        if keys.contains(&key) {
            return refused(format!("the witness {name} has the key of another one"));
        }
        keys.push(key);
    }
    match () {
        () if keys.len() > WITNESSES_MAX => refused(format!("it has more than {WITNESSES_MAX} witnesses")),
        () if policy.is_reached_by(&[]) => refused("its quorum needs no witness".to_owned()),
        () if !policy.is_reached_by(&keys) => refused("its quorum can't be reached".to_owned()),
        () => Ok(()),
    }
}

/// Whether coordinators can ask a witness at this address: by HTTP, or through a stream that it
/// opens (`stream:NAME/PATH`).
fn can_be_asked(url: &[u8]) -> bool {
    let of_stream = url.strip_prefix(b"stream:").and_then(|rest| rest.iter().position(|byte| *byte == b'/'));
    url.starts_with(b"http://") || url.starts_with(b"https://") || of_stream.is_some_and(|name| name > 0)
}

/// Checks that a specification of one process asks for nothing that only pods of other roles have.
/// The rules of the definition see defaults like what a user wrote, so they can't tell.
fn one_process(spec: &LedgerClusterSpec) -> Result<(), Invalid> {
    let refused = |words: &str| Err(Invalid(format!("oneProcess: {words}")));
    if !spec.one_process {
        return Ok(());
    }
    if spec.nodes.count != 1 {
        return refused("nodes.count must be 1: several nodes need etcd and coordinators of their own");
    }
    if spec.coordinators != Coordinators::default() {
        return refused(
            "there are no pods of coordinators: use nodes.resources and nodes.pods, leave coordinators out",
        );
    }
    let etcd_secrets = |secrets: &TlsSecrets| secrets.etcd.is_some() || secrets.etcd_client.is_some();
    if spec.etcd != Etcd::default() || spec.tls.secrets.as_ref().is_some_and(etcd_secrets) {
        return refused("the process keeps on its volume what etcd would hold: leave etcd out");
    }
    Ok(())
}

/// Checks that readers have certificates and addresses of their own, and voters to follow.
fn readers(spec: &LedgerClusterSpec) -> Result<(), Invalid> {
    let Some(readers) = spec.readers.as_ref().filter(|readers| readers.count > 0) else { return Ok(()) };
    if spec.one_process {
        return Err(Invalid(
            "oneProcess: there are no readers of a ledger in one process: leave readers out".to_owned(),
        ));
    }
    if spec.tls.secrets.as_ref().is_some_and(|secrets| secrets.readers.is_none()) {
        return Err(Invalid("tls.secrets.readers: it must name the secrets of readers".to_owned()));
    }
    if let Some(devices) = readers.pim.as_ref().and_then(|modules| modules.devices.as_ref()) {
        let asked = readers.resources.iter().flat_map(|all| [&all.limits, &all.requests]).flatten();
        if asked.into_iter().any(|quantities| quantities.contains_key(&devices.resource)) {
            let words = "readers.resources has it, too: leave it out there";
            return Err(Invalid(format!("readers.pim.devices: {}: {words}", devices.resource)));
        }
    }
    readers.pods.affinity.as_ref().map_or(Ok(()), |affinity| check_affinity("readers", affinity))
}

/// The longest name of an object.
const NAME_BYTES_MAX: usize = 253;

/// Checks that a text is the name of an object: lower-case letters, digits, dots and hyphens.
///
/// # Errors
/// If it is not.
pub fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    let whole = outer(bytes.first().copied()) && outer(bytes.last().copied());
    if whole && bytes.len() <= NAME_BYTES_MAX && bytes.iter().all(|byte| fits(*byte)) {
        return Ok(());
    }
    Err(Invalid(format!("{field}: {name:?} is not a name: it has lower-case letters, digits, dots and hyphens")))
}

fn names(spec: &LedgerClusterSpec) -> Result<(), Invalid> {
    let external = spec.etcd.external.as_ref();
    let secrets = spec.tls.secrets.as_ref();
    let given = [
        ("signingKey.secret", spec.signing_key.secret.as_ref()),
        ("tls.secrets.nodes", secrets.map(|secrets| &secrets.nodes)),
        ("tls.secrets.readers", secrets.and_then(|secrets| secrets.readers.as_ref())),
        ("tls.secrets.coordinators", secrets.map(|secrets| &secrets.coordinators)),
        ("tls.secrets.etcd", secrets.and_then(|secrets| secrets.etcd.as_ref())),
        ("tls.secrets.etcdClient", secrets.and_then(|secrets| secrets.etcd_client.as_ref())),
        ("tls.certManager.issuer", spec.tls.cert_manager.as_ref().map(|asked| &asked.issuer)),
        ("etcd.external.tlsSecret", external.and_then(|external| external.tls_secret.as_ref())),
    ];
    given
        .into_iter()
        .filter_map(|(field, name)| Some((field, name?)))
        .try_for_each(|(field, name)| check_name(field, name))
}

/// Refuses hidden characters: texts reach settings, commands, events and other people's terminals.
fn no_hidden_characters(path: &str, value: &Value) -> Result<(), Invalid> {
    let check = |path: &str, text: &str| match control_in(text) {
        Some((_, c)) => Err(Invalid(format!("{path} has a character that is not shown: {}", c.escape_unicode()))),
        None => Ok(()),
    };
    match value {
        Value::String(text) => check(path, text),
        Value::Array(items) => items.iter().try_for_each(|item| no_hidden_characters(path, item)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            check(path, name)?;
            no_hidden_characters(&format!("{path}.{name}"), value)
        }),
        _ => Ok(()),
    }
}

/// Checks that the splits ascend. Text and hex may be mixed, so the decoded bytes are compared.
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

/// Checks an affinity's fields. The definition takes any object, and a misspelt field would be
/// dropped silently.
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
    fn roots_of_authorities_are_certificates() {
        let with = |roots: &str| {
            let authority = crate::crd::TimeAuthority {
                url: "https://tsa.example/".to_owned(),
                roots: roots.to_owned(),
                accuracy_ms: None,
            };
            let mut spec = LedgerClusterSpec::default();
            spec.time_stamps.authorities.push(authority);
            validate(&spec).map_err(|error| error.to_string())
        };
        let sound = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        assert_eq!(with(sound), Ok(()));
        for wrong in ["", "MIIB", &format!("{sound}\u{1b}[2J"), &format!("{sound}\u{202e}")] {
            assert!(with(wrong).expect_err("it is refused").contains("no PEM"), "{wrong:?}");
        }
    }

    #[test]
    fn a_witness_has_the_key_of_a_witness() {
        let mut spec = LedgerClusterSpec::default();
        let witness = crate::crd::Witness { url: "https://witness.example/".to_owned(), vkey: "nonsense".to_owned() };
        spec.witnesses.list.push(witness);
        assert!(validate(&spec).expect_err("it is refused").to_string().contains("not a key of a witness"));
    }

    /// Public keys of witnesses of these names.
    fn keys(names: &[&str]) -> Vec<String> {
        let key = |(seed, name): (usize, &&str)| {
            let seed = u8::try_from(seed + 1).expect("few");
            let key = coppice_verify::cosignature::Cosigner::from_seed(name, &[seed; 32]).expect("a key can be made");
            key.verifier().to_string()
        };
        names.iter().enumerate().map(key).collect()
    }

    #[test]
    fn a_policy_is_one_that_coordinators_take() {
        let said = |policy: &str, more: Value| {
            let mut witnesses = serde_json::json!({ "policy": policy });
            witnesses.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let spec = serde_json::from_value(serde_json::json!({ "witnesses": witnesses })).expect("it can be read");
            validate(&spec).map_err(|invalid| invalid.0)
        };
        let keys = keys(&["a.example/w", "b.example/w", "c.example/w"]);
        let line = |name: &str, index: usize| format!("witness {name} {} http://{name}.example/w\n", keys[index]);
        let (a, b, c) = (line("a", 0), line("b", 1), line("c", 2));
        let plain = || serde_json::json!({});
        assert_eq!(said(&format!("{a}{b}{c}group two 2 a b c\nquorum two\n"), plain()), Ok(()));
        assert_eq!(said(&format!("# comment\n{a}{b}quorum a\n"), plain()), Ok(()), "b may cosign, and need not");
        let opens = |address: &str| format!("witness d {} {address}\nquorum d\n", keys[0]);
        assert_eq!(said(&opens("stream:ledger-cosigner/w"), plain()), Ok(()), "it opens a stream itself");
        let without_url = format!("witness d {}\n", keys[0]);
        let other_key = |spec: &str| format!("{spec}quorum a\n");
        for (policy, more, words) in [
            (a.clone(), plain(), "there is no quorum line"),
            (format!("{a}quorum none\n"), plain(), "needs no witness"),
            (format!("{without_url}quorum d\n"), plain(), "d has no URL"),
            (opens("stream:/w"), plain(), "d has no URL"),
            (opens("stream:ledger-cosigner"), plain(), "d has no URL"),
            (opens("ftp://d.example/w"), plain(), "d has no URL"),
            (format!("{a}quorum b\n"), plain(), "line 2: "),
            ("nonsense\n".to_owned(), plain(), "line 1: "),
            (other_key(&format!("{a}\u{1b}[2J")), plain(), "not shown"),
            (other_key(&a), serde_json::json!({ "quorum": 1 }), "leave them out"),
            (
                other_key(&a),
                serde_json::json!({ "list": [{ "url": "https://w/", "vkey": keys[1] }] }),
                "leave them out",
            ),
        ] {
            let refused = said(&policy, more).expect_err("it is refused");
            assert!(refused.starts_with("witnesses.policy: ") && refused.contains(words), "{policy}: {refused}");
        }
        let twice = said(&format!("{a}{}quorum a\n", line("d", 0)), plain()).expect_err("one party has two votes");
        assert!(twice.starts_with("witnesses.policy: "), "{twice}");
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in ["a", "my-secret", "a.b-c", "0", &"a".repeat(253)] {
            assert_eq!(check_name("field", name), Ok(()), "{name}");
        }
        let elsewhere = [
            "",
            ".",
            "..",
            "a/b",
            "../../kube-system/secrets/admin",
            "a?b",
            "a#b",
            "a%2fb",
            "a b",
            "a\n",
            "A",
            "-a",
            "a-",
            "a.",
            "ä",
            "$(POD)",
            &"a".repeat(254),
        ];
        for name in elsewhere {
            let said = check_name("field", name).expect_err("it is not a name").to_string();
            assert!(said.starts_with("field: "), "{said}");
        }
    }

    #[test]
    fn every_secret_that_a_specification_names_is_in_its_namespace() {
        let name = "../../kube-system/secrets/admin";
        for spec in [
            serde_json::json!({ "signingKey": { "secret": name } }),
            serde_json::json!({ "tls": { "secrets": { "nodes": name, "coordinators": "c" } } }),
            serde_json::json!({ "tls": { "secrets": { "nodes": "n", "coordinators": name } } }),
            serde_json::json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c", "etcd": name } } }),
            serde_json::json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c", "etcd": "e", "etcdClient": name } } }),
            serde_json::json!({ "tls": { "certManager": { "issuer": name } } }),
            serde_json::json!({ "etcd": { "external": { "endpoints": ["https://a:1"], "tlsSecret": name } } }),
        ] {
            let parsed = serde_json::from_value(spec.clone()).expect("it can be read");
            let said = validate(&parsed).expect_err("it is refused").to_string();
            assert!(said.contains("is not a name"), "{spec}: {said}");
        }
    }

    #[test]
    fn no_text_has_hidden_characters() {
        for spec in [
            serde_json::json!({ "log": "info\n[tls]" }),
            serde_json::json!({ "image": { "name": "a\u{202e}b" } }),
            serde_json::json!({ "nodes": { "pods": { "annotations": { "a": "\u{1b}[2J" } } } }),
            serde_json::json!({ "nodes": { "pods": { "annotations": { "a\r": "b" } } } }),
            serde_json::json!({ "coordinators": { "pods": { "affinity": { "x": "\u{0}" } } } }),
        ] {
            let parsed = serde_json::from_value(spec.clone()).expect("it can be read");
            let said = validate(&parsed).expect_err("it is refused").to_string();
            assert!(said.contains("not shown"), "{spec}: {said}");
        }
        assert_eq!(validate(&with_splits(&["a\u{1}", "\u{85}"])), Ok(()), "keys are of any bytes");
    }

    #[test]
    fn one_process_has_no_pods_of_other_roles() {
        let said = |more: Value| {
            let mut spec = serde_json::json!({ "oneProcess": true, "nodes": { "count": 1 } });
            spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            validate(&serde_json::from_value(spec).expect("it can be read")).map_err(|invalid| invalid.0)
        };
        assert_eq!(said(serde_json::json!({})), Ok(()));
        assert_eq!(said(serde_json::json!({ "oneProcess": false, "coordinators": { "count": 1 } })), Ok(()));
        for (more, words) in [
            (serde_json::json!({ "nodes": { "count": 3 } }), "nodes.count must be 1"),
            (serde_json::json!({ "coordinators": { "count": 1 } }), "leave coordinators out"),
            (serde_json::json!({ "etcd": { "managed": {} } }), "leave etcd out"),
            (
                serde_json::json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c", "etcd": "e" } } }),
                "leave etcd out",
            ),
        ] {
            let refused = said(more.clone()).expect_err("it is refused");
            assert!(refused.contains(words), "{more}: {refused}");
        }
    }

    #[test]
    fn readers_have_certificates_and_voters_in_other_pods() {
        let said = |spec: Value| validate(&serde_json::from_value(spec).expect("it can be read")).map_err(|no| no.0);
        let secrets = |more: Value| {
            let mut secrets = serde_json::json!({ "nodes": "n", "coordinators": "c" });
            secrets.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            serde_json::json!({ "readers": { "count": 1 }, "tls": { "secrets": secrets } })
        };
        assert_eq!(said(serde_json::json!({ "readers": { "count": 2, "zone": "b" } })), Ok(()));
        assert_eq!(said(secrets(serde_json::json!({ "readers": "r" }))), Ok(()));
        let alone = |count: u32| serde_json::json!({ "oneProcess": true, "nodes": { "count": 1 }, "readers": { "count": count } });
        assert_eq!(said(alone(0)), Ok(()), "none is none");
        let with_devices = |place: &str| {
            let pim = serde_json::json!({ "library": "libdpu.so", "program": "/kernel.dpu",
                "devices": { "resource": "upmem.example/rank", "count": 2 } });
            let resources = serde_json::json!({ place: { "upmem.example/rank": "4" } });
            serde_json::json!({ "readers": { "count": 1, "pim": pim, "resources": resources } })
        };
        let mut alone_there = with_devices("limits");
        alone_there["readers"]["resources"]["limits"] = serde_json::json!({ "memory": "4Gi" });
        assert_eq!(said(alone_there), Ok(()));
        for (spec, words) in [
            (alone(1), "leave readers out"),
            (secrets(serde_json::json!({})), "tls.secrets.readers"),
            (secrets(serde_json::json!({ "readers": "../a" })), "is not a name"),
            (
                serde_json::json!({ "readers": { "count": 1, "pods": { "affinity": { "x": {} } } } }),
                "readers.pods.affinity",
            ),
            (with_devices("limits"), "readers.resources has it, too"),
            (with_devices("requests"), "readers.resources has it, too"),
        ] {
            let refused = said(spec.clone()).expect_err("it is refused");
            assert!(refused.contains(words), "{spec}: {refused}");
        }
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
