//! Properties of the built objects. Settings are parsed by the same types with which the processes
//! read them.

use coppice_process::Settings;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PodTemplateSpec},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::*;

fn facts(spec: Value) -> Facts {
    let object = json!({
        "apiVersion": "coppice.dev/v1alpha1",
        "kind": "LedgerCluster",
        "metadata": { "name": "ledger", "namespace": "bank", "uid": "1234" },
        "spec": spec,
    });
    Facts {
        cluster: serde_json::from_value(object).expect("the specification can be read"),
        cluster_id: "0f1e2d3c4b5a69788796a5b4c3d2e1f0".to_owned(),
        signing_secret: "ledger-signing-key".to_owned(),
        next_key: false,
        founded: false,
        certificates: BTreeMap::new(),
    }
}

fn find<'a>(objects: &'a [Object], kind: &str, name: &str) -> &'a Object {
    let found = objects.iter().find(|object| object.resource.kind == kind && object.name() == name);
    found.unwrap_or_else(|| {
        panic!("there is no {kind} {name}: {:?}", objects.iter().map(Object::name).collect::<Vec<_>>())
    })
}

fn set(objects: &[Object], name: &str) -> StatefulSet {
    serde_json::from_value(find(objects, "StatefulSet", name).body.clone()).expect("it is one")
}

fn template(objects: &[Object], name: &str) -> PodTemplateSpec {
    set(objects, name).spec.expect("a set has a specification").template
}

fn config_map<'a>(objects: &'a [Object], prefix: &str) -> &'a Object {
    let is_one = |object: &&Object| object.resource.kind == "ConfigMap" && object.name().starts_with(prefix);
    objects.iter().find(is_one).expect("there is one")
}

/// Parses the settings in a config map, together with the pod's environment.
fn settings<C: Settings>(objects: &[Object], prefix: &str, file: &str, own: &[(&str, &str)]) -> C {
    let map: ConfigMap = serde_json::from_value(config_map(objects, prefix).body.clone()).expect("it is one");
    let mut table: toml::Table = toml::from_str(&map.data.expect("it has files")[file]).expect("the file is TOML");
    for (key, value) in own {
        table.insert((*key).to_owned(), toml::Value::String((*value).to_owned()));
    }
    let config: C = table.try_into().expect("the process knows all settings");
    let checked = config.telemetry().check().and_then(|()| config.check());
    checked.map_err(|failure| format!("{failure:?}")).expect("the process takes the settings");
    config
}

fn specifications() -> Vec<Value> {
    vec![
        json!({}),
        json!({ "nodes": { "count": 1, "coldStorage": { "size": "1Ti" } }, "shards": { "count": 4 }, "tls": { "plaintext": true }, "retention": { "hours": 48 } }),
        json!({ "nodes": { "count": 5 }, "shards": { "count": 3, "splits": ["0x40", "m"], "replicas": 3, "capacity": 1024 }, "journals": true,
            "coordinators": { "count": 3 }, "retention": { "versions": 1000 },
            "telemetry": { "otlpEndpoint": "http://collector.monitoring:4317", "traceRatio": 0.5 },
            "etcd": { "external": { "endpoints": ["https://etcd.example:2379"], "tlsSecret": "etcd-client" } } }),
        json!({ "readers": { "count": 2, "zone": "b" }, "coordinators": { "zone": "b" }, "nodes": { "coldStorage": { "size": "1Ti" } } }),
    ]
}

#[test]
fn the_processes_take_the_settings_that_are_built_for_them() {
    for spec in specifications() {
        let facts = facts(spec);
        let objects = build(&facts);
        for (index, pod) in facts.pods(Role::Node).iter().enumerate() {
            let node: coppice_shard_node::process::Config =
                settings(&objects, "ledger-node-", "node.toml", &[("node", pod), ("bootstrap", "new")]);
            assert_eq!(node.nodes[pod].ordinal as usize, index + 1);
            assert_eq!(node.tls.is_some(), !facts.spec().tls.plaintext);
            let hosted = facts.placement().iter().filter(|(_, hosts)| hosts.contains(&index)).count();
            assert_eq!(node.formation().map(|formation| formation.groups.len()).ok(), Some(hosted));
        }
        let coordinator: coppice_coordinator::process::Config = settings(
            &objects,
            "ledger-coordinator-",
            "coordinator.toml",
            &[("name", "ledger-coordinator-0"), ("advertise", "ledger-coordinator-0.ledger-coordinator.bank.svc:7411")],
        );
        assert_eq!(coordinator.nodes.len(), (facts.count(Role::Node) + facts.count(Role::Reader)) as usize);
        let etcd = if facts.spec().etcd.external.is_some() { 1 } else { 3 };
        assert_eq!(coordinator.metadata.endpoints.len(), etcd);
    }
}

