//! A plugin over several connections.

use std::sync::Arc;

use driver_core::Driver;
use driver_core::config::{Document, NoEnvironment};

use super::{Memory, environment, serve};
use crate::app::App;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, Names};

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
    let all = drivers.iter().map(|(name, driver)| {
        let name = ConnectionName::parse(name).expect("a name");
        Connection::among(name, driver.clone(), &parse("driver: memory"))
    });
    of_connections(&main_file(""), all, Names::default())
}

fn of_connections(root: &str, all: impl Iterator<Item = Connection>, names: Names) -> Arc<Plugin> {
    let mut app = app(root);
    app.connections = Connections::named(names);
    for connection in all {
        app.connections.add(connection);
    }
    serve(app)
}

fn app(root: &str) -> App {
    let (_, app) = App::open(parse(root), &environment()).expect("an app");
    app
}

/// The same connections as callers of a legacy name of `connection` have them, with the same calls in progress.
pub(crate) fn under_legacy_name(plugin: &Plugin, connection: &str) -> Arc<Plugin> {
    let root =
        "{driver: proxy, proxy: {configFolder: /none, legacyNames: {org.old: replaced-below}}}";
    let (name, mut app) = app(root).legacy.pop_first().expect("a legacy name");
    let connection = ConnectionName::parse(connection).expect("a name");
    app.connections = plugin.connections.under_legacy_name(connection, true);
    Arc::new(app.plugin(name, plugin.modes, plugin.runner.clone()))
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
