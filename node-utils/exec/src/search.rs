//! Finds a program, in this root filesystem or in another one mounted below a folder.
//!
//! Symbolic links are resolved as from inside that root. The absolute links of NixOS
//! (`/run/current-system/sw/bin/x` to `/nix/store/…`) are then found on the host, although the container has no
//! `/nix`. Nothing is cached: the host may be upgraded while the pod runs.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, lstat, readlink};

use crate::command::Program;

/// The folders searched for a program, in this order.
///
/// compat: "Programs of the host": the order of democratic-csi's wrappers; the last is NixOS.
pub const DIRECTORIES: [&str; 7] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/run/current-system/sw/bin",
];

/// As many links as the kernel follows before it calls them a loop.
const MOST_LINKS: usize = 40;

/// The absolute path, as seen from inside `root`, of the first executable file of that name.
pub(crate) fn find<D: AsRef<str>>(
    root: &Path,
    program: &Program,
    directories: &[D],
) -> Option<String> {
    if program.is_path() {
        let path = program.as_str();
        return is_executable(root, path).then(|| path.to_owned());
    }
    directories
        .iter()
        .map(|directory| format!("{}/{program}", directory.as_ref()))
        .find(|path| is_executable(root, path))
}

/// The value of `PATH` for these folders.
pub(crate) fn path_variable<D: AsRef<str>>(directories: &[D]) -> String {
    let directories: Vec<&str> = directories.iter().map(AsRef::as_ref).collect();
    directories.join(":")
}

fn is_executable(root: &Path, path: &str) -> bool {
    let any_x = Mode::XUSR | Mode::XGRP | Mode::XOTH;
    resolve(root, Path::new(path))
        .and_then(|resolved| lstat(root.join(resolved)).ok())
        .is_some_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && Mode::from_raw_mode(stat.st_mode).intersects(any_x)
        })
}

/// Resolves the symbolic links of `path` with `root` as the root folder. The result is relative to `root` and has
/// no links. `None` if the path does not exist.
pub fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut pending = reversed(path);
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(name) = pending.pop() {
        if name == ".." {
            // At the root itself this stays there, as the kernel has it.
            done.pop();
            continue;
        }
        let here = root.join(&done).join(&name);
        let stat = lstat(&here).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            done.push(name);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return None;
        }
        let target = readlink(&here, Vec::new()).ok()?;
        let target = PathBuf::from(OsString::from(target.into_string().ok()?));
        if target.is_absolute() {
            done.clear();
        }
        pending.extend(reversed(&target));
    }
    Some(done)
}

/// The names of a path, last first.
fn reversed(path: &Path) -> Vec<OsString> {
    let names = path
        .components()
        .rev()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{DIRECTORIES, find};
    use crate::Program;

    const TOOL: Program = Program::constant("iscsiadm");

    fn root() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn install(root: &Path, path: &str, mode: u32) {
        let file = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn link(root: &Path, path: &str, target: &str) {
        let file = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        symlink(target, file).unwrap();
    }

    #[test]
    fn the_first_of_the_seven_folders_wins() {
        let root = root();
        for directory in DIRECTORIES.iter().rev() {
            let path = format!("{directory}/iscsiadm");
            install(root.path(), &path, 0o755);
            assert_eq!(find(root.path(), &TOOL, &DIRECTORIES), Some(path));
        }
    }

    #[test]
    fn a_file_that_cannot_be_executed_and_a_folder_are_passed_over() {
        let root = root();
        install(root.path(), "/usr/local/sbin/iscsiadm", 0o644);
        fs::create_dir_all(root.path().join("usr/sbin/iscsiadm")).unwrap();
        assert_eq!(find(root.path(), &TOOL, &DIRECTORIES), None);
        install(root.path(), "/sbin/iscsiadm", 0o755);
        assert_eq!(
            find(root.path(), &TOOL, &DIRECTORIES),
            Some("/sbin/iscsiadm".into())
        );
    }

    #[test]
    fn absolute_links_are_followed_within_the_other_root() {
        let root = root();
        install(root.path(), "/nix/store/abc-open-iscsi/bin/iscsiadm", 0o555);
        link(root.path(), "/nix/store/system/sw", "../abc-open-iscsi");
        link(root.path(), "/run/current-system", "/nix/store/system");
        assert_eq!(
            find(root.path(), &TOOL, &DIRECTORIES),
            Some("/run/current-system/sw/bin/iscsiadm".into())
        );
    }

    #[test]
    fn a_link_cannot_climb_out_of_the_other_root() {
        let root = root();
        // Exists here for sure, not in the other root.
        link(
            root.path(),
            "/usr/bin/sh",
            "../../../../../../../../../../../../bin/sh",
        );
        assert_eq!(
            find(root.path(), &Program::constant("sh"), &DIRECTORIES),
            None
        );
        install(root.path(), "/bin/sh", 0o755);
        assert_eq!(
            find(root.path(), &Program::constant("sh"), &DIRECTORIES),
            Some("/usr/bin/sh".into())
        );
    }

    #[test]
    fn a_loop_of_links_is_not_a_program() {
        let root = root();
        link(root.path(), "/usr/bin/iscsiadm", "/bin/iscsiadm");
        link(root.path(), "/bin/iscsiadm", "/usr/bin/iscsiadm");
        assert_eq!(find(root.path(), &TOOL, &DIRECTORIES), None);
    }

    #[test]
    fn an_absolute_path_is_taken_or_refused_but_not_searched_for() {
        let root = root();
        install(root.path(), "/usr/bin/iscsiadm", 0o755);
        let elsewhere = Program::constant("/usr/local/sbin/iscsiadm");
        assert_eq!(find(root.path(), &elsewhere, &DIRECTORIES), None);
        install(root.path(), "/usr/local/sbin/iscsiadm", 0o755);
        assert_eq!(
            find(root.path(), &elsewhere, &DIRECTORIES),
            Some("/usr/local/sbin/iscsiadm".into())
        );
    }
}
