//! `iscsiadm`: its operations, and its exit codes by their meaning.
//!
//! What it prints is never parsed, except for the settings of a record, which it prints as it keeps
//! them. sysfs decides about success. Sources: open-iscsi's `iscsi_err.h` and `iscsiadm.c`; the codes
//! have been the same since version 2.0-871.

use std::time::Duration;

use exec::{Accept, Command, Output, RunError};
use secrecy::SecretString;
use tokio::time::Instant;

use super::facts::IscsiFacts;
use crate::tools::Tools;
use csi_types::attachment::Portal;
use csi_types::backoff::Backoff;
use csi_types::error::{Error, Kind};

/// `ISCSI_ERR_SESS_NOT_FOUND`.
const NO_SESSION: i32 = 2;
/// `ISCSI_ERR_TRANS`: the connection failed.
const TRANSPORT: i32 = 4;
/// `ISCSI_ERR_LOGIN`: something about the login.
const LOGIN: i32 = 5;
/// `ISCSI_ERR_IDBM`: the database could not be read or written, or was being changed.
const DATABASE: i32 = 6;
/// `ISCSI_ERR_INVAL`.
const INVALID: i32 = 7;
/// `ISCSI_ERR_TRANS_TIMEOUT`: no connection in time, or none that lasted.
const UNANSWERED: i32 = 8;
/// `ISCSI_ERR_LOGOUT`.
const LOGOUT: i32 = 10;
/// `ISCSI_ERR_PDU_TIMEOUT`: connected, but no answer.
const SILENT: i32 = 11;
/// `ISCSI_ERR_TRANS_NOT_FOUND`: the kernel has no such transport.
const NO_TRANSPORT: i32 = 12;
/// `ISCSI_ERR_ACCESS`.
const NOT_ROOT: i32 = 13;
/// `ISCSI_ERR_SESS_EXISTS`.
pub(super) const EXISTS: i32 = 15;
/// `ISCSI_ERR_ISCSID_COMM_ERR`: the daemon hung up.
const DAEMON_HUNG_UP: i32 = 18;
/// `ISCSI_ERR_FATAL_LOGIN`: the target said no, and would again.
const REFUSED: i32 = 19;
/// `ISCSI_ERR_ISCSID_NOTCONN`: the daemon does not listen.
const NO_DAEMON: i32 = 20;
/// `ISCSI_ERR_NO_OBJS_FOUND`: no record, or no session.
pub(super) const NOTHING: i32 = 21;
/// `ISCSI_ERR_SYSFS_LOOKUP`: what should be in sysfs is not.
const NOT_SHOWN: i32 = 22;
/// `ISCSI_ERR_LOGIN_AUTH_FAILED`.
const DENIED: i32 = 24;
/// `ISCSI_ERR_BUSY`.
const BUSY: i32 = 28;
/// `ISCSI_ERR_SESSION_NOT_CONNECTED`.
const NOT_CONNECTED: i32 = 32;
/// `ISCSI_ERR_REQ_TIMEDOUT`: the daemon did not answer.
const DAEMON_SILENT: i32 = 33;

/// The time that a database that fails is tried again. It has a lock of its own, but makes and removes
/// directories outside of it.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(5);

/// `iscsiadm`, for one target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool<'a> {
    tools: &'a Tools,
    facts: &'a IscsiFacts,
    deadline: Instant,
}

// === impl Tool ===

impl<'a> Tool<'a> {
    pub(super) fn new(tools: &'a Tools, facts: &'a IscsiFacts, deadline: Instant) -> Self {
        Self {
            tools,
            facts,
            deadline,
        }
    }

    /// Makes a record with the host's defaults; an old one is replaced.
    pub(super) async fn make(&self, portal: &Portal) -> Result<(), Error> {
        let words = ["-o", "new"].map(str::to_owned);
        self.record(portal, words.into(), "make").await.map(drop)
    }

