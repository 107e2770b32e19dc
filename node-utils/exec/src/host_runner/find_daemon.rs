//! Finds a daemon of the host by its name.
//!
//! As `pgrep --exact --oldest` does, but any process may have any name. A pod could call itself `iscsid` and have its
//! own `iscsiadm` run as root. So only a process counts that could do as much without us: it has `CAP_SYS_ADMIN` in
//! this user namespace, and it is in no pod.
//!
//! Reference: proc(5); the name is `comm`, the start time is field 22 of `stat`. `cgroup_namespaces(7)` for paths that
//! begin with `/..`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// The kernel cuts the name of a process to this length.
const LONGEST_NAME: usize = 15;

/// `CAP_SYS_ADMIN` of capabilities(7), as a bit of `CapEff`.
const SYS_ADMIN: u64 = 1 << 21;

/// Part of the name of the control group of all pods: `kubepods`, `kubepods.slice`, `kubelet-kubepods.slice`.
const PODS: &str = "kubepods";

/// A process that is the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Daemon {
    started: u64,
    pub(super) pid: u32,
}

/// The oldest process of exactly this name that may be trusted, if one runs.
pub(super) fn oldest(proc: &Path, name: &str) -> Option<Daemon> {
    let entries = fs::read_dir(proc).ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| daemon(proc, name, pid)).min()
}

impl Daemon {
    /// Whether the number still belongs to this process, and to a daemon that may be trusted. What was opened by the
    /// number before is then the daemon's.
    pub(super) fn is_still_there(self, proc: &Path, name: &str) -> bool {
        daemon(proc, name, self.pid) == Some(self)
    }

    /// The root of its files, opened; `None` if it has ended by now. It stays what it is whatever runs by that
    /// number later.
    pub(super) fn root(self, proc: &Path, name: &str) -> Option<OwnedFd> {
        let root = proc.join(self.pid.to_string()).join("root");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(root, flags, Mode::empty()).ok()?;
        self.is_still_there(proc, name).then_some(root)
    }
}

/// The process of this number, if it has that name and may be trusted.
fn daemon(proc: &Path, name: &str, pid: u32) -> Option<Daemon> {
    let name = name.get(..LONGEST_NAME).unwrap_or(name);
    let process = proc.join(pid.to_string());
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let (comm, started) = parse(&stat)?;
    (comm == name).then_some(())?;
    if !is_trusted(proc, &process) {
        tracing::warn!(
            pid,
            name,
            "this process has the daemon's name, but it is in a pod or has not all rights, so it is not used"
        );
        return None;
    }
    Some(Daemon { started, pid })
}

/// Whether a process has all rights on this machine and is in no pod. What cannot be read is not trusted.
fn is_trusted(proc: &Path, process: &Path) -> bool {
    let user = |process: &Path| fs::read_link(process.join("ns/user")).ok();
    let ours = user(&proc.join("self"));
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let groups = |process: &Path| fs::read_to_string(process.join("cgroup")).ok();
    ours.is_some()
        && user(process) == ours
        && effective(&status).is_some_and(|rights| rights & SYS_ADMIN != 0)
        && match (groups(process), groups(&proc.join("1"))) {
            (Some(its), Some(first)) => !is_in_pod(&its, &first),
            _ => false,
        }
}

/// The effective capabilities of a `status`.
fn effective(status: &str) -> Option<u64> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(digits?.trim(), 16).ok()
}

/// Whether a process with these control groups is in a pod; `first` are those of process 1, which never is.
///
/// In a control group namespace paths are relative: `/..` once for each level up to what is common with us. We may be
/// in a pod ourselves, whose name is then not in the path of another pod. Such a path goes up less far than that of
/// process 1.
fn is_in_pod(its: &str, first: &str) -> bool {
    its.lines().any(|line| {
        let Some((hierarchy, path)) = split(line) else {
            return true;
        };
        let of_first = first.lines().filter_map(split);
        let mut of_first = of_first.filter(|(other, _)| *other == hierarchy);
        let needed = of_first.next().map_or(0, |(_, path)| levels_up(path));
        path.contains(PODS) || levels_up(path) < needed
    })
}

