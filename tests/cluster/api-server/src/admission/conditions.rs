//! Expressions of admission policies and of match conditions, evaluated as the API server does.

use std::collections::HashMap;
use std::sync::Arc;

use cel::{Context, Env, Value as CelValue};
use k8s_openapi::api::admissionregistration::v1::MatchCondition;
use serde_json::Value;

/// Whether all conditions hold for an object.
pub(super) fn hold(conditions: &[MatchCondition], object: &Value) -> Result<bool, String> {
    let found = conditions.iter().map(|condition| evaluate(&condition.expression, [("object", value(object))]));
    let found: Vec<CelValue> = found.collect::<Result<_, String>>()?;
    Ok(found.iter().all(|found| *found == CelValue::Bool(true)))
}

/// Evaluates an expression of an admission policy or of a match condition with these variables.
///
/// # Errors
/// If the text is not an expression, or its evaluation fails.
pub fn evaluate<'a>(
    expression: &str,
    given: impl IntoIterator<Item = (&'a str, CelValue)>,
) -> Result<CelValue, String> {
    let environment = Arc::new(Env::stdlib());
    let program = environment.compile(expression).map_err(|error| format!("{expression}: {error}"))?;
    let mut context = Context::with_env(environment);
    for (name, value) in given {
        context.add_variable_from_value(name, value);
    }
    program.execute(&context).map_err(|error| format!("{expression}: {error}"))
}

/// An object as the API server passes it to an expression: all whole numbers are `int`.
#[must_use]
pub fn value(json: &Value) -> CelValue {
    match json {
        Value::Null => CelValue::Null,
        Value::Bool(bool) => (*bool).into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(other)) => other.into(),
            (None, None) => CelValue::Null,
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.clone(), value(field))).collect::<HashMap<_, _>>().into()
        }
    }
}
