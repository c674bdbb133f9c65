//! Prepares a command to run in a slice.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use aliquot_agent::slice_environment::{self, NotPreloadable};
use aliquot_proto::node::v1::{Node, Slice};

use crate::error::{Failure, Result};

/// `program` with `args`, to be started in `slice` on `node`. `environment` is added to this process's own.
pub(crate) fn command_in(
    slice: &Slice,
    node: &Node,
    program: &OsStr,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Command> {
    let mut command = Command::new(program);
    let of_slice = slice_environment::variables(slice, node, env::var_os("LD_PRELOAD").as_deref())?;
    command.args(args).envs(environment).envs(of_slice);
    Ok(command)
}

impl From<NotPreloadable> for Failure {
    fn from(error: NotPreloadable) -> Failure {
        Failure::new(error.to_string()).hint(match error {
            NotPreloadable::NoShim => "it is of another version; compare: aliquot --version and aliquot nodes",
            NotPreloadable::Path(_) => "set the manager's runtime_dir to a path without colons and spaces",
        })
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::Part;

    use super::*;

    #[test]
    fn a_command_has_the_environment_of_its_slice_and_its_own() {
        let part = Part { device_uuid: "GPU-a".to_owned(), ..Part::default() };
        let slice = Slice { parts: vec![part], shim_path: "/r/a.so".to_owned(), ..Slice::default() };
        let command =
            command_in(&slice, &Node::default(), OsStr::new("true"), ["x"], [("A".into(), "1".into())]).unwrap();
        let value = |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        assert_eq!((value("NVIDIA_VISIBLE_DEVICES"), value("A")), (Some(OsStr::new("GPU-a")), Some(OsStr::new("1"))));
        assert!(value("LD_PRELOAD").unwrap().to_string_lossy().starts_with("/r/a.so"));
    }

    #[test]
    fn a_slice_that_no_command_can_be_put_into_is_explained() {
        let slice = Slice { shim_path: "/r r/a.so".to_owned(), ..Slice::default() };
        let failure = command_in(&slice, &Node::default(), OsStr::new("true"), ["x"], []).unwrap_err();
        assert!(failure.to_string().contains("runtime_dir"), "{failure}");
    }
}
