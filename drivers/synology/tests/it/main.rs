//! The driver against a simulated NAS.

mod calls;
mod connected;
mod contract;
mod cut;
mod documented;
mod faults;
mod health;
mod nas;
mod odd;
mod secrets;
mod session;
mod shares;
mod takeover;
mod templates;
mod tls;
