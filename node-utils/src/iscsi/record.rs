//! Changes the record of a session in the database of `iscsiadm` directly in its file.
//!
//! `iscsiadm` takes a setting only as an argument, and every user of the host may read the arguments
//! of a process. So a password goes into the file that `iscsiadm` has made, in its own format, and
//! `iscsiadm` must then show the intended settings. The source is open-iscsi's `idbm.c`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use exec::HostRoot;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::facts::IscsiFacts;
use crate::blocking::{self, Doing, Limits};
use crate::kernel;
use crate::tools::Tools;
use csi_types::attachment::Portal;
use csi_types::error::{Error, Kind};

/// The place where distributions have the records, as they were built: Debian from 13 on, Fedora and SUSE;
/// all others; built from source.
const DATABASES: [&str; 3] = [
    "var/lib/iscsi/nodes",
    "etc/iscsi/nodes",
    "usr/local/etc/iscsi/nodes",
];

const END: &str = "# END RECORD";

/// The text that `iscsiadm` prints in the place of a password.
const MASK: &str = "********";

/// Puts settings into the record that `iscsiadm` has just made.
pub(super) async fn write(
    tools: &Tools,
    facts: &IscsiFacts,
    portal: &Portal,
    settings: Vec<(String, SecretString)>,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("write the secrets of {} at {portal}", facts.iqn());
    let way = tools.iscsi_access().cloned();
    let (target, portal) = (facts.iqn().as_str().to_owned(), portal.clone());
    let work = {
        let doing = doing.clone();
        move || {
            let failed =
                |error: io::Error| Error::new(Kind::Internal, doing.clone()).because(error);
            let root = match way {
                None => Some(HostRoot::at(PathBuf::from("/"))),
                Some(way) => way.root(),
            };
            let Some(root) = root else {
                return Err(Error::new(Kind::Unreachable, doing).advise(
                    "the files of iscsiadm cannot be reached; does the daemon iscsid run?",
                ));
            };
            let found = find(root.path(), &target, &portal).map_err(failed)?;
            let Some((database, records)) = found else {
                return Err(Error::new(Kind::Internal, doing.clone()).advise(format!(
                    "iscsiadm has made a record, but it is in none of {}",
                    DATABASES.join(", ")
                )));
            };
            let aside = database.join(format!(".omnibus-csi.{target}"));
            for record in records {
                change(&record, &aside, &settings).map_err(failed)?;
            }
            Ok(())
        }
    };
    blocking::run(Limits::until(deadline), Doing::changing(doing), work).await
}

/// The first setting that a record, as `iscsiadm` shows it, does not have as it was meant.
///
/// `iscsiadm` ignores a line that it does not understand, and a value that cannot be.
pub(super) fn misunderstood<'a>(
    shown: &str,
    settings: &'a [(String, SecretString)],
) -> Option<&'a str> {
    let records: Vec<&str> = shown
        .split(END)
        .filter(|text| text.contains(" = "))
        .collect();
    let has = |record: &str, name: &str, value: &str| {
        let is = |line: &str| {
            line.split_once(" = ").is_some_and(|(known, shown)| {
                known == name && (shown == value || shown == MASK || is_same_number(shown, value))
            })
        };
        record.lines().any(is)
    };
    let everywhere = |name: &str, value: &SecretString| {
        !records.is_empty()
            && records
                .iter()
                .all(|record| has(record, name, value.expose_secret()))
    };
    let wrong = settings
        .iter()
        .find(|(name, value)| !everywhere(name, value));
    wrong.map(|(name, _)| name.as_str())
}

fn is_same_number(shown: &str, value: &str) -> bool {
    let number = |text: &str| text.parse::<i64>().ok();
    number(shown).is_some() && number(shown) == number(value)
}

/// The records of a target at a portal, and the directory above all records, in the database that
/// was changed last: a record that an older `iscsiadm` left elsewhere is not the one just made.
fn find(root: &Path, target: &str, portal: &Portal) -> io::Result<Option<(PathBuf, Vec<PathBuf>)>> {
    let mut newest: Option<(SystemTime, PathBuf, Vec<PathBuf>)> = None;
    for database in DATABASES {
        let Some(below) = exec::resolve(root, &Path::new(database).join(target)) else {
            continue;
        };
        let directory = root.join(below);
        let records = records(&directory, portal)?;
        for record in &records {
            let changed = std::fs::metadata(record)?.modified()?;
            if newest.as_ref().is_none_or(|(last, ..)| changed > *last)
                && let Some(above) = directory.parent().and_then(Path::parent)
            {
                newest = Some((changed, above.to_owned(), records.clone()));
            }
        }
    }
    Ok(newest.map(|(_, above, records)| (above, records)))
}

