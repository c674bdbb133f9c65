//! The states of jobs, tasks and members: in a word, in colour, and as exit codes.

use aliquot_proto::scheduler::v1::{Job, JobState, Member, Task};

use crate::error::exit;
use crate::output::Colour;

/// A state in one word, which is also used in the JSON output.
pub(crate) fn word(state: JobState) -> &'static str {
    match state {
        JobState::Unspecified => "unknown",
        JobState::Pending => "pending",
        JobState::Running => "running",
        JobState::Stopping => "stopping",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

pub(crate) fn colour(state: JobState) -> Option<Colour> {
    match state {
        JobState::Running | JobState::Succeeded => Some(Colour::Green),
        JobState::Pending | JobState::Stopping => Some(Colour::Yellow),
        JobState::Failed => Some(Colour::Red),
        JobState::Cancelled | JobState::Unspecified => None,
    }
}

/// Whether the state is final.
pub(crate) fn has_ended(state: JobState) -> bool {
    match state {
        JobState::Succeeded | JobState::Failed | JobState::Cancelled => true,
        JobState::Unspecified | JobState::Pending | JobState::Running | JobState::Stopping => false,
    }
}

/// The number of a job's tasks in each state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) running: usize,
    pub(crate) pending: usize,
    pub(crate) done: usize,
    /// The tasks that have failed, among those that are done.
    pub(crate) failed: usize,
}

impl Tally {
    pub(crate) fn of(tasks: &[Task]) -> Tally {
        let mut tally = Tally::default();
        for task in tasks {
            match task.state() {
                JobState::Running | JobState::Stopping => tally.running += 1,
                JobState::Pending | JobState::Unspecified => tally.pending += 1,
                JobState::Succeeded | JobState::Cancelled => tally.done += 1,
                JobState::Failed => {
                    tally.done += 1;
                    tally.failed += 1;
                }
            }
        }
        tally
    }
}

/// How a member's command has ended: `0`, `137`, `SIGKILL`, or nothing.
pub(crate) fn ending(member: &Member) -> String {
    match (member.signal, member.exit_code) {
        (0, None) => String::new(),
        (0, Some(code)) => code.to_string(),
        (number, _) => {
            let signal = i32::try_from(number).ok().and_then(|number| nix::sys::signal::Signal::try_from(number).ok());
            signal.map_or_else(|| format!("signal {number}"), |signal| signal.as_str().to_owned())
        }
    }
}

/// The exit code for a shell that waits for `job`: that of its first member that failed, in the form that a shell uses.
pub(crate) fn exit_code(job: &Job) -> u8 {
    if job.state() == JobState::Succeeded {
        return 0;
    }
    let failed = job.tasks.iter().filter(|task| task.state() == JobState::Failed);
    let codes = failed.flat_map(|task| &task.members).filter_map(|member| match (member.signal, member.exit_code) {
        (0, Some(0) | None) => None,
        (0, Some(code)) => Some(u8::try_from(code).unwrap_or(exit::FAILED)),
        (signal, _) => {
            Some(u8::try_from(signal).ok().and_then(|signal| 128u8.checked_add(signal)).unwrap_or(exit::FAILED))
        }
    });
    codes.into_iter().find(|&code| code != 0).unwrap_or(exit::FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: JobState, tasks: Vec<Task>) -> Job {
        Job { state: state.into(), tasks, ..Job::default() }
    }

    fn task(state: JobState, members: &[(Option<i32>, u32)]) -> Task {
        let member = |&(exit_code, signal): &(Option<i32>, u32)| Member { exit_code, signal, ..Member::default() };
        Task { state: state.into(), members: members.iter().map(member).collect(), ..Task::default() }
    }

    #[test]
    fn the_first_failed_member_gives_the_exit_code() {
        use JobState::{Cancelled, Failed, Succeeded};
        let first = task(Failed, &[(Some(0), 0), (None, 9), (Some(3), 0)]);
        for (job, code) in [
            (job(Succeeded, vec![task(Succeeded, &[(Some(0), 0)])]), 0),
            (job(Failed, vec![task(Succeeded, &[(Some(0), 0)]), task(Failed, &[(Some(3), 0)])]), 3),
            (job(Failed, vec![first]), 137),
            (job(Failed, vec![task(Failed, &[(None, 0)])]), 1),
            (job(Failed, vec![task(Failed, &[(Some(256), 0)])]), 1),
            (job(Failed, vec![task(Failed, &[(Some(-1), 0)])]), 1),
            (job(Failed, vec![task(Failed, &[(None, 200)])]), 1),
            (job(Failed, Vec::new()), 1),
            (job(Cancelled, vec![task(Cancelled, &[(None, 15)])]), 1),
        ] {
            assert_eq!(exit_code(&job), code, "{job:?}");
        }
    }

    #[test]
    fn an_end_is_told_as_shells_do() {
        let ending = |exit_code, signal| ending(&Member { exit_code, signal, ..Member::default() });
        assert_eq!(ending(None, 0), "");
        assert_eq!(ending(Some(2), 0), "2");
        assert_eq!(ending(None, 9), "SIGKILL");
        assert_eq!(ending(Some(1), 4_000_000_000), "signal 4000000000");
    }
}
