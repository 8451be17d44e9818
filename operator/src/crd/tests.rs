//! The definitions as the API server applies them: what it refuses, what it fills in, and that the
//! chart ships them.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn cluster(spec: Value) -> LedgerCluster {
    let object = json!({ "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerCluster", "metadata": { "name": "ledger" }, "spec": spec });
    serde_json::from_value(object).expect("the specification can be read")
}

fn operation(spec: Value) -> LedgerOperation {
    let object = json!({ "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerOperation", "metadata": { "name": "once" }, "spec": spec });
    serde_json::from_value(object).expect("the specification can be read")
}

/// What the API server says to a new cluster with this specification.
fn refusal(spec: Value) -> String {
    cluster(spec).validate_cel().expect_err("it is refused").to_string()
}

/// What the API server says to a change.
fn change_refused(old: Value, new: Value) -> String {
    cluster(new).validate_cel_update(&cluster(old)).expect_err("it is refused").to_string()
}

#[test]
fn the_chart_ships_the_definitions_of_the_types() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/coppice-operator/crds");
    for (name, definition) in definitions() {
        let shipped = std::fs::read_to_string(dir.join(name)).expect("the chart has the file");
        let shipped: Value = serde_saphyr::from_str(&shipped).expect("the chart's file is YAML");
        let derived = serde_json::to_value(definition).expect("a definition is JSON");
        assert!(shipped == derived, "{name} is old: make crds");
    }
}

#[test]
fn the_reference_of_fields_is_that_of_the_types() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fields.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    assert!(page == reference(), "docs/fields.md is old: make crds");
    for row in [
        "| `spec.nodes.count` | integer 1 to 9 | `3` |",
        "| `spec.nodes.coldStorage.size` | string | required |",
        "| `spec.witnesses.list[].url` | string | required |",
        "| `spec.volumePolicy` | `Retain`, `Delete` |",
    ] {
        assert!(page.contains(row), "no row {row}");
    }
}

/// The documents of all samples, with the file that each is in.
fn samples() -> Vec<(String, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/examples");
    let files = std::fs::read_dir(dir).expect("the folder is there").map(|file| file.expect("it is listed").path());
    let mut samples = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        for part in text.split("\n---\n") {
            samples.push((name.clone(), serde_saphyr::from_str(part).expect("it is YAML")));
        }
    }
    samples
}

/// Collects the path of every field of a schema; lists count as their items.
fn fields(path: &str, schema: &Value, found: &mut Vec<String>) {
    let foreign = ["resources", "tolerations", "topologySpreadConstraints", "affinity", "pullSecrets"];
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if !foreign.contains(&name.as_str()) {
            fields(&path, property, found);
            fields(&path, &property["items"], found);
        }
        found.push(path);
    }
}

/// Whether a resource has a value at a path.
fn has(value: &Value, path: &str) -> bool {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let Some(below) = value.get(name) else { return false };
    match below {
        _ if rest.is_empty() => true,
        Value::Array(items) => items.iter().any(|item| has(item, rest)),
        below => has(below, rest),
    }
}

#[test]
fn samples_are_valid_have_no_misspelt_field_and_show_every_field() {
    let samples = samples();
    let mut texts = [0, 0];
    for (file, sample) in &samples {
        let spec = match sample["kind"].as_str() {
            Some("LedgerCluster") => {
                texts[0] += 1;
                let cluster: LedgerCluster = serde_json::from_value(sample.clone()).expect(file);
                assert_eq!(cluster.validate_cel().map_err(|error| error.to_string()), Ok(()), "{file}");
                assert_eq!(crate::reconcile::validate::validate(&cluster.spec), Ok(()), "{file}");
                serde_json::to_value(&cluster.spec)
            }
            Some("LedgerOperation") => {
                texts[1] += 1;
                let operation: LedgerOperation = serde_json::from_value(sample.clone()).expect(file);
                assert_eq!(operation.validate_cel().map_err(|error| error.to_string()), Ok(()), "{file}");
                serde_json::to_value(&operation.spec)
            }
            // The application, which is of Kubernetes itself.
            _ => continue,
        };
        let kept = spec.expect("a specification is JSON");
        assert_eq!(crate::reconcile::build::lost(&sample["spec"], &kept), None, "{file}");
    }
    assert!(texts[0] >= 6 && texts[1] >= 3, "{texts:?}");
    for (_, definition) in definitions() {
        let definition = serde_json::to_value(definition).expect("a definition is JSON");
        let kind = &definition["spec"]["names"]["kind"];
        let mut paths = Vec::new();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        fields("spec", schema, &mut paths);
        let of_kind: Vec<&Value> = samples.iter().map(|(_, it)| it).filter(|it| it["kind"] == *kind).collect();
        paths.retain(|path| !of_kind.iter().any(|sample| has(sample, path)));
        // It is only for resources of before `repository` and `tag`.
        paths.retain(|path| path != "spec.image.name");
        assert_eq!(paths, [""; 0], "no sample of a {kind} has these fields");
    }
}

