//! Help, version and completions.

use crate::support::{aliquot, output, stdout};

const COMMANDS: [&[&str]; 13] = [
    &[],
    &["run"],
    &["slice"],
    &["slice", "create"],
    &["slice", "resize"],
    &["slice", "rm"],
    &["slice", "ls"],
    &["ps"],
    &["top"],
    &["describe"],
    &["nodes"],
    &["doctor"],
    &["demo"],
];

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let help = output(aliquot(command.iter().copied()).arg("--help"));
        let text = stdout(&help);
        assert!(help.status.success(), "{command:?}");
        assert!(text.contains("Usage: aliquot"), "{command:?}: {text}");
        assert!(text.contains("Examples:\n  aliquot "), "{command:?}: {text}");
        assert!(!text.contains("demo-worker") && !text.contains("doctor-probe"), "{command:?}: {text}");
        let wide = text.lines().find(|line| line.chars().count() > 130);
        assert_eq!(wide, None, "{command:?}");
    }
}

#[test]
fn the_version() {
    let version = output(&mut aliquot(["--version"]));
    assert_eq!(stdout(&version), format!("aliquot {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&mut aliquot(["completions", shell]));
        assert!(script.status.success(), "{shell}");
        let text = stdout(&script);
        assert!(text.contains("gpu-core") && text.contains("describe"), "{shell}");
    }
    assert_eq!(output(&mut aliquot(["completions", "tcsh"])).status.code(), Some(2));
}
