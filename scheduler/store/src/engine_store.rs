//! The engine's state in a database.

use std::collections::BTreeMap;

use aliquot_scheduler_engine::{self as engine, Batch, Saved, Store};
use aliquot_scheduler_records as records;

use crate::database::Database;
use crate::error::StoreError;
use crate::tables::{ENGINE_RECORDS, EngineRow, ReadRow, Tables};

/// The kinds of records.
const CLAIM: &str = "claim";
const NODE: &str = "node";
const MEMORY: &str = "memory";

/// Stores the state of an engine. Of several such stores of one database, only the one that was loaded last can save:
/// each load begins a new term of the database.
#[derive(Clone, Debug)]
pub struct EngineStore {
    database: Database,
}

impl EngineStore {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    fn read(&self) -> Result<Saved, StoreError> {
        let read = |tables: &mut dyn Tables| Ok((tables.begin_term()?, tables.engine_records()?));
        let (term, rows) = self.database.transact(read)?;
        let mut saved = Saved { term, ..Saved::default() };
        for row in rows {
            take_in(&mut saved, &row).map_err(|what| {
                let ReadRow { kind, key, .. } = row;
                StoreError::Record { place: self.database.place().to_owned(), table: ENGINE_RECORDS, kind, key, what }
            })?;
        }
        Ok(saved)
    }

    fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        let Batch { term, claims, nodes, memory } = batch;
        let term = *term;
        // A record can be removed and written again in one batch. Only its last value counts.
        let mut rows = BTreeMap::new();
        for (key, record) in claims {
            rows.insert((CLAIM, records::write_claim_key(key)), record.as_ref().map(records::write_claim));
        }
        for (name, record) in nodes {
            rows.insert((NODE, name.as_str().to_owned()), record.as_ref().map(records::write_node));
        }
        rows.extend(memory.iter().map(|memory| ((MEMORY, String::new()), Some(records::write_memory(memory)))));
        let rows = rows.into_iter().map(|((kind, key), value)| EngineRow { kind, key, value });
        let rows: Vec<EngineRow> = rows.collect();
        let place = self.database.place().to_owned();
        self.database.transact(move |tables| {
            let current = tables.term()?;
            if current != term {
                return Err(StoreError::TermEnded { place: place.clone(), term, current });
            }
            tables.change_engine(&rows)
        })
    }
}

fn take_in(saved: &mut Saved, row: &ReadRow) -> Result<(), String> {
    let ReadRow { kind, key, format, value } = row;
    match kind.as_str() {
        CLAIM => saved.claims.push((records::read_claim_key(key)?, records::read_claim(*format, value)?)),
        NODE => saved.nodes.push((key.as_str().into(), records::read_node(*format, value)?)),
        MEMORY => saved.memory = records::read_memory(*format, value)?,
        _ => return Err("no record is of this kind".to_owned()),
    }
    Ok(())
}

impl Store for EngineStore {
    fn load(&mut self) -> Result<Saved, engine::StoreError> {
        self.read().map_err(|error| engine::StoreError(Box::new(error)))
    }

    fn save(&mut self, batch: &Batch) -> Result<(), engine::StoreError> {
        self.write(batch).map_err(|error| engine::StoreError(Box::new(error)))
    }
}
