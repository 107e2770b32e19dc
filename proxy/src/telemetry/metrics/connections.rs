//! Figures about the connections of a folder. Their labels are names of files, never of a request.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Metrics, Outcome};

/// The counts about connections.
#[derive(Debug, Default)]
pub(super) struct OfConnections {
    served: Gauge,
    kinds: Family<Kind, Gauge>,
    valid: Family<Of, Gauge>,
    healthy: Family<Of, Gauge>,
    loads: Family<Load, Counter>,
    folders_unread: Gauge,
    available: Family<Of, Gauge>,
    volumes: Family<Of, Gauge>,
    orphans: Family<Of, Gauge>,
    unhealthy: Family<Of, Gauge>,
    lost_exports: Family<LostExport, Counter>,
    gone: Mutex<BTreeSet<Arc<str>>>,
}

/// The number of names of removed connections that are remembered.
const MAX_GONE: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    connection: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    connection: Arc<str>,
    driver: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Load {
    connection: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostExport {
    connection: Arc<str>,
    outcome: &'static str,
}

/// What is measured on the storage of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Usage {
    Available,
    Volumes,
    Orphans,
    /// Volumes with which something is wrong.
    Unhealthy,
}

// === impl OfConnections ===

impl OfConnections {
    /// The gauges of a storage, which go with it.
    fn of_storage(&self) -> [&Family<Of, Gauge>; 5] {
        [
            &self.healthy,
            &self.available,
            &self.volumes,
            &self.orphans,
            &self.unhealthy,
        ]
    }

    pub(super) fn register(&self, to: &mut Registry) {
        to.register(
            "omnibus_csi_connections",
            "Connections that are served",
            self.served.clone(),
        );
        to.register(
            "omnibus_csi_connection_info",
            "Which driver a connection has",
            self.kinds.clone(),
        );
        to.register(
            "omnibus_csi_connection_config_valid",
            "Whether the file of a connection can be used as it is now",
            self.valid.clone(),
        );
        to.register(
            "omnibus_csi_connection_healthy",
            "Whether the storage of a connection could be used when it was last asked",
            self.healthy.clone(),
        );
        to.register(
            "omnibus_csi_connection_loads",
            "Files of connections that were read because they had changed",
            self.loads.clone(),
        );
        to.register(
            "omnibus_csi_connection_folders_unread",
            "Folders of connections that cannot be read now",
            self.folders_unread.clone(),
        );
        to.register(
            "omnibus_csi_connection_available_bytes",
            "Free space for new volumes on the storage of a connection, measured every five minutes",
            self.available.clone(),
        );
        to.register(
            "omnibus_csi_connection_volumes",
            "Volumes on the storage of a connection, counted every five minutes",
            self.volumes.clone(),
        );
        to.register(
            "omnibus_csi_connection_orphans",
            "Orphans on the storage of a connection that are older than a day, counted every hour",
            self.orphans.clone(),
        );
        to.register(
            "omnibus_csi_connection_unhealthy_volumes",
            "Volumes with which something is wrong, as the storage of a connection sees it, counted every five minutes",
            self.unhealthy.clone(),
        );
        to.register(
            "omnibus_csi_lost_exports",
            "Lost exports that the controller found without a call, and whether it could restore them",
            self.lost_exports.clone(),
        );
    }
}

impl OfConnections {
    /// The label of a call. One that ends after its connection is counted under none, so that the series
    /// of that one have an end.
    pub(super) fn label(&self, connection: &Arc<str>) -> Arc<str> {
        if self.gone().contains(connection) {
            return Arc::default();
        }
        connection.clone()
    }

