//! Batches of queries of a simulated client, which its library verifies.

use std::collections::BTreeSet;

use bytes::Bytes;
use coppice_client::{Error, KeyState, QueryAnswer};
use coppice_env::Rng;
use coppice_proto::v1::{self, moment::Moment};
use tokio::time::timeout;

use super::{Client, PATIENCE, stamp};
use crate::history;

impl Client {
    /// Asks for keys at head and at versions that were seen, and for their states since then. A
    /// client without a library reads keys at one version.
    pub(super) async fn read_batch(&mut self) {
        let Some(library) = &self.library else { return self.read_keys().await };
        let client = library.client();
        let request = self.queries();
        let queries = request.queries.clone();
        let begin = self.scribe.now();
        let mut answers = Vec::new();
        let call = async {
            let mut stream = client.query_batch(request).await?;
            while let Some(part) = stream.next().await? {
                answers.extend(part.answers);
            }
            Ok::<(), Error>(())
        };
        if let Ok(Err(error)) = timeout(PATIENCE, call).await {
            self.told_of_read(&error);
        }
        // What came before a failure holds.
        self.judge_answers(begin, &queries, answers);
    }

    fn queries(&mut self) -> v1::QueryBatchRequest {
        let count = 1 + self.rng.below(3);
        let queries = (0..count).map(|_| self.query()).collect();
        v1::QueryBatchRequest { queries, want_proof: true }
    }

    fn query(&mut self) -> v1::Query {
        let count = 1 + self.rng.below(4);
        let keys: BTreeSet<Bytes> = (0..count).map(|_| self.shape.key(&mut self.rng).into()).collect();
        let at = if self.rng.chance(600) { self.pick(&self.stamps.clone()) } else { None };
        let back = self.rng.below(6);
        let since = at.filter(|_| self.rng.chance(500)).map(|at| at.version.0.saturating_sub(back));
        let moment = |version| v1::Moment { moment: Some(Moment::Version(version)) };
        let limit = since.map_or(0, |_| self.rng.below(4) as u32);
        v1::Query {
            keys: keys.into_iter().collect(),
            at: at.map(|at| moment(at.version.0)),
            since: since.map(moment),
            limit,
        }
    }

    fn judge_answers(&mut self, begin: history::Moment, queries: &[v1::Query], answers: Vec<QueryAnswer>) {
        for answer in answers {
            let Ok(KeyState { record, read_at, .. }) = answer.outcome else { continue };
            let query = &queries[answer.query];
            let at = stamp(Some(read_at));
            if query.at.is_none() {
                self.learn(at);
            }
            let asked = query.at.as_ref().map(|_| at);
            let found = record.found.then(|| (record.value, stamp(record.last_changed)));
            let records = vec![(query.keys[answer.key].clone(), found)];
            self.look(begin, false, history::Seen::Records { asked, at, records, range: None });
        }
    }
}
