//! The tables in a PostgreSQL database, which several schedulers share. One of them leads.
//!
//! One row, the *lease*, says which scheduler leads: it has a generation, and the end of the lease by the server's
//! clock. A scheduler that takes over increases the generation. Every transaction of a leader reads the generation, and
//! locks the row so that no other scheduler can take the lease during the transaction. So a leader that has lost its
//! lease writes nothing more, whatever it believes.
//!
//! A leader counts its lease by its own clock, from before it asked for it. So its lease ends before any other
//! scheduler takes over, as long as no clock runs a tenth faster than another.

mod candidate;
mod connection;
mod keeper;
mod schema;
mod tables;

pub use candidate::{Candidate, Standing};
pub use connection::PostgresqlConfig;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use tracing::warn;

use crate::error::StoreError;
use crate::leadership::Leadership;
use crate::tables::{Backend, Work};
use crate::writer::Queue;
use connection::Address;
use keeper::Keeper;
use tables::Rows;

/// Time between two attempts to reach the server.
const RETRY: Duration = Duration::from_millis(100);

/// The database, for the leader.
struct Leader {
    address: Arc<Address>,
    generation: i64,
    leadership: Leadership,
    /// `None`: the connection is broken.
    client: Option<Client>,
    /// Gives up the lease when this is dropped: nothing is written any more then.
    _keeper: Keeper,
}

impl Leader {
    /// Tries once to do the work, in a transaction that checks the lease first.
    fn attempt(&mut self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(self.address.connect()?),
        };
        let told = |error| self.address.error(&error);
        let mut transaction = client.transaction().map_err(told)?;
        let current = schema::fence(&mut transaction).map_err(told)?;
        if current != self.generation {
            self.leadership.end();
            return Err(self.address.lease_lost());
        }
        work(&mut Rows { transaction: &mut transaction, address: &self.address })?;
        transaction.commit().map_err(told)
    }
}

impl Backend for Leader {
    /// After a broken connection it is not known whether the transaction is durable. It can safely be done again: no
    /// other scheduler has written meanwhile, and records are set to values, not changed relative to old ones.
    fn transact(&mut self, work: &mut Work<'_>) -> Result<(), StoreError> {
        let begun = Instant::now();
        loop {
            if !self.leadership.holds() {
                return Err(self.address.lease_lost());
            }
            match self.attempt(work) {
                Err(StoreError::Unreachable { place, what }) if begun.elapsed() < self.address.lease() => {
                    warn!(place, what, "the database cannot be written; it is tried again");
                    self.client = None;
                    thread::sleep(RETRY);
                }
                done => return done,
            }
        }
    }

    fn back_up(&mut self, _: &mut Queue, _: &Path) -> Result<(), StoreError> {
        let what = "the scheduler makes no backup of it; use PostgreSQL's own tools, such as pg_dump";
        Err(self.address.unusable(what))
    }
}
