//! The files of one folder, compared by content.
//!
//! Every file is polled several times a second, and read if its metadata differ: swapped links, files
//! replaced by a rename, edits that keep the time. A content is reported when two polls have found the
//! same, so that a half-written file is not reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::scan::Changed;
use crate::routing::config_file::read_regular;
use crate::routing::connections::ConnectionName;

/// The ending of a file of a connection.
const ENDING: &str = ".yaml";
/// The endings of files that look like one of a connection.
const ALMOST: [&str; 2] = [".yml", ".json"];
/// Clocks of filesystems are coarse: a file that was changed so shortly before it was read may have
/// been changed again without a trace.
const SETTLED: Duration = Duration::from_secs(2);
/// The interval at which every file is read, for filesystems whose metadata show no changes.
const ANYWAY: Duration = Duration::from_mins(1);
/// One poll reads at most this part of the unchanged files, so that none takes long.
const SLICE: usize = 100;

/// Polls one folder, and remembers what it has seen there.
#[derive(Debug)]
pub(super) struct DirPoller {
    folder: PathBuf,
    files: BTreeMap<ConnectionName, Seen>,
    hasher: RandomState,
    opened: bool,
}

/// The result of one poll.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The connections that have a file, if the folder can be read.
    pub(super) there: io::Result<BTreeSet<ConnectionName>>,
    /// Files that are new or have another content.
    pub(super) changed: Vec<Changed>,
    /// Files that look like one of a connection and are none.
    pub(super) odd: Vec<String>,
}

/// One file, as it was last seen.
#[derive(Debug, Default)]
struct Seen {
    signature: Option<Signature>,
    content: Option<u64>,
    candidate: Option<(Option<Signature>, u64)>,
    read: Option<SystemTime>,
}

/// The signature of a file: it is another one, or was changed, if this differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signature {
    file: (u64, u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The way a file is polled.
#[derive(Debug, Clone, Copy)]
struct PollOptions {
    now: SystemTime,
    /// The new files that are reported by their first poll.
    at_once: AtOnce,
    /// Read it even if its metadata are unchanged.
    anyway: bool,
}

/// The files that are reported by their first poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtOnce {
    /// None: they may be half-written.
    None,
    /// Those without a change for a while.
    Settled,
    /// All of them.
    All,
}

// === impl DirPoller ===

impl DirPoller {
    /// A folder that was not polled yet.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            files: BTreeMap::new(),
            hasher: RandomState::new(),
            opened: false,
        }
    }

    /// The same, if the contents in `reported`, hashed by `hasher`, were reported already.
    pub(super) fn knowing(
        folder: PathBuf,
        hasher: RandomState,
        reported: &BTreeMap<ConnectionName, u64>,
    ) -> Self {
        let seen = |content: &u64| Seen {
            content: Some(*content),
            ..Seen::default()
        };
        let files = reported
            .iter()
            .map(|(name, content)| (name.clone(), seen(content)));
        Self {
            files: files.collect(),
            hasher,
            ..Self::new(folder)
        }
    }

    /// Polls every file. It may block forever.
    pub(super) fn poll(&mut self) -> Snapshot {
        self.poll_at(SystemTime::now(), AtOnce::Settled)
    }

    /// A single poll that reports every file at once.
    pub(super) fn survey(&mut self) -> Snapshot {
        self.poll_at(SystemTime::now(), AtOnce::All)
    }

    /// Polls as of `now`. The first poll reports the files in `at_once`.
    fn poll_at(&mut self, now: SystemTime, at_once: AtOnce) -> Snapshot {
        let mut snapshot = Snapshot {
            there: Ok(BTreeSet::new()),
            changed: Vec::new(),
            odd: Vec::new(),
        };
        let listed = match self.list(&mut snapshot.odd) {
            Ok(listed) => listed,
            Err(error) => {
                snapshot.there = Err(error);
                return snapshot;
            }
        };
        // Files of the first poll existed before this process.
        let first = !std::mem::replace(&mut self.opened, true);
        let at_once = if first { at_once } else { AtOnce::None };
        // Reported contents are kept until `forget`, for a file that comes back.
        self.files
            .retain(|name, seen| seen.content.is_some() || listed.contains(name));
        let mut slice = listed.len().div_ceil(SLICE);
        for name in &listed {
            let path = self.folder.join(format!("{name}{ENDING}"));
            let seen = self.files.entry(name.clone()).or_default();
            let anyway = slice > 0 && seen.is_old(now);
            slice -= usize::from(anyway);
            let options = PollOptions {
                now,
                at_once,
                anyway,
            };
            if let Some(text) = seen.read(&path, &self.hasher, options) {
                let (name, content) = (name.clone(), seen.content);
                snapshot.changed.push(Changed {
                    name,
                    path,
                    text,
                    content,
                });
            }
        }
        snapshot.there = Ok(listed);
        snapshot
    }

    /// Reports a file again at the next poll.
    pub(super) fn forget(&mut self, name: &ConnectionName) {
        if self
            .files
            .get(name)
            .is_some_and(|seen| seen.content.is_some())
        {
            self.files.remove(name);
        }
    }

    /// The connections that have a file.
    fn list(&self, odd: &mut Vec<String>) -> io::Result<BTreeSet<ConnectionName>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.folder)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            // Kubernetes, and editors, keep things of their own here.
            if file.starts_with('.') {
                continue;
            }
            let problem = |why: &str| format!("{}: {why}", self.folder.join(&file).display());
            if let Some(stem) = file.strip_suffix(ENDING) {
                match ConnectionName::parse(stem) {
                    Ok(name) => drop(names.insert(name)),
                    Err(error) => odd.push(problem(&error.to_string())),
                }
                continue;
            }
            let lower = file.to_ascii_lowercase();
            if lower.ends_with(ENDING) || ALMOST.iter().any(|ending| lower.ends_with(ending)) {
                odd.push(problem("the name of a connection's file ends with `.yaml`"));
            }
        }
        Ok(names)
    }
}

