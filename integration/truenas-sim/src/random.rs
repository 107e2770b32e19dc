//! Names that must not repeat.

use aws_lc_rs::rand;

pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    rand::fill(&mut bytes).expect("the system's random numbers");
    bytes
}

/// This many hexadecimal digits.
pub(crate) fn hex(digits: usize) -> String {
    let digit = |byte: u8| char::from_digit(u32::from(byte % 16), 16).unwrap_or('0');
    bytes(digits).into_iter().map(digit).collect()
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
