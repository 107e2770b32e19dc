//! NVMe-oF subsystems of nvmet over TCP, through configfs.

use std::path::{Path, PathBuf};

use super::configfs::{link, make, module, names, remove, set, unlink};
use super::zfs::Zvol;

const ROOT: &str = "/sys/kernel/config/nvmet";

/// A subsystem, on one or several ports.
#[derive(Debug, Clone)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Its ports: address and service.
    pub ports: Vec<(String, u16)>,
}

// === impl Subsystem ===

impl Subsystem {
    /// A new subsystem that any host may use, on the given addresses.
    pub fn create(name: &str, ports: &[(&str, u16)]) -> Self {
        module("nvmet_tcp");
        let subsystem = Self {
            nqn: format!("nqn.2026-01.lab.storage:{name}"),
            ports: ports
                .iter()
                .map(|(address, service)| ((*address).to_owned(), *service))
                .collect(),
        };
        make(&subsystem.folder());
        set(&subsystem.folder(), "attr_allow_any_host", "1");
        for (address, service) in ports {
            subsystem.join(address, *service);
        }
        subsystem
    }

    /// Listens on a port for this subsystem.
    pub fn join(&self, address: &str, service: u16) {
        let from = port(address, service).join("subsystems").join(&self.nqn);
        link(&self.folder(), &from);
    }

    /// Gives a zvol a number, under an identity that is the same at any number.
    pub fn attach(&self, nsid: u32, zvol: &Zvol) {
        self.attach_over(nsid, zvol, &zvol.device());
    }

    /// The same, of a device that is over the zvol.
    pub fn attach_over(&self, nsid: u32, zvol: &Zvol, device: &Path) {
        let namespace = self.namespace(nsid);
        make(&namespace);
        set(&namespace, "device_path", &device.display().to_string());
        set(&namespace, "device_uuid", &uuid(zvol));
        set(&namespace, "enable", "1");
    }

    /// Takes a number away.
    pub fn detach(&self, nsid: u32) {
        remove(&self.namespace(nsid));
    }

    /// What a zvol at any of its numbers is called for good, as sysfs has it.
    pub fn identity(zvol: &Zvol) -> String {
        format!("uuid.{}", uuid(zvol))
    }

    /// Tells hosts the size that the zvol now has.
    pub fn announce_size(&self, nsid: u32) {
        set(&self.namespace(nsid), "revalidate_size", "1");
    }

    /// Stops to listen on a port for this subsystem: what is connected there loses its controller.
    pub fn leave(&self, address: &str, service: u16) {
        unlink(&port(address, service).join("subsystems").join(&self.nqn));
    }

    /// Removes the subsystem from all ports, with its namespaces.
    pub fn remove(&self) {
        for (address, service) in &self.ports {
            self.leave(address, *service);
        }
        for nsid in names(&self.folder().join("namespaces")) {
            remove(&self.folder().join("namespaces").join(nsid));
        }
        remove(&self.folder());
    }

    fn folder(&self) -> PathBuf {
        Path::new(ROOT).join("subsystems").join(&self.nqn)
    }

    fn namespace(&self, nsid: u32) -> PathBuf {
        self.folder().join("namespaces").join(nsid.to_string())
    }
}

fn uuid(zvol: &Zvol) -> String {
    let serial = zvol.serial();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &serial[part]);
    parts.join("-")
}

/// The port of an address, made if it does not exist; its number is its service.
fn port(address: &str, service: u16) -> PathBuf {
    let number = u32::from(service) + if address.contains(':') { 10_000 } else { 0 };
    let folder = Path::new(ROOT).join("ports").join(number.to_string());
    if !folder.exists() {
        make(&folder);
        set(&folder, "addr_trtype", "tcp");
        let family = if address.contains(':') {
            "ipv6"
        } else {
            "ipv4"
        };
        set(&folder, "addr_adrfam", family);
        set(&folder, "addr_traddr", address);
        set(&folder, "addr_trsvcid", &service.to_string());
    }
    folder
}