    fn gone(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === labels ===

const DONE: &str = "done";
const REFUSED: &str = "refused";

impl Of {
    fn new(connection: &Arc<str>) -> Self {
        Self {
            connection: connection.clone(),
        }
    }
}

impl Kind {
    fn new(connection: &Arc<str>, driver: &Arc<str>) -> Self {
        Self {
            connection: connection.clone(),
            driver: driver.clone(),
        }
    }
}

impl Load {
    fn new(connection: &Arc<str>, outcome: &'static str) -> Self {
        Self {
            connection: connection.clone(),
            outcome,
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Sets the number of served connections.
    pub(crate) fn connections(&self, count: usize) {
        let served = &self.inner.connections.served;
        served.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The file of a connection was read, and is served; the driver that it had before, if any.
    pub(crate) fn connection_loaded(
        &self,
        connection: &Arc<str>,
        driver: &Arc<str>,
        before: Option<&Arc<str>>,
    ) {
        let all = &self.inner.connections;
        all.gone().remove(connection);
        if let Some(before) = before {
            all.kinds.remove(&Kind::new(connection, before));
        }
        all.kinds
            .get_or_create(&Kind::new(connection, driver))
            .set(1);
        all.valid.get_or_create(&Of::new(connection)).set(1);
        all.loads.get_or_create(&Load::new(connection, DONE)).inc();
    }

    /// The file of a connection was read, and cannot be used.
    pub(crate) fn connection_refused(&self, connection: &Arc<str>) {
        let all = &self.inner.connections;
        all.gone().remove(connection);
        all.valid.get_or_create(&Of::new(connection)).set(0);
        all.loads
            .get_or_create(&Load::new(connection, REFUSED))
            .inc();
    }

    /// The storage of a connection was asked how it is.
    pub(crate) fn connection_health(&self, connection: &Arc<str>, good: bool) {
        let healthy = &self.inner.connections.healthy;
        healthy
            .get_or_create(&Of::new(connection))
            .set(i64::from(good));
    }

    /// The storage of a connection is not probed any more.
    pub(crate) fn connection_unasked(&self, connection: &Arc<str>) {
        let all = &self.inner.connections;
        for family in all.of_storage() {
            family.remove(&Of::new(connection));
        }
    }

    /// Something was measured on the storage, or could not be.
    pub(crate) fn connection_usage(&self, connection: &Arc<str>, usage: Usage, value: Option<u64>) {
        let all = &self.inner.connections;
        let family = match usage {
            Usage::Available => &all.available,
            Usage::Volumes => &all.volumes,
            Usage::Orphans => &all.orphans,
            Usage::Unhealthy => &all.unhealthy,
        };
        let of = Of::new(connection);
        if let Some(history) = self.inner.history.as_ref()
            && !all.gone().contains(connection)
        {
            history.measured(connection, usage, value);
        }
        match value {
            // A connection that is gone has no series.
            Some(value) if !all.gone().contains(connection) => {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                family.get_or_create(&of).set(value);
            }
            _ => drop(family.remove(&of)),
        }
    }

    /// An export was lost; whether it could be restored.
    pub(crate) fn lost_export(&self, connection: &Arc<str>, outcome: Outcome) {
        let all = &self.inner.connections;
        let lost = LostExport {
            connection: all.label(connection),
            outcome: outcome.as_str(),
        };
        all.lost_exports.get_or_create(&lost).inc();
    }

    /// Sets the number of unreadable folders.
    pub(crate) fn folders_unread(&self, count: usize) {
        let unread = &self.inner.connections.folders_unread;
        unread.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The file of a connection is gone, and with it everything that is said about it here.
    pub(crate) fn connection_gone(&self, connection: &Arc<str>, driver: &Arc<str>) {
        let all = &self.inner.connections;
        let mut gone = all.gone();
        gone.insert(connection.clone());
        if gone.len() > MAX_GONE {
            gone.pop_first();
        }
        drop(gone);
        all.kinds.remove(&Kind::new(connection, driver));
        all.valid.remove(&Of::new(connection));
        for family in all.of_storage() {
            family.remove(&Of::new(connection));
        }
        for outcome in [DONE, REFUSED] {
            all.loads.remove(&Load::new(connection, outcome));
        }
        for outcome in Outcome::ALL {
            all.lost_exports.remove(&LostExport {
                connection: connection.clone(),
                outcome: outcome.as_str(),
            });
        }
        self.inner.forget_calls(connection);
        if let Some(history) = &self.inner.history {
            history.gone(connection);
        }
    }
}
