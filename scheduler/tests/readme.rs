//! The commands of the READMEs, as a user with a checkout and nothing else types them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The documents with the commands.
const DOCUMENTS: [&str; 2] = ["README.md", "scheduler/README.md"];

#[test]
fn every_command_of_the_readmes_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let texts = DOCUMENTS.map(|document| fs::read_to_string(root.join(document)).expect("a README can be read"));
    let commands: Vec<&str> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("$ aliquot-scheduler "))
        .collect();
    assert!(commands.len() >= 6, "{commands:?}");
    // The commands must not write into the checkout.
    let folder = std::env::temp_dir().join(format!("aliquot-readme-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    std::os::unix::fs::symlink(root.join("scheduler"), folder.join("scheduler")).expect("a link can be made");
    let failed: Vec<String> = commands
        .iter()
        .filter_map(|line| {
            let words = line.split(" #").next().unwrap_or(line).split_whitespace();
            let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-scheduler"));
            let out = command.args(words).current_dir(&folder).output().expect("the program runs");
            (!out.status.success()).then(|| format!("{line}: {}", String::from_utf8_lossy(&out.stderr)))
        })
        .collect();
    fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
    assert_eq!(failed, Vec::<String>::new());
}
