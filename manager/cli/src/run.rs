//! `aliquot run`: runs a command in a slice of its own.

mod launch;
mod marks;
mod status;
mod supervise;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use aliquot_proto::node::v1::{
    CreateSliceRequest, DESCRIPTION_BYTES_MAX, GetNodeRequest, Node, RemoveSliceRequest, Slice,
};
use tokio::runtime::Runtime;

pub(crate) use launch::command_in;
pub(crate) use supervise::{Supervisor, reap_adopted};

use crate::args::{RunArgs, ShareArgs};
use crate::client::{self, Absent};
use crate::embedded::Embedded;
use crate::error::{Failure, Result, exit};
use crate::quantity::HostMemory;
use crate::simulated::SimulatedGpu;
use crate::{output, parts, priority, user, visible};
use marks::Marks;

/// Runs the command, and returns its exit status.
pub(crate) fn run(socket: Option<&Path>, args: &RunArgs) -> Result<ExitCode> {
    let simulated = args.simulated.then(SimulatedGpu::set_up).transpose()?;
    // Before any thread starts, because each thread inherits the blocked signals.
    let supervisor = Supervisor::new()?;
    let manager = Manager::find_or_embed(socket, simulated.as_ref())?;
    let runtime = client::runtime()?;
    let slice = OwnSlice::create(&runtime, manager.socket(), args)?;
    if let Some(signal) = supervisor.end_asked_for()? {
        return Ok(status::of_signal(signal));
    }
    // A simulated GPU is this run's alone.
    let devices = slice.slice.parts.iter().map(|part| part.device_uuid.as_str());
    let marks = (manager.embedded.is_some() && simulated.is_none()).then(|| Marks::set(devices));
    if let Some(warning) = marks.as_ref().and_then(Marks::warning) {
        output::say(format_args!("warning: {warning}"));
    }
    let environment = simulated.iter().flat_map(SimulatedGpu::environment).chain(manager.environment());
    let command = command_in(&slice.slice, &slice.node, &args.command[0], &args.command[1..], environment)?;
    supervisor.run(command)
}

/// The node manager that keeps the slices of a run.
pub(crate) struct Manager {
    socket: PathBuf,
    /// The manager in this process, if there is one; it ends when this is dropped.
    embedded: Option<Embedded>,
}

impl Manager {
    /// The manager that serves `socket` or runs on this machine. If none runs, or for the simulated GPU, it is a
    /// manager in this process.
    pub(crate) fn find_or_embed(socket: Option<&Path>, simulated: Option<&SimulatedGpu>) -> Result<Manager> {
        if simulated.is_none() {
            match client::find(socket) {
                Ok(running) => return Ok(Manager { socket: running, embedded: None }),
                // A manager that the user has named must not be replaced by another one. If a manager runs but
                // is closed to this user, a second one would give out the same devices again.
                Err(absent @ Absent::NotRunning(_)) if socket.is_some() => return Err(absent.into()),
                Err(absent @ (Absent::Unreachable(..) | Absent::Foreign(_))) => return Err(absent.into()),
                Err(Absent::NotRunning(_)) => {}
            }
        }
        let embedded = Embedded::start(simulated.map(SimulatedGpu::nvml_library))?;
        Ok(Manager { socket: embedded.socket(), embedded: Some(embedded) })
    }

    /// The variable that tells an `aliquot` started by the command where the embedded manager is.
    fn environment(&self) -> Option<(OsString, OsString)> {
        self.embedded.as_ref().map(|_| ("ALIQUOT_SOCKET".into(), self.socket.clone().into()))
    }

    /// The socket that it serves.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

/// A slice that is removed when this is dropped. It is also removed when this process is killed, because the manager
/// watches the process.
pub(crate) struct OwnSlice<'manager> {
    /// The slice, as the manager has made it.
    pub(crate) slice: Slice,
    /// The node that it is on.
    pub(crate) node: Node,
    runtime: &'manager Runtime,
    socket: &'manager Path,
}

impl<'manager> OwnSlice<'manager> {
    fn create(runtime: &'manager Runtime, socket: &'manager Path, args: &RunArgs) -> Result<OwnSlice<'manager>> {
        let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
        // The variable names this machine's devices, not simulated ones.
        let shown = env::var_os(visible::VARIABLE).filter(|_| !args.simulated);
        let request = CreateSliceRequest {
            name: args.name.clone().unwrap_or_default(),
            description: shortened(words.join(" ")),
            allowed_uids: user::ids(&args.allow_user),
            ..CreateSliceRequest::default()
        };
        Self::of_shown(runtime, socket, request, &args.share, shown.as_deref())
    }

    /// Creates a slice with this name and share, through the manager that serves `socket`.
    pub(crate) fn of_share(
        runtime: &'manager Runtime,
        socket: &'manager Path,
        name: &str,
        share: &ShareArgs,
        description: String,
    ) -> Result<OwnSlice<'manager>> {
        let request = CreateSliceRequest { name: name.to_owned(), description, ..CreateSliceRequest::default() };
        Self::of_shown(runtime, socket, request, share, None)
    }

    /// Creates the slice of `request` with `share`. Its devices are chosen from those that `shown`, a value of
    /// `CUDA_VISIBLE_DEVICES`, shows, unless `share` names devices.
    fn of_shown(
        runtime: &'manager Runtime,
        socket: &'manager Path,
        request: CreateSliceRequest,
        share: &ShareArgs,
        shown: Option<&OsStr>,
    ) -> Result<OwnSlice<'manager>> {
        let (slice, node) = runtime.block_on(async {
            let mut client = client::connect(socket).await?;
            let node = client.get_node(GetNodeRequest {}).await?.into_inner();
            let request = CreateSliceRequest {
                parts: parts::of_share(share, shown, &node)?,
                owner_pid: std::process::id(),
                host_memory_limit_bytes: share.host_memory.map_or(0, HostMemory::limit_bytes),
                priority_class: priority::in_request(share.priority),
                ..request
            };
            Ok::<_, Failure>((client.create_slice(request).await?.into_inner(), node))
        })?;
        Ok(OwnSlice { slice, node, runtime, socket })
    }
}

impl Drop for OwnSlice<'_> {
    fn drop(&mut self) {
        let request = RemoveSliceRequest { name: self.slice.name.clone(), force: true };
        // A new connection, because the first one was idle while the command ran. If this fails, the manager removes
        // the slice when this process has ended.
        let _ = self.runtime.block_on(async {
            let mut client = client::connect(self.socket).await?;
            client.remove_slice(request).await?;
            Ok::<_, Failure>(())
        });
    }
}

/// `text`, without its end where it is too long for a description.
fn shortened(mut text: String) -> String {
    if text.len() > DESCRIPTION_BYTES_MAX {
        let is_end = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=DESCRIPTION_BYTES_MAX - "…".len()).rev().find(is_end).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// `failure`, with an exit code that distinguishes it from a failure of the command.
pub(crate) fn own_failure(failure: Failure) -> Failure {
    match failure.is_general() {
        true => failure.exit(exit::RUN_FAILED),
        false => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_shortened_between_letters() {
        assert_eq!(shortened("train --all".into()), "train --all");
        let just_fits = "x".repeat(DESCRIPTION_BYTES_MAX);
        assert_eq!(shortened(just_fits.clone()), just_fits);
        let short = shortened("xä".repeat(DESCRIPTION_BYTES_MAX));
        assert!(short.len() <= DESCRIPTION_BYTES_MAX && short.starts_with("xäxä") && short.ends_with('…'), "{short}");
    }
}
