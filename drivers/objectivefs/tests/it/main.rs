//! The driver against a program that behaves as the manual of `mount.objectivefs` says: the real one is
//! proprietary.

mod contract;
mod failures;
mod secrets;
mod stand_in;
