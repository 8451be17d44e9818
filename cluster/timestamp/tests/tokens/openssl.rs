//! Tokens by OpenSSL.

use std::{process::Command, time::Duration};

use coppice_timestamp::{
    Accuracy, Authority, Error, Nonce, Stamped, Token,
    interval::{Anchor, Stamp, Timeline},
    verify,
};

use crate::bench::{DATA, OTHER_POLICY, POLICY, bench, imprint, openssl_verifies, request};

/// Each way in which OpenSSL stamps here, with the signer and its root.
pub const SECTIONS: [(&str, &str, &str); 8] = [
    ("millis", "plain", "first"),
    ("micros", "plain", "first"),
    ("whole", "plain", "first"),
    ("rsa", "rsa", "second"),
    ("rsa384", "rsa", "second"),
    ("p384", "p384", "first"),
    ("mixed", "p384", "first"),
    ("other", "other", "third"),
];

fn accuracy(seconds: u32, millis: u16, micros: u16) -> Accuracy {
    Accuracy::new(seconds, millis, micros).expect("small parts")
}

/// The judgement on a token by an authority.
fn judge(token: &[u8], authority: &Authority) -> Result<Stamped, Error> {
    verify(&Token::parse(token)?, authority, &imprint(DATA), None)
}

/// The judgement on a token that must be accepted, by OpenSSL too.
fn accept(token: &[u8], authority: &Authority, root: &str, signer: &str) -> Stamped {
    let stamped = judge(token, authority).unwrap_or_else(|error| panic!("{signer}: {error}"));
    let (root, chain) = (bench().path(&format!("{root}.pem")), bench().path(&format!("chain-{signer}.pem")));
    let token = Token::parse(token).expect("it was accepted");
    assert_eq!(openssl_verifies(&token, &root, &chain, None), Ok(()), "{signer}");
    stamped
}

/// The time of a token as OpenSSL prints it, in the form of `Nov 29 18:15:30.123 2026 GMT`.
fn shown_by_openssl(response: &[u8]) -> String {
    let dir = crate::bench::scratch();
    let file = dir.path().join("response");
    std::fs::write(&file, response).expect("the response is written");
    let text = crate::bench::run(Command::new("openssl").args(["ts", "-reply", "-text", "-in"]).arg(file));
    let text = String::from_utf8(text).expect("OpenSSL prints text");
    let time = text.lines().find_map(|line| line.strip_prefix("Time stamp: ")).expect("a time");
    let [month, day, clock, year, "GMT"] = time.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{time}") };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| *name == month).expect("a month") + 1;
    format!("{year}-{month:02}-{day:0>2}T{clock}Z")
}

#[test]
fn every_way_of_stamping_is_accepted_with_and_without_certificates() {
    for (section, signer, root) in SECTIONS {
        let known = bench().authority(root, signer).with_policies(&[OTHER_POLICY, POLICY]);
        let unknown = Authority::new(&bench().read(&format!("{root}.pem"))).expect("a root");
        for (asked, authority) in [(request(), &known), (request().with_certificates(), &unknown)] {
            let response = bench().answer(section, &asked);
            let token = Token::parse(&response).expect(section);
            let stamped = verify(&token, authority, &imprint(DATA), Some(asked.nonce())).expect(section);
            assert_eq!(stamped.time.to_string(), shown_by_openssl(&response), "{section}");
            assert_eq!(stamped.policy, POLICY);
            let named = match section {
                "millis" => accuracy(1, 500, 0),
                "micros" => accuracy(2, 3, 4),
                _ => accuracy(1, 0, 0),
            };
            assert_eq!(stamped.accuracy, named, "{section}");
            assert_eq!(stamped.latest().nanoseconds() - stamped.time.nanoseconds(), named.nanoseconds());
            // A token alone, and the response that is made of it, are the same token.
            assert_eq!(Token::parse(token.as_der()), Ok(token.clone()));
            assert_eq!(Token::parse(&token.to_response()), Ok(token.clone()));
            accept(&response, authority, root, signer);
        }
        let without = bench().answer(section, &request());
        let expected = Err(Error::SignerUnknown);
        assert_eq!(judge(&without, &unknown), expected, "{section}: nobody has the signer's certificate");
    }
}

