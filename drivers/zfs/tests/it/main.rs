//! A verb that is interrupted anywhere, in any initial state, reaches the same end by a retry.
//!
//! States are created by random verbs, by democratic-csi and by other users; then each verb is run
//! once without interruption, and once interrupted at each of its steps and retried.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod absent;
mod adopted;
mod at_one_moment;
mod blocks;
mod children;
mod concurrent;
mod configured;
mod connected;
mod contract;
mod exports;
mod fenced;
mod foreign;
mod full;
mod groups;
mod health;
mod held;
mod kept;
mod leftovers;
mod migrated;
mod modes;
mod modified;
mod moves;
mod orphans;
mod partial;
mod prefix;
mod published;
mod resumed;
mod share_options;
mod short;
mod sizes;
mod transfers;
mod verbs;
mod world;
