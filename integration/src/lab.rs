//! The tests that need real storage: NFS, SMB, iSCSI, NVMe-oF and ZFS inside the lab's machine.
//!
//! A [`cell`] is one attachment, with one filesystem or access, under one suite. The outer half
//! ([`host`]) brings the machine to its saved state, copies the program and this crate's `lab`
//! binary into it and starts one cell; everything else here runs inside, next to the real program:
//! [`storage`] makes what a storage host exports, [`fixture`] volumes of it, and [`leftovers`] reads
//! from the kernel what a node has attached. `docs/lab.md` says how to use it.

pub mod bench;
pub mod beside;
pub mod by_hand;
pub mod calls;
pub mod cell;
pub mod clients;
pub mod command;
pub mod content;
pub mod crash;
pub mod evidence;
pub mod faults;
pub mod fixture;
pub mod given;
pub mod healed;
pub mod host;
pub mod kernel;
pub mod leftovers;
pub mod life;
pub mod live_migration;
pub mod migration;
pub mod never;
pub mod node_loss;
pub mod outside;
pub mod pair;
pub mod reboot;
pub mod served;
pub mod storage;
pub mod two_nodes;
