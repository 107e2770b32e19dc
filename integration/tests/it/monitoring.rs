//! The dashboard and the alerts of `deploy/monitoring`, over a real Prometheus that scrapes the program.
//!
//! One process is a proxy: two connections that work, one whose storage refuses, two whose storage never
//! answers, one whose file cannot be used, and a folder that is not there. It is started several times. The
//! other has one driver. `OMNIBUS_DASHBOARD=dashboard.svg` draws what they did for `OMNIBUS_DASHBOARD_SECONDS`.

mod site;

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use integration::dashboard::{self, Choice, Dashboard, Panel, Target, picture, selectors};
use integration::prometheus::{Prometheus, Range, Series, seconds_now};
use integration::{requirement, wait};
use site::Site;

/// Panels that show nothing of a job or of a connection, and why; without a name whatever is chosen.
const EMPTY: [(&str, &str, &str); 7] = [
    ("", "Orphans", "a directory has none that could be listed"),
    ("", "Lost exports", "a directory has none"),
    ("", "Repairs", "no volume here has sessions"),
    ("plain", "Failures", "no call of it fails for its storage"),
    ("plain", "Failed programs", "it runs no program"),
    ("near", "Failures", "its storage works"),
    (
        "near",
        "Changes of volumes",
        "classes set nothing there, so that no connection is asked",
    ),
];

/// Metrics that a process has only with a module of the kernel, and the folder that the module makes.
const OF_MODULES: [(&str, &str); 2] = [
    ("omnibus_csi_iscsi_sessions", "/sys/class/iscsi_session"),
    ("omnibus_csi_nvme_controllers", "/sys/class/nvme"),
];

/// What panels with one figure show of a job.
const FIGURES: [(&str, &str, f64); 6] = [
    ("proxy", "Connections", 5.0),
    ("proxy", "Unhealthy storages", 3.0),
    ("proxy", "Invalid files", 1.0),
    ("proxy", "Versions", 1.0),
    ("plain", "Connections", 1.0),
    ("plain", "Unhealthy storages", 0.0),
];

/// Alerts that nothing here is wrong enough for, or that ask for hours; promtool raises them (`scripts/monitoring-test`).
const QUIET: [&str; 7] = [
    "OmnibusCsiAbsent",
    "OmnibusCsiConnectionsAbsent",
    "OmnibusCsiExportsNotRestored",
    "OmnibusCsiNodeVolumesUnhealthy",
    "OmnibusCsiOrphans",
    "OmnibusCsiSpaceLow",
    "OmnibusCsiVolumesUnhealthy",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs Prometheus and waits for its samples: a part of `make test-real`"]
async fn each_query_of_the_dashboard_and_each_alert_finds_data_in_a_real_prometheus() {
    const WHAT: &str = "dashboard and alerts over Prometheus";
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_PROMETHEUS") else {
        return;
    };
    let site = Site::new();
    let rules = dashboard::folder().join("alerts.yaml");
    let prometheus = Prometheus::start(&program, &site.jobs(), &rules).await;
    let start = seconds_now();
    let mut running = site.start(&prometheus).await;
    let length = env::var("OMNIBUS_DASHBOARD_SECONDS").ok();
    let length = length.map_or(5, |seconds| seconds.parse().expect("seconds"));
    running.load(Duration::from_secs(length)).await;

    let dashboard = Dashboard::read();
    let step = ((seconds_now() - start) / 300.0).ceil();
    let range = || Range::since(start, step);
    for (panel, target) in queries(&dashboard) {
        for chosen in ["", "proxy", "plain", "near"] {
            let query = || target.query(choice(chosen), range());
            if let Some(why) = is_empty(panel, &query(), chosen) {
                let shown = prometheus.over(&query(), range()).await;
                assert!(
                    !has_data(&shown),
                    "{}, though {why}: {shown:?}",
                    panel.title
                );
                continue;
            }
            let what = format!("data of {chosen:?} in {}: {}", panel.title, query());
            // A storage is asked for its health a moment after the first call to it.
            wait::until_answered(&what, async || {
                let shown = prometheus.over(&query(), range()).await;
                has_data(&shown).then_some(())
            })
            .await;
        }
        // A query that ends in `or vector(0)` finds something whatever its metrics are called.
        for selector in selectors(&target.query(choice("proxy"), range())) {
            let found = prometheus.now(&selector).await;
            let is_there = !found.is_empty() || is_empty(panel, &selector, "proxy").is_some();
            assert!(is_there, "{}: no {selector}", panel.title);
        }
    }
    figures_are_right(&prometheus, &dashboard, start).await;
    variables_have_values(&prometheus, &dashboard).await;
    if let Some(file) = env::var_os("OMNIBUS_DASHBOARD") {
        let drawn = drawn(&prometheus, &dashboard, range()).await;
        fs::write(file, drawn).expect("the picture can be written");
    }
    alerts_find_data(&prometheus).await;
    running.end().await;
}

