//! Admission webhooks: those in configurations are called over TLS when an object is made or replaced, as the real
//! server calls them. Webhooks that change objects come first, then those that only validate the changed object.
//!
//! Patches, deletions and requests of the server's own user are not reviewed; a configuration that wants deletions
//! reviewed is refused. Services have no network here, so a test sets the address of each one.

mod call;
pub mod conditions;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Shared;
use super::objects::Key;
use super::operations::Target;
use super::resource::{MUTATING_WEBHOOKS, NAMESPACES, Resource, VALIDATING_WEBHOOKS};
use super::selector::matches;
use super::status::Failure;

/// How many more times webhooks that want it are called about the changes of other webhooks.
const REINVOCATIONS: usize = 1;

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
        }
    }
}

/// The common part of both kinds of webhooks.
struct Webhook {
    name: String,
    client: WebhookClientConfig,
    rules: Vec<RuleWithOperations>,
    conditions: Vec<MatchCondition>,
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
    /// Whether an object is admitted if the webhook cannot be called.
    ignores_failures: bool,
    seconds: u64,
    is_asked_again: bool,
}

macro_rules! common {
    ($of:expr, $again:expr) => {
        Webhook {
            name: $of.name,
            client: $of.client_config,
            rules: $of.rules.unwrap_or_default(),
            conditions: $of.match_conditions.unwrap_or_default(),
            namespaces: $of.namespace_selector,
            objects: $of.object_selector,
            ignores_failures: $of.failure_policy.as_deref() == Some("Ignore"),
            seconds: $of.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(10),
            is_asked_again: $again,
        }
    };
}

impl From<MutatingWebhook> for Webhook {
    fn from(of: MutatingWebhook) -> Webhook {
        let is_asked_again = of.reinvocation_policy.as_deref() == Some("IfNeeded");
        common!(of, is_asked_again)
    }
}

impl From<ValidatingWebhook> for Webhook {
    fn from(of: ValidatingWebhook) -> Webhook {
        common!(of, false)
    }
}

/// Answers the object as admitted, and the warnings for the client.
pub(super) async fn admit(
    shared: &Shared,
    target: Target<'_>,
    operation: Operation,
    mut object: Value,
) -> Result<(Value, Vec<String>), Failure> {
    let mut warnings = Vec::new();
    let mutating: Vec<Webhook> = configured::<MutatingWebhookConfiguration>(shared, &MUTATING_WEBHOOKS)
        .into_iter()
        .flat_map(|of| of.webhooks.unwrap_or_default())
        .map(Webhook::from)
        .collect();
    for turn in 0..=REINVOCATIONS {
        let before = object.clone();
        for webhook in mutating.iter().filter(|webhook| turn == 0 || webhook.is_asked_again) {
            if let Some(response) = review(shared, webhook, target, operation, &object, &mut warnings).await? {
                object = changed(&webhook.name, object, &response)?;
            }
        }
        if object == before {
            break;
        }
    }
    let validating = configured::<ValidatingWebhookConfiguration>(shared, &VALIDATING_WEBHOOKS);
    for webhook in validating.into_iter().flat_map(|of| of.webhooks.unwrap_or_default()).map(Webhook::from) {
        review(shared, &webhook, target, operation, &object, &mut warnings).await?;
    }
    Ok((object, warnings))
}

fn configured<K: DeserializeOwned>(shared: &Shared, resource: &'static Resource) -> Vec<K> {
    let objects = shared.objects.lock();
    objects.list(resource, None).map(|(_, object)| super::typed(Value::clone(object))).collect()
}

/// The webhook's review of an object; `None`: the webhook is not called for this object, or failed and may be ignored.
async fn review(
    shared: &Shared,
    webhook: &Webhook,
    target: Target<'_>,
    operation: Operation,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<Option<Value>, Failure> {
    if !is_meant(shared, webhook, target, operation, object)? {
        return Ok(None);
    }
    let resource = target.resource;
    let request = json!({
        "uid": super::random_uuid(), "operation": operation.word(), "dryRun": false, "object": object,
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "namespace": target.namespace, "name": object["metadata"]["name"], "userInfo": {"username": target.manager},
    });
    let response = match call::ask(&shared.services, &webhook.client, webhook.seconds, &request).await {
        Ok(response) => response,
        Err(_) if webhook.ignores_failures => return Ok(None),
        Err(why) => {
            return Err(Failure::internal(format!("failed calling webhook {:?}: {why}", webhook.name)));
        }
    };
    let said = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    warnings.extend(said.map(str::to_owned));
    if response["allowed"] == true {
        return Ok(Some(response));
    }
    let why = response["status"]["message"].as_str().unwrap_or("without explanation");
    let code = response["status"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let message = format!("admission webhook {:?} denied the request: {why}", webhook.name);
    Err(Failure { code: code.filter(|code| *code >= 400).unwrap_or(403), reason: "Invalid", message })
}

fn is_meant(
    shared: &Shared,
    webhook: &Webhook,
    target: Target<'_>,
    operation: Operation,
    object: &Value,
) -> Result<bool, Failure> {
    let resource = target.resource;
    let lists =
        |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|listed| listed == "*" || listed == word);
    let is_ruled = webhook.rules.iter().any(|rule| {
        lists(&rule.api_groups, resource.group)
            && lists(&rule.api_versions, resource.version)
            && lists(&rule.operations, operation.word())
            && lists(&rule.resources, resource.plural)
    });
    let labels_of = |object: &Value| object["metadata"]["labels"].clone();
    let namespace = || {
        let key = Key::new(&NAMESPACES, "", target.namespace);
        let mut labels = shared.objects.lock().get(&key).map_or(Value::Null, labels_of);
        labels["kubernetes.io/metadata.name"] = target.namespace.into();
        labels
    };
    let selects = |selector: &Option<LabelSelector>, labels: &dyn Fn() -> Value| {
        selector.as_ref().is_none_or(|selector| matches(&json!(selector), &labels()))
    };
    if !is_ruled
        || resource.namespaced && !selects(&webhook.namespaces, &namespace)
        || !selects(&webhook.objects, &|| labels_of(object))
    {
        return Ok(false);
    }
    conditions::hold(&webhook.conditions, object)
        .map_err(|error| Failure::internal(format!("match conditions of webhook {:?}: {error}", webhook.name)))
}

/// Applies a webhook's patch to the object.
fn changed(webhook: &str, mut object: Value, response: &Value) -> Result<Value, Failure> {
    let Some(patch) = response.get("patch").filter(|patch| !patch.is_null()) else { return Ok(object) };
    let failed =
        |why: String| Failure::internal(format!("webhook {webhook:?} sent a patch that cannot be used: {why}"));
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(patch.clone()).map_err(|error| failed(error.to_string()))?;
    let patch: json_patch::Patch = serde_json::from_slice(&bytes.0).map_err(|error| failed(error.to_string()))?;
    json_patch::patch(&mut object, &patch).map_err(|error| failed(error.to_string()))?;
    Ok(object)
}