#[test]
fn readers_are_nodes_of_their_own_that_every_process_knows_as_readers() {
    let spec = json!({
        "readers": { "count": 2, "zone": "b", "storage": { "size": "7Gi", "class": "cheap" },
            "resources": { "requests": { "cpu": "3" } },
            "pods": { "nodeSelector": { "disk": "big" }, "tolerations": [{ "key": "reads", "operator": "Exists" }] } },
        "nodes": { "coldStorage": { "size": "1Ti" }, "pods": { "nodeSelector": { "disk": "fast" } } },
        "coordinators": { "zone": "a" },
        "shards": { "count": 3 },
    });
    let facts = facts(spec);
    let objects = build(&facts);
    let own = [("node", "ledger-reader-1"), ("bootstrap", "new")];
    let reader: coppice_shard_node::process::Config = settings(&objects, "ledger-reader-", "reader.toml", &own);
    assert_eq!(reader.cold, None, "it has no second volume");
    let formation = reader.formation().expect("the settings fit together");
    let groups: Vec<String> = formation.groups.keys().map(ToString::to_string).collect();
    assert_eq!(groups, ["shard-0", "shard-1", "shard-2"], "all shards, and not the root group");
    let node: coppice_shard_node::process::Config =
        settings(&objects, "ledger-node-", "node.toml", &[("node", "ledger-node-0"), ("bootstrap", "new")]);
    let coordinator: coppice_coordinator::process::Config =
        settings(&objects, "ledger-coordinator-", "coordinator.toml", &[("name", "c"), ("advertise", "c:1")]);
    assert_eq!(coordinator.zone.as_deref(), Some("a"));
    for nodes in [&reader.nodes, &node.nodes, &coordinator.nodes] {
        let seen: Vec<_> = nodes.values().map(|node| (node.ordinal, node.reader, node.zone.as_deref())).collect();
        let voters = (1..=3).map(|ordinal| (ordinal, false, None));
        assert_eq!(seen, voters.chain([(101, true, Some("b")), (102, true, Some("b"))]).collect::<Vec<_>>());
        assert_eq!(nodes["ledger-reader-1"].address, "ledger-reader-1.ledger-reader.bank.svc:7400");
    }

    let set = set(&objects, "ledger-reader").spec.expect("a set has a specification");
    assert_eq!((set.replicas, set.service_name.as_deref()), (Some(2), Some("ledger-reader")));
    let claims = set.volume_claim_templates.unwrap_or_default();
    let claim = claims[0].spec.as_ref().expect("it has one");
    assert_eq!((claims.len(), claim.storage_class_name.as_deref()), (1, Some("cheap")));
    let pod = set.template.spec.expect("a template has a specification");
    assert_eq!(pod.node_selector.expect("it has one")["disk"], "big");
    assert_eq!(pod.tolerations.map(|tolerations| tolerations.len()), Some(1));
    let paths: Vec<_> = pod.containers[0].volume_mounts.iter().flatten().map(|mount| &*mount.mount_path).collect();
    assert!(!paths.contains(&"/var/lib/coppice-cold"), "{paths:?}");

    for kind in ["Service", "PodDisruptionBudget", "NetworkPolicy"] {
        let spec = &find(&objects, kind, "ledger-reader").body["spec"];
        assert!(spec.to_string().contains("\"reader\""), "{kind}: {spec}");
    }
    let budget = &find(&objects, "PodDisruptionBudget", "ledger-node").body["spec"]["selector"]["matchLabels"];
    assert_eq!(budget["app.kubernetes.io/component"], "node", "readers are not among those that may be evicted");
    let callers = &find(&objects, "NetworkPolicy", "ledger-node").body["spec"]["ingress"][0]["from"];
    assert_eq!(callers.as_array().map(Vec::len), Some(3), "readers call nodes");

    let holders = facts.holders(Realm::Ledger);
    let (role, holder, secret) = holders.iter().find(|(_, holder, _)| holder.name == "ledger-reader-0").expect("one");
    assert_eq!((*role, holder.roles.as_slice(), &**secret), (Some(Role::Reader), &["node"][..], "ledger-reader-0-tls"));
    assert_eq!(holder.hosts, ["ledger-reader-0.ledger-reader.bank.svc"]);
    let without = build(&self::facts(json!({ "readers": { "count": 0 } })));
    assert!(without.iter().all(|object| !object.name().contains("reader")), "no object of theirs");
    let plain = build(&self::facts(json!({})));
    assert_eq!(plain, without, "and no change to the others");
}

/// The settings of the first reader, as its process takes them.
fn reader(objects: &[Object]) -> coppice_shard_node::process::Config {
    let own = [("node", "ledger-reader-0"), ("bootstrap", "existing")];
    settings(objects, "ledger-reader-", "reader.toml", &own)
}

#[test]
fn memory_modules_are_in_the_settings_and_pods_of_readers_alone() {
    let readers = |pim: Option<Value>| {
        let mut readers = json!({ "count": 2, "resources": { "limits": { "memory": "8Gi" } } });
        readers.as_object_mut().expect("an object").extend(pim.map(|pim| ("pim".to_owned(), pim)));
        build(&facts(json!({ "readers": readers })))
    };
    let real = json!({ "library": "/usr/lib/libdpu.so", "program": "/opt/kernel.dpu", "dpus": 64, "recordsMin": 5000,
        "versionsMax": 8, "nodesMax": 1024, "smallBatches": "dpus",
        "devices": { "resource": "upmem.example/rank", "count": 2 } });
    let (without, with) = (readers(None), readers(Some(real)));
    assert_eq!(reader(&without).pim, None);
    let pim = reader(&with).pim.expect("it is in the settings");
    assert_eq!((pim.library.as_str(), pim.program.as_str()), ("/usr/lib/libdpu.so", "/opt/kernel.dpu"));
    assert_eq!((pim.dpus, pim.records_min, pim.versions_max, pim.nodes_max), (64, 5000, 8, 1024));
    assert_eq!(pim.small_batches, coppice_shard_node::process::SmallBatches::Dpus);
    let limits = |objects: &[Object], name: &str| {
        let pod = template(objects, name).spec.expect("a template has a specification");
        let limits = pod.containers[0].resources.as_ref().and_then(|all| all.limits.clone()).unwrap_or_default();
        limits.into_iter().map(|(resource, quantity)| (resource, quantity.0)).collect::<Vec<_>>()
    };
    let memory = ("memory".to_owned(), "8Gi".to_owned());
    assert_eq!(limits(&without, "ledger-reader"), std::slice::from_ref(&memory));
    assert_eq!(limits(&with, "ledger-reader"), [memory, ("upmem.example/rank".to_owned(), "2".to_owned())]);

    // Voters refuse the section, and are not replaced for it.
    for (prefix, file) in [("ledger-node-", "node.toml"), ("ledger-coordinator-", "coordinator.toml")] {
        assert!(table(&with, prefix, file).get("pim").is_none(), "{file}");
    }
    for name in ["ledger-node", "ledger-coordinator", "ledger-etcd"] {
        assert_eq!(template(&with, name), template(&without, name), "{name} is not replaced");
    }
    assert_ne!(config_map(&with, "ledger-reader-").name(), config_map(&without, "ledger-reader-").name());
    assert_ne!(template(&with, "ledger-reader"), template(&without, "ledger-reader"), "readers are");
}

