//! Log, metrics and the endpoint for operators.

pub mod admin;
pub mod log;
pub mod metrics;
pub(crate) mod sampled;
