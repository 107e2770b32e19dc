//! Exports of nfsd.

use std::fs;
use std::path::Path;

use crate::command::run;
use crate::{Answer, Failed};

/// Makes nfsd export the lines, and nothing else that the appliance of this name had it export.
pub async fn apply(appliance: &str, wanted: &str) -> Answer<()> {
    let name = format!("/etc/exports.d/{appliance}.exports");
    let file = Path::new(&name);
    if fs::read_to_string(file).unwrap_or_default() == wanted {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(file);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, wanted));
    written.map_err(|error| Failed(format!("{name}: {error}")))?;
    let applied = run(&["exportfs", "-ra"]).await.map(drop);
    if applied.is_err() {
        // The next call applies it.
        let _ = fs::write(file, "# not applied\n");
    }
    applied
}
