//! The connections that a command for operators is about, and questions to them.
//!
//! The one of a file, all of a folder, or one of them by its name. A connection that cannot be used, or
//! lacks the verb, is reported beside the others and stops none of them.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driver_core::{Call, Capabilities, Error, Kind};
use futures_util::FutureExt;
use node_utils::Tools;
use serde::Serialize;

use crate::app::App;
use crate::cli::args::EX_USAGE;
use crate::cli::check;
use crate::csi::environment::Environment;
use crate::csi::spec_version::CsiVersion;
use crate::message::{self, printable};
use crate::process;
use crate::routing::connection::Connection;

/// The time that a question may take: a page of a list, a look at one volume.
pub(crate) const QUESTION: Duration = Duration::from_mins(2);
/// The time that one change may take. As long as the same change may take in a call.
pub(crate) const CHANGE: Duration = Duration::from_mins(10);
/// How long after its time a call that does not keep to it is waited for. Its own error says more than that it is late.
const GRACE: Duration = Duration::from_mins(1);
/// So often without an answer, one after the other, and a connection is asked nothing more: ten thousand
/// questions to a host that is gone would take weeks.
const SILENCES: usize = 3;

/// Connections to be asked, and those that cannot be.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) connections: Vec<Arc<Connection>>,
    pub(crate) problems: Vec<Problem>,
}

/// Why something is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// The connection that it is about, if it has a name.
    pub(crate) connection: Option<String>,
    pub(crate) error: String,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The time is over.
    Late,
    /// It met a defect of this program.
    Defect,
}

/// The time that a connection is believed to answer.
#[derive(Debug, Default)]
pub(crate) struct Patience(AtomicUsize);

/// The name of a connection, as reports show it.
pub(crate) fn name_of(connection: &Connection) -> Option<String> {
    let name = connection.name().field();
    name.map(|name| name.to_string())
}

/// The connections of a configuration; with a name that one alone. If there are none, it is said why, and
/// the process ends with that code.
pub(crate) fn choose(file: &Path, wanted: Option<&str>) -> Result<Chosen, ExitCode> {
    open(file, wanted).map_err(|problem| {
        process::complain(&format!("omnibus-csi: {problem}"));
        ExitCode::from(EX_USAGE)
    })
}

fn open(file: &Path, wanted: Option<&str>) -> Result<Chosen, String> {
    let at = Environment {
        node: check::node(),
        version: CsiVersion::NEWEST,
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let (_, app) = App::of_file(file, &at).map_err(|error| process::chain(&error))?;
    let App {
        kind,
        folder,
        connections,
        ..
    } = app;
    let Some(mut folder) = folder else {
        return match wanted {
            None => Ok(Chosen {
                connections: connections.only().into_iter().collect(),
                problems: Vec::new(),
            }),
            Some(_) => Err(format!(
                "the driver `{kind}` is one connection without a name; leave --connection out"
            )),
        };
    };
    let survey = folder.survey();
    let mut chosen = Chosen {
        connections: Vec::new(),
        problems: Vec::new(),
    };
    let mut found = false;
    for one in survey.all {
        let name = one.name.to_string();
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        found = true;
        match one.opened {
            Ok((_, connection)) => chosen.connections.push(Arc::new(connection)),
            Err(error) => chosen.problems.push(Problem {
                connection: Some(name),
                error: printable(&process::chain(&error)),
            }),
        }
    }
    if let Some(wanted) = wanted {
        if !found {
            let wanted = printable(wanted);
            return Err(format!(
                "there is no connection `{wanted}`; `omnibus-csi connections` lists those that are"
            ));
        }
    } else {
        chosen.problems.extend(survey.odd.iter().map(|odd| Problem {
            connection: None,
            error: printable(odd),
        }));
    }
    Ok(chosen)
}

// === impl Chosen ===

impl Chosen {
    /// Those whose drivers can do it, and how the others are called.
    pub(crate) fn able(
        &mut self,
        can: impl Fn(&Capabilities) -> bool,
    ) -> (Vec<Arc<Connection>>, Vec<String>) {
        let all = self.connections.drain(..);
        let (able, others): (Vec<_>, Vec<_>) = all.partition(|one| can(&one.can()));
        let name = |other: &Arc<Connection>| {
            name_of(other).unwrap_or_else(|| other.driver().kind().to_owned())
        };
        (able, others.iter().map(name).collect())
    }
}

/// Asks within a time; a connection that does not keep to it, or meets a defect, stops no other.
pub(crate) async fn within<T>(
    time: Duration,
    doing: &str,
    ask: impl AsyncFnOnce(&Call) -> Result<T, Error>,
) -> Result<T, Error> {
    let failed = |kind, why: &str| Err(Error::new(kind, doing).because(why.to_owned()));
    match answer(time, GRACE, ask).await {
        Ok(answer) => answer,
        Err(NoAnswer::Defect) => failed(Kind::Internal, "it met a defect of this program"),
        Err(NoAnswer::Late) => failed(Kind::Timeout, "there is no answer"),
    }
}

/// The answer to a question that has a time, and is waited for a grace longer: its own error says more than that it is
/// late.
pub(crate) async fn answer<T>(
    time: Duration,
    grace: Duration,
    ask: impl AsyncFnOnce(&Call) -> T,
) -> Result<T, NoAnswer> {
    let call = Call::within(time);
    let answer = AssertUnwindSafe(ask(&call)).catch_unwind();
    match tokio::time::timeout(time + grace, answer).await {
        Ok(answer) => answer.map_err(|_| NoAnswer::Defect),
        Err(_) => Err(NoAnswer::Late),
    }
}

// === impl Patience ===

impl Patience {
    /// Takes note of whether there was an answer, be it a refusal.
    pub(crate) fn heard<T>(&self, answer: &Result<T, Error>) {
        match answer {
            Err(error) if matches!(error.kind(), Kind::Unreachable | Kind::Timeout) => {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.0.store(0, Ordering::Relaxed),
        }
    }

    /// Whether nothing more is to be asked.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= SILENCES
    }
}

// === impl Problem ===

impl Problem {
    /// That a connection did not answer a question.
    pub(crate) fn of(connection: &Connection, error: &Error) -> Self {
        Self {
            connection: name_of(connection),
            error: message::of(error),
        }
    }

    /// That the rest of a connection was left out.
    pub(crate) fn silence(connection: &Connection, left: &str) -> Self {
        let times = format!("no answer {SILENCES} times, one after the other");
        Self {
            connection: name_of(connection),
            error: format!("{times}: {left}"),
        }
    }

    /// For a table.
    pub(crate) fn line(&self) -> String {
        match &self.connection {
            Some(name) => format!("unknown: {name}: {}\n", self.error),
            None => format!("unknown: {}\n", self.error),
        }
    }
}
