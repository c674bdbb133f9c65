//! The server's side of HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, USER_AGENT, WARNING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::admission::{self, Operation};
use super::fault::Fault;
use super::form::Form;
use super::operations::{self, Patch, Target};
use super::request::{Address, Query, Subresource};
use super::resource::{CLAIMS, RESOURCES, Resource, TOKEN_REVIEWS};
use super::scheduling;
use super::selector::Selector;
use super::status::Failure;
use super::watch::Watch;
use super::{Call, Shared};

type Body = BoxBody<Bytes, Infallible>;

/// The answer to a request.
enum Answer {
    Json(u16, Value),
    /// The same with warnings for the client.
    Warned(u16, Value, Vec<String>),
    Stream(Watch),
    Upgraded(Response<Body>),
}

/// Serves each connection until its client closes it.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((connection, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&shared), request));
            // A broken connection is left to its client.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).with_upgrades().await;
        });
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let fault = match shared.out.load(Ordering::SeqCst) {
        true => Fault::Refused,
        false => shared.faults.of(request.method().as_str(), request.uri().path()),
    };
    let answer = match fault {
        Fault::None => handle(&shared, request).await,
        Fault::Refused => Err(Failure::unavailable()),
        Fault::Forbidden => Err(Failure::forbidden(request.uri().path())),
        Fault::NotFound => Err(Failure::not_found(request.uri().path())),
        Fault::AnswerLost => handle(&shared, request).await.and(Err(Failure::unavailable())),
        Fault::AnswerHeld => {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let answer = handle(&shared, request).await;
            shared.faults.release(method.as_str(), &path).await;
            answer
        }
    };
    Ok(match answer {
        Ok(Answer::Json(code, object)) => respond(code, &object),
        Ok(Answer::Warned(code, object, warnings)) => warned(respond(code, &object), &warnings),
        Ok(Answer::Upgraded(response)) => response,
        Ok(Answer::Stream(watch)) => {
            let (sender, receiver) = mpsc::channel(64);
            tokio::spawn(watch.run(shared, sender));
            let body = BodyExt::boxed(StreamBody::new(ReceiverStream::new(receiver)));
            Response::builder().header(CONTENT_TYPE, "application/json").body(body).expect("a valid response")
        }
        Err(failure) => respond(failure.code, &failure.to_json()),
    })
}

fn respond(code: u16, object: &Value) -> Response<Body> {
    let body = BodyExt::boxed(Full::new(Bytes::from(object.to_string())));
    Response::builder().status(code).header(CONTENT_TYPE, "application/json").body(body).expect("a valid response")
}

/// Adds the warnings as headers, each in quotation marks.
fn warned(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        // A text that a header cannot contain is left out, as by the real server.
        if let Ok(text) = text.parse() {
            response.headers_mut().append(WARNING, text);
        }
    }
    response
}

