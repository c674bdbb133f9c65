//! Simulated nodes: they join a scheduler, hold leases and report the course of jobs, but run no programs. Thousands of
//! them fit into one process, and they can report any version.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_proto::agent::v1::agents_client::AgentsClient;
use aliquot_proto::agent::v1::node_message::Message as Said;
use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{
    Amounts, Device, EndReason, Ended, Generation, Heartbeat, JoinRequest, NodeMessage, NodeSpec, Outcome, Report,
    Running, SchedulerMessage, Started, outcome,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Time before a broken connection is made anew, with another scheduler if there are several.
const PAUSE: Duration = Duration::from_millis(100);
/// The name in the schedulers' certificates.
const SERVER_NAME: &str = "scheduler.aliquot.internal";

type Number = (u64, u64);

/// Simulated nodes, which run until this is dropped.
pub struct PlayedNodes {
    // Dropping the runtime ends all nodes.
    _runtime: Runtime,
    heard: Arc<Heard>,
}

/// The commands that the nodes have received.
#[derive(Default)]
struct Heard {
    starts: Mutex<Vec<(String, Instant)>>,
}

/// A node with devices of 80 GiB each that supports everything in this version.
#[must_use]
pub fn spec_of_today(devices: usize) -> NodeSpec {
    let device = |number| Device {
        uuid: format!("GPU-{number}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 80 << 30,
        healthy: true,
        ..Device::default()
    };
    NodeSpec {
        version: "played".to_owned(),
        cpu_millis: 1_000_000,
        memory_bytes: 1 << 40,
        devices: (0..devices).map(device).collect(),
        address: "127.0.0.1".to_owned(),
        opens_streams: true,
        keeps_secrets: true,
        ..NodeSpec::default()
    }
}

impl PlayedNodes {
    /// Joins nodes with these names. Each has as many devices as `spec`. The token must be valid for all of them. Each
    /// job succeeds after `job_time`; `None`: it runs until it is stopped.
    ///
    /// # Panics
    /// If a node cannot join.
    #[must_use]
    pub fn join(
        addresses: &[String],
        token: &str,
        names: &[String],
        spec: &NodeSpec,
        job_time: Option<Duration>,
    ) -> PlayedNodes {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let heard = Arc::new(Heard::default());
        let token = Token::read(token);
        for name in names {
            let tls = runtime.block_on(token.join(&addresses[0], name));
            let node = PlayedNode {
                spec: own_devices(spec, name),
                session: unix_ms(),
                sequence: 0,
                handled: (0, 0),
                instances: BTreeMap::new(),
                job_time,
                heard: Arc::clone(&heard),
            };
            runtime.spawn(node.live(addresses.to_vec(), tls));
        }
        PlayedNodes { _runtime: runtime, heard }
    }

    /// When the last start came for a claim with a name that begins with `claim`; `None`: none came.
    #[must_use]
    pub fn start_of(&self, claim: &str) -> Option<Instant> {
        let starts = self.heard.starts.lock().expect("no node panics");
        starts.iter().rev().find(|(name, _)| name.starts_with(claim)).map(|(_, at)| *at)
    }

    /// The number of starts that came.
    #[must_use]
    pub fn start_count(&self) -> usize {
        self.heard.starts.lock().expect("no node panics").len()
    }
}

/// Gives the devices names that no other node's devices have.
fn own_devices(spec: &NodeSpec, node: &str) -> NodeSpec {
    let devices =
        spec.devices.iter().map(|device| Device { uuid: format!("{}-{node}", device.uuid), ..device.clone() });
    NodeSpec { devices: devices.collect(), ..spec.clone() }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A join token, as `aliquot-scheduler` prints it, split into its parts.
struct Token {
    secret: String,
    authority: String,
}

impl Token {
    fn read(text: &str) -> Token {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_start_matches("alq1.")).expect("a token");
        let token: serde_json::Value = serde_json::from_slice(&bytes).expect("a token");
        let word = |key: &str| token[key].as_str().expect("a token").to_owned();
        Token { secret: word("secret"), authority: word("authority") }
    }

    /// Joins, and answers the TLS configuration of the node's later connections.
    async fn join(&self, address: &str, node: &str) -> ClientTlsConfig {
        let key = KeyPair::generate().expect("a key");
        let request = CertificateParams::default().serialize_request(&key).expect("a request");
        let request = JoinRequest {
            secret: self.secret.clone(),
            node: node.to_owned(),
            certificate_request: request.pem().expect("a request"),
        };
        let tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority)).domain_name(SERVER_NAME);
        let channel = endpoint(address, tls.clone()).connect().await.expect("the scheduler listens");
        let joined = AgentsClient::new(channel).join(request).await;
        let joined = joined.unwrap_or_else(|status| panic!("{node} is not let in: {}", status.message())).into_inner();
        tls.identity(Identity::from_pem(joined.certificate, key.serialize_pem()))
    }
}

fn endpoint(address: &str, tls: ClientTlsConfig) -> Endpoint {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
    endpoint.tls_config(tls).expect("certificates").tcp_nodelay(true)
}

/// A job that was started and has not ended.
struct Instance {
    claim: String,
    amounts: Amounts,
    end: Option<Ended>,
}

struct PlayedNode {
    spec: NodeSpec,
    session: u64,
    sequence: u64,
    handled: Number,
    instances: BTreeMap<Number, Instance>,
    job_time: Option<Duration>,
    heard: Arc<Heard>,
}

type ToScheduler = mpsc::UnboundedSender<NodeMessage>;