// === impl Seen ===

impl Seen {
    fn is_old(&self, now: SystemTime) -> bool {
        let age = self.read.and_then(|read| now.duration_since(read).ok());
        age.is_none_or(|age| age >= ANYWAY)
    }

    /// The text, if it is another than before and will stay.
    fn read(
        &mut self,
        path: &Path,
        hasher: &RandomState,
        options: PollOptions,
    ) -> Option<io::Result<String>> {
        let before = Signature::of(path);
        if let Ok(signature) = before
            && self.signature == Some(signature)
            && !options.anyway
        {
            return None;
        }
        let (signature, text) = match before {
            Ok(signature) => (Some(signature), read_regular(path)),
            Err(error) => (None, Err(error)),
        };
        self.read = Some(options.now);
        // A read error counts as content too: it is reported once.
        let content = match &text {
            Ok(text) => hasher.hash_one(text),
            Err(error) => hasher.hash_one(error.to_string()),
        };
        if Signature::of(path).ok() != signature {
            // It is being written.
            self.candidate = None;
            return None;
        }
        let found = (signature, content);
        let settled = signature.is_some_and(|signature| signature.is_settled(options.now));
        let at_once = match options.at_once {
            AtOnce::None => false,
            AtOnce::Settled => settled,
            AtOnce::All => true,
        };
        if self.content != Some(content) && !at_once && self.candidate != Some(found) {
            self.candidate = Some(found);
            // Forces the next poll to read it.
            self.signature = None;
            return None;
        }
        self.candidate = None;
        self.signature = signature.filter(|_| settled);
        let changed = self.content.replace(content) != Some(content);
        changed.then_some(text)
    }
}

// === impl Signature ===

impl Signature {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::metadata(path)?))
    }

    /// Whether a later change would show.
    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.changed.0).unwrap_or_default();
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed);
        now.duration_since(changed).is_ok_and(|age| age > SETTLED)
    }
}