#[test]
fn an_empty_specification_is_a_whole_cluster() {
    let cluster = cluster(json!({}));
    assert_eq!(cluster.validate_cel().map_err(|error| error.to_string()), Ok(()));
    let LedgerClusterSpec { nodes, coordinators, shards, volume_policy, .. } = &cluster.spec;
    assert_eq!((nodes.count, coordinators.count, shards.count), (3, 2, 2));
    assert_eq!((nodes.storage.size.as_str(), *volume_policy), ("20Gi", VolumePolicy::Retain));
    assert!(cluster.spec.network_policies.enabled);
}

#[test]
fn what_the_api_server_fills_in_is_what_the_types_fill_in() {
    let [(_, definition), _] = definitions();
    let definition = serde_json::to_value(definition).expect("a definition is JSON");
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let defaults: serde_json::Map<String, Value> = spec["properties"]
        .as_object()
        .expect("the specification has properties")
        .iter()
        .filter_map(|(name, schema)| Some((name.clone(), schema.get("default")?.clone())))
        .collect();
    assert_eq!(cluster(Value::Object(defaults.clone())), cluster(json!({})));
    assert_eq!(defaults["nodes"]["count"], 3, "{defaults:?}");
}

#[test]
fn specifications_that_contradict_themselves_are_refused() {
    for (spec, words) in [
        (json!({ "shards": { "count": 3, "splits": ["m"] } }), "count must be one more than the number of splits"),
        (json!({ "shards": { "count": 3, "splits": ["m", "c"] } }), "splits must be in ascending order"),
        (json!({ "shards": { "replicas": 2 } }), "replicas must be odd"),
        (json!({ "shards": { "replicas": 5 } }), "shards.replicas must be at most nodes.count"),
        (json!({ "root": { "replicas": 5 } }), "root.replicas must be at most nodes.count"),
        (json!({ "oneProcess": true }), "oneProcess is for nodes.count 1"),
        (
            json!({ "oneProcess": true, "nodes": { "count": 1 }, "readers": { "count": 1 } }),
            "oneProcess has no readers",
        ),
        (json!({ "readers": { "count": 1, "storage": { "size": "much" } } }), "size must be a quantity"),
        (
            json!({ "readers": { "count": 1 }, "tls": { "secrets": { "nodes": "n", "coordinators": "c" } } }),
            "tls.secrets.readers must name the secrets",
        ),
        (json!({ "readers": { "count": 1, "pim": { "library": "libdpu.so" } } }), "pim.program must be the path"),
        (
            json!({ "readers": { "count": 1, "pim": { "library": "emulator", "program": "/kernel.dpu" } } }),
            "the emulator needs neither",
        ),
        (
            json!({ "readers": { "count": 1, "pim": { "library": "emulator",
                "devices": { "resource": "upmem.example/rank", "count": 1 } } } }),
            "the emulator needs neither",
        ),
        (
            json!({ "readers": { "count": 1, "pim": { "library": "libdpu.so", "program": "/kernel.dpu",
                "devices": { "resource": "node.kubernetes.io/rank", "count": 1 } } } }),
            "must be an extended resource",
        ),
        (
            json!({ "readers": { "count": 1, "pim": { "library": "libdpu.so", "program": "/kernel.dpu",
                "devices": { "resource": "requests.example/rank", "count": 1 } } } }),
            "must be an extended resource",
        ),
        (json!({ "nodes": { "storage": { "size": "much" } } }), "size must be a quantity"),
        (json!({ "nodes": { "coldStorage": { "size": "much" } } }), "size must be a quantity"),
        (json!({ "retention": { "versions": 5, "hours": 5 } }), "retention must be by versions or by hours"),
        (json!({ "etcd": { "managed": {}, "external": { "endpoints": ["http://a:1"] } } }), "managed or external"),
        (
            json!({ "etcd": { "external": { "endpoints": ["http://a:1"], "tlsSecret": "s" } } }),
            "the endpoints must begin with https://",
        ),
        (json!({ "tls": { "plaintext": true, "certManager": { "issuer": "i" } } }), "tls must have one source"),
        (
            json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c", "etcdClient": "e" } } }),
            "secrets.etcd holds, which is missing",
        ),
        (json!({ "witnesses": { "quorum": 1 } }), "quorum must be at most the number of witnesses"),
        (json!({ "witnesses": { "quorum": 1, "policy": "quorum none" } }), "policy takes the place of list and quorum"),
        (
            json!({ "witnesses": { "policy": "quorum none", "list": [{ "url": "https://w/", "vkey": "v" }] } }),
            "policy takes the place of list and quorum",
        ),
        (json!({ "timeStamps": { "quorum": 1 } }), "quorum must be at most the number of authorities"),
        (json!({ "telemetry": { "traceRatio": 1.0 } }), "otlpEndpoint, which is missing"),
    ] {
        let said = refusal(spec.clone());
        assert!(said.contains(words), "{spec}: {said}");
    }
}

