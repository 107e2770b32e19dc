//! What each method does. The arguments have been checked and filled when one of these is called.

mod accounts;
mod acl;
mod core;
mod dataset;
mod dataset_change;
mod entry;
mod files;
mod iscsi;
mod iscsi_extent;
mod nfs;
mod nvmet;
mod replication;
mod resource;
mod rowset;
mod smb;
mod snapshot;
mod snapshottask;
mod system;
mod users;

pub(crate) use smb::default_options as default_smb_options;
pub(crate) use users::keys_have_lists;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::Generation;
use crate::backend::{Dataset, Problem, Scope};
use crate::failure::{EBUSY, EEXIST, EFAULT, ENOENT, ENOSPC, ENOTEMPTY, Failure};
use crate::jobs::Running;
use crate::nas::Nas;
use crate::session::Session;
use crate::table::Method;

/// One call, on its way.
pub(crate) struct Call {
    pub(crate) nas: Arc<Nas>,
    pub(crate) session: Arc<Session>,
    pub(crate) generation: Generation,
    pub(crate) method: &'static Method,
    pub(crate) params: Vec<Value>,
    /// The job that it runs as.
    pub(crate) job: Option<Running>,
}

type Answer = Result<Value, Failure>;

impl Call {
    fn text(&self, index: usize) -> &str {
        self.params
            .get(index)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn number(&self, index: usize) -> i64 {
        self.params
            .get(index)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    }

    fn flag(&self, index: usize) -> bool {
        self.params
            .get(index)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    }

    fn object(&self, index: usize) -> &Map<String, Value> {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        self.params
            .get(index)
            .and_then(Value::as_object)
            .unwrap_or(&EMPTY)
    }

    /// The rows that a query asks for.
    fn query(&self, rows: Vec<Value>) -> Answer {
        if self.generation.is_core() {
            crate::query::check_old(&rows, &self.params)?;
        }
        crate::query::apply(rows, &self.params)
    }

    /// Waits as long as the reading of these snapshots takes.
    async fn pay_for_snapshots(&self, scope: &Scope) -> Result<(), Failure> {
        let each = self.nas.faults.settings().per_snapshot_us;
        if each > 0 {
            let read = self.nas.backend.snapshots(scope).await.map_err(plain)?;
            let time = std::time::Duration::from_micros(each * read.len() as u64);
            tokio::time::sleep(time).await;
        }
        Ok(())
    }

    async fn find_dataset(&self, name: &str) -> Result<Option<Dataset>, Failure> {
        let scope = Scope::Exact(vec![name.to_owned()]);
        Ok(self
            .nas
            .backend
            .datasets(&scope)
            .await
            .map_err(plain)?
            .into_iter()
            .next())
    }

    async fn apply_exports(&self) -> Result<(), Failure> {
        let _alone = self.nas.exporting.lock().await;
        let rows = self.nas.rows().clone();
        self.nas.backend.apply_exports(&rows).await.map_err(plain)
    }
}

/// A failure of ZFS as a `CallError` without a sentence of the method's own.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn plain(problem: Problem) -> Failure {
    let errno = match &problem {
        Problem::Missing(_) => ENOENT,
        Problem::Exists(_) => EEXIST,
        Problem::Busy(_) | Problem::Held(_) => EBUSY,
        Problem::HasChildren(_) | Problem::HasSnapshots(_) => ENOTEMPTY,
        Problem::NoSpace(_) => ENOSPC,
        _ => EFAULT,
    };
    Failure::call(errno, problem.to_string())
}

/// Runs a method. Boxed, because `core.bulk` runs others.
pub(crate) fn run(call: Call) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
    Box::pin(async move {
        let name = call.method.name.as_str();
        let (service, verb) = name.rsplit_once('.').unwrap_or((name, ""));
        match service {
            "api_key" | "auth" => accounts::run(&call, service, verb).await,
            "group" | "privilege" | "user" => users::run(&call, service, verb),
            "core" => core::run(&call, verb).await,
            "filesystem" => files::run(&call, verb).await,
            "iscsi.extent" => iscsi_extent::run(&call, verb).await,
            "iscsi.auth" | "iscsi.global" | "iscsi.initiator" | "iscsi.portal" | "iscsi.target"
            | "iscsi.targetextent" => iscsi::run(&call, service, verb).await,
            "nvmet.global" | "nvmet.host" | "nvmet.host_subsys" | "nvmet.namespace"
            | "nvmet.port" | "nvmet.port_subsys" | "nvmet.subsys" => {
                nvmet::run(&call, service, verb).await
            }
            "pool" | "pool.dataset" => dataset::run(&call, service, verb).await,
            "pool.snapshot" | "zfs.snapshot" => snapshot::run(&call, verb).await,
            "pool.snapshottask" => snapshottask::run(&call, verb).await,
            "replication" => replication::run(&call).await,
            "sharing.nfs" => nfs::run(&call, verb).await,
            "sharing.smb" => smb::run(&call, verb).await,
            "nfs" | "smb" | "service" | "system" => system::run(&call, service, verb).await,
            "zfs.resource" | "zfs.resource.snapshot" => resource::run(&call, name).await,
            _ => Err(unknown(&call)),
        }
    })
}

/// A method that stands in a table and has no code: a mistake of the simulator.
fn unknown(call: &Call) -> Failure {
    Failure::Exception {
        class: "NotImplementedError".to_owned(),
        text: format!("truenas-sim does not simulate {}", call.method.name),
    }
}
