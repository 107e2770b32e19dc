//! A plugin over several connections.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{Driver, NodeId};
use node_utils::Tools;
use node_utils::blocking::ThreadPool;

use super::{Memory, serve};
use crate::connection::Connection;
use crate::connections::{ConnectionName, Connections, Names, Slot};
use crate::csi_version::CsiVersion;
use crate::service::Plugin;
use crate::site::{Site, Surroundings};

/// A plugin over several connections, whose files are empty but for `yaml`.
pub(crate) fn several(drivers: &[(&str, &Arc<Memory>, &str)], names: Names) -> Arc<Plugin> {
    several_under("", drivers, names)
}

/// The same under a main file with more than a folder.
pub(crate) fn several_under(
    root: &str,
    drivers: &[(&str, &Arc<Memory>, &str)],
    names: Names,
) -> Arc<Plugin> {
    several_on(&ThreadPool::new(8), root, drivers, names)
}

/// The same on these threads.
pub(crate) fn several_on(
    threads: &ThreadPool,
    root: &str,
    drivers: &[(&str, &Arc<Memory>, &str)],
    names: Names,
) -> Arc<Plugin> {
    let all = drivers
        .iter()
        .map(|(name, driver, yaml)| among(threads, name, driver, yaml));
    of_connections(root, all, names)
}

/// A plugin over connections with any drivers, whose files are empty.
pub(crate) fn several_of(drivers: &[(&str, Arc<dyn Driver>)]) -> Arc<Plugin> {
    let threads = ThreadPool::new(8);
    let all = drivers.iter().map(|(name, driver)| {
        let name = ConnectionName::parse(name).expect("a name");
        Connection::among(name, driver.clone(), &parse("driver: memory"), &threads)
    });
    of_connections("", all, Names::default())
}

fn of_connections(root: &str, all: impl Iterator<Item = Connection>, names: Names) -> Arc<Plugin> {
    let root = parse(&format!(
        "driver: proxy\nproxy: {{configFolder: /none}}\n{root}"
    ));
    let at = Surroundings {
        node: NodeId::parse("node-1").expect("node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let (_, mut site) = Site::open(root, &at).expect("a site");
    site.connections = Connections::named(names);
    for connection in all {
        site.connections.put(Slot::fixed(connection));
    }
    serve(site)
}

/// A connection whose file is empty but for `yaml`.
pub(crate) fn among(
    threads: &ThreadPool,
    name: &str,
    driver: &Arc<Memory>,
    yaml: &str,
) -> Connection {
    let name = ConnectionName::parse(name).expect("a name");
    let document = parse(&format!("driver: memory\n{yaml}"));
    Connection::among(name, driver.clone(), &document, threads)
}

fn parse(yaml: &str) -> Document {
    Document::parse(yaml, &NoEnvironment).expect("yaml")
}
