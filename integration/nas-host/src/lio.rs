//! Targets of LIO over block devices.

use std::path::{Path, PathBuf};

use crate::configfs::Object;

const CORE: &str = "/sys/kernel/config/target/core/iblock_0";
const ISCSI: &str = "/sys/kernel/config/target/iscsi";
/// The modules of the kernel for any of it.
pub const MODULES: [&str; 2] = ["target_core_iblock", "iscsi_target_mod"];

/// A block device that targets can show.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// The device.
    pub device: String,
    /// LIO makes the NAA number from it.
    pub serial: String,
    /// Whether it cannot be written.
    pub readonly: bool,
    /// Files of its folder `attrib`, and their values.
    pub attributes: Vec<(String, String)>,
}

/// A target with one portal group.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub iqn: String,
    /// `address:port`.
    pub portals: Vec<String>,
    /// The initiators that are let in: all if there are none.
    pub initiators: Vec<String>,
    /// The demand on initiators, and what the target then proves.
    pub chap: Option<Chap>,
    /// Names of disks by their LUN numbers.
    pub disks: Vec<(u64, String)>,
}

/// Names and secrets.
#[derive(Clone)]
pub struct Chap {
    /// Of initiators.
    pub initiator: (String, String),
    /// Of the target.
    pub target: Option<(String, String)>,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chap").finish_non_exhaustive()
    }
}

fn store(name: &str) -> PathBuf {
    Path::new(CORE).join(name.replace(['/', '.'], "-"))
}

// === impl Disk ===

impl Disk {
    /// Its objects in configfs.
    pub fn objects(&self) -> Vec<Object> {
        let folder = store(&self.name);
        let readonly = if self.readonly { ",readonly=1" } else { "" };
        let mut all = vec![Object::Folder(folder.clone())];
        all.extend(Object::values(
            &folder,
            [
                ("control", format!("udev_path={}{readonly}", self.device)),
                ("udev_path", self.device.clone()),
                ("wwn/vpd_unit_serial", self.serial.clone()),
                ("enable", "1".to_owned()),
            ],
        ));
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name.as_str(), value.clone()));
        all.extend(Object::values(&folder.join("attrib"), attributes));
        all
    }
}

// === impl Chap ===

impl Chap {
    fn values(&self) -> Vec<(&'static str, String)> {
        let (user, password) = self.initiator.clone();
        let mut all = vec![("auth/userid", user), ("auth/password", password)];
        if let Some((user, password)) = self.target.clone() {
            all.push(("auth/userid_mutual", user));
            all.push(("auth/password_mutual", password));
        }
        all
    }
}

// === impl Target ===

impl Target {
    /// Its objects in configfs. Its disks come before it.
    pub fn objects(&self) -> Vec<Object> {
        let folder = Path::new(ISCSI).join(&self.iqn);
        let group = folder.join("tpgt_1");
        let open = if self.initiators.is_empty() { "1" } else { "0" };
        let secrets = self.chap.as_ref().map_or_else(Vec::new, Chap::values);
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
        for portal in &self.portals {
            all.push(Object::Folder(group.join("np").join(portal)));
        }
        for (number, disk) in &self.disks {
            let lun = group.join(format!("lun/lun_{number}"));
            all.push(Object::Folder(lun.clone()));
            all.push(Object::Link(lun.join("store"), store(disk)));
        }
        for initiator in &self.initiators {
            let acl = group.join("acls").join(initiator);
            all.push(Object::Folder(acl.clone()));
            all.extend(Object::values(&acl, secrets.clone()));
            for (number, _) in &self.disks {
                let lun = format!("lun_{number}");
                all.push(Object::Folder(acl.join(&lun)));
                let to = group.join("lun").join(&lun);
                all.push(Object::Link(acl.join(lun).join("default"), to));
            }
        }
        all.push(Object::Switch(group.join("enable")));
        all
    }
}

/// The initiators that are connected without being named by a target, as `(target, initiator)`.
pub fn sessions() -> Vec<(String, String)> {
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
