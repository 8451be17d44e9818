//! Looks up the objects that a specification names, and makes the secrets that the operator keeps
//! itself: the signing key, authorities, certificates.
//!
//! A signing key is made only for a cluster that has never had one and has no volumes. With another
//! key, existing data would belong to a stranger, and the ledger would lose its name. The key is
//! never replaced, and has no owner, so that it outlives the resource.

pub mod authority;

use std::collections::BTreeMap;

use coppice_env::{Rng, SystemRng};
use coppice_types::ClusterId;
use coppice_verify::{checkpoint, note::SignerKey};
use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolumeClaim, Secret},
};
use kube::{
    Client, ResourceExt,
    api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;
use zeroize::Zeroizing;

use super::{
    apply::check_ours,
    build::{CLIENTS, Facts, MANAGER, Realm, Role, hash_of, selector_of},
    validate::validate,
};
use crate::{
    certificates::{self, Holder, Pair},
    crd::LedgerCluster,
    error::{Error, Trying},
};

/// The annotation of a signing key whose ledger was founded. No node founds that ledger again, even
/// if all volumes are gone.
pub const FOUNDED: &str = "coppice.dev/founded";
/// The annotation with the end of a certificate, in seconds since 1970.
const ENDS: &str = "coppice.dev/not-after";
/// The annotation with the host names of a certificate.
const HOSTS: &str = "coppice.dev/hosts";
/// The annotation with the roles of a certificate, and its process.
const ROLE: &str = "coppice.dev/role";
/// The file of a client's secret with the ledger's public key.
const VKEY: &str = "ledger.vkey";
/// The field manager of what is added to clients' secrets.
const CONNECTION_MANAGER: &str = "coppice-operator-connection";
/// The part before the `/` in names of keys that the operator makes.
const ORIGIN_PREFIX: &str = "coppice";

/// A cluster, with everything that it names.
#[derive(Clone, Debug)]
pub struct Dereferenced {
    /// The input of [`super::build`].
    pub facts: Facts,
    /// The ledger's public key.
    pub vkey: String,
    /// The TLS settings for connections to coordinators; `None` in the clear.
    pub tls: Option<coppice_client::Tls>,
    /// The authorities that the operator keeps.
    pub authorities: Vec<authority::Standing>,
}

/// Looks up everything that a cluster names.
///
/// # Errors
/// If the specification can't be carried out, or something is missing that only the user can
/// provide.
pub async fn dereference(client: &Client, cluster: &LedgerCluster, now: i64) -> Result<Dereferenced, Error> {
    validate(&cluster.spec)?;
    let namespace = cluster.namespace().unwrap_or_else(|| "default".to_owned());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let (name, secret) = signing_secret(client, &secrets, cluster, &namespace).await?;
    let key = signing_key(&name, &secret)?;
    let next_key = has_next_key(&name, &secret, &key)?;
    let cluster_id = key.name().rsplit_once('/').map(|(_, id)| id.to_owned()).unwrap_or_default();
    let founded = secret.annotations().get(FOUNDED).is_some_and(|word| word == "true");
    let mut facts = Facts {
        cluster: cluster.clone(),
        cluster_id,
        signing_secret: name,
        next_key,
        founded,
        certificates: BTreeMap::new(),
    };
    let mut authorities = Vec::new();
    for of in facts.authorities() {
        authorities.push(authority::certificates(client, &secrets, &facts, of, now).await?);
    }
    if !facts.authorities().contains(&Realm::Ledger) && !facts.spec().tls.plaintext {
        authority::retire(&secrets, &facts).await?;
    }
    let tls = certificates(client, &secrets, &mut facts).await?;
    let vkey = key.verifier().to_string();
    connections(&secrets, &facts, &vkey).await?;
    Ok(Dereferenced { facts, vkey, tls, authorities })
}

/// Records at the signing key that its ledger was founded.
///
/// # Errors
/// If the API server refuses.
pub async fn mark_founded(client: &Client, facts: &Facts) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &facts.namespace());
    let patch = json!({ "metadata": { "annotations": { FOUNDED: "true" } } });
    let name = &facts.signing_secret;
    let patched = secrets.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(drop).trying(|| format!("marking secret {name} as founded"))
}

