//! A scheduler that leads when no other one does.

use std::sync::Arc;
use std::time::Instant;

use postgres::Client;

use super::connection::{Address, PostgresqlConfig};
use super::keeper::Keeper;
use super::schema::Taken;
use super::tables::Rows;
use super::{Leader, schema};
use crate::database::Database;
use crate::error::StoreError;
use crate::leadership::Leadership;
use crate::tables::Tables;

/// One of several schedulers that share a database. It connects when it is first used, and again after a break.
pub struct Candidate {
    address: Arc<Address>,
    /// The address of this scheduler as HOST:PORT.
    own: String,
    client: Option<Client>,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("own", &self.own).finish_non_exhaustive()
    }
}

fn newer(address: &Address, found: i64, known: i64) -> StoreError {
    let number = |version| u32::try_from(version).unwrap_or(u32::MAX);
    StoreError::Newer { place: address.place().to_owned(), found: number(found), known: number(known) }
}

/// Whether a scheduler leads or follows another.
#[derive(Debug)]
pub enum Standing {
    /// It leads, and may use the database.
    Leads(Database),
    /// Another scheduler leads, and this one may try again later.
    Follows {
        /// The address of the leader as HOST:PORT.
        leader: String,
    },
}

impl Candidate {
    /// A scheduler that nodes and other schedulers reach at `own`, HOST:PORT.
    ///
    /// # Errors
    /// If the configuration is wrong.
    pub fn new(config: &PostgresqlConfig, own: String) -> Result<Self, StoreError> {
        Ok(Self { address: Arc::new(Address::of(config)?), own, client: None })
    }

    /// Tries to lead; succeeds if no other scheduler leads.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] is temporary. Any other error is permanent.
    pub fn stand(&mut self) -> Result<Standing, StoreError> {
        let done = self.try_to_lead();
        if done.is_err() {
            self.client = None;
        }
        done
    }

    /// The records of a kind, as the leader has saved them.
    ///
    /// # Errors
    /// As for [`Candidate::stand`].
    pub fn records(&mut self, kind: &str) -> Result<Vec<(String, String)>, StoreError> {
        let address = Arc::clone(&self.address);
        let mut read = || {
            let mut transaction = self.client()?.transaction().map_err(|error| address.error(&error))?;
            Rows { transaction: &mut transaction, address: &address }.records(kind)
        };
        let done = read();
        if done.is_err() {
            self.client = None;
        }
        done
    }

    fn client(&mut self) -> Result<&mut Client, StoreError> {
        if self.client.is_none() {
            let mut client = self.address.connect()?;
            let (found, known) = schema::create(&mut client).map_err(|error| self.address.error(&error))?;
            if found > known {
                return Err(newer(&self.address, found, known));
            }
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| self.address.unusable("it is not connected"))
    }

    fn try_to_lead(&mut self) -> Result<Standing, StoreError> {
        let (address, own) = (Arc::clone(&self.address), self.own.clone());
        let told = |error| address.error(&error);
        let client = self.client()?;
        let schema::LeaseRow { generation: seen, leader, is_over } = schema::look(client, &own).map_err(told)?;
        if !is_over {
            return Ok(Standing::Follows { leader });
        }
        let asked = Instant::now();
        let generation = match schema::take(client, seen, &own, address.lease()).map_err(told)? {
            Taken::Lease(generation) => generation,
            Taken::Late => return Ok(Standing::Follows { leader }),
            Taken::Newer { found, known } => return Err(newer(&address, found, known)),
        };
        let leadership = Leadership::until(asked + address.lease_of_leader());
        // From now on the keeper uses this connection.
        let Some(client) = self.client.take() else { return Ok(Standing::Follows { leader }) };
        let place = address.place().to_owned();
        let keeper = Keeper::start(Arc::clone(&address), client, generation, leadership.clone())
            .map_err(StoreError::file(std::path::Path::new(&place), "start a thread for it"))?;
        let backend = Leader { address, generation, leadership: leadership.clone(), client: None, _keeper: keeper };
        Database::start(backend, place, leadership).map(Standing::Leads)
    }
}
