//! The driver against a simulated NAS.

mod contract;
mod faults;
mod nas;
mod secrets;
mod session;
mod takeover;
mod templates;
