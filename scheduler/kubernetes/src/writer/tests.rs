//! Answers of the API server, in virtual time.

use aliquot_scheduler_engine::Generation;
use parking_lot::Mutex;

use super::*;
use crate::lease::Fence;
use crate::played::{self, Call, failure};

/// A leader, and a client of an API server that notes the calls and answers like this.
fn world(
    answer: impl Fn(&Call) -> (u16, Value) + Send + Sync + 'static,
) -> (Arc<Shared>, Client, Arc<Mutex<Vec<String>>>) {
    let shared = played::leader(Fence::until(Instant::now() + Duration::from_secs(3600)));
    let (answer, calls) = (Arc::new(answer), Arc::<Mutex<Vec<String>>>::default());
    let noted = Arc::clone(&calls);
    let client = played::client(move |call| {
        noted.lock().push(format!("{} {}", call.method, call.path.rsplit('/').next().unwrap_or_default()));
        let answered = answer(&call);
        async move { answered }
    });
    (shared, client, calls)
}

/// What is written when an eviction is answered with this code.
async fn writes_of_eviction(code: u16) -> Vec<String> {
    let (shared, client, calls) = world(move |call| match call.path.ends_with("/eviction") {
        true if code < 300 => (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
        true => failure(code, "NotNow"),
        false => (201, call.body.clone()),
    });
    let events = Events::new(client.clone(), "aliquot-scheduler", "replica-1".into());
    let eviction = Eviction {
        uid: "a".into(),
        namespace: "default".into(),
        name: "a".into(),
        instance: Generation { term: 1, number: 1 },
        generation: Generation { term: 1, number: 2 },
    };
    carry_out_eviction(&client, &shared, &events, &Semaphore::new(1), eviction, Some("it makes room".into())).await;
    calls.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn only_an_eviction_that_took_place_is_told() {
    for (code, is_told) in [(201, true), (404, false), (409, false), (429, false), (500, false), (503, false)] {
        let expected: &[&str] = if is_told { &["POST eviction", "POST events"] } else { &["POST eviction"] };
        assert_eq!(writes_of_eviction(code).await, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_changed_is_not_waited_for_without_end() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default", "uid": "a"},
        "spec": {"containers": []},
    });
    let (shared, client, calls) = world(move |call| match call.method.as_str() {
        "GET" => (200, pod.clone()),
        _ => failure(403, "Forbidden"),
    });
    let binding = played::binding();
    let bind = Bind { pods: Api::namespaced(client, "default"), binding: &binding };
    let began = Instant::now();
    assert_eq!(bind.find_out(&shared, "no answer".into()).await, Err("no answer".into()));
    // The binding may have been on its way until then.
    assert!(began.elapsed() >= Duration::from_secs(120) && calls.lock().len() > 100, "{:?}", began.elapsed());
}
