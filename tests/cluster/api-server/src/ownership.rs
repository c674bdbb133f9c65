//! The owners of fields: server-side apply, and the effect of other writes on the owners.

use serde_json::{Value, json};

use super::fields::{self, Fields};
use super::status::Failure;

/// A client that writes, and the address that it writes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    /// The subresource; empty for the object itself.
    pub(super) subresource: &'a str,
    /// The group and version of the object.
    pub(super) api_version: &'a str,
}

/// The fields that one writer owns.
struct Entry {
    manager: String,
    operation: String,
    subresource: String,
    time: Value,
    api_version: Value,
    fields: Fields,
}

/// Fields that have no owner.
const WITHOUT_OWNER: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
];

/// The object `live` with `configuration` applied to it.
pub(super) fn apply(live: &Value, configuration: &Value, writer: Writer<'_>, force: bool) -> Result<Value, Failure> {
    let mut entries = entries(live);
    let applied = owned_fields(configuration);
    let position = entries.iter().position(|entry| entry.is_of(writer, "Apply"));
    let mine = position.map(|position| entries.remove(position).fields).unwrap_or_default();

    let mut conflicts = Vec::new();
    for path in &applied {
        let differs = match (fields::get(live, path), fields::get(configuration, path)) {
            // Two writers cannot disagree about the existence of an item.
            _ if path.last().is_some_and(|element| !element.starts_with("f:")) => false,
            (Some(live), Some(wanted)) => live != wanted,
            _ => false,
        };
        for entry in entries.iter_mut().filter(|_| differs) {
            if entry.fields.contains(path) {
                if force {
                    entry.fields.remove(path);
                } else {
                    conflicts.push(format!("conflict with {:?}: {}", entry.manager, path.join(".")));
                }
            }
        }
    }
    if !conflicts.is_empty() {
        let message = format!("Apply failed with {} conflicts: {}", conflicts.len(), conflicts.join("; "));
        return Err(Failure::conflict(message));
    }

    let mut object = live.clone();
    for path in &applied {
        let wanted = fields::get(configuration, path).expect("a field of the configuration");
        fields::set(&mut object, path, wanted);
    }
    // Fields that this writer applied before and no longer does are removed, unless another writer owns them. Items go
    // before the keys by which they are found.
    for path in mine.difference(&applied) {
        if !entries.iter().any(|entry| entry.fields.iter().any(|other| other.starts_with(path))) {
            fields::remove(&mut object, path);
        }
    }
    if !applied.is_empty() {
        entries.push(Entry::new(writer, "Apply", applied));
    }
    write(&mut object, entries);
    Ok(object)
}

/// Makes `writer` the owner of all fields that differ between `before` and `object`.
pub(super) fn record(before: &Value, object: &mut Value, writer: Writer<'_>) {
    let mut entries = entries(before);
    let present = owned_fields(object);
    let changed: Fields = present
        .iter()
        .filter(|path| match path.last() {
            Some(element) if !element.starts_with("f:") => fields::get(before, path).is_none(),
            _ => fields::get(before, path) != fields::get(object, path),
        })
        .cloned()
        .collect();
    for entry in &mut entries {
        let own = entry.is_of(writer, "Update");
        entry.fields.retain(|path| present.contains(path) && (own || !changed.contains(path)));
    }
    match entries.iter_mut().find(|entry| entry.is_of(writer, "Update")) {
        Some(entry) => entry.fields.extend(changed),
        None => entries.push(Entry::new(writer, "Update", changed)),
    }
    entries.retain(|entry| !entry.fields.is_empty());
    write(object, entries);
}

fn owned_fields(object: &Value) -> Fields {
    let ownerless = |path: &[String]| match path {
        [first] => ["f:apiVersion", "f:kind"].contains(&first.as_str()),
        [first, second, ..] => {
            first == "f:metadata" && second.strip_prefix("f:").is_some_and(|name| WITHOUT_OWNER.contains(&name))
        }
        [] => true,
    };
    fields::of(object).into_iter().filter(|path| !ownerless(path)).collect()
}

