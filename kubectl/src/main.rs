//! `kubectl omnibus`: why a claim does not work, and the commands of the driver's controller, from outside of the
//! cluster with the rights of a kubeconfig.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, ExplainFlags};
use chain::{CANNOT_TELL, Chain};
use cluster::Cluster;
use many::Many;

mod advice;
mod args;
mod chain;
mod cluster;
mod console;
mod found;
mod many;
mod ours;
mod output;
mod read;
mod remote;
mod walk;
mod workload;

/// The exit code of a wrong command line: `EX_USAGE`.
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EX_USAGE } else { 0 });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let code = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            let code = runtime.block_on(run(cli));
            // What was given up may still wait for the cluster.
            runtime.shutdown_background();
            code
        });
    match code {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            complain(&problem);
            ExitCode::from(CANNOT_TELL)
        }
    }
}

async fn run(cli: Cli) -> Result<u8, String> {
    let flags = cli.cluster;
    let cluster = Cluster::connect(flags.kubeconfig, flags.context, flags.driver_namespace).await?;
    match cli.command {
        Command::Explain(flags) => Box::pin(explain(&cluster, &flags)).await,
        Command::Connections(flags) => remote::run(&cluster, "connections", &flags).await,
        Command::Orphans(flags) => remote::run(&cluster, "orphans", &flags).await,
        Command::Exports(flags) => remote::run(&cluster, "exports", &flags).await,
        Command::Check(flags) => remote::run(&cluster, "check", &flags).await,
        Command::ExportPvs(flags) => remote::run(&cluster, "export-pvs", &flags).await,
        Command::Adopt(flags) => remote::run(&cluster, "adopt", &flags).await,
        Command::Move(flags) => remote::run(&cluster, "move", &flags).await,
        Command::Console(flags) => console::run(&cluster, &flags).await,
    }
}

/// Draws the chain of a claim, or a line of each.
async fn explain(cluster: &Cluster, flags: &ExplainFlags) -> Result<u8, String> {
    let namespace = flags.namespace.as_deref().unwrap_or(&cluster.namespace);
    let ascii = flags.ascii || !io::stdout().is_terminal();
    let Some(name) = flags.claim.as_deref() else {
        let place = (!flags.all_namespaces).then_some(namespace);
        let many = Box::pin(Many::read(cluster, place)).await?;
        if flags.json {
            say(&format!("{}\n", serde_json::json!(many.chains)));
        } else {
            say(&many.picture(ascii));
        }
        return Ok(many.exit_code());
    };
    let found = Box::pin(read::read(cluster, namespace, name)).await;
    let chain = Chain::new(namespace, name, walk::walk(&found));
    if flags.json {
        say(&format!("{}\n", serde_json::json!(chain)));
    } else {
        say(&chain.picture(ascii));
    }
    Ok(chain.exit_code())
}

/// Writes to standard output. Where it was closed, no reader is left.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn complain(text: &str) {
    let text = chain::printable(text);
    let _ = writeln!(io::stderr(), "kubectl omnibus: {text}");
}
