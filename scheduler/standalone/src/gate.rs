//! The gate before the API for users. Each call passes it. The gate identifies the caller, bounds the number of calls
//! of each user, ends calls of users that are removed meanwhile, and notes in the audit log what was changed or
//! refused.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::access::Identity;
use crate::audit::{Audit, Line};
use crate::callers::{self, Callers, Claim, Origin};
use crate::clock::Clock;
use crate::limits::{Limiter, OpenCall};

/// The object of a call, such as `job 17`, for the audit log. The method sets it.
#[derive(Clone, Debug, Default)]
pub(crate) struct About(Arc<Mutex<Option<String>>>);

impl About {
    /// Sets the object, in place of an earlier one.
    pub(crate) fn is(&self, object: String) {
        *self.0.lock() = Some(object);
    }
}

/// The parts that the gate uses.
#[derive(Clone, Debug)]
pub(crate) struct Gatekeeper {
    pub(crate) callers: Callers,
    pub(crate) limiter: Limiter,
    pub(crate) audit: Audit,
    pub(crate) clock: Arc<Clock>,
    /// Calls that were refused because the user made too many.
    pub(crate) throttled: Counter,
}

/// A service behind the gate.
#[derive(Clone, Debug)]
pub(crate) struct Gate<S> {
    pub(crate) service: S,
    pub(crate) keeper: Arc<Gatekeeper>,
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (keeper, service) = (Arc::clone(&self.keeper), self.service.clone());
        if !is_change(method(&request)) {
            return Box::pin(async move { Ok(keeper.answer(service, request).await) });
        }
        // A caller that disconnects does not keep the change out of the audit log.
        let answer = tokio::spawn(async move { keeper.answer(service, request).await });
        Box::pin(
            async move { Ok(answer.await.unwrap_or_else(|error| Status::internal(error.to_string()).into_http())) },
        )
    }
}

/// The name of the called method.
fn method<T>(request: &Request<T>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

/// Whether a method may change something. Methods that only read are recognized by the beginning of their names.
fn is_change(method: &str) -> bool {
    !["Get", "List", "Watch", "Read", "Explain"].iter().any(|question| method.starts_with(question))
}

impl Gatekeeper {
    async fn answer<S>(&self, mut service: S, mut request: Request<Body>) -> Response<Body>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    {
        // A caller can send a method name of any length.
        let method: String = method(&request).chars().take(64).collect();
        let (claim, origin) = callers::claim(request.extensions(), request.headers());
        let (now_ms, about) = (self.clock.now_ms(), About::default());
        let mut is_noted = true;
        let (response, name) = match self.limiter.enter(claim.identity().as_ref(), now_ms) {
            Err(exceeded) => {
                is_noted = exceeded.is_noted;
                self.throttled.inc();
                let mut status = Status::resource_exhausted(exceeded.why);
                status.metadata_mut().insert("grpc-retry-pushback-ms", exceeded.retry_ms.into());
                (status.into_http(), None)
            }
            Ok(open) => match self.callers.caller(&claim, now_ms).await {
                Err(status) => {
                    is_noted = self.limiter.notes_stranger(now_ms);
                    (status.into_http(), None)
                }
                Ok(caller) => {
                    request.extensions_mut().insert(caller.clone());
                    request.extensions_mut().insert(about.clone());
                    let name = caller.name.clone();
                    let lost = self.callers.clone().lost(claim.clone(), caller, Arc::clone(&self.clock));
                    let Ok(response) = service.call(request).await;
                    let answer = |inner| Body::new(Answer { inner, parts: 0, lost: Some(Box::pin(lost)), _open: open });
                    (response.map(answer), Some(name))
                }
            },
        };
        // An answer without a status has not failed so far.
        let failed = Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok);
        let is_refused = failed.as_ref().is_some_and(|status| {
            matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated | Code::ResourceExhausted)
        });
        if is_noted && (is_change(&method) || is_refused) {
            self.audit.note(&line(now_ms, method, &claim, name, origin, &about, failed.as_ref())).await;
        }
        response
    }
}

fn line(
    now_ms: u64,
    call: String,
    claim: &Claim,
    name: Option<String>,
    origin: Origin,
    about: &About,
    status: Option<&Status>,
) -> Line {
    let (known_by, uid) = match claim {
        Claim::Local(uid) => ("local", Some(*uid)),
        Claim::User(_) => ("certificate", None),
        Claim::Node(_) => ("node", None),
        Claim::Unknown => ("unknown", None),
    };
    let claimed = || match claim.identity() {
        Some(Identity::Local(uid)) => uid.to_string(),
        Some(Identity::Remote(name) | Identity::Node(name)) => name,
        None => String::new(),
    };
    let line = Line {
        who: name.unwrap_or_else(claimed),
        known_by,
        uid,
        from: origin.from,
        by_way_of: origin.by_way_of,
        call,
        ..Line::default()
    };
    line.with(now_ms, about.0.lock().as_deref(), status)
}

/// The number of parts of an answer with a single message: the message and the status. Such an answer is always sent
/// completely.
const PARTS_OF_ONE: u32 = 2;

/// The body of an answer. It ends early if the user is removed. The call counts as open until the body ends.
struct Answer {
    inner: Body,
    /// The number of parts that were sent.
    parts: u32,
    /// Resolves when the user is removed; `None`: the answer has ended.
    lost: Option<Pin<Box<dyn Future<Output = Status> + Send>>>,
    _open: OpenCall,
}

