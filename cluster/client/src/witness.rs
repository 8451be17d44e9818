//! The stream of a member whose cosigners no coordinator can reach.

use coppice_proto::v1;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::Status;

use crate::{Client, Error, stream::Stream};

impl Client {
    /// Opens the stream on which a coordinator asks for cosignatures. `name` is the name in the
    /// addresses of the caller's cosigners. `answers` carries what is answered, by the numbers of
    /// the requests. A message with number 0 only shows that the stream is alive.
    ///
    /// The call is not repeated: its caller opens another stream after a pause.
    pub async fn witness(
        &self,
        name: &str,
        answers: mpsc::Receiver<v1::WitnessAnswer>,
    ) -> Result<Stream<v1::WitnessRequest>, Error> {
        let first = v1::WitnessAnswer { name: name.to_owned(), ..v1::WitnessAnswer::default() };
        let sent = tokio_stream::once(first).chain(ReceiverStream::new(answers));
        let mut pick = self.routes.pick();
        let opened = match timeout(self.patience.attempt, pick.ledger.witness(sent)).await {
            Ok(opened) => opened,
            Err(_) => Err(Status::deadline_exceeded("no stream in time")),
        };
        let opened = opened.inspect_err(|_| self.routes.failed(&pick))?;
        Ok(Stream::new(opened.into_inner(), Box::new(|_| Ok(())), self.patience.attempt))
    }
}
