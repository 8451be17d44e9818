//! Every role against every method, over real connections with mutual TLS; and callers that can't
//! connect.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use coppice_proto::status;
use coppice_types::Reason;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use tonic::{
    Status,
    body::Body,
    codegen::http,
    service::Routes,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity as Shown, Server},
};
use tower::ServiceExt;

use super::*;
use crate::{net, tls::Tls};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Signs a certificate with these URIs; returns it with its key.
fn certify(authority: &Authority, uris: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host");
    params.distinguished_name.push(DnType::CommonName, "somebody");
    for uri in uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into().expect("it is ASCII")));
    }
    change(&mut params);
    (params.signed_by(&key, authority).expect("a certificate").pem(), key.serialize_pem())
}

fn of_role(authority: &Authority, role: &str) -> (String, String) {
    // The name of a member of ledgers is its role.
    let uri = if role == "member" { format!("{MEMBER_URI}mill") } else { format!("{ROLE_URI}{role}") };
    certify(authority, &[&uri], |_| {})
}

/// A guarded server that answers every path.
struct Scene {
    dir: tempfile::TempDir,
    authority: Authority,
    address: SocketAddr,
}

impl Scene {
    async fn start() -> Self {
        let (dir, authority) = (tempfile::tempdir().expect("a directory"), authority());
        let (certificate, key) = of_role(&authority, "coordinator");
        for (name, text) in [("ca", authority.pem()), ("cert", certificate), ("key", key)] {
            fs::write(dir.path().join(name), text).expect("a file can be written");
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        let path = |name: &str| dir.path().join(name);
        let access = Access { log_file: Some(path("access")), ..Access::default() };
        let (guard, log) = access.open(true).expect("the file can be made");
        let tls = Tls { ca: path("ca"), cert: path("cert"), key: path("key"), withdrawn: None };
        let acceptor = tls.acceptor(log).expect("the files are whole");
        let listener = net::listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let routes = Routes::from(axum::Router::new().fallback(async || "reached"));
        let routes = guard.over(routes);
        let server = Server::builder().add_routes(routes).serve_with_incoming(net::incoming(listener, Some(acceptor)));
        tokio::spawn(server);
        Self { dir, authority, address }
    }

    /// Connects with a certificate, or without one.
    async fn connect(&self, shown: Option<&(String, String)>) -> Result<Channel, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.authority.pem()));
        if let Some((certificate, key)) = shown {
            tls = tls.identity(Shown::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://localhost:{}", self.address.port()))?;
        endpoint.tls_config(tls)?.connect().await
    }

    /// The recorded denials, once there are `lines` of them.
    async fn denials(&self, lines: usize) -> Vec<serde_json::Value> {
        let read = || fs::read_to_string(self.dir.path().join("access")).unwrap_or_default();
        tokio::time::timeout(std::time::Duration::from_secs(60), async {
            while read().lines().count() < lines {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{lines} lines are written: {}", read()));
        let lines = read();
        lines.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
    }
}

/// Whether a call reaches the server. If not, checks that it was denied with a reason.
async fn reaches(channel: &Channel, path: &str) -> bool {
    reaches_with(channel, path, ("authorization", "a-secret")).await
}

async fn reaches_with(channel: &Channel, path: &str, (header, value): (&str, &str)) -> bool {
    let request = http::Request::post(path).header(header, value).body(Body::empty()).expect("a request");
    let answer = channel.clone().oneshot(request).await.expect("it is answered");
    let Some(status) = Status::from_header_map(answer.headers()) else { return true };
    assert_eq!(status.code(), tonic::Code::PermissionDenied, "{path}: {status:?}");
    assert_eq!(status::reason(&status), Some(Reason::Denied), "{path}: {status:?}");
    false
}

#[tokio::test]
async fn each_role_may_call_what_the_table_says_and_nothing_else() {
    use Role::{Auditor, Coordinator, Member, Node, Operator, Reader, Writer};
    let scene = Scene::start().await;
    // One method of each class with its roles, written down here and not taken from the table.
    let expected: [(&str, &[Role]); 11] = [
        ("/coppice.v1.Ledger/Get", &[Reader, Writer, Auditor, Coordinator]),
        ("/coppice.v1.Ledger/Commit", &[Writer, Coordinator]),
        ("/coppice.v1.Ledger/Rollback", &[Operator, Coordinator]),
        ("/coppice.v1.Ledger/Journal", &[Auditor, Coordinator]),
        ("/coppice.v1.Ledger/Head", &[Reader, Writer, Operator, Auditor, Member, Coordinator]),
        ("/coppice.v1.Ledger/Append", &[Member, Coordinator]),
        ("/coppice.v1.Ledger/GetLineage", &[Auditor, Member, Coordinator]),
        ("/coppice.v1.Peer/Exchange", &[Node]),
        ("/coppice.v1.Shard/Command", &[Coordinator]),
        ("/coppice.v1.Node/ChangeMember", &[Node, Coordinator]),
        ("/coppice.v1.Ledger/Unheard", &[]),
    ];
    let mut denied = 0;
    for role in Role::ALL {
        let shown = of_role(&scene.authority, role.name());
        let channel = scene.connect(Some(&shown)).await.expect("its certificate is trusted");
        for (path, roles) in expected {
            assert_eq!(reaches(&channel, path).await, roles.contains(&role), "{role:?} {path}");
            denied += usize::from(!roles.contains(&role));
        }
    }
    let lines = scene.denials(denied).await;
    assert_eq!(lines.len(), denied, "every denial is a line, and no other call");
    let line = lines.iter().find(|line| line["method"] == "/coppice.v1.Ledger/Rollback").expect("a reader was denied");
    assert_eq!(line["roles"], serde_json::json!(["reader"]));
    assert_eq!(line["subject"], "CN=somebody");
    assert_eq!(line["why"], "its roles do not allow it");
    assert!(line["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{line}");
    assert_eq!(line["fingerprint"].as_str().map(str::len), Some(64));
    assert!(line["serial"].as_str().is_some_and(|serial| !serial.is_empty()), "{line}");
    assert!(!lines.iter().any(|line| line.to_string().contains("secret")), "nothing of a call is written");
}

#[tokio::test]
async fn a_request_over_http_is_judged_as_the_method_that_it_stands_for() {
    use Role::{Auditor, Coordinator, Member, Operator, Reader, Writer};
    let scene = Scene::start().await;
    let log = &[Reader, Writer, Operator, Auditor, Member, Coordinator][..];
    let expected: [(&str, &str, &[Role], &str); 7] = [
        ("GET", "/v1/records/k", &[Reader, Writer, Auditor, Coordinator], "Ledger/Get"),
        ("PUT", "/v1/records/k", &[Writer, Coordinator], "Ledger/Commit"),
        ("DELETE", "/v1/records/k", &[Writer, Coordinator], "Ledger/Commit"),
        ("POST", "/v1/batches", &[Writer, Coordinator], "Ledger/Commit"),
        ("GET", "/v1/watch", log, "Ledger/WatchHeads"),
        ("GET", "/v1/batches", log, "ServerReflection/ServerReflectionInfo"),
        ("PUT", "/v1/unheard", log, "ServerReflection/ServerReflectionInfo"),
    ];
    let mut denied = Vec::new();
    for role in Role::ALL {
        let shown = of_role(&scene.authority, role.name());
        let channel = scene.connect(Some(&shown)).await.expect("its certificate is trusted");
        for (method, path, roles, called) in expected {
            let request = http::Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
            let answer = channel.clone().oneshot(request).await.expect("it is answered");
            let refused = Status::from_header_map(answer.headers()).and_then(|status| status::reason(&status));
            let may = roles.contains(&role);
            assert_eq!(refused, (!may).then_some(Reason::Denied), "{role:?} {method} {path}");
            denied.extend((!may).then_some(called));
        }
    }
    let lines = scene.denials(denied.len()).await;
    for (line, called) in lines.iter().zip(&denied) {
        assert!(line["method"].as_str().is_some_and(|method| method.ends_with(called)), "{line}: {called}");
    }
}

#[tokio::test]
async fn only_a_coordinator_may_say_that_it_forwards_a_request() {
    let scene = Scene::start().await;
    let mut denied = 0;
    for role in Role::ALL {
        let shown = of_role(&scene.authority, role.name());
        let channel = scene.connect(Some(&shown)).await.expect("its certificate is trusted");
        for header in [(FORWARDED, "1"), (FORWARDED, ""), (CALLER, "Q049YWxpY2U"), (CALLER, "not base64!")] {
            // Every role may call this method.
            let through = reaches_with(&channel, "/grpc.health.v1.Health/Check", header).await;
            assert_eq!(through, role == Role::Coordinator, "{role:?} {header:?}");
            denied += usize::from(!through);
        }
    }
    let lines = scene.denials(denied).await;
    assert!(lines.iter().all(|line| line["why"] == "only a coordinator may forward a request"), "{lines:?}");
}

#[tokio::test]
async fn several_roles_add_up_and_anything_else_in_a_certificate_is_not_a_role() {
    let scene = Scene::start().await;
    let both = certify(&scene.authority, &["urn:coppice:role:reader", "urn:coppice:role:operator"], |_| {});
    let channel = scene.connect(Some(&both)).await.expect("its certificate is trusted");
    for (path, may) in [("Get", true), ("Prune", true), ("Commit", false), ("Journal", false)] {
        assert_eq!(reaches(&channel, &format!("/coppice.v1.Ledger/{path}")).await, may, "{path}");
    }
    let strange = [
        "urn:coppice:role:",
        "urn:coppice:role:Writer",
        "urn:coppice:role:writer/x",
        "URN:coppice:role:writer",
        "urn:coppice:role:member",
        "urn:coppice:member:",
        "writer",
        "spiffe://urn:coppice:role:writer",
    ];
    let none = certify(&scene.authority, &strange, |params| {
        params.distinguished_name.push(DnType::OrganizationalUnitName, "writer");
        params.subject_alt_names.push(SanType::DnsName("writer".try_into().expect("a name")));
    });
    let channel = scene.connect(Some(&none)).await.expect("its certificate is trusted");
    for path in ["/coppice.v1.Ledger/Commit", "/coppice.v1.Ledger/Head", "/grpc.health.v1.Health/Check"] {
        assert!(!reaches(&channel, path).await, "{path}");
    }
    let lines = scene.denials(5).await;
    assert!(lines[2..].iter().all(|line| line["why"] == "its certificate has no role"), "{lines:?}");
}

#[tokio::test]
async fn a_client_without_a_certificate_or_with_a_foreign_or_expired_one_is_not_let_in() {
    let scene = Scene::start().await;
    let foreign = of_role(&authority(), "operator");
    let ended = certify(&scene.authority, &["urn:coppice:role:operator"], |params| {
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    for (number, (shown, why)) in
        [(None, "no certificates"), (Some(&foreign), "BadSignature"), (Some(&ended), "expired")].into_iter().enumerate()
    {
        // With TLS 1.3, a client may learn that it was refused only at its first call.
        if let Ok(channel) = scene.connect(shown).await {
            let request = http::Request::post("/coppice.v1.Ledger/Head").body(Body::empty()).expect("a request");
            assert!(channel.oneshot(request).await.is_err(), "{why}");
        }
        let lines = scene.denials(number + 1).await;
        let line = &lines[number];
        assert!(line["why"].as_str().is_some_and(|said| said.contains(why)), "{why}: {line}");
        assert_eq!(line["method"], serde_json::Value::Null, "{line}");
    }
}

#[test]
fn nobody_is_asked_for_roles_without_tls_or_where_they_are_ignored() {
    let open = |roles, tls| Access { roles, ..Access::default() }.open(tls).expect("there is no file").0.asks;
    assert!(open(Demand::Required, true));
    assert!(!open(Demand::Required, false) && !open(Demand::Ignored, true));
}

#[test]
fn without_tls_only_loopback_addresses_are_listened_on_unless_plaintext_is_allowed() {
    let access = Access::default();
    let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
    for near in ["127.0.0.1:1", "127.3.2.1:1", "[::1]:1"] {
        access.check("listen", at(near), false).expect("no other machine reaches it");
    }
    for far in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
        let refused = access.check("listen", at(far), false).expect_err("others reach it");
        assert!(refused.to_string().contains("access.plaintext"), "{refused}");
        access.check("listen", at(far), true).expect("by TLS");
        Access { plaintext: true, ..Access::default() }.check("listen", at(far), false).expect("it is said");
    }
}

#[test]
fn an_access_log_that_cannot_be_made_ends_the_start() {
    let access = Access { log_file: Some(Path::new("/nonexistent/access").to_owned()), ..Access::default() };
    assert!(access.open(true).expect_err("there is no such directory").to_string().contains("/nonexistent/access"));
}

#[test]
fn a_certificate_that_cannot_be_read_has_no_role() {
    let garbage = rustls::pki_types::CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
    assert_eq!(Arc::new(Identity::of(&garbage)).roles, Roles::NONE);
}

#[test]
fn no_two_subjects_are_the_same_text() {
    let authority = authority();
    let named = |parts: &[(DnType, &str)]| {
        let (pem, _) = certify(&authority, &[], |params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in parts {
                params.distinguished_name.push(kind.clone(), *value);
            }
        });
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("a certificate");
        Identity::of(&pem.contents.into()).subject
    };
    use DnType::{CommonName, OrganizationName};
    assert_eq!(named(&[(CommonName, "alice"), (OrganizationName, "Acme")]), "CN=alice, O=Acme");
    assert_eq!(named(&[(CommonName, "alice, O=Acme")]), "CN=alice\\, O\\=Acme");
    assert_eq!(named(&[(CommonName, "op (says \"alice\")")]), "CN=op (says \\\"alice\\\")");
    assert_eq!(named(&[(CommonName, "#a b ")]), "CN=\\#a b\\ ");
    assert_eq!(named(&[(CommonName, "a\n\u{202e}b")]), "CN=a\\0A\\E2\\80\\AEb");
    let long = |end: &str| named(&[(CommonName, &format!("{}{end}", "x".repeat(600)))]);
    assert_ne!(long("a"), long("b"), "a subject that is cut differs by its hash");
    assert_eq!(named(&[]), "");
}
