//! What is read, on captured trees, and what is done, with a fake target.

mod attaching;
mod captured;

use super::facts_of;
