//! The authorities that the operator keeps: one for the ledger, and one for a managed etcd.
//!
//! etcd checks no roles: it lets in every holder of a certificate of its authority. That authority
//! therefore signs only for etcd's members and for coordinators, and a client's certificate is
//! refused even where network policies are not enforced.
//!
//! A process may trust only the authorities that it read at its start. An authority is therefore
//! replaced in stages, and no stage begins before every pod was made in the one before it
//! ([`advance`]):
//! 1. Both authorities are trusted; certificates of the former are shown.
//! 2. Both are trusted; certificates of the new one are shown.
//! 3. Only the new one is trusted.
//!
//! In each stage, every certificate that a pod of this stage or of the one before shows is trusted
//! by all. The stage is stored with the authority, so an operator that was restarted goes on where
//! it was. An authority is replaced if its secret was deleted, if it ends soon, if certificates
//! came from elsewhere before, or if etcd's members still trust the ledger's authority.
//!
//! The ledger's clients have to follow. The operator can't see whether they have the files of a
//! stage, so a person says so in an annotation ([`CLIENTS`]) before the next stage begins. etcd has
//! no clients except coordinators.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret, SecretProjection, VolumeProjection};
use kube::{
    Client, ResourceExt,
    api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Authority, ENDS, HOSTS, ROLE, cert_manager, pair_of, renew, secret_of, text};
use crate::{
    certificates::{self, Holder},
    error::{Error, Trying},
    reconcile::{
        apply::{check_ours, gone_is_fine, is_ours},
        build::{Facts, MANAGER, Realm, Role, selector_of},
    },
};

/// The annotation of the authority's secret with its stage; absent in the last stage.
const STAGE: &str = "coppice.dev/stage";
/// The annotation by which a person states that the ledger's clients have the files of a stage; its
/// value is the stage's name.
pub const CLIENTS: &str = "coppice.dev/clients";
/// The file with the former authority.
const FORMER: &str = "former.crt";

/// The stage of the replacement of an authority by this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// This authority and the former one are trusted; certificates of the former one are shown.
    Believed,
    /// Both are trusted; certificates of this one are shown.
    Shown,
    /// Only this one is trusted.
    Alone,
}

impl Stage {
    fn of(authority: &Secret) -> Self {
        let name = authority.annotations().get(STAGE);
        [Self::Believed, Self::Shown]
            .into_iter()
            .find(|stage| name.is_some_and(|name| name == stage.name()))
            .unwrap_or(Self::Alone)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Believed => "believed",
            Self::Shown => "shown",
            Self::Alone => "alone",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Believed => Self::Shown,
            Self::Shown | Self::Alone => Self::Alone,
        }
    }
}

/// An authority that the operator keeps, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub of: Realm,
    pub stage: Stage,
    /// Whether clients have the files of the stage; true where no person has to confirm that.
    pub clients: bool,
    /// Whether a successor should be introduced, since certificates of this authority will end with
    /// it.
    pub ends_soon: bool,
}

impl Standing {
    /// The reason why pods are being replaced.
    #[must_use]
    pub fn words(self) -> &'static str {
        match (self.of, self.stage) {
            (Realm::Etcd, Stage::Believed) => "etcd and coordinators start to trust etcd's new authority",
            (Realm::Etcd, Stage::Shown) => "etcd and coordinators start to show certificates of etcd's new authority",
            (Realm::Etcd, Stage::Alone) => "etcd starts to trust only its own authority",
            (Realm::Ledger, Stage::Believed) => "nodes and coordinators start to trust the ledger's new authority",
            (Realm::Ledger, Stage::Shown) => {
                "nodes and coordinators start to show certificates of the ledger's new authority"
            }
            (Realm::Ledger, Stage::Alone) => "nodes and coordinators start to trust only the ledger's new authority",
        }
    }

    /// The action that a person must take before the next stage begins, if any.
    #[must_use]
    pub fn waits_for(self, facts: &Facts) -> Option<String> {
        if self.stage == Stage::Alone {
            let secret = facts.authority(self.of);
            return self.ends_soon.then(|| {
                format!("the authority in secret {secret} ends within a year, and all certificates with it: when clients outside of the cluster can get others, kubectl delete secret {secret}")
            });
        }
        if self.clients {
            return None;
        }
        let files = if self.stage == Stage::Believed { "ca.crt" } else { "ca.crt, tls.crt and tls.key" };
        let (secret, stage) = (facts.authority(self.of), self.stage.name());
        Some(format!(
            "clients outside of the cluster need the new {files} of their secrets; then: kubectl annotate --overwrite secret {secret} {CLIENTS}={stage}"
        ))
    }
}

