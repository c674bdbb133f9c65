//! Label and field selectors.

use serde_json::Value;

use super::resource::Resource;
use super::status::Failure;

/// The conditions on the objects of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug)]
struct Requirement {
    /// The path of the value in an object.
    path: Vec<String>,
    equal: bool,
    value: String,
}

impl Selector {
    /// Reads the label selector and the field selector of a request, with `=`, `==` and `!=`.
    pub(super) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Selector, Failure> {
        let mut requirements = Vec::new();
        for (text, is_label) in terms(labels, true).chain(terms(fields, false)) {
            let (key, equal, value) = split(text)?;
            let path = if is_label {
                vec!["metadata".to_owned(), "labels".to_owned(), key.to_owned()]
            } else {
                let known =
                    ["metadata.name", "metadata.namespace"].contains(&key) || resource.selectable.contains(&key);
                if !known {
                    return Err(Failure::bad_request(format!("field label not supported: {key}")));
                }
                key.split('.').map(str::to_owned).collect()
            };
            requirements.push(Requirement { path, equal, value: value.to_owned() });
        }
        Ok(Selector { requirements })
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        self.requirements.iter().all(|requirement| {
            let found = requirement.path.iter().try_fold(object, |value, field| value.get(field));
            let found = found.and_then(Value::as_str).unwrap_or_default();
            (found == requirement.value) == requirement.equal
        })
    }
}

fn terms(text: &str, is_label: bool) -> impl Iterator<Item = (&str, bool)> {
    text.split(',').filter(|term| !term.is_empty()).map(move |term| (term, is_label))
}

fn split(term: &str) -> Result<(&str, bool, &str), Failure> {
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = term.split_once(operator) {
            return Ok((key.trim(), equal, value.trim()));
        }
    }
    Err(Failure::bad_request(format!("this server knows no such selector: {term:?}")))
}

/// Whether labels match a `LabelSelector`.
pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels[key].as_str();
    let mut equal = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    equal.all(|(key, value)| label(key) == value.as_str())
        && expressions.all(|of| {
            let found = label(of["key"].as_str().unwrap_or_default());
            let is_listed = of["values"].as_array().into_iter().flatten().any(|value| value.as_str() == found);
            match of["operator"].as_str() {
                Some("In") => is_listed,
                Some("NotIn") => !is_listed,
                Some("Exists") => found.is_some(),
                Some("DoesNotExist") => found.is_none(),
                _ => false,
            }
        })
}
