//! Fields of objects by their paths, and sets of fields, in the form that server-side apply stores.
//!
//! An element of a path is written as in `FieldsV1`: `f:name` is a field, `k:{…}` the item of a list with these keys,
//! `v:…` a value of a set.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// The path to a field.
pub(super) type Path = Vec<String>;
/// A set of fields.
pub(super) type Fields = BTreeSet<Path>;

/// How the items of a list are identified.
enum List {
    /// By the values of these keys.
    Keyed(&'static [&'static str]),
    /// By the items themselves.
    Set,
    /// Items are not identified: the list is written as a whole.
    Atomic,
}

/// How the items of the list at `path` are identified.
fn list_at(path: &[String]) -> List {
    let fields: Vec<&str> = path.iter().filter_map(|element| element.strip_prefix("f:")).collect();
    match fields.as_slice() {
        ["metadata", "finalizers"] => List::Set,
        ["metadata", "ownerReferences"] | ["status", "reservedFor"] => List::Keyed(&["uid"]),
        ["status", "devices"] => List::Keyed(&["driver", "device", "pool", "shareID"]),
        ["status", "conditions"] | ["status", "devices", "conditions"] => List::Keyed(&["type"]),
        _ => List::Atomic,
    }
}

/// Whether the object at `path` is written as a whole.
fn is_atomic(path: &[String]) -> bool {
    matches!(path.last().map(String::as_str), Some("f:data" | "f:nodeSelector" | "f:parameters"))
}

/// The fields of `value`. No field is part of another one, except items of lists, which are fields themselves.
pub(super) fn of(value: &Value) -> Fields {
    let mut fields = Fields::new();
    collect(value, &mut Path::new(), &mut fields);
    fields
}

fn collect(value: &Value, path: &mut Path, fields: &mut Fields) {
    match value {
        Value::Object(members) if !members.is_empty() && !is_atomic(path) => {
            members.iter().for_each(|(name, value)| inside(format!("f:{name}"), value, path, fields));
        }
        Value::Array(items) => match list_at(path) {
            List::Keyed(keys) => {
                for item in items {
                    let key = key_of(item, keys);
                    fields.insert(path.iter().chain([&key]).cloned().collect());
                    inside(key, item, path, fields);
                }
            }
            List::Set => {
                fields.extend(
                    items.iter().map(|item| path.iter().cloned().chain([format!("v:{item}")]).collect::<Path>()),
                );
            }
            List::Atomic => drop(fields.insert(path.clone())),
        },
        _ => drop(fields.insert(path.clone())),
    }
}

fn inside(element: String, value: &Value, path: &mut Path, fields: &mut Fields) {
    path.push(element);
    collect(value, path, fields);
    path.pop();
}

fn key_of(item: &Value, keys: &[&str]) -> String {
    let key: BTreeMap<&str, &Value> = keys.iter().filter_map(|key| Some((*key, item.get(key)?))).collect();
    format!("k:{}", serde_json::to_string(&key).expect("values are written as JSON"))
}

/// Whether an element of a path means this item of a list.
fn is_item(item: &Value, kind: &str, text: &str) -> bool {
    let wanted: Value = serde_json::from_str(text).expect("elements are written by this module");
    match wanted.as_object().filter(|_| kind == "k") {
        Some(keys) => keys.iter().all(|(name, value)| item.get(name) == Some(value)),
        None => *item == wanted,
    }
}

/// The value at `path`.
pub(super) fn get<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, element| match element.split_once(':')? {
        ("f", name) => value.get(name),
        (kind, text) => value.as_array()?.iter().find(|item| is_item(item, kind, text)),
    })
}

/// Writes `value` at `path`, and makes the objects and lists on the way.
pub(super) fn set(object: &mut Value, path: &[String], value: &Value) {
    let Some((element, rest)) = path.split_first() else {
        *object = value.clone();
        return;
    };
    match element.split_once(':') {
        Some(("f", name)) => {
            if !object.is_object() {
                *object = Value::Object(Map::new());
            }
            set(&mut object[name], rest, value);
        }
        Some((kind, text)) => {
            if !object.is_array() {
                *object = Value::Array(Vec::new());
            }
            let items = object.as_array_mut().expect("it was made one");
            let index = items.iter().position(|item| is_item(item, kind, text)).unwrap_or_else(|| {
                items.push(serde_json::from_str(text).expect("keys are written by this module"));
                items.len() - 1
            });
            // An existing item keeps the fields of other writers.
            if !rest.is_empty() {
                set(&mut items[index], rest, value);
            }
        }
        None => unreachable!("elements have a kind: {element}"),
    }
}

/// Removes the value at `path`.
pub(super) fn remove(object: &mut Value, path: &[String]) {
    let Some((element, rest)) = path.split_first() else { return };
    match (element.split_once(':'), object) {
        (Some(("f", name)), Value::Object(members)) if rest.is_empty() => drop(members.remove(name)),
        (Some(("f", name)), Value::Object(members)) => {
            if let Some(member) = members.get_mut(name) {
                remove(member, rest);
            }
        }
        (Some((kind, text)), Value::Array(items)) => {
            if rest.is_empty() {
                items.retain(|item| !is_item(item, kind, text));
            } else if let Some(item) = items.iter_mut().find(|item| is_item(item, kind, text)) {
                remove(item, rest);
            }
        }
        _ => {}
    }
}

/// The set as `FieldsV1`.
pub(super) fn to_json(fields: &Fields) -> Value {
    let mut root = Value::Object(Map::new());
    for path in fields {
        let mut at = &mut root;
        for element in path {
            at = at
                .as_object_mut()
                .expect("all are objects")
                .entry(element.clone())
                .or_insert_with(|| Map::new().into());
        }
        // A field that contains other fields of the set is marked as a member itself.
        if fields.iter().any(|other| other.len() > path.len() && other.starts_with(path)) {
            at["."] = Map::new().into();
        }
    }
    root
}

/// The set of fields that is written in `json`.
pub(super) fn from_json(json: &Value) -> Fields {
    let mut fields = Fields::new();
    read(json, &mut Path::new(), &mut fields);
    fields
}

fn read(json: &Value, path: &mut Path, fields: &mut Fields) {
    let members = json.as_object().into_iter().flatten();
    let mut is_leaf = true;
    for (element, json) in members {
        if element == "." {
            fields.insert(path.clone());
            is_leaf = false;
            continue;
        }
        is_leaf = false;
        path.push(element.clone());
        read(json, path, fields);
        path.pop();
    }
    if is_leaf && !path.is_empty() {
        fields.insert(path.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_set_of_fields_is_written_and_read() {
        let object = json!({
            "metadata": {"finalizers": ["a/b"]},
            "status": {"devices": [
                {"driver": "d", "pool": "p", "device": "x", "data": {"a": 1, "b": []}},
                {"driver": "d", "pool": "p", "device": "y", "shareID": "s"},
            ]},
            "spec": {"list": [1, 2], "empty": {}},
        });
        let fields = of(&object);
        assert_eq!(from_json(&to_json(&fields)), fields);
        let mut copy = json!({});
        for path in &fields {
            set(&mut copy, path, get(&object, path).unwrap());
        }
        assert_eq!(copy, object);
    }
}
