//! Tests of the driver of volumes that were made by hand.

mod contract;
