//! `check`: what is wrong with a configuration, found without changing anything.
//!
//! First the file alone: what a server would refuse, and what it would only warn about, because
//! here is the place to be strict. Then the storage, by reading only, unless `--offline` is given.
//! Each finding says what to do.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use driver_core::config::{ConfigError, Document, ProcessEnvironment, Severity};
use driver_core::{Call, Error, NodeId};
use futures_util::future::join_all;
use node_utils::Tools;

use crate::app::App;
use crate::cli::args::CheckFlags;
use crate::csi::environment::Environment;
use crate::csi::spec_version::CsiVersion;
use crate::message;
use crate::process;
use crate::routing::config_file::{self, ConfigFileError};
use crate::routing::connection::Connection;
use crate::routing::connections::ConnectionName;
use crate::routing::folder::Surveyed;
use crate::routing::node_id::NodeIdConfig;

mod report;

use report::{Finding, Report, Weight};

/// The time that the storage may take to answer. A person waits for it.
const PATIENCE: Duration = Duration::from_mins(1);
/// The time that the kernel may take to let go of what was mounted for a check.
const LETS_GO_WITHIN: Duration = Duration::from_secs(5);

/// Checks, reports on standard output, and returns the exit code.
pub fn run(flags: &CheckFlags) -> ExitCode {
    let report = check(flags);
    report.print(flags.json);
    report.exit_code()
}

fn check(flags: &CheckFlags) -> Report {
    let mut report = Report::new(&flags.driver_config_file);
    let Some((document, app)) = opened(&flags.driver_config_file, &mut report) else {
        return report;
    };
    let alone = app.folder.is_none();
    let odd_here = |finding| {
        if alone {
            odd_alone(finding)
        } else {
            odd(finding)
        }
    };
    report.all(document.findings().into_iter().map(odd_here));
    report.all(without_base_id(&document));
    report.driver(&app.kind);
    // Storage that an example names is not looked at.
    if !report.is_usable() && (alone || report.is_about(FOLDER)) {
        return report;
    }
    let mut parts = Vec::new();
    let connections = match app.folder {
        None => {
            let only = app.connections.only();
            if let Some(only) = &only {
                report.storage_of(only);
            }
            only.into_iter().collect()
        }
        Some(mut folder) => {
            if app.info.ids().is_some_and(NodeIdConfig::asks_nodes) {
                report.add(note("proxy.nodeId.parts", ON_NODES));
            }
            let survey = folder.survey();
            report.all(survey.odd.into_iter().map(odd_folder));
            report.all(survey.missing.into_iter().map(missing));
            let (found, reports) = survey.all.into_iter().map(of_connection).unzip();
            parts = reports;
            Vec::into_iter(found).flatten().collect::<Vec<_>>()
        }
    };
    if !flags.offline {
        ask(&connections, &mut report, &mut parts, !alone);
    }
    report.connections(parts);
    report
}

/// The problems and oddities of the configuration of a connection that is in no file yet, and whether it is an
/// error.
pub(crate) fn offline(text: &str) -> Vec<(bool, String)> {
    let found = match Document::parse(text, &ProcessEnvironment) {
        Ok(document) => of_document(document),
        Err(error) => wrong(&error),
    };
    let heavy = found
        .into_iter()
        .filter(|found| found.weight != Weight::Note);
    heavy
        .map(|found| (found.weight == Weight::Error, found.to_string()))
        .collect()
}

fn of_document(document: Document) -> Vec<Finding> {
    match App::open(document, &environment()) {
        Ok((document, _)) => document.findings().into_iter().map(odd_alone).collect(),
        Err(refused) => {
            let mut found = wrong(&refused.error);
            let document = refused.document;
            let further = match refused.rest {
                Some(_) => document.findings(),
                None => document.findings_so_far(),
            };
            found.extend(further.into_iter().map(odd_alone));
            found
        }
    }
}

/// The place where the files of connections are.
const FOLDER: &str = "proxy.configFolder";

/// The app that a file makes; if it cannot be used, what it would make without what is wrong.
fn opened(file: &Path, report: &mut Report) -> Option<(Arc<Document>, App)> {
    let at = environment();
    let refused = match config_file::read(file).map(|document| App::open(document, &at)) {
        Ok(Ok(opened)) => return Some(opened),
        Ok(Err(refused)) => refused,
        Err(error) => {
            report.all(unusable(&error));
            report.unusable();
            return None;
        }
    };
    report.all(wrong(&refused.error));
    report.unusable();
    if let Some(app) = refused.rest {
        return Some((refused.document, *app));
    }
    // What else is odd may be the reason.
    report.all(refused.document.findings_so_far().into_iter().map(odd));
    None
}

