//! The tables, their versions, and the lease.

use std::time::Duration;

use postgres::types::Type;
use postgres::{Client, Error, GenericClient, Transaction};

use crate::tables::{JOBS_WITH_SECRETS, RESTORE_GAP};

/// The number of the lock, `alqs`, under which only one scheduler at a time makes or changes tables.
const LOCK: i64 = 0x616c_7173;

/// The statements that make each version of the tables out of the version before. A shipped version is never changed.
///
/// Keys and values are bytes, because PostgreSQL does not accept every text that a scheduler may save. The index
/// contains hashes, because it cannot contain long keys.
const VERSIONS: &[&str] = &[
    "
    CREATE TABLE records (kind TEXT NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL);
    CREATE UNIQUE INDEX ON records (kind, sha256(key));
    CREATE TABLE engine_records (kind TEXT NOT NULL, key BYTEA NOT NULL, format BIGINT NOT NULL, value BYTEA NOT NULL);
    CREATE UNIQUE INDEX ON engine_records (kind, sha256(key));
    CREATE TABLE numbers (name TEXT PRIMARY KEY, last BIGINT NOT NULL);
    CREATE TABLE term (last BIGINT NOT NULL);
    CREATE TABLE lease (generation BIGINT NOT NULL, leader TEXT NOT NULL, until TIMESTAMPTZ NOT NULL);
    CREATE TABLE schedulers (address TEXT PRIMARY KEY, seen TIMESTAMPTZ NOT NULL);
    CREATE TABLE origin (name TEXT NOT NULL);
    INSERT INTO term VALUES (0);
    INSERT INTO lease VALUES (0, '', 'epoch');
    INSERT INTO origin VALUES ('');
",
    JOBS_WITH_SECRETS,
];

/// A scheduler that was silent for this time does not count as one that can lead.
const SEEN: &str = "interval '1 minute'";

/// Identifies this database. The value differs on another machine, in another history of the database after a restored
/// backup or a promotion, and in tables that were made anew from a dump.
const ORIGIN: &str = "
    SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                     left(pg_walfile_name(pg_current_wal_lsn()), 8), 'records'::regclass::oid)
";

/// The content of the lease row.
pub(super) struct LeaseRow {
    pub(super) generation: i64,
    /// The address of the leader.
    pub(super) leader: String,
    /// Whether the lease has ended, by the server's clock.
    pub(super) is_over: bool,
}

/// Sets up a connection.
pub(super) fn begin_session(client: &mut Client, limit: Duration) -> Result<(), Error> {
    // A commit is durable when it returns, also on the replicas for which the server is configured to wait.
    client.batch_execute(&format!(
        "SET search_path TO aliquot; SET idle_in_transaction_session_timeout TO {};
         SELECT set_config('synchronous_commit', 'on', false)
          WHERE current_setting('synchronous_commit') IN ('off', 'local')",
        limit.as_millis()
    ))
}

/// Makes the tables if they do not exist. Answers their version, and the newest one that this program knows.
pub(super) fn create(client: &mut Client) -> Result<(i64, i64), Error> {
    let known = i64::try_from(VERSIONS.len()).unwrap_or(i64::MAX);
    if let found @ 1.. = version(client)? {
        return Ok((found, known));
    }
    let mut transaction = client.transaction()?;
    migrate(&mut transaction)?;
    transaction.commit()?;
    Ok((version(client)?, known))
}

/// The version of the tables; 0: they do not exist.
fn version(client: &mut impl GenericClient) -> Result<i64, Error> {
    let is_there: bool = client.query_one("SELECT to_regclass('aliquot.version') IS NOT NULL", &[])?.try_get(0)?;
    if !is_there {
        return Ok(0);
    }
    client.query_one("SELECT last FROM aliquot.version", &[])?.try_get(0)
}

/// Brings the tables to the newest version.
fn migrate(transaction: &mut Transaction<'_>) -> Result<(), Error> {
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    let found = usize::try_from(version(transaction)?).unwrap_or(0);
    if found >= VERSIONS.len() {
        return Ok(());
    }
    if found == 0 {
        transaction.batch_execute(
            "CREATE SCHEMA IF NOT EXISTS aliquot; CREATE TABLE aliquot.version (last BIGINT NOT NULL);
             INSERT INTO aliquot.version VALUES (0)",
        )?;
    }
    for step in VERSIONS.iter().skip(found) {
        transaction.batch_execute(step)?;
    }
    let known = i64::try_from(VERSIONS.len()).unwrap_or(i64::MAX);
    transaction.execute("UPDATE version SET last = $1", &[&known]).map(|_| ())
}

