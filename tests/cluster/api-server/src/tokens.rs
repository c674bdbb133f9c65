//! Tokens of service accounts, and token reviews, which tell the user of a token.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// The valid tokens, with their users.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<BTreeMap<String, Token>>);

#[derive(Debug)]
struct Token {
    audience: String,
    user: String,
    /// The node of the pod that the token is bound to.
    node: String,
}

impl Tokens {
    pub(super) fn set(&self, token: &str, audience: &str, user: &str, node: &str) {
        let known = Token { audience: audience.to_owned(), user: user.to_owned(), node: node.to_owned() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), known);
    }

    /// The review with its answer.
    pub(super) fn review(&self, mut review: Value) -> Value {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = review["spec"]["token"].as_str().and_then(|token| tokens.get(token));
        let audiences = review["spec"]["audiences"].as_array().cloned().unwrap_or_default();
        review["status"] = match known {
            Some(token) if audiences.iter().any(|audience| *audience == token.audience) => json!({
                "authenticated": true,
                "audiences": [token.audience],
                "user": {
                    "username": token.user, "uid": token.user, "groups": ["system:serviceaccounts"],
                    "extra": {"authentication.kubernetes.io/node-name": [token.node]},
                },
            }),
            Some(_) => json!({"error": "token audiences do not match"}),
            None => json!({"error": "invalid bearer token"}),
        };
        review
    }
}
