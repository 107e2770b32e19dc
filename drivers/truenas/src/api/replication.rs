//! Copies of datasets on the NAS: `replication.run_onetime`, a job. From 22.02 on.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Fields, Filter, JobRequest, Request, query};
use crate::{Dialect, Error, Generation};

/// Copies one snapshot into a dataset of its own. The snapshot is there as well, afterwards.
#[derive(Debug, Clone)]
pub struct CopySnapshot {
    /// The dataset of the snapshot.
    pub source: String,
    /// The name of the snapshot, after the `@`.
    pub snapshot: String,
    /// The new dataset. It must not exist, or share a snapshot with the source.
    pub target: String,
    /// Whether the properties of the source are taken over.
    pub properties: bool,
    /// Whether the copy begins anew and fails if the target exists.
    pub only_from_scratch: bool,
}

/// Finds the copies that run or wait, of this user.
#[derive(Debug, Clone, Copy)]
pub struct RunningCopies;

/// A copy that runs or waits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunningCopy {
    /// The arguments of its request.
    #[serde(default)]
    arguments: Vec<Value>,
}

impl RunningCopy {
    /// The dataset that it makes.
    pub fn target(&self) -> Option<String> {
        let target = self.arguments.first()?["target_dataset"].as_str();
        target.map(str::to_owned)
    }
}

impl Request for RunningCopies {
    type Answer = Vec<RunningCopy>;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        let filters = [
            Filter::eq("method", "replication.run_onetime"),
            Filter::any_of("state", ["WAITING", "RUNNING"]),
        ];
        Ok(query("core.get_jobs", &filters, json!({})))
    }
}

impl JobRequest for CopySnapshot {
    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V22_02, "replication on demand")?;
        Fields::new(dialect)
            .put("direction", "PUSH")
            .put("transport", "LOCAL")
            .put("source_datasets", json!([self.source]))
            .put("target_dataset", self.target.as_str())
            .put("recursive", false)
            .put("name_regex", format!("^{}$", escaped(&self.snapshot)))
            .put("retention_policy", "NONE")
            // The default makes the copy read-only.
            .put("readonly", "IGNORE")
            .put("properties", self.properties)
            .put("only_from_scratch", self.only_from_scratch)
            .put("allow_from_scratch", Value::Bool(true))
            .call("replication.run_onetime")
    }
}

/// A snapshot's name as a regular expression.
fn escaped(name: &str) -> String {
    let special = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    name.chars().fold(String::new(), |mut text, c| {
        if special(c) {
            text.push('\\');
        }
        text.push(c);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_snapshot_matches_nothing_but_itself() {
        assert_eq!(escaped("snap_1"), "snap_1");
        assert_eq!(escaped("a.b-c:d|e"), "a\\.b\\-c\\:d\\|e");
    }
}