#[test]
fn emulated_modules_need_no_program_and_texts_of_modules_stay_texts() {
    let with = |library: &str| build(&facts(json!({ "readers": { "count": 1, "pim": { "library": library } } })));
    let emulated = with("emulator");
    let pim = reader(&emulated).pim.expect("it is in the settings");
    assert_eq!((pim.library.as_str(), pim.dpus, pim.versions_max), ("emulator", 128, 64), "defaults of the process");
    assert!(config_map(&emulated, "ledger-reader-").body.to_string().contains("nodes_max = 262144"), "are written");
    for text in HOSTILE {
        let meant = replaced(table(&emulated, "ledger-reader-", "reader.toml"), "emulator", text);
        assert_eq!(table(&with(text), "ledger-reader-", "reader.toml"), meant, "{text:?}");
    }
}

#[test]
fn numbers_of_memory_modules_have_the_bounds_of_the_process() {
    let [(_, definition), _] = crate::crd::definitions();
    let definition = serde_json::to_value(definition).expect("a definition is JSON");
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let fields = &spec["properties"]["readers"]["properties"]["pim"]["properties"];
    let checked = |field: &str, value: i64| {
        let objects =
            build(&facts(json!({ "readers": { "count": 1, "pim": { "library": "emulator", field: value } } })));
        let mut table = table(&objects, "ledger-reader-", "reader.toml");
        config::merge(&mut table, json!({ "node": "ledger-reader-0" }));
        let config: coppice_shard_node::process::Config = serde_json::from_value(table).expect("it knows all settings");
        config.check().map_err(|failure| failure.message)
    };
    for field in ["dpus", "versionsMax", "nodesMax"] {
        let bound = |name: &str| fields[field][name].as_f64().expect("it has bounds") as i64;
        let (least, most) = (bound("minimum"), bound("maximum"));
        assert_eq!((checked(field, least), checked(field, most)), (Ok(()), Ok(())), "{field}");
        for outside in [least - 1, most + 1] {
            assert!(checked(field, outside).is_err_and(|said| said.contains("must be")), "{field} = {outside}");
        }
    }
}

#[test]
fn one_process_is_one_pod_with_the_settings_of_both_roles() {
    let facts = facts(json!({ "oneProcess": true, "nodes": { "count": 1 }, "retention": { "hours": 48 } }));
    let objects = build(&facts);
    let others = objects.iter().map(Object::name).filter(|name| name.contains("coordinator") || name.contains("etcd"));
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
    let own =
        [("node", "ledger-node-0"), ("bootstrap", "new"), ("advertise", "ledger-node-0.ledger-node.bank.svc:7411")];
    let config: coppice::serve::Config = settings(&objects, "ledger-node-", "node.toml", &own);
    assert_eq!((config.listen.port(), config.api_listen.port()), (NODE_PORT, CLIENT_PORT));
    assert_eq!((config.retention.hours, config.node().formation().is_ok()), (Some(48), true));
    let state = config.metadata.dir.expect("an embedded store");
    assert!(!state.starts_with(&config.data_dir) && !config.data_dir.starts_with(&state));

    let spec = template(&objects, "ledger-node").spec.expect("a template has a specification");
    let [container] = spec.containers.as_slice() else { panic!("there is one container") };
    assert_eq!(
        container.command.as_ref().map(|command| &command[..2]),
        Some(&["coppice", "serve"].map(str::to_owned)[..])
    );
    let mounts = container.volume_mounts.as_ref().expect("it has mounts");
    let mounted = |path: &std::path::Path| {
        mounts.iter().find(|mount| path.starts_with(&mount.mount_path)).map(|mount| (&*mount.name, mount.read_only))
    };
    assert_eq!([mounted(&state), mounted(&config.data_dir)], [Some(("data", None)); 2], "the volume outlives the pod");
    assert_eq!(mounted(&config.signing_key_file), Some(("key", Some(true))));
    let ports: Vec<i32> = container.ports.iter().flatten().map(|port| port.container_port).collect();
    let wanted = [NODE_PORT, CLIENT_PORT, HTTP_PORT, HEALTH_PORT].map(i32::from);
    assert_eq!(ports, wanted);

    let clients = &find(&objects, "Service", "ledger").body["spec"];
    assert_eq!(clients["selector"], facts.selector(Role::Node), "clients reach the process");
    let policy = &find(&objects, "NetworkPolicy", "ledger-node").body["spec"]["ingress"];
    assert_eq!(policy[0]["ports"].as_array().map(Vec::len), Some(3), "clients, the root log, health: {policy}");
    let holders = facts.holders(Realm::Ledger);
    let (_, process, _) = holders.iter().find(|(_, holder, _)| holder.is_process).expect("it has a certificate");
    assert_eq!(process.roles, ["node", "coordinator"]);
    for endpoint in [facts.endpoint(), facts.coordinators()] {
        let host = endpoint.strip_prefix("https://").and_then(|rest| rest.split_once(':')).expect("it has a port").0;
        assert!(process.hosts.contains(&host.to_owned()), "{:?} lack {host}", process.hosts);
    }
    assert_eq!(facts.authorities(), [Realm::Ledger], "there is no etcd to sign for");
}

