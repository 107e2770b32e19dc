//! The dashboard of `deploy/monitoring`: its queries as Grafana would ask them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::prometheus::{Range, SCRAPE_SECONDS, Series};

pub mod picture;

/// The folder of dashboard and alerts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}

/// The dashboard.
#[derive(Debug, Deserialize)]
pub struct Dashboard {
    /// Its panels, in order; rows are among them.
    pub panels: Vec<Panel>,
    templating: Templating,
}

#[derive(Debug, Deserialize)]
struct Templating {
    list: Vec<Variable>,
}

/// A variable that the reader chooses.
#[derive(Debug, Deserialize)]
pub struct Variable {
    /// Its name, without the dollar.
    pub name: String,
    /// The place where its values come from: `label_values(metric, label)`.
    definition: Option<String>,
}

/// A panel.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Panel {
    /// `row`, `stat` or `timeseries`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The title above it.
    pub title: String,
    grid_pos: Place,
    #[serde(default)]
    field_config: FieldConfig,
    /// Its queries.
    #[serde(default)]
    pub targets: Vec<Target>,
}

/// The place where it is, in columns of 24 and in rows.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Place {
    x: u16,
    y: u16,
    w: u16,
    h: u16,
}

#[derive(Debug, Default, Deserialize)]
struct FieldConfig {
    defaults: Defaults,
}

#[derive(Debug, Default, Deserialize)]
struct Defaults {
    #[serde(default)]
    unit: String,
}

/// A query of a panel.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    expr: String,
    legend_format: String,
}

/// The choice of the reader; without a choice all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice<'a> {
    /// `$job`.
    pub job: Option<&'a str>,
    /// `$connection`.
    pub connection: Option<&'a str>,
}

// === impl Dashboard ===

impl Dashboard {
    /// The one of this tree.
    pub fn read() -> Self {
        let text = fs::read_to_string(folder().join("dashboard.json")).expect("the dashboard");
        serde_json::from_str(&text).expect("a dashboard")
    }

    /// The variables with a query: name, metric and label.
    pub fn variables(&self) -> Vec<(&str, &str, &str)> {
        let all = self.templating.list.iter();
        all.filter_map(|variable| {
            let definition = variable.definition.as_deref()?;
            let inner = definition
                .strip_prefix("label_values(")?
                .strip_suffix(')')?;
            let (metric, label) = inner.split_once(", ")?;
            Some((variable.name.as_str(), metric, label))
        })
        .collect()
    }
}

// === impl Target ===

impl Target {
    /// The query that Grafana sends: of a variable that has the value "All" it sends `allValue`, and for
    /// the interval of rates what its data source computes.
    ///
    /// # Panics
    /// If a variable is left.
    pub fn query(&self, choice: Choice<'_>, range: Range) -> String {
        let scrape = f64::from(SCRAPE_SECONDS);
        let interval = (range.step + scrape).max(4.0 * scrape);
        let query = self
            .expr
            .replace("$__rate_interval", &format!("{interval:.0}s"))
            .replace("$job", choice.job.unwrap_or(".*"))
            .replace("$connection", choice.connection.unwrap_or(".*"));
        assert!(!query.contains('$'), "a variable is left in {query}");
        query
    }

    /// The name of a series in the legend.
    pub fn legend(&self, series: &Series) -> String {
        let mut name = self.legend_format.clone();
        for (label, value) in &series.labels {
            name = name.replace(&format!("{{{{{label}}}}}"), value);
        }
        // Prometheus has no label whose value is empty.
        while let Some((before, after)) = name.split_once("{{") {
            let after = after.split_once("}}").map_or("", |(_, after)| after);
            name = format!("{before}{after}");
        }
        name.trim().to_owned()
    }
}

/// The series that an expression reads: each metric with the labels that it asks for.
///
/// A query that ends in `or vector(0)` has an answer whatever its metrics are called.
pub fn selectors(expression: &str) -> Vec<String> {
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(|byte: char| byte.is_ascii_alphabetic() || byte == '"') {
        rest = &rest[at..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = &quoted[quoted.find('"').map_or(quoted.len(), |end| end + 1)..];
            continue;
        }
        let end = rest.find(|byte| !is_name(byte)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let labels = match after.find('}') {
            Some(end) if after.starts_with('{') => &after[..=end],
            _ => "",
        };
        if name.starts_with("omnibus_csi_") || name.starts_with("process_") {
            found.push(format!("{name}{labels}"));
        }
        rest = &after[labels.len()..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_an_expression_are_found_with_their_labels() {
        let expression = "sum by (rpc) (rate(omnibus_csi_rpc_total{code=~\"A|B\"}[5m])) \
                          and on (instance) omnibus_csi_build_info > process_open_fds{job=\"x\"} or vector(0)";
        assert_eq!(
            selectors(expression),
            [
                "omnibus_csi_rpc_total{code=~\"A|B\"}",
                "omnibus_csi_build_info",
                "process_open_fds{job=\"x\"}"
            ]
        );
    }
}
