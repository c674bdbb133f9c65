//! Replicas that race for the lease, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::played::{self, Call, failure};

/// Numbers that look random, and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The Leases, and how slow the API server is.
struct Server {
    lease: Option<Value>,
    /// Whether there is the Lease that says that a replica has led.
    has_led: bool,
    version: u64,
    random: Random,
    /// The longest time of a request to the server, and of an answer back.
    slowness_ms: u64,
    /// Of so many answers one is lost: the client waits for it as long as it does for any answer.
    lost_of: u64,
}

type Shared = Arc<Mutex<Server>>;

fn server(seed: u64, slowness_ms: u64, lost_of: u64) -> Shared {
    Arc::new(Mutex::new(Server { lease: None, has_led: false, version: 0, random: Random(seed), slowness_ms, lost_of }))
}

async fn answer(server: Shared, call: Call) -> (u16, Value) {
    let (there, back, is_lost) = {
        let Server { random, slowness_ms, lost_of, .. } = &mut *server.lock();
        // One replica can be much slower than another.
        let mut delay = || {
            let longest_ms = if random.below(2) == 0 { 20 } else { *slowness_ms };
            Duration::from_millis(random.below(longest_ms))
        };
        let (there, back) = (delay(), delay());
        (there, back, *lost_of > 0 && random.below(*lost_of) == 0)
    };
    sleep(there).await;
    let done = server.lock().carry_out(&call);
    sleep(back).await;
    if is_lost {
        sleep(Duration::from_secs(15)).await;
        return failure(504, "Timeout");
    }
    done
}

impl Server {
    fn carry_out(&mut self, call: &Call) -> (u16, Value) {
        if call.body["metadata"]["name"] == HAS_LED {
            assert_eq!(call.method, "POST", "it is never changed");
            return match std::mem::replace(&mut self.has_led, true) {
                true => failure(409, "AlreadyExists"),
                false => (201, call.body.clone()),
            };
        }
        match (call.method.as_str(), &self.lease) {
            ("GET", Some(lease)) => return (200, lease.clone()),
            ("GET" | "PUT", None) => return failure(404, "NotFound"),
            ("POST", Some(_)) => return failure(409, "AlreadyExists"),
            ("PUT", Some(lease))
                if lease["metadata"]["resourceVersion"] != call.body["metadata"]["resourceVersion"] =>
            {
                return failure(409, "Conflict");
            }
            _ => {}
        }
        self.version += 1;
        let mut lease = call.body.clone();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        (200, lease)
    }
}

fn candidate(server: &Shared, identity: &str) -> Candidate {
    let server = Arc::clone(server);
    candidate_of(played::client(move |call| answer(Arc::clone(&server), call)), identity)
}

fn candidate_of(client: Client, identity: &str) -> Candidate {
    Candidate {
        leases: Api::namespaced(client, "aliquot-system"),
        identity: identity.into(),
        extender_url: None,
        status: Arc::new(Status::default()),
    }
}

/// What leaders have done: their terms, and until when they may write.
#[derive(Default)]
struct Log(Vec<(u64, Fence)>);

impl Log {
    /// A leader begins. No other one may write any more.
    fn begins(&mut self, term: u64, fence: &Fence) {
        let others: Vec<u64> =
            self.0.iter().filter(|(_, fence)| fence.left().is_some()).map(|(term, _)| *term).collect();
        assert_eq!(others, [0; 0], "they may still write, and {term} begins");
        assert!(self.0.last().is_none_or(|(last, _)| *last < term), "{term} is not greater than all before");
        self.0.push((term, fence.clone()));
    }
}

