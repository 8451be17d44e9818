//! Tokens that no honest authority makes, signed by a key that a root vouches for: each breaks one
//! rule.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};

use super::*;
use crate::der::{GENERALIZED_TIME, INTEGER, NULL, OCTET_STRING, SET, context, element, oid};

const IMPRINT: [u8; 32] = [7; 32];
const POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.99999.1.1");
const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");

/// A certificate with its key.
struct Holder {
    der: Vec<u8>,
    key: Vec<u8>,
}

impl Holder {
    /// The DER of the issuer's name, and the serial number.
    fn identity(&self) -> Vec<u8> {
        let certificate = read_certificate(&self.der).expect("rcgen makes certificates");
        let serial = element(INTEGER, &[certificate.raw_serial()]);
        [certificate.issuer().as_raw(), &serial].concat()
    }

    fn hash(&self) -> Vec<u8> {
        Digest::Sha256.of(&self.der).as_ref().to_vec()
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &self.key, &random).expect("a key");
        key.sign(&random, message).expect("the system has randomness").as_ref().to_vec()
    }
}

/// A root with two signers below it.
struct World {
    root: Vec<u8>,
    signer: Holder,
    other: Holder,
}

/// Validity of certificates, as years.
type Years = (i32, i32);

fn world(root_years: Years, signer_years: Years) -> World {
    world_below(IsCa::Ca(BasicConstraints::Unconstrained), root_years, signer_years)
}

fn world_below(root_may: IsCa, root_years: Years, signer_years: Years) -> World {
    let named = |name: &str, (from, until): Years| {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params
    };
    let key = || KeyPair::generate().expect("the system has randomness");
    let mut params = named("root", root_years);
    params.is_ca = root_may;
    let root_key = key();
    let root = params.self_signed(&root_key).expect("a root").der().to_vec();
    let issuer = Issuer::new(params, root_key);
    let signer = |serial: u8| {
        let mut params = named("signer", signer_years);
        params.serial_number = Some(SerialNumber::from(vec![serial]));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let purposes = element(SEQUENCE, &[&oid(&oids::TIME_STAMPING)]);
        let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 37], purposes);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
        let key = key();
        let der = params.signed_by(&key, &issuer).expect("a certificate").der().to_vec();
        Holder { der, key: key.serialize_der() }
    };
    World { root, signer: signer(5), other: signer(6) }
}

/// All parts of a token that tests change. Each has what an honest authority would write.
struct Parts {
    version: u8,
    imprint: Vec<u8>,
    time: &'static str,
    content_type: ObjectIdentifier,
    certificates: Vec<u8>,
    identity: Vec<u8>,
    digest: ObjectIdentifier,
    attributes: Vec<Vec<u8>>,
    algorithm: ObjectIdentifier,
    /// The tag under which attributes are signed.
    signed_as: u8,
    signers: usize,
}

fn algorithm(name: &ObjectIdentifier) -> Vec<u8> {
    element(SEQUENCE, &[&oid(name), &element(NULL, &[])])
}

fn attribute(name: &ObjectIdentifier, values: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, &[&oid(name), &element(SET, values)])
}

/// The attribute that names the signer's certificate, with fields of its `ESSCertIDv2`.
fn names(fields: &[&[u8]]) -> Vec<u8> {
    let list = element(SEQUENCE, &[&element(SEQUENCE, fields)]);
    attribute(&oids::SIGNING_CERTIFICATE_V2, &[&element(SEQUENCE, &[&list])])
}

fn octets(bytes: &[u8]) -> Vec<u8> {
    element(OCTET_STRING, &[bytes])
}

/// The issuer and serial number as `ESSCertIDv2` has them.
fn issuer_serial(identity: &[u8]) -> Vec<u8> {
    let mut fields = Reader::new(identity, "identity");
    let (name, serial) = (fields.any().expect("a name"), fields.any().expect("a serial number"));
    let names = element(SEQUENCE, &[&element(context(4), &[name.whole])]);
    element(SEQUENCE, &[&names, serial.whole])
}

