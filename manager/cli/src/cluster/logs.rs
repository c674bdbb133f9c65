//! `aliquot logs`: the output of a task.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use aliquot_proto::scheduler::v1::{GetJobRequest, Job, JobState, LogChunk, Member, ReadLogRequest, Task};
use serde_json::json;
use tonic::{Code, Status};

use super::state::has_ended;
use super::watch::{Patience, Watch, is_loss};
use super::{TaskId, connect, failed, find};
use crate::args::LogsArgs;
use crate::error::{Failure, Result};
use crate::output::{self, Reader};
use crate::table::printable;

/// Time between two checks that output is still read.
const READER_INTERVAL: Duration = Duration::from_millis(500);

/// Prints a log, and goes on with it if requested.
pub(crate) async fn logs(socket: Option<&Path>, args: &LogsArgs) -> Result<()> {
    let socket = find(socket)?;
    let wanted = Wanted { task: args.task, rank: args.rank, last_lines: args.lines.unwrap_or(0), json: args.json };
    if args.follow {
        return follow(&socket, &wanted).await;
    }
    let mut client = connect(&socket).await?;
    let mut chunks = client.read_log(wanted.request(0, false)).await.map_err(failed)?.into_inner();
    let mut printer = Printer::new(&wanted);
    let mut offset = wanted.first();
    loop {
        let chunk = match chunks.message().await {
            Ok(chunk) => chunk,
            Err(status) if is_broken_off(&status) => {
                printer.finish()?;
                let request = GetJobRequest { id: wanted.task.job };
                let job = client.get_job(request).await.map_err(failed)?.into_inner();
                let node = wanted.find(&job)?.1.map_or("the node", |member| &member.node);
                return Err(broken_off(&wanted, node, printer.has_printed));
            }
            Err(status) => return Err(failed(status)),
        };
        let Some(chunk) = chunk else { return printer.finish() };
        tell_gap(offset, chunk.offset);
        offset = Some(chunk.offset.saturating_add(chunk.data.len() as u64));
        if printer.print(&chunk.data)? == Reader::Gone {
            return Ok(());
        }
    }
}

/// Whether the node has broken off a log: it has no such log, or cannot read it.
fn is_broken_off(status: &Status) -> bool {
    status.code() == Code::Internal && status.source().is_none()
}

/// The failure for a log that the node has broken off.
fn broken_off(wanted: &Wanted, node: &str, has_printed: bool) -> Failure {
    let task = wanted.task;
    if has_printed {
        return Failure::new(format!("node {node} cannot read the rest of the log of job {task}, or has removed it"))
            .hint("the log of its node manager says why");
    }
    Failure::new(format!("node {node} has no log of job {task} any more, or cannot read it"))
        .hint("a node keeps logs for cluster.log_days of its configuration; the log of its node manager says more")
}

/// Says that the node does not have the bytes from the offset `expected`, if it is known, to the offset `begin` any more.
fn tell_gap(expected: Option<u64>, begin: u64) {
    if let Some(gap) = gap(expected, begin) {
        output::say(gap);
    }
}

fn gap(expected: Option<u64>, begin: u64) -> Option<String> {
    let expected = expected?;
    let gone = begin.checked_sub(expected).filter(|gone| *gone > 0)?;
    Some(match expected {
        0 => format!("the first {gone} bytes of the log are gone; the node keeps the newest part"),
        _ => format!("{gone} bytes of the log are gone here; the node keeps the newest part"),
    })
}

/// The log that is wanted, and the form of its lines.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) task: TaskId,
    pub(crate) rank: u32,
    /// Number of last lines to print; 0 stands for all.
    pub(crate) last_lines: u32,
    /// Print a JSON object for each line.
    pub(crate) json: bool,
}

impl Wanted {
    fn request(&self, offset: u64, follow: bool) -> ReadLogRequest {
        ReadLogRequest {
            id: self.task.job,
            task: self.task.task,
            rank: self.rank,
            follow,
            last_lines: self.last_lines,
            offset,
        }
    }

    /// The offset at which the log should begin; `None` if it depends on the log's length.
    fn first(&self) -> Option<u64> {
        (self.last_lines == 0).then_some(0)
    }

    /// The task and the member in the answer of the scheduler.
    pub(crate) fn find<'job>(&self, job: &'job Job) -> Result<(&'job Task, Option<&'job Member>)> {
        let none = |index: u32| {
            Failure::new(format!("job {} has no task {index}", job.id))
                .hint(format!("see its tasks: aliquot job {}", job.id))
        };
        let task = match (self.task.task, job.tasks.as_slice()) {
            (Some(index), tasks) => tasks.iter().find(|task| task.index == index).ok_or_else(|| none(index))?,
            (None, [only]) => only,
            (None, []) => return Err(Failure::new(format!("job {} has no tasks", job.id))),
            (None, [first, ..]) => {
                return Err(Failure::new(format!("job {} has {} tasks", job.id, job.tasks.len()))
                    .hint(format!("name one of them: aliquot logs {}.{} -f", job.id, first.index)));
            }
        };
        let member = task.members.iter().find(|member| member.rank == self.rank);
        match member {
            None if self.rank > 0 && !task.members.is_empty() => {
                let members = task.members.len();
                Err(Failure::new(format!(
                    "job {} has no rank {}: its ranks are 0 to {}",
                    job.id,
                    self.rank,
                    members - 1
                )))
            }
            member => Ok((task, member)),
        }
    }
}

