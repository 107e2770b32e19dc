//! A tree with one of everything, a description that misses nothing, and filesystems in files.
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Large enough for xfs, which wants 300 MB; the file is sparse.
pub(crate) const IMAGE_SIZE: u64 = 400 << 20;

/// A filesystem in a file, mounted until it is dropped.
pub(crate) struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    /// Why not, if it cannot be had here.
    pub(crate) fn mount(kind: &str, mkfs: &[&str]) -> Result<Self, String> {
        Self::mount_with(kind, "loop", mkfs)
    }

    /// The same with these options of the mount.
    pub(crate) fn mount_with(kind: &str, options: &str, mkfs: &[&str]) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err(format!("mounting {kind} needs root"));
        }
        let dir = tempfile::tempdir().expect("folder");
        let file = dir.path().join("image");
        std::fs::File::create(&file)
            .expect("image")
            .set_len(IMAGE_SIZE)
            .expect("size");
        let mount = dir.path().join("mount");
        std::fs::create_dir(&mount).expect("folder");
        run(mkfs[0], &[&mkfs[1..], &[text(&file)]].concat())?;
        run(
            "mount",
            &["-o", options, "-t", kind, text(&file), text(&mount)],
        )?;
        Ok(Self { dir })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mount/base")
    }

    pub(crate) fn read_only(&self, on: bool) {
        let how = if on { "remount,ro" } else { "remount,rw" };
        let mount = self.dir.path().join("mount");
        run("mount", &["-o", how, text(&mount)]).expect("remount");
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = run("umount", &[text(&self.dir.path().join("mount"))]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[expect(clippy::disallowed_methods, reason = "a test makes its own filesystem")]
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let done = std::process::Command::new(program).args(arguments).output();
    match done {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// One access control list: owner, one named user, group, mask, others.
fn acl() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, permissions, id) in [
        (1_u16, 6_u16, none),
        (2, 7, 1234),
        (4, 4, none),
        (16, 7, none),
        (32, 0, none),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Fills `top`; gives the number of entries.
pub(crate) fn plant(top: &Path) -> usize {
    let at = |name: &str| top.join(name);
    let write = |name: &str, content: &[u8], mode: u32| {
        std::fs::write(at(name), content).expect("file");
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).expect("mode");
    };
    for (name, mode) in [
        ("sticky", 0o1777),
        ("group", 0o2750),
        ("closed", 0o700),
        ("other", 0o755),
    ] {
        std::fs::create_dir(at(name)).expect("folder");
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).expect("mode");
    }
    std::fs::create_dir_all(at("other/a/b/c")).expect("folders");
    write("empty", b"", 0o644);
    // Only root can read, and so copy, a file without any permission.
    let root = rustix::process::geteuid().is_root();
    write("secret", b"s", if root { 0 } else { 0o400 });
    write("program", b"#!", 0o4755);
    write("other/a/b/c/file", b"deep", 0o640);
    std::fs::write(top.join(OsStr::from_bytes(b"not \xff utf-8\n")), b"x").expect("file");
    let sparse = std::fs::File::create(at("sparse")).expect("file");
    sparse.set_len(8 << 20).expect("hole");
    sparse.write_all_at(&[3; 4096], 1 << 20).expect("data");
    sparse.write_all_at(&[4; 4096], 5 << 20).expect("data");
    write("linked", b"one file", 0o600);
    std::fs::hard_link(at("linked"), at("other/a/linked")).expect("link");
    std::fs::hard_link(at("linked"), at("closed/linked")).expect("link");
    symlink("/nowhere/../x", at("dangling")).expect("link");
    symlink("other", at("to-folder")).expect("link");
    UnixListener::bind(at("socket")).expect("socket");
    let mode = Mode::from_raw_mode(0o620);
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, mode, 0).expect("pipe");
    std::fs::hard_link(at("pipe"), at("other/pipe")).expect("link");
    for number in 0..500 {
        std::fs::write(at(&format!("sticky/{number}")), number.to_string()).expect("file");
    }
    adorn(top);
    520
}

