//! Several schedulers that share a PostgreSQL database.

use std::thread;
use std::time::Duration;

use aliquot_harness::{PostgreSql, wait};
use aliquot_scheduler_engine::{Batch, Store};
use aliquot_scheduler_store::{Candidate, Database, PostgresqlConfig, Standing, StoreError};
use postgres::{Client, NoTls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::{candidate, config, lead, let_lease_end, pair, set};

fn leads(candidate: &mut Candidate) -> Database {
    lead(candidate, || {}).expect("the server answers")
}

/// The address of the leader that this scheduler follows.
fn followed(candidate: &mut Candidate) -> String {
    match candidate.stand() {
        Ok(Standing::Follows { leader }) => leader,
        other => panic!("it does not follow: {other:?}"),
    }
}

#[test]
fn one_leads_and_the_next_does_when_it_ends() {
    let url = PostgreSql::shared().database();
    let (mut first, mut second) = (candidate(&url, "a:7460"), candidate(&url, "b:7460"));
    let database = leads(&mut first);
    database.save(&[set("job", "1", "{}")]).expect("saved");
    assert_eq!(followed(&mut second), "a:7460");
    assert_eq!(second.records("job").expect("readable"), [pair("1", "{}")], "who follows can read");
    wait::until_true("the leader knows itself", || database.leadership().schedulers().contains(&"a:7460".to_owned()));
    drop(database);
    let database = match second.stand() {
        Ok(Standing::Leads(database)) => database,
        other => panic!("the lease was not given up: {other:?}"),
    };
    assert_eq!(database.records("job").expect("readable"), [pair("1", "{}")]);
    assert_eq!(followed(&mut first), "b:7460");
    wait::until_true("the new leader knows both", || database.leadership().schedulers() == ["a:7460", "b:7460"]);
}

#[test]
fn who_has_lost_the_lease_writes_nothing_more() {
    let url = PostgreSql::shared().database();
    let (mut first, mut second) = (candidate(&url, "a:1"), candidate(&url, "b:1"));
    let old = leads(&mut first);
    let mut engine = old.engine_store();
    let term = engine.load().expect("loaded").term;
    old.save(&[set("job", "1", "old")]).expect("saved");
    // The next renewal, by which it would know, comes much later.
    wait::until_true("the lease was renewed", || !old.leadership().schedulers().is_empty());
    let new = lead(&mut second, || let_lease_end(&url)).expect("the server answers");
    assert!(old.leadership().holds(), "it does not know yet");
    engine.save(&Batch { term, claims: Vec::new(), nodes: Vec::new(), memory: None }).expect_err("it does not lead");
    assert!(!old.leadership().holds(), "it knows now");
    let refused = old.save(&[set("job", "1", "late")]).expect_err("it does not lead");
    assert!(matches!(refused, StoreError::LeaseLost { .. }), "{refused}");
    old.next_number("job").expect_err("it does not lead");
    drop((engine, old));
    assert_eq!(new.records("job").expect("readable"), [pair("1", "old")]);
    new.save(&[set("job", "1", "new")]).expect("the end of the old leader changes nothing for the new one");
    assert!(new.leadership().holds());
}

#[test]
fn whoever_takes_over_sees_what_was_being_written() {
    let server = PostgreSql::shared();
    let url = server.database();
    let old = leads(&mut candidate(&url, "a:1"));
    old.save(&[set("job", "1", "1")]).expect("saved");
    let waiting = |count: u32| {
        let query =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        wait::until_true("so many wait for a lock", || server.sql(&url, query) == count.to_string());
    };
    let mut reader = Client::connect(&url, NoTls).expect("the server answers");
    let mut reading = reader.transaction().expect("it can begin");
    reading.batch_execute("LOCK TABLE aliquot.records IN SHARE MODE").expect("it can be locked");
    thread::scope(|scope| {
        let save = scope.spawn(|| old.save(&[set("job", "1", "2")]));
        waiting(1);
        let_lease_end(&url);
        let next = scope.spawn(|| leads(&mut candidate(&url, "b:1")));
        waiting(2);
        reading.commit().expect("it lets the write go on");
        save.join().expect("it does not panic").expect("it was begun before the end of the lease");
        let new = next.join().expect("it leads");
        assert_eq!(new.records("job").expect("readable"), [pair("1", "2")]);
    });
}

#[test]
fn a_broken_connection_is_made_anew() {
    let server = PostgreSql::shared();
    let url = server.database();
    let database = leads(&mut candidate(&url, "a:1"));
    let mut engine = database.engine_store();
    let term = engine.load().expect("loaded").term;
    for round in 0..3 {
        let break_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = \
                         'aliquot-scheduler' AND datname = current_database()";
        server.sql(&url, break_all);
        database.save(&[set("job", "1", &round.to_string())]).expect("it is saved all the same");
        engine.save(&Batch { term, ..Batch::default() }).expect("and so is this");
    }
    assert!(database.leadership().holds());
    assert_eq!(database.records("job").expect("readable"), [pair("1", "2")]);
}

#[test]
fn a_leader_without_its_server_leads_no_more() {
    let server = PostgreSql::start();
    let url = server.database();
    let short = PostgresqlConfig { lease: Duration::from_secs(3), ..config(&url) };
    let mut first = Candidate::new(&short, "a:1".to_owned()).expect("the URL can be used");
    let database = leads(&mut first);
    drop(server);
    wait::until_true("the lease is over", || !database.leadership().holds());
    let refused = database.save(&[set("job", "1", "{}")]).expect_err("nobody saves it");
    assert!(matches!(refused, StoreError::LeaseLost { .. }), "{refused}");
    let refused = first.stand().expect_err("there is no server");
    assert!(matches!(refused, StoreError::Unreachable { .. }), "{refused}");
}

#[test]
fn numbers_and_terms_go_on_behind_a_gap_in_a_restored_dump() {
    let server = PostgreSql::shared();
    let url = server.database();
    let counts = |url: &str| {
        let database = lead(&mut candidate(url, "a:1"), || let_lease_end(url)).expect("the server answers");
        let term = database.engine_store().load().expect("loaded").term;
        (database.next_number("job").expect("a number"), term)
    };
    assert_eq!(counts(&url), (1, 1));
    assert_eq!(counts(&url), (2, 2), "no gap after a restart");
    let copy = server.restored(&url);
    let (number, term) = counts(&copy);
    assert!(number > 1000 && term > 1000, "{number} {term}");
    assert_eq!(counts(&copy), (number + 1, term + 1), "there is one gap");
}

#[test]
fn a_newer_database_is_refused() {
    let server = PostgreSql::shared();
    let url = server.database();
    drop(leads(&mut candidate(&url, "a:1")));
    server.sql(&url, "UPDATE aliquot.version SET last = 1000");
    let refused = candidate(&url, "a:1").stand().expect_err("it is newer");
    assert!(matches!(refused, StoreError::Newer { found: 1000, .. }), "{refused}");
}

#[test]
fn who_stood_by_while_a_newer_scheduler_led_does_not_follow_it() {
    let url = PostgreSql::shared().database();
    let (mut first, mut second) = (candidate(&url, "a:1"), candidate(&url, "b:1"));
    let database = leads(&mut first);
    assert_eq!(followed(&mut second), "a:1");
    // The leader is updated: the new program brings the tables to its version when it leads.
    PostgreSql::shared().sql(&url, "UPDATE aliquot.version SET last = 1000");
    drop(database);
    let refused = second.stand().expect_err("it does not know these tables");
    assert!(matches!(refused, StoreError::Newer { found: 1000, .. }), "{refused}");
}

#[test]
fn a_wrong_user_or_database_is_named() {
    let url = PostgreSql::shared().database();
    let refused = candidate(&url.replace("/test", "/missing"), "a:1").stand().expect_err("there is none");
    assert!(refused.to_string().contains("does not exist"), "{refused}");
    assert!(!matches!(refused, StoreError::Unreachable { .. }), "it does not pass by itself: {refused:?}");
}

#[test]
fn a_backup_is_for_the_servers_own_tools() {
    let database = leads(&mut candidate(&PostgreSql::shared().database(), "a:1"));
    let refused = database.back_up("/tmp/never".as_ref()).expect_err("it is not the scheduler's").to_string();
    assert!(refused.contains("pg_dump"), "{refused}");
}

fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).expect("a certificate").pem();
    (Issuer::new(params, key), pem)
}

#[test]
fn a_server_is_known_by_its_certificate() {
    let (issuer, trusted) = authority("the server's");
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let own = own.signed_by(&key, &issuer).expect("a certificate");
    let server = PostgreSql::with_tls(&own.pem(), &key.serialize_pem());
    let local = server.database();
    let url = server.over_network(&local);
    let with = |authority: &str| PostgresqlConfig { authority_pem: Some(authority.to_owned()), ..config(&url) };
    let stranger = Candidate::new(&with(&authority("another").1), "a:1".to_owned()).expect("it can be used").stand();
    let refused = stranger.expect_err("it is not the server's authority").to_string();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    let database = leads(&mut Candidate::new(&with(&trusted), "a:1".to_owned()).expect("it can be used"));
    database.save(&[set("job", "1", "{}")]).expect("saved");
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = \
                     'aliquot-scheduler'";
    assert_eq!(server.sql(&local, encrypted), "t");
}