    /// Changes settings of a record that are not secret. One call for all of them, which `iscsiadm` supports since
    /// version 2.0-873 of 2012.
    pub(super) async fn update(
        &self,
        portal: &Portal,
        settings: &[(String, String)],
    ) -> Result<(), Error> {
        let mut words = ["-o", "update"].map(str::to_owned).to_vec();
        for (name, value) in settings {
            words.extend(["--name", name, "--value", value].map(str::to_owned));
        }
        self.record(portal, words, "change").await.map(drop)
    }

    /// The record as it is kept, without passwords. What it says about lines that it does not
    /// understand may hold what they say.
    pub(super) async fn show(
        &self,
        portal: &Portal,
        settings: &[(String, SecretString)],
    ) -> Result<String, Error> {
        let doing = format!("read the record of {} at {portal}", self.facts.iqn());
        let mut command = self.node(portal);
        for (name, value) in settings {
            if name.contains(".auth.") {
                command = command.hiding(value.clone());
            }
        }
        let ended = self.again(command, &[], &doing).await;
        let output = ended.map_err(|error| explained(&doing, error))?;
        Ok(output.text().into_owned())
    }

    /// Removes a record; none, or one that a session needs, is no error.
    pub(super) async fn forget(&self, portal: &Portal) -> Result<(), Error> {
        let doing = format!("remove the record of {} at {portal}", self.facts.iqn());
        let command = self.node(portal).args(["-o", "delete"]);
        match self.again(command, &[NOTHING, EXISTS], &doing).await {
            // Without `iscsiadm` there is no record, and giving up a volume must not fail for that.
            Err(RunError::NotFound { .. }) => Ok(()),
            result => result.map(drop).map_err(|error| explained(&doing, error)),
        }
    }

    /// Logs in; whether there was a session already.
    pub(super) async fn login(&self, portal: &Portal) -> Result<bool, Error> {
        let doing = format!("log in to {} at {portal}", self.facts.iqn());
        let command = self.node(portal).arg("-l");
        let output = self.run(command, &[EXISTS], &doing).await;
        let output = output.map_err(|error| explained(&doing, error))?;
        Ok(output.status.code() == Some(EXISTS))
    }

    /// Logs one session out, whichever process opened it; one that is gone is no error.
    ///
    /// compat: "iSCSI". By its number: the target and portal of democratic-csi's call may mean
    /// several.
    pub(super) async fn logout(&self, sid: u32) -> Result<(), Error> {
        let doing = format!("log out of {}, session {sid}", self.facts.iqn());
        let sid = sid.to_string();
        let command =
            Command::new(self.tools.iscsiadm().clone()).args(["-m", "session", "-r", &*sid, "-u"]);
        let gone = [NO_SESSION, NOTHING, NOT_SHOWN];
        let ended = self.run(command, &gone, &doing).await;
        ended.map(drop).map_err(|error| explained(&doing, error))
    }

    async fn record(
        &self,
        portal: &Portal,
        words: Vec<String>,
        verb: &str,
    ) -> Result<Output, Error> {
        let doing = format!("{verb} the record of {} at {portal}", self.facts.iqn());
        let command = self.node(portal).args(words);
        let ended = self.again(command, &[], &doing).await;
        ended.map_err(|error| explained(&doing, error))
    }

    /// Runs a command, and again while the database fails.
    async fn again(
        &self,
        command: Command,
        accepted: &[i32],
        doing: &str,
    ) -> Result<Output, RunError> {
        let give_up_at = self.deadline.min(Instant::now() + DATABASE_TIMEOUT);
        let mut backoff = Backoff::of_processes();
        loop {
            let ended = self.run(command.clone(), accepted, doing).await;
            let failed = matches!(&ended, Err(error) if error.exit_code() == Some(DATABASE));
            let next = Instant::now() + backoff.pause();
            if !failed || next >= give_up_at {
                return ended;
            }
            tokio::time::sleep_until(next).await;
        }
    }