/// The records of a portal in the directory of a target.
///
/// A record made for a portal alone is a file, `host,port`. One that a discovery has made is in a
/// directory that says which group of portals it found it in, `host,port,group`, by the name of the
/// interface. Old versions have no group in the directory's name.
fn records(directory: &Path, portal: &Portal) -> io::Result<Vec<PathBuf>> {
    let plain = format!("{},{}", portal.host, portal.port);
    let is_ours = |name: &str| match name.strip_prefix(&plain) {
        Some(rest) => rest.is_empty() || rest.starts_with(','),
        None => false,
    };
    let mut records = Vec::new();
    for name in kernel::list(directory)? {
        if !is_ours(&name) {
            continue;
        }
        let path = directory.join(&name);
        if path.is_dir() {
            let interfaces = kernel::list(&path)?;
            records.extend(interfaces.into_iter().map(|interface| path.join(interface)));
        } else {
            records.push(path);
        }
    }
    Ok(records)
}

/// Writes the new record aside and puts it in the place of the old one, so that no reader sees
/// half of one.
///
/// Aside is above all records: in the directory of a target it would be taken for a record or, left
/// behind by a crash, keep the directory from being removed. The next one takes its place.
fn change(record: &Path, aside: &Path, settings: &[(String, SecretString)]) -> io::Result<()> {
    let old = SecretString::from(std::fs::read_to_string(record)?);
    let new = edited(old.expose_secret(), settings)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the record has no end"))?;
    let _only_one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    match std::fs::remove_file(aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = fill(aside, &new).and_then(|()| std::fs::rename(aside, record));
    if written.is_err() {
        let _ = std::fs::remove_file(aside);
    }
    written
}

/// Two portals of one target are written at once.
static WRITING: Mutex<()> = Mutex::new(());

fn fill(aside: &Path, text: &SecretString) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(aside)?;
    file.write_all(text.expose_secret().as_bytes())?;
    file.sync_all()
}

