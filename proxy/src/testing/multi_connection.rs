//! A plugin over several connections.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{Driver, NodeId};
use node_utils::Tools;

use super::{Memory, serve};
use crate::app::{App, Environment};
use crate::csi::plugin::Plugin;
use crate::csi::spec_version::CsiVersion;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, LazyConnection, Names};

/// A plugin over several connections, whose files are empty but for `yaml`.
pub(crate) fn multi_connection(
    drivers: &[(&str, &Arc<Memory>, &str)],
    names: Names,
) -> Arc<Plugin> {
    multi_under("", drivers, names)
}

/// The same under a main file with more than a folder.
pub(crate) fn multi_under(
    root: &str,
    drivers: &[(&str, &Arc<Memory>, &str)],
    names: Names,
) -> Arc<Plugin> {
    let all = drivers
        .iter()
        .map(|(name, driver, yaml)| among(name, driver, yaml));
    of_connections(&main_file(root), all, names)
}

fn main_file(more: &str) -> String {
    format!("driver: proxy\nproxy: {{configFolder: /none}}\n{more}")
}

/// A plugin over connections with any drivers, whose files are empty.
pub(crate) fn multi_of(drivers: &[(&str, Arc<dyn Driver>)]) -> Arc<Plugin> {
    multi_in(&main_file(""), drivers)
}

/// The same with a main file of its own.
pub(crate) fn multi_in(root: &str, drivers: &[(&str, Arc<dyn Driver>)]) -> Arc<Plugin> {
    let all = drivers.iter().map(|(name, driver)| {
        let name = ConnectionName::parse(name).expect("a name");
        Connection::among(name, driver.clone(), &parse("driver: memory"))
    });
    of_connections(root, all, Names::default())
}

fn of_connections(root: &str, all: impl Iterator<Item = Connection>, names: Names) -> Arc<Plugin> {
    let root = parse(root);
    let at = Environment {
        node: NodeId::parse("node-1").expect("node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let (_, mut app) = App::open(root, &at).expect("an app");
    app.connections = Connections::named(names);
    for connection in all {
        app.connections.put(LazyConnection::fixed(connection));
    }
    serve(app)
}

/// A connection whose file is empty but for `yaml`.
pub(crate) fn among(name: &str, driver: &Arc<Memory>, yaml: &str) -> Connection {
    let name = ConnectionName::parse(name).expect("a name");
    let document = parse(&format!("driver: memory\n{yaml}"));
    Connection::among(name, driver.clone(), &document)
}

fn parse(yaml: &str) -> Document {
    Document::parse(yaml, &NoEnvironment).expect("yaml")
}