async fn signing_secret(
    client: &Client,
    secrets: &Api<Secret>,
    cluster: &LedgerCluster,
    namespace: &str,
) -> Result<(String, Secret), Error> {
    let own = format!("{}-signing-key", cluster.name_any());
    let named = cluster.spec.signing_key.secret.clone();
    let name = named.clone().unwrap_or_else(|| own.clone());
    if let Some(secret) = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))? {
        return Ok((name, secret));
    }
    if named.is_some() {
        let message = format!("secret {name} is not there: make it with the key of `coppice keygen` as ledger.key");
        return Err(Error::blocked("SigningKeyMissing", message));
    }
    let had_one = cluster.status.as_ref().is_some_and(|status| status.vkey.is_some());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claims = claims.list(&ListParams::default().labels(&selector_of(&cluster.name_any()))).await;
    let holds_data = |claim: &PersistentVolumeClaim| {
        let of = claim.labels().get("app.kubernetes.io/component");
        of.is_some_and(|of| [Role::Node.name(), Role::Reader.name()].contains(&of.as_str()))
    };
    let has_data = claims.trying(|| "listing volumes".to_owned())?.items.iter().any(holds_data);
    if had_one || has_data {
        let message = format!(
            "secret {name} is gone, and the ledger can't be signed without it: put it back from its backup (no other key will do)"
        );
        return Err(Error::blocked("SigningKeyLost", message));
    }
    let secret = new_signing_secret(&name, cluster)?;
    let created = secrets.create(&PostParams::default(), &secret).await.trying(|| format!("creating secret {name}"))?;
    Ok((name, created))
}

fn new_signing_secret(name: &str, cluster: &LedgerCluster) -> Result<Secret, Error> {
    let (mut id, mut seed) = ([0; 16], Zeroizing::new([0; 32]));
    SystemRng.fill(&mut id);
    SystemRng.fill(&mut *seed);
    let origin = checkpoint::origin(ORIGIN_PREFIX, &ClusterId(id));
    let key = SignerKey::from_seed(&origin, &seed)
        .map_err(|error| Error::blocked("SigningKeyInvalid", format!("a key could not be made: {error}")));
    let key = key?;
    let mut secret = secret_of(
        name,
        cluster,
        BTreeMap::from([
            ("ledger.key".to_owned(), format!("{}\n", *key.to_private_text())),
            ("ledger.vkey".to_owned(), format!("{}\n", key.verifier())),
        ]),
    );
    // The secret outlives the resource.
    secret.metadata.owner_references = None;
    secret.immutable = Some(true);
    Ok(secret)
}

/// The key in a secret; its name must end in a cluster id.
fn signing_key(name: &str, secret: &Secret) -> Result<SignerKey, Error> {
    let invalid = |what: &str| invalid_key(name, what);
    let key = read_key(name, secret, "ledger.key")?.ok_or_else(|| invalid("it has no ledger.key"))?;
    let id = key.name().rsplit_once('/').map(|(_, id)| id).unwrap_or_default();
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if id.len() == 32 && id.bytes().all(hex) {
        return Ok(key);
    }
    Err(invalid("the key's name does not end in / and a cluster id: make the key with `coppice keygen`"))
}

/// Whether a secret also has a second key, which the ledger is to change to or has changed to.
fn has_next_key(name: &str, secret: &Secret, key: &SignerKey) -> Result<bool, Error> {
    match read_key(name, secret, "next.key")? {
        None => Ok(false),
        Some(next) if next.name() == key.name() && next.verifier() != key.verifier() => Ok(true),
        Some(_) => Err(invalid_key(name, "next.key must be a different key with the name of ledger.key")),
    }
}

fn read_key(name: &str, secret: &Secret, file: &str) -> Result<Option<SignerKey>, Error> {
    let Some(text) = secret.data.as_ref().and_then(|data| data.get(file)) else { return Ok(None) };
    let text = std::str::from_utf8(&text.0).map_err(|_| invalid_key(name, &format!("{file} is not text")))?;
    let key = SignerKey::parse(text.trim_end());
    key.map(Some).map_err(|error| invalid_key(name, &format!("{file}: {error}")))
}