/// The offset of the log's present end; `None` if there is no log yet.
pub(crate) async fn end_of(socket: &Path, wanted: &Wanted) -> Result<Option<u64>> {
    let request = ReadLogRequest { last_lines: 1, ..wanted.request(0, false) };
    let mut chunks = match connect(socket).await?.read_log(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::FailedPrecondition => return Ok(None),
        Err(status) => return Err(failed(status)),
    };
    let mut end = None;
    loop {
        match chunks.message().await {
            Ok(Some(LogChunk { data, offset })) => end = Some(offset.saturating_add(data.len() as u64)),
            Ok(None) => return Ok(end),
            Err(status) if is_broken_off(&status) => return Ok(None),
            Err(status) => return Err(failed(status)),
        }
    }
}

/// Prints the log until the task has ended, also across restarts of the scheduler and of the task.
pub(crate) async fn follow(socket: &Path, wanted: &Wanted) -> Result<()> {
    follow_from(socket, wanted, None).await
}

/// Prints the log from this offset, in the log of the node where the task runs now, until the task has ended.
pub(crate) async fn follow_from(socket: &Path, wanted: &Wanted, offset: Option<u64>) -> Result<()> {
    let mut reading = Reading { printer: Printer::new(wanted), node: String::new(), offset, told: String::new() };
    let mut patience = Patience::default();
    loop {
        let mut watch = Watch::new_patiently(socket, wanted.task.job, &mut patience).await?;
        let has_ended = loop {
            let job = watch.next().await?;
            patience.renew();
            let (task, member) = wanted.find(job)?;
            let has_ended = has_ended(task.state());
            match member {
                Some(member) if has_begun(member) => {
                    reading.go_to(&member.node);
                    break has_ended;
                }
                _ if has_ended => return reading.printer.finish(),
                _ => reading.tell(&format!("job {0} waits; `aliquot explain {0}` says why", wanted.task)),
            }
        };
        drop(watch);
        match reading.read(socket, wanted).await? {
            Ok(Reader::Gone) => return Ok(()),
            Ok(Reader::Reads) if has_ended => return reading.printer.finish(),
            // The task was restarted, its end is not known yet, or the scheduler shuts down.
            Ok(Reader::Reads) => {}
            Err(status) if is_loss(&status) => {}
            // After a restart of the scheduler the node may come back a moment later. If it does not, the task changes.
            Err(status) if reading.offset.is_some() && status.code() == Code::FailedPrecondition => {
                reading.tell(&format!("{}; waiting for it", status.message()));
            }
            Err(status) if is_broken_off(&status) => {
                let failure = broken_off(wanted, &reading.node, reading.printer.has_printed);
                if has_ended {
                    reading.printer.finish()?;
                    return Err(failure);
                }
                // The node may not have begun the task's log yet.
                reading.tell(&format!("{}; trying again", failure.message()));
            }
            Err(status) => return Err(failed(status)),
        }
        patience.wait().await?;
    }
}

fn has_begun(member: &Member) -> bool {
    !member.node.is_empty()
        && (member.started_unix_ms > 0 || !matches!(member.state(), JobState::Pending | JobState::Unspecified))
}

/// A log that is read in several pieces.
struct Reading<'wanted> {
    printer: Printer<'wanted>,
    /// The node that has the log. A task that starts on another node has another log there.
    node: String,
    /// The offset to continue at; `None` before the first piece.
    offset: Option<u64>,
    /// The last message about a log that cannot be read.
    told: String,
}

impl Reading<'_> {
    fn go_to(&mut self, node: &str) {
        if self.node != node {
            if !self.node.is_empty() {
                self.offset = Some(0);
            }
            self.node = node.to_owned();
        }
    }

    fn tell(&mut self, line: &str) {
        if self.told != line {
            output::say(printable(line));
            self.told = line.to_owned();
        }
    }

    async fn read(&mut self, socket: &Path, wanted: &Wanted) -> Result<std::result::Result<Reader, Status>> {
        let request = match self.offset {
            None => wanted.request(0, true),
            Some(offset) => ReadLogRequest { last_lines: 0, ..wanted.request(offset, true) },
        };
        let mut client = match connect(socket).await {
            Ok(client) => client,
            Err(_) => return Ok(Err(Status::unavailable("the scheduler has ended"))),
        };
        let mut chunks = match client.read_log(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        loop {
            // The reader may go away between two lines.
            let chunk = match tokio::time::timeout(READER_INTERVAL, chunks.message()).await {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(status)) => return Ok(Err(status)),
                Err(_) if output::has_no_reader() => return Ok(Ok(Reader::Gone)),
                Err(_) => continue,
            };
            let Some(LogChunk { data, offset }) = chunk else { return Ok(Ok(Reader::Reads)) };
            self.told.clear();
            tell_gap(self.offset.or_else(|| wanted.first()), offset);
            if self.printer.print(&data)? == Reader::Gone {
                return Ok(Ok(Reader::Gone));
            }
            self.offset = Some(offset.saturating_add(data.len() as u64));
        }
    }
}

