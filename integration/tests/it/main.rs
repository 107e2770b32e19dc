//! The whole program, on its socket.
#![forbid(unsafe_code)]

mod addons;
mod adopt;
mod authority;
mod background_copy;
mod commands_documented;
mod console;
mod csi_sanity;
mod every_kind;
mod explain;
mod export_pvs;
mod flood;
mod go_clients;
mod health;
mod host_key;
mod local_hostpath;
mod modify;
mod monitoring;
mod moved;
mod node_manual;
mod nothing_ignored;
mod proxy;
mod published;
mod simulated;
mod truenas;