#[test]
fn nodes_and_coordinators_agree_on_the_ledger() {
    for spec in specifications() {
        let facts = facts(spec);
        let objects = build(&facts);
        let pod = &facts.pods(Role::Node)[0];
        let node: coppice_shard_node::process::Config =
            settings(&objects, "ledger-node-", "node.toml", &[("node", pod)]);
        let coordinator: coppice_coordinator::process::Config =
            settings(&objects, "ledger-coordinator-", "coordinator.toml", &[("name", "c"), ("advertise", "c:1")]);
        assert_eq!(node.ledger, coordinator.ledger);
        // Defaults are written, too: another version of a process may have another default.
        assert!(config_map(&objects, "ledger-node-").body.to_string().contains("capacity = "));
        assert_eq!(node.nodes, coordinator.nodes);
    }
}

#[test]
fn coordinators_are_given_the_second_key_of_the_secret() {
    let read = |next_key| {
        let objects = build(&Facts { next_key, ..facts(json!({})) });
        let config: coppice_coordinator::process::Config =
            settings(&objects, "ledger-coordinator-", "coordinator.toml", &[("name", "c"), ("advertise", "c:1")]);
        (config.signing_key_file, config.next_signing_key_file)
    };
    let (key, next) = read(true);
    assert_eq!(next, Some(key.with_file_name("next.key")));
    assert_eq!(read(false), (key, None));
}

#[test]
fn pods_satisfy_the_restricted_pod_security_standard() {
    let objects = build(&facts(json!({})));
    for name in ["ledger-node", "ledger-coordinator", "ledger-etcd"] {
        let pod = template(&objects, name).spec.expect("a template has a specification");
        let context = pod.security_context.expect("the pod has a security context");
        assert_eq!(context.run_as_non_root, Some(true));
        assert_eq!(context.seccomp_profile.map(|profile| profile.type_), Some("RuntimeDefault".to_owned()));
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!(pod.enable_service_links, Some(false));
        assert_eq!((pod.host_network, pod.host_pid, pod.host_ipc), (None, None, None));
        for container in pod.containers {
            let context = container.security_context.expect("the container has a security context");
            assert_eq!(context.allow_privilege_escalation, Some(false));
            assert_eq!(context.read_only_root_filesystem, Some(true));
            let drop = context.capabilities.and_then(|capabilities| capabilities.drop);
            assert_eq!(drop, Some(vec!["ALL".to_owned()]));
            assert!(container.readiness_probe.is_some() && container.liveness_probe.is_some());
        }
        let kinds = pod.volumes.expect("it has volumes");
        assert!(kinds.iter().all(|volume| volume.host_path.is_none()));
    }
}

#[test]
fn a_set_replaces_no_pod_by_itself_and_its_volumes_outlive_it() {
    let objects = build(&facts(json!({})));
    for name in ["ledger-node", "ledger-coordinator", "ledger-etcd"] {
        let spec = set(&objects, name).spec.expect("a set has a specification");
        assert_eq!(spec.update_strategy.and_then(|strategy| strategy.type_), Some("OnDelete".to_owned()));
        assert_eq!(spec.persistent_volume_claim_retention_policy, None, "the default is to retain");
        for claim in spec.volume_claim_templates.unwrap_or_default() {
            assert_eq!(claim.metadata.owner_references, None);
        }
    }
}

#[test]
fn everything_else_goes_with_the_cluster() {
    for object in build(&facts(json!({}))) {
        let owners = &object.body["metadata"]["ownerReferences"];
        assert_eq!(owners[0]["uid"], "1234", "{} {}", object.resource.kind, object.name());
        assert_eq!(object.body["metadata"]["namespace"], "bank");
    }
}

#[test]
fn other_settings_are_another_config_map_and_a_founded_ledger_changes_no_template() {
    let before = build(&facts(json!({})));
    let mut founded = facts(json!({}));
    founded.founded = true;
    let after = build(&founded);
    assert_eq!(template(&before, "ledger-node"), template(&after, "ledger-node"));
    let word =
        |objects: &[Object]| find(objects, "ConfigMap", "ledger-bootstrap").body["data"]["bootstrap.toml"].clone();
    assert_eq!((word(&before), word(&after)), (json!("bootstrap = \"new\"\n"), json!("bootstrap = \"existing\"\n")));

    let changed = build(&facts(json!({ "retention": { "hours": 1 } })));
    assert_eq!(template(&before, "ledger-node"), template(&changed, "ledger-node"), "it concerns coordinators alone");
    assert_ne!(template(&before, "ledger-coordinator"), template(&changed, "ledger-coordinator"));
    let name = |objects: &[Object]| config_map(objects, "ledger-coordinator-").name().to_owned();
    assert_ne!(name(&before), name(&changed));
}

#[test]
fn a_field_that_is_lost_is_found() {
    let written = json!({ "spec": { "ports": [{ "port": 1 }] } });
    assert_eq!(lost(&written, &json!({ "kind": "x", "spec": { "ports": [{ "port": 1, "name": "a" }] } })), None);
    assert_eq!(lost(&written, &json!({ "spec": { "ports": [{}] } })), Some("spec.ports.0.port.".to_owned()));
    assert_eq!(lost(&written, &json!({ "spec": { "ports": [] } })), Some("spec.ports.".to_owned()));
}

#[test]
fn groups_are_dealt_out_evenly() {
    let facts = facts(json!({ "nodes": { "count": 4 }, "shards": { "count": 8 }, "root": { "replicas": 1 } }));
    let placement = facts.placement();
    assert_eq!(placement[0], ("root".to_owned(), vec![0]));
    let on = |node: usize| placement[1..].iter().filter(|(_, hosts)| hosts.contains(&node)).count();
    assert_eq!([on(0), on(1), on(2), on(3)], [6; 4]);
    assert!(placement[1..].iter().all(|(_, hosts)| hosts.len() == 3), "an even number survives no more failures");
}

