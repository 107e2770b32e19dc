//! The client against simulated appliances, and what it sends against the tables of each generation.

mod acls;
mod appliance;
mod calls;
mod catalogue;
mod checks;
mod children;
mod connected;
mod connection;
mod contract;
mod costs;
mod crowd;
mod examples;
mod faults;
mod fences;
mod health;
mod jobs;
mod keys;
mod matrix;
mod modified;
mod nas;
mod nodes;
mod others;
mod secrets;
mod setup;
mod taken_over;
mod volumes;