#[test]
fn a_fraction_of_a_second_is_kept() {
    let authority = bench().authority("first", "plain");
    // One time in a million has no fraction.
    let has_fraction = |section| {
        (0..3).any(|_| {
            let stamped = accept(&bench().answer(section, &request()), &authority, "first", "plain");
            stamped.time.nanoseconds() % 1_000_000_000 != 0
        })
    };
    assert!(has_fraction("millis") && has_fraction("micros") && !has_fraction("whole"));
}

#[test]
fn a_token_without_an_accuracy_needs_one_that_is_configured() {
    let authority = bench().authority("first", "plain");
    let token = bench().answer("vague", &request());
    assert_eq!(judge(&token, &authority), Err(Error::AccuracyUnknown));
    let coarse = authority.with_accuracy(accuracy(1, 250, 0));
    assert_eq!(accept(&token, &coarse, "first", "plain").accuracy, accuracy(1, 250, 0));
    let accuracy_by = |section| accept(&bench().answer(section, &request()), &coarse, "first", "plain").accuracy;
    assert_eq!(accuracy_by("whole"), accuracy(1, 250, 0), "no authority is believed to be better than configured");
    assert_eq!(accuracy_by("millis"), accuracy(1, 500, 0), "but worse, if it says so");
}

#[test]
fn what_was_not_asked_for_is_refused() {
    let authority = bench().authority("first", "plain");
    let asked = request();
    let token = bench().token("millis", &asked);
    let other = imprint(b"another checkpoint");
    assert_eq!(verify(&token, &authority, &other, Some(asked.nonce())), Err(Error::Imprint));
    assert_eq!(verify(&token, &authority, &imprint(DATA), Some(request().nonce())), Err(Error::Nonce));
    let longer = Nonce::new(&[1; 16]).expect("sixteen bytes");
    assert_eq!(verify(&token, &authority, &imprint(DATA), Some(&longer)), Err(Error::Nonce));
    let strict = authority.with_policies(&[OTHER_POLICY]);
    assert_eq!(judge(token.as_der(), &strict), Err(Error::Policy { policy: POLICY }));
    let by_other = bench().answer("millis", &request().with_policy(OTHER_POLICY));
    assert_eq!(accept(&by_other, &strict, "first", "plain").policy, OTHER_POLICY);
}

#[test]
fn a_token_without_a_nonce_answers_no_request() {
    let dir = crate::bench::scratch();
    let (data, query, answer) = (dir.path().join("data"), dir.path().join("query"), dir.path().join("answer"));
    std::fs::write(&data, DATA).expect("the data is written");
    let path = |path: &std::path::PathBuf| path.to_str().expect("a path of text").to_owned();
    let (data, query, answer) = (path(&data), path(&query), path(&answer));
    bench().openssl(&["ts", "-query", "-no_nonce", "-sha256", "-data", &data, "-out", &query]);
    bench().openssl(&["ts", "-reply", "-config", "tsa.cnf", "-section", "past", "-queryfile", &query, "-out", &answer]);
    let token = Token::parse(&std::fs::read(&answer).expect("an answer")).expect("a token");
    let authority = bench().authority("first", "past");
    assert_eq!(verify(&token, &authority, &imprint(DATA), Some(request().nonce())), Err(Error::Nonce));
}

#[test]
fn a_refusal_is_told_in_the_authoritys_words() {
    let unknown = "1.2.3.4".parse().expect("an identifier");
    let answer = bench().answer("millis", &request().with_policy(unknown));
    let Err(Error::Refused(refusal)) = Token::parse(&answer) else { panic!("the policy is unknown to the authority") };
    assert_eq!((refusal.status(), refusal.failure()), (2, Some(15)));
    assert_eq!(refusal.to_string(), "rejection, policy not accepted: Requested policy is not supported.");
}

#[test]
fn a_token_belongs_to_the_authority_that_signed_it() {
    let first = bench().authority("first", "plain");
    let third = bench().authority("third", "other");
    let token = bench().answer("other", &request());
    assert_eq!(judge(&token, &first), Err(Error::SignerUnknown));
    accept(&token, &third, "third", "other");
    // The certificate in the token, or known otherwise, is no reason to believe it.
    let with_certificates = bench().answer("other", &request().with_certificates());
    assert!(matches!(judge(&with_certificates, &first), Err(Error::Chain { .. })));
    let first = first.with_certificates(&bench().read("other.pem")).expect("a certificate");
    assert!(matches!(judge(&token, &first), Err(Error::Chain { .. })));
}