/// A record with these settings in the place of its own, or added; `None` if it is no whole record.
fn edited(record: &str, settings: &[(String, SecretString)]) -> Option<SecretString> {
    let is_set = |line: &str| {
        let name = line.split_once('=').map(|(name, _)| name.trim());
        name.is_some_and(|name| settings.iter().any(|(known, _)| known == name))
    };
    let mut new = String::with_capacity(2 * record.len() + 4096);
    let mut ended = false;
    for line in record.lines() {
        if line.trim() == END {
            ended = true;
            for (name, value) in settings {
                new.push_str(name);
                new.push_str(" = ");
                new.push_str(value.expose_secret());
                new.push('\n');
            }
        }
        if ended || !is_set(line) {
            new.push_str(line);
            new.push('\n');
        }
    }
    ended.then(|| new.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A record as open-iscsi 2.1.11 has written it, and another one as it has shown it.
    const RECORD: &str = include_str!("captured/record");
    const SHOWN: &str = include_str!("captured/shown");

    const TARGET: &str = "iqn.2005-10.org.example:isc-one";

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, SecretString)> {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).into());
        pairs.iter().map(pair).collect()
    }

    fn portal() -> Portal {
        Portal::parse("10.77.0.1:3271", Portal::ISCSI).expect("portal")
    }

    /// Makes a database below `root` with this record.
    fn keep(root: &Path, database: &str, record: &str) -> PathBuf {
        let path = root.join(database).join(TARGET).join(record);
        std::fs::create_dir_all(path.parent().expect("directory")).expect("directory");
        std::fs::write(&path, RECORD).expect("write");
        path
    }

    #[test]
    fn settings_take_the_place_of_their_old_values_and_nothing_else_changes() {
        let new = settings(&[
            ("node.session.auth.authmethod", "CHAP"),
            ("node.session.auth.password", "a = b # c"),
        ]);
        let edited = edited(RECORD, &new).expect("record");
        let edited = edited.expose_secret();
        assert_eq!(edited.lines().count(), RECORD.lines().count() + 1);
        assert!(
            edited.starts_with("# BEGIN RECORD 2.1.11\n") && edited.ends_with("\n# END RECORD\n")
        );
        assert_eq!(edited.matches("node.session.auth.authmethod").count(), 1);
        assert!(edited.contains("\nnode.session.auth.password = a = b # c\n"));
        let kept = RECORD.lines().filter(|line| !line.contains("authmethod"));
        for line in kept {
            assert!(edited.lines().any(|other| other == line), "{line}");
        }
    }

    #[test]
    fn half_a_record_is_not_touched() {
        let half = RECORD.trim_end().trim_end_matches(END);
        assert!(edited(half, &settings(&[("a", "b")])).is_none());
    }

    #[test]
    fn what_a_record_is_shown_to_have_is_compared_with_what_was_meant() {
        let meant = [
            ("node.startup", "manual"),
            ("node.session.auth.username", "isc-user"),
            ("node.session.auth.password", "whatever"),
            ("node.session.timeo.replacement_timeout", "0120"),
        ];
        assert_eq!(misunderstood(SHOWN, &settings(&meant)), None);
        for wrong in [
            ("node.startup", "automatic"),
            ("node.session.auth.username", "ISC-user"),
            ("node.session.timeo.replacement_timeout", "121"),
            ("node.nonsense", "1"),
        ] {
            let settings = settings(&[meant[1], wrong]);
            assert_eq!(misunderstood(SHOWN, &settings), Some(wrong.0));
        }
        // By two interfaces; one of them has it otherwise.
        let both = format!("{SHOWN}{}", SHOWN.replace("isc-user", "other"));
        assert!(misunderstood(&both, &settings(&meant)).is_some());
        assert!(misunderstood("", &settings(&meant)).is_some());
    }

    #[test]
    fn a_record_is_found_in_each_layout_and_only_that_of_the_portal() {
        for layout in [
            "10.77.0.1,3271",
            "10.77.0.1,3271,1/default",
            "10.77.0.1,3271/iface0",
        ] {
            let root = tempfile::tempdir().expect("directory");
            keep(root.path(), DATABASES[1], "10.77.0.1,32710");
            keep(root.path(), DATABASES[1], "10.77.0.11,3271,1/default");
            let path = keep(root.path(), DATABASES[1], layout);
            let (above, records) = find(root.path(), TARGET, &portal())
                .expect("look")
                .expect("found");
            assert_eq!(records, [path]);
            assert_eq!(above, root.path().join("etc/iscsi"));
        }
    }

    #[test]
    fn of_two_databases_the_one_that_was_written_last_is_meant() {
        let root = tempfile::tempdir().expect("directory");
        let first = keep(root.path(), DATABASES[0], "10.77.0.1,3271");
        let second = keep(root.path(), DATABASES[1], "10.77.0.1,3271");
        for (older, newer) in [(&first, &second), (&second, &first)] {
            let long_ago = SystemTime::UNIX_EPOCH;
            let file = OpenOptions::new().write(true).open(older).expect("open");
            file.set_modified(long_ago).expect("time");
            let file = OpenOptions::new().write(true).open(newer).expect("open");
            file.set_modified(SystemTime::now()).expect("time");
            let (_, records) = find(root.path(), TARGET, &portal())
                .expect("look")
                .expect("found");
            assert_eq!(records, std::slice::from_ref(newer));
        }
    }

    #[test]
    fn links_are_followed_as_on_the_host_and_never_out_of_it() {
        let root = tempfile::tempdir().expect("directory");
        let path = keep(root.path(), "data/nodes", "10.77.0.1,3271");
        std::fs::create_dir_all(root.path().join("etc")).expect("directory");
        symlink("/data", root.path().join("etc/iscsi")).expect("link");
        let (above, records) = find(root.path(), TARGET, &portal())
            .expect("look")
            .expect("found");
        assert_eq!((above, records), (root.path().join("data"), vec![path]));
    }

    #[test]
    fn a_changed_record_is_readable_by_its_owner_only_and_nothing_is_left_beside_it() {
        let root = tempfile::tempdir().expect("directory");
        let record = keep(root.path(), DATABASES[0], "10.77.0.1,3271");
        let aside = root.path().join("var/lib/iscsi/.omnibus-csi.x");
        // Left by a killed process.
        std::fs::write(&aside, "old").expect("write");
        change(&record, &aside, &settings(&[("a.auth.b", "c")])).expect("changed");
        let mode = std::fs::metadata(&record)
            .expect("record")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            std::fs::read_to_string(&record)
                .expect("read")
                .contains("a.auth.b = c\n")
        );
        assert!(!aside.exists());
        std::fs::write(&record, "half").expect("write");
        change(&record, &aside, &settings(&[("a", "c")])).expect_err("half a record");
        assert!(!aside.exists());
    }
}
