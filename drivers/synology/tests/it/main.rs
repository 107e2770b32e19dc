//! The driver against a simulated NAS.

mod contract;
mod documented;
mod faults;
mod nas;
mod secrets;
mod session;
mod shares;
mod takeover;
mod templates;
mod tls;
