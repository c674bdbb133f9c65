//! Expressions of admission policies, evaluated as the API server does.

use std::collections::HashMap;
use std::sync::Arc;

use cel::{Context, Env, Value as CelValue};
use serde_json::Value;

/// What an expression says where these variables are given.
pub(crate) fn evaluate<'a>(expression: &str, given: impl IntoIterator<Item = (&'a str, CelValue)>) -> CelValue {
    let environment = Arc::new(Env::stdlib());
    let program = environment.compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let mut context = Context::with_env(environment);
    for (name, value) in given {
        context.add_variable_from_value(name, value);
    }
    program.execute(&context).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// An object as the API server hands it to an expression: all whole numbers are `int`.
pub(crate) fn value(json: &Value) -> CelValue {
    match json {
        Value::Null => CelValue::Null,
        Value::Bool(bool) => (*bool).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().expect("a number").into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.clone(), value(field))).collect::<HashMap<_, _>>().into()
        }
    }
}