    fn node(&self, portal: &Portal) -> Command {
        // compat: "iSCSI". No discovery is ever done: the volume says where its target is.
        Command::new(self.tools.iscsiadm().clone())
            .args(["-m", "node", "-T", self.facts.iqn().as_str(), "-p"])
            .arg(portal.to_string())
    }

    async fn run(
        &self,
        command: Command,
        accepted: &[i32],
        doing: &str,
    ) -> Result<Output, RunError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let command = command
            .within(self.tools.timeouts().iscsi.min(left))
            .accepting(Accept::Codes(accepted.to_vec()));
        tracing::debug!(%command, doing, "running");
        self.tools.iscsi().run_checked(&command).await
    }
}

/// The meaning of a failure, and what can be done about it.
fn explained(doing: &str, error: RunError) -> Error {
    let (kind, advice) = match (error.exit_code(), &error) {
        (Some(code), _) => meaning(code),
        (None, RunError::Deadline { .. }) => (Kind::Timeout, None),
        // To try again would not mend it.
        (None, RunError::NotFound { .. }) => (
            Kind::Internal,
            Some("install open-iscsi on the host, and enable its daemon iscsid"),
        ),
        (None, _) => (Kind::Unreachable, None),
    };
    let explained = error.while_doing(kind, doing);
    match advice {
        Some(advice) => explained.advise(advice),
        None => explained,
    }
}

fn meaning(code: i32) -> (Kind, Option<&'static str>) {
    match code {
        DENIED => (
            Kind::Denied,
            Some(
                "the target does not accept the name and password of the volume's secrets, or does \
                 not let this host's initiator name in",
            ),
        ),
        REFUSED => (
            Kind::Unreachable,
            Some("does the target exist there, and is this host's initiator name let in?"),
        ),
        UNANSWERED | TRANSPORT | SILENT | LOGIN | NOT_CONNECTED => (
            Kind::Unreachable,
            Some("is the portal reachable from this node, and does the target exist there?"),
        ),
        NO_DAEMON | DAEMON_HUNG_UP | DAEMON_SILENT => (
            Kind::Unreachable,
            Some("does the daemon iscsid run on the host?"),
        ),
        NO_TRANSPORT => (
            Kind::Unreachable,
            Some("load the kernel module iscsi_tcp on the host"),
        ),
        INVALID => (
            Kind::Invalid,
            Some("is there a `node-db.` setting that this version of iscsiadm does not know?"),
        ),
        NOT_ROOT => (Kind::Internal, Some("the node plugin has to be privileged")),
        BUSY => (Kind::Busy, None),
        NOTHING | NO_SESSION | NOT_SHOWN | LOGOUT => (Kind::Unreachable, None),
        DATABASE => (
            Kind::Internal,
            Some("is the host's iSCSI database writable, and its disk not full?"),
        ),
        _ => (Kind::Internal, None),
    }
}

#[cfg(test)]
mod tests {
    use exec::testing::{Reply, Scripted};
    use std::sync::Arc;

    use super::*;

    const NODE: &str = "iscsiadm -m node -T iqn.2005-10.org.x:a -p";

