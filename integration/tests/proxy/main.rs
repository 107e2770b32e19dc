//! The proxy as a whole: the conformance suite over one of two connections, connections that come
//! and go under a running server, and what the documentation shows and promises.
#![forbid(unsafe_code)]

mod documented;
mod folder;
mod promised;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use integration::conformance::Target;
use integration::place::Place;
use integration::server::Launch;
use integration::suite;
use integration::tree::Tree;

/// Two connections of local storage; the suite works on one, and the other stays as it is.
struct Proxy;

impl Target for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn launch(&self, place: &Place) -> Launch {
        let other = place.path().join("other");
        for folder in [&connections(place), &other] {
            fs::create_dir_all(folder).expect("a folder");
        }
        connection(place, "one", &place.base());
        connection(place, "other", &other);
        // What the suite makes up has no connection in its name.
        main_file(place, "legacyConnection: one")
    }

    fn backend(&self, place: &Place) -> Tree {
        let kept = ["", "v", "s", ".omnibus-csi"].map(Path::new);
        let workshop = ["making", "trash"].map(|name| Path::new(".omnibus-csi").join(name));
        let makers = Path::new(".omnibus-csi/makers");
        Tree::read(&place.base()).without(|path| {
            kept.contains(&path)
                || workshop.iter().any(|kept| kept == path)
                || path.starts_with(makers)
        })
    }

    fn parameters(&self) -> BTreeMap<String, String> {
        [("connection".to_owned(), "one".to_owned())].into()
    }

    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        let key = "org.democratic-csi.topology/node".to_owned();
        Some(BTreeMap::from([(key, "another-node".to_owned())]))
    }
}

suite!(Proxy);

/// The folder of connections.
fn connections(place: &Place) -> PathBuf {
    place.path().join("connections")
}

/// A server over that folder.
fn main_file(place: &Place, more: &str) -> Launch {
    Launch::new(format!(
        "driver: proxy\nproxy:\n  configFolder: {}\n  nodeTopology: {{type: [cluster, node]}}\n  {more}\n",
        connections(place).display()
    ))
}

/// Puts the file of a connection into the folder, as a whole.
fn connection(place: &Place, name: &str, base: &Path) {
    let text = format!(
        "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  controllerBasePath: {base}\n  \
         dirPermissionsMode: \"0777\"\n",
        base = base.display()
    );
    put(place, name, &text);
}

fn put(place: &Place, name: &str, text: &str) {
    let folder = connections(place);
    let new = folder.join(format!(".{name}.new"));
    fs::write(&new, text).expect("a file");
    fs::rename(new, folder.join(format!("{name}.yaml"))).expect("renamed");
}
