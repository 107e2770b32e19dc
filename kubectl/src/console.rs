//! The console of the controller on a port of this machine, through the API server.

use std::io::{self, ErrorKind, IsTerminal};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::net::{TcpListener, TcpStream};

use crate::args::ConsoleFlags;
use crate::cluster::{Cluster, refused};
use crate::ours::DriverPod;
use crate::remote::controller;
use crate::{complain, say};

/// Forwards the port until Ctrl-C.
pub(crate) async fn run(cluster: &Cluster, flags: &ConsoleFlags) -> Result<u8, String> {
    let pod = controller(cluster, &flags.controller).await?;
    let port = pod.console.ok_or_else(|| {
        format!(
            "the console of {} is off: set `console: {{enabled: true}}` in the values of the chart, and `helm upgrade`",
            pod.shown()
        )
    })?;
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), &pod.namespace);
    // A right that is missing is said here, not as a page that does not load.
    let tried = pods.portforward(&pod.name, &[port]).await;
    tried.map_err(|error| unreachable(&pod, &error))?.abort();
    let listener = listen(flags.port, port).await?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let url = format!("http://localhost:{}/", address.port());
    say(&format!("{url}\n"));
    if io::stdout().is_terminal() {
        say(&format!("the console of {}; Ctrl-C ends it\n", pod.shown()));
        if !flags.no_open {
            open(&url);
        }
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (pods, pod) = (pods.clone(), pod.clone());
                    tokio::spawn(async move {
                        if let Err(why) = forward(&pods, &pod, port, stream).await {
                            complain(&why);
                        }
                    });
                }
                Err(error) => return Err(error.to_string()),
            },
            ended = tokio::signal::ctrl_c() => {
                return ended.map(|()| 0).map_err(|error| error.to_string());
            }
        }
    }
}

fn unreachable(pod: &DriverPod, error: &kube::Error) -> String {
    let needs = format!("get and create on pods/portforward in {}", pod.namespace);
    format!("{}: {}", pod.shown(), refused(&needs, error))
}

/// The port that was asked for; else that of the console, or a free one where another program has it.
async fn listen(wanted: Option<u16>, of_console: u16) -> Result<TcpListener, String> {
    let port = wanted.unwrap_or(of_console);
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let bound = match bound {
        Err(error) if error.kind() == ErrorKind::AddrInUse && wanted.is_none() => {
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
        }
        bound => bound,
    };
    bound.map_err(|error| format!("listen on port {port} of the loopback: {error}"))
}

/// One connection of the browser.
async fn forward(
    pods: &Api<Pod>,
    pod: &DriverPod,
    port: u16,
    mut stream: TcpStream,
) -> Result<(), String> {
    let forwarder = pods.portforward(&pod.name, &[port]).await;
    let mut forwarder = forwarder.map_err(|error| unreachable(pod, &error))?;
    let Some(mut remote) = forwarder.take_stream(port) else {
        return Ok(());
    };
    let failed = forwarder.take_error(port);
    // Either side may go away at any time, as browsers do.
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut remote).await;
    drop(remote);
    let said = match failed {
        Some(failed) => failed.await,
        None => None,
    };
    forwarder.abort();
    said.map_or(Ok(()), |why| Err(format!("{}: {why}", pod.shown())))
}

/// Opens the address in a browser. Where that cannot be, the address was printed.
#[expect(
    clippy::disallowed_methods,
    reason = "a browser on the user's desktop: no secret, no deadline, no host but this one"
)]
fn open(url: &str) {
    let opener = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let has_desktop = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    // Without a desktop xdg-open would start a browser in this terminal.
    if opener == "xdg-open" && !has_desktop("DISPLAY") && !has_desktop("WAYLAND_DISPLAY") {
        return;
    }
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null());
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}
