//! `sharing.nfs` as exports of nfsd.

use nas_host::exports::apply as export;

use super::{Answer, running, unsupported};
use crate::rows::{Row, Rows, flag, text, texts};

/// Makes nfsd export what the rows say, and nothing else of theirs. Another simulator on the same machine has other
/// pools.
pub(super) async fn apply(pools: &[String], rows: &Rows) -> Answer<()> {
    let name = format!("truenas-sim-{}", pools.join("-"));
    Ok(export(&name, &lines(rows)?).await?)
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

/// The options that `exports.mako` of TS-25.10.6 makes of a share, and no check of subtrees, which nfsd would do here.
fn options(share: &Row) -> Answer<String> {
    let mut all = vec![if flag(share, "ro") { "ro" } else { "rw" }.to_owned()];
    all.push("no_subtree_check".to_owned());
    let security = texts(share, "security");
    if security.iter().any(|kind| kind != "SYS") {
        return unsupported("a share: only the security SYS");
    }
    let mapped = |prefix: &str| -> Answer<Vec<(&str, u32)>> {
        let user = text(share, &format!("{prefix}_user"));
        let group = text(share, &format!("{prefix}_group"));
        let both = [("anonuid", user), ("anongid", group)].into_iter();
        let named = both.filter(|(_, name)| !name.is_empty());
        named.map(|(key, name)| Ok((key, id(name)?))).collect()
    };
    let shown = |(key, id): (&str, u32)| format!("{key}={id}");
    let every = mapped("mapall")?;
    if !every.is_empty() {
        all.extend(every.into_iter().map(shown));
        all.push("all_squash".to_owned());
    }
    let root = mapped("maproot")?;
    // Of the user alone root stays squashed.
    if root == [("anonuid", 0), ("anongid", 0)] {
        all.push("no_root_squash".to_owned());
    } else {
        all.extend(root.into_iter().map(shown));
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