    /// The messages of open-iscsi 2.1.11.
    const NO_RECORDS: &str = "iscsiadm: No records found\n";
    const AUTHORIZATION: &str = "\
iscsiadm: Could not login to [iface: default, target: iqn.2005-10.org.x:a, portal: 10.0.0.1,3260].
iscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)
iscsiadm: Could not log into all portals
";
    const UNKNOWN_SETTING: &str = "\
iscsiadm: Cannot modify node.nonsense. Invalid param name.
iscsiadm: Could not execute operation on all records: invalid parameter
";
    /// Read in its source.
    const DATABASE_FAILURE: &str = "\
iscsiadm: Could not execute operation on all records: encountered iSCSI database failure
";

    fn facts() -> IscsiFacts {
        IscsiFacts::parse("iscsi 0 iqn.2005-10.org.x:a 10.0.0.1 fd00::1").expect("facts")
    }

    /// One that expects these commands, and the tools that run through it.
    fn through(script: Scripted) -> (Arc<Scripted>, Tools) {
        let script = Arc::new(script);
        (Arc::clone(&script), Tools::all_through(script))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[tokio::test]
    async fn each_operation_has_the_words_of_the_contract() {
        let script = Scripted::new()
            .expect(format!("{NODE} 10.0.0.1:3260 -o new"), Reply::empty())
            .expect(
                format!("{NODE} 10.0.0.1:3260 -o update --name node.startup --value manual --name a --value b"),
                Reply::empty(),
            )
            .expect(format!("{NODE} '[fd00::1]:3260' -l"), Reply::empty())
            .expect(format!("{NODE} 10.0.0.1:3260 -l"), Reply::exit(15, ""))
            .expect("iscsiadm -m session -r 7 -u", Reply::exit(22, ""))
            .expect(format!("{NODE} 10.0.0.1:3260 -o delete"), Reply::exit(21, NO_RECORDS));
        let facts = facts();
        let (script, tools) = through(script);
        let tool = Tool::new(&tools, &facts, soon());
        let [first, second] = facts.portals() else {
            panic!("two portals")
        };
        tool.make(first).await.expect("made");
        let settings = [("node.startup", "manual"), ("a", "b")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        tool.update(first, &settings).await.expect("changed");
        assert!(!tool.login(second).await.expect("new"));
        assert!(tool.login(first).await.expect("there already"));
        tool.logout(7).await.expect("gone already");
        tool.forget(first).await.expect("gone already");
        script.finish();
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_fails_is_tried_again_but_not_for_ever() {
        let line = format!("{NODE} 10.0.0.1:3260 -o new");
        let script = Scripted::new()
            .expect(&*line, Reply::exit(6, DATABASE_FAILURE))
            .expect(&*line, Reply::exit(6, DATABASE_FAILURE))
            .expect(&*line, Reply::empty());
        let facts = facts();
        let (script, tools) = through(script);
        let tool = Tool::new(&tools, &facts, soon());
        tool.make(&facts.portals()[0]).await.expect("made");
        script.finish();
        let mut script = Scripted::new();
        for _ in 0..100 {
            script = script.expect(&*line, Reply::exit(6, DATABASE_FAILURE));
        }
        let began = Instant::now();
        let (_, tools) = through(script);
        let tool = Tool::new(&tools, &facts, soon());
        let error = tool.make(&facts.portals()[0]).await.expect_err("broken");
        assert_eq!(error.kind(), Kind::Internal);
        assert!(began.elapsed() <= DATABASE_TIMEOUT, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_failure_says_what_can_be_done() {
        let cases = [
            (Reply::exit(24, AUTHORIZATION), Kind::Denied, "password"),
            (Reply::exit(8, ""), Kind::Unreachable, "reachable"),
            (Reply::exit(19, ""), Kind::Unreachable, "exist"),
            (Reply::exit(20, ""), Kind::Unreachable, "iscsid"),
            (Reply::exit(12, ""), Kind::Unreachable, "iscsi_tcp"),
            (Reply::exit(7, UNKNOWN_SETTING), Kind::Invalid, "node-db."),
            (Reply::missing(), Kind::Internal, "open-iscsi"),
            (Reply::exit(99, ""), Kind::Internal, ""),
            (Reply::lost(), Kind::Unreachable, ""),
        ];
        let facts = facts();
        for (reply, kind, advice) in cases {
            let script = Scripted::new().expect(format!("{NODE} 10.0.0.1:3260 -l"), reply.clone());
            let (_, tools) = through(script);
            let tool = Tool::new(&tools, &facts, soon());
            let error = tool.login(&facts.portals()[0]).await.expect_err("failed");
            assert_eq!(error.kind(), kind, "{reply:?}");
            assert!(
                error.advice().unwrap_or_default().contains(advice),
                "{}",
                error.chain()
            );
        }
    }
}
