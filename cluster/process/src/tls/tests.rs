//! Files change under open connections, and peers are not the expected process.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};

use coppice_env::{Clock, SystemClock};
use coppice_proto::{certificate::Role, live::Files};

use super::*;
use crate::connection::Secured;

struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

/// The URIs of a node's certificate.
const NODE: [&str; 2] = ["urn:coppice:role:node", "urn:coppice:name:node-1"];

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Replaces certificate and key with those of a node.
    fn certify(&self, dir: &Path) {
        self.certify_as(dir, &NODE, |_| {});
    }

    /// Replaces certificate and key with ones that have these URIs.
    fn certify_as(&self, dir: &Path, uris: &[&str], change: impl FnOnce(&mut rcgen::CertificateParams)) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["host".to_owned()]).expect("a host");
        for uri in uris {
            params.subject_alt_names.push(rcgen::SanType::URI((*uri).try_into().expect("it is ASCII")));
        }
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        write(dir, "cert", &certificate.pem());
        write(dir, "key", &key.serialize_pem());
    }
}

fn write(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).expect("a file can be written");
    fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).expect("it is ours");
}

fn files(dir: &Path) -> Tls {
    Tls { ca: dir.join("ca"), cert: dir.join("cert"), key: dir.join("key"), withdrawn: Some(dir.join("withdrawn")) }
}

type Pair = (Secured<DuplexStream>, Secured<DuplexStream>);

type Make<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, Failure>>;

/// One end of a connection, and its files in force. The test decides when the files are read again.
struct End<T> {
    files: Files<T, Make<T>>,
    live: Live<T>,
}

impl<T> End<T> {
    fn open(paths: Vec<PathBuf>, make: Make<T>) -> Self {
        let (files, live) = Files::open(paths, make).expect("the files are whole");
        Self { files, live }
    }
}

fn server(dir: &Path) -> End<Accepting> {
    if !dir.join("withdrawn").exists() {
        write(dir, "withdrawn", "end\n");
    }
    let server = files(dir).server();
    let paths = ["cert", "key", "ca", "withdrawn"].map(|name| dir.join(name)).to_vec();
    let believed = Believed { authorities: vec![dir.join("ca")], withdrawn: Some(dir.join("withdrawn")) };
    End::open(paths, Box::new(move |contents| server.accepting(Protocol::Grpc, &believed, contents)))
}

fn client(dir: &Path) -> End<Dialing> {
    if !dir.join("withdrawn").exists() {
        write(dir, "withdrawn", "end\n");
    }
    let tls = files(dir);
    let paths = ["ca", "cert", "key", "withdrawn"].map(|name| dir.join(name)).to_vec();
    End::open(paths, Box::new(move |contents| tls.dialing(&Expected::Anybody, contents)))
}

async fn connect(server: &Live<Accepting>, client: &Live<Dialing>) -> io::Result<Pair> {
    connect_to(server, client, Expected::Process(Role::Node, "node-1".to_owned())).await
}

async fn connect_to(server: &Live<Accepting>, client: &Live<Dialing>, expected: Expected) -> io::Result<Pair> {
    let (near, far) = duplex(1 << 16);
    let acceptor = Acceptor { live: server.clone(), log: AccessLog::to_log() };
    let connector = Connector { live: client.clone(), demanding: true };
    let accepting = tokio::spawn(async move { acceptor.accept(None, far).await });
    let (near, watch) = connector.connect(expected, "host", near).await?;
    let mut near = Secured::new(near, watch);
    let (far, watch) = accepting.await.expect("it does not panic")?;
    let mut far = Secured::new(far, watch);
    // A client learns that it is not trusted when it reads.
    say(&mut far, &mut near).await?;
    Ok((near, far))
}

async fn say(from: &mut Secured<DuplexStream>, to: &mut Secured<DuplexStream>) -> io::Result<()> {
    from.write_all(b"word").await?;
    from.flush().await?;
    let mut word = [0; 4];
    to.read_exact(&mut word).await?;
    assert_eq!(&word, b"word");
    Ok(())
}