fn entries(object: &Value) -> Vec<Entry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let read = |entry: &Value| Entry {
        manager: text(&entry["manager"]),
        operation: text(&entry["operation"]),
        subresource: text(&entry["subresource"]),
        time: entry["time"].clone(),
        api_version: entry["apiVersion"].clone(),
        fields: fields::from_json(&entry["fieldsV1"]),
    };
    object["metadata"]["managedFields"].as_array().into_iter().flatten().map(read).collect()
}

fn write(object: &mut Value, entries: Vec<Entry>) {
    let entries = entries.into_iter().filter(|entry| !entry.fields.is_empty()).map(|entry| {
        let mut written = json!({
            "manager": entry.manager, "operation": entry.operation, "time": entry.time,
            "apiVersion": entry.api_version, "fieldsType": "FieldsV1", "fieldsV1": fields::to_json(&entry.fields),
        });
        if !entry.subresource.is_empty() {
            written["subresource"] = entry.subresource.into();
        }
        written
    });
    object["metadata"]["managedFields"] = entries.collect();
}

impl Entry {
    fn new(writer: Writer<'_>, operation: &str, fields: Fields) -> Entry {
        Entry {
            manager: writer.manager.to_owned(),
            operation: operation.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: super::now().into(),
            api_version: writer.api_version.into(),
            fields,
        }
    }

    fn is_of(&self, writer: Writer<'_>, operation: &str) -> bool {
        (self.manager.as_str(), self.subresource.as_str(), self.operation.as_str())
            == (writer.manager, writer.subresource, operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Writer<'_> = Writer { manager: "a", subresource: "", api_version: "v1" };
    const B: Writer<'_> = Writer { manager: "b", subresource: "", api_version: "v1" };

    #[test]
    fn what_is_no_longer_applied_goes_and_what_others_own_stays() {
        let empty = json!({"metadata": {"name": "x"}});
        let device = |name: &str| json!({"driver": "d", "pool": "p", "device": name, "data": {"by": name}});
        let first = json!({"status": {"devices": [device("one"), device("two")]}});
        let live = apply(&empty, &first, A, false).unwrap();
        let live = apply(&live, &json!({"status": {"devices": [device("three")]}}), B, false).unwrap();
        let live = apply(&live, &json!({"status": {"devices": [device("two")]}}), A, false).unwrap();
        assert_eq!(live["status"]["devices"], json!([device("two"), device("three")]));
    }

    #[test]
    fn two_that_apply_different_values_conflict_unless_one_forces() {
        let empty = json!({"metadata": {"name": "x"}});
        let live = apply(&empty, &json!({"spec": {"a": 1}}), A, false).unwrap();
        let other = json!({"spec": {"a": 2}});
        assert_eq!(apply(&live, &other, B, false).unwrap_err().reason, "Conflict");
        let live = apply(&live, &other, B, true).unwrap();
        assert_eq!(live["spec"]["a"], 2);
        assert_eq!(apply(&live, &json!({"spec": {"a": 1}}), A, false).unwrap_err().reason, "Conflict");
    }

    #[test]
    fn a_field_that_is_updated_has_a_new_owner() {
        let empty = json!({"metadata": {"name": "x"}});
        let live = apply(&empty, &json!({"spec": {"a": 1, "b": 1}}), A, false).unwrap();
        let mut updated = live.clone();
        updated["spec"]["a"] = 2.into();
        record(&live, &mut updated, B);
        let again = apply(&updated, &json!({"spec": {"a": 1, "b": 1}}), A, false).unwrap_err();
        assert!(again.message.contains("\"b\""), "{again}");
        let without = apply(&updated, &json!({"spec": {"b": 1}}), A, false).unwrap();
        assert_eq!(without["spec"], json!({"a": 2, "b": 1}));
    }
}
