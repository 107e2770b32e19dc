//! The example configurations.

use std::path::Path;

use driver_core::NodeId;
use driver_core::config::{Document, NoEnvironment};
use driver_directory::{DirectoryKind, from_document};

#[test]
fn the_example_of_each_kind_is_read_without_a_remark() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let node = NodeId::parse("node-1").expect("node");
    for kind in DirectoryKind::ALL {
        let path = folder.join(format!("{}.yaml", kind.name()));
        let text = std::fs::read_to_string(&path).expect("example");
        for text in [
            text.clone(),
            text.replace("# createBase: true", "createBase: true"),
            text.replace("# quotas: require", "quotas: require"),
        ] {
            let document = Document::parse(&text, &NoEnvironment).expect("document");
            from_document(&document, &node, None, None).expect("driver");
            assert_eq!(document.findings(), [], "{}", path.display());
        }
        let with_id = text.replace("# baseId:", "baseId:");
        let document = Document::parse(&with_id, &NoEnvironment).expect("document");
        from_document(&document, &node, None, None).expect("driver");
        // A base of a share outlives what its controller knows of it.
        let is_share = kind != DirectoryKind::LocalHostpath;
        assert_eq!(with_id != text, is_share, "{}", path.display());
    }
}
