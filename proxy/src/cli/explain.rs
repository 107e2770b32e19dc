//! `explain`: one volume, from its handle to its pods, and the first link that is broken.
//!
//! The links are looked at one after the other, as far as they lead. Each question has a limit, and nothing is changed:
//! a person asks while something is wrong.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use csi_types::said;
use driver_core::Call;

use crate::cli::args::{EX_USAGE, ExplainFlags};
use crate::cli::connections::size;
use crate::cli::selection::{NoAnswer, answer};
use crate::process;
use crate::routing::connections::Connections;
use crate::routing::own_thread;
use crate::routing::plugin_name::PluginName;
use chain::{Chain, Link};
use storage::Configured;

mod chain;
mod node;
mod storage;
#[cfg(test)]
mod tests;

/// The time that one question may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after its time a question is waited for. Its own error says more than that it is late.
const GRACE: Duration = Duration::from_millis(500);
/// The time that the kernel may take to let go of a share that a driver mounted to look at it.
const LETS_GO_WITHIN: Duration = Duration::from_secs(5);

/// Why a question has no answer.
#[derive(Debug)]
enum Silent {
    /// The time is over; perhaps with what was being done.
    Late(Option<String>),
    /// Our own.
    Defect,
}

/// Draws the chain on standard output, and returns the exit code.
pub fn run(flags: &ExplainFlags) -> ExitCode {
    let links = match process::carry_out(walk(flags)) {
        Ok(Ok(links)) => links,
        Ok(Err(problem)) => {
            process::complain(&format!("omnibus-csi: {problem}"));
            return ExitCode::from(EX_USAGE);
        }
        Err(code) => return code,
    };
    node_utils::shares::unmount_all(LETS_GO_WITHIN);
    let chain = Chain::new(&flags.handle, links);
    if flags.json {
        process::say(&format!("{}\n", serde_json::json!(chain)));
    } else {
        let ascii = flags.ascii || !io::stdout().is_terminal();
        process::say(&chain.picture(ascii));
    }
    chain.exit_code()
}

/// The connections of a folder by their names; none for a configuration of one. No storage is asked.
pub(super) fn connections(file: &Path) -> Result<Option<Connections>, String> {
    storage::read(file, None).map(Configured::into_connections)
}

async fn walk(flags: &ExplainFlags) -> Result<Vec<Link>, String> {
    let (mut links, attachment) = match &flags.driver_config_file {
        Some(file) if !flags.node_only => {
            let configured = read(file, flags.csi_name.clone()).await?;
            let kubelet = flags.kubelet_dir.clone();
            let is_node = read_files(move || kubelet.is_dir()).await == Ok(true);
            storage::links(&configured, &flags.handle, (file, is_node)).await
        }
        _ => match storage::handle(&flags.handle, false) {
            Ok(handle) => (vec![Link::holds("handle", handle.as_str())], None),
            Err(broken) => return Ok(vec![broken]),
        },
    };
    links.extend(node::links(&flags.kubelet_dir, &flags.handle, attachment.as_ref()).await);
    Ok(links)
}

/// The connections of the configuration.
async fn read(file: &Path, driver: Option<PluginName>) -> Result<Configured, String> {
    let path = file.to_owned();
    let read = read_files(move || storage::read(&path, driver.as_ref())).await;
    read.map_err(|why| format!("read {}: {why}", file.display()))?
}

/// Reads files, which may be where nothing answers: on a thread of its own, within the time of a question.
async fn read_files<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let reading = own_thread::spawn(read).map_err(|error| error.to_string())?;
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(read) => read.map_err(|_| Silent::Defect.text()),
        Err(_) => Err(Silent::Late(None).text()),
    }
}

/// One question.
async fn ask<T>(ask: impl AsyncFnOnce(&Call) -> T) -> Result<T, Silent> {
    let answer = answer(PATIENCE, GRACE, ask).await;
    answer.map_err(|why| match why {
        NoAnswer::Late => Silent::Late(None),
        NoAnswer::Defect => Silent::Defect,
    })
}

// === impl Silent ===

impl Silent {
    fn text(&self) -> String {
        let late = said::late(PATIENCE);
        match self {
            Self::Late(None) => late,
            Self::Late(Some(doing)) => format!("{late}: {doing}"),
            Self::Defect => "met a defect of this program".to_owned(),
        }
    }
}
