//! Times that a storage prints as a date and a clock.

/// Seconds since 1970 of a date (year, month, day) and a clock (hour, minute, second) that is `ahead` seconds
/// ahead of UTC; `None` for what is no date, or is before 1970.
pub fn seconds(
    [year, month, day]: [i64; 3],
    [hour, minute, second]: [i64; 3],
    ahead: i64,
) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of the Gregorian calendar. The year begins in March, so that the leap day is its last one.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second - ahead).ok()
}