/// `5:cpu,cpuacct:/a` as its hierarchy and its path.
fn split(line: &str) -> Option<(&str, &str)> {
    let (hierarchy, rest) = line.split_once(':')?;
    Some((hierarchy, rest.split_once(':')?.1))
}

fn levels_up(path: &str) -> usize {
    let names = path.split('/').skip(1);
    names.take_while(|name| *name == "..").count()
}

/// Name and start time of a process.
fn parse(stat: &str) -> Option<(&str, u64)> {
    let open = stat.find('(')?;
    // A name may hold parentheses and spaces; the fields after it do not.
    let close = stat.rfind(')')?;
    let comm = stat.get(open + 1..close)?;
    // The first field after the name is field 3.
    let started = stat
        .get(close + 1..)?
        .split_ascii_whitespace()
        .nth(22 - 3)?;
    Some((comm, started.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{effective, is_in_pod, oldest, parse};
    use crate::HostAccess;

    const ALL: &str = "000001ffffffffff";
    const OURS: &str = "user:[4026531837]";
    const SERVICE: &str = "0::/system.slice/iscsid.service\n";

    /// A `/proc` of a host, seen by a process outside of pods.
    fn host() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for process in ["self", "1"] {
            fs::create_dir_all(proc.path().join(process).join("ns")).unwrap();
        }
        symlink(OURS, proc.path().join("self/ns/user")).unwrap();
        fs::write(proc.path().join("1/cgroup"), "0::/init.scope\n").unwrap();
        proc
    }

    fn process(proc: &Path, pid: u32, comm: &str, started: u64) {
        trusted(proc, pid, comm, started, ALL, OURS, SERVICE);
    }

    fn trusted(
        proc: &Path,
        pid: u32,
        comm: &str,
        started: u64,
        rights: &str,
        user: &str,
        groups: &str,
    ) {
        let zeros = "0 ".repeat(18);
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("ns")).unwrap();
        let stat = format!("{pid} ({comm}) S {zeros}{started} 0 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
        let status = format!("Name:\t{comm}\nCapPrm:\t{ALL}\nCapEff:\t{rights}\nCapBnd:\t{ALL}\n");
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("cgroup"), groups).unwrap();
        symlink(user, folder.join("ns/user")).unwrap();
    }

    fn found(proc: &Path, name: &str) -> Option<u32> {
        oldest(proc, name).map(|daemon| daemon.pid)
    }

    #[test]
    fn the_oldest_process_is_the_one_that_started_first_not_the_smallest_number() {
        let proc = host();
        process(proc.path(), 20, "iscsid", 500);
        process(proc.path(), 300, "iscsid", 400);
        process(proc.path(), 4, "iscsid2", 1);
        process(proc.path(), 5, "an iscsid", 1);
        fs::create_dir(proc.path().join("sys")).unwrap();
        assert_eq!(found(proc.path(), "iscsid"), Some(300));
        assert_eq!(found(proc.path(), "multipathd"), None);
    }

    #[test]
    fn an_older_process_that_only_has_the_name_is_not_the_daemon() {
        let pod = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n";
        let elsewhere = "user:[4026532999]";
        for (rights, user, groups) in [
            ("0000000000000000", OURS, SERVICE),
            // All but CAP_SYS_ADMIN.
            ("000001ffffdfffff", OURS, SERVICE),
            (ALL, elsewhere, SERVICE),
            (ALL, OURS, pod),
            (ALL, OURS, ""),
        ] {
            let proc = host();
            trusted(proc.path(), 50, "iscsid", 100, rights, user, groups);
            if groups.is_empty() {
                fs::remove_file(proc.path().join("50/cgroup")).unwrap();
            }
            assert_eq!(
                found(proc.path(), "iscsid"),
                None,
                "{rights} {user} {groups}"
            );
            process(proc.path(), 60, "iscsid", 200);
            assert_eq!(
                found(proc.path(), "iscsid"),
                Some(60),
                "{rights} {user} {groups}"
            );
        }
    }

    #[test]
    fn a_number_that_another_process_has_taken_is_seen() {
        let proc = host();
        process(proc.path(), 60, "iscsid", 200);
        let daemon = oldest(proc.path(), "iscsid").unwrap();
        assert!(daemon.is_still_there(proc.path(), "iscsid"));
        fs::remove_dir_all(proc.path().join("60")).unwrap();
        assert!(!daemon.is_still_there(proc.path(), "iscsid"));
        process(proc.path(), 60, "iscsid", 201);
        assert!(!daemon.is_still_there(proc.path(), "iscsid"));
    }

    #[test]
    fn a_root_stays_that_of_the_daemon_when_its_number_is_anothers() {
        let proc = host();
        let (daemons, others) = (proc.path().join("a"), proc.path().join("b"));
        for (root, text) in [(&daemons, "the host's"), (&others, "a pod's")] {
            fs::create_dir_all(root.join("etc")).unwrap();
            fs::write(root.join("etc/secret"), text).unwrap();
        }
        process(proc.path(), 60, "iscsid", 200);
        symlink(&daemons, proc.path().join("60/root")).unwrap();
        let access = HostAccess::Daemon {
            name: "iscsid".to_owned(),
            proc: proc.path().to_owned(),
        };
        let root = access.root().unwrap();
        let daemon = oldest(proc.path(), "iscsid").unwrap();
        fs::remove_dir_all(proc.path().join("60")).unwrap();
        process(proc.path(), 60, "iscsid", 201);
        symlink(&others, proc.path().join("60/root")).unwrap();
        let file = root.path().join("etc/secret");
        assert_eq!(fs::read_to_string(&file).unwrap(), "the host's");
        // As if it were changed between the look at the process and its root.
        assert!(daemon.root(proc.path(), "iscsid").is_none());
        fs::remove_dir_all(proc.path().join("60")).unwrap();
        assert!(access.root().is_none());
    }

    #[test]
    fn a_pod_is_recognized_from_inside_another_pod() {
        // We are in /kubepods/burstable/pod-a/container, with a control group namespace of our own.
        let first = "0::/../../../../init.scope\n";
        assert!(!is_in_pod("0::/../../../../system/iscsid\n", first));
        assert!(!is_in_pod("0::/../../../..\n", first));
        assert!(is_in_pod("0::/\n", first), "this very container");
        assert!(is_in_pod("0::/../../pod-b/container\n", first));
        assert!(is_in_pod(
            "0::/../../../besteffort/pod-c/container\n",
            first
        ));
        assert!(is_in_pod(
            "0::/../../../../kubepods/pod-d/container\n",
            first
        ));
        // Version 1 has a line for each hierarchy, and no namespace.
        let first = "4:memory:/init.scope\n0::/init.scope\n";
        assert!(!is_in_pod("4:memory:/system.slice\n0::/\n", first));
        assert!(is_in_pod(
            "4:memory:/kubepods/besteffort/pod-a/c\n0::/\n",
            first
        ));
        assert!(is_in_pod("no line of this file\n", first));
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_whole() {
        let zeros = "0 ".repeat(18);
        let stat = format!("7 (a) b (c) S {zeros}42 0");
        assert_eq!(parse(&stat), Some(("a) b (c", 42)));
    }

    #[test]
    fn the_rights_of_this_very_process_are_read() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(effective(&status).is_some());
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (comm, started) = parse(&stat).unwrap();
        assert!(started > 0);
        assert_eq!(
            fs::read_to_string("/proc/self/comm").unwrap().trim_end(),
            comm
        );
    }
}
