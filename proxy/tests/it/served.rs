//! The services of the program over drivers of a test, in its own process.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{Driver, NodeId};
use node_utils::Tools;
use omnibus_csi::app::App;
use omnibus_csi::csi::environment::Environment;
use omnibus_csi::csi::plugin::{Modes, Plugin};
use omnibus_csi::csi::spec_version::CsiVersion;
use omnibus_csi::routing::connection::Connection;
use omnibus_csi::routing::connections::{ConnectionName, Connections, Names};
use omnibus_csi::routing::plugin_name::PluginName;
use omnibus_csi::rpc::{Deadlines, Runner};
use omnibus_csi::telemetry::metrics::Metrics;

/// A process that counts into `metrics`, and serves all that it can.
pub(super) fn process(app: App, metrics: &Metrics) -> Arc<Plugin> {
    let name = PluginName::parse("org.example.test").expect("a name");
    let modes = Modes {
        controller: true,
        node: true,
    };
    let runner = Runner::new(Deadlines::default(), metrics.clone());
    Arc::new(app.plugin(name, modes, runner))
}

/// The app of a file whose driver is this one.
pub(super) fn of_one(driver: Arc<dyn Driver>, yaml: &str) -> App {
    let (at, document) = (environment(), parse(yaml));
    let connection = over(ConnectionName::unnamed(), driver, &document, &at);
    App::over(connection, &document, &at).expect("an app")
}

/// The app of a main file, and of connections whose files are empty.
pub(super) fn of_several(root: &str, drivers: &[(&str, Arc<dyn Driver>)], names: Names) -> App {
    let mut app = of_file(root);
    app.connections = Connections::named(names);
    for (name, driver) in drivers {
        let name = ConnectionName::parse(name).expect("a name");
        let (at, document) = (environment(), parse("driver: fake"));
        let connection = over(name, driver.clone(), &document, &at);
        app.connections.add(connection);
    }
    app
}

/// The app of a file with a driver of this build.
pub(super) fn of_file(yaml: &str) -> App {
    let opened = App::open(parse(yaml), &environment());
    opened.map_err(|refused| refused.error).expect("an app").1
}

fn over(
    name: ConnectionName,
    driver: Arc<dyn Driver>,
    document: &Document,
    at: &Environment,
) -> Connection {
    Connection::over(name, driver, document, &App::context(at)).expect("a connection")
}

fn environment() -> Environment {
    Environment {
        node: NodeId::parse("node-1").expect("a node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: None,
    }
}

fn parse(yaml: &str) -> Document {
    Document::parse(yaml, &NoEnvironment).expect("yaml")
}
