//! Ledgers of members behind mutual TLS: a certificate names a member, and the ledger says what
//! that member may see.

use serde_json::Value;

use crate::{
    common,
    harness::{Cluster, until},
};

/// A cluster with a ledger `grain` of four members. `other` is a member of no ledger.
struct Scene {
    cluster: Cluster,
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::of_ledgers();
        let scene = Self { cluster };
        for name in ["bank", "mill", "view", "audit", "other"] {
            scene.cluster.authority().certify_member(scene.cluster.dir.path(), name);
            let file = scene.cluster.path(&format!("{name}.sign"));
            common::run(common::coppice().args(["keygen", "--name", name, "--out"]).arg(file)).expect(0);
        }
        scene
    }

    fn found(&self) {
        let file = |name: &str| self.cluster.path(name).display().to_string();
        let members = [format!("--member={}", file("mill.vkey")), format!("--reader={}", file("view.vkey"))];
        let (owner, verifier) = (file("bank.sign"), format!("--verifier={}", file("audit.vkey")));
        let words = ["ledger", "create", "grain", "--owner", &owner, &members[0], &members[1], &verifier];
        self.run("bank", &words).expect(0);
    }

    fn run(&self, name: &str, words: &[&str]) -> common::Done {
        common::run(self.cluster.coppice_as(name, words).arg("--json"))
    }

    fn append(&self, name: &str, data: &str) -> common::Done {
        let key = self.cluster.path(&format!("{name}.sign")).display().to_string();
        self.run(name, &["ledger", "append", "grain", "--key", &key, "--clue", "lot-7", "--data", data])
    }

    /// The reason for which this caller is refused.
    fn refused(&self, name: &str, words: &[&str]) -> Value {
        let done = self.run(name, words).expect(3);
        assert_eq!(done.stdout, "", "{name} {words:?} shows nothing");
        done.error()["reason"].clone()
    }
}

#[test]
fn a_member_sees_its_ledgers_as_far_as_its_roles_say() {
    let scene = Scene::new();
    let (_node, _coordinator) = (scene.cluster.node(1), scene.cluster.coordinator());
    until("the cluster commits", || (scene.run("writer", &["commit", "--put", "a=1"]).code == 0).then_some(()));
    scene.found();
    assert_eq!(scene.append("bank", "by the bank").expect(0).json()["first_jsn"], 1);
    assert_eq!(scene.append("mill", "by the mill").expect(0).json()["first_jsn"], 2);

    // Names of ledgers are shown to their members, and to auditors.
    for (name, ledgers) in [("bank", 1), ("view", 1), ("auditor", 1), ("other", 0)] {
        assert_eq!(scene.run(name, &["ledger", "list"]).expect(0).lines().len(), ledgers, "{name}");
    }
    let journals: &[&str] = &["ledger", "journals", "grain"];
    for name in ["bank", "mill", "view", "audit", "auditor"] {
        assert_eq!(scene.run(name, journals).expect(0).lines().len(), 3, "{name}");
    }
    for words in
        [journals, &["ledger", "show", "grain"], &["ledger", "members", "grain"], &["ledger", "get", "grain", "1"]]
    {
        assert_eq!(scene.refused("other", words), "NOT_A_MEMBER", "{words:?}");
    }
    assert_eq!(scene.refused("other", &["ledger", "lineage", "grain", "lot-7"]), "NOT_A_MEMBER");

    // Payloads are for owners, regulators and readers, and for their authors.
    for (name, jsn, sees) in
        [("bank", "2", true), ("view", "1", true), ("mill", "1", true), ("audit", "1", false), ("auditor", "1", false)]
    {
        let words = ["ledger", "get", "grain", jsn];
        match sees {
            true => drop(scene.run(name, &words).expect(0)),
            false => assert_eq!(scene.refused(name, &words), "ROLE_MISSING", "{name} {jsn}"),
        }
    }
    // A verdict of the coordinator on a payload is for those who may see it.
    let verdict = |jsn, data| ["ledger", "verify", "grain", jsn, "--server", "--data", data];
    scene.run("bank", &verdict("2", "by the mill")).expect(0);
    assert_eq!(scene.run("bank", &verdict("2", "by the bank")).expect(1).json()["failed"], "payload");
    assert_eq!(scene.refused("audit", &verdict("1", "by the bank")), "ROLE_MISSING");
    scene.run("audit", &["ledger", "verify", "grain", "1", "--server"]).expect(0);
    assert_eq!(scene.refused("other", &["ledger", "verify", "grain", "1", "--server"]), "NOT_A_MEMBER");
    let lineage: &[&str] = &["ledger", "lineage", "grain", "lot-7", "--payloads"];
    assert_eq!(scene.run("view", lineage).expect(0).lines().len(), 2);
    assert_eq!(scene.refused("audit", lineage), "ROLE_MISSING");
    // A member that only writes sees its own payloads, and no other's.
    let key = scene.cluster.path("bank.sign").display().to_string();
    let words = ["ledger", "member", "roles", "grain", "mill", "--roles", "writer", "--key", &key];
    scene.run("bank", &words).expect(0);
    scene.run("mill", &["ledger", "get", "grain", "2"]).expect(0);
    assert_eq!(scene.refused("mill", &["ledger", "get", "grain", "1"]), "ROLE_MISSING");

    // The roles for records open no ledger, and a member's certificate opens no records.
    let append = ["ledger", "append", "grain", "--key", &key, "--data", "x"];
    for (name, words) in [
        ("reader", journals),
        ("writer", journals),
        ("operator", journals),
        ("nobody", journals),
        ("auditor", &append),
        ("mill", &["get", "a"]),
        ("mill", &["commit", "--put", "a=2"]),
        ("mill", &["prune", "--before", "1", "--reason", "room"]),
    ] {
        assert_eq!(scene.refused(name, words), "DENIED", "{name} {words:?}");
    }
    // A certificate is no signature: another member's can carry the request, and changes nothing.
    let done = scene.run("other", &["ledger", "append", "grain", "--key", &key, "--member", "mill", "--data", "x"]);
    assert_eq!(done.expect(3).error()["reason"], "NOT_A_MEMBER");
    // The right to read ends with the key.
    scene.run("bank", &["ledger", "member", "revoke", "grain", "view", "--key", &key]).expect(0);
    assert_eq!(scene.refused("view", journals), "NOT_A_MEMBER");
    // Generic calls read no record of a ledger.
    for words in [&["get", "0x0000677261696e"][..], &["range", "0x00", "0x01"], &["history", "0x0000677261696e"]] {
        assert_eq!(scene.run("auditor", words).expect(2).error()["reason"], "RESERVED", "{words:?}");
    }
}
