//! `nvmet.*` as subsystems of the kernel's target.

use std::path::{Path, PathBuf};

use nas_host::configfs::Object;

use super::{Answer, running, unsupported};
use crate::rows::{Row, Rows, flag, number, text};

const ROOT: &str = "/sys/kernel/config/nvmet";
/// The modules of the kernel for any of it.
pub(super) const MODULES: [&str; 2] = ["nvmet", "nvmet_tcp"];

/// All hosts, subsystems and ports.
pub(super) fn objects(rows: &Rows) -> Answer<Vec<Object>> {
    let mut all = Vec::new();
    if !running(rows, "nvmet") {
        return Ok(all);
    }
    for host in rows.all("nvmet.host") {
        all.extend(self::host(host));
    }
    for subsystem in rows.all("nvmet.subsys") {
        all.extend(self::subsystem(rows, subsystem)?);
    }
    for port in rows.all("nvmet.port").filter(|row| flag(row, "enabled")) {
        all.extend(self::port(rows, port));
    }
    Ok(all)
}

fn host_of(host: &Row) -> PathBuf {
    Path::new(ROOT).join("hosts").join(text(host, "hostnqn"))
}

fn subsystem_of(subsystem: &Row) -> PathBuf {
    Path::new(ROOT)
        .join("subsystems")
        .join(text(subsystem, "subnqn"))
}

fn host(host: &Row) -> Vec<Object> {
    let folder = host_of(host);
    let keys = ["dhchap_key", "dhchap_ctrl_key"].map(|key| (key, text(host, key).to_owned()));
    let keys = keys.into_iter().filter(|(_, value)| !value.is_empty());
    let values = Object::values(&folder, keys);
    std::iter::once(Object::Folder(folder))
        .chain(values)
        .collect()
}

fn subsystem(rows: &Rows, subsystem: &Row) -> Answer<Vec<Object>> {
    let (id, folder) = (number(subsystem, "id"), subsystem_of(subsystem));
    let open = if flag(subsystem, "allow_any_host") {
        "1"
    } else {
        "0"
    };
    let mut all = vec![Object::Folder(folder.clone())];
    all.extend(Object::values(
        &folder,
        [
            ("attr_allow_any_host", open.to_owned()),
            ("attr_serial", text(subsystem, "serial").to_owned()),
        ],
    ));
    let of_it = |row: &&Row| number(row, "subsys_id") == id;
    for link in rows.all("nvmet.host_subsys").filter(of_it) {
        if let Some(host) = rows.get("nvmet.host", number(link, "host_id")) {
            let link = folder.join("allowed_hosts").join(text(host, "hostnqn"));
            all.push(Object::Link(link, host_of(host)));
        }
    }
    for namespace in rows.all("nvmet.namespace").filter(of_it) {
        if text(namespace, "device_type") != "ZVOL" {
            return unsupported("a namespace: only a zvol");
        }
        let number = number(namespace, "nsid").to_string();
        let folder = folder.join("namespaces").join(number);
        let value = |key: &str| text(namespace, key).to_owned();
        all.push(Object::Folder(folder.clone()));
        all.extend(Object::values(
            &folder,
            [
                ("device_path", format!("/dev/{}", value("device_path"))),
                ("device_uuid", value("device_uuid")),
                ("device_nguid", value("device_nguid")),
            ],
        ));
        if flag(namespace, "enabled") {
            all.push(Object::Switch(folder.join("enable")));
        }
    }
    Ok(all)
}

fn port(rows: &Rows, port: &Row) -> Vec<Object> {
    let id = number(port, "id");
    let folder = Path::new(ROOT)
        .join("ports")
        .join(number(port, "index").to_string());
    let value = |key: &str| text(port, key).to_lowercase();
    let mut all = vec![Object::Folder(folder.clone())];
    all.extend(Object::values(
        &folder,
        [
            ("addr_trtype", value("addr_trtype")),
            ("addr_adrfam", value("addr_adrfam")),
            ("addr_traddr", value("addr_traddr")),
            ("addr_trsvcid", number(port, "addr_trsvcid").to_string()),
        ],
    ));
    let links = rows.all("nvmet.port_subsys");
    for link in links.filter(|link| number(link, "port_id") == id) {
        if let Some(subsystem) = rows.get("nvmet.subsys", number(link, "subsys_id")) {
            let link = folder.join("subsystems").join(text(subsystem, "subnqn"));
            all.push(Object::Link(link, subsystem_of(subsystem)));
        }
    }
    all
}

/// The writes that tell hosts the size that a zvol now has.
pub(super) fn announce(there: &[Object], zvol: &str) -> Vec<Object> {
    let device = format!("/dev/zvol/{zvol}");
    let folder = |object: &Object| match object {
        Object::Value(path, value) if *value == device && path.ends_with("device_path") => {
            let attribute = path.with_file_name("revalidate_size");
            Some(Object::Value(attribute, "1".to_owned()))
        }
        _ => None,
    };
    there.iter().filter_map(folder).collect()
}
