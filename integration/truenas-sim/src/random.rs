//! Names that must not repeat.

use aws_lc_rs::rand;

pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    rand::fill(&mut bytes).expect("the system's random numbers");
    bytes
}

/// This many hexadecimal digits.
pub(crate) fn hex(digits: usize) -> String {
    let text: String = bytes(digits.div_ceil(2))
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    text[..digits].to_owned()
}

pub(crate) fn uuid() -> String {
    let digits = hex(32);
    format!(
        "{}-{}-4{}-8{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..]
    )
}