impl Parts {
    fn new(world: &World) -> Self {
        let mut parts = Self {
            version: 1,
            imprint: element(SEQUENCE, &[&algorithm(&oids::SHA_256), &octets(&IMPRINT)]),
            time: "20260601120000.5Z",
            content_type: oids::TST_INFO,
            certificates: Vec::new(),
            identity: element(SEQUENCE, &[&world.signer.identity()]),
            digest: oids::SHA_256,
            attributes: Vec::new(),
            algorithm: oids::ECDSA_SHA_256,
            signed_as: SET,
            signers: 1,
        };
        parts.attributes = vec![
            attribute(&oids::CONTENT_TYPE, &[&oid(&oids::TST_INFO)]),
            parts.message_digest(),
            names(&[&octets(&world.signer.hash()), &issuer_serial(&world.signer.identity())]),
        ];
        parts
    }

    fn content(&self) -> Vec<u8> {
        let accuracy = element(SEQUENCE, &[&[INTEGER, 1, 1]]);
        let time = element(GENERALIZED_TIME, &[self.time.as_bytes()]);
        let serial = element(INTEGER, &[&[9]]);
        let version = element(INTEGER, &[&[self.version]]);
        element(SEQUENCE, &[&version, &oid(&POLICY), &self.imprint, &serial, &time, &accuracy])
    }

    fn message_digest(&self) -> Vec<u8> {
        attribute(&oids::MESSAGE_DIGEST, &[&octets(Digest::Sha256.of(&self.content()).as_ref())])
    }

    /// The token, signed by the world's signer.
    fn token(&self, world: &World) -> Vec<u8> {
        let attributes = self.attributes.concat();
        let signature = world.signer.sign(&element(self.signed_as, &[&attributes]));
        let signer = element(
            SEQUENCE,
            &[
                &[INTEGER, 1, 1],
                &self.identity,
                &algorithm(&self.digest),
                &element(context(0), &[&attributes]),
                &element(SEQUENCE, &[&oid(&self.algorithm)]),
                &octets(&signature),
            ],
        );
        let content = element(context(0), &[&octets(&self.content())]);
        let data = element(
            SEQUENCE,
            &[
                &[INTEGER, 1, 3],
                &element(SET, &[&algorithm(&self.digest)]),
                &element(SEQUENCE, &[&oid(&self.content_type), &content]),
                &element(context(0), &[&self.certificates]),
                &element(SET, &[&signer.repeat(self.signers)]),
            ],
        );
        element(SEQUENCE, &[&oid(&oids::SIGNED_DATA), &element(context(0), &[&data])])
    }

    fn verdict(&self, world: &World) -> Result<Stamped, Error> {
        let known = [&world.signer.der[..], &world.other.der].concat();
        let authority = Authority::new(&world.root)?.with_certificates(&known)?;
        verify(&Token::parse(&self.token(world))?, &authority, &IMPRINT, None)
    }
}

/// The verdict on an honest token after one change.
fn verdict(change: impl FnOnce(&World, &mut Parts)) -> Result<Stamped, Error> {
    let world = world((2020, 2040), (2025, 2035));
    let mut parts = Parts::new(&world);
    change(&world, &mut parts);
    parts.verdict(&world)
}

#[test]
fn an_honest_token_is_accepted() {
    let world = world((2020, 2040), (2025, 2035));
    let stamped = Parts::new(&world).verdict(&world).expect("nothing is wrong with it");
    assert_eq!((stamped.time.to_string().as_str(), &stamped.serial[..]), ("2026-06-01T12:00:00.5Z", &[9][..]));
    assert_eq!((stamped.policy, stamped.signer.to_vec()), (POLICY, world.signer.hash()));
    assert_eq!(stamped.earliest().to_string(), "2026-06-01T11:59:59.5Z");
    assert_eq!(stamped.latest().to_string(), "2026-06-01T12:00:01.5Z");
}

#[test]
fn the_content_must_be_a_statement_of_version_one() {
    let malformed = |field| Err(Error::Malformed { field });
    assert_eq!(verdict(|_, parts| parts.version = 2), malformed("version of TSTInfo"));
    assert_eq!(verdict(|_, parts| parts.content_type = DATA), malformed("type of the content"));
}

