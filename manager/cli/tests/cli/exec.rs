//! `aliquot exec`: a command in an existing slice.

use crate::support::{output, simulated_run, stderr, stdout};

const ALIQUOT: &str = env!("CARGO_BIN_EXE_aliquot");

/// The exit code and output of `script`, which runs on a simulated machine with a slice `other`. `$1` is the path of
/// `aliquot`.
fn beside_another_slice(script: &str) -> (Option<i32>, String, String) {
    let script = format!("set -e\n$1 slice create other --gpu-core 20 --gpu-memory 1GiB > /dev/null\n{script}");
    let ended = output(&mut simulated_run(["sh", "-c", &script, "sh", ALIQUOT]));
    (ended.status.code(), stdout(&ended), stderr(&ended))
}

#[test]
fn the_command_is_in_that_slice_alone() {
    let (code, text, errors) = beside_another_slice(
        "$1 exec other -- sh -c 'echo ${LD_PRELOAD%%:*} $(echo $LD_PRELOAD | tr : \\\\n | wc -l) $CUDA_VISIBLE_DEVICES'
        $1 describe other --json | grep shim_path",
    );
    assert_eq!(code, Some(0), "{errors}");
    let (environment, shim) = text.split_once('\n').unwrap();
    let shim = shim.split('"').nth(3).unwrap();
    // The slice's own library and its stand-in, but not the library of the slice from which it was started.
    assert_eq!(environment, format!("{shim} 2 0"), "{text}");
    assert_eq!(errors, "");
}

#[test]
fn it_is_limited_and_the_slice_stays() {
    let (code, text, errors) = beside_another_slice(
        "$1 exec other -- $1 load --memory 2GiB --seconds 1 > /dev/null && exit 9
        $1 exec other -- $1 load --memory 256MiB --seconds 1
        $1 slice ls",
    );
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("2 GiB is more than the device has, which is 1 GiB"), "{errors}");
    assert!(text.contains("\nother "), "{text}");
}

#[test]
fn its_status_is_the_commands_or_tells_its_own_failure() {
    for (command, code) in [
        ("$1 exec other -- sh -c 'exit 7'", 7),
        ("$1 exec other -- sh -c 'kill -TERM $$'", 143),
        ("$1 exec other -- /nonexistent/command", 127),
        ("$1 exec nobody -- true", 125),
        ("$1 exec other", 125),
        ("$1 exec '' -- true", 125),
    ] {
        let (found, text, errors) = beside_another_slice(command);
        assert_eq!(found, Some(code), "{command}: {text}{errors}");
    }
}
