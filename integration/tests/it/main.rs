//! The whole program, on its socket.
#![forbid(unsafe_code)]

mod authority;
mod background_copy;
mod console;
mod csi_sanity;
mod every_kind;
mod explain;
mod flood;
mod go_clients;
mod host_key;
mod local_hostpath;
mod monitoring;
mod node_manual;
mod nothing_ignored;
mod proxy;
mod truenas;
