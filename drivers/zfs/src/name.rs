//! Names of datasets and snapshots: validated once, so that no other text reaches a command.
//!
//! The grammar is that of ZFS (`zfs_namecheck.c`): letters, digits, blanks and `-_.:`, at most 255
//! bytes with all parents. Which of these names a volume or a snapshot of ours can have is narrower
//! and said in [`crate::id`].

use std::fmt;
use std::sync::Arc;

/// The longest name of a dataset or snapshot, in bytes.
pub const MAX_NAME: usize = 255;

/// The name of a filesystem or zvol, with its pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetName(Arc<str>);

/// The name of a snapshot of some dataset: what follows the `@`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotLeaf(Arc<str>);

/// A snapshot of a dataset.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotRef {
    /// The dataset that it was taken of.
    pub dataset: DatasetName,
    /// Its own name.
    pub leaf: SnapshotLeaf,
}

/// A bookmark of a dataset: the moment of a snapshot, which it outlives. It holds no blocks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkRef {
    /// The dataset that the snapshot was of.
    pub dataset: DatasetName,
    /// Its own name: what follows the `#`.
    pub leaf: SnapshotLeaf,
}

/// The beginning of a stream of what differs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Since {
    /// A snapshot.
    Snapshot(SnapshotRef),
    /// The moment of one that is gone.
    Mark(MarkRef),
}

/// A dataset or a snapshot: any object with properties.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A filesystem or zvol.
    Dataset(DatasetName),
    /// A snapshot.
    Snapshot(SnapshotRef),
}

/// Why a name is refused. What it says is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A mount point instead of a name.
    #[error("is a path, and a dataset has a name: `tank/volumes`, without a slash before it")]
    Path,
    /// A part of it is missing.
    #[error("has an empty part")]
    Empty,
    /// Too long for ZFS.
    #[error("is {0} bytes long, and {MAX_NAME} is the most")]
    TooLong(usize),
    /// A character that ZFS rejects.
    #[error("holds {0:?}, which ZFS does not take")]
    Character(char),
    /// `.`, `..`, or blanks around a part.
    #[error("has a part that is `.` or `..`, or begins or ends with a blank")]
    Part,
    /// A pool name that ZFS rejects, or that a tool would take for an option.
    #[error("names no pool: a pool begins with a letter")]
    Pool,
}

fn check_part(part: &str) -> Result<(), NameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    if part.is_empty() {
        return Err(NameError::Empty);
    }
    if let Some(c) = part.chars().find(|c| !allowed(*c)) {
        return Err(NameError::Character(c));
    }
    if matches!(part, "." | "..") || part.trim() != part {
        return Err(NameError::Part);
    }
    Ok(())
}

fn check_length(length: usize) -> Result<(), NameError> {
    if length > MAX_NAME {
        return Err(NameError::TooLong(length));
    }
    Ok(())
}

// === impl DatasetName ===