/// Maintains an authority and the certificates that it signs.
pub(super) async fn certificates(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    of: Realm,
    now: i64,
) -> Result<Standing, Error> {
    let name = facts.authority(of);
    let mut found = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))?;
    let mut ends_soon = match &found {
        Some(secret) => pair_of(&name, secret)?.ends - now <= certificates::AUTHORITY_RENEWED_BEFORE_SECONDS,
        None => false,
    };
    // The ledger's clients have to follow a new authority, so only a person begins that
    // replacement.
    if ends_soon && of == Realm::Etcd {
        gone_is_fine(secrets.delete(&name, &DeleteParams::default()).await.map(drop))
            .trying(|| format!("deleting secret {name}, whose authority ends"))?;
        (found, ends_soon) = (None, false);
    }
    let secret = match found {
        Some(secret) => secret,
        None => introduce(client, secrets, facts, of, now).await?,
    };
    let stage = Stage::of(&secret);
    let told = secret.annotations().get(CLIENTS).is_some_and(|told| told == stage.name());
    let mut authority = Authority::of(subject(facts, of), pair_of(&name, &secret)?);
    if stage != Stage::Alone {
        authority.believed.insert_str(0, &text(&secret, FORMER));
    }
    for (role, holder, name) in facts.holders(of) {
        if stage != Stage::Believed
            || !keep(client, secrets, facts, (of, role, &holder, &name), &authority.believed).await?
        {
            renew(secrets, facts, (&holder, &name), &authority, now).await?;
        }
    }
    Ok(Standing { of, stage, clients: told || of == Realm::Etcd, ends_soon })
}

/// Removes the ledger's authority when others sign. It is then no longer trusted; if the operator
/// is to sign again, another authority is introduced in stages.
pub(super) async fn retire(secrets: &Api<Secret>, facts: &Facts) -> Result<(), Error> {
    let name = facts.authority(Realm::Ledger);
    let found = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))?;
    if !found.is_some_and(|secret| is_ours(&secret, &facts.cluster)) {
        return Ok(());
    }
    let deleted = secrets.delete(&name, &DeleteParams::default()).await.map(drop);
    gone_is_fine(deleted).trying(|| format!("deleting secret {name}, which signs nothing any more"))
}

/// Goes on to the next stage. The caller has checked that every pod was made in this one.
///
/// # Errors
/// If the API server refuses.
pub async fn advance(client: &Client, facts: &Facts, standing: Standing) -> Result<Standing, Error> {
    let stage = standing.stage.next();
    let patch = match stage {
        Stage::Alone => {
            json!({ "metadata": { "annotations": { STAGE: null, CLIENTS: null } }, "data": { FORMER: null } })
        }
        _ => json!({ "metadata": { "annotations": { STAGE: stage.name() } } }),
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &facts.namespace());
    let name = facts.authority(standing.of);
    let patched = secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(|_| Standing { stage, ..standing }).trying(|| format!("writing the stage of secret {name}"))
}

/// Makes the authority. It begins in the last stage only if no pod trusts another one.
async fn introduce(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    of: Realm,
    now: i64,
) -> Result<Secret, Error> {
    let roles = match of {
        Realm::Etcd => [Role::Etcd].as_slice(),
        Realm::Ledger => &[Role::Node, Role::Coordinator],
    };
    let mut former = String::new();
    for role in roles {
        if former.is_empty()
            && let Some(secret) = mounted(client, secrets, facts, *role, "").await?
        {
            former = text(&secret, "ca.crt");
        }
    }
    if of == Realm::Ledger {
        // If an issuer signed before, cert-manager still writes its certificates into the same
        // secrets. Deleting the requests stops that.
        for (_, holder, _) in facts.holders(of) {
            let (api, name) = (cert_manager(client, facts), &holder.name);
            let asked = match api.get(name).await {
                // Without cert-manager the kind does not exist. That is not the error of a missing
                // object.
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                asked => asked.trying(|| format!("reading certificate {name}"))?,
            };
            if is_ours(&asked, &facts.cluster) {
                let deleted = api.delete(name, &DeleteParams::default()).await.map(drop);
                gone_is_fine(deleted).trying(|| format!("deleting certificate {name}"))?;
            }
        }
    }
    let pair = certificates::authority(&subject(facts, of), now)?;
    let mut files = BTreeMap::from([("tls.crt".to_owned(), pair.certificate), ("tls.key".to_owned(), pair.key)]);
    let stage = (!former.is_empty()).then(|| (STAGE.to_owned(), Stage::Believed.name().to_owned()));
    if stage.is_some() {
        files.insert(FORMER.to_owned(), former);
    }
    let name = facts.authority(of);
    let mut secret = secret_of(&name, &facts.cluster, files);
    secret.annotations_mut().insert(ENDS.to_owned(), pair.ends.to_string());
    secret.annotations_mut().extend(stage);
    secrets.create(&PostParams::default(), &secret).await.trying(|| format!("creating secret {name}"))
}