#[test]
fn authorities_with_a_common_root_are_one() {
    let (first, third) = (bench().authority("first", "plain"), bench().authority("third", "other"));
    assert_eq!(Authority::distinct(&[first.clone(), third.clone()]), Ok(()));
    let again = bench().authority("first", "past");
    assert_eq!(Authority::distinct(&[first, third, again]), Err(Error::SharedRoot { first: 0, second: 2 }));
}

#[test]
fn roots_and_chains_are_read_as_pem_and_as_der() {
    let root = bench().openssl(&["x509", "-in", "first.pem", "-outform", "DER"]);
    let mut chain = bench().openssl(&["x509", "-in", "p384.pem", "-outform", "DER"]);
    chain.extend(bench().openssl(&["x509", "-in", "intermediate.pem", "-outform", "DER"]));
    let authority = Authority::new(&root).expect("a root").with_certificates(&chain).expect("a chain");
    accept(&bench().answer("p384", &request()), &authority, "first", "p384");
    let commented = [b"# the root\n", &bench().read("first.pem")[..], b"\nend\n"].concat();
    Authority::new(&commented).expect("text between blocks");
    for bytes in [&b""[..], b"no certificate", b"-----BEGIN CERTIFICATE-----\n", &root[1..], &root[..root.len() - 1]] {
        assert!(matches!(Authority::new(bytes), Err(Error::Certificates { .. })));
    }
    let many = bench().read("first.pem").repeat(33);
    assert_eq!(Authority::new(&many).expect_err("33"), Error::Certificates { problem: "there may be 32" });
}

#[test]
fn an_intermediate_certificate_is_needed_and_may_come_in_the_token() {
    let root = Authority::new(&bench().read("first.pem")).expect("a root");
    let signer_only = root.clone().with_certificates(&bench().read("p384.pem")).expect("a certificate");
    let answer = bench().answer("p384", &request());
    assert!(matches!(judge(&answer, &signer_only), Err(Error::Chain { .. })));
    accept(&bench().answer("p384", &request().with_certificates()), &root, "first", "p384");
}

#[test]
fn a_token_is_completed_by_the_certificates_of_its_authority() {
    let file = [bench().read("chain-p384.pem"), bench().read("first.pem")].concat();
    let authority = Authority::from_certificates(&file).expect("a chain with its root");
    let root = Authority::from_certificates(&bench().read("first.pem")).expect("a root");
    for asked in [request(), request().with_certificates()] {
        let token = Token::parse(&bench().answer("p384", &asked)).expect("a token");
        let whole = authority.complete(&token).expect("it fits");
        assert_eq!((whole.info(), whole.certificates().len()), (token.info(), 2));
        assert_eq!(authority.complete(&whole), Ok(whole.clone()));
        assert_eq!(root.complete(&token), Ok(token));
        let stamped = verify(&whole, &root, &imprint(DATA), Some(asked.nonce())).expect("the root is enough");
        assert_eq!(verify(&whole, &authority, &imprint(DATA), None), Ok(stamped));
        let first = bench().path("first.pem");
        assert_eq!(openssl_verifies(&whole, &first, &first, None), Ok(()));
    }
    // Without a certificate that is its own issuer, all are trusted.
    let intermediate = Authority::from_certificates(&bench().read("intermediate.pem")).expect("a certificate");
    judge(&bench().answer("p384", &request().with_certificates()), &intermediate).expect("it is believed");
}

#[test]
fn a_chain_counts_as_of_the_stamped_time() {
    let bench = bench();
    let authority = |signer| bench.authority("first", signer);
    for section in ["past", "future", "orphan", "unfounded"] {
        let token = bench.token(section, &request());
        let verdict = judge(token.as_der(), &authority(section));
        assert!(matches!(verdict, Err(Error::Chain { .. })), "{section}: {verdict:?}");
        let (root, chain) = (bench.path("first.pem"), bench.path(&format!("chain-{section}.pem")));
        assert!(openssl_verifies(&token, &root, &chain, Some(token.info().time)).is_err(), "{section}");
    }

    // A certificate that has expired since it stamped. A slow machine takes several attempts.
    let (token, stamped) = (1..6)
        .find_map(|attempt| {
            bench.make_brief(1 << attempt);
            let token = bench.token("brief", &request());
            judge(token.as_der(), &authority("brief")).ok().map(|stamped| (token, stamped))
        })
        .expect("stamped before the certificate expired");
    let (root, chain) = (bench.path("first.pem"), bench.path("chain-brief.pem"));
    let wait = "for _ in $(seq 400); do openssl x509 -in \"$0\" -noout -checkend 0 || exit 0; sleep 0.1; done; exit 1";
    crate::bench::run(Command::new("sh").args(["-c", wait]).arg(bench.path("brief.pem")));
    assert_eq!(judge(token.as_der(), &authority("brief")), Ok(stamped.clone()));
    assert!(openssl_verifies(&token, &root, &chain, None).is_err(), "the certificate has expired");
    assert_eq!(openssl_verifies(&token, &root, &chain, Some(stamped.time)), Ok(()));
}