async fn handle(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Failure> {
    let path = request.uri().path();
    if path == "/version" {
        let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"});
        return Ok(Answer::Json(200, version));
    }
    if let Some(list) = discovery(shared, path) {
        return Ok(Answer::Json(200, list));
    }
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let form = Form::of(accept)?;
    Ok(match carry_out(shared, request, form).await? {
        Answer::Json(code, object) => Answer::Json(code, form.answer(object)?),
        Answer::Warned(code, object, warnings) => Answer::Warned(code, form.answer(object)?, warnings),
        other => other,
    })
}

async fn carry_out(shared: &Arc<Shared>, request: Request<Incoming>, form: Form) -> Result<Answer, Failure> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    let (address, query) = (Address::parse(path)?, Query::of(&parts.uri));
    if !shared.serves(address.resource) {
        return Err(Failure::not_found(format!("the server could not find the requested resource: {path}")));
    }
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let client = header(USER_AGENT).to_owned();
    let content_type = header(CONTENT_TYPE).to_owned();
    note(shared, &parts.method, &address, &query, &client, form)?;
    let body = body.collect().await.map_err(|error| Failure::bad_request(error.to_string()))?.to_bytes();

    // The default field manager is the first word of the user agent. Server-side apply has no default.
    let given = query.text("fieldManager");
    let is_apply = content_type.starts_with("application/apply-patch");
    let manager = match given {
        "" if is_apply => "",
        "" => client.split(['/', ' ']).next().unwrap_or_default(),
        given => given,
    };
    let target = Target {
        resource: address.resource,
        namespace: address.namespace.as_deref().unwrap_or_default(),
        name: address.name.as_deref().unwrap_or_default(),
        status: address.status,
        manager,
    };
    let objects = &shared.objects;
    if address.subresource == Some(Subresource::PortForward) {
        operations::get(objects, target)?;
        let response = shared.forwards.begin(&mut parts, &query, target.namespace, target.name)?;
        return Ok(Answer::Upgraded(response));
    }
    if let Some(subresource) = address.subresource {
        json_only(&content_type)?;
        let body = parse(&body)?;
        match subresource {
            Subresource::Binding => scheduling::bind(objects, target, &body)?,
            Subresource::Eviction => scheduling::evict(objects, target, &body)?,
            Subresource::PortForward => return Err(Failure::method_not_allowed("POST")),
        }
        return Ok(Answer::Json(201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})));
    }
    if let (method @ ("PUT" | "PATCH"), true) = (parts.method.as_str(), is_status_of_claim(&address)) {
        let before = operations::get(objects, target)?;
        let after = match method {
            "PUT" => operations::update(objects, target, &parse(&body)?)?,
            _ => operations::patch(objects, target, patch(&content_type, is_apply, &query, &parse(&body)?)?)?,
        };
        note_binding(shared, method, &before, &after, &client);
        return Ok(Answer::Json(200, after));
    }
    let read = |body: &[u8]| Ok::<Value, Failure>(shared.read(target.resource, parse(body)?));
    match (parts.method.as_str(), &address.name) {
        ("GET", Some(_)) => Ok(Answer::Json(200, operations::get(objects, target)?)),
        ("GET", None) => list(shared, &address, &query, form),
        ("POST", None) if target.resource.kind == TOKEN_REVIEWS.kind => {
            Ok(Answer::Json(201, shared.tokens.review(parse(&body)?)))
        }
        ("POST", None) => {
            json_only(&content_type)?;
            let (object, warnings) = admission::admit(shared, target, Operation::Create, read(&body)?).await?;
            Ok(Answer::Warned(201, operations::create(objects, target, object)?, warnings))
        }
        ("PUT", Some(_)) => {
            json_only(&content_type)?;
            let (object, warnings) = match address.status {
                // Rules that name a resource do not include its status.
                true => (parse(&body)?, Vec::new()),
                false => admission::admit(shared, target, Operation::Update, read(&body)?).await?,
            };
            Ok(Answer::Warned(200, operations::update(objects, target, &object)?, warnings))
        }
        ("PATCH", Some(_)) => {
            let body = parse(&body)?;
            Ok(Answer::Json(200, operations::patch(objects, target, patch(&content_type, is_apply, &query, &body)?)?))
        }
        ("DELETE", Some(_)) => {
            let mut options = if body.is_empty() { json!({}) } else { parse(&body)? };
            if let Some(seconds) = query.number("gracePeriodSeconds") {
                options["gracePeriodSeconds"] = seconds.into();
            }
            Ok(Answer::Json(200, operations::delete(objects, target, &options)?))
        }
        ("DELETE", None) => {
            let selector = Selector::parse(address.resource, query.text("labelSelector"), query.text("fieldSelector"))?;
            let (_, listed) = operations::list(objects, address.resource, address.namespace.as_deref(), &selector);
            for object in listed {
                let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
                let (namespace, name) = (text("namespace"), text("name"));
                operations::delete(objects, Target { namespace: &namespace, name: &name, ..target }, &json!({}))?;
            }
            Ok(Answer::Json(200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
        }
        (method, _) => Err(Failure::method_not_allowed(method)),
    }
}

fn patch<'a>(content_type: &str, is_apply: bool, query: &Query, body: &'a Value) -> Result<Patch<'a>, Failure> {
    match content_type {
        "application/merge-patch+json" => Ok(Patch::Merge(body)),
        "application/strategic-merge-patch+json" => Ok(Patch::Strategic(body)),
        _ if is_apply => Ok(Patch::Apply { configuration: body, force: query.is_true("force") }),
        other => Err(Failure::unsupported_media_type(other)),
    }
}

fn is_status_of_claim(address: &Address) -> bool {
    address.resource.plural == CLAIMS.plural && address.status && address.name.is_some()
}

/// A client that allocates or reserves a claim needs another right besides that to write the status: Kubernetes 1.36
/// requires the same verb on `resourceclaims/binding`.
fn note_binding(shared: &Shared, method: &str, before: &Value, after: &Value, client: &str) {
    let is_same = |field: &str| before["status"][field] == after["status"][field];
    if !is_same("allocation") || !is_same("reservedFor") {
        let verb = if method == "PUT" { "update" } else { "patch" };
        let resource = format!("{}/binding", CLAIMS.plural);
        let (group, client) = (CLAIMS.group, client.to_owned());
        keep(shared, Call { verb, group, resource, client, metadata_only: false });
    }
}

