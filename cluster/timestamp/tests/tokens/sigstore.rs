//! Tokens by sigstore's authority, which is built from its pinned Go module.

use std::{fs, path::Path, process::Command, sync::OnceLock};

use coppice_timestamp::{Accuracy, Authority, Error, ObjectIdentifier, Request, Token, verify};

use crate::bench::{DATA, bench, imprint, openssl_verifies, package, request, run, scratch};

const POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57264.2");

/// The server's program, which is built once.
fn server() -> &'static str {
    static SERVER: OnceLock<String> = OnceLock::new();
    SERVER.get_or_init(|| {
        let workspace = package().ancestors().nth(2).expect("this package lies two levels below the root");
        let path = run(&mut Command::new(workspace.join("scripts/install-timestamp-authority.sh")));
        String::from_utf8(path).expect("a path").trim_end().to_owned()
    })
}

/// Has a server with these flags answer each of these requests in `dir`, by name.
fn serve(dir: &Path, requests: &[(&str, Request)], flags: &[&str]) {
    for (name, request) in requests {
        fs::write(dir.join(format!("{name}.tsq")), request.to_der()).expect("the query is written");
    }
    run(Command::new(package().join("tests/sigstore.sh")).arg(server()).arg(dir).args(flags));
}

/// Has a server with these flags stamp two requests, without certificates and with them.
fn stamps(flags: &[&str]) {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let requests = [("bare", request()), ("whole", request().with_certificates().with_policy(POLICY))];
    serve(dir.path(), &requests, flags);

    let chain = fs::read_to_string(path("chain.pem")).expect("the server's chain");
    let at = chain.rfind("-----BEGIN").expect("the root comes last");
    fs::write(path("root.pem"), &chain[at..]).expect("the root is written");
    let root = Authority::new(&chain.as_bytes()[at..]).expect("a root").with_policies(&[POLICY]);
    let authority = root.clone().with_certificates(chain.as_bytes()).expect("a chain");
    for (name, request) in &requests {
        let token = Token::parse(&fs::read(path(&format!("{name}.tsr"))).expect("an answer")).expect(name);
        let stamped = verify(&token, &authority, &imprint(DATA), Some(request.nonce())).expect(name);
        assert_eq!(Some(stamped.accuracy), Accuracy::new(1, 0, 0));
        assert_eq!(stamped.time.nanoseconds() % 1_000_000_000, 0, "it stamps whole seconds");
        assert_eq!(openssl_verifies(&token, &path("root.pem"), &path("chain.pem"), None), Ok(()));
        assert_eq!(
            verify(&token, &authority, &imprint(DATA), Some(super::bench::request().nonce())),
            Err(Error::Nonce)
        );
        let ours = bench().authority("third", "other").with_certificates(chain.as_bytes()).expect("a chain");
        assert!(matches!(verify(&token, &ours, &imprint(DATA), None), Err(Error::Chain { .. })));
        if *name == "bare" {
            assert_eq!(verify(&token, &root, &imprint(DATA), None), Err(Error::SignerUnknown));
        }
    }
}

#[test]
fn tokens_by_its_own_key_are_accepted() {
    stamps(&["--timestamp-signer", "memory"]);
}

/// Flags for a server that signs by one of the keys of `tests/openssl.sh`, below the root `first`.
fn key_flags(dir: &Path, signer: &str, hash: &str) -> Vec<String> {
    let chain = dir.join("signer.pem");
    let certificates = [bench().read(&format!("chain-{signer}.pem")), bench().read("first.pem")].concat();
    fs::write(&chain, certificates).expect("the chain is written");
    let key = bench().path(&format!("{signer}.key"));
    vec![
        "--timestamp-signer=file".to_owned(),
        format!("--file-signer-key-path={}", key.display()),
        format!("--certificate-chain-path={}", chain.display()),
        format!("--timestamp-signer-hash={hash}"),
    ]
}

#[test]
fn tokens_by_a_key_of_384_bits_are_accepted() {
    let dir = scratch();
    let flags = key_flags(dir.path(), "p384", "sha384");
    stamps(&flags.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn tokens_by_ed25519_are_refused_as_openssl_does() {
    let dir = scratch();
    let flags = key_flags(dir.path(), "ed25519", "sha512");
    serve(dir.path(), &[("token", request())], &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let token = Token::parse(&fs::read(dir.path().join("token.tsr")).expect("an answer")).expect("a token");
    let authority = bench().authority("first", "ed25519");
    let algorithm = ObjectIdentifier::new_unwrap("1.3.101.112");
    let expected = Err(Error::Algorithm { algorithm, purpose: "signatures" });
    assert_eq!(verify(&token, &authority, &imprint(DATA), None), expected);
    let (root, chain) = (bench().path("first.pem"), bench().path("chain-ed25519.pem"));
    assert!(openssl_verifies(&token, &root, &chain, None).is_err());
}