fn invalid_key(name: &str, what: &str) -> Error {
    Error::blocked("SigningKeyInvalid", format!("secret {name}: {what}"))
}

/// Records the certificates of pods, and requests those that cert-manager makes. Returns the TLS
/// settings of the operator's own connections.
async fn certificates(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &mut Facts,
) -> Result<Option<coppice_client::Tls>, Error> {
    if facts.spec().tls.plaintext {
        return Ok(None);
    }
    if facts.spec().tls.cert_manager.is_some() {
        for (_, holder, secret) in facts.holders(Realm::Ledger) {
            ask_cert_manager(client, facts, &holder, &secret).await?;
        }
    }
    for role in Role::ALL.into_iter().filter(|role| facts.count(*role) > 0).collect::<Vec<_>>() {
        let mut names = facts.tls_secrets(role);
        if role == Role::Coordinator && facts.count(Role::Etcd) > 0 {
            // Coordinators mount this secret, too. They are replaced when it changes, and the
            // stages of etcd's authority wait for that.
            names.extend(facts.etcd_client_secret());
        }
        let mut shown = Vec::new();
        for name in names {
            let [ca, certificate, _] = whole(secrets, &name).await?;
            shown.extend([ca, certificate].concat());
        }
        facts.certificates.insert(role, hash_of(&String::from_utf8_lossy(&shown)));
    }
    let Some(own) = facts.own_secret() else { return Ok(None) };
    let [ca, certificate, key] = whole(secrets, &own).await?;
    Ok(Some(coppice_client::Tls::Pem { ca, identity: Some((certificate, key)) }))
}

/// Adds to each client's secret what else it needs for a connection: the endpoints, and the key
/// that it trusts. Another manager owns these fields, so whoever writes the certificate keeps them.
async fn connections(secrets: &Api<Secret>, facts: &Facts, vkey: &str) -> Result<(), Error> {
    if facts.spec().tls.plaintext || facts.spec().tls.secrets.is_some() {
        return Ok(());
    }
    let texts = [("endpoint", facts.endpoint()), ("http-endpoint", facts.http_endpoint()), (VKEY, vkey.to_owned())];
    for (client, _) in CLIENTS {
        let name = format!("{}-{client}-tls", facts.name());
        let found = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))?;
        // cert-manager may not have made it yet.
        let Some(secret) = found else { continue };
        check_ours("Secret", Some(&secret), &facts.cluster)?;
        if texts.iter().all(|(file, wanted)| text(&secret, file) == *wanted) {
            continue;
        }
        let data: BTreeMap<_, _> =
            texts.iter().map(|(file, text)| (*file, ByteString(text.clone().into_bytes()))).collect();
        let body = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "data": data });
        let params = PatchParams::apply(CONNECTION_MANAGER).force();
        let applied = secrets.patch(&name, &params, &Patch::Apply(&body)).await;
        applied.map(drop).trying(|| format!("applying secret {name}"))?;
    }
    Ok(())
}

/// The files of a secret with a certificate: the authority, the certificate, its key.
async fn whole(secrets: &Api<Secret>, name: &str) -> Result<[Vec<u8>; 3], Error> {
    let secret = secrets.get_opt(name).await.trying(|| format!("reading secret {name}"))?;
    let files = |secret: &Secret| ["ca.crt", "tls.crt", "tls.key"].map(|key| bytes(secret, key));
    secret.as_ref().map(files).filter(|files| !files.iter().any(Vec::is_empty)).ok_or_else(|| {
        Error::blocked("CertificatesMissing", format!("secret {name} does not have ca.crt, tls.crt and tls.key (yet)"))
    })
}

fn bytes(secret: &Secret, key: &str) -> Vec<u8> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()).unwrap_or_default()
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(bytes(secret, key)).unwrap_or_default()
}

/// The signer of certificates.
struct Authority {
    /// The authority's subject.
    subject: String,
    pair: Pair,
    /// The authorities that holders of its certificates trust, in PEM.
    believed: String,
}

