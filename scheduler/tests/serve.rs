//! What `aliquot-scheduler serve` reads from its configuration file before it starts.

use std::fs;
use std::process::{self, Command};

#[test]
fn a_wrong_key_is_named_with_its_file_and_value() {
    let file = std::env::temp_dir().join(format!("aliquot-scheduler-{}.toml", process::id()));
    let refused = |text: &str, options: &[&str]| {
        // No scheduler starts with such a directory, whatever else is right.
        fs::write(&file, format!("{text}\nstate_dir = '/dev/null/state'\nlisten = '127.0.0.1:0'\n"))
            .expect("the temporary folder can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
        let ended = command.arg("serve").arg("--config").arg(&file).args(options).output().expect("the program runs");
        assert!(!ended.status.success(), "{text}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    for (text, words) in [
        ("policy = 'best'", "policy \"best\": it must be one of default, "),
        ("usage_weight = '-1'", "usage_weight \"-1\": it must be a number"),
        ("usage_half_life = '7'", "usage_half_life \"7\": it must be a time"),
        ("log_level = 'a=b'", "log_level \"a=b\" is not a level or a filter"),
    ] {
        let why = refused(text, &[]);
        assert!(why.contains(&format!("{}: {words}", file.display())), "{why}");
    }
    let why = refused("log_level = 'a=b'\npolicy = 'spread'", &["--log-level=off"]);
    assert!(why.contains("/dev/null/state") && !why.contains("log_level"), "{why}");
    fs::remove_file(&file).expect("the temporary folder can be written");
}