impl PlayedNode {
    /// Connects to the scheduler that leads, again and again.
    async fn live(mut self, addresses: Vec<String>, tls: ClientTlsConfig) {
        for address in addresses.iter().cycle() {
            if let Ok(channel) = endpoint(address, tls.clone()).connect().await {
                self.converse(AgentsClient::new(channel)).await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn converse(&mut self, mut scheduler: AgentsClient<tonic::transport::Channel>) {
        let (to_scheduler, messages) = mpsc::unbounded_channel();
        self.report(&to_scheduler);
        let Ok(answer) = scheduler.session(UnboundedReceiverStream::new(messages)).await else { return };
        let mut orders = answer.into_inner();
        let (ends, mut ended) = mpsc::unbounded_channel();
        let numbers: Vec<Number> = self.instances.keys().copied().collect();
        for number in numbers {
            self.tell_end(number, None, &to_scheduler);
        }
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = orders.message() => match order {
                    Ok(Some(order)) => self.obey(order, &to_scheduler, &ends),
                    _ => return,
                },
                Some(number) = ended.recv() => {
                    self.end(number, EndReason::Exited);
                    self.tell_end(number, None, &to_scheduler);
                }
                _ = heartbeats.tick() => self.say(Said::Heartbeat(Heartbeat {}), &to_scheduler),
            }
        }
    }

    fn say(&mut self, message: Said, to_scheduler: &ToScheduler) {
        self.sequence += 1;
        let message = NodeMessage { session: self.session, sequence: self.sequence, message: Some(message) };
        // An error means that the connection is broken, which is noticed elsewhere.
        let _ = to_scheduler.send(message);
    }

    fn report(&mut self, to_scheduler: &ToScheduler) {
        let running = self.instances.iter().map(|(number, instance)| Running {
            claim: instance.claim.clone(),
            instance: Some(generation(*number)),
            amounts: Some(instance.amounts.clone()),
        });
        let report = Report {
            spec: Some(self.spec.clone()),
            handled: Some(generation(self.handled)),
            running: running.collect(),
        };
        self.say(Said::Report(report), to_scheduler);
    }

    fn obey(
        &mut self,
        SchedulerMessage { session, message }: SchedulerMessage,
        to_scheduler: &ToScheduler,
        ends: &mpsc::UnboundedSender<Number>,
    ) {
        let is_for_this_session = session == self.session;
        match message {
            Some(Message::Start(start)) if is_for_this_session => {
                let number = number(start.generation);
                if number <= self.handled && !self.instances.contains_key(&number) {
                    return;
                }
                self.handled = self.handled.max(number);
                self.heard.starts.lock().expect("no node panics").push((start.claim.clone(), Instant::now()));
                let (claim, amounts) = (start.claim.clone(), start.amounts.unwrap_or_default());
                self.instances.entry(number).or_insert(Instance { claim: claim.clone(), amounts, end: None });
                let started = outcome::Outcome::Started(Started { started_unix_ms: unix_ms() });
                self.tell(claim, number, number, started, to_scheduler);
                if let Some(job_time) = self.job_time {
                    let ends = ends.clone();
                    tokio::spawn(async move {
                        sleep(job_time).await;
                        // An error means that the connection is broken: the job then runs until it is stopped.
                        let _ = ends.send(number);
                    });
                }
            }
            Some(Message::Stop(stop)) => {
                let (instance, of) = (number(stop.instance), number(stop.generation));
                if is_for_this_session {
                    self.handled = self.handled.max(of);
                }
                self.end(instance, EndReason::Stopped);
                if !self.tell_end(instance, Some(of), to_scheduler) {
                    let never = outcome::Outcome::Ended(ended(EndReason::Stopped));
                    self.tell(stop.claim, instance, of, never, to_scheduler);
                }
            }
            Some(Message::Acknowledge(of)) => _ = self.instances.remove(&number(of.instance)),
            Some(Message::Report(_)) => self.report(to_scheduler),
            Some(Message::EndSession(_)) if is_for_this_session => {
                self.instances.clear();
                (self.session, self.sequence) = (self.session + 1, 0);
                self.report(to_scheduler);
            }
            _ => {}
        }
    }

    fn end(&mut self, number: Number, reason: EndReason) {
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.end.get_or_insert_with(|| ended(reason));
        }
    }

    /// Reports how an instance has ended; `false`: it has not ended, or is not known.
    fn tell_end(&mut self, number: Number, of: Option<Number>, to_scheduler: &ToScheduler) -> bool {
        let Some(instance) = self.instances.get(&number) else { return false };
        let (claim, Some(end)) = (instance.claim.clone(), instance.end) else { return false };
        self.tell(claim, number, of.unwrap_or(number), outcome::Outcome::Ended(end), to_scheduler);
        true
    }

    fn tell(
        &mut self,
        claim: String,
        instance: Number,
        of: Number,
        what: outcome::Outcome,
        to_scheduler: &ToScheduler,
    ) {
        let outcome = Outcome {
            claim,
            instance: Some(generation(instance)),
            generation: Some(generation(of)),
            outcome: Some(what),
        };
        self.say(Said::Outcome(outcome), to_scheduler);
    }
}

fn ended(reason: EndReason) -> Ended {
    let now_ms = unix_ms();
    let exit_code = (reason == EndReason::Exited).then_some(0);
    Ended { exit_code, signal: 0, reason: reason.into(), started_unix_ms: now_ms, ended_unix_ms: now_ms }
}

fn number(of: Option<Generation>) -> Number {
    of.map_or((0, 0), |of| (of.term, of.number))
}

fn generation((term, number): Number) -> Generation {
    Generation { term, number }
}
