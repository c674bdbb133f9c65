//! Completion on the shell's command line: of commands, of options, and of slice names, with answers from the manager.
//! Completions of jobs are in `cluster/completion.rs`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_proto::node::v1::ListSlicesRequest;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use crate::args::Cli;
use crate::error::{Failure, Result};
use crate::{client, deadline};

/// The variable by which a shell's script asks for completions.
const VARIABLE: &str = "COMPLETE";
/// How long a manager that does not answer may delay a shell.
const PATIENCE: Duration = Duration::from_millis(300);

/// If a shell asks for completions, answers it and ends the program.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The completion script for `shell`.
pub(crate) fn script(shell: Shell) -> Result<String> {
    let failed = |why: String| Failure::new(format!("cannot write the completion script for {shell}: {why}"));
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&name).ok_or_else(|| failed("the shell is not known".to_owned()))?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "aliquot", "aliquot", "aliquot", &mut script)
        .map_err(|error| failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Names of slices that begin with `begun`; none if the manager does not answer.
pub(crate) fn slices(begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let names = names().unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with(&*begun)).map(CompletionCandidate::new).collect()
}

fn names() -> Result<Vec<String>> {
    let socket = socket("--socket", "ALIQUOT_SOCKET");
    client::runtime()?.block_on(async {
        let mut client = client::connect_to_running(socket.as_deref()).await?;
        let slices = client.list_slices(ListSlicesRequest {}).await?.into_inner().slices;
        Ok(slices.into_iter().map(|slice| slice.name).collect())
    })
}

/// The socket to ask for completions: the value of `option` on the unfinished command line, else that of `variable`.
/// Calling this also sets the short time limit, so that a daemon that does not answer does not delay the shell.
pub(crate) fn socket(option: &str, variable: &str) -> Option<PathBuf> {
    deadline::set(Some(PATIENCE));
    let socket = socket_among(option, std::env::args_os()).or_else(|| std::env::var_os(variable));
    socket.filter(|socket| !socket.is_empty()).map(PathBuf::from)
}

/// The value of `option` on the unfinished command line, which the shell hands over as arguments.
fn socket_among(option: &str, arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    let mut arguments = arguments.peekable();
    let mut socket = None;
    while let Some(argument) = arguments.next() {
        let rest = argument.as_bytes().strip_prefix(option.as_bytes());
        if rest == Some(b"") {
            socket = arguments.peek().cloned();
        } else if let Some(path) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
            socket = Some(OsStr::from_bytes(path).to_owned());
        }
    }
    socket
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_on_the_command_line_is_asked() {
        let among = |line: &str| socket_among("--socket", line.split(' ').map(OsString::from));
        assert_eq!(among("aliquot -- aliquot --socket /a describe tr"), Some("/a".into()));
        assert_eq!(among("aliquot -- aliquot --socket=/b describe tr"), Some("/b".into()));
        assert_eq!(among("aliquot -- aliquot describe tr"), None);
        assert_eq!(among("aliquot -- aliquot --sockets=/c describe tr"), None);
    }
}
