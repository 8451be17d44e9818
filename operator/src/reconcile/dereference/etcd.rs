//! The authority of a managed etcd.
//!
//! etcd asks for no role: it lets in whomever its authority signed for. So that authority signs for its members and for the coordinators alone, and a
//! client's certificate is refused even where network policies are not enforced.
//!
//! A running etcd believes the authorities that it read at its start. Another authority (the first of its own, where members believed that of the whole
//! cluster; a new one, where the secret of the former was deleted) therefore comes in stages, and none begins before every pod was made in the one
//! before it ([`advance`]): first both are believed, then everybody shows certificates of the new one, then the former is believed no more. In each of
//! them, what any pod shows is believed by all, be they of this stage or of the one before. The stage stands with the authority, so an operator that
//! was ended goes on where it was.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Client, ResourceExt,
    api::{Api, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Authority, ENDS, HOSTS, ROLE, pair_of, renew, secret_of, text};
use crate::{
    certificates,
    error::{Error, Trying},
    reconcile::build::{Facts, MANAGER, Role, selector_of},
};

/// The annotation of the authority's secret with its stage; the last one has none.
const STAGE: &str = "coppice.dev/stage";
/// The authority that was believed before.
const FORMER: &str = "former.crt";

/// How far an authority has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It and the former one are believed; certificates of the former one are shown.
    Believed,
    /// Both are believed; its own certificates are shown.
    Shown,
    /// It alone is believed.
    Alone,
}

impl Stage {
    fn of(authority: &Secret) -> Self {
        match authority.annotations().get(STAGE).map(String::as_str) {
            Some("believed") => Self::Believed,
            Some("shown") => Self::Shown,
            _ => Self::Alone,
        }
    }

    /// What its pods are being replaced for.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Believed => "etcd and coordinators come to believe etcd's new authority",
            Self::Shown => "etcd and coordinators come to show certificates of etcd's new authority",
            Self::Alone => "etcd comes to believe its own authority alone",
        }
    }
}

/// Sees to the certificates of members and coordinators.
pub(super) async fn certificates(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    now: i64,
) -> Result<Stage, Error> {
    let name = facts.etcd_authority();
    let found = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))?;
    let secret = match found {
        Some(secret) => secret,
        None => introduce(client, secrets, facts, now).await?,
    };
    let stage = Stage::of(&secret);
    let mut authority = Authority::of(subject(facts), pair_of(&name, &secret)?);
    if stage != Stage::Alone {
        authority.believed.insert_str(0, &text(&secret, FORMER));
    }
    for (role, holder, name) in facts.etcd_holders() {
        if stage != Stage::Believed || !keep(client, secrets, facts, (role, &name), &authority.believed).await? {
            renew(secrets, facts, (&holder, &name), &authority, now).await?;
        }
    }
    Ok(stage)
}

/// Goes on to the next stage: every pod was made in this one.
///
/// # Errors
/// If the API server doesn't take it.
pub async fn advance(client: &Client, facts: &Facts, stage: Stage) -> Result<Stage, Error> {
    let (next, patch) = match stage {
        Stage::Believed => (Stage::Shown, json!({ "metadata": { "annotations": { STAGE: "shown" } } })),
        Stage::Shown | Stage::Alone => {
            (Stage::Alone, json!({ "metadata": { "annotations": { STAGE: null } }, "data": { FORMER: null } }))
        }
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &facts.namespace());
    let name = facts.etcd_authority();
    let patched = secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(|_| next).trying(|| format!("writing the stage of secret {name}"))
}

/// Makes the authority; it is alone from the beginning only if no member believes another one.
async fn introduce(client: &Client, secrets: &Api<Secret>, facts: &Facts, now: i64) -> Result<Secret, Error> {
    let former = match of_members(client, secrets, facts).await? {
        Some(secret) => text(&secret, "ca.crt"),
        None => String::new(),
    };
    let pair = certificates::authority(&subject(facts), now)?;
    let mut files = BTreeMap::from([("tls.crt".to_owned(), pair.certificate), ("tls.key".to_owned(), pair.key)]);
    let stage = (!former.is_empty()).then(|| (STAGE.to_owned(), "believed".to_owned()));
    if stage.is_some() {
        files.insert(FORMER.to_owned(), former);
    }
    let name = facts.etcd_authority();
    let mut secret = secret_of(&name, &facts.cluster, files);
    secret.annotations_mut().insert(ENDS.to_owned(), pair.ends.to_string());
    secret.annotations_mut().extend(stage);
    secrets.create(&PostParams::default(), &secret).await.trying(|| format!("creating secret {name}"))
}

/// The certificate that is shown already goes on being shown, beside the authorities that are believed now. `false` if there is none.
async fn keep(
    client: &Client,
    secrets: &Api<Secret>,
    facts: &Facts,
    (role, name): (Role, &str),
    believed: &str,
) -> Result<bool, Error> {
    let read = async |name: &str| secrets.get_opt(name).await.trying(|| format!("reading secret {name}"));
    let own = read(name).await?;
    if own.as_ref().is_some_and(|secret| text(secret, "ca.crt") == believed) {
        return Ok(true);
    }
    let shown = match (own, role) {
        (Some(secret), _) => Some(secret),
        (None, Role::Etcd) => of_members(client, secrets, facts).await?,
        // Before there was an authority for etcd, coordinators showed etcd what they show everybody.
        (None, _) => read(&facts.tls_secret(role).unwrap_or_default()).await?,
    };
    let Some(shown) = shown else { return Ok(false) };
    let mut files = BTreeMap::from(["tls.crt", "tls.key"].map(|file| (file.to_owned(), text(&shown, file))));
    files.insert("ca.crt".to_owned(), believed.to_owned());
    let mut secret = secret_of(name, &facts.cluster, files);
    // It is not of this authority: the next stage makes one that is.
    secret.annotations_mut().extend([ENDS, HOSTS, ROLE].map(|name| (name.to_owned(), String::new())));
    let applied = secrets.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret)).await;
    applied.map(|_| true).trying(|| format!("applying secret {name}"))
}

/// The secret that the members mount, if there are any: they believe the authority in it.
async fn of_members(client: &Client, secrets: &Api<Secret>, facts: &Facts) -> Result<Option<Secret>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &facts.namespace());
    let selector = ListParams::default().labels(&selector_of(&facts.name()));
    let pods = pods.list(&selector).await.trying(|| "listing pods".to_owned())?;
    let names = facts.pods(Role::Etcd);
    let mounted = |pod: Pod| {
        let volumes = pod.spec?.volumes?;
        volumes.into_iter().find(|volume| volume.name == "tls")?.secret?.secret_name
    };
    let Some(name) = pods.items.into_iter().filter(|pod| names.contains(&pod.name_any())).find_map(mounted) else {
        return Ok(None);
    };
    secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))
}

/// Unlike that of the cluster's authority.
fn subject(facts: &Facts) -> String {
    format!("etcd of {}", facts.name())
}
