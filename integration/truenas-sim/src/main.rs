//! `truenas-sim`: one simulated NAS until it is interrupted.

#![forbid(unsafe_code)]

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use truenas_sim::{Generation, Options, Simulator};

/// A simulator of the TrueNAS API: JSON-RPC, the legacy websocket, REST, TLS.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The release: core13, 22.12, 24.10, 25.04, 25.10, 26-beta or 26-rc.
    #[arg(long, default_value = "25.10")]
    generation: Generation,
    /// A pool and its size in GiB; may be given again.
    #[arg(long = "pool", default_value = "tank=1024", value_name = "NAME=GIB")]
    pools: Vec<String>,
    /// The storage is that of this machine: its pools of these names, nfsd, samba, LIO and nvmet.
    #[arg(long)]
    this_machine: bool,
    /// The address where plain HTTP is served.
    #[arg(long, default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// The address where TLS is served.
    #[arg(long, default_value = "127.0.0.1:8443")]
    https: SocketAddr,
    /// The address where faults are injected and calls are counted.
    #[arg(long, default_value = "127.0.0.1:8089")]
    control: SocketAddr,
    /// The password of root.
    #[arg(long, default_value = "sesame-for-root")]
    root_password: String,
    /// A name of the certificate; may be given again.
    #[arg(long = "name", default_value = "localhost")]
    names: Vec<String>,
}

fn pool(text: &str) -> anyhow::Result<(String, u64)> {
    let (name, size) = text
        .split_once('=')
        .context("a pool is given as NAME=GIB")?;
    let size: u64 = size
        .parse()
        .context("the size of a pool is a number of GiB")?;
    Ok((name.to_owned(), size << 30))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut options = Options::new(arguments.generation);
    options.pools = arguments
        .pools
        .iter()
        .map(|text| pool(text))
        .collect::<Result<_, _>>()?;
    options.http = arguments.http;
    options.https = arguments.https;
    options.control = Some(arguments.control);
    options.root_password = arguments.root_password;
    options.certificate_names = arguments.names;
    let nas = if arguments.this_machine {
        Simulator::start_on_this_machine(options).await
    } else {
        Simulator::start(options).await
    };
    let nas = nas.context("the simulator did not start")?;
    let mut out = std::io::stdout();
    writeln!(out, "release  {}", nas.generation())?;
    writeln!(out, "http     {}", nas.http())?;
    writeln!(out, "https    {}", nas.https())?;
    if let Some(control) = nas.control() {
        writeln!(out, "control  http://{control}")?;
    }
    writeln!(out, "api key  {}", nas.api_key())?;
    write!(out, "{}", nas.certificate_pem())?;
    out.flush()?;
    let mut end = signal(SignalKind::terminate()).context("waiting for the end")?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for the interrupt")?,
        _ = end.recv() => {}
    }
    Ok(())
}
