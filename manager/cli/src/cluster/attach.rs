//! `aliquot attach`: the output of a job from now on, and its end.

use std::path::Path;
use std::process::ExitCode;

use aliquot_proto::scheduler::v1::Job;

use super::logs::{self, Wanted};
use super::watch::Watch;
use super::{find, state};
use crate::args::AttachArgs;
use crate::client;
use crate::error::{Failure, Result, exit};
use crate::output;

/// Follows a task's log from its end, until the task has ended. The exit code is the task's.
pub(crate) fn attach(socket: Option<&Path>, args: &AttachArgs) -> Result<ExitCode> {
    client::runtime()?.block_on(async {
        let socket = find(socket)?;
        let wanted = Wanted { task: args.task, rank: args.rank, last_lines: 0, json: false };
        let watched = async {
            let begin = logs::end_of(&socket, &wanted).await?;
            logs::follow_from(&socket, &wanted, begin).await?;
            status(&socket, &wanted).await
        };
        tokio::select! {
            ended = watched => ended,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))?;
                output::say(format_args!("job {0} goes on; end it with: aliquot cancel {0}", args.task));
                Ok(exit::of_signal(2).into())
            }
        }
    })
}

/// The exit code for the task's end. If the output has no reader and the job goes on, it is 0.
async fn status(socket: &Path, wanted: &Wanted) -> Result<ExitCode> {
    let mut watch = Watch::new(socket, wanted.task.job).await?;
    let (task, _) = wanted.find(watch.next().await?)?;
    let alone = Job { state: task.state, tasks: vec![task.clone()], ..Job::default() };
    Ok(if state::has_ended(alone.state()) { state::exit_code(&alone).into() } else { ExitCode::SUCCESS })
}