#[test]
fn a_certificate_that_is_not_for_time_stamps_alone_is_refused() {
    let bench = bench();
    let original = bench.token("millis", &request().with_certificates());
    for (signer, expected) in [
        ("two_purposes", Error::KeyPurpose),
        ("another_purpose", Error::KeyPurpose),
        ("no_purpose", Error::KeyPurpose),
        ("not_critical", Error::KeyPurpose),
        ("encrypts", Error::KeyUsage),
    ] {
        let token = bench.sign(&original, signer, &["-cades"]);
        assert_eq!(judge(&token, &bench.authority("first", signer)), Err(expected), "{signer}");
        let token = Token::parse(&token).expect("a token");
        let (root, chain) = (bench.path("first.pem"), bench.path(&format!("chain-{signer}.pem")));
        assert!(openssl_verifies(&token, &root, &chain, None).is_err(), "{signer}");
    }
    // The same token is accepted under a proper certificate, so nothing else is wrong with those
    // above.
    let token = bench.sign(&original, "plain", &["-cades"]);
    accept(&token, &bench.authority("first", "plain"), "first", "plain");
}

#[test]
fn signatures_of_other_shapes_are_refused() {
    let bench = bench();
    let authority = bench.authority("first", "plain");
    let original = bench.token("millis", &request().with_certificates());
    let signed = |flags: &[&str]| judge(&bench.sign(&original, "plain", flags), &authority);
    let attribute = |attribute| Error::Attribute { attribute, count: 0 };
    assert_eq!(signed(&[]), Err(attribute("signing certificate, version 2")));
    assert_eq!(signed(&["-noattr"]), Err(Error::Malformed { field: "signed attributes" }));
    assert_eq!(signed(&["-cades", "-signer", "other.pem", "-inkey", "other.key"]), Err(Error::Signers { count: 2 }));
    accept(&bench.sign(&original, "plain", &["-cades", "-nocerts"]), &authority, "first", "plain");
    assert_eq!(signed(&["-cades", "-keyid"]), Err(Error::Malformed { field: "signer" }));
    let sha1 = bench.answer("sha1", &request());
    assert_eq!(judge(&sha1, &authority), Err(attribute("signing certificate, version 2")));
    let unsupported = |token: &[u8], root, signer| match judge(token, &bench.authority(root, signer)) {
        Err(Error::Algorithm { algorithm, .. }) => algorithm.to_string(),
        verdict => panic!("{verdict:?}"),
    };
    assert_eq!(unsupported(&bench.answer("p521", &request()), "first", "p521"), "1.2.840.10045.4.3.4");
    let weak = bench.sign(&original, "plain", &["-cades", "-md", "sha1"]);
    assert_eq!(unsupported(&weak, "first", "plain"), "1.3.14.3.2.26");
    let pss = bench.sign(&original, "rsa", &["-cades", "-keyopt", "rsa_padding_mode:pss"]);
    assert_eq!(unsupported(&pss, "second", "rsa"), "1.2.840.113549.1.1.10");
}

#[test]
fn entries_lie_between_real_stamps() {
    let bench = bench();
    let stamps = || -> Vec<Stamp> {
        let stamp = |(index, (section, signer, root)): (usize, (&str, &str, &str))| {
            let token = bench.answer(section, &request());
            Stamp::new(index, &accept(&token, &bench.authority(root, signer), root, signer))
        };
        [("millis", "plain", "first"), ("rsa", "rsa", "second"), ("other", "other", "third")]
            .into_iter()
            .enumerate()
            .map(stamp)
            .collect()
    };
    let anchors = [(2, 3), (6, 7)].map(|(stamped_size, sequence)| Anchor { stamped_size, sequence, stamps: stamps() });
    let timeline = Timeline::new(&anchors, 2.try_into().expect("two")).expect("anchors in order");
    assert!(timeline.interval(4).expect("no contradiction").is_within(Duration::from_secs(60)));
    assert!(!timeline.interval(6).expect("no contradiction").is_within(Duration::from_secs(60)));
}
