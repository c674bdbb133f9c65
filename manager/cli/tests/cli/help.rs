//! Help, version and completions.

use crate::support::{aliquot, output, simulated_run, stdout};

const COMMANDS: [&[&str]; 34] = [
    &[],
    &["run"],
    &["exec"],
    &["load"],
    &["events"],
    &["slice"],
    &["slice", "create"],
    &["slice", "resize"],
    &["slice", "rm"],
    &["slice", "ls"],
    &["ps"],
    &["top"],
    &["describe"],
    &["nodes"],
    &["nodes", "remove"],
    &["submit"],
    &["jobs"],
    &["job"],
    &["logs"],
    &["attach"],
    &["port-forward"],
    &["cancel"],
    &["explain"],
    &["queues"],
    &["queues", "set"],
    &["queues", "remove"],
    &["token"],
    &["users"],
    &["users", "add"],
    &["users", "set"],
    &["users", "remove"],
    &["completions"],
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

/// The completions that bash offers for the last of `words`, with a manager that has the slices `test` and `other`.
fn completed(words: &[&str]) -> Vec<String> {
    let aliquot = std::path::Path::new(env!("CARGO_BIN_EXE_aliquot"));
    let script = format!(
        "PATH={}:$PATH
        aliquot slice create other --gpu-core 10 > /dev/null
        source <(aliquot completions bash)
        read -r _ _ function _ <<< \"$(complete -p aliquot | sed 's/.*-F/complete -F/')\"
        COMP_WORDS=({}) COMP_CWORD={} COMP_TYPE=9 COMPREPLY=()
        $function aliquot \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"
        printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        aliquot.parent().unwrap().display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    let ended = output(&mut simulated_run(["bash", "-c", &script]));
    stdout(&ended).lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_shell_completes_commands_options_and_slices() {
    assert_eq!(completed(&["aliquot", "desc"]), ["describe"]);
    assert_eq!(completed(&["aliquot", "slice", "resize", "x", "--gpu-m"]), ["--gpu-memory"]);
    for before in
        [&["aliquot", "describe"][..], &["aliquot", "slice", "rm", "x"], &["aliquot", "exec"], &["aliquot", "ps"]]
    {
        assert_eq!(completed(&[before, &["o"]].concat()), ["other"], "{before:?}");
        assert_eq!(completed(&[before, &["te"]].concat()), ["test"], "{before:?}");
    }
    // A new slice needs a new name.
    assert!(completed(&["aliquot", "slice", "create", "o"]).is_empty());
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&mut aliquot(["completions", shell]));
        assert!(script.status.success(), "{shell}");
        let text = stdout(&script);
        assert!(text.contains("COMPLETE") && text.contains("aliquot"), "{shell}: {text}");
    }
    assert_eq!(output(&mut aliquot(["completions", "tcsh"])).status.code(), Some(2));
}
