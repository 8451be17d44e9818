//! Which request is answered by what.

use std::sync::Arc;

use axum::{extract::Request, response::Response};
use coppice_proto::{rest::Resource, v1::ledger_server::Ledger};
use tonic::Status;

use crate::{
    ask::{self, Ask},
    body, problem,
};

/// The description of the API, in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// Answers requests by calls of a ledger.
#[derive(Debug)]
pub(crate) struct Api<L> {
    pub(crate) ledger: L,
    /// Most bytes of a request's body.
    pub(crate) body_bytes_max: usize,
}

/// The answer to a request, or why there is none.
pub(crate) type Answer = Result<Response, Status>;

impl<L: Ledger> Api<L> {
    /// Answers a request.
    pub(crate) async fn answer(self: Arc<Self>, request: Request) -> Answer {
        let (head, body) = request.into_parts();
        let ask = Ask::new(&head);
        let resource = Resource::at(head.uri.path()).ok_or_else(problem::no_resource)?;
        if !resource.methods().iter().any(|(method, _)| *method == head.method) {
            return Err(problem::no_method(resource));
        }
        match resource {
            Resource::Record(key) => {
                let key = ask::key(key)?;
                match head.method.as_str() {
                    "GET" => self.get(&ask, key).await,
                    "PUT" => self.put(&ask, key, body).await,
                    _ => self.delete(&ask, key).await,
                }
            }
            Resource::History(key) => self.history(&ask, ask::key(key)?).await,
            Resource::Session(id) => self.open_session(&ask, id).await,
            Resource::Records => self.range(&ask).await,
            Resource::Diff => self.diff(&ask).await,
            Resource::Batches => self.batch(&ask, body).await,
            Resource::Head => self.head(&ask).await,
            Resource::Log => self.log(&ask).await,
            Resource::Checkpoint => self.checkpoint(&ask).await,
            Resource::Status => self.status(&ask).await,
            Resource::Watch => self.watch(&ask).await,
            Resource::OpenApi => {
                ask.query(&[])?;
                Ok(body::whole(body::JSON, OPENAPI.into()))
            }
        }
    }
}
