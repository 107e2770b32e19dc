//! What is read, on captured trees, and what is done, with a fake target.

mod attaching;
mod captured;
mod keys;

use super::facts_of;
