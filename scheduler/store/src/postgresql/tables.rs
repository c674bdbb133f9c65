//! Reads and writes records in the tables.

use std::collections::BTreeMap;

use postgres::types::{ToSql, Type};
use postgres::{Error, Row, Transaction};

use super::connection::Address;
use crate::error::StoreError;
use crate::tables::{Change, ENGINE_RECORDS, EngineRow, ReadRow, Tables};

/// The tables within a transaction.
pub(super) struct Rows<'a, 'client> {
    pub(super) transaction: &'a mut Transaction<'client>,
    pub(super) address: &'a Address,
}

/// A parameter of a statement with its type, so that the server need not be asked for the type.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl Rows<'_, '_> {
    fn told<T>(&self, done: Result<T, Error>) -> Result<T, StoreError> {
        done.map_err(|error| self.address.error(&error))
    }

    fn execute(&mut self, statement: &str, parameters: &[Parameter<'_>]) -> Result<(), StoreError> {
        let done = self.transaction.execute_typed(statement, parameters);
        self.told(done.map(|_| ()))
    }

    fn remove(&mut self, table: &str, removed: &Keys<'_>) -> Result<(), StoreError> {
        if removed.is_empty() {
            return Ok(());
        }
        let statement = format!(
            "DELETE FROM {table} USING unnest($1, $2) AS removed (of, named)
             WHERE kind = of AND sha256(key) = sha256(named)"
        );
        self.execute(&statement, &[removed.kinds(), removed.keys()])
    }

    fn number(&mut self, statement: &str, parameters: &[Parameter<'_>]) -> Result<u64, StoreError> {
        let row = self.transaction.query_typed_one(statement, parameters);
        let number: i64 = self.told(row.and_then(|row| row.try_get(0)))?;
        u64::try_from(number).map_err(|_| self.damaged(&format!("a number is {number}")))
    }

    fn text(&self, bytes: &[u8]) -> Result<String, StoreError> {
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        text.map_err(|error| self.damaged(&format!("a record is not a text: {error}")))
    }

    fn damaged(&self, what: &str) -> StoreError {
        self.address.unusable(&format!("it is damaged ({what}); put a backup in its place"))
    }
}

impl Tables for Rows<'_, '_> {
    fn records(&mut self, kind: &str) -> Result<Vec<(String, String)>, StoreError> {
        let query = "SELECT key, value FROM records WHERE kind = $1 ORDER BY key";
        let rows = self.transaction.query_typed(query, &[(&kind, Type::TEXT)]);
        let pair = |row: &Row| -> Result<(String, String), StoreError> {
            let (key, value) = self.told(row.try_get(0).and_then(|key| Ok((key, row.try_get(1)?))))?;
            Ok((self.text(key)?, self.text(value)?))
        };
        self.told(rows)?.iter().map(pair).collect()
    }

    fn change(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        // Only the last change of each record counts.
        let last: BTreeMap<(&str, &[u8]), Option<&[u8]>> = changes
            .iter()
            .map(|Change { kind, key, value }| ((*kind, key.as_bytes()), value.as_deref().map(str::as_bytes)))
            .collect();
        let (mut set, mut values, mut removed) = (Keys::default(), Vec::new(), Keys::default());
        for ((kind, key), value) in last {
            match value {
                Some(value) => {
                    set.push(kind, key);
                    values.push(value);
                }
                None => removed.push(kind, key),
            }
        }
        if !set.is_empty() {
            self.execute(
                "INSERT INTO records SELECT * FROM unnest($1, $2, $3)
                 ON CONFLICT (kind, sha256(key)) DO UPDATE SET value = excluded.value",
                &[set.kinds(), set.keys(), (&values, Type::BYTEA_ARRAY)],
            )?;
        }
        self.remove("records", &removed)
    }

    fn next_number(&mut self, name: &str) -> Result<u64, StoreError> {
        self.number(
            "INSERT INTO numbers VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET last = numbers.last + 1 RETURNING last",
            &[(&name, Type::TEXT)],
        )
    }

    fn term(&mut self) -> Result<u64, StoreError> {
        self.number("SELECT last FROM term", &[])
    }

    fn begin_term(&mut self) -> Result<u64, StoreError> {
        self.number("UPDATE term SET last = last + 1 RETURNING last", &[])
    }

    fn engine_records(&mut self) -> Result<Vec<ReadRow>, StoreError> {
        let rows = self.transaction.query_typed("SELECT kind, key, format, value FROM engine_records", &[]);
        let read = |row: &Row| -> Result<ReadRow, StoreError> {
            let (key, value) = self.told(row.try_get(1).and_then(|key| Ok((key, row.try_get(3)?))))?;
            let (kind, format) = self.told(row.try_get(0).and_then(|kind| Ok((kind, row.try_get(2)?))))?;
            Ok(ReadRow { kind, key: self.text(key)?, format, value: self.text(value)? })
        };
        self.told(rows)?.iter().map(read).collect()
    }

    fn change_engine(&mut self, rows: &[EngineRow]) -> Result<(), StoreError> {
        let (mut set, mut removed) = (Keys::default(), Keys::default());
        let (mut formats, mut values) = (Vec::new(), Vec::new());
        for EngineRow { kind, key, value } in rows {
            match value {
                Some((format, value)) => {
                    set.push(kind, key.as_bytes());
                    formats.push(i64::from(*format));
                    values.push(value.as_bytes());
                }
                None => removed.push(kind, key.as_bytes()),
            }
        }
        if !set.is_empty() {
            self.execute(
                "INSERT INTO engine_records SELECT * FROM unnest($1, $2, $3, $4)
                 ON CONFLICT (kind, sha256(key)) DO UPDATE SET format = excluded.format, value = excluded.value",
                &[set.kinds(), set.keys(), (&formats, Type::INT8_ARRAY), (&values, Type::BYTEA_ARRAY)],
            )?;
        }
        self.remove(ENGINE_RECORDS, &removed)
    }
}

/// Keys of records, as two parameters with lists of the same length.
#[derive(Default)]
struct Keys<'a> {
    kinds: Vec<&'a str>,
    keys: Vec<&'a [u8]>,
}

impl<'a> Keys<'a> {
    fn push(&mut self, kind: &'a str, key: &'a [u8]) {
        self.kinds.push(kind);
        self.keys.push(key);
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn kinds(&self) -> Parameter<'_> {
        (&self.kinds, Type::TEXT_ARRAY)
    }

    fn keys(&self) -> Parameter<'_> {
        (&self.keys, Type::BYTEA_ARRAY)
    }
}
