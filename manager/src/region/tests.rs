use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::SystemTime;

use aliquot_abi::ledger::{self, Identity, OverLimit};
use aliquot_abi::region::{LEDGER_FILE, LIMITS_FILE, SLOTS_MAX, owner};
use aliquot_node::QosClass;

use super::files::RegionDirs;
use super::view::SlotState;
use super::*;
use crate::inventory::DeviceUuid;
use crate::procfs::FileId;
use crate::slices::Published;

fn slice() -> Slice {
    let part = Part {
        device: DeviceUuid::new("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"),
        core_request_percent: 30,
        core_limit_percent: 60,
        memory_limit_bytes: 1000,
    };
    Slice {
        name: "a".into(),
        id: SliceId::from_random(7 << 64 | 9),
        parts: vec![part],
        host_memory_limit_bytes: 0,
        qos_class: QosClass::default(),
        audit_policy: None,
        published: Published::default(),
        created: SystemTime::UNIX_EPOCH,
        description: String::new(),
        pod_uid: None,
        owner: None,
        users: BTreeSet::new(),
    }
}

fn region() -> (tempfile::TempDir, RegionDirs, Region) {
    let dir = tempfile::tempdir().unwrap();
    let dirs = RegionDirs::prepare(dir.path()).unwrap();
    let region = dirs.create(&slice()).unwrap();
    (dir, dirs, region)
}

fn tenant(region: &Region) -> fs::File {
    OpenOptions::new().read(true).write(true).open(region.dir().join(LEDGER_FILE)).unwrap()
}

#[test]
fn a_region_has_the_limits_and_the_permissions_of_its_slice() {
    let (dir, _, region) = region();
    let limits = region.device_limits(0);
    assert_eq!(limits.core_request_percent.load(Ordering::Relaxed), 30);
    assert_eq!(limits.core_limit_percent.load(Ordering::Relaxed), 60);
    assert_eq!(limits.memory_limit_bytes.load(Ordering::Relaxed), 1000);
    assert_eq!(limits.uuid, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(limits.gate.load(Ordering::Relaxed), 0);
    assert_eq!((region.device_count(), region.damage()), (1, None));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.path().join("slices")), 0o711);
    assert_eq!(mode(region.dir().parent().unwrap()), 0o700);
    assert_eq!(mode(region.dir()), 0o755);
    assert_eq!(mode(&region.dir().join(LIMITS_FILE)), 0o644);
    assert_eq!(mode(&region.dir().join(LEDGER_FILE)), 0o666);
    assert_eq!(mode(region.shim_path()), 0o555);
}

#[test]
fn another_manager_takes_the_region_over_with_all_that_is_in_it() {
    let (_dir, _, region) = region();
    let me = Identity { pid: 5, start_time: 6, pid_namespace: 7 };
    let slot = ledger::claim(region.ledger(), me, |_| true, |_| true).unwrap();
    ledger::reserve(&region.ledger().devices[0], &region.ledger().slots[slot.index].devices[0].memory, 600, 1000)
        .unwrap();
    let path = region.dir().to_owned();
    let opened = Region::open(slice().id, &path).unwrap();
    assert!(opened.is_of(&slice().parts));
    assert_eq!(view::account(opened.ledger(), 0).used_bytes, 600);
    assert_eq!(
        view::slots(opened.ledger()).collect::<Vec<_>>(),
        [(slot.index, SlotState::Attached(me, slot.generation))]
    );
    assert_eq!(view::held_bytes(opened.ledger(), slot.index, 1), [600]);
}

#[test]
fn a_region_of_a_manager_that_counted_no_waits_is_taken_over() {
    let (_dir, _, region) = region();
    let (id, dir) = (slice().id, region.dir().to_owned());
    drop(region);
    let limits = OpenOptions::new().write(true).open(dir.join(LIMITS_FILE)).unwrap();
    // As an earlier version made the file: the fields added later lie in a hole of it.
    limits.write_at(&0_u32.to_ne_bytes(), 12).unwrap();
    limits.set_len(std::mem::offset_of!(Limits, waits) as u64).unwrap();
    limits.set_len(LIMITS_FILE_BYTES as u64).unwrap();
    let region = Region::open(id, &dir).unwrap();
    assert_eq!(region.waits(0).waited_ns.load(Ordering::Relaxed), 0);
    assert_eq!(region.counters(0).leases.load(Ordering::Relaxed), 0);
    region.waits(DEVICES_MAX - 1).by_length[0].fetch_add(1, Ordering::Relaxed);
    assert_eq!(Region::open(id, &dir).unwrap().waits(DEVICES_MAX - 1).by_length[0].load(Ordering::Relaxed), 1);
    assert_eq!(region.damage(), None);
}