#[test]
fn the_imprint_must_be_ours_by_sha_256() {
    let imprint = |algorithm: Vec<u8>, hash: &[u8]| {
        verdict(|_, parts| {
            parts.imprint = element(SEQUENCE, &[&algorithm, &octets(hash)]);
            parts.attributes[1] = parts.message_digest();
        })
    };
    imprint(algorithm(&oids::SHA_256), &IMPRINT).expect("ours");
    imprint(element(SEQUENCE, &[&oid(&oids::SHA_256)]), &IMPRINT).expect("ours, without parameters");
    assert_eq!(imprint(algorithm(&oids::SHA_256), &[8; 32]), Err(Error::Imprint));
    assert_eq!(imprint(algorithm(&oids::SHA_512), &IMPRINT), Err(Error::Imprint));
    assert_eq!(imprint(algorithm(&DATA), &IMPRINT), Err(Error::Imprint));
    let malformed = Err(Error::Malformed { field: "messageImprint" });
    assert_eq!(imprint(algorithm(&oids::SHA_256), &[7; 31]), malformed);
    let parameters = element(SEQUENCE, &[&oid(&oids::SHA_256), &octets(&[])]);
    assert_eq!(imprint(parameters, &IMPRINT), malformed);
}

#[test]
fn each_signed_attribute_stands_once_with_one_value() {
    for (index, attribute) in [(0, "content type"), (1, "message digest"), (2, "signing certificate, version 2")] {
        let counted = |count| Err(Error::Attribute { attribute, count });
        assert_eq!(verdict(|_, parts| drop(parts.attributes.remove(index))), counted(0));
        assert_eq!(verdict(|_, parts| parts.attributes.push(parts.attributes[index].clone())), counted(2));
    }
    let twice = |_: &World, parts: &mut Parts| {
        let value = oid(&oids::TST_INFO);
        parts.attributes[0] = attribute(&oids::CONTENT_TYPE, &[&value, &value]);
    };
    assert_eq!(verdict(twice), Err(Error::Attribute { attribute: "content type", count: 2 }));
    let none = |_: &World, parts: &mut Parts| parts.attributes[0] = attribute(&oids::CONTENT_TYPE, &[]);
    assert_eq!(verdict(none), Err(Error::Attribute { attribute: "content type", count: 0 }));
    verdict(|_, parts| parts.attributes.push(attribute(&DATA, &[]))).expect("others don't matter");
}

#[test]
fn signed_attributes_must_fit_the_content() {
    let other = |_: &World, parts: &mut Parts| parts.attributes[0] = attribute(&oids::CONTENT_TYPE, &[&oid(&DATA)]);
    assert_eq!(verdict(other), Err(Error::ContentType));
    // The content differs from the signed one.
    assert_eq!(verdict(|_, parts| parts.time = "20260601120001Z"), Err(Error::MessageDigest));
    assert_eq!(verdict(|_, parts| parts.digest = oids::SHA_384), Err(Error::MessageDigest));
}

#[test]
fn the_signature_is_over_a_set() {
    assert_eq!(verdict(|_, parts| parts.signed_as = context(0)), Err(Error::Signature));
}

#[test]
fn there_is_one_signer() {
    assert_eq!(verdict(|_, parts| parts.signers = 0), Err(Error::Signers { count: 0 }));
    assert_eq!(verdict(|_, parts| parts.signers = 2), Err(Error::Signers { count: 2 }));
}

/// The certificate of another key of the same authority must not stand for that which signed.
#[test]
fn a_certificate_can_not_be_put_in_anothers_place() {
    let names_other = |world: &World, parts: &mut Parts| parts.attributes[2] = names(&[&octets(&world.other.hash())]);
    assert_eq!(verdict(names_other), Err(Error::SignerIdentity));
    let is_other = |world: &World, parts: &mut Parts| {
        names_other(world, parts);
        parts.identity = element(SEQUENCE, &[&world.other.identity()]);
    };
    assert_eq!(verdict(is_other), Err(Error::Signature));
    let outside = |world: &World, parts: &mut Parts| parts.identity = element(SEQUENCE, &[&world.other.identity()]);
    assert_eq!(verdict(outside), Err(Error::SignerIdentity));
    let inside = |world: &World, parts: &mut Parts| {
        parts.attributes[2] = names(&[&octets(&world.signer.hash()), &issuer_serial(&world.other.identity())]);
    };
    assert_eq!(verdict(inside), Err(Error::SignerIdentity));
    let nobody = |_: &World, parts: &mut Parts| parts.attributes[2] = names(&[&octets(&[1; 32])]);
    assert_eq!(verdict(nobody), Err(Error::SignerUnknown));
}

