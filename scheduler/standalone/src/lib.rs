//! A scheduler for machines without Kubernetes: node sessions, jobs, and the API for users.