#[test]
fn a_region_of_another_version_or_cut_short_is_refused_with_a_reason() {
    let (_dir, _, region) = region();
    let (id, dir) = (slice().id, region.dir().to_owned());
    drop(region);
    let limits = OpenOptions::new().write(true).open(dir.join(LIMITS_FILE)).unwrap();
    let refused = |expected: &str| {
        let error = Region::open(id, &dir).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(dir.to_str().unwrap()), "{error}");
    };
    limits.write_at(&9_u32.to_ne_bytes(), 8).unwrap();
    refused("version 9");
    limits.write_at(b"WHATEVER", 0).unwrap();
    refused("begins with");
    limits.set_len(100).unwrap();
    refused("truncated");
    fs::remove_file(dir.join(LIMITS_FILE)).unwrap();
    refused("limits");
    std::os::unix::fs::symlink("/dev/zero", dir.join(LIMITS_FILE)).unwrap();
    refused("limits");
}

#[test]
fn a_region_of_another_slice_is_refused() {
    let (_dir, _, region) = region();
    let other = SliceId::from_random(1);
    assert!(matches!(Region::open(other, region.dir()), Err(OpenRegionError::Foreign { .. })));
}

#[test]
fn a_ledger_that_is_truncated_while_it_is_mapped_is_survived_and_reported() {
    let (_dir, _, region) = region();
    region.ledger().slots[400].devices[0].memory.store(5, Ordering::Relaxed);
    tenant(&region).set_len(0).unwrap();
    // Every page is missing: reads return zeros, and writes are lost.
    assert_eq!(view::account(region.ledger(), 0).used_bytes, 0);
    assert_eq!(view::held_bytes(region.ledger(), 400, 1), [0]);
    assert_eq!(view::slots(region.ledger()).count(), 0);
    assert!(ledger::settle(region.ledger(), 0));
    assert!(region.damage().unwrap().contains("truncated"));
    // Making the ledger longer again does not undo the damage.
    tenant(&region).set_len(LEDGER_FILE_BYTES as u64).unwrap();
    assert!(region.damage().unwrap().contains("truncated"));
}

