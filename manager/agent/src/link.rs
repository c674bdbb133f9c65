//! The connection to the scheduler. It is made anew whenever it ends, with a pause that grows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_node::aside;
use aliquot_proto::agent::v1::agents_client::AgentsClient;
use aliquot_proto::agent::v1::{LEADER, NodeMessage, SchedulerMessage};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tracing::{info, warn};

use crate::address::local_address;
use crate::identity::{self, LinkError};
use crate::settings::{Config, Source};

const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause. It is well below the time after which the scheduler gives a silent node nothing new.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Minimum time between two log lines about the same trouble.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);
/// Minimum age of a connection at which a certificate is renewed, however old the certificate seems by this machine's
/// clock.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);
/// Maximum messages that wait for a slow connection. If there are more, the connection is given up.
pub(crate) const MESSAGES_MAX: usize = 1024;
/// Maximum size of a message, which can hold a job's description and environment.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A connection that takes messages. It is closed when this is dropped.
pub(crate) struct Link {
    /// Takes messages to the scheduler.
    pub(crate) messages: mpsc::Sender<NodeMessage>,
    /// A second connection for the users' data, which may be much, so that it does not delay heartbeats.
    pub(crate) bulk: Channel,
    /// The address of this machine on the way to the scheduler, for other nodes.
    pub(crate) local_address: Option<String>,
}

/// An event of the connection.
pub(crate) enum LinkEvent {
    /// The connection is there, and takes messages.
    Up(Link),
    /// The scheduler has sent a message.
    Message(Box<SchedulerMessage>),
    /// The connection is gone.
    Down,
}