#[test]
fn a_certificate_is_named_by_any_hash_of_sha_2() {
    verdict(|world, parts| parts.attributes[2] = names(&[&octets(&world.signer.hash())])).expect("without its issuer");
    for (digest, name) in
        [(Digest::Sha256, oids::SHA_256), (Digest::Sha384, oids::SHA_384), (Digest::Sha512, oids::SHA_512)]
    {
        let named = |world: &World, parts: &mut Parts| {
            let hash = octets(digest.of(&world.signer.der).as_ref());
            parts.attributes[2] = names(&[&algorithm(&name), &hash]);
        };
        verdict(named).expect("a hash of SHA-2");
    }
    let short = |world: &World, parts: &mut Parts| parts.attributes[2] = names(&[&octets(&world.signer.hash()[..20])]);
    assert_eq!(verdict(short), Err(Error::SignerUnknown));
    let sha_1 = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
    let weak = |world: &World, parts: &mut Parts| {
        parts.attributes[2] = names(&[&algorithm(&sha_1), &octets(&world.signer.hash()[..20])]);
    };
    assert_eq!(verdict(weak), Err(Error::Algorithm { algorithm: sha_1, purpose: "names of certificates" }));
}

#[test]
fn the_signature_algorithm_fits_the_digest_and_the_key() {
    let by = |algorithm: ObjectIdentifier| {
        let verdict = verdict(|_, parts| parts.algorithm = algorithm);
        assert_eq!(verdict, Err(Error::Algorithm { algorithm, purpose: "signatures" }));
    };
    by(oids::ECDSA_SHA_384);
    by(oids::RSA);
    by(oids::RSA_SHA_256);
    by(oids::SHA_256);
}

#[test]
fn certificates_in_a_token_are_bounded() {
    let many = |count| move |world: &World, parts: &mut Parts| parts.certificates = world.other.der.repeat(count);
    verdict(many(16)).expect("sixteen");
    assert_eq!(verdict(many(17)), Err(Error::Certificates { problem: "a token may bring 16" }));
    let other_kinds = |_: &World, parts: &mut Parts| parts.certificates = element(context(3), &[]).repeat(20);
    verdict(other_kinds).expect("they are not looked at");
    let garbage = |_: &World, parts: &mut Parts| parts.certificates = element(SEQUENCE, &[]).repeat(3);
    verdict(garbage).expect("neither are those that are not needed");
}

#[test]
fn a_root_must_be_one_that_issues_certificates() {
    let world = world_below(IsCa::ExplicitNoCa, (2020, 2040), (2025, 2035));
    let verdict = Parts::new(&world).verdict(&world);
    assert!(matches!(verdict, Err(Error::Chain { .. })), "{verdict:?}");
}

#[test]
fn every_certificate_is_valid_at_the_stamped_time_to_the_second() {
    let at = |root, signer, time| {
        let world = world(root, signer);
        let mut parts = Parts::new(&world);
        parts.time = time;
        parts.attributes[1] = parts.message_digest();
        parts.verdict(&world)
    };
    let (long, year) = ((2020, 2040), (2026, 2027));
    for (time, is_valid) in [
        ("20251231235959.999999999Z", false),
        ("20260101000000Z", true),
        ("20270101000000Z", true),
        ("20270101000000.9Z", true),
        ("20270101000001Z", false),
    ] {
        for (root, signer) in [(long, year), (year, long)] {
            let verdict = at(root, signer, time);
            let fits = if is_valid { verdict.is_ok() } else { matches!(verdict, Err(Error::Chain { .. })) };
            assert!(fits, "{time} with {root:?} and {signer:?}: {verdict:?}");
        }
    }
    assert!(matches!(at((1960, 2040), (1960, 2040), "19650101000000Z"), Err(Error::Chain { .. })));
}