/// Harm that is done to a region, with its name or the expected text.
type Harm = (&'static str, fn(&Region));

#[test]
fn damage_takes_everything_away() {
    let harm: [Harm; 3] = [
        ("cut", |region| tenant(region).set_len(7).unwrap()),
        ("lengthened", |region| tenant(region).set_len(1 << 33).unwrap()),
        ("overwritten", |region| tenant(region).write_all_at(&[0; 64], 0).unwrap()),
    ];
    for (what, harm) in harm {
        let (_dir, _, region) = region();
        assert!(region.damage().is_none() && !region.is_revoked(), "{what}");
        harm(&region);
        assert!(region.damage().is_some() && region.is_revoked(), "{what}");
        assert_eq!(region.device_limits(0).memory_limit_bytes.load(Ordering::Relaxed), 0, "{what}");
        // A process that has it mapped finds all pages again.
        assert_eq!(tenant(&region).metadata().unwrap().len(), LEDGER_FILE_BYTES as u64, "{what}");
    }
}

#[test]
fn deleted_and_replaced_files_are_named_and_the_region_is_closed() {
    let harm: [Harm; 6] = [
        ("the directory of its region was deleted", |region| {
            fs::remove_dir_all(region.dir().parent().unwrap()).unwrap();
        }),
        ("the limits file of its region was deleted", |region| {
            fs::remove_file(region.dir().join(LIMITS_FILE)).unwrap()
        }),
        ("the ledger of its region was deleted", |region| fs::remove_file(region.dir().join(LEDGER_FILE)).unwrap()),
        ("the library of its region was deleted", |region| fs::remove_file(region.shim_path()).unwrap()),
        ("the limits file of its region was replaced", |region| {
            let path = region.dir().join(LIMITS_FILE);
            fs::copy(&path, path.with_extension("new")).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }),
        ("the directory of its region was replaced", |region| {
            let copy = region.dir().with_file_name("copy");
            fs::create_dir(&copy).unwrap();
            for file in fs::read_dir(region.dir()).unwrap().map(Result::unwrap) {
                fs::copy(file.path(), copy.join(file.file_name())).unwrap();
            }
            fs::remove_dir_all(region.dir()).unwrap();
            fs::rename(copy, region.dir()).unwrap();
        }),
    ];
    for (expected, harm) in harm {
        let (dir, dirs, region) = region();
        assert_eq!(region.displacement(), None);
        harm(&region);
        assert_eq!(region.displacement().unwrap(), expected);
        let shim = region.shim_path().file_name().unwrap();
        // Done twice, because the watch calls it at each look as long as the slice exists.
        for _ in 0..2 {
            dirs.make_closed(slice().id, &BTreeSet::new(), shim).unwrap();
            let mut files: Vec<_> = fs::read_dir(region.dir()).unwrap().map(|file| file.unwrap().file_name()).collect();
            files.sort();
            assert_eq!(files, [shim, LIMITS_FILE.as_ref()], "{expected}");
            assert_eq!(fs::metadata(region.dir().join(LIMITS_FILE)).unwrap().len(), 0);
            assert_eq!(fs::metadata(region.dir().parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(fs::read_dir(dir.path().join("slices")).unwrap().count(), 1, "{expected}");
        assert!(region.displacement().is_some());
    }
}

#[test]
fn the_stand_in_is_the_shim_beside_an_empty_limits_file() {
    let (dir, dirs, region) = region();
    let stand_in = region.stand_in().unwrap().to_owned();
    assert_eq!(stand_in.parent().unwrap(), dir.path().join("lib"));
    assert_eq!(FileId::of(&stand_in), FileId::of(region.shim_path()));
    assert_eq!(region.preload().collect::<Vec<_>>(), [region.shim_path(), &*stand_in]);
    assert_eq!(fs::metadata(stand_in.with_file_name(LIMITS_FILE)).unwrap().len(), 0);
    // A shim of another version stays as long as a region links to it.
    let old = stand_in.with_file_name("libaliquot-0.so");
    fs::rename(&stand_in, &old).unwrap();
    RegionDirs::prepare(dir.path()).unwrap();
    assert!(old.exists());
    dirs.retire(slice().id).unwrap();
    dirs.discard(slice().id).unwrap();
    assert!(!old.exists() && stand_in.exists());
}

#[test]
fn a_ledger_that_is_cut_by_a_byte_is_reported_too() {
    let (_dir, _, region) = region();
    tenant(&region).set_len(LEDGER_FILE_BYTES as u64 - 1).unwrap();
    assert!(region.damage().unwrap().contains("truncated"));
}

#[test]
fn a_ledger_that_is_made_longer_is_cut_again_and_reported() {
    let (_dir, _, region) = region();
    tenant(&region).set_len(1 << 40).unwrap();
    assert!(region.damage().unwrap().contains("extended"));
    assert_eq!(tenant(&region).metadata().unwrap().len(), LEDGER_FILE_BYTES as u64);
}

#[test]
fn a_ledger_filled_with_any_byte_is_survived() {
    for byte in [0x00, 0x01, 0x55, 0x80, 0xFF] {
        let (_dir, _, region) = region();
        tenant(&region).write_all_at(&vec![byte; LEDGER_FILE_BYTES], 0).unwrap();
        assert!(region.damage().is_some(), "{byte:#x}");
        let ledger = region.ledger();
        for index in 0..SLOTS_MAX {
            let _ = (view::slot(ledger, index), view::work(ledger, index, 0), view::held_bytes(ledger, index, 16));
            ledger::repair(ledger, index);
        }
        let _ = view::sum(ledger, 0..SLOTS_MAX, 0);
        assert!(view::account(ledger, 0).used_bytes <= ledger::BYTES_MASK);
        for device in 0..DEVICES_MAX {
            // Whether it succeeds depends on the byte. It must return in any case.
            let _ = ledger::settle(ledger, device);
        }
    }
}

#[test]
fn a_single_forged_value_is_seen() {
    type Forge = fn(&Ledger);
    let forge: [(&str, Forge); 2] = [
        ("owner", |ledger| ledger.owners[9].store(owner::word(77, 0, 0), Ordering::Relaxed)),
        ("bytes in use", |ledger| ledger.devices[0].used.store(u64::MAX, Ordering::Relaxed)),
    ];
    for (expected, forge) in forge {
        let (_dir, _, region) = region();
        assert_eq!(region.implausible(), None);
        forge(region.ledger());
        let seen = region.implausible().unwrap();
        assert!(seen.contains(expected), "{seen}");
        // The sweeps correct it, so it is not damage.
        assert_eq!(region.damage(), None);
    }
    let (_dir, _, region) = region();
    region.ledger().header.region_id.store(1, Ordering::Relaxed);
    assert!(region.damage().unwrap().contains("id"));
}

#[test]
fn the_gate_opens_with_a_new_count_each_time() {
    let (_dir, _, region) = region();
    let gate = || region.device_limits(0).gate.load(Ordering::Relaxed);
    let mut seen = std::collections::BTreeSet::from([gate()]);
    region.set_gate(0, gate::OPEN);
    assert_eq!(gate() % gate::TICK, gate::OPEN);
    seen.insert(gate());
    region.tick_gate(0);
    assert_eq!(gate() % gate::TICK, gate::OPEN);
    seen.insert(gate());
    region.set_gate(0, 0);
    assert_eq!(gate() % gate::TICK, 0);
    seen.insert(gate());
    region.set_gate(0, gate::OPEN | gate::FREE);
    seen.insert(gate());
    assert_eq!(seen.len(), 5);
}

#[test]
fn a_revoked_region_gives_nothing_more() {
    let (_dir, _, region) = region();
    region.set_gate(0, gate::OPEN);
    region.revoke();
    let limits = region.device_limits(0);
    assert_eq!(limits.gate.load(Ordering::Relaxed) % gate::TICK, 0);
    assert_eq!(limits.core_limit_percent.load(Ordering::Relaxed), 0);
    let limit = limits.memory_limit_bytes.load(Ordering::Relaxed);
    let refused = ledger::reserve(&region.ledger().devices[0], &region.ledger().slots[1].devices[0].memory, 1, limit);
    assert_eq!(refused, Err(OverLimit));
}

#[test]
fn regions_without_a_slice_are_removed_at_the_start() {
    let (dir, dirs, region) = region();
    let slices = dir.path().join("slices");
    fs::create_dir(slices.join(".new-1")).unwrap();
    fs::create_dir(slices.join(".old-1")).unwrap();
    fs::create_dir(slices.join("0".repeat(32))).unwrap();
    let mut removed = dirs.remove_residue(&[slice().id]).unwrap();
    removed.sort();
    assert_eq!(removed, [".new-1", ".old-1", &"0".repeat(32)]);
    assert!(region.dir().exists());
}

#[test]
fn a_region_that_cannot_be_made_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = RegionDirs::prepare(dir.path()).unwrap();
    // Another directory is in the region's place.
    fs::create_dir_all(dirs.region(slice().id).with_file_name("occupied")).unwrap();
    assert!(dirs.create(&slice()).is_err());
    assert_eq!(fs::read_dir(dir.path().join("slices")).unwrap().count(), 1);
}

#[test]
fn a_cut_short_shim_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    RegionDirs::prepare(dir.path()).unwrap();
    let shim = dir.path().join("lib").join(crate::shim_image::file_name());
    fs::remove_file(&shim).unwrap();
    fs::write(&shim, &crate::shim_image::bytes()[..3]).unwrap();
    fs::write(dir.path().join("lib/libaliquot-0.so"), "old").unwrap();
    let region = RegionDirs::prepare(dir.path()).unwrap().create(&slice()).unwrap();
    assert_eq!(fs::read(region.shim_path()).unwrap(), crate::shim_image::bytes());
    assert!(!dir.path().join("lib/libaliquot-0.so").exists());
}
