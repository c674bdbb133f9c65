//! Lists of jobs, one part at a time.

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_core::DEFAULT_QUEUE;
use prost::Message as _;
use tonic::{Request, Status};

use super::{UserService, caller, check};
use crate::access::Action;
use crate::jobs::{Entry, JobId};
use crate::present;

/// The most jobs in a list if the caller does not say.
const LISTED: u32 = 1000;
/// An answer ends with the job that makes it longer than this. Clients accept 4 MiB by default.
const ANSWER_BYTES: usize = 1 << 20;

/// The jobs that a caller asks for, the newest first, as many as fit into one answer. The lock on the book is released
/// between the jobs, and only jobs of the answer are copied.
pub(super) fn list(
    service: &UserService,
    request: Request<wire::ListJobsRequest>,
) -> Result<wire::ListJobsResponse, Status> {
    let caller = caller(&request)?;
    check(&request, &Action::Look)?;
    let request = request.into_inner();
    let count = if request.count_max == 0 { LISTED } else { request.count_max } as usize;
    let wanted: Vec<JobId> = {
        let book = service.seen.book.read();
        let wanted = book.entries_before(request.before).filter(|entry| is_wanted(entry, &request));
        wanted.map(|entry| entry.job.id).take(count.saturating_add(1)).collect()
    };
    let view = service.shown.get();
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    for id in wanted.iter().take(count) {
        if bytes >= ANSWER_BYTES {
            return Ok(wire::ListJobsResponse { jobs, truncated: true });
        }
        // The job may have been forgotten since.
        let Ok(entry) = service.entry(*id) else { continue };
        let job = present::job(&entry, view.as_deref(), !caller.may_inspect(entry.job.owned()));
        bytes += job.encoded_len();
        jobs.push(job);
    }
    Ok(wire::ListJobsResponse { jobs, truncated: wanted.len() > count })
}

fn is_wanted(entry: &Entry, request: &wire::ListJobsRequest) -> bool {
    let wire::ListJobsRequest { active, user, queue, .. } = request;
    let of = if entry.job.spec.queue.is_empty() { DEFAULT_QUEUE } else { &entry.job.spec.queue };
    (!active || entry.end().is_none())
        && (user.is_empty() || entry.job.user == *user)
        && (queue.is_empty() || of == queue)
}
