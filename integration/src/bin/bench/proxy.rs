//! The proxy: its cost compared to a single driver, and the cost of its connections to each other.
//!
//! Everything is a ratio to the same calls without it, taken in turn in the same run, or a count that
//! does not depend on the machine.

mod change;
mod cost;
mod fleet;
mod isolation;
mod storm;

use anyhow::Result;

use crate::report::Report;

/// Measures all of it.
pub(crate) async fn all(quick: bool, report: &mut Report) -> Result<()> {
    cost::measure(quick, report).await?;
    isolation::measure(quick, report).await?;
    storm::measure(quick, report).await
}
