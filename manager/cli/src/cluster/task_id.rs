//! Names of jobs and their tasks on the command line: `17`, `17.3`.

use std::fmt;
use std::str::FromStr;

/// A job, or one of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    /// The number of the job.
    pub(crate) job: u64,
    /// The task's index in the array, if one is named.
    pub(crate) task: Option<u32>,
}

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<TaskId, String> {
        let parsed = match text.split_once('.') {
            Some((job, task)) => number(job).zip(number(task)).map(|(job, task)| TaskId { job, task: Some(task) }),
            None => number(text).map(|job| TaskId { job, task: None }),
        };
        parsed.filter(|id| id.job > 0).ok_or_else(|| {
            "write a job's number, such as 17, or one of its tasks, such as 17.3: `aliquot jobs` shows them".to_owned()
        })
    }
}

/// A number without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "{}.{task}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_or_one_of_its_tasks() {
        for (text, job, task) in [("17", 17, None), ("17.0", 17, Some(0)), ("17.4294967295", 17, Some(u32::MAX))] {
            assert_eq!(text.parse(), Ok(TaskId { job, task }));
            assert_eq!(text.parse::<TaskId>().unwrap().to_string(), text);
        }
        for text in ["", "0", "x", "17.", ".3", "17.3.0", "-1", "+1", "17.+3", "17.4294967296", "18446744073709551616"]
        {
            assert!(text.parse::<TaskId>().unwrap_err().contains("such as 17"), "{text}");
        }
    }
}
