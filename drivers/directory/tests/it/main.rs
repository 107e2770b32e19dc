//! The driver on real directories.

mod adopted;
mod base;
mod clients;
mod common;
mod contract;
mod copies;
mod examples;
mod fidelity;
mod groups;
mod kopia;
mod names;
mod pending;
mod quotas;
mod races;
mod refused;
mod restic;
mod snapshots;
mod volumes;
