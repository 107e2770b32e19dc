//! The names of the initiators of this node, as used by the node service to connect.
//!
//! `iscsid` reads its name from a file of its own machine, which is the host if this is a
//! container; NVMe has the name that node-utils chooses. compat: "Node ids of the proxy".

use std::io;
use std::net::IpAddr;
use std::path::Path;

use driver_core::config::ConfigError;
use node_utils::kernel::Kernel;
use node_utils::mount::MountTable;
use node_utils::tools::{HostRoot, resolve};
use node_utils::{Tools, nvme};

use super::addresses::Network;
use crate::routing::config_file::read_regular;

/// The place where `iscsid` looks for its name, below its own root: everywhere, and built from source.
const FILES: [&str; 2] = [
    "etc/iscsi/initiatorname.iscsi",
    "usr/local/etc/iscsi/initiatorname.iscsi",
];
const IQN: &str = "proxy.nodeId.parts.iqn";
const NQN: &str = "proxy.nodeId.parts.nqn";

/// The place where the names are read.
pub(crate) struct Initiators<'a> {
    pub(crate) iqn: &'a dyn Fn() -> Result<String, ConfigError>,
    pub(crate) nqn: &'a dyn Fn() -> Result<String, ConfigError>,
    pub(crate) addresses: &'a AddressesIn,
}

/// The addresses of the node in some networks.
type AddressesIn = dyn Fn(&[Network]) -> Result<Vec<IpAddr>, ConfigError>;

/// The machine that logs in.
#[derive(Debug)]
enum Machine {
    /// This one: not a container.
    This,
    /// A host that is not visible from here.
    Unseen,
    /// A host that is not visible before its daemon runs.
    Asleep,
    /// A host, and where its root is.
    Host(HostRoot),
}

/// The name of the initiator that `tools` log in with: from its own machine first, then from a
/// mount here. A file of the image is the same on every node, so it is used only outside of
/// containers.
pub(crate) fn iqn(tools: &Tools) -> Result<String, ConfigError> {
    let mounts = MountTable::read().map_err(|error| {
        ConfigError::at(IQN, format!("the mounts here cannot be read: {error}"))
    })?;
    let own = Path::new("/");
    match tools.iscsi_access() {
        None => iqn_of(&Machine::This, own, &mounts),
        Some(way) => iqn_of(&Machine::around(way.root()), own, &mounts),
    }
}

fn iqn_of(machine: &Machine, own: &Path, mounts: &MountTable) -> Result<String, ConfigError> {
    let is_mounted = |file: &Path| {
        let mut places = file.ancestors().take(2);
        places.any(|place| mounts.layers(place).next().is_some())
    };
    let mut problems = Vec::new();
    let mut files = Vec::new();
    let may_be_images = match machine {
        Machine::This | Machine::Unseen => false,
        Machine::Asleep => {
            problems.push("the daemon `iscsid` does not run".to_owned());
            true
        }
        Machine::Host(root) => {
            files.extend(FILES.map(|file| (root.path(), root.shown(), file)));
            true
        }
    };
    let of_here = FILES.iter().map(|file| (own, own, *file));
    files.extend(of_here.filter(|(.., file)| !may_be_images || is_mounted(&own.join(file))));
    for (root, shown, file) in files {
        let problem = match read_below(root, file) {
            Ok(text) => match name_in(&text) {
                Some(name) => return Ok(name.to_owned()),
                None => "names no initiator".to_owned(),
            },
            Err(error) => format!("cannot be read: {error}"),
        };
        problems.push(format!("{} {problem}", shown.join(file).display()));
    }
    let advice = match machine {
        Machine::This => "start `iscsid` once",
        Machine::Unseen => "mount the host's root at `/host`, or its `/etc/iscsi`",
        Machine::Asleep => "start `iscsid` on the host, or mount its `/etc/iscsi`",
        Machine::Host(_) => "start `iscsid` once on the host: that creates its name",
    };
    Err(ConfigError::at(IQN, problems.join("; ")).advise(advice))
}

/// The NQN that NVMe over fabrics connects with.
pub(crate) fn nqn(kernel: &Kernel) -> Result<String, ConfigError> {
    nvme::host_nqn(kernel).map_err(|error| ConfigError::at(NQN, error.chain()))
}

/// The text of a regular file; links are resolved inside `root`, as for a process that lives there.
fn read_below(root: &Path, file: &str) -> io::Result<String> {
    let below = resolve(root, Path::new(file)).ok_or(io::ErrorKind::NotFound)?;
    read_regular(&root.join(below))
}

// === impl Machine ===

impl Machine {
    /// The host of a container, by the path where its root is mounted.
    fn around(root: Option<HostRoot>) -> Self {
        let Some(root) = root else {
            return Self::Asleep;
        };
        // A path that may not be read exists.
        match root.path().join("etc").try_exists() {
            Ok(false) => Self::Unseen,
            _ => Self::Host(root),
        }
    }
}

