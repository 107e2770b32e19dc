//! Objects that are missing on a storage which may not be the one that is meant.

use std::future::Future;

use crate::{Error, Kind};

/// An outcome; "not found" only where `is_meant` finds that the storage is the one that is meant.
pub async fn confirmed<T>(
    outcome: Result<T, Error>,
    is_meant: impl Future<Output = Result<(), Error>>,
) -> Result<T, Error> {
    match outcome {
        Err(error) if error.kind() == Kind::NotFound => {
            is_meant.await?;
            Err(error)
        }
        outcome => outcome,
    }
}
