//! `check`: what is wrong with a configuration, found without changing anything.
//!
//! First the file alone: what a server would refuse, and what it would only warn about, because
//! here is the place to be strict. Then, unless told otherwise, the storage, as far as looking
//! goes. Each finding says what to do.

use std::process::ExitCode;
use std::time::Duration;

use driver_core::config::Severity;
use driver_core::{Call, Error, NodeId};
use node_utils::Tools;

use crate::args::CheckFlags;
use crate::config_file::{self, ConfigFileError};
use crate::connection::Connection;
use crate::csi_version::CsiVersion;
use crate::process;
use crate::status;

mod report;

use report::{Finding, Report, Weight};

/// How long the storage may take to answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Checks, reports on standard output, and returns the exit code.
pub fn run(flags: &CheckFlags) -> ExitCode {
    let report = check(flags);
    report.print(flags.json);
    report.exit_code()
}

fn check(flags: &CheckFlags) -> Report {
    let mut report = Report::new(&flags.driver_config_file);
    // The version only gates what is advertised, and nothing is.
    let (file, newest) = (&flags.driver_config_file, CsiVersion::NEWEST);
    // A check runs no program of the node.
    let tools = Tools::of_this_machine();
    let opened = config_file::open(file, &node(), newest, &tools);
    let (document, connection) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            report.add(unusable(&error));
            // What else is odd may be the reason.
            if let Ok(document) = config_file::read(file) {
                let _ = Connection::open(&document, &node(), newest, &tools);
                document
                    .findings_so_far()
                    .into_iter()
                    .map(odd)
                    .for_each(|finding| report.add(finding));
            }
            report.unusable();
            return report;
        }
    };
    document
        .findings()
        .into_iter()
        .map(odd)
        .for_each(|finding| report.add(finding));
    report.driver(connection.driver().kind());
    if !connection.driver().capabilities().volumes {
        report.without_storage();
        return report;
    }
    if flags.offline {
        return report;
    }
    match process::small_runtime() {
        Ok(runtime) => {
            let problems = runtime.block_on(look(&connection));
            report.looked();
            problems
                .iter()
                .map(of_storage)
                .for_each(|finding| report.add(finding));
            runtime.shutdown_background();
        }
        Err(error) => report.add(Finding {
            weight: Weight::Error,
            about: "storage".into(),
            message: format!("it cannot be asked: {error}"),
            advice: None,
        }),
    }
    report
}

async fn look(connection: &Connection) -> Vec<Error> {
    let call = Call::within(PATIENCE);
    let probe = connection.driver().probe(&call);
    match tokio::time::timeout(PATIENCE, probe).await {
        Ok(problems) => problems,
        Err(_) => vec![Error::new(
            driver_core::Kind::Timeout,
            format!("the storage does not answer within {PATIENCE:?}"),
        )],
    }
}

/// A check asks for no node; drivers that need a name get the host's.
fn node() -> NodeId {
    let host = rustix::system::uname();
    let name = host.nodename().to_string_lossy().into_owned();
    NodeId::parse(&name)
        .or_else(|_| NodeId::parse("localhost"))
        .unwrap_or_else(|_| unreachable!("`localhost` is a name"))
}

fn unusable(error: &ConfigFileError) -> Finding {
    let (about, message, advice) = match error.config() {
        Some(config) => (
            config.path().unwrap_or("file").to_owned(),
            config.problem().to_owned(),
            config.advice().map(str::to_owned),
        ),
        None => (
            "file".to_owned(),
            process::chain(error),
            Some("give the path of a YAML file that this user may read".to_owned()),
        ),
    };
    Finding {
        weight: Weight::Error,
        about,
        message,
        advice,
    }
}

fn odd(finding: driver_core::config::Finding) -> Finding {
    let (weight, otherwise) = match finding.severity {
        Severity::UnknownKey => (Weight::Error, "remove it, or correct its name"),
        Severity::NoEffect => (Weight::Note, "it may be removed"),
        Severity::Doubtful => (Weight::Warning, "look at it again"),
    };
    Finding {
        weight,
        about: finding.path,
        message: finding.message,
        advice: finding.advice.or_else(|| Some(otherwise.to_owned())),
    }
}

fn of_storage(error: &Error) -> Finding {
    Finding {
        weight: Weight::Error,
        about: "storage".into(),
        message: status::message_without_advice(error),
        advice: error.advice().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_finding_has_its_advice_apart_and_no_text_of_a_panic() {
        let join = tokio::spawn(async { panic!("hunter2") }).await;
        let error = Error::new(driver_core::Kind::Internal, "look (twice)")
            .because(join.expect_err("a panic"))
            .advise("twice");
        let finding = of_storage(&error);
        assert_eq!(
            finding.message,
            "look (twice): met a defect of this program"
        );
        assert_eq!(finding.advice.as_deref(), Some("twice"));
    }
}
