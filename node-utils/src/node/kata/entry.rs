//! The file by which the runtime of Kata Containers finds a direct volume.
//!
//! It looks each mount of a container up by its path: in a folder named by that path in Base64 for URLs is
//! `mountInfo.json`. The runtime has entries of its own in the same place, so nothing here lists or sweeps: an entry
//! is reached by the target of a publication only. The truth is in Kata's `kata-types/src/mount.rs`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;

use crate::kernel::{self, Kernel};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The file of an entry.
const FILE: &str = "mountInfo.json";

/// The longest name of a file, in bytes; ours has a dot before it while an entry is written.
const LONGEST_NAME: usize = 254;

/// The longest entry that is read.
const LONGEST: u64 = 64 * 1024;

/// The folders of the runtime.
#[derive(Debug, Clone)]
pub(in crate::node) struct Folders {
    volumes: PathBuf,
    /// With one folder for each sandbox: of the runtime in Go, and of the one in Rust.
    pub(super) sandboxes: [PathBuf; 2],
}

/// The entry of one target, whether it is there or not.
#[derive(Debug)]
pub(super) struct Entry {
    root: PathBuf,
    name: String,
}

// === impl Folders ===

impl Folders {
    /// Those of the machine, also from within a container.
    pub(in crate::node) fn of(kernel: &Kernel) -> Self {
        let of_host = kernel.host_file("run");
        if of_host.is_dir() {
            Self::below(&of_host)
        } else {
            Self::below(&kernel.file("run"))
        }
    }

    /// Those below a `/run`.
    pub(in crate::node) fn below(run: &Path) -> Self {
        Self {
            volumes: run.join("kata-containers/shared/direct-volumes"),
            sandboxes: [run.join("vc/sbs"), run.join("kata")],
        }
    }
}

// === impl Entry ===

impl Entry {
    /// The entry of a target; `None` for a path that is too long to have one. Links in the path stay: containerd and
    /// CRI-O give the runtime the path of the kubelet, and follow a link only where the target itself is one.
    pub(super) fn of(folders: &Folders, target: &AbsolutePath) -> Option<Self> {
        let name = URL_SAFE.encode(target.as_str());
        (name.len() <= LONGEST_NAME).then(|| Self {
            root: folders.volumes.clone(),
            name,
        })
    }

    /// Its folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The file that becomes the entry. It is not in the folder: there, the runtime takes any other file for the id of
    /// a sandbox.
    fn aside(&self) -> PathBuf {
        self.root.join(format!(".{}", self.name))
    }

    /// Whether there is one, complete or not.
    pub(super) fn exists(&self) -> Result<bool, Error> {
        match std::fs::symlink_metadata(self.folder()) {
            Ok(_) => Ok(true),
            Err(error) if kernel::is_absence(&error) => Ok(false),
            Err(error) => Err(self.failed("look at", error)),
        }
    }

    /// What it says; `None` if it was not written.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        let file = match File::open(self.folder().join(FILE)) {
            Err(error) if kernel::is_absence(&error) => return Ok(None),
            result => result.map_err(|error| self.failed("read", error))?,
        };
        let mut text = Vec::new();
        let read = file.take(LONGEST).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", error))?;
        Ok(Some(text))
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, text: &[u8]) -> Result<(), Error> {
        self.put(text).map_err(|error| self.failed("write", error))
    }

    fn put(&self, text: &[u8]) -> io::Result<()> {
        let (folder, aside) = (self.folder(), self.aside());
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&self.root)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&aside)?;
        file.write_all(text)?;
        file.sync_all()?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        std::fs::rename(&aside, folder.join(FILE))?;
        File::open(&folder)?.sync_all()
    }

    /// The sandboxes that use it, if the runtime has written them down: the one in Go does. One that was replaced stays
    /// in the list.
    pub(super) fn sandboxes(&self) -> Result<Vec<String>, Error> {
        let folder = self.folder();
        let mut names = kernel::list(&folder).map_err(|error| self.failed("read", error))?;
        names.retain(|name| is_sandbox(name));
        Ok(names)
    }

    /// Removes it with all that the runtime has put there.
    pub(super) fn remove(&self) -> Result<(), Error> {
        let removed = |result: io::Result<()>| match result {
            Err(error) if !kernel::is_absence(&error) => Err(self.failed("remove", error)),
            _ => Ok(()),
        };
        removed(std::fs::remove_file(self.aside()))?;
        removed(std::fs::remove_dir_all(self.folder()))
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        let doing = format!("{verb} the direct volume `{}`", self.folder().display());
        Error::new(Kind::Internal, doing).because(error)
    }
}

/// Whether a name may be the id of a sandbox, and leads nowhere else.
fn is_sandbox(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name != FILE && !name.starts_with('.') && name.len() <= 128 && name.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn path(text: &str) -> AbsolutePath {
        AbsolutePath::parse(text).expect("a path")
    }

    #[test]
    fn an_entry_is_where_the_runtime_looks_and_only_root_may_read_it() {
        let run = tempfile::tempdir().expect("a folder");
        let folders = Folders::below(run.path());
        // With characters that the two alphabets of Base64 spell differently, and with padding.
        let entry = Entry::of(&folders, &path("/k/~?/mount>")).expect("short");
        assert!(!entry.exists().expect("looked"));
        assert_eq!(entry.read().expect("read"), None);
        entry.write(b"{}").expect("written");
        entry.write(b"{\"a\":1}").expect("written again");
        let root = run.path().join("kata-containers/shared/direct-volumes");
        let names = kernel::list(&root).expect("listed");
        assert_eq!(names, ["L2svfj8vbW91bnQ-"], "and nothing beside it");
        let folder = root.join("L2svfj8vbW91bnQ-");
        let file = folder.join("mountInfo.json");
        for (path, mode) in [(&folder, 0o700), (&file, 0o600)] {
            let found = std::fs::metadata(path).expect("there").permissions();
            assert_eq!(found.mode() & 0o777, mode, "{}", path.display());
        }
        assert_eq!(std::fs::read(&file).expect("read"), b"{\"a\":1}");
        assert!(entry.sandboxes().expect("looked").is_empty());
        for sandbox in ["5a1b", "07c3"] {
            std::fs::write(folder.join(sandbox), "").expect("as the runtime does");
        }
        assert_eq!(entry.sandboxes().expect("looked"), ["07c3", "5a1b"]);
        entry.remove().expect("removed");
        entry.remove().expect("again");
        assert!(kernel::list(&root).expect("listed").is_empty());
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_no_sandbox_and_a_long_path_has_no_entry() {
        for bad in [
            "..",
            ".hidden",
            "a/b",
            "a b",
            "mountInfo.json",
            "a".repeat(129).as_str(),
        ] {
            assert!(!is_sandbox(bad), "{bad}");
        }
        let folders = Folders::below(Path::new("/run"));
        assert!(Entry::of(&folders, &path(&format!("/{}", "a".repeat(188)))).is_some());
        assert!(Entry::of(&folders, &path(&format!("/{}", "a".repeat(189)))).is_none());
    }
}
