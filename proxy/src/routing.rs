//! From configuration files to connections, and from a request to its connection.

pub mod config_file;
pub mod connection;
pub mod connections;
pub mod folder;
pub(crate) mod node_id;
pub(crate) mod own_thread;
pub mod plugin_name;
pub(crate) mod topology;
