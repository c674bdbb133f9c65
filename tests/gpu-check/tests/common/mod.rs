//! Programs for the check that are not quite those of Aliquot, and its results.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use aliquot_harness::artifacts;
use serde_json::Value;
use tempfile::TempDir;

/// A directory of programs for the check, in which `aliquot` is the shell script `script`. `$real` is the real program.
pub(crate) fn programs(script: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("aliquot");
    let text = format!("#!/bin/sh\nreal='{}'\n{script}\n", artifacts::cli().display());
    // Written by another process: a child that another thread is just starting could inherit a descriptor that is open
    // for writing.
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &text]).arg(&path);
    assert!(write.status().unwrap().success());
    symlink(artifacts::manager(), dir.path().join("aliquot-manager")).unwrap();
    dir
}

/// The same, with an `aliquot` that lets the shell script `first` begin in each slice. Its arguments are the program and
/// the program's arguments, and the program comes after it. Other commands of `aliquot` are as they are.
pub(crate) fn with_each_slice(first: &str) -> TempDir {
    // The arguments before `--` come from the check itself and contain no spaces.
    let script = r#"case " $* " in *" -- "*) ;; *) exec "$real" "$@";; esac
own=$(dirname "$0")
before=
while [ "$1" != -- ]; do before="$before $1"; shift; done
shift
exec "$real" $before -- sh "$own/first" "$@""#;
    let dir = programs(script);
    fs::write(dir.path().join("first"), format!("{first}\nexec \"$@\"\n")).unwrap();
    dir
}

/// The elements of a list in the check's results.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// The elements of a list of texts.
pub(crate) fn texts(value: &Value) -> Vec<String> {
    list(value).map(|text| text.as_str().unwrap().to_owned()).collect()
}
