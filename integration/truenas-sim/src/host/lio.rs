//! `iscsi.*` as targets of LIO.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::configfs::Object;
use super::{Answer, running, unsupported};
use crate::rows::{Row, Rows, flag, number, text, texts};

const CORE: &str = "/sys/kernel/config/target/core/iblock_0";
const ISCSI: &str = "/sys/kernel/config/target/iscsi";
/// What the kernel needs for any of it.
pub(super) const MODULES: [&str; 2] = ["target_core_iblock", "iscsi_target_mod"];

/// All extents and targets.
pub(super) fn objects(rows: &Rows) -> Answer<Vec<Object>> {
    let mut all = Vec::new();
    if !running(rows, "iscsitarget") {
        return Ok(all);
    }
    for extent in rows.all("iscsi.extent").filter(|row| flag(row, "enabled")) {
        all.extend(store(extent)?);
    }
    for row in rows.all("iscsi.target") {
        all.extend(target(rows, row)?);
    }
    Ok(all)
}

fn store_of(extent: &Row) -> PathBuf {
    Path::new(CORE).join(text(extent, "name").replace(['/', '.'], "-"))
}

/// The extent of a zvol. Its serial number is the one of the row; LIO makes the NAA number from it.
fn store(extent: &Row) -> Answer<Vec<Object>> {
    let name = text(extent, "name");
    let disk = text(extent, "disk");
    if disk.is_empty() || number(extent, "blocksize") != 512 {
        return unsupported(&format!(
            "extent {name}: only a zvol in blocks of 512 bytes"
        ));
    }
    let (device, store) = (format!("/dev/{disk}"), store_of(extent));
    let readonly = if flag(extent, "ro") {
        ",readonly=1"
    } else {
        ""
    };
    let mut all = vec![Object::Folder(store.clone())];
    all.extend(Object::values(
        &store,
        [
            ("control", format!("udev_path={device}{readonly}")),
            ("udev_path", device),
            ("wwn/vpd_unit_serial", text(extent, "serial").to_owned()),
        ],
    ));
    all.push(Object::Value(store.join("enable"), "1".to_owned()));
    all.push(Object::Value(
        store.join("attrib/emulate_tpu"),
        "1".to_owned(),
    ));
    Ok(all)
}

/// A target with one portal group: what its groups say of initiators and credentials has to be the same.
fn target(rows: &Rows, target: &Row) -> Answer<Vec<Object>> {
    let name = text(target, "name");
    let groups: Vec<&Value> = target["groups"].as_array().into_iter().flatten().collect();
    let access = |group: &Value| ["initiator", "authmethod", "auth"].map(|key| group[key].clone());
    let Some(first) = groups.first() else {
        return Ok(Vec::new());
    };
    if groups.iter().any(|group| access(group) != access(first)) {
        return unsupported(&format!(
            "target {name}: only groups that differ in their portal"
        ));
    }
    let folder = Path::new(ISCSI).join(iqn(rows, name));
    let group = folder.join("tpgt_1");
    let initiators = first["initiator"].as_i64();
    let initiators = initiators.and_then(|id| rows.get("iscsi.initiator", id));
    let initiators = initiators.map_or_else(Vec::new, |row| texts(row, "initiators"));
    let open = if initiators.is_empty() { "1" } else { "0" };
    let secrets = credentials(rows, first)?;
    let demanded = if secrets.is_empty() { "0" } else { "1" };
    let attributes = [
        ("attrib/generate_node_acls", open),
        ("attrib/cache_dynamic_acls", open),
        ("attrib/demo_mode_write_protect", "0"),
        ("attrib/authentication", demanded),
    ];
    let attributes = attributes.map(|(name, value)| (name, value.to_owned()));
    let mut all = vec![Object::Folder(folder), Object::Folder(group.clone())];
    all.extend(Object::values(&group, attributes));
    all.extend(Object::values(&group, secrets.clone()));
    for portal in groups.iter().flat_map(|group| portals(rows, group)) {
        all.push(Object::Folder(group.join("np").join(portal)));
    }
    let id = number(target, "id");
    let links = rows.all("iscsi.targetextent");
    let links: Vec<_> = links.filter(|link| number(link, "target") == id).collect();
    for link in &links {
        let extent = rows.get("iscsi.extent", number(link, "extent"));
        let Some(extent) = extent.filter(|extent| flag(extent, "enabled")) else {
            continue;
        };
        let lun = group.join(format!("lun/lun_{}", number(link, "lunid")));
        all.push(Object::Folder(lun.clone()));
        all.push(Object::Link(lun.join("store"), store_of(extent)));
    }
    for initiator in initiators {
        let acl = group.join("acls").join(initiator);
        all.push(Object::Folder(acl.clone()));
        all.extend(Object::values(&acl, secrets.clone()));
        for lun in links
            .iter()
            .map(|link| format!("lun_{}", number(link, "lunid")))
        {
            all.push(Object::Folder(acl.join(&lun)));
            all.push(Object::Link(
                acl.join(&lun).join("default"),
                group.join("lun").join(lun),
            ));
        }
    }
    all.push(Object::Switch(group.join("enable")));
    Ok(all)
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
fn credentials(rows: &Rows, group: &Value) -> Answer<Vec<(&'static str, String)>> {
    let method = group["authmethod"].as_str().unwrap_or("NONE");
    if method == "NONE" {
        return Ok(Vec::new());
    }
    let tag = group["auth"].as_i64().unwrap_or_default();
    let with_tag: Vec<_> = rows
        .all("iscsi.auth")
        .filter(|row| number(row, "tag") == tag)
        .collect();
    let [auth] = with_tag[..] else {
        return unsupported(&format!("group {tag}: only one pair of credentials"));
    };
    let value = |key: &str| text(auth, key).to_owned();
    let mut all = vec![
        ("auth/userid", value("user")),
        ("auth/password", value("secret")),
    ];
    if method == "CHAP_MUTUAL" {
        all.push(("auth/userid_mutual", value("peeruser")));
        all.push(("auth/password_mutual", value("peersecret")));
    }
    Ok(all)
}

/// The initiators that are connected without being named by a target, as `(target, initiator)`.
pub(super) fn sessions() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for target in std::fs::read_dir(ISCSI).into_iter().flatten().flatten() {
        let file = target.path().join("tpgt_1/dynamic_sessions");
        let names = std::fs::read_to_string(file).unwrap_or_default();
        let iqn = target.file_name().to_string_lossy().into_owned();
        let names = names.split(['\n', '\0']).filter(|name| !name.is_empty());
        all.extend(names.map(|name| (iqn.clone(), name.to_owned())));
    }
    all
}
