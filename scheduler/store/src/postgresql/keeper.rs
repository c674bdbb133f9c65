//! Renews a leader's lease.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use postgres::Client;
use tracing::{error, warn};

use super::RETRY;
use super::connection::Address;
use super::schema;
use crate::error::StoreError;
use crate::leadership::Leadership;

/// The thread that renews a lease, until this is dropped. Then it gives up the lease, so that another scheduler can
/// lead at once.
pub(super) struct Keeper {
    /// `None` only while this is being dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Keeper {
    pub(super) fn start(
        address: Arc<Address>,
        client: Client,
        generation: i64,
        leadership: Leadership,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut keeping = Keeping { address, client: Some(client), generation, leadership };
        let keep = move || {
            let interval = keeping.address.lease() / 5;
            let mut pause = std::time::Duration::ZERO;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                pause = match keeping.renew() {
                    Ok(()) => interval,
                    Err(StoreError::LeaseLost { .. }) => return error!("another scheduler leads now"),
                    Err(error) => {
                        warn!(%error, "cannot renew the lease");
                        keeping.client = None;
                        RETRY
                    }
                };
            }
            keeping.give_up();
        };
        let thread = Builder::new().name("lease".to_owned()).spawn(keep)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// The state of that thread.
struct Keeping {
    address: Arc<Address>,
    client: Option<Client>,
    generation: i64,
    leadership: Leadership,
}

impl Keeping {
    fn renew(&mut self) -> Result<(), StoreError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(self.address.connect()?),
        };
        let asked = Instant::now();
        let renewed = schema::renew(client, self.generation, self.address.lease());
        match renewed.map_err(|error| self.address.error(&error))? {
            Some(schedulers) => {
                self.leadership.renew(asked + self.address.lease_of_leader(), schedulers);
                Ok(())
            }
            None => {
                self.leadership.end();
                Err(self.address.lease_lost())
            }
        }
    }

    fn give_up(&mut self) {
        self.leadership.end();
        if let Some(client) = &mut self.client
            && let Err(error) = schema::give_up(client, self.generation)
        {
            warn!(error = %self.address.error(&error), "cannot give up the lease; it ends by itself");
        }
    }
}
