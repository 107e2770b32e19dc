//! Whatever a verb is cut at, and whatever state it began in, its retry leads to the same end.
//!
//! States are made by random verbs, by democratic-csi and by other people; then each verb is run
//! once undisturbed, and once cut at each of its steps and run again.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod absent;
mod concurrent;
mod configured;
mod contract;
mod exports;
mod foreign;
mod full;
mod kept;
mod leftovers;
mod migrated;
mod orphans;
mod partial;
mod prefix;
mod resumed;
mod short;
mod sizes;
mod transfers;
mod verbs;
mod world;