impl Authority {
    /// An authority that is the only one trusted.
    fn of(subject: String, pair: Pair) -> Self {
        Self { subject, believed: pair.certificate.clone(), pair }
    }
}

/// The authority in a secret.
fn pair_of(name: &str, secret: &Secret) -> Result<Pair, Error> {
    let ends = secret.annotations().get(ENDS).and_then(|text| text.parse().ok());
    let ends = ends.ok_or_else(|| {
        Error::blocked("AuthorityInvalid", format!("secret {name} has no {ENDS}: delete it, and a new one is made"))
    })?;
    Ok(Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key"), ends })
}

/// Makes a holder's certificate, if there is none, or it is for other hosts or roles, or ends soon.
async fn renew(
    secrets: &Api<Secret>,
    facts: &Facts,
    (holder, name): (&Holder, &str),
    authority: &Authority,
    now: i64,
) -> Result<(), Error> {
    let found = secrets.get_opt(name).await.trying(|| format!("reading secret {name}"))?;
    check_ours("Secret", found.as_ref(), &facts.cluster)?;
    if found.is_some_and(|secret| is_current(&secret, holder, authority, now)) {
        return Ok(());
    }
    let pair = certificates::certificate(&authority.subject, &authority.pair, holder, now)?;
    let mut secret = secret_of(
        name,
        &facts.cluster,
        BTreeMap::from([
            ("ca.crt".to_owned(), authority.believed.clone()),
            ("tls.crt".to_owned(), pair.certificate),
            ("tls.key".to_owned(), pair.key),
        ]),
    );
    secret.annotations_mut().insert(ENDS.to_owned(), pair.ends.to_string());
    secret.annotations_mut().insert(HOSTS.to_owned(), holder.hosts.join(" "));
    secret.annotations_mut().insert(ROLE.to_owned(), said(holder));
    let applied = secrets.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret)).await;
    applied.map(drop).trying(|| format!("applying secret {name}"))
}

/// A certificate's statement about its holder, as the annotation's value.
fn said(holder: &Holder) -> String {
    let name = holder.is_process.then_some(holder.name.as_str());
    holder.roles.iter().copied().chain(name).collect::<Vec<_>>().join(" ")
}

/// Whether a certificate is for this holder, is stored with the trusted authorities, and does not
/// end soon.
fn is_current(secret: &Secret, holder: &Holder, authority: &Authority, now: i64) -> bool {
    let annotation = |name: &str| secret.annotations().get(name).cloned().unwrap_or_default();
    let ends: i64 = annotation(ENDS).parse().unwrap_or(0);
    annotation(HOSTS) == holder.hosts.join(" ")
        && annotation(ROLE) == said(holder)
        && text(secret, "ca.crt") == authority.believed
        // No certificate lasts longer than its authority.
        && (ends - now > holder.renewed_before_seconds() || ends == authority.pair.ends)
}

/// Makes a `Certificate`, from which cert-manager makes the holder's secret.
async fn ask_cert_manager(client: &Client, facts: &Facts, holder: &Holder, secret: &str) -> Result<(), Error> {
    let body = cert_manager_request(facts, holder, secret);
    let (name, api) = (&holder.name, cert_manager(client, facts));
    let there = match api.get(name).await {
        // Without cert-manager the kind does not exist. That is not the error of a missing object.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        read => Some(read.trying(|| format!("reading certificate {name}"))?),
    };
    check_ours("Certificate", there.as_ref(), &facts.cluster)?;
    let applied = api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&body)).await;
    applied.map(drop).trying(|| format!("asking cert-manager for certificate {name}"))
}

/// The API for `Certificate`s of cert-manager.
pub(super) fn cert_manager(client: &Client, facts: &Facts) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    Api::namespaced_with(client.clone(), &facts.namespace(), &resource)
}

