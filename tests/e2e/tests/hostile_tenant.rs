//! A tenant that damages its region harms neither the manager nor other slices nor other programs.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{ATTACH_SOCKET, AttachMessage, LEDGER_FILE, LEDGER_FILE_BYTES, LIMITS_FILE, MAJOR};
use aliquot_harness::{HostProgram, MIB, Node, Process, Region, SimulatedGpu, run, wait};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};

/// The output of the program `refused` in a sound slice, and in one that cannot be used.
const GRANTED: &str =
    "primary context: 0\nown context: 0\nmemory: granted\npage-locked memory: granted\nwork: granted\ndone\n";
const REFUSED: &str =
    "primary context: 800\nown context: 800\nmemory: refused\npage-locked memory: refused\nwork: refused\ndone\n";

/// Does something to a region.
type Spoiler<'a> = &'a dyn Fn(&Region);

/// A region is damaged before a program starts: the program gets nothing of the device, says why, and is not killed.
#[test]
fn a_region_that_cannot_be_used_gives_nothing() {
    let gpu = SimulatedGpu::exact();
    let program = HostProgram::linked(&gpu, "refused");
    let sound = Region::new(&gpu, MIB);
    run(sound.preload_into(&mut program.on(&gpu))).success().assert_said(GRANTED);
    let (used, mut refused) = (gpu.machine().device_use(0), 0);
    let truncate = |region: &Region, file: &str, bytes: u64| {
        OpenOptions::new().write(true).open(region.dir().join(file)).unwrap().set_len(bytes).unwrap();
    };
    let spoilers: [(&str, Spoiler<'_>); 14] = [
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
        ("a ledger of zeros", &|region| {
            truncate(region, LEDGER_FILE, 0);
            truncate(region, LEDGER_FILE, LEDGER_FILE_BYTES as u64);
        }),
        ("a ledger that is a byte too short", &|region| truncate(region, LEDGER_FILE, LEDGER_FILE_BYTES as u64 - 1)),
        ("a ledger that is a directory", &|region| {
            fs::remove_file(region.dir().join(LEDGER_FILE)).unwrap();
            fs::create_dir(region.dir().join(LEDGER_FILE)).unwrap();
        }),
        ("a ledger that cannot be written", &|region| {
            let read_only = fs::Permissions::from_mode(0o444);
            fs::set_permissions(region.dir().join(LEDGER_FILE), read_only).unwrap();
        }),
        ("a limits file alone, and empty", &|region| {
            fs::remove_file(region.dir().join(LEDGER_FILE)).unwrap();
            truncate(region, LIMITS_FILE, 0);
        }),
    ];
    for (what, spoil) in spoilers {
        let region = Region::new(&gpu, MIB);
        spoil(&region);
        // Standard error is a pipe, as in a container. The program does not run as root, because file modes do not
        // apply to root.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "\"$0\" 2>&1 | cat"]).arg(program.path()).uid(65534).gid(65534);
        let outcome = run(region.preload_into(gpu.show_to(&mut command))).success();
        let (said, complaints): (Vec<&str>, Vec<&str>) =
            outcome.stdout.lines().partition(|line| !line.starts_with("aliquot: the region of this slice"));
        assert_eq!((said.join("\n") + "\n", complaints.len()), (REFUSED.to_owned(), 1), "{what}: {outcome:?}");
        refused += 1;
    }
    assert_eq!(refused, 14);
    assert_eq!(gpu.machine().device_use(0).busy_ns, used.busy_ns);
}

/// A shim with no region files beside it belongs to no slice.
#[test]
fn a_library_without_a_region_leaves_programs_alone() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, MIB);
    for file in [LIMITS_FILE, LEDGER_FILE] {
        fs::remove_file(region.dir().join(file)).unwrap();
    }
    let program = HostProgram::linked(&gpu, "plain");
    run(region.preload_into(&mut program.on(&gpu))).assert_same(&run(&mut program.on(&gpu)).success());
}

#[test]
fn a_program_at_its_limit_of_descriptors_escapes_nothing() {
    let gpu = SimulatedGpu::exact();
    let region = Region::new(&gpu, 64 * MIB);
    let mut command = HostProgram::linked(&gpu, "descriptor_limit").on(&gpu);
    let outcome = run(region.preload_into(command.arg((64 * MIB).to_string()))).success();
    outcome.assert_said(
        "at once within it: some\nrefused, and within it later: some\nbeyond it: none\nwithout what is theirs: none\n\
         other ends: 0\n",
    );
}

/// The fields that a shim knows stay where they are in a later minor version.
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
            // Its limits are undefined now; the test only requires that no signal ends it.
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

    // Not through `Slice`: it maps the ledger, so the test itself would suffer as the manager does.
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

        // Not at once: a look that fell between two steps of a program's release shows until the next look.
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
            // Some stay open, as of a tenant that wants to exhaust the manager's descriptors.
            open.push(socket);
        }
    }
    // Not at once: a look that fell between two steps of an allocation shows until the next look.
    wait::until_true("the process has its memory", || {
        let usage = node.client().usage("noisy").unwrap();
        assert_eq!(usage.processes.len(), 1, "{usage:?}");
        usage.parts[0].memory_used_bytes == 16 * MIB
    });
    // An honest process can still attach.
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
    let slice = node.slice_for(65534, "fixed", 64 * MIB);
    for file in [LIMITS_FILE, ".", slice.shim().file_name().unwrap().to_str().unwrap()] {
        let path = slice.region_dir().join(file);
        let mut command = Command::new("/bin/sh");
        let script = "[ -d \"$0\" ] && exec touch \"$0/new\"; exec dd if=/dev/zero of=\"$0\" bs=1 count=1 conv=notrunc";
        command.args(["-c", script]).arg(&path).uid(65534).gid(65534);
        let outcome = run(&mut command);
        assert!(!outcome.status.success(), "a tenant could change {}: {outcome:?}", path.display());
    }
    // A tenant cannot list the regions, and so cannot find those of others.
    let mut command = Command::new("/bin/ls");
    command.arg(slice.region_dir().parent().unwrap()).uid(65534).gid(65534);
    assert!(!run(&mut command).status.success(), "the regions can be listed");
}