#[tokio::test]
async fn a_new_authority_counts_for_the_next_connection_and_open_ones_end_with_the_old_one() {
    let (old, new) = (Authority::new(), Authority::new());
    let [here, there] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    for dir in [&here, &there] {
        write(dir.path(), "ca", &old.0.pem());
        old.certify(dir.path());
    }
    let (mut server, mut client) = (server(here.path()), client(there.path()));
    let (mut near, mut far) = connect(&server.live, &client.live).await.expect("both are of one authority");

    // First both authorities are trusted, then new certificates are shown, then the old authority
    // is removed.
    let both = old.0.pem() + &new.0.pem();
    for dir in [&here, &there] {
        write(dir.path(), "ca", &both);
    }
    server.files.look();
    client.files.look();
    new.certify(here.path());
    server.files.look();
    let shown = connect(&server.live, &client.live).await.expect("old and new trust each other");
    let leaf = fs::read(here.path().join("cert")).expect("it was made");
    let leaf = certificates(&here.path().join("cert"), &leaf).expect("a certificate");
    assert_eq!(shown.0.peer_certificates(), Some(&leaf[..]), "the new one is shown");
    new.certify(there.path());
    client.files.look();
    say(&mut near, &mut far).await.expect("what was open stays open while both are trusted");
    say(&mut far, &mut near).await.expect("at both ends");
    for dir in [&here, &there] {
        write(dir.path(), "ca", &new.0.pem());
    }
    server.files.look();
    client.files.look();
    connect(&server.live, &client.live).await.expect("both are of the new authority");
    assert!(say(&mut near, &mut far).await.is_err(), "what was open under the old one has ended");
    assert!(say(&mut far, &mut near).await.is_err(), "at both ends");

    // Processes of the old authority are no longer accepted.
    old.certify(there.path());
    client.files.look();
    assert!(connect(&server.live, &client.live).await.is_err());
}

#[tokio::test]
async fn files_that_do_not_fit_together_change_nothing() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "ca", &authority.0.pem());
    authority.certify(dir.path());
    let (mut server, mut client) = (server(dir.path()), client(dir.path()));
    let before = (server.live.now(), client.live.now());
    let unchanged = |server: &Live<Accepting>, client: &Live<Dialing>| {
        Arc::ptr_eq(&server.now(), &before.0) && Arc::ptr_eq(&client.now(), &before.1)
    };
    server.files.look();
    client.files.look();
    assert!(unchanged(&server.live, &client.live), "they are the same");
    let [cert, key] = ["cert", "key"].map(|name| fs::read_to_string(dir.path().join(name)).expect("it was made"));
    authority.certify(dir.path());
    let new_key = fs::read_to_string(dir.path().join("key")).expect("it was made");
    let breaks: [(&str, &str, &str); 6] = [
        ("withdrawn", "", "half written"),
        ("withdrawn", "cereal 3f\nend\n", "not understood"),
        ("key", &key, "it is that of another certificate"),
        ("cert", "", "empty"),
        ("ca", "no PEM", "no PEM"),
        ("key", "", "empty"),
    ];
    for (name, text, why) in breaks {
        let whole = fs::read_to_string(dir.path().join(name)).expect("it was made");
        write(dir.path(), name, text);
        server.files.look();
        client.files.look();
        assert!(unchanged(&server.live, &client.live), "{name}: {why}");
        write(dir.path(), name, &whole);
    }
    fs::remove_file(dir.path().join("cert")).expect("it was made");
    server.files.look();
    client.files.look();
    assert!(unchanged(&server.live, &client.live), "a file is missing");
    connect(&server.live, &client.live).await.expect("the old ones are in force");
    write(dir.path(), "cert", &cert);
    write(dir.path(), "key", &new_key);
    server.files.look();
    client.files.look();
    assert!(unchanged(&server.live, &client.live), "halfway through");
    authority.certify(dir.path());
    server.files.look();
    client.files.look();
    assert!(!unchanged(&server.live, &client.live), "whole again");
    connect(&server.live, &client.live).await.expect("the new ones are in force");
}

/// Two directories with files of one authority, for the accepting and the dialing end.
fn both(authority: &Authority) -> [tempfile::TempDir; 2] {
    [(); 2].map(|()| {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), "ca", &authority.0.pem());
        authority.certify(dir.path());
        dir
    })
}

#[tokio::test]
async fn the_answering_process_must_have_the_dialed_role_and_name() {
    let authority = Authority::new();
    let [here, there] = both(&authority);
    let client = client(there.path());
    let role = |role: &str| format!("urn:coppice:role:{role}");
    let name = |name: &str| format!("urn:coppice:name:{name}");
    let node = || Expected::Process(Role::Node, "node-1".to_owned());
    let coordinator = || Expected::Any(Role::Coordinator);
    // The URIs of a certificate, the expected process, and whether the two match.
    let cases: [(&[String], Expected, bool); 13] = [
        (&[role("node"), name("node-1")], node(), true),
        (&[role("node"), role("reader"), name("node-1")], node(), true),
        (&[role("reader"), name("node-1")], node(), false),
        (&[role("coordinator"), name("node-1")], node(), false),
        (&[role("node"), name("node-2")], node(), false),
        (&[role("node"), name("node-1"), name("node-2")], node(), false),
        (&[role("node"), name("node-1x")], node(), false),
        (&[role("node")], node(), false),
        (&[], node(), false),
        (&[role("coordinator"), name("anything")], coordinator(), true),
        (&[role("reader"), role("writer"), role("operator"), role("auditor"), role("node")], coordinator(), false),
        (&[], Expected::Any(Role::Coordinator), false),
        (&[role("reader")], Expected::Anybody, true),
    ];
    for (uris, expected, answers) in cases {
        let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
        authority.certify_as(here.path(), &uris, |_| {});
        let server = server(here.path());
        let connected = connect_to(&server.live, &client.live, expected.clone()).await;
        assert_eq!(connected.is_ok(), answers, "{uris:?} for {expected:?}: {:?}", connected.err());
    }
}

