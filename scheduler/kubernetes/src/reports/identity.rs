//! Checks which manager joins: the API server says to which account and node a token belongs.

use std::time::Duration;

use aliquot_api_server::{Client, message};
use aliquot_proto::reports::v1::AUDIENCE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status as Refusal;

/// The managers' service account.
const ACCOUNT: &str = "aliquot-manager";
/// The entry about a token's user that names the node of the token's pod. Kubernetes has it since 1.30.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Tokens that are reviewed at the same time, at most: unknown clients may send some, too.
const AT_ONCE: usize = 8;
/// A manager that is not served within that time tries again.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The longest name of a node, in bytes.
const NODE_NAME_BYTES_MAX: usize = 253;

/// Asks the API server about tokens.
pub(super) struct Reviewer {
    reviews: Api<TokenReview>,
    /// The name by which the API server knows managers.
    user: String,
    places: Semaphore,
}

impl Reviewer {
    /// `namespace` is that of the managers.
    pub(super) fn new(client: Client, namespace: &str) -> Reviewer {
        let user = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
        Reviewer { reviews: Api::all(client), user, places: Semaphore::new(AT_ONCE) }
    }

    /// Whether the token is that of the manager on this node.
    pub(super) async fn check(&self, token: String, node: &str) -> Result<(), Refusal> {
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX || node.is_empty() || node.len() > NODE_NAME_BYTES_MAX {
            return Err(Refusal::unauthenticated("the call has no token, or does not name a node"));
        }
        let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token };
        let review = TokenReview { spec, ..TokenReview::default() };
        let asked = async {
            // The semaphore is never closed.
            let _place = self.places.acquire().await;
            self.reviews.create(&PostParams::default(), &review).await
        };
        let answer = timeout(PATIENCE, asked).await;
        let answer = answer.map_err(|_| Refusal::unavailable("the API server has not reviewed the token in time"))?;
        let answer = answer.map_err(|error| {
            Refusal::unavailable(format!("the API server does not review the token: {}", message(&error)))
        })?;
        self.judge(answer.status.unwrap_or_default(), node)
    }

    fn judge(&self, status: TokenReviewStatus, node: &str) -> Result<(), Refusal> {
        let is_for_reports = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
        if status.authenticated != Some(true) || !is_for_reports {
            let why = status.error.unwrap_or_else(|| format!("it is not valid for the audience {AUDIENCE}"));
            return Err(Refusal::unauthenticated(format!("the API server does not accept the token: {why}")));
        }
        let user = status.user.unwrap_or_default();
        let name = user.username.unwrap_or_default();
        if name != self.user {
            return Err(Refusal::permission_denied(format!(
                "the token is {name:?}'s, and only {:?} may report",
                self.user
            )));
        }
        let extra = user.extra.unwrap_or_default();
        match extra.get(NODE_NAME).map(Vec::as_slice) {
            Some([of]) if of == node => Ok(()),
            Some([of]) => Err(Refusal::permission_denied(format!(
                "the token is that of a pod on node {of:?}, and cannot report about node {node:?}"
            ))),
            _ => Err(Refusal::permission_denied(
                "the token does not say on which node its pod is; that needs Kubernetes 1.30 and a token that is bound to a pod",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;

    fn judged(status: Value, node: &str) -> Result<(), (Code, String)> {
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let reviewer = Reviewer::new(client, "aliquot-system");
        let refused = |refusal: Refusal| (refusal.code(), refusal.message().to_owned());
        reviewer.judge(serde_json::from_value(status).unwrap(), node).map_err(refused)
    }

    fn status(user: &str, audience: &str, extra: Value) -> Value {
        json!({"authenticated": true, "audiences": [audience], "user": {"username": user, "extra": extra}})
    }

    #[tokio::test]
    async fn only_the_manager_of_a_node_gets_its_certificate() {
        let manager = "system:serviceaccount:aliquot-system:aliquot-manager";
        let on = |node: &str| json!({NODE_NAME: [node]});
        assert_eq!(judged(status(manager, AUDIENCE, on("a")), "a"), Ok(()));
        for (status, code, words) in [
            (json!({"authenticated": false, "error": "it has expired"}), Code::Unauthenticated, "it has expired"),
            (json!({}), Code::Unauthenticated, "audience"),
            (status(manager, "api", on("a")), Code::Unauthenticated, "audience"),
            (
                status("system:serviceaccount:default:aliquot-manager", AUDIENCE, on("a")),
                Code::PermissionDenied,
                "default",
            ),
            (status(manager, AUDIENCE, on("b")), Code::PermissionDenied, "on node \"b\""),
            (status(manager, AUDIENCE, json!({})), Code::PermissionDenied, "1.30"),
            (status(manager, AUDIENCE, json!({NODE_NAME: ["a", "b"]})), Code::PermissionDenied, "1.30"),
        ] {
            let (found, why) = judged(status, "a").unwrap_err();
            assert!(found == code && why.contains(words), "{found:?} {why}");
        }
    }
}
