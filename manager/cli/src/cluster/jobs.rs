//! `aliquot jobs`: the jobs of the cluster.

use std::path::Path;

use aliquot_proto::scheduler::v1::{Job, ListJobsRequest, ListJobsResponse};
use serde_json::json;

use super::state::{self, Tally};
use super::{Client, age_human, connect_to_running, demand, failed, json, now_unix_ms};
use crate::args::JobsArgs;
use crate::error::Result;
use crate::output::{self, Look};
use crate::table::{Align, Cell, Table, cut};

/// Maximum width of names and queues, so that the reason has room.
const NAME_WIDTH_MAX: usize = 24;

/// The columns that a narrow terminal does not show, the most dispensable first.
const OPTIONAL: [&str; 4] = ["QUEUE", "USER", "GPU", "RUN/WAIT/DONE"];

/// Prints the jobs, the newest first.
pub(crate) async fn jobs(socket: Option<&Path>, args: &JobsArgs) -> Result<()> {
    let answer = list(&mut connect_to_running(socket).await?, args).await?;
    if args.json {
        let jobs: Vec<_> = answer.jobs.iter().map(json::job).collect();
        return output::print_json(&json!({ "jobs": jobs, "truncated": answer.truncated }));
    }
    output::print(&text(&answer, args, Look::of_stdout(), now_unix_ms()))
}

/// Asks until all jobs are listed, because an answer contains only a limited number.
async fn list(client: &mut Client, args: &JobsArgs) -> Result<ListJobsResponse> {
    let mut listed = ListJobsResponse::default();
    loop {
        let request = ListJobsRequest {
            active: !args.all,
            user: args.user.clone().unwrap_or_default(),
            queue: args.queue.clone().unwrap_or_default(),
            count_max: args.count.saturating_sub(u32::try_from(listed.jobs.len()).unwrap_or(u32::MAX)),
            before: listed.jobs.last().map_or(0, |job| job.id),
        };
        let ListJobsResponse { jobs, truncated } = client.list_jobs(request).await.map_err(failed)?.into_inner();
        let is_last = !truncated || jobs.is_empty();
        listed.jobs.extend(jobs);
        listed.truncated = truncated;
        if is_last || listed.jobs.len() >= args.count as usize {
            return Ok(listed);
        }
    }
}

fn text(answer: &ListJobsResponse, args: &JobsArgs, look: Look, now_unix_ms: u64) -> String {
    if answer.jobs.is_empty() {
        return match (args.all, args.user.is_some() || args.queue.is_some()) {
            (_, true) => "No such jobs.\n".to_owned(),
            (true, false) => "No jobs. Submit one: aliquot submit --gpu-core 30 -- CMD\n".to_owned(),
            (false, false) => "No job waits or runs. Those that have ended: aliquot jobs --all\n".to_owned(),
        };
    }
    let mut table = Table::new([
        ("ID", Align::Right),
        ("NAME", Align::Left),
        ("USER", Align::Left),
        ("QUEUE", Align::Left),
        ("STATE", Align::Left),
        ("RUN/WAIT/DONE", Align::Right),
        ("GPU", Align::Right),
        ("AGE", Align::Right),
        ("NODE", Align::Left),
        ("REASON", Align::Left),
    ]);
    for job in &answer.jobs {
        let spec = job.spec.clone().unwrap_or_default();
        table.row([
            job.id.to_string().into(),
            cut(&spec.name, NAME_WIDTH_MAX).into(),
            cut(&job.user, NAME_WIDTH_MAX).into(),
            cut(&spec.queue, NAME_WIDTH_MAX).into(),
            state_cell(job),
            tasks(job).into(),
            demand::devices_short(&spec).into(),
            age_human(job.submitted_unix_ms, now_unix_ms).into(),
            nodes(job).into(),
            Cell::from(job.reason.clone()),
        ]);
    }
    let more = if answer.truncated { "… and older ones: aliquot jobs --count N shows more\n" } else { "" };
    table.render_narrowed(look, &OPTIONAL) + more
}

fn state_cell(job: &Job) -> Cell {
    let failed = match Tally::of(&job.tasks).failed {
        failed if failed > 0 && job.tasks.len() > 1 => format!(", {failed} failed"),
        _ => String::new(),
    };
    Cell::coloured(format!("{}{failed}", state::word(job.state())), state::colour(job.state()))
}

