//! Many changes at once: with a checkpoint that cannot be written now and then, and with a manager that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, thread};

use aliquot_harness::artifacts;
use aliquot_proto::node::v1 as proto;
use aliquot_proto::node::v1::node_manager_client::NodeManagerClient;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;

use crate::killed::Process;
use crate::node::{GIB, Node, connect, eventually, part};

const WORKERS: usize = 8;

/// The answers that clients got about slices.
#[derive(Default)]
struct Told {
    /// Whether each slice is there; `None`: there was no answer.
    slices: Mutex<BTreeMap<String, Option<bool>>>,
    succeeded: AtomicUsize,
    failed: AtomicUsize,
}

impl Told {
    fn note(&self, name: &str, is_there: Option<bool>, succeeded: bool) {
        self.slices.lock().unwrap().insert(name.to_owned(), is_there);
        let counter = if succeeded { &self.succeeded } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Asserts that the node has exactly the slices that clients were told of, and nothing else of slices.
    fn check(&self, node: &Node) {
        let there: BTreeSet<String> = node.list().into_iter().map(|slice| slice.name).collect();
        for (name, is_there) in self.slices.lock().unwrap().iter() {
            assert!(is_there.is_none_or(|is_there| is_there == there.contains(name)), "{name}: {is_there:?}");
        }
        let ids: BTreeSet<String> = node.list().into_iter().map(|slice| slice.id).collect();
        assert_eq!(node.regions().into_iter().collect::<BTreeSet<_>>(), ids);
        let cdi = fs::read_dir(&node.config.cdi.as_ref().unwrap().dir).into_iter().flatten();
        let published: BTreeSet<String> = cdi.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(published, there.iter().map(|name| format!("aliquot.dev-slice-{name}.json")).collect());
        let text = fs::read_to_string(node.checkpoint()).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let entries = found["slices"].as_array().unwrap();
        assert!(entries.iter().all(|entry| entry["phase"] == "ready"), "{text}");
        let written: BTreeSet<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
        assert_eq!(written, there.iter().map(String::as_str).collect());
    }
}

/// A client that makes slices, and removes every other one of them.
struct Worker<'a> {
    runtime: &'a Runtime,
    client: NodeManagerClient<Channel>,
    told: &'a Told,
    name: String,
}

impl Worker<'_> {
    /// Makes slice number `number` and perhaps removes it. Returns whether the manager answered.
    fn work(&self, number: usize) -> bool {
        let name = format!("{}-{number}", self.name);
        let parts = vec![part(1, GIB / 256)];
        let request = proto::CreateSliceRequest { name: name.clone(), parts, ..Default::default() };
        let made = self.runtime.block_on(self.client.clone().create_slice(request)).map(drop);
        if !self.note(&name, made, true, false) {
            return false;
        }
        let is_there = self.told.slices.lock().unwrap()[&name] == Some(true);
        if !is_there || number.is_multiple_of(2) {
            return true;
        }
        let request = proto::RemoveSliceRequest { name: name.clone(), force: false };
        let removed = self.runtime.block_on(self.client.clone().remove_slice(request)).map(drop);
        self.note(&name, removed, false, true)
    }

    fn note(&self, name: &str, outcome: Result<(), tonic::Status>, done: bool, undone: bool) -> bool {
        match outcome {
            Ok(()) => self.told.note(name, Some(done), true),
            Err(status) if status.code() == Code::Internal && status.message().contains("checkpoint") => {
                self.told.note(name, Some(undone), false);
            }
            Err(_) => {
                self.told.note(name, None, false);
                return false;
            }
        }
        true
    }
}

fn workers<'a>(node: &'a Node, told: &'a Told, round: usize) -> Vec<Worker<'a>> {
    let worker = |number: usize| Worker {
        runtime: &node.runtime,
        client: connect(&node.runtime, &node.config.socket),
        told,
        name: format!("r{round}-w{number}"),
    };
    (0..WORKERS).map(worker).collect()
}

