//! What the initiators of this node are called: what the node half connects as.
//!
//! `iscsid` has its name from a file of its own machine, which is the host where there is one around us;
//! NVMe has the name that node-utils chooses. compat: "Node ids of the proxy".

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use driver_core::config::ConfigError;
use node_utils::kernel::Kernel;
use node_utils::{Tools, nvme};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::config_file::regular_text;

/// Where `iscsid` looks for its name, below its own root: everywhere, and built from source.
const FILES: [&str; 2] = [
    "etc/iscsi/initiatorname.iscsi",
    "usr/local/etc/iscsi/initiatorname.iscsi",
];
const IQN: &str = "proxy.nodeId.parts.iqn";
const NQN: &str = "proxy.nodeId.parts.nqn";

/// Whom to ask.
pub(crate) struct Initiators<'a> {
    pub(crate) iqn: &'a dyn Fn() -> Result<String, ConfigError>,
    pub(crate) nqn: &'a dyn Fn() -> Result<String, ConfigError>,
}

/// The name of the initiator that `tools` log in with: first as its own machine has it, then as it may be
/// mounted here.
pub(crate) fn iqn(tools: &Tools) -> Result<String, ConfigError> {
    let mut roots = Vec::new();
    if let Some(way) = tools.iscsi_way() {
        roots.extend(way.root());
    }
    roots.push(PathBuf::from("/"));
    iqn_below(&roots)
}

fn iqn_below(roots: &[PathBuf]) -> Result<String, ConfigError> {
    let mut problems = Vec::new();
    for (root, file) in roots.iter().flat_map(|root| FILES.map(|file| (root, file))) {
        let problem = match read_below(root, file) {
            Ok(text) => match name_in(&text) {
                Some(name) => return Ok(name.to_owned()),
                None => "names no initiator".to_owned(),
            },
            Err(error) => format!("cannot be read: {error}"),
        };
        problems.push(format!("{} {problem}", root.join(file).display()));
    }
    Err(ConfigError::at(IQN, problems.join("; "))
        .advise("mount the host's root at `/host`, or its `/etc/iscsi`"))
}

/// The NQN that NVMe over fabrics connects with.
pub(crate) fn nqn(kernel: &Kernel) -> Result<String, ConfigError> {
    nvme::host_nqn(kernel).map_err(|error| ConfigError::at(NQN, error.chain()))
}

/// The text of a regular file; links lead no further than `root`, as they do for those who live there.
fn read_below(root: &Path, file: &str) -> io::Result<String> {
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let opened: OwnedFd =
        rustix::fs::openat2(top, file, how, Mode::empty(), ResolveFlags::IN_ROOT)?;
    regular_text(File::from(opened))
}

/// The first `InitiatorName=` that is no comment.
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

    #[test]
    fn the_host_that_logs_in_is_asked_for_its_name_before_the_container() {
        let folder = tempfile::tempdir().expect("a folder");
        let roots = ["host", "own"].map(|root| folder.path().join(root));
        let told = || iqn_below(&roots).map_err(|error| error.to_string());
        let missing = told().expect_err("nothing is there");
        for root in &roots {
            let file = root.join(FILES[0]).display().to_string();
            assert!(missing.contains(&file), "{missing}");
        }
        put(&roots[1], FILES[0], "InitiatorName=iqn.own\n");
        assert_eq!(told().as_deref(), Ok("iqn.own"), "as it is mounted here");
        // Without a name yet, as Debian has it before the first start.
        put(&roots[0], FILES[0], "GenerateName=yes\n");
        assert_eq!(told().as_deref(), Ok("iqn.own"));
        let text = "# InitiatorName=iqn.no\n InitiatorName=iqn.host # x\n";
        put(&roots[0], FILES[1], text);
        assert_eq!(told().as_deref(), Ok("iqn.host"));
        // A link of the host means a file of the host.
        fs::remove_file(roots[0].join(FILES[1])).expect("removed");
        fs::remove_file(roots[0].join(FILES[0])).expect("removed");
        put(&roots[0], "store/name", "InitiatorName=iqn.linked");
        symlink("/store/name", roots[0].join(FILES[0])).expect("a link");
        assert_eq!(told().as_deref(), Ok("iqn.linked"));
    }

    #[test]
    fn the_name_of_the_nvme_host_is_the_one_that_the_node_connects_with() {
        const SHARED: &str = "nqn.2014-08.org.nvmexpress:uuid:941e4f03-2cd6-435e-86df-731b1c573d86";
        const OWN: &str = "nqn.2014-08.org.nvmexpress:uuid:4b498d8b-bd6b-4fc6-9d8c-e78171b2337e";
        let folder = tempfile::tempdir().expect("a folder");
        let told = || nqn(&Kernel::at(folder.path())).map_err(|error| error.to_string());
        assert!(told().expect_err("nothing is there").contains("/etc/nvme"));
        put(
            folder.path(),
            "etc/machine-id",
            "e0938eea3e4f460191627613050bea33\n",
        );
        // What every image of democratic-csi carries is no name of this node.
        put(folder.path(), "etc/nvme/hostnqn", &format!("{SHARED}\n"));
        let derived = told().expect("a name");
        assert!(derived.starts_with("nqn.2014-08.org.nvmexpress:uuid:") && derived != SHARED);
        put(folder.path(), "etc/nvme/hostnqn", &format!("{OWN}\n"));
        assert_eq!(told().as_deref(), Ok(OWN));
        // Nor is that of the image, where there is a host.
        let hosts = OWN.replace("4b49", "4b50");
        put(folder.path(), "host/etc/nvme/hostnqn", &hosts);
        assert_eq!(told().as_deref(), Ok(&*hosts));
    }
}