/// The groups that there are, or the resources in a version of one. All clients may ask for them.
fn discovery(shared: &Shared, path: &str) -> Option<Value> {
    if path == "/apis" {
        return Some(groups(shared));
    }
    let group_version = path.strip_prefix("/apis/")?;
    let (group, version) = group_version.split_once('/').filter(|(_, version)| !version.contains('/'))?;
    let of_version = |resource: &&Resource| (resource.group, resource.version) == (group, version);
    let shown = |resource: &Resource| {
        json!({
            "name": resource.plural, "singularName": "", "namespaced": resource.namespaced, "kind": resource.kind,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        })
    };
    let served = RESOURCES.into_iter().filter(|resource| shared.serves(resource));
    let resources: Vec<Value> = served.filter(of_version).map(shown).collect();
    let list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    });
    (!resources.is_empty()).then_some(list)
}

fn groups(shared: &Shared) -> Value {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for resource in RESOURCES.into_iter().filter(|resource| !resource.group.is_empty() && shared.serves(resource)) {
        versions.entry(resource.group).or_default().insert(resource.version);
    }
    let groups = versions.into_iter().map(|(group, versions)| {
        let shown = |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
        let versions: Vec<Value> = versions.iter().map(shown).collect();
        json!({"name": group, "versions": versions, "preferredVersion": versions[0]})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<Value>>()})
}

fn list(shared: &Shared, address: &Address, query: &Query, form: Form) -> Result<Answer, Failure> {
    let resource = address.resource;
    let selector = Selector::parse(resource, query.text("labelSelector"), query.text("fieldSelector"))?;
    let (version, items) = operations::list(&shared.objects, resource, address.namespace.as_deref(), &selector);
    if query.is_true("watch") {
        let with_initial = query.is_true("sendInitialEvents");
        if with_initial && query.text("resourceVersionMatch") != "NotOlderThan" {
            return Err(Failure::invalid("resourceVersionMatch", "must be NotOlderThan with sendInitialEvents"));
        }
        let from = match query.text("resourceVersion") {
            // The watch may start anywhere: the existing objects come first.
            "" | "0" => None,
            text => Some(text.parse().map_err(|_| Failure::bad_request(format!("invalid resource version {text:?}")))?),
        };
        let seconds = query.number("timeoutSeconds").unwrap_or(1800);
        return Ok(Answer::Stream(Watch {
            resource,
            namespace: address.namespace.clone(),
            selector,
            form,
            version: if with_initial { version } else { from.unwrap_or(version) },
            initial: (with_initial || from.is_none()).then_some(items),
            bookmarks: query.is_true("allowWatchBookmarks"),
            timeout: Duration::from_secs(seconds),
        }));
    }
    // A page continues after the last object of the page before.
    let after = query.text("continue");
    let position = |item: &Value| {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text("namespace"), text("name"))
    };
    let mut items: Vec<Value> =
        items.into_iter().filter(|item| after.is_empty() || position(item).as_str() > after).collect();
    let limit = query.number("limit").filter(|limit| *limit > 0).map_or(usize::MAX, |limit| limit as usize);
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if items.len() > limit {
        metadata["remainingItemCount"] = (items.len() - limit).into();
        items.truncate(limit);
        metadata["continue"] = items.last().map(position).unwrap_or_default().into();
    }
    // As in lists of the real server, items do not repeat their kind and version.
    for item in &mut items {
        item.as_object_mut().map(|item| (item.remove("kind"), item.remove("apiVersion")));
    }
    let (kind, version) = (format!("{}List", resource.kind), resource.api_version());
    Ok(Answer::Json(200, json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})))
}

/// Notes the call for [`ApiServer::calls`](super::ApiServer::calls).
fn note(
    shared: &Shared,
    method: &Method,
    address: &Address,
    query: &Query,
    client: &str,
    form: Form,
) -> Result<(), Failure> {
    let verb = match (method.as_str(), address.name.is_some()) {
        ("GET", true) => "get",
        ("GET", false) if query.is_true("watch") => "watch",
        ("GET", false) => "list",
        ("POST", named) if named == address.subresource.is_some() => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        (method, _) => return Err(Failure::method_not_allowed(method)),
    };
    let subresource = match address.subresource {
        Some(subresource) => format!("/{}", subresource.name()),
        None => if address.status { "/status" } else { "" }.to_owned(),
    };
    let resource = format!("{}{subresource}", address.resource.plural);
    let (group, client) = (address.resource.group, client.to_owned());
    let call = Call { verb, group, resource, client, metadata_only: form != Form::Whole };
    keep(shared, call);
    Ok(())
}

fn keep(shared: &Shared, call: Call) {
    shared.calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(call);
}

fn json_only(content_type: &str) -> Result<(), Failure> {
    match content_type.split(';').next() {
        Some("" | "application/json") => Ok(()),
        _ => Err(Failure::unsupported_media_type(content_type)),
    }
}

fn parse(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad_request(format!("the body is no JSON: {error}")))
}
