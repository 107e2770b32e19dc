//! The calls for shared folders, read from SynologyOpenSource/synology-csi, pkg/dsm/webapi/share.go.

use driver_core::Call;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, Request};
use crate::error::{Code, Failure};
use crate::lenient;

const SHARE: &str = "SYNO.Core.Share";
const PERMISSION: &str = "SYNO.Core.Share.Permission";
const SNAPSHOT: &str = "SYNO.Core.Share.Snapshot";
const PRIVILEGE: &str = "SYNO.Core.FileServ.NFS.SharePrivilege";
/// How many users are asked for where a NAS does not give all at once, and how often.
const PAGE: u64 = 500;
const MOST_PAGES: usize = 200;

/// A shared folder.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Share {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) vol_path: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) desc: String,
    #[serde(default, deserialize_with = "lenient::number")]
    quota_value: Option<u64>,
}

/// A snapshot of a shared folder, called by its time.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ShareSnapshot {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) time: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) desc: String,
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(super) lock: bool,
}

/// The clients that may mount a shared folder over NFS.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Rule {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) client: String,
}

/// The rights of a local user to a shared folder.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct User {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(super) is_writable: bool,
}

/// Lists as DSM wraps them.
#[derive(Default, Deserialize)]
struct Wrapped {
    #[serde(default, deserialize_with = "lenient::list")]
    shares: Option<Vec<Share>>,
    #[serde(default, deserialize_with = "lenient::list")]
    snapshots: Option<Vec<ShareSnapshot>>,
    #[serde(default, deserialize_with = "lenient::list")]
    rule: Option<Vec<Rule>>,
    #[serde(default, deserialize_with = "lenient::list")]
    items: Option<Vec<User>>,
    #[serde(default, deserialize_with = "lenient::number")]
    total: Option<u64>,
}

// === impl Share ===

impl Share {
    /// One that DSM has just made.
    pub(super) fn made(name: &str, path: &str, note: &str) -> Self {
        Self {
            name: name.to_owned(),
            vol_path: path.to_owned(),
            desc: note.to_owned(),
            quota_value: None,
        }
    }

    /// Its quota in mebibytes; 0 is none.
    pub(super) fn quota(&self) -> u64 {
        self.quota_value.unwrap_or(0)
    }

    /// The quota comes last.
    pub(super) fn is_whole(&self) -> bool {
        self.quota() > 0
    }
}

/// The fields that are asked of a shared folder.
fn fields() -> Value {
    json!([
        "encryption",
        "enable_share_cow",
        "recyclebin",
        "support_snapshot",
        "share_quota"
    ])
}

fn info(name: &str, path: &str, note: &str) -> Value {
    json!({
        "name": name,
        "vol_path": path,
        "desc": note,
        "enable_share_cow": false,
        "enable_recycle_bin": false,
        "recycle_bin_admin_only": false,
        "encryption": 0,
    })
}

// === impl Client ===

impl Client {
    pub(super) async fn shares(&self, call: &Call) -> Result<Vec<Share>, Failure> {
        let request = Request::new(SHARE, "list").with("additional", fields());
        let request = request.long();
        let answer: Wrapped = self.read(call, &request).await?;
        answer
            .shares
            .ok_or_else(|| self.lacks(&request, "shares", ""))
    }

    /// A shared folder by its name; `None` if it is not there.
    pub(super) async fn share(&self, call: &Call, name: &str) -> Result<Option<Share>, Failure> {
        let request = Request::new(SHARE, "get")
            .with("name", name)
            .with("additional", fields());
        let share: Share = match self.read(call, &request).await {
            Err(Failure::Refused(Code::NO_SHARE)) => return Ok(None),
            answer => answer?,
        };
        if !share.name.eq_ignore_ascii_case(name) {
            return Err(self.lacks(&request, "name", name));
        }
        Ok(Some(share))
    }