#[tokio::test]
async fn an_impostor_learns_nothing_about_the_dialing_process() {
    let authority = Authority::new();
    let [here, there] = both(&authority);
    authority.certify_as(here.path(), &["urn:coppice:role:reader"], |_| {});
    let (server, client) = (server(here.path()), client(there.path()));
    let (near, far) = duplex(1 << 16);
    let acceptor = Acceptor { live: server.live.clone(), log: AccessLog::to_log() };
    let connector = Connector { live: client.live.clone(), demanding: true };
    let node = Expected::Process(Role::Node, "node-1".to_owned());
    let (accepted, connected) = tokio::join!(acceptor.accept(None, far), connector.connect(node, "host", near));
    let refused = connected.expect_err("a reader is not a node").to_string();
    assert!(refused.contains("a node is expected") && refused.contains("reader"), "{refused}");
    let heard = accepted.expect_err("the handshake breaks off").to_string();
    assert!(heard.contains("alert"), "it got an alert, and no certificate: {heard}");
}

#[tokio::test]
async fn a_process_does_not_start_with_the_certificate_of_another_one() {
    let authority = Authority::new();
    let [here, _] = both(&authority);
    let tls = Tls { withdrawn: None, ..files(here.path()) };
    let own = |role, name: &str| tls.client(Expected::Process(role, name.to_owned()));
    own(Role::Node, "node-1").expect("it is its own");
    for (role, name) in [(Role::Node, "node-2"), (Role::Coordinator, "node-1")] {
        let refused = own(role, name).expect_err("it is another's").to_string();
        assert!(refused.contains("cert") && refused.contains("is expected"), "{refused}");
    }
}

#[tokio::test]
async fn a_withdrawn_certificate_ends_its_connections_and_makes_no_new_ones() {
    let authority = Authority::new();
    let serial = |dir: &Path| {
        let pem = fs::read(dir.join("cert")).expect("it was made");
        Identity::of(&certificates(&dir.join("cert"), &pem).expect("a certificate")[0]).serial
    };
    // Whose list has the withdrawal: that of the accepting or of the dialing end.
    for accepting in [true, false] {
        let [here, there] = both(&authority);
        let (mut server, mut client) = (server(here.path()), client(there.path()));
        let (mut near, mut far) = connect(&server.live, &client.live).await.expect("nothing is withdrawn");
        let (hears, withdrawn) = if accepting { (&here, &there) } else { (&there, &here) };
        let other = "serial 0102\nsubject CN=somebody else\nend\n";
        write(hears.path(), "withdrawn", other);
        server.files.look();
        client.files.look();
        say(&mut near, &mut far).await.expect("others are withdrawn");
        write(hears.path(), "withdrawn", &format!("serial {}\n", serial(withdrawn.path())));
        server.files.look();
        client.files.look();
        say(&mut near, &mut far).await.expect("a list without its end is none");
        write(hears.path(), "withdrawn", &format!("serial {}\nend\n", serial(withdrawn.path())));
        server.files.look();
        client.files.look();
        // An end that only waits learns of it, too.
        let waits = if accepting { &mut far } else { &mut near };
        let ended = waits.read_u8().await.expect_err("the connection ends");
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted, "{ended}");
        assert!(ended.to_string().contains("withdrawn"), "{ended}");
        assert!(connect(&server.live, &client.live).await.is_err(), "and there is no new one");
    }
}

#[tokio::test]
async fn an_open_connection_ends_with_the_certificate_of_its_other_end() {
    let authority = Authority::new();
    let [here, there] = both(&authority);
    let soon = UNIX_EPOCH + Duration::from_millis(SystemClock::new().wall_ms()) + Duration::from_secs(2);
    authority.certify_as(there.path(), &NODE, |params| params.not_after = soon.into());
    let (server, client) = (server(here.path()), client(there.path()));
    let (_near, mut far) = connect(&server.live, &client.live).await.expect("it is good for two seconds");
    let ended = timeout(Duration::from_secs(60), far.read_u8()).await.expect("it ends").expect_err("by itself");
    assert!(ended.to_string().contains("expired"), "{ended}");
}
