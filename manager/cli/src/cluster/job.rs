//! `aliquot job`: everything about a job.

use std::path::Path;

use aliquot_proto::scheduler::v1::{
    GetJobRequest, Job, JobSpec, Member, MemberDevice, Mount, Restart, SecretUse, Task,
};

use super::words::indices_short;
use super::{age_human, connect_to_running, counted, demand, failed, json, moment_human, now_unix_ms, state};
use crate::args::JobArgs;
use crate::error::{Failure, Result};
use crate::output::{self, Look};
use crate::priority;
use crate::ps::short_uuid;
use crate::quantity::{bytes_human, span_human, thousandths_human};
use crate::table::{Align, Cell, Table, definitions};

/// Prints everything about a job, or about it and one of its tasks.
pub(crate) async fn job(socket: Option<&Path>, args: &JobArgs) -> Result<()> {
    let mut client = connect_to_running(socket).await?;
    let mut job = client.get_job(GetJobRequest { id: args.task.job }).await.map_err(failed)?.into_inner();
    if let Some(index) = args.task.task {
        job.tasks.retain(|task| task.index == index);
        if job.tasks.is_empty() {
            return Err(Failure::new(format!("job {} has no task {index}", job.id))
                .hint(format!("see its tasks: aliquot job {}", job.id)));
        }
    }
    if args.json {
        return output::print_json(&json::job(&job));
    }
    output::print(&text(&job, Look::of_stdout(), now_unix_ms()))
}

fn text(job: &Job, look: Look, now_unix_ms: u64) -> String {
    let spec = job.spec.clone().unwrap_or_default();
    let mut lines = vec![
        ("Job:", job.id.to_string()),
        ("Name:", spec.name.clone()),
        ("User:", job.user.clone()),
        ("Queue:", spec.queue.clone()),
        ("State:", state::word(job.state()).to_owned()),
    ];
    if !job.reason.is_empty() {
        lines.push(("Reason:", job.reason.clone()));
    }
    lines.push(("Submitted:", moment_human(job.submitted_unix_ms, now_unix_ms)));
    lines.extend(spec_lines(&spec));
    definitions(&lines) + "\nTasks\n" + &indented(&tasks(job, look, now_unix_ms))
}

