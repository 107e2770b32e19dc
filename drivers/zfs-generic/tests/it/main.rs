//! Everything that needs no lab, as one program.
#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

#[path = "../../../zfs/tests/common/beside.rs"]
mod beside;
mod choices;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod connected;
mod contexts;
mod hostile;
mod keys;
mod lost;
mod nodes;
mod opened;
mod portal_groups;
mod ports;
mod processes;
#[path = "../../../zfs/tests/common/replay.rs"]
mod replay;
mod saving;
mod scripts;
mod sessions;
mod share_lists;
mod shares;
mod taken_over;
mod tools;
mod users;
