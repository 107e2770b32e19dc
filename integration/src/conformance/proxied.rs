//! Any target as one connection of a proxy, with others beside it that are asked for something all the
//! while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_proto::v1::Volume;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::optional::Optional;
use super::{Holds, Target};
use crate::place::Place;
use crate::server::Launch;
use crate::tree::Tree;

/// The connection that is tested.
pub const TESTED: &str = "tested";

/// A target behind the proxy.
#[derive(Debug)]
pub struct Proxied<T> {
    target: T,
    beside: Vec<(&'static str, String)>,
    /// The place where those have what is theirs.
    _homes: Vec<Place>,
}

// === impl Proxied ===

impl<T: Target> Proxied<T> {
    /// With these connections beside it, by name and with their files, which lie in `homes`.
    pub fn new(target: T, beside: Vec<(&'static str, String)>, homes: Vec<Place>) -> Self {
        Self {
            target,
            beside,
            _homes: homes,
        }
    }

    /// With a connection of folders beside it.
    pub fn beside_folders(target: T) -> Self {
        let home = Place::new();
        let folders = ("folders", Launch::local_hostpath(&home).config);
        Self::new(target, vec![folders], vec![home])
    }
}

impl<T: Target> Target for Proxied<T> {
    fn name(&self) -> &'static str {
        self.target.name()
    }

    fn launch(&self, place: &Place) -> Launch {
        let alone = self.target.launch(place);
        let beside = self
            .beside
            .iter()
            .map(|(name, text)| (*name, text.as_str()));
        let files = beside.chain([(TESTED, alone.config.as_str())]);
        let Launch { config, .. } = Launch::proxy(&place.path().join("connections"), TESTED, files);
        Launch { config, ..alone }
    }

    fn backend(&self, place: &Place) -> Tree {
        self.target.backend(place)
    }

    fn parameters(&self) -> BTreeMap<String, String> {
        let mut parameters = self.target.parameters();
        parameters.insert("connection".to_owned(), TESTED.to_owned());
        parameters
    }

    fn snapshot_parameters(&self) -> BTreeMap<String, String> {
        self.target.snapshot_parameters()
    }

    fn group_parameters(&self) -> BTreeMap<String, String> {
        self.target.group_parameters()
    }

    fn secrets(&self) -> BTreeMap<String, String> {
        self.target.secrets()
    }

    fn optional(&self) -> BTreeSet<Optional> {
        let mut all = self.target.optional();
        // The proxy offers it for connections to come; where there is nothing to let in, it says yes.
        all.insert(Optional::Publish);
        all
    }

    fn classes(&self) -> [Vec<(&'static str, &'static str)>; 2] {
        self.target.classes()
    }

    fn holds(&self) -> Holds {
        self.target.holds()
    }

    fn one_string_of(&self) -> usize {
        self.target.one_string_of()
    }

    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        self.target.elsewhere()
    }

    fn folders_of_a_large_volume(&self) -> usize {
        self.target.folders_of_a_large_volume()
    }

    fn in_pages(&self) -> usize {
        self.target.in_pages()
    }

    fn many_writers(&self) -> Mode {
        self.target.many_writers()
    }

    fn longest_name_with_snapshots(&self) -> Option<usize> {
        let alone = self.target.longest_name_with_snapshots();
        alone.map(|longest| longest - format!("s:{TESTED}/").len())
    }

    fn patience(&self) -> Duration {
        self.target.patience()
    }

    fn beside(&self) -> Vec<&'static str> {
        self.beside.iter().map(|(name, _)| *name).collect()
    }

    fn by_hand(&self, place: &Place, name: &str) -> Option<Volume> {
        self.target.by_hand(place, name)
    }

    fn end_by_hand(&self, place: &Place, volume_id: &str) {
        self.target.end_by_hand(place, volume_id);
    }

    fn steps(&self) -> &'static [&'static str] {
        self.target.steps()
    }
}
