//! Anchors: has authorities that have no part in the ledger stamp the newest checkpoint, and keeps
//! their tokens in the root log (`docs/verification.md` section 19).
//!
//! Only the coordinator that leads does so, beside the commits: nothing waits for an authority. A
//! version waits for the header of an anchor as it waits for that of a prune. Where the log has
//! witnesses, a checkpoint is shown to authorities only after enough of them have cosigned it: an
//! authority stamps whatever it is shown, a fork too.
//!
//! While nothing is committed there are no anchors, but for a closing one: it stamps the versions
//! that were committed while the tokens of the one before travelled.
//!
//! A crash at any point loses tokens that are not in the log yet, and nothing else: the next leader
//! asks again.

mod authority;

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::bug::{Bug, planted};
use coppice_proto::status;
use coppice_timestamp::{Authority, QUERY_MEDIA_TYPE};
use coppice_types::Reason;
use coppice_verify::{
    anchor::{ALL_TOKENS_BYTES_MAX, Stamps, TOKEN_BYTES_MAX, TOKENS_MAX, Token},
    checkpoint::Checkpoint,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tonic::Status;

use self::authority::Stamper;
pub use self::authority::{OpenChannel, TimeLedger, Tsa};
use crate::{
    error::Error,
    groups::{
        links::Links,
        survey::Survey,
        wire::{self, View},
    },
    post::{self, Post},
    shown::Shown,
    write::{
        command::{AdminRequest, Command, Wanted},
        resources::Resources,
    },
};

/// The kind number of an anchor's header.
const KIND: u8 = 7;
/// How long the other authorities have once a quorum has answered.
const GRACE: Duration = Duration::from_millis(500);
/// How long an order waits for witnesses to cosign the newest checkpoint.
const COSIGN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an order may take in all.
const ORDER_TIMEOUT: Duration = Duration::from_secs(25);
/// Limit on the number of orders that wait.
const ORDERS_MAX: usize = 16;
/// The shortest time between two anchors.
pub const EVERY_MIN: Duration = Duration::from_millis(100);

/// Which authorities stamp, and how often.
#[derive(Clone, Debug)]
pub struct Anchoring {
    /// The authorities, none of which has a root in common with another.
    pub authorities: Vec<Tsa>,
    /// The time ledgers, which count as authorities, too.
    pub time_ledgers: Vec<TimeLedger>,
    /// The number of authorities that must stamp a checkpoint for an anchor.
    pub quorum: NonZeroUsize,
    /// The time from one anchor to the next.
    pub every: Duration,
    /// Whether only checkpoints that witnesses have cosigned are stamped.
    pub cosigned: bool,
    /// Whether checkpoints are stamped while nothing is committed, too.
    pub idle: bool,
}

impl Anchoring {
    /// Checks the settings before anything is started.
    ///
    /// # Errors
    /// If an authority stands twice, the quorum can't be reached, or there are too many.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |message: String| Err(Error::Options(message));
        let count = self.authorities.len() + self.time_ledgers.len();
        if count > TOKENS_MAX {
            return refuse(format!("there are {count} time-stamping authorities, at most {TOKENS_MAX}"));
        }
        if self.quorum.get() > count {
            return refuse(format!("{} of {count} time-stamping authorities can't be a quorum", self.quorum));
        }
        if self.every < EVERY_MIN {
            return refuse(format!("anchors are at least {} ms apart", EVERY_MIN.as_millis()));
        }
        for tsa in &self.authorities {
            let is_http = |url: reqwest::Url| ["http", "https"].contains(&url.scheme());
            if !reqwest::Url::parse(&tsa.url).is_ok_and(is_http) {
                return refuse(format!("{} is no http or https address of an authority", tsa.url));
            }
        }
        for (index, ledger) in self.time_ledgers.iter().enumerate() {
            if self.time_ledgers[..index].iter().any(|other| other.key.name() == ledger.key.name()) {
                return refuse(format!("time ledger {} stands twice", ledger.name));
            }
        }
        let authorities: Vec<Authority> = self.authorities.iter().map(|tsa| tsa.authority.clone()).collect();
        Authority::distinct(&authorities).map_err(|error| Error::Options(format!("time-stamping authorities: {error}")))
    }

    /// All authorities, in the order of their numbers.
    ///
    /// # Errors
    /// If the channel to a time ledger can't be made.
    pub fn stampers(&self) -> Result<Vec<Stamper>, Error> {
        let ledgers = self.time_ledgers.iter().cloned().map(Stamper::of_ledger);
        self.authorities.iter().cloned().map(Stamper::Tsa).map(Ok).chain(ledgers).collect()
    }
}

/// Posts to authorities over HTTP.
///
/// # Errors
/// If the HTTP client can't be created.
pub fn over_http() -> Result<Post, Error> {
    // A response has some bytes more than its token.
    let post = post::over_http(Some(QUERY_MEDIA_TYPE), TOKEN_BYTES_MAX);
    post.map_err(|error| Error::Options(format!("time-stamping authorities can't be asked: {error}")))
}

