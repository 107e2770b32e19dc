//! Children of the parent of volumes: datasets right below it that hold volumes, too.
//!
//! A volume in a child has the id `<child>.<name>`, and is `<datasetParentName>/<child>/<name>`: its id is as long as its
//! path. No other id has a dot, so none changes its meaning by a list of children.

use driver_core::{Error, VolumeId};

use super::{Foreign, Layout, MAX_VOLUME, Parent, is_word};
use crate::name::{DatasetName, NameError};

/// The character between the name of a child and that of a volume. No name of a volume has it.
const MARK: char = '.';
/// The longest name of a child, in bytes: room for the name of a volume is beside it.
const MAX_CHILD: usize = 32;

/// A dataset right below the parent of volumes that holds volumes, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child(DatasetName);

/// Why a dataset cannot be a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// Its name cannot be part of an id.
    #[error(
        "has to be one part of a name: at most {MAX_CHILD} letters, digits, dashes and underscores, the first one a \
         letter or a digit"
    )]
    Name,
    /// Its dataset cannot have that name.
    #[error(transparent)]
    Dataset(#[from] NameError),
}

/// Why an id leads to no dataset.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotHere {
    /// No driver of ours gives it.
    #[error(transparent)]
    Foreign(Foreign),
    /// It is of a child that the configuration does not have.
    #[error(
        "`{0}` is not among zfs.datasetChildren: list it there as long as it has volumes or snapshots"
    )]
    Unlisted(String),
    /// It is the name of a child.
    #[error("`{0}` is one of zfs.datasetChildren, and holds volumes")]
    Parent(String),
}

/// The name of the child in an id, if there is one.
fn child_in(id: &str) -> Option<&str> {
    id.split_once(MARK).map(|(child, _)| child)
}

/// Whether an id is that of a dataset or of what is in it: its last parts are those of the id.
pub fn is_id_of(id: &str, dataset: &str) -> bool {
    let above = dataset.strip_suffix(id.replacen(MARK, "/", 1).as_str());
    above.is_some_and(|above| above.ends_with('/'))
}

// === impl Child ===

impl Child {
    /// The child of this name.
    pub fn of(parent: &DatasetName, name: &str) -> Result<Self, ChildError> {
        if name.len() > MAX_CHILD || !is_word(name) {
            return Err(ChildError::Name);
        }
        Ok(Self(parent.child(name)?))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.leaf()
    }

    /// Its dataset.
    pub fn dataset(&self) -> &DatasetName {
        &self.0
    }

    /// The bytes that it takes of an id.
    pub fn bytes_in_id(&self) -> usize {
        self.name().len() + MARK.len_utf8()
    }

    /// The id of its volume of this name.
    pub fn id_of(&self, name: &VolumeId) -> Result<VolumeId, Error> {
        let id = format!("{}{MARK}{name}", self.name());
        VolumeId::parse(&id).map_err(|error| {
            Error::invalid(format!("name volume `{name}` in `{}`", self.name())).because(error)
        })
    }
}

// === impl Layout ===

impl Layout {
    /// The child of this name.
    pub fn child(&self, name: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.name() == name)
    }

    /// The child that a volume is in; `None` if it is right below the parent.
    pub fn child_of(&self, id: &VolumeId) -> Option<&Child> {
        child_in(id.as_str()).and_then(|name| self.child(name))
    }

    /// All datasets that volumes are right below of.
    pub fn parents(&self) -> impl Iterator<Item = &DatasetName> {
        let children = self.children.iter().map(Child::dataset);
        std::iter::once(&self.volumes).chain(children)
    }

    /// The parent of a volume. Its first volume makes it.
    pub fn parent_of_volume(&self, id: &VolumeId) -> Parent<'_> {
        self.as_parent(self.child_of(id))
    }

    /// The parent of the dataset of a volume.
    pub fn parent_above(&self, dataset: &DatasetName) -> Parent<'_> {
        let is_above = |child: &&Child| dataset.below(child.dataset()).is_some();
        self.as_parent(self.children.iter().find(is_above))
    }

    /// The parents of the datasets of volumes, each once.
    pub fn parents_above<'d>(
        &self,
        datasets: impl IntoIterator<Item = &'d DatasetName>,
    ) -> Vec<Parent<'_>> {
        let mut all: Vec<Parent<'_>> = Vec::new();
        for dataset in datasets {
            let parent = self.parent_above(dataset);
            if all.iter().all(|other| other.name != parent.name) {
                all.push(parent);
            }
        }
        all
    }

    fn as_parent<'l>(&'l self, child: Option<&'l Child>) -> Parent<'l> {
        child.map_or_else(
            || self.parent_of_volumes(),
            |child| Parent {
                name: child.dataset(),
                key: "zfs.datasetChildren",
            },
        )
    }

    /// The parent of the dataset that an id leads to, and its last part.
    pub(super) fn split<'i>(&self, id: &'i str) -> Result<(&DatasetName, &'i str), NotHere> {
        if id.len() > MAX_VOLUME {
            return Err(NotHere::Foreign(Foreign));
        }
        let Some((child, name)) = id.split_once(MARK) else {
            return match self.child(id) {
                Some(child) => Err(NotHere::Parent(child.name().to_owned())),
                None if is_word(id) => Ok((&self.volumes, id)),
                None => Err(NotHere::Foreign(Foreign)),
            };
        };
        if !is_word(child) || !is_word(name) {
            return Err(NotHere::Foreign(Foreign));
        }
        let unlisted = || NotHere::Unlisted(child.to_owned());
        let child = self.child(child).ok_or_else(unlisted)?;
        Ok((child.dataset(), name))
    }

    /// The id of the volume that a dataset below the parent can be, by the parts that follow that.
    pub(super) fn id_of_parts(&self, below: &str) -> Option<VolumeId> {
        let id = match below.split_once('/') {
            Some((child, name)) => format!("{child}{MARK}{name}"),
            // A dot in it is not the mark.
            None => Some(below).filter(|name| is_word(name))?.to_owned(),
        };
        self.split(&id).ok()?;
        VolumeId::parse(&id).ok()
    }
}

