//! Files change under open connections.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use coppice_proto::live::Files;

use super::*;

struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Replaces certificate and key.
    fn certify(&self, dir: &Path) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["host".to_owned()]).expect("a host");
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
    Tls { ca: dir.join("ca"), cert: dir.join("cert"), key: dir.join("key") }
}

type Pair = (TlsStream<DuplexStream>, TlsStream<DuplexStream>);

type Make<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, Failure>>;

/// One end of a connection, and what it has in force; the test looks at its files when it wants to.
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

fn server(dir: &Path) -> End<ServerConfig> {
    let server = files(dir).server();
    let (paths, ca) = (vec![dir.join("cert"), dir.join("key"), dir.join("ca")], [dir.join("ca")]);
    End::open(paths, Box::new(move |contents| server.server_config(Protocol::Grpc, &ca, contents)))
}

fn client(dir: &Path) -> End<ClientConfig> {
    let tls = files(dir);
    let paths = vec![dir.join("ca"), dir.join("cert"), dir.join("key")];
    End::open(paths, Box::new(move |contents| tls.client_config(contents)))
}

async fn connect(server: &Live<ServerConfig>, client: &Live<ClientConfig>) -> io::Result<Pair> {
    let (near, far) = duplex(1 << 16);
    let (acceptor, connector) =
        (Acceptor { live: server.clone(), log: AccessLog::to_log() }, Connector(client.clone()));
    let accepting = tokio::spawn(async move { acceptor.accept(far).await });
    let mut near = connector.connect("host", near).await?;
    let mut far = accepting.await.expect("it does not panic")?;
    // A client hears that it is not believed when it reads.
    say(&mut far, &mut near).await?;
    Ok((near, far))
}

async fn say(from: &mut TlsStream<DuplexStream>, to: &mut TlsStream<DuplexStream>) -> io::Result<()> {
    from.write_all(b"word").await?;
    from.flush().await?;
    let mut word = [0; 4];
    to.read_exact(&mut word).await?;
    assert_eq!(&word, b"word");
    Ok(())
}

#[tokio::test]
async fn a_new_authority_counts_for_the_next_connection_while_an_open_one_goes_on() {
    let (old, new) = (Authority::new(), Authority::new());
    let [here, there] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    for dir in [&here, &there] {
        write(dir.path(), "ca", &old.0.pem());
        old.certify(dir.path());
    }
    let (mut server, mut client) = (server(here.path()), client(there.path()));
    let (mut near, mut far) = connect(&server.live, &client.live).await.expect("both are of one authority");

    // First both authorities are believed, then the certificates are new ones, then the old authority goes.
    let both = old.0.pem() + &new.0.pem();
    for dir in [&here, &there] {
        write(dir.path(), "ca", &both);
    }
    server.files.look();
    client.files.look();
    new.certify(here.path());
    server.files.look();
    let shown = connect(&server.live, &client.live).await.expect("old and new believe each other");
    let leaf = fs::read(here.path().join("cert")).expect("it was made");
    let leaf = certificates(&here.path().join("cert"), &leaf).expect("a certificate");
    assert_eq!(shown.0.get_ref().1.peer_certificates(), Some(&leaf[..]), "the new one is shown");
    new.certify(there.path());
    client.files.look();
    for dir in [&here, &there] {
        write(dir.path(), "ca", &new.0.pem());
    }
    server.files.look();
    client.files.look();
    connect(&server.live, &client.live).await.expect("both are of the new authority");
    say(&mut near, &mut far).await.expect("what was open stays open");
    say(&mut far, &mut near).await.expect("what was open stays open");

    // Nobody of the old one is let in any more, not even by resuming a session of before.
    old.certify(there.path());
    client.files.look();
    assert!(connect(&server.live, &client.live).await.is_err());
}

#[tokio::test]
async fn files_that_are_no_whole_change_nothing() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "ca", &authority.0.pem());
    authority.certify(dir.path());
    let (mut server, mut client) = (server(dir.path()), client(dir.path()));
    let before = (server.live.now(), client.live.now());
    let unchanged = |server: &Live<ServerConfig>, client: &Live<ClientConfig>| {
        Arc::ptr_eq(&server.now(), &before.0) && Arc::ptr_eq(&client.now(), &before.1)
    };
    server.files.look();
    client.files.look();
    assert!(unchanged(&server.live, &client.live), "they are the same");
    let [cert, key] = ["cert", "key"].map(|name| fs::read_to_string(dir.path().join(name)).expect("it was made"));
    authority.certify(dir.path());
    let new_key = fs::read_to_string(dir.path().join("key")).expect("it was made");
    let breaks: [(&str, &str, &str); 4] = [
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
