//! Sorting mount options by who understands them: the mount, its superblock, the filesystem's own
//! parser, or only programs in user space.
//!
//! The words are those of mount(8). Later options win over earlier ones. What a filesystem
//! understands may carry a password, so an option never prints; its name does.

use std::fmt;

use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountAttrFlags;
use sys_mount::MountFlags as SuperFlags;

/// A list of mount options, sorted.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// The attributes of the one mount.
    pub attributes: Attributes,
    /// The options of the filesystem that have a flag of their own.
    pub superblock: Superblock,
    /// The options that only the filesystem understands, in order.
    pub data: Vec<String>,
    /// The options that mean nothing to the kernel.
    pub user: Vec<String>,
    /// The options that ask for another operation than mounting: `bind`, `remount`, `shared`.
    pub operations: Vec<String>,
}

/// The attributes of one mount.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    set: MountAttrFlags,
    atime: Option<MountAttrFlags>,
}

/// Flags of a superblock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Superblock(SuperFlags);

#[derive(Clone, Copy)]
enum Meaning {
    /// Nothing at all.
    Nothing,
    Set(MountAttrFlags),
    Clear(MountAttrFlags),
    /// One of the exclusive ways to keep access times; `None` is the kernel's default.
    Atime(Option<MountAttrFlags>),
    SetSuper(SuperFlags),
    ClearSuper(SuperFlags),
    User,
    Operation,
}

const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const NOATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME;
const STRICTATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_STRICTATIME;
const RELATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RELATIME;
const NODIRATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODIRATIME;
const NOSYMFOLLOW: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW;

/// The flag of statvfs for `nosymfollow`; missing in rustix.
const ST_NOSYMFOLLOW: u64 = 0x2000;

/// Flags that sys-mount does not name.
const LAZYTIME: SuperFlags = SuperFlags::from_bits_retain(libc::MS_LAZYTIME);
const MS_NOSYMFOLLOW: SuperFlags = SuperFlags::from_bits_retain(0x100);

/// The words with one meaning each.
const WORDS: &[(&str, Meaning)] = &[
    ("defaults", Meaning::Nothing),
    ("ro", Meaning::Set(RDONLY)),
    ("rw", Meaning::Clear(RDONLY)),
    ("nosuid", Meaning::Set(NOSUID)),
    ("suid", Meaning::Clear(NOSUID)),
    ("nodev", Meaning::Set(NODEV)),
    ("dev", Meaning::Clear(NODEV)),
    ("noexec", Meaning::Set(NOEXEC)),
    ("exec", Meaning::Clear(NOEXEC)),
    ("nosymfollow", Meaning::Set(NOSYMFOLLOW)),
    ("symfollow", Meaning::Clear(NOSYMFOLLOW)),
    ("nodiratime", Meaning::Set(NODIRATIME)),
    ("diratime", Meaning::Clear(NODIRATIME)),
    ("noatime", Meaning::Atime(Some(NOATIME))),
    ("atime", Meaning::Atime(None)),
    ("relatime", Meaning::Atime(Some(RELATIME))),
    ("norelatime", Meaning::Atime(None)),
    ("strictatime", Meaning::Atime(Some(STRICTATIME))),
    ("nostrictatime", Meaning::Atime(None)),
    ("sync", Meaning::SetSuper(SuperFlags::SYNCHRONOUS)),
    ("async", Meaning::ClearSuper(SuperFlags::SYNCHRONOUS)),
    ("dirsync", Meaning::SetSuper(SuperFlags::DIRSYNC)),
    ("lazytime", Meaning::SetSuper(LAZYTIME)),
    ("nolazytime", Meaning::ClearSuper(LAZYTIME)),
    ("silent", Meaning::SetSuper(SuperFlags::SILENT)),
    ("loud", Meaning::ClearSuper(SuperFlags::SILENT)),
    ("auto", Meaning::User),
    ("noauto", Meaning::User),
    ("user", Meaning::User),
    ("nouser", Meaning::User),
    ("users", Meaning::User),
    ("nousers", Meaning::User),
    ("owner", Meaning::User),
    ("noowner", Meaning::User),
    ("group", Meaning::User),
    ("nogroup", Meaning::User),
    ("nofail", Meaning::User),
    ("_netdev", Meaning::User),
    ("comment", Meaning::User),
    ("helper", Meaning::User),
    ("uhelper", Meaning::User),
    ("loop", Meaning::User),
    ("bind", Meaning::Operation),
    ("rbind", Meaning::Operation),
    ("move", Meaning::Operation),
    ("remount", Meaning::Operation),
    ("shared", Meaning::Operation),
    ("rshared", Meaning::Operation),
    ("private", Meaning::Operation),
    ("rprivate", Meaning::Operation),
    ("slave", Meaning::Operation),
    ("rslave", Meaning::Operation),
    ("unbindable", Meaning::Operation),
    ("runbindable", Meaning::Operation),
];

// === impl MountOptions ===