type Order = oneshot::Sender<Result<Bytes, Status>>;

/// Orders anchors from the task. Clones order from the same one.
#[derive(Clone, Debug)]
pub struct Orders(mpsc::Sender<Order>);

impl Orders {
    /// The channel for orders.
    pub fn channel() -> (Self, mpsc::Receiver<Order>) {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        (Self(sender), receiver)
    }

    /// Has the newest checkpoint stamped. Returns the header of the anchor.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum of authorities, or of witnesses; `PRECONDITION_FAILED` if a
    /// node does not know anchors.
    pub async fn now(&self) -> Result<Bytes, Status> {
        let (reply, receive) = oneshot::channel();
        let full =
            |_| status::refuse(Reason::ResourceExhausted, format!("{ORDERS_MAX} orders of anchors wait already"));
        self.0.try_send(reply).map_err(full)?;
        match timeout(ORDER_TIMEOUT, receive).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(status::refuse(Reason::Unavailable, "the coordinator stops")),
            Err(_) => Err(status::refuse(Reason::Unavailable, "no anchor was made in time; one may still follow")),
        }
    }
}

/// The parts that anchoring needs.
#[derive(Debug)]
pub struct Means {
    pub resources: Resources,
    pub links: Arc<Links>,
    pub shown: Arc<Shown>,
    pub commands: mpsc::Sender<Command>,
}

/// Makes anchors while this coordinator leads. Ends when the command channel closes.
pub async fn run(
    means: Means,
    post: Post,
    (anchoring, stampers): (Anchoring, Vec<Stamper>),
    mut orders: mpsc::Receiver<Order>,
) {
    for stamper in &stampers {
        means.resources.metrics.has_authority(&stamper.name());
    }
    let task = Task { means, post, anchoring, stampers };
    let mut look_at = Instant::now() + task.anchoring.every;
    loop {
        let order = tokio::select! {
            biased;
            () = task.means.commands.closed() => return,
            Some(order) = orders.recv() => Some(order),
            () = sleep_until(look_at) => None,
        };
        // Nobody waits for it any more.
        if order.as_ref().is_some_and(Order::is_closed) {
            continue;
        }
        if order.is_none() {
            look_at = Instant::now() + task.anchoring.every;
        }
        if !task.means.shown.leads() {
            task.means.shown.anchors.is_due(false);
            let refusal = || status::refuse(Reason::NotLeader, "another coordinator leads; nothing was stamped");
            order.map(|order| order.send(Err(refusal())));
            continue;
        }
        let made = task.make(order.is_some()).await;
        if let Err(error) = &made {
            tracing::warn!(%error, "no anchor was made");
        }
        if let Some(order) = order {
            let none = || status::refuse(Reason::Internal, "an order makes an anchor or fails");
            let _ = order.send(made.and_then(|header| header.ok_or_else(none)));
        }
    }
}

struct Task {
    means: Means,
    post: Post,
    anchoring: Anchoring,
    stampers: Vec<Stamper>,
}

impl Task {
    /// Makes an anchor if one is due or ordered, and returns its header.
    async fn make(&self, ordered: bool) -> Result<Option<Bytes>, Status> {
        let Resources { log, .. } = &self.means.resources;
        let view = log.view().await?;
        self.note(&view);
        let due = ordered || self.is_due(&view, view.log_size);
        self.means.shown.anchors.is_due(due);
        if !due {
            return Ok(None);
        }
        let Some(checkpoint) = self.checkpoint(&view, ordered).await? else { return Ok(None) };
        if !ordered && !self.is_due(&view, checkpoint.size) {
            return Ok(None);
        }
        if view.anchor.is_none() {
            // A node that does not know anchors would stop at the first one, so later ones need no
            // survey, and a node that is down holds none of them up.
            Survey::of(&self.means.links, self.means.resources.limits.admin_timeout).await.check_kind(KIND)?;
        }
        let tokens = self.tokens(&checkpoint).await?;
        let checkpoint = if planted(Bug::AnchorNamesNewer) {
            self.checkpoint(&log.view().await?, ordered).await?.unwrap_or(checkpoint)
        } else {
            checkpoint
        };
        let stamps = Stamps { size: checkpoint.size, root: checkpoint.root, tokens };
        let header = self.append(stamps).await?;
        self.means.shown.anchors.anchored(Some(Instant::now()));
        self.means.shown.anchors.is_due(false);
        Ok(Some(header))
    }

    /// Learns the age of the newest anchor, which another leader may have made.
    fn note(&self, view: &View) {
        let now_ms = self.means.resources.clock.wall_ms();
        let age = |place: &wire::AnchorPlace| Duration::from_millis(now_ms.saturating_sub(place.timestamp_ms));
        let at = view.anchor.as_ref().and_then(|place| Instant::now().checked_sub(age(place)));
        self.means.shown.anchors.anchored(at);
    }

