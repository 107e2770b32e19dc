//! Sizes as integers: what a caller asks for and what it gets.
//!
//! Nothing is compared as text and nothing is a float. The rules are those of `CapacityRange` in
//! the specification; see `docs/compatibility.md`, "Sizes".

use std::fmt;

/// The size of a volume for which none is asked.
pub const DEFAULT_SIZE: u64 = 1 << 30;

/// A wanted size: at least `required`, at most `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    required: Option<u64>,
    limit: Option<u64>,
}

/// Why a size range makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// A size is below zero.
    #[error("{field} is negative: {value}")]
    Negative {
        /// The name of the number.
        field: &'static str,
        /// The given number.
        value: i64,
    },
    /// The lower bound is above the upper one.
    #[error("required_bytes {required} is greater than limit_bytes {limit}")]
    Crossed {
        /// The lower bound.
        required: u64,
        /// The upper bound.
        limit: u64,
    },
    /// Nothing at or above the lower bound fits below the upper one.
    #[error("the smallest size that can be made is {smallest}, limit_bytes is {limit}")]
    Unmeetable {
        /// The smallest size that could be made.
        smallest: u64,
        /// The upper bound.
        limit: u64,
    },
}

// === impl SizeRange ===

impl SizeRange {
    /// No wish at all.
    pub const ANY: Self = Self {
        required: None,
        limit: None,
    };

    /// Reads the two numbers of the wire, where zero means "not given".
    pub fn new(required: i64, limit: i64) -> Result<Self, SizeError> {
        let number = |field, value: i64| {
            u64::try_from(value).map_err(|_| SizeError::Negative { field, value })
        };
        let required = number("required_bytes", required)?;
        let limit = number("limit_bytes", limit)?;
        if limit != 0 && required > limit {
            return Err(SizeError::Crossed { required, limit });
        }
        let given = |value| (value != 0).then_some(value);
        Ok(Self {
            required: given(required),
            limit: given(limit),
        })
    }

    /// The lower bound, if there is one.
    pub fn required(&self) -> Option<u64> {
        self.required
    }

    /// The upper bound, if there is one.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Whether nothing is asked for.
    pub fn is_any(&self) -> bool {
        *self == Self::ANY
    }

    /// Whether an object of `size` bytes answers this wish.
    pub fn holds(&self, size: u64) -> bool {
        self.required.is_none_or(|required| size >= required)
            && self.limit.is_none_or(|limit| size <= limit)
    }

    /// The size to make: the lower bound (or the limit, or the default) rounded up to `step`.
    pub fn choose(&self, step: u64) -> Result<u64, SizeError> {
        let wanted = self.required.or(self.limit).unwrap_or(DEFAULT_SIZE);
        let rounded = wanted
            .checked_next_multiple_of(step.max(1))
            .unwrap_or(u64::MAX);
        let size = match self.limit {
            // Only a limit is given: stay below it.
            Some(limit) if self.required.is_none() => limit - limit % step.max(1),
            _ => rounded,
        };
        match self.limit {
            Some(limit) if size > limit || size == 0 => Err(SizeError::Unmeetable {
                smallest: rounded,
                limit,
            }),
            _ => Ok(size),
        }
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.required, self.limit) {
            (None, None) => f.write_str("any number of bytes"),
            (Some(least), None) => write!(f, "at least {least} bytes"),
            (None, Some(most)) => write!(f, "at most {most} bytes"),
            (Some(least), Some(most)) if least == most => write!(f, "{least} bytes"),
            (Some(least), Some(most)) => write!(f, "{least} to {most} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_as_numbers() {
        // As text, "9000000000" is greater than "10000000000".
        let range = SizeRange::new(9_000_000_000, 10_000_000_000).expect("range");
        assert_eq!(range.choose(1), Ok(9_000_000_000));
    }

    #[test]
    fn a_range_says_what_is_asked_for() {
        let said = |required, limit| SizeRange::new(required, limit).expect("range").to_string();
        assert_eq!(said(0, 0), "any number of bytes");
        assert_eq!(said(5, 0), "at least 5 bytes");
        assert_eq!(said(0, 7), "at most 7 bytes");
        assert_eq!(said(5, 5), "5 bytes");
        assert_eq!(said(5, 7), "5 to 7 bytes");
    }

    #[test]
    fn a_limit_alone_is_the_size() {
        let range = SizeRange::new(0, 5_000).expect("range");
        assert_eq!(range.choose(1), Ok(5_000));
        assert_eq!(range.choose(4_096), Ok(4_096));
        assert!(
            SizeRange::new(0, 100)
                .expect("range")
                .choose(4_096)
                .is_err()
        );
    }

    #[test]
    fn crossed_and_negative_ranges_are_refused() {
        assert!(matches!(
            SizeRange::new(2, 1),
            Err(SizeError::Crossed { .. })
        ));
        assert!(matches!(
            SizeRange::new(-1, 0),
            Err(SizeError::Negative { .. })
        ));
        assert!(matches!(
            SizeRange::new(0, -1),
            Err(SizeError::Negative { .. })
        ));
    }

    #[test]
    fn rounding_up_never_passes_the_limit() {
        let range = SizeRange::new(4_097, 5_000).expect("range");
        assert!(matches!(
            range.choose(4_096),
            Err(SizeError::Unmeetable { .. })
        ));
        assert_eq!(SizeRange::ANY.choose(1), Ok(DEFAULT_SIZE));
    }
}