fn tasks(job: &Job) -> String {
    let Tally { running, pending, done, .. } = Tally::of(&job.tasks);
    format!("{running}/{pending}/{done}")
}

/// The nodes where the job's members are or were: the first one, and the number of the others.
fn nodes(job: &Job) -> String {
    let members = job.tasks.iter().flat_map(|task| &task.members);
    let mut nodes: Vec<&str> = members.map(|member| member.node.as_str()).filter(|node| !node.is_empty()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match nodes.as_slice() {
        [] => "-".to_owned(),
        [only] => cut(only, NAME_WIDTH_MAX),
        [first, others @ ..] => format!("{} +{}", cut(first, NAME_WIDTH_MAX), others.len()),
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::scheduler::v1::{JobSpec, JobState, Member, Task};

    use super::*;

    fn args(all: bool, user: Option<&str>) -> JobsArgs {
        JobsArgs { all, user: user.map(ToOwned::to_owned), queue: None, count: 1000, json: false }
    }

    fn task(state: JobState, node: &str) -> Task {
        let member = Member { node: node.to_owned(), ..Member::default() };
        Task { state: state.into(), members: vec![member], ..Task::default() }
    }

    fn answer() -> ListJobsResponse {
        let spec = |name: &str, gpu_core_percent, gpus| JobSpec {
            name: name.to_owned(),
            queue: "team-a".to_owned(),
            gpu_core_percent,
            gpus,
            ..JobSpec::default()
        };
        let sweep = Job {
            id: 18,
            spec: Some(spec("sweep\u{1b}[2J", 30, 0)),
            user: "ada".to_owned(),
            submitted_unix_ms: 1_000_000,
            state: JobState::Running.into(),
            tasks: vec![
                task(JobState::Running, "gpu-2"),
                task(JobState::Running, "gpu-1"),
                task(JobState::Pending, ""),
                task(JobState::Failed, "gpu-1"),
                task(JobState::Succeeded, "gpu-1"),
            ],
            ..Job::default()
        };
        let big = Job {
            id: 7,
            spec: Some(spec("a-name-that-is-longer-than-a-table-is-wide", 100, 8)),
            user: "bob".to_owned(),
            submitted_unix_ms: 0,
            state: JobState::Pending.into(),
            tasks: vec![task(JobState::Pending, "")],
            reason: "no node has 8 devices free; the largest has 4".to_owned(),
            ..Job::default()
        };
        ListJobsResponse { jobs: vec![sweep, big], truncated: true }
    }

    #[test]
    fn jobs_are_a_table_that_steers_no_terminal() {
        assert_eq!(
            text(&answer(), &args(false, None), Look::PLAIN, 1_075_000),
            "ID  NAME                      USER  QUEUE   STATE              RUN/WAIT/DONE        GPU    AGE  NODE      REASON\n\
             18  sweep?[2J                 ada   team-a  running, 1 failed          2/1/2       30 %  1m15s  gpu-1 +1\n \
             7  a-name-that-is-longer-t…  bob   team-a  pending                    0/1/0  8 × 100 %    17m  -         no node has 8 devices free; the largest has 4\n\
             … and older ones: aliquot jobs --count N shows more\n"
        );
    }

    #[test]
    fn a_narrow_terminal_leaves_out_columns() {
        let text = |width| {
            let look = Look { colours: true, bars: false, width: Some(width) };
            text(&answer(), &args(false, None), look, 0)
        };
        assert!(text(160).contains("\u{1b}[33mpending\u{1b}[0m"), "{}", text(160));
        assert!(text(130).contains("QUEUE") && text(130).contains("no node has 8 "), "{}", text(130));
        let narrow = text(100);
        assert!(!narrow.contains("QUEUE") && !narrow.contains("USER") && narrow.contains("a-name-that-is"), "{narrow}");
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        let none = ListJobsResponse::default();
        let said = |all, user| text(&none, &args(all, user), Look::PLAIN, 0);
        assert!(said(false, None).contains("aliquot jobs --all"));
        assert!(said(true, None).contains("aliquot submit"));
        assert_eq!(said(true, Some("ada")), "No such jobs.\n");
    }
}