/// Keeps up the connection until the receiver of `events` is gone.
pub(crate) async fn keep_up(config: Arc<Config>, events: mpsc::Sender<LinkEvent>) {
    let mut pause = PAUSE_MIN;
    let mut trouble = Trouble::default();
    let mut schedulers = Schedulers::new(config.schedulers.clone());
    while !events.is_closed() {
        let mut was_answered = false;
        let outcome = converse(&config, schedulers.now(), &events, &mut was_answered).await;
        if was_answered {
            (pause, trouble) = (PAUSE_MIN, Trouble::default());
            schedulers.succeeded();
        }
        if events.send(LinkEvent::Down).await.is_err() {
            return;
        }
        match outcome {
            // A new certificate is used at once.
            Ok(()) => continue,
            Err(error) => {
                trouble.note(&error);
                if !schedulers.failed(&error) {
                    continue;
                }
            }
        }
        tokio::time::sleep(with_jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The schedulers that may lead, which are tried in turn.
struct Schedulers {
    all: Vec<String>,
    /// The position of the scheduler to try next.
    turn: usize,
    /// The number of schedulers that have failed in a row.
    failed: usize,
    /// The leader, as named by a scheduler that stands by. It is tried first.
    leader: Option<String>,
}

impl Schedulers {
    fn new(all: Vec<String>) -> Schedulers {
        Schedulers { all, turn: 0, failed: 0, leader: None }
    }

    /// The scheduler to try.
    fn now(&self) -> &str {
        self.leader.as_deref().or(self.all.get(self.turn).map(String::as_str)).unwrap_or_default()
    }

    /// Notes that the scheduler that was tried has answered.
    fn succeeded(&mut self) {
        self.failed = 0;
    }

    /// Notes that the scheduler that was tried has failed. Returns whether all have, so that there should be a pause.
    fn failed(&mut self, error: &LinkError) -> bool {
        // A leader that was named is tried once, so that two schedulers that name each other are not tried for ever
        // without a pause.
        if let (LinkError::StandsBy { leader, .. }, None) = (error, &self.leader)
            && !leader.is_empty()
        {
            self.leader = Some(leader.clone());
            return false;
        }
        self.leader = None;
        self.turn = (self.turn + 1) % self.all.len().max(1);
        self.failed += 1;
        if self.failed < self.all.len() {
            return false;
        }
        self.failed = 0;
        true
    }
}

/// A random time between half of `pause` and `pause`, so that the nodes of a cluster do not come all at once.
fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause / 2 * u32::try_from(random).unwrap_or(0) / 1024
}

/// The troubles that were logged lately, and when each was.
#[derive(Default)]
struct Trouble(BTreeMap<String, Instant>);

impl Trouble {
    fn note(&mut self, error: &LinkError) {
        self.0.retain(|_, at| at.elapsed() < TROUBLE_EVERY);
        if let Entry::Vacant(new) = self.0.entry(error.to_string()) {
            warn!("{}; jobs run on as long as the lease does, and it is tried again", new.key());
            new.insert(Instant::now());
        }
    }
}

/// Serves one connection until it ends. It ends without an error if there is a new certificate.
async fn converse(
    config: &Config,
    scheduler: &str,
    events: &mpsc::Sender<LinkEvent>,
    was_answered: &mut bool,
) -> Result<(), LinkError> {
    let identity = identity::obtain(config, scheduler).await?;
    let channel = identity.connect(config, scheduler).await?;
    let (messages, to_send) = mpsc::channel(MESSAGES_MAX);
    let bulk = identity.connect_when_used(config, scheduler)?;
    let of = scheduler.to_owned();
    // The look-up of the scheduler's name may wait.
    let local_address = aside(move || local_address(&of)).await.ok().flatten();
    let link = Link { messages, bulk, local_address };
    // The scheduler may wait for the first message before it answers.
    if events.send(LinkEvent::Up(link)).await.is_err() {
        return Ok(());
    }
    let mut client = AgentsClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let ended = |status: tonic::Status| match std::error::Error::source(&status) {
        _ if status.metadata().contains_key(LEADER) => identity::stands_by(scheduler, &status),
        Some(_) => identity::unreachable(scheduler, &status),
        None => LinkError::Ended(format!("{}: {}", status.code(), status.message())),
    };
    let mut answers = client.session(ReceiverStream::new(to_send)).await.map_err(ended)?.into_inner();
    let renews = matches!(config.source, Source::Joined { .. });
    let mut renewal = Box::pin(tokio::time::sleep(identity.renew_in().max(RENEWAL_PAUSE)));
    loop {
        tokio::select! {
            answer = answers.message() => match answer.map_err(ended)? {
                Some(message) => {
                    if !*was_answered {
                        *was_answered = true;
                        info!(scheduler, "connected to the scheduler");
                    }
                    if events.send(LinkEvent::Message(Box::new(message))).await.is_err() {
                        return Ok(());
                    }
                }
                None => return Err(LinkError::Ended("it is ending, or another node has this one's certificate".into())),
            },
            () = &mut renewal, if renews => match identity::renew(config, scheduler, channel.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    warn!("the node's certificate is not renewed: {error}; it is tried again");
                    renewal = Box::pin(tokio::time::sleep(TROUBLE_EVERY));
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_stay_bounded() {
        let pauses: Vec<Duration> = (0..50).map(|_| with_jitter(Duration::from_millis(1000))).collect();
        assert!(pauses.iter().all(|pause| (500..=1000).contains(&pause.as_millis())), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    /// The schedulers that are tried in turn until there is a pause.
    fn tried(schedulers: &mut Schedulers, error: impl Fn(&str) -> LinkError) -> Vec<String> {
        let mut tried = Vec::new();
        loop {
            let now = schedulers.now().to_owned();
            let error = error(&now);
            tried.push(now);
            if schedulers.failed(&error) {
                return tried;
            }
        }
    }

    #[test]
    fn schedulers_are_tried_in_turn_and_a_named_leader_first() {
        let unreachable = |address: &str| LinkError::Unreachable { address: address.into(), why: String::new() };
        let of = |names: &[&str]| Schedulers::new(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(tried(&mut of(&["a"]), unreachable), ["a"]);
        let mut three = of(&["a", "b", "c"]);
        assert_eq!(tried(&mut three, unreachable), ["a", "b", "c"]);
        assert_eq!(tried(&mut three, unreachable), ["a", "b", "c"]);
        // The named leader may be one that is not in the configuration.
        let names = |address: &str| match address {
            "a" => LinkError::StandsBy { address: "a".into(), leader: "x".into() },
            _ => unreachable(address),
        };
        assert_eq!(tried(&mut of(&["a", "b"]), names), ["a", "x", "b"]);
        let stands_by = |address: &str| {
            let leader = if address == "a" { "b" } else { "a" };
            LinkError::StandsBy { address: address.into(), leader: leader.into() }
        };
        assert_eq!(tried(&mut of(&["a", "b"]), stands_by), ["a", "b", "b", "a"]);
    }

    #[test]
    fn the_leader_is_kept_that_has_answered() {
        let mut schedulers = Schedulers::new(vec!["a".to_owned(), "b".to_owned()]);
        let unreachable = LinkError::Unreachable { address: "a".into(), why: String::new() };
        assert!(!schedulers.failed(&unreachable));
        schedulers.succeeded();
        assert_eq!(schedulers.now(), "b");
        assert!(!schedulers.failed(&unreachable), "the other one is tried before there is a pause");
        assert_eq!(schedulers.now(), "a");
    }
}
