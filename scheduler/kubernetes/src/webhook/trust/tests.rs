//! Two replicas that keep one certificate, in virtual time, beside the API server for tests.

use aliquot_api_server::connect;
use aliquot_test_api_server::{ApiServer, MUTATING_WEBHOOKS, SECRETS, Store, VALIDATING_WEBHOOKS};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::certificates::Keeper;
use crate::certificates::tests::fits;

const NAMESPACE: &str = "aliquot-system";
const DAY: Duration = Duration::from_secs(24 * 3600);

struct World {
    _server: ApiServer,
    _directory: TempDir,
    store: Store,
    replicas: [Keeper<Trust>; 2],
}

impl World {
    async fn start() -> World {
        let directory = TempDir::new().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let server = tokio::task::spawn_blocking(|| {
            let runtime = Handle::current();
            ApiServer::start(&runtime)
        });
        let server = server.await.unwrap();
        server.write_kubeconfig(&kubeconfig);
        let client = connect(Some(&kubeconfig)).await.unwrap();
        let store = server.store();
        for (resource, kind) in [
            (&VALIDATING_WEBHOOKS, "ValidatingWebhookConfiguration"),
            (&MUTATING_WEBHOOKS, "MutatingWebhookConfiguration"),
        ] {
            let webhook = |name: &str, service: &str| {
                json!({
                    "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "clientConfig": {"service": {"name": service, "namespace": NAMESPACE, "path": "/validate"}},
                })
            };
            let webhooks = json!([webhook("a.aliquot.dev", NAME), webhook("b.example.com", "other")]);
            let api = "admissionregistration.k8s.io/v1";
            let configuration =
                json!({"apiVersion": api, "kind": kind, "metadata": {"name": NAME}, "webhooks": webhooks});
            store.create(resource, "", configuration).unwrap();
        }
        let replica = || Keeper::new(client.clone(), NAMESPACE, Trust::new(client.clone(), NAMESPACE, Arc::default()));
        let replicas = [replica(), replica()];
        World { _server: server, _directory: directory, store, replicas }
    }

    /// What the API server trusts: the same of both configurations.
    fn trusted(&self) -> String {
        let [one, other] = [&VALIDATING_WEBHOOKS, &MUTATING_WEBHOOKS].map(|resource| {
            let configuration: Value = self.store.get(resource, "", NAME).unwrap();
            assert_eq!(
                configuration["webhooks"][1]["clientConfig"]["caBundle"],
                Value::Null,
                "that is another webhook"
            );
            let bundle: ByteString =
                serde_json::from_value(configuration["webhooks"][0]["clientConfig"]["caBundle"].clone()).unwrap();
            String::from_utf8(bundle.0).unwrap()
        });
        assert_eq!(one, other);
        one
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_agree_and_connections_never_fail_in_fifteen_years() {
    let world = World::start().await;
    let [first, second] = &world.replicas;
    let mut now = UNIX_EPOCH + Duration::from_secs(1_764_000_000);
    let (one, other) = tokio::join!(first.look(now), second.look(now));
    let mut served = [one.unwrap_or_else(|why| panic!("{why}")), other.unwrap_or_else(|why| panic!("{why}"))];
    assert_eq!(served[0], served[1]);
    let (mut certificates, mut authorities) = (0, 0);
    for step in 0..(15 * 365 / 5) {
        now += 5 * DAY;
        // One replica looks, and an API server may not have heard of that yet; then the other one does.
        for replica in [step % 2, (step + 1) % 2] {
            let trusted_before = world.trusted();
            let found = world.replicas[replica].look(now + Duration::from_secs(30) * replica as u32).await.unwrap();
            certificates += u32::from(found != served[replica] && found.bundle == served[replica].bundle);
            authorities += u32::from(found.bundle != served[replica].bundle);
            served[replica] = found;
            let trusted_now = world.trusted();
            for (bundle, with) in
                [&trusted_before, &trusted_now].into_iter().flat_map(|of| served.each_ref().map(|with| (of, with)))
            {
                assert_eq!(fits(bundle, with, now), Ok(()), "step {step}, replica {replica}");
            }
        }
        assert_eq!(served[0], served[1], "step {step}");
    }
    assert!(certificates > 2 * 80 && authorities == 2 * 2, "{certificates} certificates, {authorities} authorities");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_secret_is_made_anew_and_a_lost_bundle_comes_back() {
    let world = World::start().await;
    let now = SystemTime::now();
    let before = world.replicas[0].look(now).await.unwrap();
    let damage = json!({"data": {"tls.key": "bm8ga2V5"}});
    world.store.merge(&SECRETS, NAMESPACE, NAME, false, &damage).unwrap();
    let after = world.replicas[1].look(now).await.unwrap();
    assert_ne!(after, before);
    assert_eq!(world.replicas[0].look(now).await.as_ref(), Ok(&after));
    assert_eq!(world.trusted(), after.bundle);
    // If the manifests are applied anew, the bundle may be taken away.
    let mut configuration: Value = world.store.get(&VALIDATING_WEBHOOKS, "", NAME).unwrap();
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = Value::Null;
    world.store.update(&VALIDATING_WEBHOOKS, &configuration, false).unwrap();
    world.replicas[0].look(now).await.unwrap();
    assert_eq!(world.trusted(), after.bundle);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_configurations_there_is_a_certificate_all_the_same() {
    let world = World::start().await;
    for resource in [&VALIDATING_WEBHOOKS, &MUTATING_WEBHOOKS] {
        world.store.delete(resource, "", NAME, true).unwrap();
    }
    let made = world.replicas[0].look(SystemTime::now()).await.unwrap();
    assert!(made.server().is_ok());
}
