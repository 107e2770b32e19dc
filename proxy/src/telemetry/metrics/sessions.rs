//! Sessions of this node with storage hosts, as the kernel lists them. Those of other programs are
//! counted, too.

use std::fmt;
use std::fs;
use std::path::Path;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Counts the sessions by state whenever the page is read.
#[derive(Debug)]
pub(super) struct Sessions;

/// The numbers of sessions in each state.
#[derive(Debug, Default, PartialEq, Eq)]
struct Numbers {
    up: u64,
    reconnecting: u64,
    down: u64,
}

/// The state of a session.
#[derive(Debug, Clone, Copy)]
enum State {
    /// It works.
    Up,
    /// The kernel tries to get it back, and what is written waits.
    Reconnecting,
    /// It was given up, ends, or was never whole: what is written fails.
    Down,
}

impl Collector for Sessions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = [
            (
                "omnibus_csi_iscsi_sessions",
                "iSCSI sessions of this node, by state",
                iscsi(Path::new("/sys/class/iscsi_session")),
            ),
            (
                "omnibus_csi_nvme_controllers",
                "NVMe over Fabrics controllers that this node is connected to, by state",
                nvme(Path::new("/sys/class/nvme")),
            ),
        ];
        for (name, help, numbers) in figures {
            // Without the kernel module there is no such folder, and no figure.
            let Some(numbers) = numbers else { continue };
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (state, number) in numbers.by_state() {
                let of = [("state", state)];
                ConstGauge::new(number).encode(metric.encode_family(&of)?)?;
            }
        }
        Ok(())
    }
}

// === impl Numbers ===

impl Numbers {
    fn by_state(&self) -> [(&'static str, u64); 3] {
        [
            ("up", self.up),
            ("reconnecting", self.reconnecting),
            ("down", self.down),
        ]
    }

    fn of(states: impl IntoIterator<Item = State>) -> Self {
        let mut numbers = Self::default();
        for state in states {
            match state {
                State::Up => numbers.up += 1,
                State::Reconnecting => numbers.reconnecting += 1,
                State::Down => numbers.down += 1,
            }
        }
        numbers
    }
}

fn iscsi(class: &Path) -> Option<Numbers> {
    let sessions = fs::read_dir(class).ok()?.flatten();
    // `FREE` once the time for its recovery is over.
    let state = |session: fs::DirEntry| match attribute(&session, "state").as_str() {
        "LOGGED_IN" => State::Up,
        "FAILED" => State::Reconnecting,
        _ => State::Down,
    };
    Some(Numbers::of(sessions.map(state)))
}

/// Controllers of local disks are in the same folder.
fn nvme(class: &Path) -> Option<Numbers> {
    let is_remote = |controller: &fs::DirEntry| {
        let transport = attribute(controller, "transport");
        matches!(transport.as_str(), "tcp" | "rdma" | "fc")
    };
    let state = |controller: fs::DirEntry| match attribute(&controller, "state").as_str() {
        "live" => State::Up,
        "new" | "connecting" | "resetting" => State::Reconnecting,
        _ => State::Down,
    };
    let controllers = fs::read_dir(class).ok()?.flatten();
    Some(Numbers::of(controllers.filter(is_remote).map(state)))
}

/// What the kernel says of one; empty if it has gone.
fn attribute(of: &fs::DirEntry, name: &str) -> String {
    let text = fs::read_to_string(of.path().join(name));
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(entries: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let class = tempfile::tempdir().unwrap();
        for (name, attributes) in entries {
            let folder = class.path().join(name);
            fs::create_dir(&folder).unwrap();
            for (attribute, text) in *attributes {
                fs::write(folder.join(attribute), format!("{text}\n")).unwrap();
            }
        }
        class
    }

    #[test]
    fn controllers_are_counted_by_state_and_local_disks_are_not() {
        let class = class(&[
            ("nvme0", &[("transport", "pcie"), ("state", "live")]),
            ("nvme1", &[("transport", "tcp"), ("state", "live")]),
            ("nvme2", &[("transport", "rdma"), ("state", "connecting")]),
            ("nvme3", &[("transport", "tcp"), ("state", "resetting")]),
            (
                "nvme4",
                &[("transport", "tcp"), ("state", "deleting (no IO)")],
            ),
        ]);
        let wanted = Numbers {
            up: 1,
            reconnecting: 2,
            down: 1,
        };
        assert_eq!(nvme(class.path()), Some(wanted));
        assert_eq!(nvme(&class.path().join("missing")), None);
    }

    #[test]
    fn sessions_are_counted_by_state() {
        let class = class(&[
            ("session1", &[("state", "LOGGED_IN")]),
            ("session2", &[("state", "FAILED")]),
            ("session3", &[("state", "FREE")]),
            ("session4", &[]),
        ]);
        let wanted = Numbers {
            up: 1,
            reconnecting: 1,
            down: 2,
        };
        assert_eq!(iscsi(class.path()), Some(wanted));
        assert_eq!(iscsi(&class.path().join("missing")), None);
    }
}
