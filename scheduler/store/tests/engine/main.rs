//! The engine's own worlds and its checks of backends, with a database instead of memory. Each crash of an engine
//! closes the database, and the next engine opens it again.

#[path = "../../../engine/tests/simulation/direct.rs"]
mod direct;
#[path = "../../../engine/tests/simulation/node.rs"]
mod node;
#[path = "../../../engine/tests/simulation/random.rs"]
mod random;
#[path = "../../../engine/tests/simulation/rig.rs"]
mod rig;
#[path = "../../../engine/tests/simulation/world.rs"]
mod world;

use std::cell::Cell;
use std::time::Duration;

use aliquot_harness::{PostgreSql, wait};
use aliquot_scheduler_engine::{Batch, Saved, Store, StoreError};
use aliquot_scheduler_store::{Candidate, Database, EngineStore, PostgresqlConfig, Standing};
use direct::Direct;
use tempfile::TempDir;
use world::{Kind, Wire, World};

/// Worlds of each kind. The engine's tests run many more; here only the store is new.
const WORLDS: u64 = 8;

thread_local! {
    /// Whether the worlds of this thread are in a database of a server.
    static ON_SERVER: Cell<bool> = const { Cell::new(false) };
}

struct Reopened {
    /// Must be dropped before its folder.
    store: Option<EngineStore>,
    place: Place,
}

enum Place {
    File(TempDir),
    Server(PostgresqlConfig),
}

impl Place {
    fn open(&self) -> Database {
        let config = match self {
            Place::File(folder) => {
                return Database::open(&folder.path().join("state.db")).expect("it is closed and whole");
            }
            Place::Server(config) => config,
        };
        let mut candidate = Candidate::new(config, "test:1".to_owned()).expect("the URL can be used");
        wait::until("the lease was given up", || match candidate.stand().expect("the server answers") {
            Standing::Leads(database) => Some(database),
            Standing::Follows { .. } => None,
        })
    }
}

impl Store for Reopened {
    fn load(&mut self) -> Result<Saved, StoreError> {
        self.store = None;
        self.store.insert(self.place.open().engine_store()).load()
    }

    fn save(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.store.as_mut().expect("who saves has loaded").save(batch)
    }
}

fn new_store() -> Box<dyn Store> {
    let place = if ON_SERVER.get() {
        let url = PostgreSql::shared().database();
        Place::Server(PostgresqlConfig { url, lease: Duration::from_secs(120), ..PostgresqlConfig::default() })
    } else {
        Place::File(tempfile::tempdir().expect("there is room for a folder"))
    };
    Box::new(Reopened { store: None, place })
}

fn new_wire() -> Box<dyn Wire> {
    Box::new(Direct)
}

fn play_all(kind: Kind) {
    let (mut happened, mut crashes) = (0, 0);
    for seed in 0..WORLDS {
        let mut world = World::new(seed, kind);
        if let Err(broken) = world.play() {
            panic!("world {seed} ({kind:?}): {broken}");
        }
        happened += world.starts + world.stops + world.lapses;
        crashes += world.crashes;
    }
    assert!(happened > 0 && crashes > 0, "worlds in which nothing happens prove nothing");
}

#[test]
fn worlds_of_nodes_that_hold_leases_come_to_rest() {
    play_all(Kind::Leases);
}

#[test]
fn worlds_of_nodes_without_leases_come_to_rest() {
    play_all(Kind::Witness);
}

#[test]
fn worlds_in_a_database_of_a_server_come_to_rest() {
    ON_SERVER.set(true);
    play_all(Kind::Leases);
}