fn spec_lines(spec: &JobSpec) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if !spec.image.is_empty() {
        lines.push(("Image:", spec.image.clone()));
    }
    // Jobs of other users are shown without their commands.
    if !spec.command.is_empty() {
        lines.push(("Command:", spec.command.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")));
    }
    if !spec.work_dir.is_empty() {
        lines.push(("Directory:", spec.work_dir.clone()));
    }
    if !spec.mounts.is_empty() {
        lines.push(("Mounts:", spec.mounts.iter().map(mount).collect::<Vec<_>>().join(", ")));
    }
    if spec.shm_bytes > 0 {
        lines.push(("Shm size:", bytes_human(spec.shm_bytes)));
    }
    if !spec.environment.is_empty() {
        // Values can be secrets; they are in the JSON output.
        let mut names: Vec<&str> = spec.environment.keys().map(String::as_str).collect();
        names.sort_unstable();
        lines.push(("Variables:", names.join(" ")));
    }
    if !spec.secrets.is_empty() {
        lines.push(("Secrets:", spec.secrets.iter().map(secret).collect::<Vec<_>>().join(", ")));
    }
    let members =
        if spec.gang > 1 { format!("{} members that start together, each with ", spec.gang) } else { String::new() };
    lines.push(("Asks for:", members + &demand::of_member(spec)));
    lines.extend(priority::name_of_job(spec.priority_class()).map(|class| ("Class:", class.to_owned())));
    if !spec.array.is_empty() {
        let tasks = counted(spec.array.len(), "task");
        lines.push(("Array:", format!("{} ({tasks})", indices_short(&spec.array))));
    }
    if spec.priority != 0 {
        lines.push(("Priority:", spec.priority.to_string()));
    }
    let mut rules = Vec::new();
    if spec.non_preemptible {
        rules.push("is never evicted for others".to_owned());
    }
    if spec.restart() == Restart::Never {
        rules.push("is not started again after the loss of a node".to_owned());
    }
    if spec.retries > 0 {
        rules.push(format!("is retried up to {} after a failure", times(spec.retries)));
    }
    if spec.time_limit_ms > 0 {
        rules.push(format!("is stopped after {}", span_human(spec.time_limit_ms / 1000)));
    }
    if !rules.is_empty() {
        lines.push(("Rules:", rules.join("; ")));
    }
    let pairs = |pairs: &std::collections::HashMap<String, String>| {
        let mut pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.sort_unstable();
        pairs.join(", ")
    };
    let tolerated = spec.tolerations.iter().map(|taint| match taint.value.as_str() {
        "" => taint.key.clone(),
        value => format!("{}={value}", taint.key),
    });
    let after: Vec<String> = spec.after.iter().map(ToString::to_string).collect();
    for (name, value) in [
        ("Nodes:", spec.nodes.join(", ")),
        ("Labels:", pairs(&spec.node_labels)),
        ("Models:", spec.gpu_models.join(", ")),
        ("Tolerates:", tolerated.collect::<Vec<_>>().join(", ")),
        ("After:", after.join(", ")),
    ] {
        if !value.is_empty() {
            lines.push((name, value));
        }
    }
    lines
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// A mount in the form of the option `--mount`.
fn mount(mount: &Mount) -> String {
    let target = if mount.target.is_empty() { String::new() } else { format!(":{}", mount.target) };
    format!("{}{target}{}", mount.source, if mount.read_only { ":ro" } else { "" })
}

/// A secret in the form of the option `--secret`.
fn secret(of: &SecretUse) -> String {
    let variable = if of.variable.is_empty() { String::new() } else { format!(":{}", of.variable) };
    of.name.clone() + &variable
}

/// A word of a command line, in quotes if a shell would split it.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=+./,:@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A line for each member of each task. A task that has no members yet has a line of its own.
fn tasks(job: &Job, look: Look, now_unix_ms: u64) -> String {
    let has_ranks = job.tasks.iter().any(|task| task.members.len() > 1);
    let rank = has_ranks.then_some(("RANK", Align::Right));
    let columns = [Some(("TASK", Align::Right)), rank].into_iter().flatten().chain([
        ("STATE", Align::Left),
        ("ATTEMPT", Align::Right),
        ("NODE", Align::Left),
        ("DEVICES", Align::Left),
        ("STARTED", Align::Left),
        ("TOOK", Align::Right),
        ("EXIT", Align::Right),
        ("REASON", Align::Left),
    ]);
    let mut table = Table::new(columns);
    for task in &job.tasks {
        let members: Vec<Option<&Member>> = match task.members.as_slice() {
            [] => vec![None],
            members => members.iter().map(Some).collect(),
        };
        for (index, member) in members.into_iter().enumerate() {
            let rank = member.map_or_else(String::new, |member| member.rank.to_string());
            // For a task with several members, the facts that concern all of them are shown once.
            let reason = if index == 0 { reason(task, now_unix_ms) } else { String::new() };
            let state = member.map_or(task.state(), Member::state);
            let started = member.map_or(0, |member| member.started_unix_ms);
            let cells = [Some(Cell::from(task.index.to_string())), has_ranks.then(|| rank.into())];
            table.row(
                cells.into_iter().flatten().chain([
                    Cell::coloured(state::word(state), state::colour(state)),
                    task.attempt.to_string().into(),
                    member
                        .map(|member| member.node.clone())
                        .filter(|node| !node.is_empty())
                        .unwrap_or_else(|| "-".to_owned())
                        .into(),
                    member.map_or_else(|| "-".to_owned(), |member| devices(&member.devices)).into(),
                    if started == 0 { "-".to_owned() } else { super::clock_human(started) }.into(),
                    took(started, task.ended_unix_ms, now_unix_ms).into(),
                    member.map(state::ending).unwrap_or_default().into(),
                    reason.into(),
                ]),
            );
        }
    }
    // The table is indented by two columns.
    let look = Look { width: look.width.map(|width| width.saturating_sub(2)), ..look };
    table.render_narrowed(look, &["ATTEMPT", "STARTED", "DEVICES"])
}

fn reason(task: &Task, now_unix_ms: u64) -> String {
    let retry = (task.retry_unix_ms > now_unix_ms)
        .then(|| format!("is tried again in {}", span_human((task.retry_unix_ms - now_unix_ms).div_ceil(1000))));
    let failures = (task.failures > 0).then(|| format!("has failed {}", times(task.failures)));
    let reason = Some(task.reason.clone()).filter(|reason| !reason.is_empty());
    [reason, failures, retry].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn took(started_unix_ms: u64, ended_unix_ms: u64, now_unix_ms: u64) -> String {
    match (started_unix_ms, ended_unix_ms) {
        (0, _) => "-".to_owned(),
        (started, 0) => age_human(started, now_unix_ms),
        (started, ended) => age_human(started, ended),
    }
}

/// Devices with the member's part of each: `GPU-7d3c91f2 30 % 8 GiB`.
fn devices(devices: &[MemberDevice]) -> String {
    if devices.is_empty() {
        return "-".to_owned();
    }
    let device = |device: &MemberDevice| {
        let (percent, memory) =
            (thousandths_human(u64::from(device.core_millis) * 100), bytes_human(device.memory_bytes));
        format!("{} {percent} % {memory}", short_uuid(&device.uuid))
    };
    devices.iter().map(device).collect::<Vec<_>>().join(", ")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use aliquot_proto::scheduler::v1::{JobState, PriorityClass, Toleration};

    use super::*;

    fn member(rank: u32, state: JobState) -> Member {
        Member {
            rank,
            state: state.into(),
            node: "gpu-1".to_owned(),
            devices: vec![MemberDevice {
                uuid: "GPU-7d3c91f2-0000".to_owned(),
                core_millis: 300,
                memory_bytes: 8 << 30,
            }],
            started_unix_ms: 1_000_000,
            ..Member::default()
        }
    }

    #[test]
    fn everything_about_a_gang_is_said() {
        let strings = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into_iter().collect();
        let spec = JobSpec {
            name: "train".to_owned(),
            queue: "team-a".to_owned(),
            command: strings(&["python", "train.py", "--note", "it's \u{1b}[2J"]),
            environment: map("TOKEN", "secret"),
            work_dir: "/home/ada".to_owned(),
            image: "debian:12".to_owned(),
            mounts: vec![Mount { source: "/data".to_owned(), target: "/in".to_owned(), read_only: true }],
            secrets: vec![SecretUse { name: "hf-token".to_owned(), variable: "HF_TOKEN".to_owned() }],
            gpu_core_percent: 30,
            gpu_core_limit_percent: 60,
            priority_class: PriorityClass::Batch.into(),
            gang: 2,
            priority: -5,
            non_preemptible: true,
            retries: 3,
            time_limit_ms: 7_200_000,
            restart: Restart::Never.into(),
            node_labels: map("zone", "a"),
            nodes: strings(&["gpu-1", "gpu-2"]),
            tolerations: vec![Toleration { key: "dedicated".to_owned(), value: String::new() }],
            after: vec![15, 16],
            ..JobSpec::default()
        };
        let failed = Member { signal: 9, ..member(1, JobState::Failed) };
        let task = Task {
            state: JobState::Pending.into(),
            attempt: 2,
            failures: 1,
            members: vec![member(0, JobState::Running), failed],
            reason: "a member has failed".to_owned(),
            retry_unix_ms: 1_080_000,
            ..Task::default()
        };
        let job = Job {
            id: 17,
            spec: Some(spec),
            user: "ada".to_owned(),
            submitted_unix_ms: 990_000,
            state: JobState::Pending.into(),
            tasks: vec![task],
            reason: "waits for its retry".to_owned(),
            ..Job::default()
        };
        assert_eq!(
            text(&job, Look::PLAIN, 1_060_000),
            "Job:        17\n\
             Name:       train\n\
             User:       ada\n\
             Queue:      team-a\n\
             State:      pending\n\
             Reason:     waits for its retry\n\
             Submitted:  1970-01-01 00:16:30Z (1m10s ago)\n\
             Image:      debian:12\n\
             Command:    python train.py --note 'it'\\''s ?[2J'\n\
             Directory:  /home/ada\n\
             Mounts:     /data:/in:ro\n\
             Variables:  TOKEN\n\
             Secrets:    hf-token:HF_TOKEN\n\
             Asks for:   2 members that start together, each with 30 to 60 % of 1 GPU\n\
             Class:      batch\n\
             Priority:   -5\n\
             Rules:      is never evicted for others; is not started again after the loss of a node; is retried up to 3 times \
             after a failure; is stopped after 2h\n\
             Nodes:      gpu-1, gpu-2\n\
             Labels:     zone=a\n\
             Tolerates:  dedicated\n\
             After:      15, 16\n\
             \n\
             Tasks\n  \
             TASK  RANK  STATE    ATTEMPT  NODE   DEVICES                  STARTED               TOOK     EXIT  REASON\n     \
                0     0  running        2  gpu-1  GPU-7d3c91f2 30 % 8 GiB  1970-01-01 00:16:40Z    1m           a member has failed; has failed once; is tried again in 20s\n     \
                0     1  failed         2  gpu-1  GPU-7d3c91f2 30 % 8 GiB  1970-01-01 00:16:40Z    1m  SIGKILL\n"
        );
    }

    #[test]
    fn the_job_of_another_user_shows_no_command() {
        let spec = JobSpec { name: "train".to_owned(), array: vec![0, 1, 2, 7], ..JobSpec::default() };
        let task =
            |index, ended_unix_ms, members| Task { index, ended_unix_ms, members, attempt: 1, ..Task::default() };
        let ended = Member { exit_code: Some(3), devices: Vec::new(), ..member(0, JobState::Failed) };
        let job = Job {
            id: 9,
            spec: Some(spec),
            tasks: vec![task(0, 0, vec![]), task(7, 1_002_000, vec![ended])],
            ..Job::default()
        };
        let text = text(&job, Look::PLAIN, 9_000_000);
        assert!(!text.contains("Command:") && text.contains("Array:      0-2,7 (4 tasks)\n"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().rev().take(2).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1].join(" "), "0 unknown 1 - - - -");
        assert_eq!(rows[0].join(" "), "7 failed 1 gpu-1 - 1970-01-01 00:16:40Z 2s 3");
    }
}
