//! Prepares a command to run in a slice.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use aliquot_proto::node::v1::{Node, Slice};

use crate::error::{Failure, Result};
use crate::visible;

/// `program` with `args`, to be started in `slice` on `node`. `environment` is added to this process's own.
pub(crate) fn command_in(
    slice: &Slice,
    node: &Node,
    program: &OsStr,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Command> {
    let mut command = Command::new(program);
    command
        .args(args)
        .envs(environment)
        .envs(slice.environment.iter().filter_map(|entry| entry.split_once('=')))
        .env("LD_PRELOAD", preload(&slice.shim_path, &slice.stand_in_path, env::var_os("LD_PRELOAD").as_deref())?)
        .envs(visible::variables(slice, node));
    Ok(command)
}

/// `LD_PRELOAD` with the shim and its stand-in, followed by the user's own libraries.
fn preload(shim_path: &str, stand_in_path: &str, users: Option<&OsStr>) -> Result<OsString> {
    if shim_path.is_empty() {
        return Err(Failure::new("the node manager names no library to preload for the slice")
            .hint("it is of another version; compare: aliquot --version and aliquot nodes"));
    }
    if shim_path.contains([':', ' ', '\t', '\n']) {
        return Err(Failure::new(format!(
            "the loader cannot preload {shim_path:?}: it splits the path at a colon or space"
        ))
        .hint("set the manager's runtime_dir to a path without colons and spaces"));
    }
    let mut list = OsString::from(shim_path);
    // Older managers name no stand-in. The path is safe for the loader because it begins with the same directory.
    if !stand_in_path.is_empty() {
        list.push(":");
        list.push(stand_in_path);
    }
    // The loader splits the list at colons and spaces.
    let entries = users.map_or(&[][..], OsStrExt::as_bytes).split(|byte| matches!(byte, b':' | b' '));
    for entry in entries.filter(|entry| !entry.is_empty()).map(OsStr::from_bytes) {
        if entry != stand_in_path && !is_shim_of_a_slice(Path::new(entry), shim_path) {
            list.push(":");
            list.push(entry);
        }
    }
    Ok(list)
}

/// Whether `library` is the shim of another slice of the same manager, in which this program itself runs. It is left
/// out, because a command is in one slice only.
fn is_shim_of_a_slice(library: &Path, shim_path: &str) -> bool {
    // <runtime>/slices/<id>/region/<library>
    let slices = |shim: &Path| Some((shim.ancestors().nth(3)?.to_owned(), shim.file_name()?.to_owned()));
    let own = slices(Path::new(shim_path));
    own.is_some() && slices(library) == own
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::Part;

    use super::*;

    #[test]
    fn the_shim_comes_first() {
        assert_eq!(preload("/r/a.so", "", None).unwrap(), "/r/a.so");
        assert_eq!(preload("/r/a.so", "", Some(OsStr::new(""))).unwrap(), "/r/a.so");
        assert_eq!(preload("/r/a.so", "/l/a.so", None).unwrap(), "/r/a.so:/l/a.so");
        assert_eq!(preload("/r/a.so", "/l/a.so", Some(OsStr::new("x.so:y.so"))).unwrap(), "/r/a.so:/l/a.so:x.so:y.so");
        assert_eq!(preload("/r/a.so", "", Some(OsStr::new("x.so  /lib/y.so:"))).unwrap(), "/r/a.so:x.so:/lib/y.so");
    }

    #[test]
    fn the_shim_of_the_slice_around_is_left_out() {
        let users = Some(OsStr::new("/r/slices/1/region/a.so:/r/lib/a.so:x.so"));
        let inner = preload("/r/slices/2/region/a.so", "/r/lib/a.so", users).unwrap();
        assert_eq!(inner, "/r/slices/2/region/a.so:/r/lib/a.so:x.so");
        let elsewhere =
            preload("/q/slices/2/region/a.so", "", Some(OsStr::new("/r/slices/1/region/a.so:x.so"))).unwrap();
        assert_eq!(elsewhere, "/q/slices/2/region/a.so:/r/slices/1/region/a.so:x.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(preload("/r r/a.so", "", None).unwrap_err().to_string().contains("runtime_dir"));
        assert!(preload("", "", None).is_err());
    }

    #[test]
    fn the_environment_names_the_devices_in_order() {
        let part = |uuid: &str| Part { device_uuid: uuid.to_owned(), ..Part::default() };
        let slice = Slice {
            parts: vec![part("GPU-b"), part("GPU-a")],
            shim_path: "/r/a.so".to_owned(),
            environment: vec!["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30".to_owned()],
            ..Slice::default()
        };
        let command =
            command_in(&slice, &Node::default(), OsStr::new("true"), ["x"], [("A".into(), "1".into())]).unwrap();
        let value = |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        assert_eq!(value("CUDA_VISIBLE_DEVICES"), Some(OsStr::new("GPU-b,GPU-a")));
        assert_eq!(value("NVIDIA_VISIBLE_DEVICES"), Some(OsStr::new("GPU-b,GPU-a")));
        assert_eq!(value("A"), Some(OsStr::new("1")));
        assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some(OsStr::new("30")));
        assert!(value("LD_PRELOAD").unwrap().to_string_lossy().starts_with("/r/a.so"));
    }
}