/// Prints pieces of a log unchanged, or line by line as JSON.
struct Printer<'wanted> {
    wanted: &'wanted Wanted,
    /// The beginning of a line without its end yet; only for JSON.
    line: Vec<u8>,
    has_printed: bool,
}

impl Printer<'_> {
    fn new(wanted: &Wanted) -> Printer<'_> {
        Printer { wanted, line: Vec::new(), has_printed: false }
    }

    fn print(&mut self, data: &[u8]) -> Result<Reader> {
        self.has_printed |= !data.is_empty();
        match self.wanted.json {
            true => output::print_to_reader(&self.lines(data)),
            false => output::write_to_reader(data),
        }
    }

    /// Prints the last line, if it has no end.
    fn finish(&mut self) -> Result<()> {
        let text = if self.line.is_empty() { String::new() } else { self.lines(b"\n") };
        output::print(&text)
    }

    fn lines(&mut self, data: &[u8]) -> String {
        self.line.extend_from_slice(data);
        let mut text = String::new();
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let Wanted { task, rank, .. } = self.wanted;
            let line = String::from_utf8_lossy(&line[..end]);
            text.push_str(&format!("{}\n", json!({ "job": task.job, "task": task.task, "rank": rank, "line": line })));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(task: Option<u32>, rank: u32) -> Wanted {
        Wanted { task: TaskId { job: 17, task }, rank, last_lines: 0, json: true }
    }

    #[test]
    fn json_has_an_object_for_each_line_however_it_is_cut() {
        let wanted = wanted(Some(3), 1);
        let mut printer = Printer::new(&wanted);
        assert_eq!(printer.lines(b"one\ntw"), "{\"job\":17,\"line\":\"one\",\"rank\":1,\"task\":3}\n");
        let text = printer.lines(b"o\n\n\xff\x1b[2J");
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["line"], &lines[1]["line"]), (&"two".into(), &"".into()));
        let last: serde_json::Value = serde_json::from_str(&printer.lines(b"\n")).unwrap();
        assert_eq!(last["line"], "\u{fffd}\u{1b}[2J");
    }

    #[test]
    fn the_task_must_be_clear_and_must_exist() {
        let task = |index| Task { index, members: vec![Member::default()], ..Task::default() };
        let job =
            |tasks: &[u32]| Job { id: 17, tasks: tasks.iter().map(|&index| task(index)).collect(), ..Job::default() };
        assert_eq!(wanted(None, 0).find(&job(&[4])).unwrap().0.index, 4);
        assert_eq!(wanted(Some(5), 0).find(&job(&[4, 5])).unwrap().0.index, 5);
        for (wanted, job, words) in [
            (wanted(None, 0), job(&[4, 5]), "has 2 tasks\nhint: name one of them: aliquot logs 17.4 -f"),
            (wanted(Some(6), 0), job(&[4, 5]), "has no task 6\nhint: see its tasks: aliquot job 17"),
            (wanted(None, 0), job(&[]), "has no tasks"),
            (wanted(None, 2), job(&[4]), "has no rank 2: its ranks are 0 to 0"),
        ] {
            let failure = wanted.find(&job).unwrap_err().to_string();
            assert!(failure.contains(words), "{failure}");
        }
    }

    #[test]
    fn what_is_gone_of_a_log_is_said() {
        assert_eq!(gap(Some(0), 0), None);
        assert_eq!(gap(None, 70), None, "only the last lines are wanted");
        assert!(gap(Some(0), 70).unwrap().starts_with("the first 70 bytes of the log are gone"));
        assert!(gap(Some(30), 70).unwrap().starts_with("40 bytes of the log are gone here"));
    }

    #[test]
    fn a_log_elsewhere_is_read_from_its_beginning() {
        let wanted = wanted(None, 0);
        let mut reading =
            Reading { printer: Printer::new(&wanted), node: String::new(), offset: None, told: String::new() };
        reading.go_to("gpu-1");
        assert_eq!(reading.offset, None);
        reading.offset = Some(7);
        reading.go_to("gpu-1");
        assert_eq!(reading.offset, Some(7));
        reading.go_to("gpu-2");
        assert_eq!(reading.offset, Some(0));
    }
}