impl From<&Metadata> for Signature {
    fn from(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino(), metadata.size()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn poll(poller: &mut DirPoller) -> Vec<(String, String)> {
        texts(poller.poll())
    }

    fn texts(snapshot: Snapshot) -> Vec<(String, String)> {
        let changed = snapshot.changed.into_iter();
        let pair = |one: Changed| {
            let text = one.text.unwrap_or_else(|error| error.to_string());
            (one.name.to_string(), text)
        };
        changed.map(pair).collect()
    }

    fn pair(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    fn poller() -> (tempfile::TempDir, DirPoller) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut poller = DirPoller::new(folder.path().to_owned());
        assert_eq!(poll(&mut poller), []);
        (folder, poller)
    }

    #[test]
    fn a_file_is_reported_once_per_content_whatever_its_time() {
        let (folder, mut poller) = poller();
        let file = folder.path().join("nas.yaml");
        fs::write(folder.path().join("notes.txt"), "x").expect("a file");
        fs::write(folder.path().join(".nas.yaml"), "x").expect("a file");
        fs::write(&file, "one").expect("a file");
        assert_eq!(poll(&mut poller), []);
        assert_eq!(poll(&mut poller), [pair("nas", "one")]);
        assert_eq!(poll(&mut poller), []);
        let time = fs::metadata(&file).expect("there").modified();
        fs::write(&file, "two").expect("a file");
        let open = fs::File::options().write(true).open(&file).expect("open");
        open.set_modified(time.expect("a time")).expect("time");
        assert_eq!(poll(&mut poller), []);
        assert_eq!(poll(&mut poller), [pair("nas", "two")]);
        fs::write(&file, "two").expect("a file");
        for _ in 0..3 {
            assert_eq!(poll(&mut poller), [], "the same content again");
        }
    }

    #[test]
    fn a_file_is_reported_when_it_is_completely_written() {
        let (folder, mut poller) = poller();
        let file = folder.path().join("nas.yaml");
        for part in ["shareBasePath: /srv/fast", "-volumes", "\nretain: true\n"] {
            let mut open = fs::File::options();
            let mut open = open.create(true).append(true).open(&file).expect("open");
            io::Write::write_all(&mut open, part.as_bytes()).expect("written");
            assert_eq!(poll(&mut poller), [], "after {part:?}");
        }
        let whole = "shareBasePath: /srv/fast-volumes\nretain: true\n";
        assert_eq!(poll(&mut poller), [pair("nas", whole)]);
    }

    #[test]
    fn old_files_are_reported_by_the_first_poll_and_new_files_by_the_second() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("nas.yaml"), "one").expect("a file");
        let mut poller = DirPoller::new(folder.path().to_owned());
        assert_eq!(poll(&mut poller), [], "it may be half-written");
        assert_eq!(poll(&mut poller), [pair("nas", "one")]);
        let mut poller = DirPoller::new(folder.path().to_owned());
        let later = SystemTime::now() + 2 * SETTLED;
        let snapshot = poller.poll_at(later, AtOnce::Settled);
        assert_eq!(texts(snapshot), [pair("nas", "one")]);
        let mut poller = DirPoller::new(folder.path().to_owned());
        assert_eq!(texts(poller.survey()), [pair("nas", "one")]);
    }

    #[test]
    fn a_secret_that_is_swapped_as_a_whole_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(at(version)).expect("a folder");
            fs::write(at(version).join("nas.yaml"), text).expect("a file");
        }
        symlink("..1", at("..data")).expect("a link");
        symlink("..data/nas.yaml", at("nas.yaml")).expect("a link");
        let mut poller = DirPoller::new(folder.path().to_owned());
        assert_eq!(poll(&mut poller), []);
        assert_eq!(poll(&mut poller), [pair("nas", "one")]);
        symlink("..2", at("..tmp")).expect("a link");
        fs::rename(at("..tmp"), at("..data")).expect("swapped");
        assert_eq!(poll(&mut poller), []);
        assert_eq!(poll(&mut poller), [pair("nas", "two")]);
    }

    #[test]
    fn a_pipe_does_not_block_and_files_with_an_almost_right_name_are_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe.yaml"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .expect("a pipe");
        for odd in ["a.yml", "b.json", "c.YAML", "a b.yaml"] {
            fs::write(at(odd), "x").expect("a file");
        }
        let mut poller = DirPoller::new(folder.path().to_owned());
        let snapshot = poller.survey();
        assert_eq!(snapshot.odd.len(), 4, "{:?}", snapshot.odd);
        let pipe = snapshot.changed.into_iter().next().expect("it is reported");
        let error = pipe.text.expect_err("a pipe").to_string();
        assert_eq!(error, "not a regular file");
    }
}
