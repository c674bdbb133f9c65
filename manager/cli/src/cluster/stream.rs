//! A stream between this program and a running job, by way of the scheduler.

use aliquot_proto::stream::v1::from_job::Frame;
use aliquot_proto::stream::v1::{FromJob, FromUser, Open, Refused, from_user};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{Client, failed};
use crate::error::Failure;

/// Maximum frames that wait for the connection.
const FRAMES_MAX: usize = 2;

/// The channel of frames for the job.
pub(super) type ToJob = mpsc::Sender<FromUser>;

/// A stream that is open. It ends when both are dropped.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) to_job: ToJob,
    pub(super) from_job: Streaming<FromJob>,
}

/// The reason why there is no stream.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The scheduler refuses, or cannot be reached.
    Scheduler(Status),
    /// The node could not carry out the request.
    Node(Refused),
}

impl From<Status> for NotOpened {
    fn from(status: Status) -> NotOpened {
        NotOpened::Scheduler(status)
    }
}

impl NotOpened {
    /// Whether every further attempt would fail in the same way.
    pub(super) fn concerns_all(&self) -> bool {
        let lasts = [Code::PermissionDenied, Code::NotFound, Code::InvalidArgument, Code::Unimplemented];
        matches!(self, NotOpened::Scheduler(status) if lasts.contains(&status.code()))
    }

    /// The failure of a command that needs the stream.
    pub(super) fn failure(self) -> Failure {
        match self {
            NotOpened::Scheduler(status) => failed(status),
            NotOpened::Node(Refused { why, exit_code }) => match u8::try_from(exit_code) {
                Ok(code @ 1..) => Failure::new(why).exit(code),
                _ => Failure::new(why),
            },
        }
    }
}

impl Stream {
    /// Opens a stream, and waits until the node has carried out the request.
    pub(super) async fn open(client: &mut Client, open: Open) -> Result<Stream, NotOpened> {
        let (to_job, frames) = mpsc::channel(FRAMES_MAX);
        // The channel has room for the first frame.
        let _ = to_job.try_send(FromUser { frame: Some(from_user::Frame::Open(open)) });
        let mut from_job = client.open_stream(ReceiverStream::new(frames)).await?.into_inner();
        match from_job.message().await?.and_then(|first| first.frame) {
            Some(Frame::Opened(_)) => Ok(Stream { to_job, from_job }),
            Some(Frame::Refused(refused)) => Err(NotOpened::Node(refused)),
            _ => Err(Status::internal("the node's answer does not match the request").into()),
        }
    }
}

/// A frame for the job.
pub(super) fn frame(frame: from_user::Frame) -> FromUser {
    FromUser { frame: Some(frame) }
}