#[cfg(test)]
mod tests {
    use driver_core::{Kind, SnapshotId};
    use proptest::prelude::*;

    use super::*;
    use crate::id::{At, helper_for_snapshot, helper_for_volume, tests::layout};
    use crate::name::SnapshotLeaf;

    fn with(children: &[&str]) -> Layout {
        let plain = layout();
        let children = children.iter().map(|name| Child::of(&plain.volumes, name));
        Layout {
            children: children.collect::<Result<_, _>>().unwrap(),
            ..plain.clone()
        }
    }

    fn id(text: &str) -> VolumeId {
        VolumeId::parse(text).unwrap()
    }

    fn dataset(text: &str) -> DatasetName {
        DatasetName::parse(text).unwrap()
    }

    #[test]
    fn an_id_with_a_child_is_the_path_of_its_dataset_and_is_read_back() {
        let layout = with(&["fast", "bulk"]);
        for (text, name) in [
            ("pvc-1", "tank/v/pvc-1"),
            ("fast.pvc-1", "tank/v/fast/pvc-1"),
            ("bulk.pvc-1", "tank/v/bulk/pvc-1"),
            ("fast.fast", "tank/v/fast/fast"),
        ] {
            let (id, name) = (id(text), dataset(name));
            assert_eq!(layout.volume(&id).unwrap(), name);
            assert_eq!(layout.volume_id(&name), Some(id.clone()));
            assert_eq!(
                id.as_str().len(),
                name.below(&layout.volumes).unwrap().len()
            );
            let helper = helper_for_volume(&id).unwrap();
            let source = dataset("tank/v/x").at(&helper).unwrap();
            assert_eq!(layout.made_of(&source), Some(name));
        }
        let fast = layout.child("fast").unwrap();
        assert_eq!(fast.id_of(&id("pvc-1")).unwrap(), id("fast.pvc-1"));
        assert_eq!(fast.bytes_in_id(), 5);
        assert_eq!(layout.child_of(&id("fast.pvc-1")), Some(fast));
        assert_eq!(layout.child_of(&id("fast")), None);
    }

    #[test]
    fn no_dataset_that_is_elsewhere_and_no_child_is_a_volume() {
        let layout = with(&["fast"]);
        for name in [
            "tank/v",
            "tank/v/fast",
            "tank/v/fast.pvc-1",
            "tank/v/slow/pvc-1",
            "tank/v/fast/a/b",
            "tank/v/fast/a.b",
            "tank/v/fast/a b",
            "tank/w/fast/a",
        ] {
            assert_eq!(layout.volume_id(&dataset(name)), None, "{name}");
        }
    }

