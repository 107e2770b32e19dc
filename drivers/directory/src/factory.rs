//! The drivers of this family, for a process that serves them.

use std::sync::Arc;

use driver_core::{DriverFactory, DriverHost};
use node_utils::Tools;

use crate::driver::from_document;
use crate::kind::DirectoryKind;

const KINDS: [&str; 4] = [
    DirectoryKind::LocalHostpath.name(),
    DirectoryKind::NfsClient.name(),
    DirectoryKind::SmbClient.name(),
    DirectoryKind::LustreClient.name(),
];
const SECTIONS: [&str; 4] = [
    DirectoryKind::LocalHostpath.section(),
    DirectoryKind::NfsClient.section(),
    DirectoryKind::SmbClient.section(),
    DirectoryKind::LustreClient.section(),
];

/// The drivers whose volumes are directories.
pub const fn factory<C: DriverHost + AsRef<Tools>>() -> DriverFactory<C> {
    DriverFactory {
        kinds: &KINDS,
        sections: &SECTIONS,
        example,
        build: |document, host| {
            let tools = host.is_controller().then(|| host.as_ref());
            let mut driver = from_document(document, host.node(), host.records(), tools)?;
            driver.only_attaches = !host.is_controller();
            Ok(Arc::new(driver))
        },
    }
}

fn example(kind: &str) -> String {
    let base = "shareBasePath: /x, controllerBasePath: /x";
    match kind.strip_suffix("-client") {
        None => format!("driver: {kind}\n{kind}: {{{base}}}\n"),
        Some(section) => {
            format!("driver: {kind}\n{section}: {{shareHost: nas.example, {base}}}\n")
        }
    }
}
