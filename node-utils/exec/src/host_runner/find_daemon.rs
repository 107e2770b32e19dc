//! Finds a daemon of the host by its name.
//!
//! Does the same as `pgrep --exact --oldest`, without starting a process. Reference: proc(5); the name is `comm`,
//! the start time is field 22 of `stat`.

use std::fs;
use std::path::Path;

/// The kernel cuts the name of a process to this length.
const LONGEST_NAME: usize = 15;

/// The oldest process of exactly this name, if one runs.
pub(super) fn oldest(proc: &Path, name: &str) -> Option<u32> {
    let name = name.get(..LONGEST_NAME).unwrap_or(name);
    let entries = fs::read_dir(proc).ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let named = pids.filter_map(|pid| {
        let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
        let (comm, started) = parse(&stat)?;
        (comm == name).then_some((started, pid))
    });
    named.min().map(|(_, pid)| pid)
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
    use std::path::Path;

    use super::{oldest, parse};

    fn process(proc: &Path, pid: u32, comm: &str, started: u64) {
        let zeros = "0 ".repeat(18);
        fs::create_dir(proc.join(pid.to_string())).unwrap();
        let stat = format!("{pid} ({comm}) S {zeros}{started} 0 0\n");
        fs::write(proc.join(pid.to_string()).join("stat"), stat).unwrap();
    }

    #[test]
    fn the_oldest_process_is_the_one_that_started_first_not_the_smallest_number() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 20, "iscsid", 500);
        process(proc.path(), 300, "iscsid", 400);
        process(proc.path(), 4, "iscsid2", 1);
        process(proc.path(), 5, "a iscsid", 1);
        fs::create_dir(proc.path().join("sys")).unwrap();
        assert_eq!(oldest(proc.path(), "iscsid"), Some(300));
        assert_eq!(oldest(proc.path(), "multipathd"), None);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_whole() {
        let zeros = "0 ".repeat(18);
        let stat = format!("7 (a) b (c) S {zeros}42 0");
        assert_eq!(parse(&stat), Some(("a) b (c", 42)));
    }

    #[test]
    fn this_very_process_is_found_in_the_real_proc() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (comm, started) = parse(&stat).unwrap();
        assert!(started > 0);
        let pid = oldest(Path::new("/proc"), comm).unwrap();
        let found = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(found.trim_end(), comm);
    }
}