/// Keeps showing the certificate that is already shown, together with the authorities that are
/// trusted now. `false` if there is none.
async fn keep(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    (of, role, holder, name): (Realm, Option<Role>, &Holder, &str),
    believed: &str,
) -> Result<bool, Error> {
    let read = async |name: &str| secrets.get_opt(name).await.trying(|| format!("reading secret {name}"));
    let own = read(name).await?;
    check_ours("Secret", own.as_ref(), &facts.cluster)?;
    if own.as_ref().is_some_and(|secret| text(secret, "ca.crt") == believed) {
        return Ok(true);
    }
    let shown = match (own, role) {
        (Some(secret), _) => Some(secret),
        // Before etcd had an authority of its own, coordinators showed it their general
        // certificates.
        (None, Some(role @ Role::Coordinator)) if of == Realm::Etcd => {
            read(&facts.tls_secrets(role).into_iter().next().unwrap_or_default()).await?
        }
        (None, Some(role)) => mounted(client, secrets, facts, role, &holder.name).await?,
        (None, None) => None,
    };
    let Some(shown) = shown else { return Ok(false) };
    let mut files = BTreeMap::from(["tls.crt", "tls.key"].map(|file| (file.to_owned(), text(&shown, file))));
    files.insert("ca.crt".to_owned(), believed.to_owned());
    let mut secret = secret_of(name, &facts.cluster, files);
    // The certificate is not of this authority: the next stage replaces it.
    secret.annotations_mut().extend([ENDS, HOSTS, ROLE].map(|name| (name.to_owned(), String::new())));
    let applied = secrets.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret)).await;
    applied.map(|_| true).trying(|| format!("applying secret {name}"))
}

/// The secret with the general certificate of the pod `own`, as pods of this role mount it. If they
/// mount none for that pod, the first one that they mount; `None` if there are no pods. Pods trust
/// the authority in that secret.
async fn mounted(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    role: Role,
    own: &str,
) -> Result<Option<Secret>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &facts.namespace());
    let selector = ListParams::default().labels(&selector_of(&facts.name()));
    let pods = pods.list(&selector).await.trying(|| "listing pods".to_owned())?;
    let names = facts.pods(role);
    let mounted = |pod: Pod| {
        let volumes = pod.spec?.volumes?;
        let volume = volumes.into_iter().find(|volume| volume.name == "tls")?;
        let shared = volume.secret.and_then(|secret| secret.secret_name);
        shared.or_else(|| secret_of_pod(volume.projected?.sources?, own))
    };
    let Some(name) = pods.items.into_iter().filter(|pod| names.contains(&pod.name_any())).find_map(mounted) else {
        return Ok(None);
    };
    secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))
}

/// Among the secrets in the volume of a role's certificates: that of this pod, or else the first.
fn secret_of_pod(sources: Vec<VolumeProjection>, pod: &str) -> Option<String> {
    let mut secrets: Vec<_> = sources.into_iter().filter_map(|source| source.secret).collect();
    let is_own = |secret: &SecretProjection| {
        secret.items.iter().flatten().any(|item| item.path.rsplitn(3, '.').last() == Some(pod))
    };
    let own = secrets.iter().position(is_own).unwrap_or(0);
    (own < secrets.len()).then(|| secrets.swap_remove(own).name)
}

/// The authority's subject, different for each authority.
fn subject(facts: &Facts, of: Realm) -> String {
    match of {
        Realm::Ledger => facts.name(),
        Realm::Etcd => format!("etcd of {}", facts.name()),
    }
}