#[test]
fn names_from_which_no_service_can_be_made_are_refused() {
    for (name, words) in [
        ("a".repeat(41), "at most 40 characters"),
        ("a.b".to_owned(), "no dots"),
        ("1a".to_owned(), "no dots"),
        ("a-node".to_owned(), "must not end in"),
    ] {
        let mut cluster = cluster(json!({}));
        cluster.metadata.name = Some(name);
        let said = cluster.validate_cel().expect_err("it is refused").to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn permanent_fields_cannot_be_changed() {
    for (old, new, words) in [
        (json!({}), json!({ "nodes": { "count": 5 } }), "nodes.count can't change"),
        (json!({}), json!({ "shards": { "count": 4 } }), "shards can't change"),
        (json!({}), json!({ "root": { "replicas": 1 } }), "the root group can't change"),
        (json!({}), json!({ "journals": true }), "journals can't change"),
        (
            json!({ "nodes": { "count": 1 } }),
            json!({ "nodes": { "count": 1 }, "oneProcess": true }),
            "oneProcess can't change",
        ),
        (json!({}), json!({ "nodes": { "storage": { "size": "19Gi" } } }), "a volume can't shrink"),
        (json!({}), json!({ "nodes": { "coldStorage": { "size": "1Ti" } } }), "nodes.coldStorage can't change"),
        (json!({ "nodes": { "coldStorage": { "size": "1Ti" } } }), json!({}), "nodes.coldStorage can't change"),
        (
            json!({ "nodes": { "coldStorage": { "size": "1Ti", "class": "a" } } }),
            json!({ "nodes": { "coldStorage": { "size": "1Ti", "class": "b" } } }),
            "the storage class of existing volumes can't change",
        ),
        (
            json!({ "nodes": { "coldStorage": { "size": "1Ti" } } }),
            json!({ "nodes": { "coldStorage": { "size": "1Gi" } } }),
            "a volume can't shrink",
        ),
        (json!({}), json!({ "etcd": { "external": { "endpoints": ["http://a:1"] } } }), "etcd can't change"),
    ] {
        let said = change_refused(old, new.clone());
        assert!(said.contains(words), "{new}: {said}");
    }
    // Readers come and go, with another class of volumes if there were none.
    for (old, new) in [
        (json!({}), json!({ "readers": { "count": 2, "storage": { "size": "1Gi", "class": "fast" } } })),
        (json!({ "readers": { "count": 3, "storage": { "size": "1Gi", "class": "fast" } } }), json!({})),
        (json!({ "readers": { "count": 1 } }), json!({ "readers": { "count": 4, "zone": "b" } })),
    ] {
        let said = cluster(new.clone()).validate_cel_update(&cluster(old));
        assert_eq!(said.map_err(|error| error.to_string()), Ok(()), "{new}");
    }
    let shrunk = json!({ "readers": { "count": 2, "storage": { "size": "1Gi" } } });
    let said = change_refused(json!({ "readers": { "count": 2 } }), shrunk);
    assert!(said.contains("a volume can't shrink"), "{said}");
    let grown = cluster(json!({ "nodes": { "storage": { "size": "1Ti" } }, "coordinators": { "count": 3 } }));
    assert!(grown.validate_cel_update(&cluster(json!({}))).is_ok());
}

#[test]
fn a_rollback_must_be_confirmed_and_go_back() {
    let rollback = |to: i64, confirm: &str| {
        let head = json!({ "epoch": 1, "version": 9 });
        operation(
            json!({ "cluster": "ledger", "rollback": { "to": to, "expectedHead": head, "reason": "r", "confirm": confirm } }),
        )
    };
    assert!(rollback(7, "roll back ledger to 7").validate_cel().is_ok());
    for (to, confirm, words) in [
        (7, "roll back ledger to 8", "confirm must read"),
        (9, "roll back ledger to 9", "to must be older than expectedHead"),
    ] {
        let said = rollback(to, confirm).validate_cel().expect_err("it is refused").to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn an_operation_is_one_thing_and_is_never_changed() {
    let prune = operation(json!({ "cluster": "ledger", "prune": { "before": 5, "reason": "r" } }));
    assert!(prune.validate_cel().is_ok());
    assert!(operation(json!({ "cluster": "ledger" })).validate_cel().is_err());
    let transfer = json!({ "group": "root", "node": "ledger-node-1" });
    assert!(operation(json!({ "cluster": "ledger", "transfer": transfer })).validate_cel().is_ok());
    let both = operation(json!({ "cluster": "ledger", "prune": { "before": 5, "reason": "r" }, "transfer": transfer }));
    assert!(
        both.validate_cel().expect_err("it is refused").to_string().contains("one of prune, rollback and transfer")
    );
    let other = operation(json!({ "cluster": "ledger", "prune": { "before": 6, "reason": "r" } }));
    let said = other.validate_cel_update(&prune).expect_err("it is refused").to_string();
    assert!(said.contains("can't be changed"), "{said}");
}

#[test]
fn what_the_chart_renders_is_a_cluster_without_a_misspelt_field() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/golden");
    for name in ["coppice-default.yaml", "coppice-choices.yaml", "coppice-one-process.yaml"] {
        let rendered = std::fs::read_to_string(dir.join(name)).expect("the render is there");
        let cluster = rendered.split("\n---\n").find(|part| part.contains("\nkind: LedgerCluster\n"));
        let rendered: Value = serde_saphyr::from_str(cluster.expect("one part is a cluster")).expect("it is YAML");
        let cluster: LedgerCluster = serde_json::from_value(rendered.clone()).expect("it is a cluster");
        assert_eq!(cluster.validate_cel().map_err(|error| error.to_string()), Ok(()), "{name}");
        let kept = serde_json::to_value(&cluster.spec).expect("a specification is JSON");
        assert_eq!(crate::reconcile::build::lost(&rendered["spec"], &kept), None, "{name}");
    }
}

/// Collects the path of every text without an enumeration, a pattern or a format.
fn unbounded_texts(path: &str, schema: &Value, found: &mut Vec<String>) {
    // The API server checks Kubernetes' own types where they are used.
    let foreign = ["resources", "tolerations", "topologySpreadConstraints", "affinity", "pullSecrets"];
    if foreign.iter().any(|name| path.ends_with(&format!(".{name}"))) {
        return;
    }
    let bounded = schema.get("enum").is_some() || schema.get("pattern").is_some() || schema.get("format").is_some();
    if schema["type"] == "string" && !bounded {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded_texts(&format!("{path}.{name}"), property, found);
    }
    for below in ["items", "additionalProperties"] {
        if schema.get(below).is_some_and(Value::is_object) {
            unbounded_texts(path, &schema[below], found);
        }
    }
}

#[test]
fn every_text_says_what_may_be_in_it() {
    let mut found = Vec::new();
    for (_, definition) in definitions() {
        let definition = serde_json::to_value(definition).expect("a definition is JSON");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        unbounded_texts("spec", schema, &mut found);
    }
    let expected = [
        // A rule demands a quantity.
        "spec.etcd.managed.storage.size",
        "spec.nodes.coldStorage.size",
        "spec.nodes.storage.size",
        "spec.readers.storage.size",
        // A rule demands the exact words.
        "spec.rollback.confirm",
        // Keys, which may have any bytes.
        "spec.shards.splits",
    ];
    found.retain(|path| ![".annotations", ".labels", ".nodeSelector"].iter().any(|end| path.ends_with(end)));
    found.sort();
    assert_eq!(found, expected, "annotations, labels and node selectors are checked where pods are made");
}