    #[test]
    fn ids_without_a_child_mean_the_same_with_any_list_and_none() {
        for text in ["pvc-1", "fast-1", "fast_pvc-1", "0"] {
            let id = id(text);
            let plain = layout().volume(&id).unwrap();
            assert_eq!(with(&["fast"]).volume(&id).unwrap(), plain);
        }
        for text in [
            ".", ".a", "a.", "a.b.c", "fast.-a", "fast..", "fast./", "fast.a b",
        ] {
            let (plain, listed) = (layout(), with(&["fast", "a"]));
            assert!(plain.volume(&id(text)).is_err(), "{text}");
            assert!(listed.volume(&id(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_of_a_child_that_is_not_listed_is_refused_and_not_taken_for_gone() {
        for layout in [layout(), with(&["fast"])] {
            let error = layout.volume(&id("bulk.a")).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(
                error.chain().contains("zfs.datasetChildren"),
                "{}",
                error.chain()
            );
            for text in ["bulk.a@s", "bulk.a/s"] {
                let id = SnapshotId::parse(text).unwrap();
                let error = layout.snapshot(&id).unwrap_err();
                assert_eq!(error.kind(), Kind::Invalid, "{text}: {}", error.chain());
            }
        }
        let error = with(&["fast"]).volume(&id("fast")).unwrap_err();
        assert!(error.chain().contains("holds volumes"), "{}", error.chain());
    }

    #[test]
    fn snapshots_of_its_volumes_are_read_back_and_their_helpers_lead_to_them() {
        let layout = with(&["fast"]);
        let leaf = SnapshotLeaf::parse("s").unwrap();
        for (text, object) in [
            ("fast.a@s", "tank/v/fast/a@s"),
            ("fast.a/s", "tank/s/fast.a/s"),
        ] {
            let snapshot = SnapshotId::parse(text).unwrap();
            let place = layout.snapshot(&snapshot).unwrap();
            assert_eq!(place.object().to_string(), object);
            assert_eq!(place.volume, id("fast.a"));
            assert_eq!(place.id().unwrap(), snapshot);
            assert_eq!(layout.place_of(&place.object()), Some(place.clone()));
            let parent = match place.at {
                At::Attached(_) => ("tank/v/fast", "zfs.datasetChildren"),
                At::Detached(_) => ("tank/s", "zfs.detachedSnapshotsDatasetParentName"),
            };
            let found = layout.parent_of(&place.at);
            assert_eq!((found.name.as_str(), found.key), parent);
        }
        let helper = helper_for_snapshot(&leaf).unwrap();
        let helper = dataset("tank/v/fast/a").at(&helper).unwrap();
        assert_eq!(layout.made_of(&helper), Some(dataset("tank/s/fast.a/s")));
        assert_eq!(
            layout.lock_of_helper(&helper),
            Some(dataset("tank/s/fast.a"))
        );
    }

    #[test]
    fn each_parent_of_some_volumes_is_named_once() {
        let layout = with(&["fast", "bulk"]);
        let some = ["tank/v/a", "tank/v/fast/a", "tank/v/b", "tank/v/fast/b"].map(dataset);
        let parents = layout.parents_above(&some);
        let names: Vec<_> = parents.iter().map(|parent| parent.name.as_str()).collect();
        assert_eq!(names, ["tank/v", "tank/v/fast"]);
        let all: Vec<_> = layout.parents().map(DatasetName::as_str).collect();
        assert_eq!(all, ["tank/v", "tank/v/fast", "tank/v/bulk"]);
    }

    #[test]
    fn a_child_is_one_plain_word() {
        let parent = dataset("tank/v");
        let long = "a".repeat(MAX_CHILD + 1);
        for name in [
            "",
            ".",
            "a/b",
            "a.b",
            "-a",
            "_a",
            "a b",
            "a@b",
            "é",
            long.as_str(),
        ] {
            assert_eq!(Child::of(&parent, name), Err(ChildError::Name), "{name:?}");
        }
        assert!(Child::of(&parent, &long[1..]).is_ok());
        let deep = dataset(&format!("tank/{}", "v".repeat(246)));
        let error = Child::of(&deep, "fast").unwrap_err();
        assert_eq!(error, ChildError::Dataset(NameError::TooLong(256)));
    }

    #[test]
    fn an_id_is_that_of_the_last_parts_of_a_dataset() {
        for (id, dataset, expected) in [
            ("a", "tank/v/a", true),
            ("a", "tank/v/b.a", false),
            ("a", "tank/v/fast/a", true),
            ("fast.a", "tank/v/fast/a", true),
            ("fast.a", "tank/v/fast.a", false),
            ("fast.a", "tank/v/slow/a", false),
            ("fast.a", "tank/v/breakfast/a", false),
            ("a", "a", false),
        ] {
            assert_eq!(is_id_of(id, dataset), expected, "{id} {dataset}");
        }
    }

    proptest! {
        #[test]
        fn every_id_that_leads_somewhere_is_read_back(text in "[a-c.@/ -]{1,12}") {
            let layout = with(&["a", "b-c"]);
            let Ok(id) = VolumeId::parse(&text) else { return Ok(()) };
            if let Ok(name) = layout.volume(&id) {
                prop_assert_eq!(layout.volume_id(&name), Some(id));
            }
        }
    }
}
