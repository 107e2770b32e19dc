//! `synology-sim`: one simulated NAS until it is interrupted.

#![forbid(unsafe_code)]

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use synology_sim::{Options, Simulator, Version};
use tokio::signal::unix::{SignalKind, signal};

/// A simulator of the parts of Synology's web API that a CSI driver needs.
#[derive(Parser)]
#[command(version)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each named after what it does"
)]
struct Arguments {
    /// The release of DSM: 6.2, 7.0, 7.1 or 7.2.
    #[arg(long, default_value = "7.2")]
    dsm: Version,
    /// The address where HTTP is served, and below /sim/ faults, counts and the state.
    #[arg(long, default_value = "127.0.0.1:5000")]
    http: SocketAddr,
    /// Unknown parameters, and those in the URL, are refused or recorded.
    #[arg(long)]
    strict: bool,
    /// Every call has to echo the token of the login.
    #[arg(long)]
    csrf: bool,
    /// HTTPS in place of HTTP.
    #[arg(long)]
    tls: bool,
    /// Each call and the shape of its answer is written there, a line each.
    #[arg(long)]
    record: Option<PathBuf>,
    /// The storage is that of this machine: a pool, LIO, nfsd and samba.
    #[arg(long)]
    this_machine: bool,
    /// The pool of this machine.
    #[arg(long, default_value = "tank", requires = "this_machine")]
    pool: String,
    /// The account that may log in.
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
    options.strict = arguments.strict;
    options.csrf = arguments.csrf;
    options.tls = arguments.tls;
    let nas = if arguments.this_machine {
        Simulator::on_this_machine(options, arguments.http, &arguments.pool).await
    } else {
        Simulator::listen(options, arguments.http).await
    };
    let nas = nas.context("the simulator did not start")?;
    if let Some(path) = &arguments.record {
        nas.record(path).context("the record is not written")?;
    }
    let mut out = std::io::stdout();
    let scheme = if arguments.tls { "https" } else { "http" };
    writeln!(out, "DSM {} on {scheme}://{}", arguments.dsm, nas.address())?;
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
