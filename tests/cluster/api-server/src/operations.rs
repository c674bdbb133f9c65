//! The operations on objects. Each operation is one step: it happens completely or not at all.

use serde_json::{Value, json};

use super::objects::{Key, Locked, Objects};
use super::ownership::{self, Writer};
use super::resource::{PODS, Resource};
use super::selector::Selector;
use super::status::Failure;
use super::validation::name;

/// The object of an operation, and the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) resource: &'static Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Whether the operation is on the status only.
    pub(super) status: bool,
    /// The field manager of the client.
    pub(super) manager: &'a str,
}

/// The patch of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patch<'a> {
    /// A JSON merge patch.
    Merge(&'a Value),
    /// A strategic merge patch. Of lists it supports only conditions, which have their type as the key.
    Strategic(&'a Value),
    /// Server-side apply.
    Apply {
        /// The configuration to apply.
        configuration: &'a Value,
        /// Whether fields that others own are taken over.
        force: bool,
    },
}

impl Target<'_> {
    pub(super) fn key(&self) -> Key {
        Key::new(self.resource, self.namespace, self.name)
    }

    fn full_name(&self) -> String {
        let dot = if self.resource.group.is_empty() { "" } else { "." };
        format!("{}{dot}{} {:?}", self.resource.plural, self.resource.group, self.name)
    }

    pub(super) fn live<'l>(&self, objects: &'l Locked<'_>) -> Result<&'l Value, Failure> {
        objects.get(&self.key()).ok_or_else(|| Failure::not_found(self.full_name()))
    }

    fn writer<'w>(&'w self, api_version: &'w str) -> Writer<'w> {
        Writer { manager: self.manager, subresource: if self.status { "status" } else { "" }, api_version }
    }
}

pub(super) fn get(objects: &Objects, target: Target<'_>) -> Result<Value, Failure> {
    target.live(&objects.lock()).cloned()
}

/// The objects that `selector` selects, and the version of the list.
pub(super) fn list(
    objects: &Objects,
    resource: &Resource,
    namespace: Option<&str>,
    selector: &Selector,
) -> (u64, Vec<Value>) {
    let objects = objects.lock();
    let listed = objects.list(resource, namespace).map(|(_, object)| object).filter(|object| selector.selects(object));
    (objects.version(), listed.map(|object| Value::clone(object)).collect())
}

