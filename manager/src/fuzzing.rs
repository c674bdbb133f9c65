//! The functions of this crate that the fuzz targets in `tests/fuzz` call: everything that reads foreign bytes. They
//! exist only with the feature `fuzzing`, which no shipped build has.
//!
//! Each function takes any bytes, and panics if the result breaks an invariant.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use arbitrary::{Arbitrary, Unstructured};

use crate::attribution;
use crate::checkpoint::{Checkpoint, Found};
use crate::config::{Config, Settings};
use crate::inventory::{Device, DeviceUuid, Health, Inventory, SharingMode};
use crate::procfs::{self, Stat};
use crate::slices::{CreateRequest, PartRequest, ResizeRequest, SliceId, Slices};
use crate::socket;

pub use crate::region::hostile::HostileLedger;

const GIB: u64 = 1 << 30;
/// Devices of the node in [`slices`].
const DEVICES: u32 = 3;

/// Reads `bytes` as a configuration file, which is written into `dir`.
pub fn config(dir: &Path, bytes: &[u8]) {
    let file = dir.join("manager.toml");
    fs::write(&file, bytes).expect("the test's own directory can be written");
    match Config::load(Settings::default(), Some(&file)) {
        Ok(config) => assert!(config.runtime_dir.is_absolute() && config.socket.is_absolute()),
        // An error has a text: the parser's, with the file's name or the key.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reads `bytes` as a checkpoint, which is written into `dir`. An accepted checkpoint stays the same when it is written
/// again, and its slices can be counted without overflow.
pub fn checkpoint(dir: &Path, bytes: &[u8]) {
    fs::write(dir.join("checkpoint.json"), bytes).expect("the test's own directory can be written");
    let checkpoint = Checkpoint::new(Some(dir.into()));
    let Ok(Found::Whole(contents)) = checkpoint.load() else { return };
    checkpoint.save(&contents).expect("what was read can be written");
    assert_eq!(checkpoint.load().ok(), Some(Found::Whole(contents.clone())));
    let mut slices = Slices::default();
    for entry in contents.slices {
        slices.put(entry.slice);
    }
    let devices: Vec<DeviceUuid> =
        slices.iter().flat_map(|slice| &slice.parts).map(|part| part.device.clone()).collect();
    for device in &devices {
        let _ = (device.bytes(), slices.given(device, None));
    }
}

/// Takes `bytes` as the bytes that a client sends. The server must see the same number of bytes, independent of the
/// pieces in which they come, and only percent signs or their code may change.
pub fn client(bytes: &[u8]) {
    let told = socket::told(bytes, bytes.len().max(1));
    assert_eq!(told.len(), bytes.len());
    for size in [1, 3, 17] {
        assert_eq!(socket::told(bytes, size), told);
    }
    assert_eq!(socket::told(&told, bytes.len().max(1)), told);
}

/// Reads `bytes` as the kernel's text about a process. The process itself chooses part of that text.
pub fn processes(bytes: &[u8]) {
    if let Some(stat) = Stat::parse(bytes) {
        let _ = stat.has_ended();
    }
    let _ = (procfs::own_pid_in(bytes), procfs::mapped_in(bytes, "/libaliquot.so"));
    let text = String::from_utf8_lossy(bytes);
    let id = SliceId::from_random(0xab);
    text.lines().for_each(|line| _ = attribution::is_mount_of(line, id));
    let (cgroups, container) = text.split_once('\0').unwrap_or((&text, &text));
    // A process in exactly the cgroups of a container is in the container, unless the container has no cgroups.
    assert!(!attribution::is_within(cgroups, container) || !container.is_empty());
}

#[derive(Arbitrary, Debug)]
enum Ask {
    Create { name: String, parts: Vec<AskedPart>, host_memory_limit_bytes: u64, description: String },
    Resize { slice: u8, parts: Vec<AskedPart>, host_memory_limit_bytes: Option<u64> },
    Remove { slice: u8 },
}

#[derive(Arbitrary, Debug)]
struct AskedPart {
    device: Option<u8>,
    core_request_percent: u32,
    core_limit_percent: u32,
    memory_limit_bytes: u64,
}

impl AskedPart {
    fn request(self) -> PartRequest {
        PartRequest {
            device: self.device.map(uuid),
            core_request_percent: self.core_request_percent,
            core_limit_percent: self.core_limit_percent,
            memory_limit_bytes: self.memory_limit_bytes,
        }
    }
}

fn uuid(number: u8) -> DeviceUuid {
    DeviceUuid::new(format!("GPU-{:08x}-0000-0000-0000-000000000000", number % (DEVICES as u8 + 1)))
}

fn inventory() -> Inventory {
    let device = |index: u32| Device {
        uuid: uuid(index as u8),
        index,
        model: "Test".into(),
        memory_bytes: u64::from(index + 1) * 8 * GIB,
        pci_bus_id: String::new(),
        minor: None,
        numa_node: None,
        nvlink_peers: Vec::new(),
        compute_capability: None,
        mig_enabled: false,
        partitioning: None,
        mig_instance: None,
        tells_utilisation: true,
        sharing: SharingMode::Time,
        health: Health::Healthy,
    };
    Inventory { devices: (0..DEVICES).map(device).collect(), ..Inventory::default() }
}

/// Reads `bytes` as requests of clients, and carries out those that are granted. More than a device has must never be
/// given out.
pub fn slices(bytes: &[u8]) {
    let inventory = inventory();
    let mut slices = Slices::default();
    let mut input = Unstructured::new(bytes);
    let mut asked = 0;
    while !input.is_empty() {
        let Ok(ask) = Ask::arbitrary(&mut input) else { return };
        asked += 1;
        let name_of = |slice: u8| {
            let count = slices.iter().count().max(1);
            slices.iter().nth(usize::from(slice) % count).map_or_else(String::new, |slice| slice.name.clone())
        };
        match ask {
            Ask::Create { name, parts, host_memory_limit_bytes, description } => {
                let parts = parts.into_iter().map(AskedPart::request).collect();
                let request =
                    CreateRequest { name, parts, host_memory_limit_bytes, description, ..CreateRequest::default() };
                let id = SliceId::from_random(asked);
                match slices.create(&inventory, request, id, SystemTime::UNIX_EPOCH) {
                    Ok(slice) => slices.put(slice),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            Ask::Resize { slice, parts, host_memory_limit_bytes } => {
                let parts = parts.into_iter().map(AskedPart::request).collect();
                let request = ResizeRequest { parts, host_memory_limit_bytes, ..ResizeRequest::default() };
                match slices.resize(&inventory, &name_of(slice), &request) {
                    Ok(slice) => slices.put(slice),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            Ask::Remove { slice } => _ = slices.take(&name_of(slice)),
        }
        for device in &inventory.devices {
            let given = slices.given(&device.uuid, None);
            assert!(given.core_request_percent <= 100 && given.memory_bytes <= device.memory_bytes, "{given:?}");
        }
        for part in slices.iter().flat_map(|slice| &slice.parts) {
            assert!(part.core_request_percent <= part.core_limit_percent && part.core_limit_percent <= 100, "{part:?}");
            assert!(part.memory_limit_bytes > 0, "{part:?}");
        }
    }
}
