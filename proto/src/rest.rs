//! The resources of the HTTP API, and the method of the gRPC API that each request stands for.
//!
//! This is the one table of them. Whatever judges, counts or measures a request by its method uses
//! [`called`], and so does the code that answers it.

use tonic::codegen::http::Method;

/// The beginning of every path of the HTTP API. No path of a gRPC method begins like this.
pub const PREFIX: &str = "/v1/";

/// Stands for a request that has no answer: a caller learns from it what reflection would tell.
const DESCRIBE: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// What a path of the HTTP API names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The record of a key. The key is percent-encoded, as in the path.
    Record(&'a str),
    /// The changes of a key.
    History(&'a str),
    /// A session, by its id in hex.
    Session(&'a str),
    /// A range of records.
    Records,
    /// The difference between two versions.
    Diff,
    /// The place where batches are sent.
    Batches,
    /// The newest version.
    Head,
    /// Entries of the root log.
    Log,
    /// The newest signed checkpoint.
    Checkpoint,
    /// The state of the cluster.
    Status,
    /// Entries of the root log as they come.
    Watch,
    /// The description of this API.
    OpenApi,
}

impl<'a> Resource<'a> {
    /// Every resource, by its path as the description of the API writes it.
    pub const ALL: [(&'static str, Resource<'static>); 12] = [
        ("/v1/records/{key}", Resource::Record("")),
        ("/v1/records/{key}/history", Resource::History("")),
        ("/v1/sessions/{id}", Resource::Session("")),
        ("/v1/records", Resource::Records),
        ("/v1/diff", Resource::Diff),
        ("/v1/batches", Resource::Batches),
        ("/v1/head", Resource::Head),
        ("/v1/log", Resource::Log),
        ("/v1/checkpoint", Resource::Checkpoint),
        ("/v1/status", Resource::Status),
        ("/v1/watch", Resource::Watch),
        ("/v1/openapi.json", Resource::OpenApi),
    ];

    /// The resource at a path; `None` if there is none. Each resource has one path.
    #[must_use]
    pub fn at(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix(PREFIX)?;
        if let Some(key) = rest.strip_prefix("records/") {
            return match key.split_once('/') {
                None => Some(Self::Record(key)),
                Some((key, "history")) => Some(Self::History(key)),
                Some(_) => None,
            };
        }
        if let Some(id) = rest.strip_prefix("sessions/") {
            return (!id.contains('/')).then_some(Self::Session(id));
        }
        Self::ALL.iter().skip(3).find(|(known, _)| *known == path).map(|(_, resource)| *resource)
    }

    /// The HTTP methods of the resource, and the gRPC method that each stands for.
    #[must_use]
    pub fn methods(self) -> &'static [(Method, &'static str)] {
        match self {
            Self::Record(_) => &[
                (Method::GET, "/coppice.v1.Ledger/Get"),
                (Method::PUT, "/coppice.v1.Ledger/Commit"),
                (Method::DELETE, "/coppice.v1.Ledger/Commit"),
            ],
            Self::History(_) => &[(Method::GET, "/coppice.v1.Ledger/History")],
            Self::Session(_) => &[(Method::PUT, "/coppice.v1.Ledger/OpenSession")],
            Self::Records => &[(Method::GET, "/coppice.v1.Ledger/Range")],
            Self::Diff => &[(Method::GET, "/coppice.v1.Ledger/Diff")],
            Self::Batches => &[(Method::POST, "/coppice.v1.Ledger/Commit")],
            Self::Head => &[(Method::GET, "/coppice.v1.Ledger/Head")],
            Self::Log | Self::Watch => &[(Method::GET, "/coppice.v1.Ledger/WatchHeads")],
            Self::Checkpoint => &[(Method::GET, "/coppice.v1.Ledger/GetCheckpoint")],
            Self::Status => &[(Method::GET, "/coppice.v1.Ledger/Status")],
            Self::OpenApi => &[(Method::GET, DESCRIBE)],
        }
    }
}

/// Whether a path belongs to the HTTP API.
#[must_use]
pub fn is_rest(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// The path of the gRPC method that a request calls: its own path, or the method that it stands
/// for.
#[must_use]
pub fn called<'a>(method: &Method, path: &'a str) -> &'a str {
    if !is_rest(path) {
        return path;
    }
    let methods = Resource::at(path).map_or(&[][..], Resource::methods);
    methods.iter().find(|(known, _)| known == method).map_or(DESCRIBE, |(_, called)| *called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_has_one_path() {
        assert_eq!(Resource::at("/v1/records/a%2Fb"), Some(Resource::Record("a%2Fb")));
        assert_eq!(Resource::at("/v1/records/"), Some(Resource::Record("")), "refused where keys are read");
        assert_eq!(Resource::at("/v1/records/history"), Some(Resource::Record("history")));
        assert_eq!(Resource::at("/v1/records/k/history"), Some(Resource::History("k")));
        assert_eq!(Resource::at("/v1/sessions/00"), Some(Resource::Session("00")));
        for (path, resource) in &Resource::ALL[3..] {
            assert_eq!(Resource::at(path), Some(*resource));
        }
        for other in [
            "/v1/",
            "/v1/records/{key}/",
            "/v1/records/a/b",
            "/v1/sessions",
            "/v1/sessions/a/b",
            "/v1/records/a/history/",
            "/v1/records//history/x",
            "/v1//head",
            "/v1/head/",
            "/v1/Head",
            "/v1/%68ead",
            "/v1/../v1/head",
            "/v2/head",
        ] {
            assert_eq!(Resource::at(other), None, "{other}");
        }
    }

    #[test]
    fn a_request_is_judged_by_what_it_does_and_grpc_by_its_own_path() {
        assert_eq!(called(&Method::PUT, "/v1/records/k"), "/coppice.v1.Ledger/Commit");
        assert_eq!(called(&Method::GET, "/v1/records/k"), "/coppice.v1.Ledger/Get");
        assert_eq!(called(&Method::POST, "/v1/batches"), "/coppice.v1.Ledger/Commit");
        for (method, path) in [(Method::HEAD, "/v1/records/k"), (Method::GET, "/v1/nothing"), (Method::PUT, "/v1/head")]
        {
            assert_eq!(called(&method, path), DESCRIBE, "{method} {path}");
        }
        let own = "/coppice.v1.Ledger/Get";
        assert_eq!(called(&Method::POST, own), own);
    }
}