fn environment() -> Environment {
    Environment {
        node: node(),
        // It only gates what is advertised, and nothing is.
        version: CsiVersion::NEWEST,
        // A check runs no program of the node.
        tools: Tools::of_this_machine(),
        modes: None,
    }
}

/// The facts that only the process that serves can find out, because it knows where it runs.
const OF_NODES: &str = "each of its volumes is on one node, so its controller has to run on every node: \"Storage of the nodes \
                        themselves\" in docs/proxy.md";
const ON_NODES: &str = "nothing to do: names of initiators and addresses are read on each node when it starts, and not here";

/// Drivers whose servers keep a record of the base beside their socket.
pub(super) const DIRECTORIES: [&str; 4] = [
    "local-hostpath",
    "nfs-client",
    "smb-client",
    "lustre-client",
];
const RECORD: &str = "nothing to do: the base can be used. A check cannot tell whether another disk was mounted there since: the \
                      running driver remembers the id of the base, and refuses all calls if it is another";

/// Drivers whose base is a share, and their sections.
const SHARES: [(&str, &str); 3] = [
    ("nfs-client", "nfs"),
    ("smb-client", "smb"),
    ("lustre-client", "lustre"),
];

/// The id of a base, of a section.
#[derive(serde::Deserialize)]
struct OfBase {
    #[serde(default, rename = "baseId")]
    base_id: Option<String>,
}

/// A share whose base is known only to the process that serves: a Deployment loses that with its pod.
fn without_base_id(document: &Document) -> Option<Finding> {
    let kind = document.driver().ok()?;
    let (_, section) = SHARES.iter().find(|(driver, _)| *driver == kind)?;
    let base = document.section::<OfBase>(section).ok()?;
    if base.base_id.is_some_and(|id| !id.is_empty()) {
        return None;
    }
    Some(Finding {
        weight: Weight::Warning,
        about: format!("{section}.baseId"),
        message: "is missing: which base was used is on record beside the socket only. A Deployment loses that with its \
                  pod; then an empty directory in the place of the base is taken for a new one, and its volumes for \
                  deleted"
            .into(),
        advice: Some(
            "once the first volume is made, set it to the id in the file `.omnibus-csi-base` of the base; needless \
             where the folder of the socket outlives the pod"
                .into(),
        ),
    })
}

fn note(about: &str, message: &str) -> Finding {
    Finding {
        weight: Weight::Note,
        about: about.to_owned(),
        message: message.to_owned(),
        advice: None,
    }
}

/// The report on one of several connections, and the connection if its file can be used.
fn of_connection(one: Surveyed) -> (Option<Arc<Connection>>, Report) {
    let mut report = Report::new(&one.path);
    report.connection(&one.name);
    match one.opened {
        Ok((document, connection)) => {
            report.all(document.findings().into_iter().map(odd));
            report.all(without_base_id(&document));
            report.driver(connection.driver().kind());
            report.storage_of(&connection);
            if connection.driver().node_topology().is_some() {
                report.add(note("driver", OF_NODES));
            }
            (Some(Arc::new(connection)), report)
        }
        Err(error) => {
            report.all(unusable(&error));
            report.unusable();
            (None, report)
        }
    }
}

/// Looks at the storage of each, all at once.
fn ask(connections: &[Arc<Connection>], whole: &mut Report, parts: &mut [Report], is_folder: bool) {
    let runtime = match process::small_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            whole.add(Finding {
                weight: Weight::Error,
                about: "storage".into(),
                message: format!("it cannot be asked: {error}"),
                advice: None,
            });
            return;
        }
    };
    // Volumes of the others are made by hand, and each names its own storage.
    let asked = connections
        .iter()
        .filter(|connection| connection.has_storage());
    let asked: Vec<_> = asked.collect();
    let looks = asked.iter().map(|connection| look(connection));
    let found = runtime.block_on(process::with_progress(
        join_all(looks),
        Some(PATIENCE),
        process::complain,
    ));
    for (connection, (problems, answers)) in asked.into_iter().zip(found) {
        let part = parts.iter_mut().find(|part| part.is_of(connection.name()));
        let report = part.unwrap_or(whole);
        report.looked();
        report.all(problems.iter().map(of_storage));
        if problems.is_empty() && DIRECTORIES.contains(&connection.driver().kind()) {
            report.add(note("storage", RECORD));
        }
        report.all(answers.into_iter().map(odd));
    }
    if is_folder {
        // Also one without a usable connection: there was nothing more to look at.
        whole.looked();
    }
    runtime.shutdown_background();
    // A check leaves nothing mounted.
    node_utils::shares::unmount_all(LETS_GO_WITHIN);
}