/// Leads again and again, and ends in one of the ways in which leaders end.
async fn live(server: Shared, name: u64, log: Rc<RefCell<Log>>) {
    let mut random = Random(name);
    let mut starts = 0;
    loop {
        // A replica that is started anew has another name, as a pod has.
        let candidate = candidate(&server, &format!("{name}-{starts}"));
        starts += 1;
        let (term, fence) = candidate.lead().await;
        log.borrow_mut().begins(term, &fence);
        let stays = Duration::from_millis(random.below(40_000));
        match timeout(stays, candidate.renew(term, &fence)).await {
            Ok(_) => fence.end(),
            Err(_) if random.below(2) == 0 => {
                fence.end();
                candidate.give_back(term).await;
            }
            // It is killed. What it has begun may still arrive until the end of its lease.
            Err(_) => {}
        }
        sleep(Duration::from_millis(random.below(5_000))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_replicas_may_write_at_the_same_time() {
    for seed in 0..10 {
        // In half of the runs answers are slow, and some are lost.
        let (slowness_ms, lost_of) = if seed % 2 == 0 { (100, 0) } else { (4_000, 8) };
        let (server, log) = (server(seed, slowness_ms, lost_of), Rc::<RefCell<Log>>::default());
        let local = LocalSet::new();
        let replicas = (0..3).map(|replica| live(Arc::clone(&server), 3 * seed + replica, Rc::clone(&log)));
        let run = local.run_until(async {
            let lives: Vec<_> = replicas.map(spawn_local).collect();
            sleep(Duration::from_secs(1800)).await;
            lives.iter().for_each(|life| assert!(!life.is_finished(), "{seed}: a leader began too early"));
        });
        run.await;
        let leaders = log.borrow().0.len();
        assert!(leaders > 50, "{seed}: {leaders} leaders in half an hour");
    }
}

/// How long no replica leads after the end of a leader: killed at some moment, or stopped.
async fn without_leader(seed: u64, is_killed: bool) -> Duration {
    let server = server(seed, 200, 0);
    let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
    let (term, fence) = first.lead().await;
    let next = async {
        let (next, _) = second.lead().await;
        assert_eq!(next, term + 1);
        Instant::now()
    };
    let leads = async {
        let stays = Duration::from_millis(20_000 + server.lock().random.below(3_000));
        assert!(timeout(stays, first.renew(term, &fence)).await.is_err(), "it leads until its end");
        if !is_killed {
            fence.end();
            first.give_back(term).await;
        }
        Instant::now()
    };
    let (next, ended) = tokio::join!(next, leads);
    next.duration_since(ended)
}

#[tokio::test(start_paused = true)]
async fn another_replica_leads_within_the_lease() {
    for seed in 0..100 {
        let after_death = without_leader(seed, true).await;
        // What it has renewed just before its death is seen a try later. Each try takes a few answers.
        assert!(after_death < LEASE + RETRY + Duration::from_secs(1), "{seed}: {after_death:?}");
        let after_stop = without_leader(seed, false).await;
        assert!(after_stop < RETRY + Duration::from_secs(1), "{seed}: {after_stop:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_deleted_leads_on() {
    for seed in 0..100 {
        let server = server(seed, 200, 0);
        let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
        let (term, fence) = first.lead().await;
        let deletes = async {
            for _ in 0..5 {
                let pause = Duration::from_millis(server.lock().random.below(10_000));
                sleep(pause).await;
                server.lock().lease = None;
            }
            sleep(2 * LEASE).await;
        };
        tokio::select! {
            () = deletes => {}
            why = first.renew(term, &fence) => panic!("{seed}: {why}"),
            (term, _) = second.lead() => panic!("{seed}: another one leads, with term {term}"),
        }
        let holder =
            |lease: &Value| (lease["spec"]["holderIdentity"].clone(), lease["spec"]["leaseTransitions"].clone());
        assert_eq!(server.lock().lease.as_ref().map(holder), Some(("first".into(), term.into())), "{seed}");
    }
}

/// The others start when the lease is just deleted, and have never seen it.
#[tokio::test(start_paused = true)]
async fn who_starts_without_a_lease_waits_for_its_holder() {
    for seed in 0..100 {
        let server = server(seed, 200, 0);
        let first = candidate(&server, "first");
        let (term, fence) = first.lead().await;
        let others = async {
            for number in 0..5 {
                let pause = Duration::from_millis(server.lock().random.below(10_000));
                sleep(pause).await;
                server.lock().lease = None;
                let starts = candidate(&server, &format!("other-{number}"));
                assert!(timeout(2 * LEASE, starts.lead()).await.is_err(), "{seed}: it leads, too");
                // Somebody deletes all leases while nobody starts.
                {
                    let mut server = server.lock();
                    (server.lease, server.has_led) = (None, false);
                }
                sleep(LEASE).await;
            }
        };
        tokio::select! {
            () = others => {}
            why = first.renew(term, &fence) => panic!("{seed}: {why}"),
        }
    }
}

/// Where no replica has led, nobody waits. Of two that start at once each can be the first.
#[tokio::test(start_paused = true)]
async fn the_first_start_is_not_delayed() {
    for seed in 0..100 {
        let server = server(seed, 200, 0);
        let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
        let began = Instant::now();
        tokio::select! {
            _ = first.lead() => {}
            _ = second.lead() => {}
        }
        assert!(began.elapsed() < RETRY, "{seed}: {:?}", began.elapsed());
        assert!(server.lock().has_led);
    }
}

/// The leader is killed just before its lease is deleted.
#[tokio::test(start_paused = true)]
async fn a_deleted_lease_of_a_dead_leader_is_taken_when_it_is_over() {
    for seed in 0..100 {
        let server = server(seed, 200, 0);
        let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
        let (term, fence) = first.lead().await;
        let dies = async {
            let stays = Duration::from_millis(20_000 + server.lock().random.below(3_000));
            assert!(timeout(stays, first.renew(term, &fence)).await.is_err(), "it leads until its end");
            server.lock().lease = None;
            Instant::now()
        };
        let next = async {
            second.lead().await;
            assert_eq!(fence.left(), None, "{seed}");
            Instant::now()
        };
        let (next, died) = tokio::join!(next, dies);
        let without_leader = next.duration_since(died);
        assert!(without_leader < LEASE + RETRY + Duration::from_secs(1), "{seed}: {without_leader:?}");
    }
}

/// What the leader has sent before it ends arrives while it gives the lease back.
#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_keep_the_lease_from_going_back() {
    let server = server(1, 20, 0);
    let (answers, arrives) = (Arc::clone(&server), Arc::new(Mutex::new(false)));
    let arrives_next = Arc::clone(&arrives);
    let client = played::client(move |call| {
        let (server, arrives_next) = (Arc::clone(&answers), Arc::clone(&arrives_next));
        async move {
            let is_read = call.method == "GET";
            let answered = answer(Arc::clone(&server), call).await;
            if is_read && std::mem::take(&mut *arrives_next.lock()) {
                let renewal = server.lock().lease.clone().unwrap();
                server.lock().carry_out(&Call { method: "PUT".into(), path: String::new(), body: renewal });
            }
            answered
        }
    });
    let leader = candidate_of(client, "leader");
    let (term, _) = leader.lead().await;
    *arrives.lock() = true;
    leader.give_back(term).await;
    assert!(!*arrives.lock());
    let lease = server.lock().lease.clone().unwrap();
    assert!(lease["spec"].get("holderIdentity").is_none(), "{lease}");
}

/// In real time: the thread that has started the keeper does nothing else meanwhile.
#[tokio::test]
async fn the_lease_is_renewed_while_the_scheduler_computes() {
    let server = server(1, 20, 0);
    let keeper_for = |identity: &'static str| {
        let server = Arc::clone(&server);
        Keeper::start_with(async move || Ok(candidate(&server, identity))).unwrap()
    };
    let mut keeper = keeper_for("first");
    let (term, fence) = keeper.won().await.unwrap();
    let (before, began) = (server.lock().version, Instant::now());
    while server.lock().version < before + 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not renewed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(fence.left().is_some());
    let holder = || server.lock().lease.as_ref().unwrap()["spec"].get("holderIdentity").cloned();
    keeper.give_back().await;
    assert_eq!(holder(), None);
    let mut next = keeper_for("second");
    let (next_term, fence) = next.won().await.unwrap();
    assert_eq!(next_term, term + 1);
    // Somebody takes the lease away.
    server.lock().lease.as_mut().unwrap()["spec"]["holderIdentity"] = "other".into();
    assert_eq!(next.lost().await, "another replica has taken it");
    assert_eq!(fence.left(), None);
    next.give_back().await;
    assert_eq!(holder(), Some("other".into()));
}
