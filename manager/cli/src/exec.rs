//! `aliquot exec`: runs a command in an existing slice.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use aliquot_proto::node::v1::{GetNodeRequest, GetSliceRequest};

use crate::args::ExecArgs;
use crate::client;
use crate::error::{Failure, Result, exit};
use crate::output;
use crate::run::{Supervisor, command_in};
use crate::table::printable;

/// Runs the command, and returns its exit status.
pub(crate) fn exec(socket: Option<&Path>, args: &ExecArgs) -> Result<ExitCode> {
    if args.interactive || args.terminal || args.rank.is_some() {
        return Err(Failure::new(format!("{:?} is a slice; -i, -t and --rank are for jobs", args.name))
            .hint("leave them out: standard input and the terminal pass through to a command in a slice")
            .exit(exit::USAGE));
    }
    // Before any thread starts, because each thread inherits the blocked signals.
    let supervisor = Supervisor::new()?;
    let (slice, node) = client::runtime()?.block_on(async {
        let mut client = client::connect_to_running(socket).await?;
        let slice = client.get_slice(GetSliceRequest { name: args.name.clone() }).await?.into_inner();
        Ok::<_, Failure>((slice, client.get_node(GetNodeRequest {}).await?.into_inner()))
    })?;
    if !slice.problem.is_empty() {
        if slice.shim_path.is_empty() {
            return Err(Failure::new(format!("slice {:?} does not work: {}", slice.name, slice.problem))
                .hint(format!("remove the slice and create it again: aliquot slice rm {}", slice.name)));
        }
        output::say(format_args!("warning: slice {:?}: {}", slice.name, printable(&slice.problem)));
    }
    if is_closed_to_this_user(Path::new(&slice.shim_path)) {
        let user = nix::unistd::geteuid();
        return Err(Failure::new(format!(
            "slice {:?} was made by another user, and does not admit user {user}",
            slice.name
        ))
        .hint(format!("admit the user: aliquot slice resize {} --allow-user {user}", slice.name)));
    }
    supervisor.run(command_in(&slice, &node, &args.command[0], &args.command[1..], [])?)
}

/// Whether this user cannot reach the slice's files, because only the users of the slice can pass its directory.
fn is_closed_to_this_user(shim: &Path) -> bool {
    fs::metadata(shim).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}