/// Why a query of a panel finds nothing.
fn is_empty(panel: &Panel, query: &str, chosen: &str) -> Option<&'static str> {
    let lacks = |it: &(&str, &str)| query.contains(it.0) && !Path::new(it.1).exists();
    if OF_MODULES.iter().any(lacks) {
        return Some("this kernel has no such module");
    }
    let is_it =
        |it: &&(&str, &str, &str)| it.1 == panel.title && (it.0.is_empty() || it.0 == chosen);
    EMPTY.iter().find(is_it).map(|(.., why)| *why)
}

async fn figures_are_right(prometheus: &Prometheus, dashboard: &Dashboard, start: f64) {
    for (job, title, expected) in FIGURES {
        let target = queries(dashboard).find(|(panel, _)| panel.title == title);
        let (_, target) = target.unwrap_or_else(|| panic!("there is no panel {title}"));
        wait::until_answered(&format!("{title} of {job} to be {expected}"), async || {
            let step = ((seconds_now() - start) / 300.0).ceil();
            let range = Range::since(start, step);
            let query = target.query(choice(job), range);
            let shown = prometheus.over(&query, range).await;
            let last = shown.first().and_then(Series::last);
            (last == Some(expected)).then_some(())
        })
        .await;
    }
}

async fn variables_have_values(prometheus: &Prometheus, dashboard: &Dashboard) {
    for (name, metric, label) in dashboard.variables() {
        let wanted: &[&str] = match name {
            "job" => &["plain", "proxy"],
            "connection" => &["far", "mute", "nas", "near", "slow"],
            _ => panic!("a variable that this test does not know: {name}"),
        };
        // A call to a storage that never answers counts once it has ended.
        wait::until_answered(&format!("{name} to have {wanted:?}"), async || {
            (prometheus.values_of(label, metric).await == wanted).then_some(())
        })
        .await;
    }
}

/// Each is in trouble here, as the site is made for it, but for some.
async fn alerts_find_data(prometheus: &Prometheus) {
    let rules = prometheus.rules().await;
    let file = fs::read_to_string(dashboard::folder().join("alerts.yaml")).expect("the alerts");
    assert_eq!(rules.len(), file.matches("- alert: ").count());
    for rule in rules {
        let quiet = QUIET.contains(&rule.name.as_str());
        wait::until_answered(&format!("{}: {}", rule.name, rule.query), async || {
            (quiet || !prometheus.now(&rule.query).await.is_empty()).then_some(())
        })
        .await;
        wait::until_answered(&format!("{} to be evaluated", rule.name), async || {
            let rules = prometheus.rules().await;
            let it = rules.iter().find(|it| it.name == rule.name)?;
            (it.health == "ok" && (quiet || it.state != "inactive")).then_some(())
        })
        .await;
    }
}

/// A job or a connection, by its name; without a name all.
fn choice(name: &str) -> Choice<'_> {
    let (job, connection) = match name {
        "" => (None, None),
        "proxy" | "plain" => (Some(name), None),
        _ => (None, Some(name)),
    };
    Choice { job, connection }
}

fn queries(dashboard: &Dashboard) -> impl Iterator<Item = (&Panel, &Target)> {
    let panels = dashboard.panels.iter();
    panels.flat_map(|panel| panel.targets.iter().map(move |target| (panel, target)))
}

/// The picture of all jobs.
async fn drawn(prometheus: &Prometheus, dashboard: &Dashboard, range: Range) -> String {
    let mut panels = Vec::new();
    for panel in &dashboard.panels {
        let mut shown = Vec::new();
        for target in &panel.targets {
            let query = target.query(Choice::default(), range);
            let series = prometheus.over(&query, range).await;
            shown.extend(series.into_iter().map(|it| (target.legend(&it), it)));
        }
        panels.push((panel, shown));
    }
    let caption = "Drawn by a test of this project from deploy/monitoring/dashboard.json and the answers of a \
                   real Prometheus; Grafana, which draws differently, was not run.";
    picture::draw(&panels, range, caption)
}

/// Of a quantile a series without a call in the interval has no numbers.
fn has_data(shown: &[Series]) -> bool {
    shown.iter().any(|series| series.last().is_some())
}
