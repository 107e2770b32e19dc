//! Repairs the `:authority` of HTTP/2 requests before the HTTP/2 library rejects them.
//!
//! [`authority`] rewrites the bytes of a connection, [`hpack`] reads and writes its header blocks.
#![forbid(unsafe_code)]

pub mod authority;
pub mod hpack;

pub use authority::Repaired;
