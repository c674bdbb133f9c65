//! `aliquot submit`: hands a job to the scheduler, and waits for its end if asked to.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use aliquot_proto::scheduler::v1::{Job, JobState, ListSecretsRequest, SubmitJobRequest};
use tonic::Status;

use super::state;
use super::watch::{Patience, Watch, is_loss};
use super::words::{self, JobWords};
use super::{TaskId, connect, credentials, failed, find, json, logs};
use crate::args::SubmitArgs;
use crate::client;
use crate::error::{Failure, Result, exit};
use crate::output;
use crate::table::printable;

/// Submits a job. The exit code is the job's, if it is waited for.
pub(crate) fn submit(socket: Option<&Path>, args: &SubmitArgs) -> Result<ExitCode> {
    if args.schema {
        output::print_json(&words::json_schema())?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = args.file.as_deref().map(read).transpose()?.unwrap_or_default();
    let words = args.words.clone().over(file);
    let work_dir = words.workdir.clone();
    let mut spec = words.spec()?;
    if args.follow && spec.array.len() > 1 {
        return Err(Failure::new(format!("--follow shows one log, and this array has {} tasks", spec.array.len()))
            .hint("wait without it, and see a task's log with: aliquot logs JOB.TASK -f")
            .exit(exit::USAGE));
    }
    client::runtime()?.block_on(async {
        let socket = find(socket)?;
        // With credentials this is not a machine of the cluster, and its current directory means nothing there.
        if credentials::is_file(&socket) {
            match &work_dir {
                Some(given) => words::check_is_whole(given, "on the node")?,
                None => spec.work_dir.clear(),
            }
        }
        if !spec.secrets.is_empty() {
            check_secrets(&socket).await?;
        }
        let (limit, class) = (spec.gpu_core_limit_percent, spec.priority_class);
        let job = send(&socket, SubmitJobRequest { spec: Some(spec), request_id: request_id()? }).await?;
        say_what_is_ignored(limit, class, &job);
        match (args.json, args.follow) {
            (true, _) => output::print_json(&json::job(&job))?,
            (false, false) => output::print(&format!("{}\n", job.id))?,
            // Standard output is for the job's output.
            (false, true) => output::say(format_args!("job {}", job.id)),
        }
        if !args.wait {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            ended = wait(&socket, &job, args) => ended,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))?;
                output::say(format_args!("job {id} goes on; wait for it with: aliquot logs {id} -f; end it with: aliquot cancel {id}", id = job.id));
                Ok(exit::of_signal(2).into())
            }
        }
    })
}

/// The words in a file, or on standard input for `-`.
fn read(file: &Path) -> Result<JobWords> {
    let (name, text) = if file == Path::new("-") {
        let mut text = String::new();
        ("standard input".to_owned(), io::stdin().read_to_string(&mut text).map(|_| text))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let text = text.map_err(|error| Failure::new(format!("cannot read {name}: {error}")).exit(exit::USAGE))?;
    words::read(&text, &name)
}

/// Fails if the scheduler is too old for secrets: it would run the job without them.
async fn check_secrets(socket: &Path) -> Result<()> {
    connect(socket).await?.list_secrets(ListSecretsRequest {}).await.map(drop).map_err(failed)
}

/// Says which options a scheduler of an older version has not understood. The job does not get less than it asks for.
fn say_what_is_ignored(limit: u32, class: i32, job: &Job) {
    let spec = job.spec.as_ref();
    let ignores_limit = spec.is_some_and(|spec| spec.gpu_core_limit_percent != limit);
    let ignores_class = spec.is_some_and(|spec| spec.priority_class != class);
    for (is_ignored, option) in [(ignores_limit, "--gpu-core-limit"), (ignores_class, "--priority-class")] {
        if is_ignored {
            output::say(format_args!("the scheduler is of an older version and ignores {option} of job {}", job.id));
        }
    }
}

/// Sends the request. Sends it again if the scheduler ends before it has answered.
async fn send(socket: &Path, request: SubmitJobRequest) -> Result<Job> {
    let (mut client, mut patience) = (connect(socket).await?, Patience::default());
    loop {
        let lost = match client.submit_job(request.clone()).await {
            Ok(job) => return Ok(job.into_inner()),
            Err(status) if is_loss(&status) => status,
            Err(status) => return Err(not_submitted(status)),
        };
        patience.wait().await.map_err(|_| not_submitted(lost))?;
        if let Ok(again) = connect(socket).await {
            client = again;
        }
    }
}

/// A name for a request, different from all others: 128 random bits.
fn request_id() -> Result<String> {
    let bytes = getrandom::u64().and_then(|high| Ok((high, getrandom::u64()?)));
    let (high, low) =
        bytes.map_err(|error| Failure::new(format!("cannot get random numbers from the kernel: {error}")))?;
    Ok(format!("{high:016x}{low:016x}"))
}

fn not_submitted(status: Status) -> Failure {
    let is_unclear = is_loss(&status);
    let failure = failed(status);
    if is_unclear {
        failure.hint("the scheduler may have accepted the job; check before you submit it again: aliquot jobs")
    } else {
        failure
    }
}

async fn wait(socket: &Path, job: &Job, args: &SubmitArgs) -> Result<ExitCode> {
    let id = job.id;
    if args.follow {
        let task = TaskId { job: id, task: job.tasks.first().map(|task| task.index) };
        let what = logs::Wanted { task, rank: 0, last_lines: 0, json: false };
        // The job's end matters more than its log.
        if let Err(failure) = logs::follow(socket, &what).await {
            output::say(failure);
        }
    }
    let (mut watch, mut told) = (Watch::new(socket, id).await?, String::new());
    loop {
        let job = watch.next().await?;
        let line = progress(job);
        let has_ended = state::has_ended(job.state());
        let is_worth_telling = if has_ended { job.state() != JobState::Succeeded } else { io::stderr().is_terminal() };
        if is_worth_telling && line != told {
            output::say(&line);
        }
        told = line;
        if has_ended {
            return Ok(state::exit_code(job).into());
        }
    }
}

/// A job's state in a line.
fn progress(job: &Job) -> String {
    let reason = if job.reason.is_empty() { String::new() } else { format!(": {}", printable(&job.reason)) };
    format!("job {} {}{reason}", job.id, state::word(job.state()))
}
