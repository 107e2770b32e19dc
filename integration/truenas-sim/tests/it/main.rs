//! The simulator, from outside: its protocols as a client sees them.

#![forbid(unsafe_code)]

mod accounts;
mod auth;
mod client;
mod clients;
mod faults;
mod jobs;
mod middleware;
mod model;
mod recorded;
mod resource;
mod rest;
mod routes;
mod scram;
mod strict;
mod upgrade;
