//! What the page and the examples show can be used as it stands.

use std::fs;
use std::path::Path;

use driver_core::config::{Document, Environment};

/// A shell with every variable.
struct Shell;

impl Environment for Shell {
    fn variable(&self, _: &str) -> Option<String> {
        Some("secret".to_owned())
    }
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    fs::read_to_string(path).expect("a file")
}

/// Proves that each key of a configuration is read.
fn passes(text: &str) {
    let document = Document::parse(text, &Shell).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    document.common().expect("the common keys");
    driver_synology::from_document(&document).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let findings: Vec<String> = document
        .findings()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(findings, Vec::<String>::new(), "{text}");
}

#[test]
fn each_key_of_the_examples_is_read() {
    for kind in driver_synology::KINDS {
        passes(&read(&format!("examples/{kind}.yaml")));
    }
}

#[test]
fn each_key_of_the_page_is_read() {
    let page = read("docs/synology.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let configurations: Vec<&str> = blocks
        .filter(|block| block.starts_with("driver:"))
        .collect();
    assert!(configurations.len() >= 3, "{}", configurations.len());
    configurations.into_iter().for_each(passes);
}

#[test]
fn what_cannot_be_right_is_refused_with_its_key() {
    let good = read("examples/synology-iscsi.yaml");
    for (from, to, key) in [
        (
            "host: nas.example",
            "host: 'nas.example/x'",
            "httpConnection.host",
        ),
        ("username: csi", "username: ''", "httpConnection.username"),
        (
            "volume: /volume1",
            "volume: /volume1/../x",
            "synology.volume",
        ),
        (
            "targetPortal: \"nas.example:3260\"",
            "targetPortal: ''",
            "iscsi.targetPortal",
        ),
        (
            "baseiqn: \"iqn.2000-01",
            "baseiqn: \"2000-01",
            "iscsi.baseiqn",
        ),
        ("namePrefix: \"\"", "namePrefix: 'a b'", "iscsi.namePrefix"),
        ("mode: target-per-lun", "mode: none", "iscsi.mode"),
        (
            "mode: target-per-lun",
            "mode: shared-target\n  sharedTarget: {targets: 0}",
            "iscsi.sharedTarget.targets",
        ),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good, "{from}");
        let document = Document::parse(&text, &Shell).expect("yaml");
        let error = driver_synology::from_document(&document).expect_err(to);
        assert_eq!(error.path(), Some(key), "{error}");
    }
}
