//! `iscsi.*` as targets of LIO.

use nas_host::configfs::Object;
use nas_host::lio::{Chap, Disk, Target};
use serde_json::Value;

use super::{Answer, running, unsupported};
use crate::rows::{Row, Rows, flag, number, text, texts};

/// All extents and targets.
pub(super) fn objects(rows: &Rows) -> Answer<Vec<Object>> {
    let mut all = Vec::new();
    if !running(rows, "iscsitarget") {
        return Ok(all);
    }
    for extent in rows.all("iscsi.extent").filter(|row| flag(row, "enabled")) {
        all.extend(disk(extent)?.objects());
    }
    for row in rows.all("iscsi.target") {
        all.extend(target(rows, row)?.iter().flat_map(Target::objects));
    }
    Ok(all)
}

/// The extent of a zvol. Its serial number is the one of the row.
fn disk(extent: &Row) -> Answer<Disk> {
    let name = text(extent, "name");
    let disk = text(extent, "disk");
    if disk.is_empty() || number(extent, "blocksize") != 512 {
        return unsupported(&format!(
            "extent {name}: only a zvol in blocks of 512 bytes"
        ));
    }
    Ok(Disk {
        name: name.to_owned(),
        device: format!("/dev/{disk}"),
        serial: text(extent, "serial").to_owned(),
        readonly: flag(extent, "ro"),
        attributes: vec![("emulate_tpu".to_owned(), "1".to_owned())],
    })
}

/// A target with one portal group: what its groups say of initiators and credentials has to be the same.
fn target(rows: &Rows, target: &Row) -> Answer<Option<Target>> {
    let name = text(target, "name");
    let groups: Vec<&Value> = target["groups"].as_array().into_iter().flatten().collect();
    let access = |group: &Value| ["initiator", "authmethod", "auth"].map(|key| group[key].clone());
    let Some(first) = groups.first() else {
        return Ok(None);
    };
    if groups.iter().any(|group| access(group) != access(first)) {
        return unsupported(&format!(
            "target {name}: only groups that differ in their portal"
        ));
    }
    let initiators = first["initiator"].as_i64();
    let initiators = initiators.and_then(|id| rows.get("iscsi.initiator", id));
    let id = number(target, "id");
    let links = rows.all("iscsi.targetextent");
    let links = links.filter(|link| number(link, "target") == id);
    let shown = |link: &Row| {
        let extent = rows.get("iscsi.extent", number(link, "extent"))?;
        let lun = u64::try_from(number(link, "lunid")).ok()?;
        flag(extent, "enabled").then(|| (lun, text(extent, "name").to_owned()))
    };
    let portals = groups.iter().flat_map(|group| portals(rows, group));
    Ok(Some(Target {
        iqn: iqn(rows, name),
        portals: portals.collect(),
        initiators: initiators.map_or_else(Vec::new, |row| texts(row, "initiators")),
        chap: credentials(rows, first)?,
        disks: links.filter_map(shown).collect(),
    }))
}

fn iqn(rows: &Rows, name: &str) -> String {
    let global = rows.get("iscsi.global", 1);
    match global.filter(|_| !name.starts_with("iqn.")) {
        Some(global) => format!("{}:{name}", text(global, "basename")),
        None => name.to_owned(),
    }
}

/// The addresses of a portal; its port is that of the service from 22.12 on.
fn portals(rows: &Rows, group: &Value) -> Vec<String> {
    let global = rows.get("iscsi.global", 1);
    let usual = global.map_or(3260, |global| number(global, "listen_port"));
    let portal = group["portal"].as_i64();
    let portal = portal.and_then(|id| rows.get("iscsi.portal", id));
    let listen = portal.and_then(|row| row["listen"].as_array());
    let address = |entry: &Value| {
        let port = entry["port"].as_i64().unwrap_or(usual);
        match entry["ip"].as_str()? {
            ip if ip.contains(':') => Some(format!("[{ip}]:{port}")),
            ip => Some(format!("{ip}:{port}")),
        }
    };
    listen.into_iter().flatten().filter_map(address).collect()
}

/// What a group demands of initiators, and what the target then proves.
fn credentials(rows: &Rows, group: &Value) -> Answer<Option<Chap>> {
    let method = group["authmethod"].as_str().unwrap_or("NONE");
    if method == "NONE" {
        return Ok(None);
    }
    let tag = group["auth"].as_i64().unwrap_or_default();
    let with_tag: Vec<_> = rows
        .all("iscsi.auth")
        .filter(|row| number(row, "tag") == tag)
        .collect();
    let [auth] = with_tag[..] else {
        return unsupported(&format!("group {tag}: only one pair of credentials"));
    };
    let pair =
        |user: &str, secret: &str| (text(auth, user).to_owned(), text(auth, secret).to_owned());
    Ok(Some(Chap {
        initiator: pair("user", "secret"),
        target: (method == "CHAP_MUTUAL").then(|| pair("peeruser", "peersecret")),
    }))
}