/// What is wrong with the storage of a connection, and what answers there.
async fn look(connection: &Connection) -> (Vec<Error>, Vec<driver_core::config::Finding>) {
    let call = Call::within(PATIENCE);
    let driver = connection.driver();
    let examined = tokio::time::timeout(PATIENCE, driver.examine(&call)).await;
    let wrong = examined.unwrap_or_else(|_| {
        let doing = format!("the storage does not answer within {PATIENCE:?}");
        vec![Error::new(driver_core::Kind::Timeout, doing)]
    });
    let described = tokio::time::timeout(call.remaining(), driver.describe(&call)).await;
    (wrong, described.unwrap_or_default())
}

/// The node of a command: that of the server beside which it runs, in a pod, else this host.
pub(crate) fn node() -> NodeId {
    let host = rustix::system::uname();
    let name = host.nodename().to_string_lossy().into_owned();
    let given = process::variable("CSI_NODE_ID").filter(|id| !id.is_empty());
    NodeId::parse(&given.unwrap_or(name))
        .or_else(|_| NodeId::parse("localhost"))
        .unwrap_or_else(|_| unreachable!("`localhost` is a name"))
}

fn unusable(error: &ConfigFileError) -> Vec<Finding> {
    error.config().map_or_else(
        || {
            vec![Finding {
                weight: Weight::Error,
                about: "file".to_owned(),
                message: process::chain(error),
                advice: Some("give the path of a YAML file that this user may read".to_owned()),
            }]
        },
        wrong,
    )
}

fn wrong(config: &ConfigError) -> Vec<Finding> {
    let all = std::iter::once(config).chain(config.further());
    let found = all.map(|config| Finding {
        weight: Weight::Error,
        about: config.path().unwrap_or("file").to_owned(),
        message: config.problem().to_owned(),
        advice: config.advice().map(str::to_owned),
    });
    found.collect()
}

fn odd_folder(message: String) -> Finding {
    Finding {
        weight: Weight::Error,
        about: "folder".into(),
        message,
        advice: Some(
            "make the folder, or correct `proxy.configFolder`: until then none of its connections is known".to_owned(),
        ),
    }
}

fn missing((key, name): (String, ConnectionName)) -> Finding {
    Finding {
        weight: Weight::Warning,
        about: key,
        message: format!("no file of a connection is called `{name}`"),
        advice: Some("correct the name, or put its file into `proxy.configFolder`".to_owned()),
    }
}

fn odd(finding: driver_core::config::Finding) -> Finding {
    let (weight, otherwise) = match finding.severity {
        Severity::UnknownKey if finding.path == "connections" => {
            return Finding {
                weight: Weight::Error,
                about: finding.path,
                message: finding.message,
                advice: Some(
                    "connections do not stand in this file: each is a file in `proxy.configFolder`"
                        .to_owned(),
                ),
            };
        }
        Severity::UnknownKey => (Weight::Error, Some("remove it, or correct its name")),
        Severity::NoEffect => (Weight::Note, Some("it may be removed")),
        Severity::Doubtful => (Weight::Warning, Some("look at it again")),
        Severity::Remark => (Weight::Note, None),
    };
    Finding {
        weight,
        about: finding.path,
        message: finding.message,
        advice: finding.advice.or_else(|| otherwise.map(str::to_owned)),
    }
}

/// The same in a file that may be meant to be that of a connection.
fn odd_alone(finding: driver_core::config::Finding) -> Finding {
    if finding.severity != Severity::UnknownKey || finding.path != "proxy" {
        return odd(finding);
    }
    Finding {
        weight: Weight::Warning,
        about: finding.path,
        message: "it counts only where a proxy serves this file as one of its connections".into(),
        advice: Some("check the file of the proxy: that reads this one, too, with this key".into()),
    }
}