/// Gives some of the entries owners, attributes and times of their own.
fn adorn(top: &Path) {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let what = "owners and devices in a copied tree";
        node_utils::requirement::could_not_run(what, "only root can make them");
    }
    let at = |name: &str| top.join(name);
    let mode = Mode::from_raw_mode(0o620);
    let attribute = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::lsetxattr(at(name), key, value, XattrFlags::empty()).expect(key);
    };
    attribute("empty", "user.one", b"1");
    attribute("other", "user.two", &[0, 255, 10]);
    attribute(".", "user.top", b"top");
    // Anything may call itself that, but for the top of a volume.
    attribute("other", "user.omnibus-csi", b"not ours");
    attribute("linked", "system.posix_acl_access", &acl());
    attribute("group", "system.posix_acl_default", &acl());
    if root {
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, at("device"), FileType::CharacterDevice, mode, device)
            .expect("device");
        for (number, name) in ["program", "dangling", "pipe", "other", "."]
            .into_iter()
            .enumerate()
        {
            let id = Some(1000 + u32::try_from(number).expect("small"));
            std::os::unix::fs::lchown(at(name), id, id).expect("owner");
        }
        std::fs::set_permissions(at("program"), PermissionsExt::from_mode(0o4755)).expect("mode");
        attribute("dangling", "trusted.link", b"of a link");
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        attribute("empty", "security.capability", &capability);
    }
    std::fs::set_permissions(top, PermissionsExt::from_mode(0o1751)).expect("mode");
    for (number, name) in ["dangling", "pipe", "linked", "closed", "other/a/b", "."]
        .iter()
        .enumerate()
    {
        let time = |nanos| Timespec {
            tv_sec: 1_000_000_000 + i64::try_from(number).expect("small"),
            tv_nsec: nanos,
        };
        let times = Timestamps {
            last_access: time(1),
            last_modification: time(123_456_789),
        };
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, at(name), &times, no_follow).expect("times");
    }
}

/// Everything that can be seen of each entry, by its path below `top`.
pub(crate) fn describe(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut described = BTreeMap::new();
    let mut first_names: HashMap<u64, PathBuf> = HashMap::new();
    let mut pending = vec![PathBuf::new()];
    let mut all = Vec::new();
    while let Some(relative) = pending.pop() {
        let path = top.join(&relative);
        if path.symlink_metadata().expect("look").is_dir() {
            let entries = std::fs::read_dir(&path).expect("list");
            pending.extend(entries.map(|entry| relative.join(entry.expect("entry").file_name())));
        }
        all.push(relative);
    }
    all.sort();
    for relative in all {
        let path = top.join(&relative);
        let meta = path.symlink_metadata().expect("look");
        let content = if meta.is_file() {
            let bytes = std::fs::read(&path).expect("read");
            let sum = bytes.iter().fold(7_u64, |sum, b| {
                sum.wrapping_mul(31).wrapping_add(u64::from(*b))
            });
            // Whether it has holes; how filesystems count blocks exactly is theirs.
            let holes = meta.blocks() * 512 < meta.size() / 2;
            format!("file of {} bytes, {sum}, holes {holes}", bytes.len())
        } else if meta.is_symlink() {
            format!(
                "link to {}",
                std::fs::read_link(&path).expect("link").display()
            )
        } else {
            let kind = meta.file_type();
            format!("{kind:?} {} device {}", kind.is_fifo(), meta.rdev())
        };
        let name = first_names
            .entry(meta.ino())
            .or_insert_with(|| relative.clone())
            .clone();
        let links = if meta.is_dir() { 1 } else { meta.nlink() };
        described.insert(
            relative,
            format!(
                "{content}; mode {:o}; owner {}:{}; changed {}.{:09}; {links} links, first {}; {}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.mtime_nsec(),
                name.display(),
                attributes(&path, path == top.join("")),
            ),
        );
    }
    described
}

fn attributes(path: &Path, top: bool) -> String {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or_default();
    let mut lines: Vec<String> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| {
            !(name.is_empty()
                || top && [&b"user.omnibus-csi"[..], b"trusted.omnibus-csi"].contains(name))
        })
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("value");
            format!("{}={:?}", String::from_utf8_lossy(name), &value[..length])
        })
        .collect();
    lines.sort();
    lines.join(", ")
}
