//! Keeps what must outlive a scheduler, in SQLite.
