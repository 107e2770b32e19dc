//! Names in the main file that no file has.

use super::*;
use crate::testing::log::{heard, listen};

#[tokio::test]
async fn a_name_without_a_file_is_logged_once_after_the_first_scan() {
    let names = Names {
        aliases: [(parse("old"), parse("nas"))].into(),
        bare: Bare::Of(parse("disk")),
        ..Names::default()
    };
    let mut place = Place::new(names, None);
    fs::write(place.dir.path().join("nas.yaml"), hostpath("/one")).expect("a file");
    listen();
    place.watch.first().await;
    place.scans().await;
    let log = heard();
    let lines = log
        .lines()
        .filter(|line| line.contains("no file is called"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("proxy.legacyConnection: disk"), "{log}");
    assert!(!lines[0].contains("nas"), "{log}");
}