impl MountOptions {
    /// Sorts a list of single options.
    pub fn sort<'a>(options: impl IntoIterator<Item = &'a str>) -> Self {
        let mut sorted = Self::default();
        for option in options {
            sorted.add(option);
        }
        sorted
    }

    fn add(&mut self, option: &str) {
        let name = name(option);
        if name.starts_with("x-") || name.starts_with("X-") {
            self.user.push(option.to_owned());
            return;
        }
        let meaning = WORDS.iter().find(|(word, _)| *word == name);
        // A word that takes no value and has one is the filesystem's own: `user=` of cifs.
        let with_value = option.len() != name.len();
        match meaning.map(|(_, meaning)| *meaning) {
            Some(Meaning::User)
                if !with_value || matches!(name, "comment" | "helper" | "uhelper" | "loop") =>
            {
                self.user.push(option.to_owned());
            }
            None => self.data.push(option.to_owned()),
            Some(_) if with_value => self.data.push(option.to_owned()),
            Some(Meaning::Nothing | Meaning::User) => {}
            Some(Meaning::Set(flag)) => self.attributes.set |= flag,
            Some(Meaning::Clear(flag)) => self.attributes.set &= !flag,
            Some(Meaning::Atime(atime)) => self.attributes.atime = atime,
            Some(Meaning::SetSuper(flag)) => self.superblock.0 |= flag,
            Some(Meaning::ClearSuper(flag)) => self.superblock.0 &= !flag,
            Some(Meaning::Operation) => self.operations.push(option.to_owned()),
        }
    }

    /// The names, without values, of the options that a bind mount cannot carry out. A word without a value
    /// may be a secret at the wrong place, so it is named only if it looks like a word of mount(8).
    pub fn not_for_bind(&self) -> Vec<&str> {
        let data = self.data.iter().map(|option| shown(option));
        let superblock = WORDS.iter().filter_map(|(word, meaning)| match meaning {
            Meaning::SetSuper(flag) if self.superblock.0.contains(*flag) => Some(*word),
            _ => None,
        });
        let operations = self.operations.iter().map(String::as_str);
        data.chain(superblock).chain(operations).collect()
    }
}

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// The part that may be said of an option that is left out.
fn shown(option: &str) -> &str {
    let like = |(word, _): &(&str, Meaning)| strsim::damerau_levenshtein(word, option) <= MISSPELT;
    let has_value = option.contains('=');
    if has_value || WORDS.iter().any(like) {
        name(option)
    } else {
        "(unknown)"
    }
}

/// The number of letters of a word that may be wrong.
const MISSPELT: usize = 2;

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountOptions")
            .field("attributes", &self.attributes)
            .field("superblock", &self.superblock)
            .field("data", &format_args!("<{} options>", self.data.len()))
            .finish_non_exhaustive()
    }
}

// === impl Attributes ===

impl Default for Attributes {
    fn default() -> Self {
        Self {
            set: MountAttrFlags::empty(),
            atime: None,
        }
    }
}

impl Attributes {
    /// The attributes that an existing mount can be compared by.
    const COMPARED: [(MountAttrFlags, StatVfsMountFlags, &'static str); 7] = [
        (RDONLY, StatVfsMountFlags::RDONLY, "ro"),
        (NOSUID, StatVfsMountFlags::NOSUID, "nosuid"),
        (NODEV, StatVfsMountFlags::NODEV, "nodev"),
        (NOEXEC, StatVfsMountFlags::NOEXEC, "noexec"),
        (NOATIME, StatVfsMountFlags::NOATIME, "noatime"),
        (NODIRATIME, StatVfsMountFlags::NODIRATIME, "nodiratime"),
        (
            NOSYMFOLLOW,
            StatVfsMountFlags::from_bits_retain(ST_NOSYMFOLLOW),
            "nosymfollow",
        ),
    ];

    /// These and read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.set |= RDONLY;
        self
    }

    /// Whether these make a mount read-only.
    pub fn is_read_only(self) -> bool {
        self.set.contains(RDONLY)
    }