fn cert_manager_request(facts: &Facts, holder: &Holder, secret: &str) -> serde_json::Value {
    let issuer =
        facts.spec().tls.cert_manager.clone().map(|issuer| json!({ "name": issuer.issuer, "kind": issuer.kind }));
    let metadata = secret_of(&holder.name, &facts.cluster, BTreeMap::new()).metadata;
    json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata,
        "spec": {
            "secretName": secret,
            "commonName": holder.name.chars().take(64).collect::<String>(),
            "duration": format!("{}h", holder.days * 24),
            "renewBefore": format!("{}h", holder.days * 8),
            "dnsNames": holder.hosts,
            "uris": holder.uris(),
            "usages": ["digital signature", "server auth", "client auth"],
            "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
            "issuerRef": issuer,
        },
    })
}

/// A secret that is deleted with the cluster.
fn secret_of(name: &str, cluster: &LedgerCluster, files: BTreeMap<String, String>) -> Secret {
    use kube::Resource;
    let mut secret = Secret::default();
    let labels = [
        ("app.kubernetes.io/name", "coppice".to_owned()),
        ("app.kubernetes.io/instance", cluster.name_any()),
        ("app.kubernetes.io/managed-by", MANAGER.to_owned()),
    ];
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.namespace = cluster.namespace();
    secret.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value)).into());
    secret.metadata.owner_references = cluster.controller_owner_ref(&()).map(|owner| vec![owner]);
    secret.data = Some(files.into_iter().map(|(name, text)| (name, ByteString(text.into_bytes()))).collect());
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> LedgerCluster {
        let object = json!({ "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerCluster",
            "metadata": { "name": "ledger", "namespace": "bank", "uid": "1" }, "spec": {} });
        serde_json::from_value(object).expect("it can be read")
    }

    fn facts() -> Facts {
        Facts {
            cluster: cluster(),
            cluster_id: String::new(),
            signing_secret: "k".to_owned(),
            next_key: false,
            founded: false,
            certificates: BTreeMap::new(),
        }
    }

    #[test]
    fn a_new_signing_key_is_one_that_coordinators_take_and_outlives_the_cluster() {
        let secret = new_signing_secret("ledger-signing-key", &cluster()).expect("a key can be made");
        let key = signing_key("ledger-signing-key", &secret).expect("it is read again");
        assert!(key.name().starts_with("coppice/"));
        assert_eq!(text(&secret, "ledger.vkey").trim_end(), key.verifier().to_string());
        assert_eq!((secret.metadata.owner_references, secret.immutable), (None, Some(true)));
        let other = new_signing_secret("ledger-signing-key", &cluster()).expect("a key can be made");
        assert_ne!(secret.data, other.data);
    }

    #[test]
    fn a_secret_without_a_ledgers_key_is_refused_in_words() {
        let with =
            |text: &str| secret_of("s", &cluster(), BTreeMap::from([("ledger.key".to_owned(), text.to_owned())]));
        let nameless = SignerKey::from_seed("nobody", &[7; 32]).expect("a key can be made").to_private_text();
        for (secret, words) in [
            (secret_of("s", &cluster(), BTreeMap::new()), "it has no ledger.key"),
            (with("nonsense"), "ledger.key: "),
            (with(&nameless), "does not end in / and a cluster id"),
        ] {
            let error = signing_key("s", &secret).expect_err("it is refused");
            assert_eq!(error.reason(), "SigningKeyInvalid");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_next_key_is_another_one_of_the_same_name() {
        let key = |name: &str, seed| SignerKey::from_seed(name, &[seed; 32]).expect("a key can be made");
        let (name, elsewhere) = (format!("coppice/{:032x}", 1), format!("coppice/{:032x}", 2));
        let first = key(&name, 1);
        let with = |text: String| secret_of("s", &cluster(), BTreeMap::from([("next.key".to_owned(), text)]));
        let found = |next: SignerKey| has_next_key("s", &with(next.to_private_text().to_string()), &first);
        assert!(found(key(&name, 2)).expect("it is one"));
        assert!(!has_next_key("s", &secret_of("s", &cluster(), BTreeMap::new()), &first).expect("there is none"));
        for wrong in [found(key(&name, 1)), found(key(&elsewhere, 2)), has_next_key("s", &with("x".to_owned()), &first)]
        {
            assert_eq!(wrong.expect_err("it is refused").reason(), "SigningKeyInvalid");
        }
    }

    #[test]
    fn a_certificate_is_renewed_for_other_hosts_another_role_another_authority_and_in_time() {
        let hosts = facts().hosts(Role::Node, &facts().pods(Role::Node));
        let holder = |hosts: &[String], role| Holder {
            name: "ledger-node-0".to_owned(),
            hosts: hosts.to_vec(),
            roles: vec![role],
            is_process: true,
            days: certificates::PROCESS_DAYS,
        };
        let own = holder(&hosts, "node");
        let mut secret = secret_of("s", &cluster(), BTreeMap::from([("ca.crt".to_owned(), "authority".to_owned())]));
        let before = own.renewed_before_seconds();
        assert_eq!(before, 10 * 86_400, "two thirds of thirty days are over");
        secret.annotations_mut().insert(ENDS.to_owned(), (before + 100).to_string());
        secret.annotations_mut().insert(HOSTS.to_owned(), hosts.join(" "));
        let authority = |believed: &str, ends: i64| Authority {
            believed: believed.to_owned(),
            ..Authority::of(String::new(), Pair { certificate: String::new(), key: String::new(), ends })
        };
        assert!(!is_current(&secret, &own, &authority("authority", 0), 99), "it was made before there were roles");
        secret.annotations_mut().insert(ROLE.to_owned(), "node".to_owned());
        assert!(!is_current(&secret, &own, &authority("authority", 0), 99), "it names no process");
        secret.annotations_mut().insert(ROLE.to_owned(), "node ledger-node-0".to_owned());
        assert!(is_current(&secret, &own, &authority("authority", 0), 99));
        assert!(!is_current(&secret, &own, &authority("authority", 0), 100));
        assert!(is_current(&secret, &own, &authority("authority", before + 100), 100));
        assert!(!is_current(&secret, &own, &authority("other", 0), 99));
        assert!(!is_current(&secret, &holder(&hosts[1..], "node"), &authority("authority", 0), 99));
        assert!(!is_current(&secret, &holder(&hosts, "coordinator"), &authority("authority", 0), 99));
    }

    #[test]
    fn cert_manager_is_asked_for_the_hosts_the_role_the_name_and_both_uses() {
        let mut facts = facts();
        facts.cluster.spec.tls.cert_manager =
            Some(crate::crd::CertManager { issuer: "authority".to_owned(), kind: "Issuer".to_owned() });
        let holders = facts.holders(Realm::Ledger);
        let of = |name: &str| holders.iter().find(|(_, holder, _)| holder.name == name).expect("it gets a certificate");
        let (_, holder, secret) = of("ledger-node-1");
        let request = cert_manager_request(&facts, holder, secret);
        assert_eq!(request["spec"]["secretName"], "ledger-node-1-tls");
        assert_eq!(request["spec"]["dnsNames"], json!(["ledger-node-1.ledger-node.bank.svc"]));
        assert_eq!(request["spec"]["uris"], json!(["urn:coppice:role:node", "urn:coppice:name:ledger-node-1"]));
        assert_eq!([&request["spec"]["duration"], &request["spec"]["renewBefore"]], ["720h", "240h"]);
        let (_, holder, secret) = of("ledger-writer");
        let client = cert_manager_request(&facts, holder, secret);
        assert_eq!(client["spec"]["secretName"], "ledger-writer-tls");
        assert_eq!(client["spec"]["uris"], json!(["urn:coppice:role:writer"]));
        let (_, holder, secret) = of("ledger-load");
        let both = cert_manager_request(&facts, holder, secret);
        assert_eq!(both["spec"]["uris"], json!(["urn:coppice:role:writer", "urn:coppice:role:operator"]));
        assert!(holders.iter().all(|(_, holder, _)| !holder.name.contains("etcd")), "its authority is another one");
        assert_eq!(request["spec"]["issuerRef"], json!({ "name": "authority", "kind": "Issuer" }));
        assert_eq!(request["metadata"]["ownerReferences"][0]["kind"], "LedgerCluster");
    }
}
