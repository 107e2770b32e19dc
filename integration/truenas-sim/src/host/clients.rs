//! Clients of nfsd and connections of samba.

use std::fs;
use std::path::Path;

use nas_host::command::run;
use serde_json::Value;

use crate::backend::{NfsClient, Problem, SmbConnection};

/// Where nfsd shows its clients.
const CLIENTS: &str = "/proc/fs/nfsd/clients";

/// The clients of NFS 4. One that goes at this moment holds nothing.
pub(super) fn of_nfs() -> Vec<NfsClient> {
    let Ok(folders) = fs::read_dir(CLIENTS) else {
        return Vec::new();
    };
    folders
        .flatten()
        .map(|entry| client(&entry.path()))
        .collect()
}

fn client(folder: &Path) -> NfsClient {
    let text = |name: &str| {
        let bytes = fs::read(folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let info = text("info");
    let quoted = |key: &str| {
        let mut lines = info.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": \""));
        let found = found.and_then(|rest| rest.strip_suffix('"'));
        found.unwrap_or_default().to_owned()
    };
    let states = text("states");
    let holds = states.lines().filter_map(|line| {
        let (_, superblock) = line.split_once("superblock: \"")?;
        device(superblock)
    });
    NfsClient {
        name: quoted("name"),
        address: quoted("address"),
        holds: holds.collect(),
    }
}

/// The number of a filesystem as `stat(2)` has it, of `00:39:137`.
fn device(superblock: &str) -> Option<u64> {
    let mut numbers = superblock.split(':');
    let mut number = || u64::from_str_radix(numbers.next()?, 16).ok();
    let (major, minor) = (number()?, number()?);
    Some((major << 8) | (minor & 0xff) | ((minor & !0xff) << 12))
}

/// The connections to shares of samba.
pub(super) async fn of_samba() -> Result<Vec<SmbConnection>, Problem> {
    let said = run(&["smbstatus", "--json", "--shares"]).await?;
    let said: Value =
        serde_json::from_str(&said).map_err(|error| Problem::Other(error.to_string()))?;
    let all = said["tcons"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let connection = |(_, row): (&String, &Value)| SmbConnection {
        share: text(&row["service"]),
        machine: text(&row["machine"]),
    };
    Ok(all.map(connection).collect())
}
