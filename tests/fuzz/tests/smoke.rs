//! Runs every target with its corpus and with mutations of it. This finds less than fuzzing guided by coverage, but
//! runs on every machine.

use std::fs;
use std::path::Path;

use aliquot_fuzz::mutator::Mutator;
use aliquot_fuzz::targets::{TARGETS, Target};

/// Number of mutations for each target.
const MUTATIONS: usize = 3000;

fn corpus(target: Target) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{} has no corpus: {error}", target.name))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Prints the input if the target panics.
struct Running<'a>(Target, &'a [u8]);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} panics on {}", self.0.name, self.1.escape_ascii());
        }
    }
}

fn run(target: Target, bytes: &[u8]) {
    let _running = Running(target, bytes);
    (target.run)(bytes);
}

#[test]
fn no_target_panics_on_its_corpus_or_on_mutations_of_it() {
    for &target in TARGETS {
        let corpus = corpus(target);
        assert!(!corpus.is_empty(), "{} has an empty corpus", target.name);
        run(target, &[]);
        corpus.iter().for_each(|input| run(target, input));
        let mut mutator = Mutator::new(1);
        for _ in 0..MUTATIONS {
            run(target, &mutator.mutate(&corpus));
        }
    }
}

#[test]
fn every_target_can_be_run_by_cargo_fuzz() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    for target in TARGETS {
        let path = format!("fuzz_targets/{}.rs", target.name);
        assert!(manifest.contains(&format!("path = \"{path}\"")), "{path} is not in Cargo.toml");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).unwrap();
        assert!(text.contains(&format!("targets::{}(bytes)", target.name)), "{path} runs another target");
    }
}