impl Answer {
    /// The last part, if the user was removed: the error.
    fn ended(&mut self, context: &mut Context<'_>) -> Option<Result<Frame<<Body as HttpBody>::Data>, Status>> {
        let Poll::Ready(status) = self.lost.as_mut()?.as_mut().poll(context) else { return None };
        self.lost = None;
        self.inner = Body::empty();
        let mut trailers = HeaderMap::new();
        Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
    }
}

impl HttpBody for Answer {
    type Data = <Body as HttpBody>::Data;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let answer = self.get_mut();
        if answer.lost.is_none() {
            return Poll::Ready(None);
        }
        if answer.parts >= PARTS_OF_ONE
            && let Some(end) = answer.ended(context)
        {
            return Poll::Ready(Some(end));
        }
        match Pin::new(&mut answer.inner).poll_frame(context) {
            Poll::Ready(part) => {
                answer.parts = answer.parts.saturating_add(1);
                if part.as_ref().is_none_or(|part| part.as_ref().is_ok_and(Frame::is_trailers)) {
                    answer.lost = None;
                }
                Poll::Ready(part)
            }
            Poll::Pending => answer.ended(context).map_or(Poll::Pending, |end| Poll::Ready(Some(end))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.lost.is_none() || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use aliquot_scheduler_store::Database;
    use tokio::runtime::Builder;

    use super::*;
    use crate::access::Role;
    use crate::accounts::Accounts;
    use crate::audit::AuditConfig;
    use crate::grants::Grants;
    use crate::limits::Limits;

    type Part = Frame<<Body as HttpBody>::Data>;

    /// An answer in parts; after the last part it ends if the flag is set, and otherwise stays open.
    struct Parts(VecDeque<Part>, bool);

    impl HttpBody for Parts {
        type Data = <Body as HttpBody>::Data;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Part, Status>>> {
            match (self.0.pop_front(), self.1) {
                (Some(part), _) => Poll::Ready(Some(Ok(part))),
                (None, true) => Poll::Ready(None),
                (None, false) => Poll::Pending,
            }
        }
    }

    fn keeper(dir: &tempfile::TempDir, limits: Limits) -> Arc<Gatekeeper> {
        let accounts = Accounts::load(Database::open(&dir.path().join("scheduler.db")).unwrap()).unwrap();
        let grants = Grants::new(&[], Role::User, &[], 0).unwrap();
        Arc::new(Gatekeeper {
            callers: Callers::new(grants, Arc::new(accounts), true),
            limiter: Limiter::new(limits),
            audit: Audit::start(dir.path().join("audit.jsonl"), &AuditConfig::default()).unwrap(),
            clock: Arc::new(Clock::new(0)),
            throttled: Counter::default(),
        })
    }

    /// The parts that are sent of an answer after its user was removed: `d` for data, `t` for the end with a status.
    fn told(parts: usize, ends: bool) -> (String, Option<Code>) {
        let limiter = Limiter::new(Limits::default());
        let data = || Frame::data(Vec::from(*b"x").into());
        let mut frames: VecDeque<Part> = (0..parts).map(|_| data()).collect();
        if ends {
            frames.push_back(Frame::trailers(HeaderMap::new()));
        }
        let mut answer = Answer {
            inner: Body::new(Parts(frames, ends)),
            parts: 0,
            lost: Some(Box::pin(async { Status::unauthenticated("removed") })),
            _open: limiter.enter(None, 0).unwrap(),
        };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut told, mut code) = (String::new(), None);
        while let Poll::Ready(Some(Ok(part))) = Pin::new(&mut answer).poll_frame(&mut context) {
            told.push(if part.is_data() { 'd' } else { 't' });
            code = part.trailers_ref().and_then(Status::from_header_map).map(|status| status.code());
        }
        (told, code)
    }

    #[test]
    fn a_removed_user_gets_no_more_parts_of_an_answer() {
        assert_eq!(told(9, false), ("ddt".to_owned(), Some(Code::Unauthenticated)));
        assert_eq!(told(0, false), ("t".to_owned(), Some(Code::Unauthenticated)));
        assert_eq!(told(1, true), ("dt".to_owned(), None), "an answer of one message is told as a whole");
    }

    #[test]
    fn who_is_not_known_is_refused_and_noted_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { calls_per_second: 1, calls_burst: 200, open_calls: 1, ..Limits::default() };
        // No call must reach the service.
        let service = tower::service_fn(|_| async { Ok::<_, Infallible>(Status::internal("").into_http()) });
        let mut gate = Gate { service, keeper: keeper(&dir, limits) };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut codes = Vec::new();
        for method in ["ListJobs", "SubmitJob"].into_iter().cycle().take(300) {
            let request = Request::builder().uri(format!("/aliquot.scheduler.v1.Scheduler/{method}"));
            let Ok(answer) = runtime.block_on(async { gate.call(request.body(Body::empty()).unwrap()).await });
            codes.push(Status::from_header_map(answer.headers()).map(|status| status.code()));
        }
        assert_eq!((codes[0], codes[1]), (Some(Code::Unauthenticated), Some(Code::Unauthenticated)));
        assert!(codes.contains(&Some(Code::ResourceExhausted)), "strangers share one bound");
        assert!(!codes.contains(&Some(Code::Internal)), "{codes:?}");
        assert!(gate.keeper.throttled.get() > 0);
        let noted = std::fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
        assert!((100..300).contains(&noted.lines().count()), "{} lines", noted.lines().count());
        assert!(noted.lines().all(|line| line.contains("\"known_by\":\"unknown\"")), "{noted}");
    }
}