fn of_storage(error: &Error) -> Finding {
    Finding {
        weight: Weight::Error,
        about: "storage".into(),
        message: message::without_advice(error),
        advice: error.advice().map(str::to_owned),
    }
}

#[cfg(test)]
mod mistakes;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_in_the_main_file_that_no_file_has_is_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, folder) = (dir.path().join("main.yaml"), dir.path().join("c"));
        let flags = CheckFlags {
            driver_config_file: file.clone(),
            offline: true,
            json: false,
        };
        let yaml = format!(
            "{{driver: proxy, proxy: {{configFolder: {}, legacyConnection: old, \
             aliases: {{old: nas, other: disk}}}}}}",
            folder.display()
        );
        fs::write(&file, yaml).expect("a file");
        let warned = || {
            let findings = check(&flags).findings.into_iter();
            let of_names = findings.filter(|finding| finding.weight == Weight::Warning);
            of_names.map(|finding| finding.about).collect::<Vec<_>>()
        };
        assert!(
            warned().is_empty(),
            "of a folder that cannot be read nothing is known"
        );
        fs::create_dir(&folder).expect("a folder");
        let keys = [
            "proxy.legacyConnection",
            "proxy.aliases.old",
            "proxy.aliases.other",
        ];
        assert_eq!(warned(), keys);
        // A connection with an invalid file is reported as such, without these warnings.
        fs::write(folder.join("nas.yaml"), "{}").expect("a file");
        assert_eq!(warned(), keys[2..]);
    }

    #[test]
    fn what_a_connection_tells_the_proxy_is_no_mistake_where_its_file_is_checked_alone() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let flags = CheckFlags {
            driver_config_file: file.path().to_owned(),
            offline: true,
            json: false,
        };
        let yaml = "{driver: node-manual, proxy: {perDriver: {newVolumes: false}}, prxy: 1}";
        fs::write(file.path(), yaml).expect("a file");
        let found = check(&flags).findings.into_iter();
        let mut found: Vec<_> = found.map(|found| (found.about, found.weight)).collect();
        found.sort();
        let expected = [("proxy", Weight::Warning), ("prxy", Weight::Error)];
        assert_eq!(
            found,
            expected.map(|(about, weight)| (about.to_owned(), weight))
        );
    }

    #[test]
    fn a_share_whose_base_only_the_pod_knows_is_a_warning_alone_and_in_a_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, folder) = (dir.path().join("main.yaml"), dir.path().join("c"));
        fs::create_dir(&folder).expect("a folder");
        let flags = CheckFlags {
            driver_config_file: file.clone(),
            offline: true,
            json: false,
        };
        let warned = |report: &Report| {
            let findings = report.findings.iter();
            let warnings = findings.filter(|finding| finding.weight == Weight::Warning);
            let about: Vec<_> = warnings.map(|finding| finding.about.clone()).collect();
            about
        };
        for (kind, section, base) in [
            ("nfs-client", "nfs", "/export/csi"),
            ("smb-client", "smb", "share/csi"),
            ("lustre-client", "lustre", "/fs/csi"),
        ] {
            let config = |more: &str| {
                format!(
                    "{{driver: {kind}, {section}: {{shareHost: nas.example, shareBasePath: {base}, \
                     controllerBasePath: /storage{more}}}}}"
                )
            };
            let named = config(", baseId: 0f1e2d3c4b5a69788796a5b4c3d2e1f0");
            let main = format!(
                "{{driver: proxy, proxy: {{configFolder: {}}}}}",
                folder.display()
            );
            for (text, expected) in [
                (config(""), vec![format!("{section}.baseId")]),
                (named, vec![]),
            ] {
                fs::write(&file, &text).expect("a file");
                assert_eq!(warned(&check(&flags)), expected, "{text}");
                fs::write(folder.join("nas.yaml"), &text).expect("a file");
                fs::write(&file, &main).expect("a file");
                let report = check(&flags);
                assert_eq!(warned(&report.connections[0]), expected, "{text}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_not_answer_is_waited_for_in_words() {
        let said = std::cell::RefCell::new(Vec::new());
        let silent = tokio::time::sleep(Duration::from_secs(12));
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        process::with_progress(silent, Some(PATIENCE), say).await;
        let said = said.into_inner();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[1].contains("since 10 s, for at most 60 s"), "{said:?}");
    }

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
