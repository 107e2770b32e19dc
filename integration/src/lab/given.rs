//! What the environment of a run gives to its cells.

use std::env;
use std::time::Duration;

/// The number of rounds of a cell that has a number of them.
const ROUNDS: &str = "OMNIBUS_LAB_ROUNDS";
/// The number of clones at once, of a cell that makes clones.
const CLONES: &str = "OMNIBUS_LAB_CLONES";
/// The seconds of an outage.
const OUTAGE: &str = "OMNIBUS_OUTAGE";

/// A part of the names of the checks of a suite that are run.
const CHECKS: &str = "OMNIBUS_LAB_CHECKS";

/// The seed of all that is random.
pub fn seed() -> u64 {
    number("OMNIBUS_SEED").unwrap_or(1)
}

/// The number of rounds, if one is given.
pub fn rounds() -> Option<u64> {
    number(ROUNDS)
}

/// The number of clones, if one is given.
pub fn clones() -> Option<u64> {
    number(CLONES)
}

/// The length of an outage, if one is given.
pub fn outage() -> Option<Duration> {
    number(OUTAGE).map(Duration::from_secs)
}

/// What the names of the checks of a suite have to contain, if not all of them are run.
///
/// # Panics
/// If it can be part of no name.
pub fn checks() -> Option<String> {
    let text = env::var(CHECKS).ok().filter(|text| !text.is_empty())?;
    let is_part = text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    assert!(is_part, "{CHECKS} is no part of a name: {text}");
    Some(text)
}

/// All that is given as words for `env`, for the machine.
pub fn words() -> String {
    let numbers = [ROUNDS, CLONES, OUTAGE].into_iter();
    let numbers = numbers.filter_map(|name| Some(format!("{name}={} ", number(name)?)));
    let checks = checks().map(|part| format!("{CHECKS}={part} "));
    numbers.chain(checks).collect()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
