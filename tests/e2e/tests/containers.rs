//! Unmodified images in slices, run by podman through CDI.

use std::fs;

use aliquot_harness::{Container, HostProgram, Image, MIB, Node, Shares, SimulatedGpu, wait};

/// A slice name that no other test publishes.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn start(image: &Image, slice: &str, command: &[&str]) -> Container {
    image.start(&["--device", &format!("aliquot.dev/slice={slice}")], command)
}

#[test]
fn a_container_has_its_slice_s_memory_and_nothing_is_left() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "");
    let programs = [HostProgram::linked(&gpu, "exact"), HostProgram::linked(&gpu, "hold")];
    let image = Image::with(&programs.each_ref());
    let name = unique("memory");
    let slice = node.slice(&name, 50, 64 * MIB);
    assert_eq!(slice.description().cdi_device, format!("aliquot.dev/slice={name}"));

    let mut holder = start(&image, &name, &["/bin/hold-linked", &(16 * MIB).to_string()]);
    holder.process().wait_for("held");
    wait::until_true("the manager knows the process", || node.client().usage(&name).unwrap().processes.len() == 1);
    let usage = node.client().usage(&name).unwrap();
    assert_eq!(usage.parts[0].memory_used_bytes, 16 * MIB, "{usage:?}");
    let process = &usage.processes[0];
    assert_ne!(process.pid, process.container_pid, "a container has process ids of its own");
    assert!(process.command.contains("hold"), "{process:?}");

    let free = (48 * MIB).to_string();
    let exact = start(&image, &name, &["/bin/exact-linked", &free]).wait().success();
    assert!(exact.stdout.starts_with(&format!("free: {free}\none byte more than all: 2\n")), "{exact:?}");

    drop(holder);
    wait::until_true("the memory is free again", || slice.used_bytes(0) == 0);
    // The manager notices the processes' ends a little later.
    wait::until_true("nobody is in the slice", || node.client().usage(&name).unwrap().processes.is_empty());
    node.client().remove(&name, false).unwrap();
    let left = fs::read_dir("/var/run/cdi").unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(left.filter(|file| file.contains(&name)).count() == 0, "the slice is still published");
}

#[test]
fn two_containers_share_a_device_as_asked() {
    let gpu = SimulatedGpu::exact();
    let node = Node::publishing(&gpu, "");
    let program = HostProgram::linked(&gpu, "busy");
    let image = Image::with(&[&program]);
    let (small, large) = (unique("small"), unique("large"));
    let slices = [node.slice(&small, 30, 64 * MIB), node.slice(&large, 70, 64 * MIB)];
    let command = ["/bin/busy-linked", "500000", "0"];
    let mut containers = [start(&image, &small, &command), start(&image, &large, &command)];
    for container in &mut containers {
        container.process().wait_for("busy\n");
    }
    let pid_in = |name: &str| {
        wait::until("the manager knows the process", || Some(node.client().usage(name).unwrap().processes.first()?.pid))
    };
    let pids = [pid_in(&small), pid_in(&large)];
    Shares::of(&gpu).exactly(30, &pids[..1]).exactly(70, &pids[1..]).assert_kept();
    drop(containers);
    drop(slices);
}

#[test]
fn a_container_without_a_slice_has_no_driver() {
    let gpu = SimulatedGpu::exact();
    let image = Image::with(&[&HostProgram::linked(&gpu, "hold")]);
    let outcome = image.start(&[], &["/bin/hold-linked", "1"]).wait();
    assert_eq!(outcome.status.code(), Some(127), "{outcome:?}");
    assert!(outcome.stderr.contains("libcuda.so.1"), "{outcome:?}");
}