impl DatasetName {
    /// Checks a whole name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_length(text.len())?;
        if text.starts_with('/') {
            return Err(NameError::Path);
        }
        text.split('/').try_for_each(check_part)?;
        if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(NameError::Pool);
        }
        Ok(Self(text.into()))
    }

    /// The dataset of this name directly below this one.
    pub fn child(&self, part: &str) -> Result<Self, NameError> {
        check_part(part)?;
        check_length(self.0.len() + 1 + part.len())?;
        Ok(Self(format!("{}/{part}", self.0).into()))
    }

    /// The parent dataset; `None` of a pool.
    pub fn parent(&self) -> Option<Self> {
        let (parent, _) = self.0.rsplit_once('/')?;
        Some(Self(parent.into()))
    }

    /// The last part.
    pub fn leaf(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The first part.
    pub fn pool(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }

    /// This dataset and all its ancestors, the pool last.
    pub fn with_ancestors(&self) -> Vec<Self> {
        std::iter::successors(Some(self.clone()), Self::parent).collect()
    }

    /// The parts after `above`, if this is below it.
    pub fn below(&self, above: &Self) -> Option<&str> {
        self.0.strip_prefix(above.as_str())?.strip_prefix('/')
    }

    /// A snapshot of it.
    pub fn at(&self, leaf: &SnapshotLeaf) -> Result<SnapshotRef, NameError> {
        check_length(self.0.len() + 1 + leaf.as_str().len())?;
        Ok(SnapshotRef {
            dataset: self.clone(),
            leaf: leaf.clone(),
        })
    }

    /// The path of the disk that the kernel shows, if it is a zvol.
    pub fn device(&self) -> String {
        format!("/dev/zvol/{}", self.0)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl SnapshotLeaf ===

impl SnapshotLeaf {
    /// Checks what follows an `@`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_length(text.len())?;
        check_part(text)?;
        Ok(Self(text.into()))
    }

    /// A name that is known to be good, and a number.
    pub(crate) fn of_number(start: &'static str, number: u64) -> Self {
        Self(format!("{start}{number}").into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl SnapshotRef ===

impl SnapshotRef {
    /// Reads `dataset@name`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (dataset, leaf) = text.split_once('@').ok_or(NameError::Empty)?;
        DatasetName::parse(dataset)?.at(&SnapshotLeaf::parse(leaf)?)
    }
}

// === impl MarkRef ===

impl MarkRef {
    /// The beginning of our names. A bookmark has no properties that could say it.
    const OURS: &str = "omnibus-csi:";

    /// The bookmark that a deleted snapshot leaves; `None` if its name would be too long.
    pub fn of(snapshot: &SnapshotRef) -> Option<Self> {
        let leaf = format!("{}{}", Self::OURS, snapshot.leaf);
        let leaf = SnapshotLeaf::parse(&leaf).ok()?;
        let dataset = snapshot.dataset.clone();
        let mark = Self { dataset, leaf };
        check_length(mark.to_string().len()).ok()?;
        Some(mark)
    }

    /// Reads `dataset#name`; `None` if it is not one that we have left.
    pub fn parse_ours(text: &str) -> Option<Self> {
        let (dataset, leaf) = text.split_once('#')?;
        leaf.strip_prefix(Self::OURS).filter(|of| !of.is_empty())?;
        Some(Self {
            dataset: DatasetName::parse(dataset).ok()?,
            leaf: SnapshotLeaf::parse(leaf).ok()?,
        })
    }
}

// === impl Object ===

impl Object {
    /// Reads either form.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.contains('@') {
            SnapshotRef::parse(text).map(Self::Snapshot)
        } else {
            DatasetName::parse(text).map(Self::Dataset)
        }
    }
}

impl From<DatasetName> for Object {
    fn from(name: DatasetName) -> Self {
        Self::Dataset(name)
    }
}

impl From<SnapshotRef> for Object {
    fn from(snapshot: SnapshotRef) -> Self {
        Self::Snapshot(snapshot)
    }
}

macro_rules! shown {
    ($($name:ident => |$value:ident, $f:ident| $write:expr;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, $f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $value = self;
                $write
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

shown! {
    DatasetName => |name, f| f.write_str(&name.0);
    SnapshotLeaf => |leaf, f| f.write_str(&leaf.0);
    MarkRef => |mark, f| write!(f, "{}#{}", mark.dataset, mark.leaf);
    Since => |since, f| match since {
        Self::Snapshot(snapshot) => fmt::Display::fmt(snapshot, f),
        Self::Mark(mark) => fmt::Display::fmt(mark, f),
    };
    SnapshotRef => |snapshot, f| write!(f, "{}@{}", snapshot.dataset, snapshot.leaf);
    Object => |object, f| match object {
        Self::Dataset(name) => fmt::Display::fmt(name, f),
        Self::Snapshot(snapshot) => fmt::Display::fmt(snapshot, f),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_zfs_takes_are_taken_apart() {
        let name = DatasetName::parse("tank/k8s/v/pvc-1").unwrap();
        assert_eq!((name.pool(), name.leaf()), ("tank", "pvc-1"));
        assert_eq!(name.parent().unwrap().as_str(), "tank/k8s/v");
        assert_eq!(
            name.below(&DatasetName::parse("tank/k8s").unwrap()),
            Some("v/pvc-1")
        );
        assert_eq!(name.below(&DatasetName::parse("tank/k8").unwrap()), None);
        assert_eq!(name.below(&name), None);
        assert_eq!(name.with_ancestors().len(), 4);
        assert!(DatasetName::parse("my pool/a:b_c.d-e").is_ok());
        let snapshot = SnapshotRef::parse("tank/a@b").unwrap();
        assert_eq!(snapshot.to_string(), "tank/a@b");
    }

    #[test]
    fn names_that_a_shell_or_a_tool_could_misread_are_none() {
        for text in [
            "",
            "/",
            "tank/",
            "/tank",
            "a//b",
            "-o",
            "1pool",
            "tank/a@b",
            "tank/a#b",
            "tank/%recv",
            "tank/..",
            "tank/./a",
            "tank/$(x)",
            "tank/a'b",
            "tank/a\nb",
            "tank/ a",
            "tank/é",
            "tank/a;b",
            "tank/a,b",
        ] {
            assert!(DatasetName::parse(text).is_err(), "{text:?}");
        }
        for text in [
            "tank/a",
            "tank/a@",
            "@a",
            "tank/a@b@c",
            "tank/a@b/c",
            "tank/a@%",
        ] {
            assert!(SnapshotRef::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_bookmark_is_ours_by_its_name() {
        let snapshot = SnapshotRef::parse("tank/a@b").unwrap();
        let mark = MarkRef::of(&snapshot).unwrap();
        assert_eq!(mark.to_string(), "tank/a#omnibus-csi:b");
        assert_eq!(MarkRef::parse_ours(&mark.to_string()), Some(mark));
        for other in [
            "tank/a#b",
            "tank/a@omnibus-csi:b",
            "tank/a#omnibus-csi:",
            "tank/a",
        ] {
            assert_eq!(MarkRef::parse_ours(other), None, "{other}");
        }
        let long = SnapshotRef::parse(&format!("tank/{}@s", "a".repeat(240))).unwrap();
        assert_eq!(MarkRef::of(&long), None);
    }

    #[test]
    fn no_way_to_make_a_name_makes_one_that_is_too_long() {
        let long = DatasetName::parse(&format!("tank/{}", "a".repeat(245))).unwrap();
        assert!(long.child("bbbb").is_ok());
        assert_eq!(long.child("bbbbb"), Err(NameError::TooLong(256)));
        let leaf = SnapshotLeaf::parse("sssss").unwrap();
        assert_eq!(long.at(&leaf), Err(NameError::TooLong(256)));
    }
}
