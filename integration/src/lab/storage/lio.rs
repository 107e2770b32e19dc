//! iSCSI targets of LIO, through configfs.

use std::path::{Path, PathBuf};

use super::configfs::{link, make, module, names, remove, set, unlink};
use super::zfs::Zvol;

const CORE: &str = "/sys/kernel/config/target/core/iblock_0";
const ISCSI: &str = "/sys/kernel/config/target/iscsi";

/// The secrets of initiators, and who is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chap {
    /// The initiator's name and password.
    pub initiator: (String, String),
    /// The target's, where both prove themselves.
    pub target: Option<(String, String)>,
}

/// A target with its portals and LUNs.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub iqn: String,
    /// The place where it listens: `127.0.0.1:3260`, `[::1]:3260`.
    pub portals: Vec<String>,
}

// === impl Target ===

impl Target {
    /// A new target that any initiator may use, listening on every portal.
    pub fn create(name: &str, portals: &[&str], chap: Option<&Chap>) -> Self {
        module("iscsi_target_mod");
        module("target_core_iblock");
        let target = Self {
            iqn: format!("iqn.2026-01.lab.storage:{name}"),
            portals: portals.iter().map(|&portal| portal.to_owned()).collect(),
        };
        let group = target.group();
        make(&group);
        let attributes = group.join("attrib");
        set(&attributes, "generate_node_acls", "1");
        set(&attributes, "cache_dynamic_acls", "1");
        set(&attributes, "demo_mode_write_protect", "0");
        let demanded = if chap.is_some() { "1" } else { "0" };
        set(&attributes, "authentication", demanded);
        if let Some(chap) = chap {
            let auth = group.join("auth");
            set(&auth, "userid", &chap.initiator.0);
            set(&auth, "password", &chap.initiator.1);
            if let Some((name, password)) = &chap.target {
                set(&auth, "userid_mutual", name);
                set(&auth, "password_mutual", password);
            }
        }
        for portal in portals {
            make(&group.join("np").join(portal));
        }
        set(&group, "enable", "1");
        target
    }

    /// Gives a zvol a number. Its identity follows from the zvol's name alone, so that it is the
    /// same volume at any number of any target.
    pub fn attach(&self, lun: u32, zvol: &Zvol) {
        self.attach_over(lun, zvol, &zvol.device());
    }

    /// The same, of a device that is over the zvol.
    pub fn attach_over(&self, lun: u32, zvol: &Zvol, device: &Path) {
        let store = Path::new(CORE).join(store_name(zvol));
        let device = device.display().to_string();
        make(&store);
        set(&store, "control", &format!("udev_path={device}"));
        set(&store, "udev_path", &device);
        set(&store.join("wwn"), "vpd_unit_serial", &zvol.serial());
        set(&store, "enable", "1");
        let folder = self.lun(lun);
        make(&folder);
        link(&store, &folder.join("store"));
    }

    /// Takes a number away, and the zvol's backstore with it.
    pub fn detach(&self, lun: u32, zvol: &Zvol) {
        unlink(&self.lun(lun).join("store"));
        remove(&self.lun(lun));
        remove(&Path::new(CORE).join(store_name(zvol)));
    }

    /// What a zvol at any of its numbers is called for good, as sysfs has it.
    pub fn identity(zvol: &Zvol) -> String {
        // LIO's own prefix, then as much of the serial number as fits.
        format!("naa.6001405{}", &zvol.serial()[..25])
    }

    /// Stops or starts to answer: what is connected loses its sessions.
    pub fn enable(&self, enable: bool) {
        set(&self.group(), "enable", if enable { "1" } else { "0" });
    }

    /// Removes the target; backstores of attached numbers stay.
    pub fn remove(&self) {
        self.enable(false);
        let group = self.group();
        for lun in names(&group.join("lun")) {
            unlink(&group.join("lun").join(&lun).join("store"));
            remove(&group.join("lun").join(lun));
        }
        for portal in names(&group.join("np")) {
            remove(&group.join("np").join(portal));
        }
        remove(&group);
        remove(&Path::new(ISCSI).join(&self.iqn));
    }

    fn group(&self) -> PathBuf {
        Path::new(ISCSI).join(&self.iqn).join("tpgt_1")
    }

    fn lun(&self, lun: u32) -> PathBuf {
        self.group().join("lun").join(format!("lun_{lun}"))
    }
}

fn store_name(zvol: &Zvol) -> String {
    zvol.name.replace('/', "-")
}
