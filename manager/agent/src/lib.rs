//! A node in a cluster: joins a scheduler, holds its lease, runs jobs.
