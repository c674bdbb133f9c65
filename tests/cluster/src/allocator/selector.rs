//! CEL selectors: the conditions of classes and requests on devices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Env, Value};
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceSelector};

use super::pool::Candidate;
use aliquot_test_api_server::Quantity;

/// Whether a selector selects the candidate. As in the real scheduler, an expression that fails at run time is an error
/// for the whole allocation.
pub(super) fn selects(selector: &DeviceSelector, candidate: &Candidate<'_>) -> Result<bool, String> {
    let cel = selector.cel.as_ref().ok_or("a selector without cel")?;
    let failed = |error: String| format!("CEL expression {:?}: {error}", cel.expression);
    let environment = Arc::new(Env::stdlib());
    let program = environment.compile(&cel.expression).map_err(|error| failed(error.to_string()))?;
    let mut context = Context::with_env(environment);
    context.add_variable_from_value("device", device(candidate));
    // Quantities are represented as numbers of whole units here.
    let quantity = |text: Arc<String>| units(&text);
    context.add_function("quantity", quantity).map_err(|error| failed(error.to_string()))?;
    let compare = |This(this): This<i64>, other: i64| i64::from(this > other) - i64::from(this < other);
    context.add_function("compareTo", compare).map_err(|error| failed(error.to_string()))?;
    let greater = |This(this): This<i64>, other: i64| this > other;
    context.add_function("isGreaterThan", greater).map_err(|error| failed(error.to_string()))?;
    let less = |This(this): This<i64>, other: i64| this < other;
    context.add_function("isLessThan", less).map_err(|error| failed(error.to_string()))?;
    match program.execute(&context).map_err(|error| failed(error.to_string()))? {
        Value::Bool(selected) => Ok(selected),
        other => Err(failed(format!("must evaluate to bool, not {other:?}"))),
    }
}

/// The variable `device` of expressions.
fn device(candidate: &Candidate<'_>) -> Value {
    let device = candidate.device;
    let attributes = device.attributes.iter().flatten().map(|(name, value)| (name.as_str(), attribute(value)));
    let capacity = device.capacity.iter().flatten().map(|(name, value)| (name.as_str(), units(&value.value.0).into()));
    let fields: HashMap<String, Value> = HashMap::from([
        ("driver".to_owned(), candidate.driver.to_owned().into()),
        ("allowMultipleAllocations".to_owned(), (device.allow_multiple_allocations == Some(true)).into()),
        ("attributes".to_owned(), by_domain(candidate.driver, attributes)),
        ("capacity".to_owned(), by_domain(candidate.driver, capacity)),
    ]);
    fields.into()
}

/// Values by domain and name. Values without a domain belong to their driver's domain.
fn by_domain<'a>(driver: &'a str, values: impl Iterator<Item = (&'a str, Value)>) -> Value {
    let mut domains: BTreeMap<&str, HashMap<String, Value>> = BTreeMap::from([(driver, HashMap::new())]);
    for (name, value) in values {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().insert(name.to_owned(), value);
    }
    let domains: HashMap<String, Value> = domains.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
    domains.into()
}

fn attribute(attribute: &DeviceAttribute) -> Value {
    let DeviceAttribute { bool, int, string, version, .. } = attribute;
    match (bool, int, string.as_ref().or(version.as_ref())) {
        (Some(bool), _, _) => (*bool).into(),
        (_, Some(int), _) => (*int).into(),
        (_, _, Some(text)) => text.clone().into(),
        _ => Value::Null,
    }
}

fn units(text: &str) -> i64 {
    Quantity::parse(text).and_then(|quantity| i64::try_from(quantity.units()).ok()).unwrap_or(i64::MAX)
}
