//! Events that must never happen on a node, each as it would come about on a real one.
//!
//! What a fault looks like is made on the storage side or by hand on the node; what the program then
//! says and does is compared with the bytes on the storage side and with the kernel's own lists.

pub mod busy;
pub mod dead;
pub mod foreign;
pub mod hung;
pub mod modes;
pub mod reuse;
pub mod sharing;