    /// Sets the description of a shared folder.
    pub(super) async fn describe_share(
        &self,
        call: &Call,
        share: &Share,
        note: &str,
    ) -> Result<(), Failure> {
        let info = json!({
            "name": share.name,
            "vol_path": share.vol_path,
            "desc": note,
        });
        let request = Request::new(SHARE, "set")
            .with("name", share.name.as_str())
            .with("shareinfo", info);
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn create_share(
        &self,
        call: &Call,
        name: &str,
        path: &str,
        note: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(SHARE, "create")
            .with("name", name)
            .with("shareinfo", info(name, path, note));
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn clone_share(
        &self,
        call: &Call,
        source: &Share,
        snapshot: Option<&str>,
        name: &str,
        note: &str,
    ) -> Result<(), Failure> {
        let mut info = info(name, &source.vol_path, note);
        info["name_org"] = Value::from(source.name.as_str());
        let mut request = Request::new(SHARE, "clone")
            .with("name", name)
            .with("shareinfo", info);
        if let Some(snapshot) = snapshot {
            request = request.with("snapshot", snapshot);
        }
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn set_quota(
        &self,
        call: &Call,
        share: &Share,
        mebibytes: u64,
    ) -> Result<(), Failure> {
        let info = json!({
            "name": share.name,
            "vol_path": share.vol_path,
            "share_quota": mebibytes,
        });
        let request = Request::new(SHARE, "set")
            .with("name", share.name.as_str())
            .with("shareinfo", info);
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn delete_share(&self, call: &Call, name: &str) -> Result<(), Failure> {
        let request = Request::new(SHARE, "delete").with("name", json!([name]));
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn rules(&self, call: &Call, name: &str) -> Result<Vec<Rule>, Failure> {
        let request = Request::new(PRIVILEGE, "load").with("share_name", name);
        let answer: Wrapped = self.read(call, &request).await?;
        answer
            .rule
            .ok_or_else(|| self.lacks(&request, "rule", name))
    }

    pub(super) async fn save_rules(
        &self,
        call: &Call,
        name: &str,
        rules: Vec<Value>,
    ) -> Result<(), Failure> {
        let request = Request::new(PRIVILEGE, "save")
            .with("share_name", name)
            .with("rule", rules);
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn users(&self, call: &Call, name: &str) -> Result<Vec<User>, Failure> {
        let mut all = Vec::new();
        for _ in 0..MOST_PAGES {
            let mut request = Request::new(PERMISSION, "list")
                .with("name", name)
                .with("user_group_type", "local_user")
                .long();
            // A NAS that gives all at once is asked as Synology's own driver asks it.
            if !all.is_empty() {
                request = request.with("offset", all.len()).with("limit", PAGE);
            }
            let answer: Wrapped = self.read(call, &request).await?;
            let items = answer
                .items
                .ok_or_else(|| self.lacks(&request, "items", name))?;
            let is_last = items.is_empty();
            all.extend(items);
            if is_last || answer.total.is_none_or(|total| all.len() as u64 >= total) {
                break;
            }
        }
        Ok(all)
    }

    pub(super) async fn set_users(
        &self,
        call: &Call,
        name: &str,
        users: &[String],
    ) -> Result<(), Failure> {
        let entry = |user: &String| json!({"name": user, "is_readonly": false, "is_writable": true, "is_deny": false});
        let entries: Vec<Value> = users.iter().map(entry).collect();
        let request = Request::new(PERMISSION, "set")
            .with("name", name)
            .with("user_group_type", "local_user")
            .with("permissions", entries);
        self.change(call, request).await.map(drop)
    }

    /// The snapshots of a shared folder; those of one that is gone are none.
    pub(super) async fn share_snapshots(
        &self,
        call: &Call,
        name: &str,
    ) -> Result<Vec<ShareSnapshot>, Failure> {
        match self.snapshots_of_listed_share(call, name).await {
            Err(Failure::Refused(Code::NO_SHARE)) => Ok(Vec::new()),
            snapshots => snapshots,
        }
    }

    /// The snapshots of a shared folder that has to be there.
    pub(super) async fn snapshots_of_listed_share(
        &self,
        call: &Call,
        name: &str,
    ) -> Result<Vec<ShareSnapshot>, Failure> {
        let fields = json!(["desc", "lock", "schedule_snapshot", "ruuid", "snap_size"]);
        let request = Request::new(SNAPSHOT, "list")
            .with("name", name)
            .with("additional", fields);
        let answer: Wrapped = self.read(call, &request).await?;
        answer
            .snapshots
            .ok_or_else(|| self.lacks(&request, "snapshots", name))
    }

    pub(super) async fn take_share_snapshot(
        &self,
        call: &Call,
        name: &str,
        note: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(SNAPSHOT, "create")
            .at_version(1)
            .with("name", name)
            .with("snapinfo", json!({"desc": note, "lock": true}));
        self.change(call, request).await.map(drop)
    }

    pub(super) async fn delete_share_snapshot(
        &self,
        call: &Call,
        name: &str,
        time: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(SNAPSHOT, "delete")
            .at_version(1)
            .with("name", name)
            .with("snapshots", json!([time]));
        self.change(call, request).await.map(drop)
    }
}
