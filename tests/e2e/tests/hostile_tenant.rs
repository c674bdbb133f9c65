//! What a tenant can do to its region hurts nobody else: not the manager, not other slices, and not other programs.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{ATTACH_SOCKET, AttachMessage, LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE, MAJOR};
use aliquot_harness::{HostProgram, MIB, Node, Process, Region, SimulatedGpu, run, wait};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};

/// Does something to a region.
type Spoiler<'a> = &'a dyn Fn(&Region);

/// The ways to spoil a region before a program starts: in each the shim stays passive.
#[test]
fn a_region_that_cannot_be_used_leaves_programs_alone() {
    let gpu = SimulatedGpu::exact();
    let program = HostProgram::linked(&gpu, "plain");
    let bare = run(&mut program.on(&gpu)).success();
    let truncate = |region: &Region, file: &str, bytes: u64| {
        OpenOptions::new().write(true).open(region.dir().join(file)).unwrap().set_len(bytes).unwrap();
    };
    let spoilers: [(&str, Spoiler<'_>); 9] = [
        ("another major version of the limits", &|region| {
            region.limits().header.major.store(MAJOR + 1, Ordering::Relaxed)
        }),
        ("another major version of the ledger", &|region| region.ledger().header.major.store(0, Ordering::Relaxed)),
        ("limits that are not ready", &|region| region.limits().header.magic.store(0, Ordering::Relaxed)),
        ("a ledger that is something else", &|region| region.ledger().header.magic.store(u64::MAX, Ordering::Relaxed)),
        ("limits that give another size", &|region| region.limits().header.file_bytes.store(1, Ordering::Relaxed)),
        ("truncated limits", &|region| truncate(region, LIMITS_FILE, 4096)),
        ("an empty ledger", &|region| truncate(region, LEDGER_FILE, 0)),
        ("no limits", &|region| fs::remove_file(region.dir().join(LIMITS_FILE)).unwrap()),
        ("no ledger", &|region| fs::remove_file(region.dir().join(LEDGER_FILE)).unwrap()),
    ];
    for (what, spoil) in spoilers {
        let region = Region::new(&gpu, MIB);
        spoil(&region);
        let outcome = run(region.preload_into(&mut program.on(&gpu)));
        assert_eq!((outcome.status, &outcome.stdout), (bare.status, &bare.stdout), "{what}: {outcome:?}");
    }
}

/// A shim of a later minor version finds what it knows where it was.
#[test]
fn a_region_of_another_minor_version_is_used() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    region.limits().header.minor.store(7, Ordering::Relaxed);
    let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
    let outcome = run(region.preload_into(command.arg((64 * MIB).to_string()))).success();
    assert!(outcome.stdout.contains("one byte more: 2"), "{outcome:?}");
}

#[test]
fn a_ledger_full_of_nonsense_crashes_no_program() {
    let gpu = SimulatedGpu::exact();
    for byte in [0xff_u8, 0x55, 0x01] {
        let region = Region::new(&gpu, 64 * MIB);
        let ledger = OpenOptions::new().write(true).open(region.dir().join(LEDGER_FILE)).unwrap();
        let header = size_of::<aliquot_abi::region::Header>();
        ledger.write_all_at(&vec![byte; LEDGER_FILE_BYTES - header], header as u64).unwrap();
        for program in ["busy_briefly", "fork"] {
            let mut command = HostProgram::linked(&gpu, program).on(&gpu);
            command.arg("storm");
            // What it may use is not known any more; that it ends by itself is all.
            let outcome = run(region.preload_into(&mut command));
            assert_eq!(outcome.signal(), None, "{outcome:?}");
        }
    }
}

