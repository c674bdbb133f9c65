//! Completion in a shell. Kubectl runs a program `kubectl_complete-aliquot`, which is a link to the plugin.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::engine::complete;

use crate::args::Cli;

/// The name by which kubectl calls the plugin for completions.
const LINK: &str = "kubectl_complete-aliquot";
/// The answer that tells kubectl not to offer file names.
const NO_FILES: &str = ":4";

/// Whether this command line comes from kubectl and asks for completions.
#[must_use]
pub fn is_asked(arguments: &[OsString]) -> bool {
    arguments.first().and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == LINK)
}

/// The possible completions of the last word.
#[must_use]
pub fn reply(arguments: &[OsString]) -> String {
    let last = arguments.len().saturating_sub(1);
    let candidates = complete(&mut Cli::command(), arguments.to_vec(), last, None).unwrap_or_default();
    let lines = candidates.iter().filter(|candidate| !candidate.is_hide_set()).map(|candidate| {
        let help = candidate.get_help().map(|help| format!("\t{help}")).unwrap_or_default();
        format!("{}{help}\n", candidate.get_value().to_string_lossy())
    });
    lines.chain([format!("{NO_FILES}\n")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_to(arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        assert!(is_asked(&arguments));
        reply(&arguments)
    }

    #[test]
    fn kubectl_gets_commands_and_options() {
        let commands = reply_to(&["/usr/bin/kubectl_complete-aliquot", "qu"]);
        assert!(commands.starts_with("queues\t") && commands.ends_with(":4\n"), "{commands}");
        let options = reply_to(&["kubectl_complete-aliquot", "what-if", "--gpu-c"]);
        assert!(options.starts_with("--gpu-core\t"), "{options}");
        assert!(!is_asked(&["kubectl-aliquot".into(), "queues".into()]));
    }
}
