//! The client against simulated appliances, and what it sends against the tables of each generation.

mod appliance;
mod catalogue;
mod connection;
mod jobs;
mod nas;
mod secrets;
mod volumes;