/// The secrets that etcd and coordinators mount for their connections; checks that the settings
/// agree.
fn etcd_secrets(spec: Value) -> [Option<String>; 2] {
    let objects = build(&facts(spec));
    let mounted = |set: &str, volume: &str| {
        let volumes = template(&objects, set).spec.and_then(|spec| spec.volumes).unwrap_or_default();
        volumes.into_iter().find(|found| found.name == volume)?.secret?.secret_name
    };
    let client = mounted("ledger-coordinator", "etcd-tls");
    let coordinator: coppice_coordinator::process::Config =
        settings(&objects, "ledger-coordinator-", "coordinator.toml", &[("name", "c"), ("advertise", "c:1")]);
    let shown = coordinator.metadata.cert.map(|cert| cert.to_string_lossy().into_owned());
    let dir = if client.is_some() { "etcd-tls" } else { "tls" };
    let encrypted = coordinator.tls.is_some();
    assert_eq!(shown, encrypted.then(|| format!("/etc/coppice/{dir}/tls.crt")));
    [mounted("ledger-etcd", "tls"), client]
}

#[test]
fn etcd_and_its_clients_show_certificates_that_no_client_of_the_ledger_has() {
    let own = ["ledger-etcd-server-tls", "ledger-etcd-client-tls"].map(|name| Some(name.to_owned()));
    assert_eq!(etcd_secrets(json!({})), own);
    assert_eq!(etcd_secrets(json!({ "tls": { "certManager": { "issuer": "i" } } })), own);
    assert_eq!(etcd_secrets(json!({ "tls": { "plaintext": true } })), [None, None]);
    let given = |more: Value| {
        let mut secrets = json!({ "nodes": "n", "coordinators": "c" });
        config::merge(&mut secrets, more);
        etcd_secrets(json!({ "tls": { "secrets": secrets } }))
    };
    let names = |server: &str, client: Option<&str>| [Some(server.to_owned()), client.map(str::to_owned)];
    assert_eq!(given(json!({})), own);
    assert_eq!(given(json!({ "etcd": "e" })), names("e", None), "each coordinator shows what it shows everybody");
    assert_eq!(given(json!({ "etcd": "e", "etcdClient": "x" })), names("e", Some("x")));
}

#[test]
fn a_pod_sees_its_own_key_alone_and_the_list_of_what_was_withdrawn() {
    let secrets = json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c" } } });
    for (spec, second) in [(json!({}), "ledger-node-1-tls"), (secrets, "n-1")] {
        let objects = build(&facts(spec));
        let pod = template(&objects, "ledger-node").spec.expect("it has a specification");
        let volume = pod.volumes.iter().flatten().find(|volume| volume.name == "tls").expect("it has certificates");
        let sources = volume.projected.as_ref().and_then(|all| all.sources.clone()).expect("of several secrets");
        assert_eq!(sources.len(), 3, "one for each node");
        let of_second = sources[1].secret.as_ref().expect("it is a secret");
        assert_eq!(of_second.name, second);
        let paths: Vec<&str> = of_second.items.iter().flatten().map(|item| item.path.as_str()).collect();
        assert_eq!(paths, ["ledger-node-1.ca.crt", "ledger-node-1.tls.crt", "ledger-node-1.tls.key"]);
        let mounts = pod.containers[0].volume_mounts.clone().unwrap_or_default();
        let mounted: Vec<_> = mounts.iter().filter(|mount| mount.name == "tls").collect();
        let files: Vec<_> = mounted.iter().map(|mount| mount.sub_path_expr.clone().unwrap_or_default()).collect();
        assert_eq!(files, ["$(COPPICE_NODE).ca.crt", "$(COPPICE_NODE).tls.crt", "$(COPPICE_NODE).tls.key"]);
        assert!(
            mounts.iter().any(|mount| mount.mount_path == "/etc/coppice/withdrawn" && mount.sub_path_expr.is_none())
        );
    }
    let withdrawn = json!({ "tls": { "withdrawn": ["serial 3f:0a", "subject CN=alice"] } });
    let list = |spec| find(&build(&facts(spec)), "ConfigMap", "ledger-withdrawn").body["data"]["list"].clone();
    let text = list(withdrawn);
    assert_eq!(text, "serial 3f:0a\nsubject CN=alice\nend\n");
    for text in [text, list(json!({}))] {
        let text = text.as_str().expect("it is text");
        coppice_process::tls::Withdrawn::parse(text.as_bytes()).expect("processes take it");
    }
}

#[test]
fn an_external_etcd_is_not_built() {
    let external = json!({ "etcd": { "external": { "endpoints": ["http://etcd.example:2379"] } } });
    let objects = build(&facts(external));
    assert!(objects.iter().all(|object| !object.name().contains("etcd")));
}

