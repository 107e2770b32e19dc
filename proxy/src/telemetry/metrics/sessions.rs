//! Sessions of this node with storage hosts, as the kernel lists them. Those of other programs are
//! counted, too.

use std::fmt;
use std::fs;
use std::path::Path;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// Counts the sessions whenever the page is read.
#[derive(Debug)]
pub(super) struct Sessions;

impl Collector for Sessions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = [
            (
                "omnibus_csi_iscsi_sessions",
                "iSCSI sessions of this node",
                iscsi(Path::new("/sys/class/iscsi_session")),
            ),
            (
                "omnibus_csi_nvme_controllers",
                "NVMe over Fabrics controllers that this node is connected to",
                nvme(Path::new("/sys/class/nvme")),
            ),
        ];
        for (name, help, figure) in figures {
            // Without the kernel module there is no such folder, and no figure.
            if let Some(figure) = figure {
                let gauge = ConstGauge::new(figure);
                let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
                gauge.encode(metric)?;
            }
        }
        Ok(())
    }
}

fn iscsi(class: &Path) -> Option<u64> {
    u64::try_from(fs::read_dir(class).ok()?.count()).ok()
}

/// Controllers of local disks are in the same folder.
fn nvme(class: &Path) -> Option<u64> {
    let is_remote = |controller: &fs::DirEntry| {
        fs::read_to_string(controller.path().join("transport"))
            .is_ok_and(|transport| matches!(transport.trim(), "tcp" | "rdma" | "fc"))
    };
    let controllers = fs::read_dir(class).ok()?.flatten();
    u64::try_from(controllers.filter(is_remote).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_counted_and_local_disks_are_not() {
        let class = tempfile::tempdir().unwrap();
        for (name, transport) in [("nvme0", "pcie"), ("nvme1", "tcp"), ("nvme2", "rdma")] {
            fs::create_dir(class.path().join(name)).unwrap();
            fs::write(
                class.path().join(name).join("transport"),
                format!("{transport}\n"),
            )
            .unwrap();
        }
        assert_eq!(nvme(class.path()), Some(2));
        assert_eq!(iscsi(class.path()), Some(3));
        assert_eq!(iscsi(&class.path().join("missing")), None);
    }
}