#[test]
fn changes_at_once_are_complete_or_undone_while_the_checkpoint_fails_now_and_then() {
    let mut node = Node::start();
    let told = Told::default();
    // A directory in the place of the temporary file: even root cannot write to it.
    let obstacle = node.checkpoint().with_file_name(".checkpoint.new");
    let is_over = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in workers(&node, &told, 0) {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut number = 0;
                // At most 2 devices of 100 percent.
                while is_over.load(Ordering::Relaxed) == 0 && number < 40 {
                    assert!(worker.work(number), "the manager answers");
                    number += 1;
                }
                is_over.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut failed = 0;
        while is_over.load(Ordering::Relaxed) == 0 && failed < 3 * WORKERS {
            match fs::create_dir(&obstacle) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                outcome => outcome.unwrap(),
            }
            let before = told.failed.load(Ordering::Relaxed);
            eventually("a change fails, or all are done", || {
                let fails = told.failed.load(Ordering::Relaxed) > before;
                (fails || is_over.load(Ordering::Relaxed) == WORKERS).then_some(())
            });
            fs::remove_dir(&obstacle).unwrap();
            failed = told.failed.load(Ordering::Relaxed);
            let before = told.succeeded.load(Ordering::Relaxed);
            eventually("a change succeeds, or all are done", || {
                let succeeds = told.succeeded.load(Ordering::Relaxed) > before;
                (succeeds || is_over.load(Ordering::Relaxed) == WORKERS).then_some(())
            });
        }
        is_over.fetch_add(1, Ordering::Relaxed);
    });
    assert!(told.failed.load(Ordering::Relaxed) > 0 && told.succeeded.load(Ordering::Relaxed) > 0);
    // A change that could not be undone is undone by the next write that succeeds.
    node.create("last", vec![part(1, GIB / 256)]).unwrap();
    told.note("last", Some(true), true);
    told.check(&node);
    node.restart().unwrap();
    told.check(&node);
}

#[test]
fn a_specification_that_was_half_written_at_a_kill_is_removed() {
    let mut node = Node::start();
    let ready = node.create("a", vec![part(1, GIB)]).unwrap();
    let half = node.cdi_file("a").with_file_name(".aliquot.dev-slice-a.new");
    for phase in ["ready", "making"] {
        node.stop();
        fs::write(&half, "{").unwrap();
        let text = fs::read_to_string(node.checkpoint()).unwrap();
        fs::write(node.checkpoint(), text.replace("\"ready\"", &format!("\"{phase}\""))).unwrap();
        node.restart().unwrap();
        assert!(!half.exists(), "{phase}");
        assert_eq!(node.list(), if phase == "ready" { vec![ready.clone()] } else { vec![] });
    }
}

#[test]
fn a_manager_killed_during_many_changes_keeps_what_it_has_answered_and_leaves_nothing_behind() {
    let nvml = artifacts::fake_nvml();
    let node = Node::prepare();
    let machine = node.config.runtime_dir.with_file_name("machine.toml");
    let state = machine.with_file_name("machine.state");
    let devices = "[[device]]\nmemory = \"16GiB\"\n".repeat(8);
    fs::write(&machine, format!("state = {state:?}\n{devices}")).unwrap();
    let told = Told::default();
    let mut process = Process::start_with_files(&node, nvml, &machine, None);
    for round in 0..6 {
        let before = told.succeeded.load(Ordering::Relaxed);
        thread::scope(|scope| {
            for worker in workers(&node, &told, round) {
                scope.spawn(move || (0..).take_while(|number| worker.work(*number)).count());
            }
            eventually("some changes are answered", || {
                (told.succeeded.load(Ordering::Relaxed) >= before + 7 * round).then_some(())
            });
            process.kill();
        });
        process = Process::start_with_files(&node, nvml, &machine, None);
        told.check(&node);
        // The results of the unanswered changes are now known.
        let there: BTreeSet<String> = node.list().into_iter().map(|slice| slice.name).collect();
        told.slices.lock().unwrap().iter_mut().for_each(|(name, known)| *known = Some(there.contains(name)));
        // Room for the next round.
        for name in there {
            node.remove(&name, false).unwrap();
            told.note(&name, Some(false), true);
        }
        told.check(&node);
    }
}