#[test]
fn network_policies_close_nodes_and_etcd_and_can_be_left_out() {
    let objects = build(&facts(json!({})));
    let node = &find(&objects, "NetworkPolicy", "ledger-node").body["spec"]["ingress"];
    let roles: Vec<&Value> = node[0]["from"]
        .as_array()
        .expect("it names peers")
        .iter()
        .map(|peer| &peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"])
        .collect();
    assert_eq!(roles, ["node", "coordinator"]);
    assert_eq!(node[1], json!({ "ports": [{ "port": HEALTH_PORT, "protocol": "TCP" }] }), "metrics are for everyone");
    let open = build(&facts(json!({ "networkPolicies": { "enabled": false } })));
    assert!(open.iter().all(|object| object.resource.kind != "NetworkPolicy"));
}

#[test]
fn metrics_and_spans_go_where_the_resource_says() {
    let telemetry = |spec: Value| {
        let objects = build(&facts(spec));
        let own = [("name", "c"), ("advertise", "c:1")];
        let coordinator: coppice_coordinator::process::Config =
            settings(&objects, "ledger-coordinator-", "coordinator.toml", &own);
        let own = [("node", "ledger-node-0"), ("bootstrap", "new")];
        let node: coppice_shard_node::process::Config = settings(&objects, "ledger-node-", "node.toml", &own);
        assert_eq!(node.telemetry, coordinator.telemetry);
        (node.telemetry.otlp_endpoint, node.telemetry.trace_ratio)
    };
    assert_eq!(telemetry(json!({})), (None, 0.01));
    let endpoint = "http://collector.monitoring:4317";
    let spec = json!({ "telemetry": { "otlpEndpoint": endpoint, "traceRatio": 1 } });
    assert_eq!(telemetry(spec), (Some(endpoint.to_owned()), 1.0));
}

#[test]
fn pods_have_what_users_add_and_stay_ours() {
    let objects = build(&facts(json!({ "nodes": {
        "pods": {
            "labels": { "team": "ledger", "app.kubernetes.io/name": "mine" },
            "annotations": { "a": "b" },
            "tolerations": [{ "key": "disk", "operator": "Exists" }],
            "affinity": { "nodeAffinity": {} },
            "priorityClassName": "high",
        },
        "resources": { "requests": { "cpu": "2", "memory": "4Gi" } },
        "storage": { "size": "100Gi", "class": "fast" },
    } })));
    let template = template(&objects, "ledger-node");
    let labels = template.metadata.and_then(|metadata| metadata.labels).expect("it has labels");
    assert_eq!((labels["team"].as_str(), labels["app.kubernetes.io/name"].as_str()), ("ledger", "coppice"));
    let pod = template.spec.expect("a template has a specification");
    assert_eq!(pod.priority_class_name.as_deref(), Some("high"));
    assert_eq!(pod.tolerations.map(|tolerations| tolerations.len()), Some(1));
    assert!(pod.affinity.expect("it has an affinity").pod_anti_affinity.is_none());
    let requests = pod.containers[0].resources.as_ref().and_then(|resources| resources.requests.as_ref());
    assert_eq!(requests.map(|requests| requests["memory"].0.as_str()), Some("4Gi"));
    let claims = set(&objects, "ledger-node").spec.and_then(|spec| spec.volume_claim_templates);
    let claim = claims.and_then(|mut claims| claims.pop()).and_then(|claim| claim.spec).expect("it has a claim");
    assert_eq!(claim.storage_class_name.as_deref(), Some("fast"));
}

#[test]
fn a_cold_volume_is_mounted_claimed_and_in_the_settings() {
    let claims = |objects: &[Object]| {
        let claims = set(objects, "ledger-node").spec.and_then(|spec| spec.volume_claim_templates).unwrap_or_default();
        claims.into_iter().map(|claim| (claim.metadata.name, claim.spec)).collect::<Vec<_>>()
    };
    let node = |objects: &[Object]| -> coppice_shard_node::process::Config {
        settings(objects, "ledger-node-", "node.toml", &[("node", "ledger-node-0"), ("bootstrap", "new")])
    };
    let without = build(&facts(json!({})));
    assert_eq!((claims(&without).len(), node(&without).cold), (1, None));
    let spec =
        json!({ "nodes": { "coldStorage": { "size": "1Ti", "class": "slow", "hotValueBytes": 1_073_741_824 } } });
    let objects = build(&facts(spec));
    let claims = claims(&objects);
    let names: Vec<Option<&str>> = claims.iter().map(|(name, _)| name.as_deref()).collect();
    assert_eq!(names, [Some("data"), Some("cold")]);
    let claim = claims[1].1.as_ref().expect("it has a specification");
    assert_eq!(claim.storage_class_name.as_deref(), Some("slow"));
    let requests = claim.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    assert_eq!(requests.map(|requests| requests["storage"].0.as_str()), Some("1Ti"));
    let config = node(&objects);
    let cold = config.cold.expect("it is in the settings");
    assert_eq!(cold.hot_value_bytes, 1 << 30);
    assert!(cold.bytes_per_s > 0, "the default of the process");
    let pod = template(&objects, "ledger-node").spec.expect("a template has a specification");
    let mounts = pod.containers[0].volume_mounts.as_ref().expect("it has mounts");
    let mount = mounts.iter().find(|mount| mount.name == "cold").expect("it is mounted");
    assert_eq!((mount.mount_path.as_str(), mount.read_only), (cold.dir.to_str().expect("text"), None));
}

#[test]
fn certificates_name_every_host_that_is_connected_to() {
    let facts = facts(json!({}));
    let node = "ledger-node-2".to_owned();
    assert_eq!(facts.hosts(Role::Node, &[node]), ["ledger-node-2.ledger-node.bank.svc"]);
    let hosts = facts.hosts(Role::Coordinator, &facts.pods(Role::Coordinator));
    // Clients use the service, the operator the pods.
    let (clients, own) = (facts.endpoint(), facts.coordinators());
    assert_eq!(own.split(',').count(), 2);
    for endpoint in own.split(',').chain([clients.as_str()]) {
        let host = endpoint.strip_prefix("https://").and_then(|rest| rest.split_once(':')).expect("it has a port").0;
        assert!(hosts.contains(&host.to_owned()), "{hosts:?} lack {host}");
    }
}

#[test]
fn a_client_of_each_role_has_a_certificate_and_a_cosigner_is_the_process_of_its_stream() {
    use coppice_process::access::Role as Certified;

    let holders = facts(json!({})).holders(Realm::Ledger);
    let named = |name: &str| {
        let found = holders.iter().find(|(_, holder, _)| holder.name == name);
        found.map(|(role, holder, secret)| (*role, holder, secret.as_str())).expect("it has a certificate")
    };
    for role in Certified::ALL {
        // Processes have certificates of their own, and those of members are the user's.
        if matches!(role, Certified::Node | Certified::Coordinator | Certified::Member) {
            continue;
        }
        let (pods, holder, secret) = named(&format!("ledger-{}", role.name()));
        assert_eq!((pods, &holder.roles[..]), (None, &[role.name()][..]), "no other right");
        assert_eq!(secret, format!("ledger-{}-tls", role.name()));
        let process = format!("{}ledger-{}", crate::certificates::NAME_URI, role.name());
        assert_eq!(holder.uris().contains(&process), role == Certified::Cosigner, "{}", role.name());
    }
    assert_eq!(named("ledger-load").1.roles, ["writer", "operator"]);
}

#[test]
fn the_service_for_clients_is_what_the_resource_says_and_certificates_have_its_names() {
    let spec = json!({ "service": {
        "type": "LoadBalancer", "annotations": { "lb.example/internal": "true" }, "dnsNames": ["ledger.bank.example"],
    } });
    for one_process in [false, true] {
        let mut spec = spec.clone();
        if one_process {
            config::merge(&mut spec, json!({ "oneProcess": true, "nodes": { "count": 1 } }));
        }
        let facts = facts(spec);
        let objects = build(&facts);
        let service = &find(&objects, "Service", "ledger").body;
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        assert_eq!(service["metadata"]["annotations"]["lb.example/internal"], "true");
        let holders = facts.holders(Realm::Ledger);
        let named = |holder: &Holder| holder.hosts.contains(&"ledger.bank.example".to_owned());
        let with: Vec<Option<Role>> = holders.iter().filter(|(_, it, _)| named(it)).map(|(role, ..)| *role).collect();
        let serving = if one_process { vec![Some(Role::Node)] } else { vec![Some(Role::Coordinator); 2] };
        assert_eq!(with, serving, "only processes that clients connect to");
    }
    let objects = build(&facts(json!({})));
    let plain = &find(&objects, "Service", "ledger").body;
    assert_eq!((&plain["spec"]["type"], &plain["metadata"]["annotations"]), (&json!("ClusterIP"), &Value::Null));
}

#[test]
fn an_image_is_named_by_repository_and_tag_or_as_older_resources_name_it() {
    let image = |image: Value| {
        let objects = build(&facts(json!({ "image": image })));
        let image_of = |name| template(&objects, name).spec.expect("one").containers[0].image.clone().expect("one");
        let (node, coordinator) = (image_of("ledger-node"), image_of("ledger-coordinator"));
        assert_eq!(node, coordinator);
        node
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(image(json!({})), format!("ghcr.io/coppice-dev/coppice:{version}"));
    assert_eq!(image(json!({ "repository": "registry.example:5000/c" })), format!("registry.example:5000/c:{version}"));
    assert_eq!(image(json!({ "repository": "r/c", "tag": "7" })), "r/c:7");
    let digest = format!("sha256:{}", "0".repeat(64));
    assert_eq!(image(json!({ "repository": "r/c", "tag": digest })), format!("r/c@{digest}"));
    assert_eq!(image(json!({ "name": "old/c:6", "repository": "r/c", "tag": "7" })), "old/c:6");
}

#[test]
fn kubelets_ask_a_port_that_is_listened_to_without_a_certificate() {
    let objects = build(&facts(json!({})));
    let config: coppice_coordinator::process::Config =
        settings(&objects, "ledger-coordinator-", "coordinator.toml", &[("name", "c"), ("advertise", "c:1")]);
    assert_eq!(config.health_listen.map(|address| address.port()), Some(HEALTH_PORT));
    for (name, started) in
        [("ledger-node", "/startupz"), ("ledger-coordinator", "/startupz"), ("ledger-etcd", "/readyz")]
    {
        let container = template(&objects, name).spec.expect("a template has a specification").containers.remove(0);
        let ports = container.ports.expect("it has ports");
        let health = ports.iter().find(|port| port.name.as_deref() == Some("health")).expect("it has one for health");
        for (probe, path) in [
            (container.startup_probe, started),
            (container.liveness_probe, "/livez"),
            (container.readiness_probe, "/readyz"),
        ] {
            let asked = probe.and_then(|probe| probe.http_get).expect("it is asked over HTTP");
            assert_eq!((asked.path.as_deref(), asked.scheme.as_deref()), (Some(path), Some("HTTP")));
            assert_eq!(asked.port, IntOrString::Int(health.container_port), "{name}");
        }
    }
}

/// Texts with a meaning of their own in a settings file, a command or a template.
const HOSTILE: [&str; 14] = [
    "\"",
    "'''",
    "\"\"\"",
    "\\",
    "\\u0000",
    "a\"\nlog = \"trace",
    "a\r\n[tls]\nca = \"/x\"\n",
    "\"] # ",
    "$(COPPICE_NAME)",
    "$(POD)$$(POD)",
    "${HOME}",
    "{{ .Values }}",
    "--config=/x",
    "../../x",
];

/// Parses a settings file.
fn table(objects: &[Object], prefix: &str, file: &str) -> Value {
    let map: ConfigMap = serde_json::from_value(config_map(objects, prefix).body.clone()).expect("it is one");
    let text = &map.data.expect("it has files")[file];
    serde_json::to_value(toml::from_str::<toml::Table>(text).expect("the file is TOML")).expect("TOML is JSON")
}

/// Replaces every text that equals `from`.
fn replaced(value: Value, from: &str, to: &str) -> Value {
    match value {
        Value::String(text) if text == from => json!(to),
        Value::Array(items) => items.into_iter().map(|item| replaced(item, from, to)).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, replaced(value, from, to)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other,
    }
}

/// The executed commands, with their variables.
fn commands(objects: &[Object]) -> Vec<Value> {
    let containers = ["ledger-etcd", "ledger-node", "ledger-coordinator"].into_iter().filter_map(|name| {
        let set = objects.iter().find(|object| object.resource.kind == "StatefulSet" && object.name() == name)?;
        Some(set.body["spec"]["template"]["spec"]["containers"][0].clone())
    });
    containers.map(|container| json!([container["command"], container["args"], container["env"]])).collect()
}

#[test]
fn ledgers_of_members_and_authorities_are_in_the_settings_with_roots_beside_them() {
    let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let spec = json!({
        "ledgers": true,
        "timeStamps": {
            "authorities": [
                { "url": "https://one.example/", "roots": pem },
                { "url": "https://two.example/", "roots": "-----BEGIN CERTIFICATE-----\n", "accuracyMs": 1500 },
            ],
            "everySeconds": 10,
        },
    });
    let objects = build(&facts(spec));
    let (node, coordinator) =
        (table(&objects, "ledger-node-", "node.toml"), table(&objects, "ledger-coordinator-", "coordinator.toml"));
    for settings in [&node, &coordinator] {
        assert_eq!(settings["ledger"]["ledgers"].as_bool(), Some(true));
        assert_eq!(settings["ledger"]["journals_kept"].as_bool(), Some(true));
    }
    assert!(node.get("anchor").is_none(), "coordinators ask authorities");
    let anchor = &coordinator["anchor"];
    assert_eq!(anchor["every_s"], json!(10));
    assert_eq!(anchor["tsa"][1]["root"].as_str(), Some("/etc/coppice/config/time-authority-2.pem"));
    assert_eq!(anchor["tsa"][1]["accuracy_ms"], json!(1500));
    let map = config_map(&objects, "ledger-coordinator-");
    assert_eq!(map.body["data"]["time-authority-1.pem"], json!(pem));
    let other = build(&facts(json!({ "ledgers": true })));
    assert!(table(&other, "ledger-coordinator-", "coordinator.toml").get("anchor").is_none());
}

#[test]
fn a_policy_of_witnesses_is_a_file_that_coordinators_take() {
    let line = |name: &str, seed| {
        let key = coppice_verify::cosignature::Cosigner::from_seed(name, &[seed; 32]).expect("a key can be made");
        format!("witness {name} {} http://{name}.example/w\n", key.verifier())
    };
    let policy = format!("{}{}group all 2 a b\nquorum all\n", line("a", 1), line("b", 2));
    let objects = build(&facts(json!({ "witnesses": { "policy": policy } })));
    let map = config_map(&objects, "ledger-coordinator-");
    assert_eq!(map.body["data"]["witness-policy"], json!(policy));
    let mut built = table(&objects, "ledger-coordinator-", "coordinator.toml");
    assert_eq!(built["witness_policy"], json!("/etc/coppice/config/witness-policy"));
    assert!(table(&objects, "ledger-node-", "node.toml").get("witness_policy").is_none());
    // The process reads the file, so it has to be there.
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    std::fs::write(file.path(), &policy).expect("it can be written");
    built["witness_policy"] = json!(file.path());
    built["name"] = json!("c");
    built["advertise"] = json!("c:1");
    let config: coppice_coordinator::process::Config = serde_json::from_value(built).expect("it knows all settings");
    config.check().map_err(|failure| failure.message).expect("the coordinator takes the policy");
    let other = build(&facts(json!({ "witnesses": { "policy": policy.replace("group all 2", "group all 1") } })));
    assert_ne!(config_map(&other, "ledger-coordinator-").name(), map.name(), "another policy is another template");
}

#[test]
fn no_text_of_a_specification_becomes_anything_but_the_value_that_it_is() {
    type Make = fn(&str) -> Value;
    let vkey = "witness.example+3f2a+x";
    let fields: [(&str, Make); 15] = [
        ("info", |text| json!({ "log": text })),
        ("b", |text| json!({ "readers": { "count": 1, "zone": text } })),
        ("a", |text| json!({ "coordinators": { "zone": text } })),
        ("http://a:1", |text| json!({ "telemetry": { "otlpEndpoint": text } })),
        ("http://b:1", |text| json!({ "etcd": { "external": { "endpoints": [text] } } })),
        ("/prefix", |text| json!({ "etcd": { "external": { "endpoints": ["http://a:1"], "prefix": text } } })),
        ("https://w/", |text| json!({ "witnesses": { "list": [{ "url": text, "vkey": "v" }] } })),
        (vkey, |text| json!({ "witnesses": { "list": [{ "url": "https://w/", "vkey": text }] } })),
        ("m", |text| json!({ "shards": { "count": 2, "splits": [text] } })),
        ("image", |text| json!({ "image": { "name": text } })),
        ("note", |text| json!({ "service": { "annotations": { "a": text } } })),
        ("image", |text| json!({ "etcd": { "managed": { "image": text } } })),
        ("class", |text| json!({ "coordinators": { "pods": { "priorityClassName": text } } })),
        ("note", |text| json!({ "nodes": { "pods": { "annotations": { "a": text } } } })),
        ("label", |text| json!({ "nodes": { "pods": { "labels": { "a": text } } } })),
    ];
    for (plain, make) in fields {
        let benign = build(&facts(make(plain)));
        for text in HOSTILE {
            let objects = build(&facts(make(text)));
            for (prefix, file) in [("ledger-node-", "node.toml"), ("ledger-coordinator-", "coordinator.toml")] {
                let meant = replaced(table(&benign, prefix, file), plain, text);
                assert_eq!(table(&objects, prefix, file), meant, "{text:?} for {plain}");
            }
            assert_eq!(commands(&objects), commands(&benign), "{text:?} for {plain}");
        }
    }
}

#[test]
fn labels_and_annotations_of_a_specification_do_not_replace_those_of_the_operator() {
    let (label, annotation) = ("app.kubernetes.io/instance", "coppice.dev/certificate");
    let pods = json!({ "labels": { label: "other" }, "annotations": { annotation: "none" } });
    let mut facts = facts(json!({ "nodes": { "pods": pods } }));
    facts.certificates.insert(Role::Node, "real".to_owned());
    let metadata = template(&build(&facts), "ledger-node").metadata.expect("it has metadata");
    assert_eq!(metadata.labels.expect("it has labels")[label], "ledger");
    assert_eq!(metadata.annotations.expect("it has annotations")[annotation], "real");
}
