//! Names in the main file that no file has.

use super::*;
use crate::testing::log::{heard, listen};

#[tokio::test]
async fn a_name_that_no_file_has_is_told_once_when_the_folder_was_looked_at() {
    let names = Names {
        aliases: [(parse("old"), parse("nas"))].into(),
        bare: Bare::Of(parse("disk")),
    };
    let mut place = Place::new(names, None);
    fs::write(place.dir.path().join("nas.yaml"), hostpath("/one")).expect("a file");
    listen();
    place.watch.first().await;
    place.looks().await;
    let log = heard();
    let told = log
        .lines()
        .filter(|line| line.contains("no file is called"));
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("proxy.legacyConnection: disk"), "{log}");
    assert!(!told[0].contains("nas"), "{log}");
}
