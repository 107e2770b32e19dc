//! The proxy as a whole: the conformance suite over one of two connections, connections that come
//! and go under a running server, and what the documentation shows and promises.

mod documented;
mod folder;
mod legacy;
mod promised;

use std::fs;
use std::path::{Path, PathBuf};

use integration::conformance::local_hostpath::LocalHostpath;
use integration::conformance::proxied::Proxied;
use integration::place::Place;
use integration::server::Launch;
use integration::suite;

suite!(Proxied::beside_folders(LocalHostpath));

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
         createBase: true\n  dirPermissionsMode: \"0777\"\n",
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
