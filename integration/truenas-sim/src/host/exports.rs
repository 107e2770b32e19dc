//! `sharing.nfs` as exports of nfsd.

use std::fs;
use std::path::Path;

use super::command::run;
use super::{Answer, running, unsupported};
use crate::backend::Problem;
use crate::rows::{Row, Rows, flag, text, texts};

const FILE: &str = "/etc/exports.d/truenas-sim.exports";

/// Makes nfsd export what the rows say, and nothing else of theirs.
pub(super) async fn apply(rows: &Rows) -> Answer<()> {
    let wanted = lines(rows)?;
    let file = Path::new(FILE);
    if fs::read_to_string(file).unwrap_or_default() == wanted {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(file);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, wanted));
    written.map_err(|error| Problem::Other(format!("{FILE}: {error}")))?;
    run(&["exportfs", "-ra"]).await.map(drop)
}

fn lines(rows: &Rows) -> Answer<String> {
    let mut all = Vec::new();
    if !running(rows, "nfs") {
        return Ok(String::new());
    }
    for share in rows.all("sharing.nfs").filter(|row| flag(row, "enabled")) {
        let options = options(share)?;
        let mut clients = texts(share, "networks");
        clients.extend(texts(share, "hosts"));
        if clients.is_empty() {
            clients.push("*".to_owned());
        }
        let mut paths = texts(share, "paths");
        paths.extend(
            share
                .get("path")
                .and_then(|path| path.as_str())
                .map(str::to_owned),
        );
        for path in paths {
            let clients: Vec<_> = clients
                .iter()
                .map(|client| format!("{client}({options})"))
                .collect();
            all.push(format!("\"{path}\" {}\n", clients.join(" ")));
        }
    }
    Ok(all.concat())
}

/// The options that `exports.mako` of TS-25.10.6 makes of a share.
fn options(share: &Row) -> Answer<String> {
    let mut all = vec![if flag(share, "ro") { "ro" } else { "rw" }.to_owned()];
    all.push("no_subtree_check".to_owned());
    let security = texts(share, "security");
    if security.iter().any(|kind| kind != "SYS") {
        return unsupported("a share: only the security SYS");
    }
    let (root, every) = (text(share, "maproot_user"), text(share, "mapall_user"));
    let (user, group) = if every.is_empty() {
        (root, text(share, "maproot_group"))
    } else {
        all.push("all_squash".to_owned());
        (every, text(share, "mapall_group"))
    };
    match user {
        "" => {}
        "root" if every.is_empty() => all.push("no_root_squash".to_owned()),
        _ => {
            all.push(format!("anonuid={}", id(user)?));
            all.push(format!(
                "anongid={}",
                id(if group.is_empty() { user } else { group })?
            ));
        }
    }
    Ok(all.join(","))
}

fn id(name: &str) -> Answer<u32> {
    match name {
        "root" | "wheel" => Ok(0),
        "nobody" | "nogroup" => Ok(65_534),
        _ => unsupported(&format!("mapping to {name}: only root and 65534")),
    }
}
