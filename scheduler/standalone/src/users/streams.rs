//! A user's stream to a running job: the check of rights, and the choice of the member.

use std::time::Duration;

use aliquot_proto::stream::v1::open::What;
use aliquot_proto::stream::v1::{DATA_BYTES_MAX, End, FromJob, FromUser, Open, from_user};
use aliquot_scheduler_engine::Generation;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;
use tonic::{Request, Status, Streaming};

use super::{StreamOf, UserService, no_such_job, task_of};
use crate::access::Action;
use crate::gate::About;
use crate::jobs::{ClaimName, Entry, Member, Task};
use crate::streams::{Answer, ToNode};

/// The time within which the user must send the first frame, which opens a command or a port.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a stream, and carries frames until one side ends it.
pub(super) async fn open(
    service: &UserService,
    request: Request<Streaming<FromUser>>,
) -> Result<StreamOf<FromJob>, Status> {
    let caller = super::caller(&request)?;
    let about = request.extensions().get::<About>().cloned();
    let mut from_user = request.into_inner();
    let first = tokio::time::timeout(OPEN_TIMEOUT, from_user.message()).await;
    let first = first.map_err(|_| Status::invalid_argument("the stream has no first frame"))??;
    let Some(FromUser { frame: Some(from_user::Frame::Open(open)) }) = first else {
        return Err(Status::invalid_argument("the first frame of a stream must open a command or a port"));
    };
    about.inspect(|about| about.is(format!("job {}", open.id)));
    check(&open)?;
    let (node, claim, instance) = {
        let book = service.seen.book.read();
        let entry = book.entry(open.id).ok_or_else(|| no_such_job(open.id))?;
        let action = Action::Control { job: entry.job.owned(), verb: "reach" };
        caller.may(&action).map_err(Status::permission_denied)?;
        running(entry, task_of(entry, open.task)?, open.rank)?
    };
    // A node that has not reported since this scheduler began may be of any version, so it is asked.
    let reported = service.sessions.reported(&node).filter(|spec| !spec.version.is_empty());
    if let Some(spec) = reported.filter(|spec| !spec.opens_streams) {
        return Err(Status::failed_precondition(format!(
            "the manager of node {node} (version {}) does not know `exec` and `port-forward`; update it",
            spec.version
        )));
    }
    let place = service.streams.take_place(open.id, &node)?;
    let question = service.streams.ask(&service.sessions, &node, claim, instance, open)?;
    let Answer { from_node, to_node } = question.answer().await?;
    let (end, ended) = oneshot::channel::<()>();
    tokio::spawn(async move {
        tokio::select! {
            () = carry(from_user, to_node) => {}
            // Everything has arrived, or the user is gone.
            _ = ended => {}
        }
    });
    Ok(Box::pin(from_node.map(move |frame| {
        // These live as long as the stream.
        let _ = (&place, &end);
        frame.map_err(|status| {
            Status::aborted(format!("the connection with node {} has ended: {}", place.node(), status.message()))
        })
    })))
}

fn check(open: &Open) -> Result<(), Status> {
    match &open.what {
        Some(What::Exec(exec)) if exec.command.first().is_none_or(String::is_empty) => {
            Err(Status::invalid_argument("no command is given"))
        }
        Some(What::Forward(forward)) if !(1..=65535).contains(&forward.port) => {
            Err(Status::invalid_argument(format!("{} is not a port; ports are 1 to 65535", forward.port)))
        }
        Some(_) => Ok(()),
        None => {
            Err(Status::invalid_argument("the kind of the stream is not known: the scheduler is older than the caller"))
        }
    }
}

/// The node and the instance of a running member.
fn running(entry: &Entry, task: &Task, rank: u32) -> Result<(String, ClaimName, Generation), Status> {
    let job = entry.job.id;
    let member = task.members.get(rank as usize).ok_or_else(|| {
        Status::not_found(format!("job {job} has {} members; there is no rank {rank}", task.members.len()))
    })?;
    let runs = |member: &&Member| member.is_there && member.started_ms.is_some() && member.exit.is_none();
    if let Some(place) = Some(member).filter(runs).and_then(|member| member.place.as_ref()) {
        let claim = ClaimName { job, index: task.index, rank, attempt: task.attempt };
        return Ok((place.node.clone(), claim, place.instance()));
    }
    Err(Status::failed_precondition(match task.end() {
        Some(_) => format!("job {job} has ended"),
        None => format!("job {job} does not run now; see: aliquot explain {job}"),
    }))
}

/// Carries the user's frames to the node, until one of the two is gone.
async fn carry(mut from_user: Streaming<FromUser>, to_node: ToNode) {
    loop {
        // The node takes the end of its call as the end of the user.
        let Ok(frame) = from_user.message().await else { return };
        let is_last = frame.is_none();
        let frame = frame.unwrap_or(FromUser { frame: Some(from_user::Frame::End(End {})) });
        if is_too_long(&frame) || to_node.send(Ok(frame)).await.is_err() {
            return;
        }
        if is_last {
            // The user has no more to send, but still receives.
            return to_node.closed().await;
        }
    }
}

fn is_too_long(frame: &FromUser) -> bool {
    matches!(&frame.frame, Some(from_user::Frame::Data(data)) if data.len() > DATA_BYTES_MAX)
}
