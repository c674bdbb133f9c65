//! `aliquot explain`: why a task waits or was evicted, and what would help.

use std::path::Path;

use aliquot_proto::scheduler::v1::{ExplainRequest, ExplainResponse, JobState};
use aliquot_terminal::points::points;
use serde_json::json;

use super::state::word;
use super::{TaskId, connect_to_running, failed};
use crate::args::ExplainArgs;
use crate::error::Result;
use crate::output::{self, Colour, Look, paint};

/// Prints the reasons and the remedies.
pub(crate) async fn explain(socket: Option<&Path>, args: &ExplainArgs) -> Result<()> {
    let TaskId { job, task } = args.task;
    let mut client = connect_to_running(socket).await?;
    let answer = client.explain(ExplainRequest { id: job, task }).await.map_err(failed)?.into_inner();
    if args.json {
        return output::print_json(&json!({
            "job": job,
            "task": task,
            "state": word(answer.state()),
            "reasons": answer.reasons,
            "remedies": answer.remedies,
        }));
    }
    output::print(&text(args.task, &answer, Look::of_stdout()))
}

fn text(task: TaskId, answer: &ExplainResponse, look: Look) -> String {
    if answer.reasons.is_empty() {
        return format!("Nothing keeps {task} from running. Its state: aliquot job {task}\n");
    }
    let heading = |text: &str| paint(text, Colour::Bold, look.colours);
    let subject = match answer.state() {
        JobState::Unspecified | JobState::Pending => format!("Why {task} does not run"),
        _ => format!("Job {task}"),
    };
    let mut text = format!("{}\n{}", heading(&subject), points(&answer.reasons, look));
    match answer.remedies.as_slice() {
        [] => {}
        [only] => {
            text.push_str(&format!("\n{}\n{}", heading("What would help"), points(std::slice::from_ref(only), look)))
        }
        several => {
            text.push_str(&format!("\n{}\n", heading("What would help, the smallest change first")));
            text.push_str(&points(several, look));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reasons: &[&str], remedies: &[&str]) -> ExplainResponse {
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        ExplainResponse { reasons: strings(reasons), remedies: strings(remedies), state: JobState::Pending.into() }
    }

    const TASK: TaskId = TaskId { job: 17, task: Some(3) };

    #[test]
    fn reasons_and_remedies() {
        let one = answer(&["The queue team-a\u{1b}[2J holds all of its 4 devices."], &["Wait for job 12."]);
        assert_eq!(
            text(TASK, &one, Look::PLAIN),
            "Why 17.3 does not run\n- The queue team-a?[2J holds all of its 4 devices.\n\nWhat would help\n- Wait for job 12.\n"
        );
        let several = text(TASK, &answer(&["a"], &["b", "c"]), Look::PLAIN);
        assert!(several.ends_with("What would help, the smallest change first\n- b\n- c\n"), "{several}");
        assert_eq!(
            text(TASK, &answer(&[], &[]), Look::PLAIN),
            "Nothing keeps 17.3 from running. Its state: aliquot job 17.3\n"
        );
    }

    #[test]
    fn a_job_that_does_not_wait_is_not_asked_why() {
        let mut runs = answer(&["it runs on node node-1"], &[]);
        runs.set_state(JobState::Running);
        assert_eq!(text(TASK, &runs, Look::PLAIN), "Job 17.3\n- it runs on node node-1\n");
    }

    #[test]
    fn on_a_terminal_sentences_are_broken_between_words() {
        let look = Look { colours: false, bars: false, width: Some(24) };
        let text = text(TASK, &answer(&["No node has 8 GiB free on one device."], &[]), look);
        assert_eq!(text, "Why 17.3 does not run\n- No node has 8 GiB free\n  on one device.\n");
    }
}
