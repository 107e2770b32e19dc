//! `synology-sim`: one simulated NAS until it is interrupted.

#![forbid(unsafe_code)]

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context;
use clap::Parser;
use synology_sim::{Options, Simulator, Version};
use tokio::signal::unix::{SignalKind, signal};

/// A simulator of the parts of Synology's web API that a CSI driver needs.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The release of DSM: 6.2, 7.0, 7.1 or 7.2.
    #[arg(long, default_value = "7.2")]
    dsm: Version,
    /// Where HTTP is served, and below /sim/ faults, counts and the state.
    #[arg(long, default_value = "127.0.0.1:5000")]
    http: SocketAddr,
    /// The storage is that of this machine: a pool, LIO, nfsd and samba.
    #[arg(long)]
    this_machine: bool,
    /// The pool of this machine.
    #[arg(long, default_value = "tank", requires = "this_machine")]
    pool: String,
    /// Who may log in.
    #[arg(long, default_value = "csi")]
    account: String,
    /// With this password.
    #[arg(long, default_value = "sesame")]
    password: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut options = Options::new(arguments.dsm);
    options.account = arguments.account;
    options.password = arguments.password;
    let nas = if arguments.this_machine {
        Simulator::on_this_machine(options, arguments.http, &arguments.pool).await
    } else {
        Simulator::listen(options, arguments.http).await
    };
    let nas = nas.context("the simulator did not start")?;
    let mut out = std::io::stdout();
    writeln!(out, "DSM {} on http://{}", arguments.dsm, nas.address())?;
    out.flush()?;
    let mut end = signal(SignalKind::terminate()).context("waiting for the end")?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for the interrupt")?,
        _ = end.recv() => {}
    }
    nas.clear()
        .map_err(anyhow::Error::msg)
        .context("something is left on this machine")
}
