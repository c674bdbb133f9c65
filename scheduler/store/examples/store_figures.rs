//! Measures how fast the store is on this disk:
//!
//! ```text
//! cargo run --release -p aliquot-scheduler-store --example store_figures [FOLDER]
//! ```

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_scheduler_core::{Bytes, DeviceCore, DeviceSpec, MilliCpu, NodeSpec};
use aliquot_scheduler_engine::{
    Amounts, Batch, ClaimKey, ClaimRecord, DevicePart, Generation, InstanceRecord, NodeRecord, Phase, Store,
};
use aliquot_scheduler_store::{Change, Database};

const SPAN: Duration = Duration::from_secs(5);
const CLAIMS: usize = 100_000;
const NODES: usize = 1000;
/// The size of a value in bytes: that of a small job's record.
const VALUE_BYTES: usize = 500;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let parent = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent)?;
    let syncs = syncs_per_second(folder.path())?;
    println!("bare: {syncs:.0} times per second 4 KiB are appended to a file and synced");
    for callers in [1, 16, 256] {
        let path = folder.path().join(format!("{callers}.db"));
        let (saves, transactions) = saves_per_second(&path, callers)?;
        println!(
            "{callers:>3} callers: {saves:.0} saves/s, {:.2} of the bare rate, {:.1} saves in a transaction",
            saves / syncs,
            saves / transactions,
        );
    }
    load(&folder.path().join("large.db"))
}

fn syncs_per_second(folder: &Path) -> Outcome<f64> {
    let mut file = File::create(folder.join("bare"))?;
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < SPAN {
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

/// Saves in a second, and transactions in a second.
fn saves_per_second(path: &Path, callers: usize) -> Outcome<(f64, f64)> {
    let database = Database::open(path)?;
    let count = AtomicU64::new(0);
    let (begun, before) = (Instant::now(), database.transactions());
    thread::scope(|scope| {
        let caller = |caller: usize| {
            let (database, count) = (&database, &count);
            move || -> Result<(), aliquot_scheduler_store::StoreError> {
                let mut number = 0;
                while begun.elapsed() < SPAN {
                    let value = format!("{{\"number\":{number},\"text\":\"{}\"}}", "x".repeat(VALUE_BYTES));
                    let key = format!("{caller}.{}", number % 100);
                    database.save(&[Change { kind: "job", key, value: Some(value) }])?;
                    number += 1;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..callers).map(|number| scope.spawn(caller(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let per_second = |count: u64| u32::try_from(count).map(|count| f64::from(count) / seconds);
    Ok((per_second(count.into_inner())?, per_second(database.transactions() - before)?))
}

fn load(path: &Path) -> Outcome<()> {
    let database = Database::open(path)?;
    let mut store = database.engine_store();
    let term = store.load()?.term;
    let (claims, nodes): (Vec<_>, Vec<_>) = ((0..CLAIMS).map(claim).collect(), (0..NODES).map(node).collect());
    let begun = Instant::now();
    store.save(&Batch { term, claims, nodes, memory: None })?;
    println!("{CLAIMS} claims and {NODES} nodes in one batch: saved in {:.2?}", begun.elapsed());
    drop((store, database));
    println!("the file: {:.1} MiB", f64::from(u32::try_from(path.metadata()?.len() >> 10)?) / 1024.0);
    let begun = Instant::now();
    let database = Database::open(path)?;
    println!("opened and checked in {:.2?}", begun.elapsed());
    let begun = Instant::now();
    let saved = database.engine_store().load()?;
    println!("loaded in {:.2?}", begun.elapsed());
    assert_eq!((saved.claims.len(), saved.nodes.len()), (CLAIMS, NODES));
    let begun = Instant::now();
    database.back_up(&path.with_extension("copy"))?;
    println!("backed up in {:.2?}", begun.elapsed());
    Ok(())
}

fn claim(number: usize) -> (ClaimKey, Option<ClaimRecord>) {
    let part = DevicePart {
        uuid: format!("GPU-8f1f7b6a-0000-0000-0000-{number:012}"),
        core: DeviceCore::new(500),
        memory: Bytes::new(40 << 30),
    };
    let instance = InstanceRecord {
        node: format!("node-{:04}", number % NODES).into(),
        session: 1,
        generation: Generation { term: 1, number: number as u64 },
        phase: Phase::Running,
        started_ms: 1_700_000_000_000,
        amounts: Amounts {
            alternative: 0,
            cpu: MilliCpu::new(4000),
            memory: Bytes::new(16 << 30),
            devices: vec![part],
            ..Amounts::default()
        },
    };
    let record = ClaimRecord { added_ms: 1_700_000_000_000, instance: Some(instance), ..ClaimRecord::default() };
    (ClaimKey { uid: format!("{number}.0.0.1").into(), stray: None }, Some(record))
}

fn node(number: usize) -> (aliquot_scheduler_engine::NodeName, Option<NodeRecord>) {
    let device = |index: usize| DeviceSpec {
        uuid: format!("GPU-8f1f7b6a-0000-0000-{number:04}-{index:012}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory: Bytes::new(80 << 30),
        attributes: [("architecture".to_owned(), "hopper".to_owned())].into(),
        ..DeviceSpec::default()
    };
    let name = format!("node-{number:04}");
    let spec = NodeSpec {
        name: name.clone(),
        cpu: MilliCpu::new(128_000),
        memory: Bytes::new(1 << 40),
        devices: (0..8).map(device).collect(),
        ..NodeSpec::default()
    };
    (name.into(), Some(NodeRecord { spec, session: 1, has_lapsed: false, lease_ms: 30_000 }))
}
