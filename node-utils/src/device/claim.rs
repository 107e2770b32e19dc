//! Claims on volumes of a target that are being staged.
//!
//! Between the moment a disk appears and the moment it is mounted, the kernel does not see it in use. Detaching another
//! volume of the same target would then close the shared session. Only this process takes part.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

type Claims = HashMap<String, Vec<u64>>;

static CLAIMS: LazyLock<Mutex<Claims>> = LazyLock::new(Mutex::default);

/// One volume that is being attached, until it is dropped.
#[derive(Debug)]
#[must_use = "the claim ends when it is dropped"]
pub struct Claim {
    target: String,
    number: u64,
}

/// Claims a volume of a target, by its number there. The stage keeps the claim until it is
/// mounted.
pub fn claim(target: &str, number: u64) -> Claim {
    claims().entry(target.to_owned()).or_default().push(number);
    let target = target.to_owned();
    Claim { target, number }
}

/// Whether a volume of a target is claimed whose number is this one.
pub(crate) fn is_claimed(target: &str, is_this: impl Fn(u64) -> bool) -> bool {
    let claims = claims();
    let numbers = claims.get(target).map(Vec::as_slice).unwrap_or_default();
    numbers.iter().any(|number| is_this(*number))
}

fn claims() -> MutexGuard<'static, Claims> {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = claims();
        let Some(numbers) = claims.get_mut(&self.target) else {
            return;
        };
        if let Some(at) = numbers.iter().position(|number| *number == self.number) {
            numbers.swap_remove(at);
        }
        if numbers.is_empty() {
            claims.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_lasts_as_long_as_the_last_who_made_it() {
        let claimed = || is_claimed("claim test", |number| number == 3);
        let first = claim("claim test", 3);
        let second = claim("claim test", 3);
        let other = claim("claim test", 4);
        drop(first);
        assert!(claimed() && !is_claimed("another claim test", |_| true));
        drop(second);
        assert!(!claimed() && is_claimed("claim test", |_| true));
        drop(other);
        assert!(!is_claimed("claim test", |_| true));
    }
}