    /// Whether an anchor over the first `size` entries says more than the newest one.
    fn is_due(&self, view: &View, size: u64) -> bool {
        let Some(newest) = &view.anchor else { return size > 0 };
        let behind = size > newest.sequence + 1;
        // Entries between the stamped ones and the anchor are in no stamped log yet.
        let between = newest.sequence > newest.stamped_size;
        size > newest.stamped_size && (behind || between || self.anchoring.idle)
    }

    /// The checkpoint that is to be stamped. `None` if witnesses have cosigned none yet.
    async fn checkpoint(&self, view: &Arc<View>, ordered: bool) -> Result<Option<Checkpoint>, Status> {
        let note = if self.anchoring.cosigned {
            let mut cosigned = self.means.shown.cosigned.subscribe();
            if ordered {
                let covers = timeout_at(
                    Instant::now() + COSIGN_TIMEOUT,
                    cosigned.wait_for(|it| it.as_ref().is_some_and(|it| it.size >= view.log_size)),
                );
                let late = "witnesses have not cosigned the newest checkpoint: nothing was stamped";
                covers.await.map_err(|_| status::refuse(Reason::Unavailable, late))?.ok();
            }
            cosigned.borrow_and_update().as_ref().map(|cosigned| cosigned.note.clone())
        } else {
            Some(self.means.resources.log.signed(view.clone()).await?.1)
        };
        let claimed = |note: Bytes| Checkpoint::claimed(&note).map_err(|_| wire::broken("checkpoint"));
        note.map(claimed).transpose()
    }

    /// Asks all authorities at once. Returns their tokens, in the order of the settings, once a
    /// quorum has answered and the others have had their time.
    async fn tokens(&self, checkpoint: &Checkpoint) -> Result<Vec<Token>, Status> {
        let Resources { metrics, random, .. } = &self.means.resources;
        let mut asked = JoinSet::new();
        for (index, stamper) in self.stampers.iter().cloned().enumerate() {
            let (post, random, checkpoint) = (self.post.clone(), random.clone(), checkpoint.clone());
            asked.spawn(async move { (index, stamper.stamp(&post, &random, &checkpoint).await) });
        }
        let quorum = self.anchoring.quorum.get();
        let mut silent: BTreeSet<usize> = (0..self.stampers.len()).collect();
        let mut tokens = Vec::new();
        let mut last = String::new();
        let mut until = Instant::now() + authority::TIMEOUT + GRACE;
        while let Ok(Some(answered)) = timeout_at(until, asked.join_next()).await {
            // A task that panicked has no token.
            let Ok((index, answer)) = answered else { continue };
            silent.remove(&index);
            let name = self.stampers[index].name();
            metrics.asked_authority(&name, answer.is_ok());
            match answer {
                Ok(token) => {
                    tokens.push((index, token));
                    if tokens.len() == quorum {
                        until = until.min(Instant::now() + GRACE);
                    }
                }
                Err(failure) => {
                    tracing::warn!(authority = name, %failure, "an authority has not stamped a checkpoint");
                    last = format!("; {name}: {failure}");
                }
            }
        }
        for index in silent {
            let name = self.stampers[index].name();
            metrics.asked_authority(&name, false);
            tracing::warn!(authority = name, "an authority has not answered in time");
            last = format!("; {name}: no answer in time");
        }
        tokens.sort_by_key(|(index, _)| *index);
        let mut bytes = 0;
        let fit = tokens.into_iter().map(|(_, token)| token).take_while(|token| {
            bytes += token.bytes.len();
            bytes <= ALL_TOKENS_BYTES_MAX
        });
        let tokens: Vec<Token> = fit.collect();
        if tokens.len() < quorum {
            let message = format!("{} of {quorum} time-stamping authorities have stamped{last}", tokens.len());
            return Err(status::refuse(Reason::Unavailable, message));
        }
        Ok(tokens)
    }

    async fn append(&self, stamps: Stamps) -> Result<Bytes, Status> {
        let (reply, receive) = oneshot::channel();
        let request = AdminRequest {
            wanted: Wanted::Anchor(Arc::new(stamps)),
            principal: String::new(),
            reason: String::new(),
            expected_head: None,
            reply,
        };
        let ordered = async {
            let stops = || status::refuse(Reason::Unavailable, "the coordinator stops");
            self.means.commands.send(Command::Admin(request)).await.map_err(|_| stops())?;
            receive.await.map_err(|_| stops())?
        };
        let unknown = || status::refuse(Reason::Unavailable, "it is not known whether the anchor was made");
        let answer = timeout(self.means.resources.limits.admin_timeout, ordered).await;
        Ok(answer.unwrap_or_else(|_| Err(unknown()))?.header)
    }
}