    /// These and those of `other`, whose way to keep access times wins.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            set: self.set | other.set,
            atime: other.atime.or(self.atime),
        }
    }

    /// Whether nothing is asked for.
    pub fn is_empty(self) -> bool {
        self.set.is_empty() && self.atime.is_none()
    }

    /// The flags that `mount_setattr` sets, and what it clears for that.
    pub(crate) fn changes(self) -> (MountAttrFlags, MountAttrFlags) {
        let clear = match self.atime {
            Some(_) => MountAttrFlags::MOUNT_ATTR__ATIME,
            None => MountAttrFlags::empty(),
        };
        (self.set | self.atime.unwrap_or(RELATIME), clear)
    }

    /// The flags of an existing mount, as statvfs shows them.
    pub(crate) fn of_mount(flags: StatVfsMountFlags) -> Self {
        let mut attributes = Self::default();
        for (attribute, flag, _) in Self::COMPARED {
            if flags.contains(flag) {
                attributes.add(attribute);
            }
        }
        attributes
    }

    fn add(&mut self, attribute: MountAttrFlags) {
        if attribute == NOATIME {
            self.atime = Some(NOATIME);
        } else {
            self.set |= attribute;
        }
    }

    fn has(self, attribute: MountAttrFlags) -> bool {
        if attribute == NOATIME {
            self.atime == Some(NOATIME)
        } else {
            self.set.contains(attribute)
        }
    }

    /// The names of the comparable attributes that `self` has and `other` has not.
    pub(crate) fn beyond(self, other: Self) -> Vec<&'static str> {
        let names = Self::COMPARED
            .into_iter()
            .filter(|(attribute, ..)| self.has(*attribute) && !other.has(*attribute));
        names.map(|(_, _, name)| name).collect()
    }

    /// The flags of mount(2) for the same, for kernels without `mount_setattr`.
    pub(crate) fn classic(self) -> SuperFlags {
        let all = [
            (RDONLY, SuperFlags::RDONLY),
            (NOSUID, SuperFlags::NOSUID),
            (NODEV, SuperFlags::NODEV),
            (NOEXEC, SuperFlags::NOEXEC),
            (NODIRATIME, SuperFlags::NODIRATIME),
            (NOSYMFOLLOW, MS_NOSYMFOLLOW),
        ];
        let mut flags = SuperFlags::empty();
        for (attribute, flag) in all {
            if self.set.contains(attribute) {
                flags |= flag;
            }
        }
        match self.atime {
            Some(NOATIME) => flags | SuperFlags::NOATIME,
            Some(STRICTATIME) => flags | SuperFlags::STRICTATIME,
            Some(_) => flags | SuperFlags::RELATIME,
            None => flags,
        }
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.beyond(Self::default()))
            .finish()
    }
}

// === impl Superblock ===

impl Default for Superblock {
    fn default() -> Self {
        Self(SuperFlags::empty())
    }
}

impl Superblock {
    /// The flags for mount(2).
    pub(crate) fn flags(self) -> SuperFlags {
        self.0
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort(list: &str) -> MountOptions {
        MountOptions::sort(list.split(',').filter(|option| !option.is_empty()))
    }

    /// Options; then what becomes of them: attributes, data, user space, not for a bind mount.
    const TABLE: &str = "\
        | | | |
        defaults | | | |
        ro | ro | | |
        ro,rw | | | |
        rw,ro | ro | | |
        nosuid,nodev,noexec | nosuid,nodev,noexec | | |
        noexec,exec,nodev | nodev | | |
        noatime,nodiratime | noatime,nodiratime | | |
        noatime,relatime | | | |
        noatime,atime | | | |
        nosymfollow,symfollow,noexec | noexec | | |
        nosymfollow | nosymfollow | | |
        sync,noexec | noexec | | | sync
        sync,async | | | |
        _netdev,nofail,x-systemd.automount | | | _netdev,nofail,x-systemd.automount |
        comment=a | | | comment=a |
        user | | | user |
        user=me,password=hunter2 | | user=me,password=hunter2 | | user,password
        vers=4.1,soft | | vers=4.1,soft | | vers,(unknown)
        noexce | | noexce | | noexce
        bind,remount,rshared | | | | bind,remount,rshared
        errors=remount-ro | | errors=remount-ro | | errors
        ro=1 | | ro=1 | | ro
        RO | | RO | | RO";

    #[test]
    fn every_option_goes_to_who_understands_it() {
        for line in TABLE.lines() {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            let sorted = sort(columns[0]);
            let attributes = sorted.attributes.beyond(Attributes::default());
            let found = [
                attributes.join(","),
                sorted.data.join(","),
                sorted.user.join(","),
                sorted.not_for_bind().join(","),
            ];
            assert_eq!(found, columns[1..], "{line}");
        }
    }

    #[test]
    fn an_option_with_a_secret_is_never_printed() {
        let sorted = sort("password=hunter2,x-token=hunter2,hunter2");
        assert!(!format!("{sorted:?}").contains("hunter2"));
        assert!(!format!("{:?}", sorted.not_for_bind()).contains("hunter2"));
    }

    #[test]
    fn access_times_are_changed_only_if_asked_for() {
        let (set, clear) = sort("noexec").attributes.changes();
        assert_eq!((set, clear), (NOEXEC, MountAttrFlags::empty()));
        let (set, clear) = sort("strictatime,ro").attributes.changes();
        assert_eq!(
            (set, clear),
            (STRICTATIME | RDONLY, MountAttrFlags::MOUNT_ATTR__ATIME)
        );
        let (set, clear) = sort("noatime,relatime").attributes.changes();
        assert_eq!((set, clear), (RELATIME, MountAttrFlags::MOUNT_ATTR__ATIME));
    }

    #[test]
    fn both_generations_of_flags_say_the_same() {
        let attributes = sort("ro,nosuid,nodev,noexec,noatime,nodiratime,nosymfollow").attributes;
        let expected = SuperFlags::RDONLY
            | SuperFlags::NOSUID
            | SuperFlags::NODEV
            | SuperFlags::NOEXEC
            | SuperFlags::NOATIME
            | SuperFlags::NODIRATIME
            | MS_NOSYMFOLLOW;
        assert_eq!(attributes.classic(), expected);
    }
}
