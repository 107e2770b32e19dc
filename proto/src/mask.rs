//! The text that `Debug` of a message prints in place of a field that may hold secrets. Which fields get which
//! mask is decided by the generator, from the markers in `csi.proto`. These types borrow or count;
//! they never hold a copy of a value.

use std::collections::BTreeMap;
use std::fmt;

/// For secrets: how many there are. Their keys may say too much already.
pub(crate) struct Count(pub(crate) usize);

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} redacted>", self.0)
    }
}

/// For contexts, whose keys are the driver's own words: the keys alone.
pub(crate) struct Keys<'a>(pub(crate) &'a BTreeMap<String, String>);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masked = format_args!("<redacted>");
        f.debug_map()
            .entries(self.0.keys().map(|key| (key, masked)))
            .finish()
    }
}