#[test]
fn a_tenant_that_truncates_or_overwrites_its_ledger_hurts_only_itself() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let neighbour = node.slice("neighbour", 30, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(neighbour.preload_into(command.arg((16 * MIB).to_string())));
    holder.wait_for("held");

    // Not through `Slice`, which maps the ledger and would be hit as the manager is.
    let region_of = |name: &str| {
        let listed = node.client().slices().unwrap();
        std::path::PathBuf::from(&listed.iter().find(|slice| slice.name == name).unwrap().region_path)
    };
    for (name, spoil) in [
        ("truncating", (|ledger| ledger.set_len(0).unwrap()) as fn(&fs::File)),
        ("overwriting", |ledger| ledger.write_all_at(&vec![0xff; LEDGER_FILE_BYTES], 0).unwrap()),
    ] {
        drop(node.slice(name, 10, 64 * MIB));
        let ledger = OpenOptions::new().write(true).open(region_of(name).join(LEDGER_FILE)).unwrap();
        spoil(&ledger);
        wait::until_true("the manager tells what is wrong", || !node.client().usage(name).unwrap().problem.is_empty());

        // Not at once: what was seen of a program in the middle of giving memory back stands there until the next look.
        wait::until_true("the neighbour has what it had, and no problem", || {
            let usage = node.client().usage("neighbour").unwrap();
            assert_eq!(usage.problem, "");
            usage.parts[0].memory_used_bytes == 16 * MIB
        });
        let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
        let exact = run(neighbour.preload_into(command.arg((48 * MIB).to_string()))).success();
        assert!(exact.stdout.starts_with(&format!("free: {}\n", 48 * MIB)), "{exact:?}");

        node.client().remove(name, true).unwrap();
        drop(node.slice(name, 10, 64 * MIB));
        node.client().remove(name, false).unwrap();
    }
}

#[test]
fn nonsense_on_the_attach_socket_is_dropped() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("noisy", 50, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut holder = Process::start(slice.preload_into(command.arg((16 * MIB).to_string())));
    holder.wait_for("held");
    wait::until_true("the manager knows the process", || node.client().usage("noisy").unwrap().processes.len() == 1);
    let slot = slice.ledger().owners.iter().position(|word| word.load(Ordering::Relaxed) != 0).unwrap();

    let address = SocketAddrUnix::new(slice.region_dir().join(ATTACH_SOCKET)).unwrap();
    let message = AttachMessage {
        magic: AttachMessage::MAGIC,
        kind: AttachMessage::ATTACH,
        slot: slot as u32,
        generation: 0,
        device: 0,
        reserved: 0,
    };
    let pieces: Vec<Vec<u8>> = vec![
        vec![],
        vec![0xff; 1],
        vec![0xff; 24],
        vec![0; 60_000],
        // Claims to be the other process.
        message.to_bytes().into(),
        AttachMessage { slot: u32::MAX, ..message }.to_bytes().into(),
        AttachMessage { kind: AttachMessage::RING, device: u32::MAX, ..message }.to_bytes().into(),
    ];
    let mut open = Vec::new();
    for round in 0..400 {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        if connect(&socket, &address).is_ok() {
            let _ = send(&socket, &pieces[round % pieces.len()], SendFlags::NOSIGNAL);
            // Some stay open, as those of a tenant who wants to use up descriptors.
            open.push(socket);
        }
    }
    let usage = node.client().usage("noisy").unwrap();
    assert_eq!((usage.processes.len(), usage.parts[0].memory_used_bytes), (1, 16 * MIB), "{usage:?}");
    // And who comes with honest intent is still let in.
    drop(open);
    let mut command = HostProgram::linked(&gpu, "hold").on(&gpu);
    let mut second = Process::start(slice.preload_into(command.arg((8 * MIB).to_string())));
    second.wait_for("held");
    wait::until_true("the manager knows both", || node.client().usage("noisy").unwrap().processes.len() == 2);
    let _ = second.kill();
    wait::until_true("the memory is free again", || slice.used_bytes(0) == 16 * MIB);
}

#[test]
fn limits_are_not_writable_for_a_tenant() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slice = node.slice("fixed", 50, 64 * MIB);
    for file in [LIMITS_FILE, ".", slice.shim().file_name().unwrap().to_str().unwrap()] {
        let path = slice.region_dir().join(file);
        let mut command = Command::new("/bin/sh");
        let script = "[ -d \"$0\" ] && exec touch \"$0/new\"; exec dd if=/dev/zero of=\"$0\" bs=1 count=1 conv=notrunc";
        command.args(["-c", script]).arg(&path).uid(65534).gid(65534);
        let outcome = run(&mut command);
        assert!(!outcome.status.success(), "a tenant could change {}: {outcome:?}", path.display());
    }
    // Regions cannot be listed, so those of others cannot be found.
    let mut command = Command::new("/bin/ls");
    command.arg(slice.region_dir().parent().unwrap()).uid(65534).gid(65534);
    assert!(!run(&mut command).status.success(), "the regions can be listed");
}
