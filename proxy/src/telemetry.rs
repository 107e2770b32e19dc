//! Log, metrics and the endpoint for operators.

pub mod admin;
pub(crate) mod history;
pub(crate) mod http;
pub mod log;
pub mod metrics;
pub(crate) mod sampled;
