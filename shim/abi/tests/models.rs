//! Runs the models in loom/, which need a build of their own for the model checker.

#![cfg(not(loom))]

use std::path::Path;
use std::process::Command;

#[test]
fn the_protocols_hold_in_every_order_of_accesses() {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--release", "--package", "aliquot-abi", "--test", "loom", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("loom"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "--cfg loom")
        .output()
        .expect("cargo runs");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("test result: ok.") && !said.contains(" 0 passed"), "the models did not run: {said}");
}
