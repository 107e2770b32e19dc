//! Numbers that the environment of a run gives to its cells.

use std::env;

/// The number of rounds of a cell that has a number of them.
pub const ROUNDS: &str = "OMNIBUS_LAB_ROUNDS";

/// The seed of all that is random.
pub fn seed() -> u64 {
    number("OMNIBUS_SEED").unwrap_or(1)
}

/// The number of rounds, if one is given.
pub fn rounds() -> Option<u64> {
    number(ROUNDS)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
