//! Log, metrics and the endpoint for operators.

pub mod admin;
#[cfg_attr(
    not(feature = "console"),
    expect(dead_code, reason = "the console alone reads what is kept")
)]
pub(crate) mod history;
#[cfg_attr(
    not(feature = "console"),
    expect(dead_code, reason = "the console alone has a query and headers")
)]
pub(crate) mod http;
pub mod log;
pub mod metrics;
pub(crate) mod sampled;
