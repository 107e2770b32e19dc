//! The nodes that are connected to the export of a volume: a deletion waits until there is none.
//!
//! TrueNAS says it of targets whose names begin with its base name, and of subsystems. Of shares it says less: see
//! [`users`](super::users).

use driver_core::{Call, Error};

use crate::api::Filter;
use crate::api::iscsi::QuerySessions;
use crate::api::nvmet::{NvmeSession, QueryNvmeSessions};
use crate::backend::Nas;
use crate::command::Connected;
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::unknown;

/// The nodes, as the algorithm needs to know them.
pub(super) fn connected(object: &str, seen: Option<&Connected>) -> Result<Vec<String>, Error> {
    match seen {
        Some(Ok(nodes)) => Ok(nodes.clone()),
        Some(Err(error)) if error.kind() != ApiKind::Unsupported => {
            let doing = format!("see who is connected to `{object}`");
            Err(unknown(doing, error))
        }
        Some(Err(_)) | None => Ok(Vec::new()),
    }
}

pub(super) fn named(name: &str, address: &str) -> String {
    match (name, address) {
        (name, "") => name.to_owned(),
        ("", address) => address.to_owned(),
        (name, address) => format!("{name} at {address}"),
    }
}

impl Nas {
    /// The initiators that are connected to the target of this name, with or without the base name.
    pub(super) async fn initiators_at(&self, call: &Call, target: &str) -> Connected {
        let query = QuerySessions(vec![Filter::ends_with("target", target)]);
        let sessions = self.read(call, &query).await?;
        let of_it = sessions.iter().filter(|session| {
            let base = session.target.strip_suffix(target);
            base.is_some_and(|base| base.is_empty() || base.ends_with(':'))
        });
        let names = of_it.map(|session| named(&session.initiator, &session.initiator_addr));
        Ok(names.collect())
    }

    /// The hosts that are connected to a subsystem.
    pub(super) async fn hosts_at(&self, call: &Call, subsystem: i64) -> Connected {
        let sessions = self.nvme_sessions(call, subsystem).await?;
        let names = sessions.iter();
        let names = names.map(|session| named(&session.hostnqn, &session.host_traddr));
        Ok(names.collect())
    }

    /// The connections to a subsystem.
    pub(super) async fn nvme_sessions(
        &self,
        call: &Call,
        subsystem: i64,
    ) -> Result<Vec<NvmeSession>, ApiError> {
        let query = QueryNvmeSessions(vec![Filter::eq("subsys_id", subsystem)]);
        self.read(call, &query).await
    }
}