pub(super) fn create(objects: &Objects, target: Target<'_>, mut object: Value) -> Result<Value, Failure> {
    let resource = target.resource;
    if !object["metadata"].is_object() {
        return Err(Failure::invalid("metadata", "required"));
    }
    if object["metadata"].get("resourceVersion").is_some_and(|version| version != "") {
        return Err(Failure::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if object["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
        let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default();
        if prefix.is_empty() {
            return Err(Failure::invalid("metadata.name", "name or generateName is required"));
        }
        object["metadata"]["name"] = format!("{prefix}{}", &super::random_uuid()[..5]).into();
    }
    if resource.namespaced {
        let given = object["metadata"]["namespace"].as_str().unwrap_or(target.namespace);
        if given != target.namespace {
            return Err(Failure::bad_request(
                "the namespace of the object does not match the namespace of the request",
            ));
        }
        object["metadata"]["namespace"] = target.namespace.into();
    } else if object["metadata"].get("namespace").is_some() {
        return Err(Failure::invalid("metadata.namespace", "not allowed on this type"));
    }
    metadata(&object["metadata"])?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let target = Target { name: &name, ..target };
    object["metadata"]["uid"] = super::random_uuid().into();
    object["metadata"]["creationTimestamp"] = super::now().into();
    if !is_event(resource) {
        object["metadata"]["generation"] = 1.into();
    }
    if resource.has_status {
        object["status"] = if resource.plural == PODS.plural { json!({"phase": "Pending"}) } else { json!({}) };
    }
    let mut object = resource.decode(&object)?;
    (resource.validate)(&object, None)?;
    let api_version = resource.api_version();
    ownership::record(&json!({}), &mut object, target.writer(&api_version));

    let mut objects = objects.lock();
    if objects.get(&target.key()).is_some() {
        return Err(Failure::already_exists(target.full_name()));
    }
    Ok(Value::clone(&objects.put(target.key(), object)))
}

pub(super) fn update(objects: &Objects, target: Target<'_>, object: &Value) -> Result<Value, Failure> {
    let mut objects = objects.lock();
    let live = target.live(&objects)?.clone();
    if object["metadata"]["name"] != target.name {
        return Err(Failure::bad_request("the name of the object does not match the name on the URL"));
    }
    preconditions(&live, &object["metadata"])?;
    let says_version = object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty());
    if target.resource.needs_version && !says_version {
        return Err(Failure::invalid("metadata.resourceVersion", "must be specified for an update"));
    }
    let api_version = target.resource.api_version();
    let mut object = merged(&live, object, target)?;
    ownership::record(&live, &mut object, target.writer(&api_version));
    replace(&mut objects, target, &live, object)
}

pub(super) fn patch(objects: &Objects, target: Target<'_>, patch: Patch<'_>) -> Result<Value, Failure> {
    let api_version = target.resource.api_version();
    if let Patch::Apply { configuration, .. } = patch {
        let metadata = &configuration["metadata"];
        if target.manager.is_empty() {
            return Err(Failure::bad_request("fieldManager is required for apply patch"));
        }
        if metadata.get("managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        if configuration["kind"] != target.resource.kind || configuration["apiVersion"] != *api_version {
            return Err(Failure::bad_request("apiVersion and kind must be set, and be those of the resource"));
        }
        if metadata.get("name").is_some_and(|name| name != target.name) {
            return Err(Failure::bad_request("the name of the object does not match the name on the URL"));
        }
        let missing = objects.lock().get(&target.key()).is_none();
        if missing && !target.status {
            let mut object = configuration.clone();
            object["metadata"]["name"] = target.name.into();
            let created = create(objects, target, object)?;
            // The client that applied a new object owns all its fields.
            let mut owned = created.clone();
            owned["metadata"]["managedFields"] = json!([]);
            let owned = ownership::apply(&owned, configuration, target.writer(&api_version), true)?;
            return Ok(Value::clone(&objects.lock().put(target.key(), owned)));
        }
    }
    let is_strategic = matches!(patch, Patch::Strategic(_));
    let mut objects = objects.lock();
    let live = target.live(&objects)?.clone();
    let object = match patch {
        Patch::Merge(patch) | Patch::Strategic(patch) => {
            let mut patched = live.clone();
            json_patch::merge(&mut patched, patch);
            let conditions = &patch["status"]["conditions"];
            if let (true, Value::Array(conditions)) = (is_strategic, conditions) {
                patched["status"]["conditions"] = with_conditions(&live["status"]["conditions"], conditions);
            }
            preconditions(&live, &patch["metadata"])?;
            let mut object = merged(&live, &patched, target)?;
            ownership::record(&live, &mut object, target.writer(&api_version));
            object
        }
        Patch::Apply { configuration, force } => {
            preconditions(&live, &configuration["metadata"])?;
            let mut part = configuration.clone();
            let fields = part.as_object_mut().expect("it has a kind");
            if target.status {
                fields.retain(|field, _| field == "status");
            } else if target.resource.has_status {
                fields.remove("status");
            }
            let applied = ownership::apply(&live, &part, target.writer(&api_version), force)?;
            let fields = applied["metadata"]["managedFields"].clone();
            let mut object = merged(&live, &applied, target)?;
            object["metadata"]["managedFields"] = fields;
            object
        }
    };
    replace(&mut objects, target, &live, object)
}

/// The conditions of `live`, with each new one in place of the one with the same type.
pub(super) fn with_conditions(live: &Value, new: &[Value]) -> Value {
    let is_replaced = |condition: &&Value| new.iter().any(|new| new["type"] == condition["type"]);
    let kept = live.as_array().into_iter().flatten().filter(|condition| !is_replaced(condition));
    kept.chain(new).cloned().collect()
}

/// Deletes an object, or marks it as deleted if a finalizer or a kubelet must act first.
pub(super) fn delete(objects: &Objects, target: Target<'_>, options: &Value) -> Result<Value, Failure> {
    delete_locked(&mut objects.lock(), target, options)
}

/// The same, as a part of a larger step.
pub(super) fn delete_locked(objects: &mut Locked<'_>, target: Target<'_>, options: &Value) -> Result<Value, Failure> {
    let live = target.live(objects)?.clone();
    let wanted = &options["preconditions"];
    for (field, of) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let given = &wanted[field];
        if !given.is_null() && *given != live["metadata"][field] {
            let message = format!("the {of} in the precondition ({given}) does not match {}", live["metadata"][field]);
            return Err(Failure::conflict(message));
        }
    }
    let finalizers = live["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    // A pod on a node is deleted when its kubelet says so.
    let seconds = options["gracePeriodSeconds"].as_i64();
    let on_a_node = target.resource.plural == PODS.plural && live["spec"]["nodeName"].is_string();
    let grace = seconds.or_else(|| live["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    if finalizers || (on_a_node && grace > 0) {
        if live["metadata"]["deletionTimestamp"].is_string() {
            return Ok(live);
        }
        let mut object = live;
        object["metadata"]["deletionTimestamp"] = super::now().into();
        object["metadata"]["deletionGracePeriodSeconds"] = if on_a_node { grace } else { 0 }.into();
        return Ok(Value::clone(&objects.put(target.key(), object)));
    }
    objects.remove(target.key());
    Ok(live)
}

/// `object` as it may replace `live`: the other part, and fields that no client may write, stay as they are.
fn merged(live: &Value, object: &Value, target: Target<'_>) -> Result<Value, Failure> {
    let mut new = object.clone();
    if target.status {
        new = live.clone();
        new["status"] = object["status"].clone();
        if target.resource.metadata_with_status {
            for field in ["labels", "annotations"] {
                new["metadata"][field] = object["metadata"][field].clone();
            }
        }
        // A claim without an allocation has no devices with a status.
        let was_allocated = live["status"]["allocation"].is_object();
        if was_allocated && !new["status"]["allocation"].is_object() {
            new["status"].as_object_mut().map(|status| status.remove("devices"));
        }
    } else if target.resource.has_status {
        new["status"] = live["status"].clone();
    }
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion", "namespace"] {
        match live["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => drop(new["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field))),
        }
    }
    if !target.status && new.get("spec") != live.get("spec") {
        new["metadata"]["generation"] = (live["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
    }
    metadata(&new["metadata"])?;
    let new = target.resource.decode(&new)?;
    if target.status {
        (target.resource.validate_status)(&new, live)?;
    } else {
        (target.resource.validate)(&new, Some(live))?;
    }
    Ok(new)
}

fn replace(objects: &mut Locked<'_>, target: Target<'_>, live: &Value, object: Value) -> Result<Value, Failure> {
    let finished = object["metadata"]["deletionTimestamp"].is_string()
        && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
        && target.resource.plural != PODS.plural;
    if finished {
        objects.remove(target.key());
        return Ok(object);
    }
    let same = |field: &str| live.get(field) == object.get(field);
    let same_metadata = {
        let without_owners = |object: &Value| {
            let mut metadata = object["metadata"].clone();
            metadata.as_object_mut().map(|metadata| metadata.remove("managedFields"));
            metadata
        };
        without_owners(live) == without_owners(&object)
    };
    let fields = live.as_object().into_iter().flatten().chain(object.as_object().into_iter().flatten());
    // A write that changes nothing does not make a new version.
    if same_metadata && fields.map(|(field, _)| field).filter(|field| *field != "metadata").all(|field| same(field)) {
        return Ok(live.clone());
    }
    Ok(Value::clone(&objects.put(target.key(), object)))
}

pub(super) fn preconditions(live: &Value, given: &Value) -> Result<(), Failure> {
    let differs = |field: &str| {
        let given = given[field].as_str().unwrap_or_default();
        !given.is_empty() && live["metadata"][field] != given
    };
    if differs("resourceVersion") {
        let message = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Failure::conflict(message));
    }
    if differs("uid") {
        return Err(Failure::conflict(format!("Precondition failed: UID in object meta: {}", live["metadata"]["uid"])));
    }
    Ok(())
}

fn metadata(metadata: &Value) -> Result<(), Failure> {
    name::subdomain(metadata["name"].as_str().unwrap_or_default(), "metadata.name")?;
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        name::label_key(key, "metadata.labels")?;
        name::label_value(value.as_str().unwrap_or_default(), "metadata.labels")?;
    }
    for key in metadata["annotations"].as_object().into_iter().flatten().map(|(key, _)| key) {
        name::label_key(&key.to_lowercase(), "metadata.annotations")?;
    }
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        let given = |field: &str| owner[field].as_str().is_some_and(|value| !value.is_empty());
        if !["apiVersion", "kind", "name", "uid"].into_iter().all(given) {
            return Err(Failure::invalid("metadata.ownerReferences", "apiVersion, kind, name and uid are required"));
        }
    }
    Ok(())
}

fn is_event(resource: &Resource) -> bool {
    resource.plural == "events"
}
