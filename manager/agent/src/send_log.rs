//! Answers the scheduler's requests for logs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aliquot_node::aside;
use aliquot_proto::agent::v1::agents_client::AgentsClient;
use aliquot_proto::agent::v1::{LogChunk, ReadLog};
use http_body_util::{BodyStream, StreamBody};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::logs;

/// The metadata key for the request's id.
const READ_ID: &str = "read-id";
/// Maximum parts of a log that wait to be sent.
const CHUNKS_MAX: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;
/// How soon a follower sees new output of a job.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Sends the log in `dir`. A log that is followed is sent as long as `written`, which holds the logs of jobs that have
/// not ended, names it. The sending is broken off if there is no such log, or if it cannot be read.
pub(crate) async fn send(channel: Channel, read: ReadLog, dir: PathBuf, written: watch::Receiver<BTreeSet<String>>) {
    let Ok(id) = read.read_id.parse() else {
        debug!(id = read.read_id, "the scheduler asks for a log with an id that cannot be sent back");
        return;
    };
    let (chunks, to_send) = mpsc::channel(CHUNKS_MAX);
    let mut request = Request::new(ReceiverStream::new(to_send));
    request.metadata_mut().insert(READ_ID, id);
    let is_broken = Arc::new(AtomicBool::new(false));
    let reading = async {
        let (log, reader) = (read.log.clone(), chunks.clone());
        if let Ok(Err(error)) | Err(error) = aside(move || read_all(&read, &dir, &written, &reader)).await {
            warn!(%error, log, "cannot read a log");
            is_broken.store(true, Ordering::SeqCst);
        }
        // The call ends when nothing can follow.
        drop(chunks);
    };
    let breaking = Arc::clone(&is_broken);
    let channel = channel.map_request(move |request: http::Request<Body>| {
        let is_broken = Arc::clone(&breaking);
        request.map(|body| with_end(body, move || is_broken.load(Ordering::SeqCst)))
    });
    let mut client = AgentsClient::new(channel);
    let (outcome, ()) = tokio::join!(client.send_log(request), reading);
    if let Err(status) = outcome {
        debug!(%status, "the answer to a question for a log was not taken");
    }
}

/// `body`, which ends with an error if it is broken then. The scheduler sees this as an end of the call before the end of
/// the log, and tells it to the reader.
fn with_end(body: Body, is_broken: impl Fn() -> bool + Send + 'static) -> Body {
    let error = std::iter::from_fn(move || is_broken().then(|| Err(Status::internal("the log cannot be read"))));
    Body::new(StreamBody::new(BodyStream::new(body).chain(tokio_stream::iter(error))))
}

/// Returns when everything is read, or the reader is gone. Waits on the thread that calls it.
///
/// # Errors
/// The log cannot be read, or there is none, and no job that will write it.
fn read_all(
    read: &ReadLog,
    dir: &Path,
    written: &watch::Receiver<BTreeSet<String>>,
    chunks: &mpsc::Sender<LogChunk>,
) -> io::Result<()> {
    let mut offset = match read.last_lines {
        0 => read.offset,
        lines => logs::begin_of_last(dir, lines)?.max(read.offset),
    };
    loop {
        // Checked before the read, so that output up to the end of the job is read.
        let is_written = written.borrow().contains(&read.log);
        let (begin, data) = logs::read(dir, offset, CHUNK_BYTES)?;
        if data.is_empty() {
            if !read.follow || !is_written {
                return if is_written { Ok(()) } else { fs::metadata(dir).map(drop) };
            }
            thread::sleep(FOLLOW_INTERVAL);
            if chunks.is_closed() {
                return Ok(());
            }
            continue;
        }
        offset = begin + data.len() as u64;
        if chunks.blocking_send(LogChunk { data, offset: begin }).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sent(read: ReadLog, dir: &Path, written: watch::Receiver<BTreeSet<String>>) -> (u64, String) {
        let (chunks, mut received) = mpsc::channel(4);
        let path = dir.to_owned();
        aside(move || read_all(&read, &path, &written, &chunks)).await.unwrap().unwrap();
        let (mut first, mut text) = (None, String::new());
        while let Some(chunk) = received.recv().await {
            first.get_or_insert(chunk.offset);
            text += std::str::from_utf8(&chunk.data).unwrap();
        }
        (first.unwrap_or(0), text)
    }

    #[tokio::test]
    async fn a_log_is_sent_from_an_offset_or_its_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let (_written, of) = watch::channel(BTreeSet::new());
        let read = ReadLog { log: "1.0.0".into(), ..ReadLog::default() };
        let mut writer = logs::Writer::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(sent(read.clone(), dir.path(), of.clone()).await, (0, String::new()));
        writer.append(b"one\ntwo\nthree\n");
        assert_eq!(
            sent(ReadLog { offset: 4, ..read.clone() }, dir.path(), of.clone()).await,
            (4, "two\nthree\n".into())
        );
        let last = ReadLog { last_lines: 1, ..read };
        assert_eq!(sent(last, dir.path(), of).await, (8, "three\n".into()));
    }

    #[test]
    fn no_log_is_not_an_empty_log() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let (written, of) = watch::channel(BTreeSet::new());
        let (chunks, _received) = mpsc::channel(4);
        let read = ReadLog { log: "1.0.0".into(), ..ReadLog::default() };
        assert_eq!(read_all(&read, &none, &of, &chunks).unwrap_err().kind(), io::ErrorKind::NotFound);
        written.send_replace(BTreeSet::from(["1.0.0".to_owned()]));
        read_all(&read, &none, &of, &chunks).expect("its job is starting");
        fs::write(&none, "").unwrap();
        assert!(read_all(&read, &none, &of, &chunks).is_err(), "a file is no log");
    }

    #[tokio::test]
    async fn a_follower_gets_what_comes_until_the_job_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (written, of) = watch::channel(BTreeSet::from(["1.0.0".to_owned()]));
        let mut writer = logs::Writer::open(dir.path(), 1 << 20).unwrap();
        writer.append(b"one\n");
        let read = ReadLog { log: "1.0.0".into(), follow: true, ..ReadLog::default() };
        let (chunks, mut received) = mpsc::channel(4);
        let path = dir.path().to_owned();
        let reading = tokio::spawn(aside(move || read_all(&read, &path, &of, &chunks)));
        assert_eq!(received.recv().await.unwrap().data, b"one\n");
        writer.append(b"two\n");
        assert_eq!(received.recv().await.unwrap().data, b"two\n");
        writer.append(b"three\n");
        written.send_replace(BTreeSet::new());
        assert_eq!(received.recv().await.unwrap().data, b"three\n");
        assert!(received.recv().await.is_none());
        reading.await.unwrap().unwrap().unwrap();
    }
}