/// The first `InitiatorName=` outside of comments.
fn name_in(text: &str) -> Option<&str> {
    let names = text.lines().filter_map(|line| {
        let line = line.split('#').next().unwrap_or_default().trim();
        line.strip_prefix("InitiatorName=")
    });
    names.map(str::trim).find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn name_of(machine: &Machine, own: &Path, mounts: &str) -> Result<String, String> {
        let mounts = MountTable::from_text(mounts);
        iqn_of(machine, own, &mounts).map_err(|error| error.to_string())
    }

    #[test]
    fn the_host_that_logs_in_is_asked_for_its_name_and_not_the_image() {
        let folder = tempfile::tempdir().expect("a folder");
        let [host, own] = ["host", "own"].map(|root| folder.path().join(root));
        put(&own, FILES[0], "InitiatorName=iqn.own\n");
        // Without a name yet, as Debian has it before the first start.
        put(&host, FILES[0], "GenerateName=yes\n");
        let at_host = Machine::around(Some(HostRoot::at(host.clone())));
        let asleep = Machine::around(None);
        for (machine, advice) in [(&at_host, "once on the host"), (&asleep, "on the host")] {
            let unnamed = name_of(machine, &own, "").expect_err("no name");
            let advice = format!("start `iscsid` {advice}");
            assert!(unnamed.contains(&advice), "{unnamed}");
            assert!(!unnamed.contains("/host`"), "{unnamed}");
            // As it is mounted here.
            for place in ["etc/iscsi", FILES[0]] {
                let place = own.join(place);
                let place = place.display();
                let mounted = format!("30 1 8:1 /x {place} rw - ext4 /dev/sda1 rw");
                assert_eq!(name_of(machine, &own, &mounted).as_deref(), Ok("iqn.own"));
            }
        }
        let text = "# InitiatorName=iqn.no\n InitiatorName=iqn.host # x\n";
        put(&host, FILES[1], text);
        assert_eq!(name_of(&at_host, &own, "").as_deref(), Ok("iqn.host"));
        // A link of the host means a file of the host.
        fs::remove_file(host.join(FILES[1])).expect("removed");
        fs::remove_file(host.join(FILES[0])).expect("removed");
        put(&host, "store/name", "InitiatorName=iqn.linked");
        symlink("/store/name", host.join(FILES[0])).expect("a link");
        assert_eq!(name_of(&at_host, &own, "").as_deref(), Ok("iqn.linked"));
    }

    #[test]
    fn without_a_host_around_it_a_process_has_its_own_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let [host, own] = ["host", "own"].map(|root| folder.path().join(root));
        for (machine, advice) in [
            (Machine::This, "start `iscsid` once"),
            (
                Machine::around(Some(HostRoot::at(host))),
                "mount the host's root",
            ),
        ] {
            let missing = name_of(&machine, &own, "").expect_err("nothing is there");
            let file = own.join(FILES[0]).display().to_string();
            assert!(
                missing.contains(&file) && missing.contains(advice),
                "{missing}"
            );
            put(&own, FILES[0], "InitiatorName=iqn.own\n");
            assert_eq!(name_of(&machine, &own, "").as_deref(), Ok("iqn.own"));
            fs::remove_dir_all(&own).expect("removed");
        }
    }

    #[test]
    fn the_name_of_the_nvme_host_is_the_one_that_the_node_connects_with() {
        const SHARED: &str = "nqn.2014-08.org.nvmexpress:uuid:941e4f03-2cd6-435e-86df-731b1c573d86";
        const OWN: &str = "nqn.2014-08.org.nvmexpress:uuid:4b498d8b-bd6b-4fc6-9d8c-e78171b2337e";
        let folder = tempfile::tempdir().expect("a folder");
        let host_nqn = || nqn(&Kernel::at(folder.path())).map_err(|error| error.to_string());
        assert!(
            host_nqn()
                .expect_err("nothing is there")
                .contains("/etc/nvme")
        );
        put(
            folder.path(),
            "etc/machine-id",
            "e0938eea3e4f460191627613050bea33\n",
        );
        // The name in every image of democratic-csi does not identify this node.
        put(folder.path(), "etc/nvme/hostnqn", &format!("{SHARED}\n"));
        let derived = host_nqn().expect("a name");
        assert!(derived.starts_with("nqn.2014-08.org.nvmexpress:uuid:") && derived != SHARED);
        put(folder.path(), "etc/nvme/hostnqn", &format!("{OWN}\n"));
        assert_eq!(host_nqn().as_deref(), Ok(OWN));
        // Neither does that of the image, if there is a host.
        let hosts = OWN.replace("4b49", "4b50");
        put(folder.path(), "host/etc/nvme/hostnqn", &hosts);
        assert_eq!(host_nqn().as_deref(), Ok(&*hosts));
    }
}