/// Registers the scheduler with this address as present, and reads the lease.
pub(super) fn look(client: &mut Client, own: &str) -> Result<LeaseRow, Error> {
    client.execute_typed(
        "INSERT INTO schedulers VALUES ($1, clock_timestamp()) ON CONFLICT (address) DO UPDATE SET seen = excluded.seen",
        &[(&own, Type::TEXT)],
    )?;
    let row = client.query_typed_one("SELECT generation, leader, until <= clock_timestamp() FROM lease", &[])?;
    Ok(LeaseRow { generation: row.try_get(0)?, leader: row.try_get(1)?, is_over: row.try_get(2)? })
}

/// The result of an attempt to take the lease.
pub(super) enum Taken {
    /// This scheduler has it, with this generation.
    Lease(i64),
    /// Another scheduler was faster.
    Late,
    /// A newer scheduler has led meanwhile, and this program does not know the version of the tables.
    Newer { found: i64, known: i64 },
}

/// Takes a lease that has ended.
pub(super) fn take(client: &mut Client, seen: i64, own: &str, lease: Duration) -> Result<Taken, Error> {
    let mut transaction = client.transaction()?;
    // This waits until the last write of the previous leader is over.
    let is_free = "SELECT FROM lease WHERE generation = $1 AND until <= clock_timestamp() FOR UPDATE";
    if transaction.query_typed_opt(is_free, &[(&seen, Type::INT8)])?.is_none() {
        return Ok(Taken::Late);
    }
    let (found, known) = (version(&mut transaction)?, i64::try_from(VERSIONS.len()).unwrap_or(i64::MAX));
    if found > known {
        return Ok(Taken::Newer { found, known });
    }
    let generation = transaction.query_typed_one(
        "UPDATE lease SET generation = generation + 1, leader = $1,
                          until = clock_timestamp() + $2 * interval '1 millisecond' RETURNING generation",
        &[(&own, Type::TEXT), (&millis(lease), Type::INT8)],
    )?;
    let generation = generation.try_get(0)?;
    migrate(&mut transaction)?;
    go_on_after_restore(&mut transaction)?;
    transaction.commit()?;
    Ok(Taken::Lease(generation))
}

/// Leaves a gap in all numbers and terms if this is not the same database as before. That one may have given more of
/// them, and nodes refuse a term that is lower than one that they have seen.
fn go_on_after_restore(transaction: &mut Transaction<'_>) -> Result<(), Error> {
    let origin: String = transaction.query_one(ORIGIN, &[])?.try_get(0)?;
    let before: String = transaction.query_one("SELECT name FROM origin", &[])?.try_get(0)?;
    if origin == before {
        return Ok(());
    }
    transaction.execute("UPDATE origin SET name = $1", &[&origin])?;
    if !before.is_empty() {
        transaction.execute("UPDATE term SET last = last + $1", &[&RESTORE_GAP])?;
        transaction.execute("UPDATE numbers SET last = last + $1", &[&RESTORE_GAP])?;
    }
    Ok(())
}

/// Renews a lease. Answers the addresses of the schedulers; `None`: the lease was lost.
pub(super) fn renew(client: &mut Client, generation: i64, lease: Duration) -> Result<Option<Vec<String>>, Error> {
    let renewed = client.execute_typed(
        "UPDATE lease SET until = clock_timestamp() + $2 * interval '1 millisecond' WHERE generation = $1",
        &[(&generation, Type::INT8), (&millis(lease), Type::INT8)],
    )?;
    if renewed == 0 {
        return Ok(None);
    }
    let others = format!(
        "SELECT address FROM schedulers WHERE seen > clock_timestamp() - {SEEN} OR address = (SELECT leader FROM lease)
         ORDER BY address"
    );
    client.query_typed(&others, &[])?.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map(Some)
}

/// Ends a lease, so that another scheduler can lead at once.
pub(super) fn give_up(client: &mut Client, generation: i64) -> Result<(), Error> {
    let end = "UPDATE lease SET until = 'epoch' WHERE generation = $1";
    client.execute_typed(end, &[(&generation, Type::INT8)]).map(|_| ())
}

/// Reads the generation of the lease. Until the transaction is over, no scheduler can take the lease; it can still be
/// renewed.
pub(super) fn fence(transaction: &mut Transaction<'_>) -> Result<i64, Error> {
    transaction.query_typed_one("SELECT generation FROM lease FOR KEY SHARE", &[])?.try_get(0)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
