//! Expressions of admission policies and of match conditions, evaluated as the API server does.

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
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
/// If the text is not an expression, the API server would refuse it for its lists, or its evaluation fails.
pub fn evaluate<'a>(
    expression: &str,
    given: impl IntoIterator<Item = (&'a str, CelValue)>,
) -> Result<CelValue, String> {
    let environment = Arc::new(Env::stdlib());
    let program = environment.compile(expression).map_err(|error| format!("{expression}: {error}"))?;
    check_lists(program.expression()).map_err(|error| format!("{expression}: {error}"))?;
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

/// Refuses a list whose items are of several types, as the API server does before it takes a policy. It counts fields of
/// objects as a type of their own, whatever is in them. Only types that are plain to see are known here: beside such an
/// item, all items must be seen to have its type.
fn check_lists(expression: &IdedExpr) -> Result<(), String> {
    if let Expr::List(list) = &expression.expr {
        let types: Vec<Option<&str>> = list.elements.iter().map(|item| plain_type(&item.expr)).collect();
        if types.iter().any(Option::is_some) && types.windows(2).any(|two| two[0] != two[1]) {
            return Err(format!("a list has items of several types: {types:?}"));
        }
    }
    parts(&expression.expr).into_iter().try_for_each(check_lists)
}

fn plain_type(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(LiteralValue::Boolean(_)) => Some("bool"),
        Expr::Literal(LiteralValue::Int(_)) => Some("int"),
        Expr::Literal(LiteralValue::Double(_)) => Some("double"),
        Expr::Literal(LiteralValue::String(_)) => Some("string"),
        Expr::Call(call) => match call.func_name.as_str() {
            name @ ("bool" | "int" | "double" | "string") => Some(name),
            "size" => Some("int"),
            _ => None,
        },
        _ => None,
    }
}

fn parts(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(of) => {
            vec![&of.iter_range, &of.accu_init, &of.loop_cond, &of.loop_step, &of.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| parts_of_entry(&entry.expr)).collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|entry| parts_of_entry(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn parts_of_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_that_the_api_server_refuses_are_refused() {
        let evaluate = |expression| evaluate(expression, [("object", value(&json!({"a": "1", "b": "2"})))]);
        for refused in ["[object.a, string(object.b)]", "object.map(k, ['x', k])", "{'list': [1, 'x']}.list[0]"] {
            let error = evaluate(refused).unwrap_err();
            assert!(error.contains("several types"), "{error}");
        }
        for taken in ["[object.a, object.b]", "[string(object.a), string(object.b)]", "['x', 'y']", "[size(object), 1]"]
        {
            assert!(evaluate(taken).is_ok(), "{taken}");
        }
    }
}
