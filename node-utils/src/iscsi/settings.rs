//! The settings of a session record: our defaults, and those from the secrets of the volume.

use secrecy::{ExposeSecret, SecretString};

use crate::device::multipath::Daemon;
use csi_types::error::Error;
use csi_types::secrets::StageSecrets;

/// The longest value that `iscsiadm` keeps. It copies what a record has into a field of this size
/// without looking.
const LONGEST_VALUE: usize = 255;

const STARTUP: &str = "node.startup";
const REPLACEMENT: &str = "node.session.timeo.replacement_timeout";
const LOGIN_TIMEOUT: &str = "node.conn[0].timeo.login_timeout";
const LOGIN_RETRIES: &str = "node.session.initial_login_retry_max";

/// The settings of sessions in a volume, by the names that `iscsiadm` has for them.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings(Vec<(String, SecretString)>);

/// An invalid setting. The error does not show its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`node-db.{}` {reason}", .name.escape_debug())]
struct InvalidSetting {
    name: String,
    reason: &'static str,
}

// === impl Settings ===

impl Settings {
    /// Checks the values, which become lines of a file; a name that comes twice has the value that
    /// came last.
    pub(super) fn of(secrets: &StageSecrets) -> Result<Self, Error> {
        let mut settings: Vec<(String, SecretString)> = Vec::new();
        for (name, value) in &secrets.node_db {
            let name = name.as_str();
            if let Some(reason) = objection(name, value.expose_secret()) {
                let name = name.to_owned();
                return Err(Error::invalid("read the secrets of the volume")
                    .because(InvalidSetting { name, reason }));
            }
            settings.retain(|(known, _)| known != name);
            settings.push((name.to_owned(), value.clone()));
        }
        Ok(Self(settings))
    }

    /// Whether the volume says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// All settings of a record. `multipath` is the daemon of the host if more than one portal is wanted.
    pub(super) fn complete(&self, multipath: Option<&Daemon>) -> Vec<(String, SecretString)> {
        // compat: "iSCSI". Never automatic: a session that the host opens by itself at boot belongs
        // to a volume that the orchestrator may have given to another node.
        let mut all = vec![(STARTUP, "manual")];
        // How long the daemon tries to log in before it says that it cannot: this many times the
        // login timeout. By default two minutes, in which a portal that is off delays every
        // caller, and after which a session may appear that no call waits for any more. Callers
        // that want to wait longer try again.
        all.push((LOGIN_TIMEOUT, "15"));
        all.push((LOGIN_RETRIES, "1"));
        if multipath.is_none_or(|daemon| *daemon == Daemon::Absent) {
            // With one path, input and output that fail are a filesystem that has become read-only
            // and a pod that has to be restarted by hand, so they wait for the target. Not for ever:
            // after a node is lost the orchestrator gives its volumes to another one, eleven
            // minutes later at the earliest (five until the pod is evicted, six until the volume is
            // detached by force), and what waits here must not be written after that. A target may
            // so be away for ten minutes, with one to spare for the login.
            //
            // With several paths it must fail soon, for another path to be used; the multipath
            // daemon sets its own value for each path of a map (`fast_io_fail_tmo`, five seconds)
            // and decides what happens without any (`no_path_retry`). What the host has set for
            // sessions is good until then.
            all.push((REPLACEMENT, "660"));
        }
        all.into_iter()
            .filter(|(name, _)| *name == STARTUP || !self.has(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned().into()))
            .chain(self.0.iter().filter(|(name, _)| name != STARTUP).cloned())
            .collect()
    }
}

/// Why a setting cannot be one.
fn objection(name: &str, value: &str) -> Option<&'static str> {
    if value.is_empty() || value != value.trim() {
        return Some("is empty, or has white space around its value");
    }
    if value.len() > LONGEST_VALUE {
        return Some("is longer than the 255 bytes that iscsiadm can keep");
    }
    if value.chars().any(char::is_control) {
        return Some("holds a control character");
    }
    (name == STARTUP && value != "manual").then_some(
        "cannot be changed: sessions are opened when the orchestrator wants them, never by the host",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_types::secrets::SettingName;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, Error> {
        let pair = |(name, value): &(&str, &str)| {
            (SettingName::parse(name).expect("name"), (*value).into())
        };
        Settings::of(&StageSecrets {
            node_db: pairs.iter().map(pair).collect(),
            ..StageSecrets::default()
        })
    }

    fn complete(settings: &Settings, multipath: Option<&Daemon>) -> Vec<(String, String)> {
        let all = settings.complete(multipath).into_iter();
        all.map(|(name, value)| (name, value.expose_secret().to_owned()))
            .collect()
    }

    fn value_of(values: &[(String, String)], name: &str) -> Option<String> {
        let found: Vec<_> = values.iter().filter(|(known, _)| known == name).collect();
        assert!(found.len() < 2, "{name} is given twice");
        found.first().map(|(_, value)| value.clone())
    }

    #[test]
    fn a_single_path_waits_and_several_paths_are_left_to_the_multipath_daemon() {
        let nothing = settings(&[]).expect("settings");
        for (multipath, expected) in [
            (None, Some("660")),
            (Some(&Daemon::Absent), Some("660")),
            (Some(&Daemon::Here), None),
            (Some(&Daemon::Elsewhere), None),
        ] {
            let values = complete(&nothing, multipath);
            assert_eq!(value_of(&values, REPLACEMENT).as_deref(), expected);
            assert_eq!(value_of(&values, STARTUP).as_deref(), Some("manual"));
        }
    }

    #[test]
    fn what_the_volume_says_is_not_said_again_by_us() {
        let own = settings(&[
            (REPLACEMENT, "20"),
            (LOGIN_TIMEOUT, "3"),
            (STARTUP, "manual"),
            ("node.session.auth.username", "a"),
            ("node.session.auth.username", "b"),
        ]);
        let values = complete(&own.expect("settings"), None);
        assert_eq!(value_of(&values, REPLACEMENT).as_deref(), Some("20"));
        assert_eq!(value_of(&values, LOGIN_TIMEOUT).as_deref(), Some("3"));
        assert_eq!(value_of(&values, LOGIN_RETRIES).as_deref(), Some("1"));
        assert_eq!(value_of(&values, STARTUP).as_deref(), Some("manual"));
        assert_eq!(
            value_of(&values, "node.session.auth.username").as_deref(),
            Some("b")
        );
    }

    #[test]
    fn a_setting_that_would_be_another_line_or_an_overflow_is_refused_without_its_value() {
        let long = "x".repeat(256);
        for (name, value) in [
            ("node.session.auth.password", ""),
            ("node.session.auth.password", " hunter2"),
            ("node.session.auth.password", "hunter2\n# END RECORD"),
            ("node.session.auth.password", &*long),
            (STARTUP, "automatic"),
        ] {
            let error = settings(&[(name, value)]).expect_err(name).chain();
            assert!(
                !error.contains("hunter2") && !error.contains(&long),
                "{error}"
            );
        }
        assert!(settings(&[("node.conn[0].timeo.login_timeout", "9")]).is_ok());
    }

    #[test]
    fn values_never_show() {
        let own = settings(&[("node.session.auth.password", "hunter2-hunter2")]);
        assert!(!format!("{:?}", own.expect("settings")).contains("hunter2"));
    }
}
