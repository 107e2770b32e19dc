//! The settings of a stage secret for the attachment of a volume.
//!
//! Only the keys of that attachment are read, so that one secret may serve several volumes. An
//! invalid key is rejected without being shown: it may contain the mistyped secret.

use csi_types::secrets::SettingName;
use csi_types::{Attachment, StageSecrets};
use driver_core::Error;
use driver_core::secrets::{scoped, scoped_below};
use driver_core::volume::Secrets;
use node_utils::tools::Variable;

/// The prefix of a setting of an iSCSI node record.
const NODE_DB: &str = "node-db.";
/// The prefix of a variable of a daemon.
const ENV: &str = "env.";

/// The settings in `secrets` for `attachment`, by driver and instance. compat: "Secrets".
pub(super) fn of(
    attachment: &Attachment,
    secrets: &Secrets,
    driver: &str,
    instance: Option<&str>,
) -> Result<StageSecrets, Error> {
    let mut found = StageSecrets::default();
    let below = |prefix: &str| scoped_below(secrets, driver, instance, prefix);
    match attachment {
        Attachment::Iscsi(_) => {
            for (name, value) in below(NODE_DB) {
                let name = SettingName::parse(name).map_err(|error| bad(NODE_DB, error))?;
                found.node_db.push((name, value.clone()));
            }
        }
        Attachment::Objectivefs(_) => {
            for (name, value) in below(ENV) {
                let name = Variable::parse_foreign(name).map_err(|error| bad(ENV, error))?;
                found.env.insert(name, value.clone());
            }
        }
        Attachment::Oneclient(_) => {
            found.token = scoped(secrets, driver, instance, "token").cloned();
        }
        _ => {}
    }
    Ok(found)
}

fn bad(prefix: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid(format!("a key `{prefix}…` of the stage secret")).because(error)
}

#[cfg(test)]
mod tests {
    use secrecy::{ExposeSecret, SecretString};

    use super::*;

    fn attachment(keys: &[(&str, &str)]) -> Attachment {
        let context = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Attachment::parse(&context.collect()).expect("a context")
    }

    fn iscsi() -> Attachment {
        attachment(&[
            ("node_attach_driver", "iscsi"),
            ("portal", "10.0.0.1"),
            ("iqn", "iqn.2003-01.org.example:a"),
            ("lun", "0"),
        ])
    }

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), SecretString::from(*value));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn each_way_gets_its_own_keys_and_no_others() {
        let all = secrets(&[
            ("node-db.node.session.auth.username", "u"),
            ("node-db.node.session.auth.password", "p"),
            ("env.ACCESS_KEY", "k"),
            ("token", "t"),
            ("mount_flags", "noatime"),
            ("node-db", "nothing"),
        ]);
        let of =
            |attachment: &Attachment| of(attachment, &all, "node-manual", None).expect("secrets");
        let disk = of(&iscsi());
        let names: Vec<&str> = disk.node_db.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["node.session.auth.password", "node.session.auth.username"]
        );
        assert!(disk.env.is_empty() && disk.token.is_none());
        let daemon = of(&attachment(&[
            ("node_attach_driver", "objectivefs"),
            ("filesystem", "s3://pool/a"),
        ]));
        let variables: Vec<&str> = daemon.env.keys().map(Variable::as_str).collect();
        assert_eq!(variables, ["ACCESS_KEY"]);
        let space = of(&attachment(&[
            ("node_attach_driver", "oneclient"),
            ("server", "provider"),
        ]));
        assert_eq!(space.token.expect("a token").expose_secret(), "t");
        let share = of(&attachment(&[
            ("node_attach_driver", "nfs"),
            ("server", "nas"),
            ("share", "/a"),
        ]));
        assert!(share.node_db.is_empty() && share.env.is_empty() && share.token.is_none());
    }

    #[test]
    fn a_variable_that_would_have_the_daemon_run_other_code_is_refused() {
        let daemon = attachment(&[
            ("node_attach_driver", "objectivefs"),
            ("filesystem", "s3://pool/a"),
        ]);
        for key in [
            "env.LD_PRELOAD",
            "env.PATH",
            "democratic-csi.org/env.HOME",
            "democratic-csi.org/one/env.BASH_ENV",
        ] {
            let secrets = secrets(&[(key, "hunter2")]);
            let error = of(&daemon, &secrets, "objectivefs", Some("one")).expect_err(key);
            assert!(error.chain().contains("of the host"), "{}", error.chain());
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }

    #[test]
    fn the_narrowest_scope_of_each_setting_wins_and_foreign_scopes_count_for_nothing() {
        let found = of(
            &iscsi(),
            &secrets(&[
                ("node-db.a", "plain"),
                ("democratic-csi.org/node-db.a", "generic"),
                ("democratic-csi.org/node-manual/node-db.a", "driver"),
                ("democratic-csi.org/one/node-db.a", "instance"),
                ("node-db.b", "plain"),
                ("democratic-csi.org/node-db.b", "generic"),
                ("democratic-csi.org/other/node-db.c", "foreign"),
            ]),
            "node-manual",
            Some("one"),
        );
        let found = found.expect("secrets");
        let pairs: Vec<(&str, &str)> = found
            .node_db
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose_secret()))
            .collect();
        assert_eq!(pairs, [("a", "instance"), ("b", "generic")]);
    }

    #[test]
    fn a_key_that_is_no_good_is_refused_and_not_shown() {
        for key in ["node-db.", "node-db.-o hunter2", "node-db.hunter2\n"] {
            let error = of(&iscsi(), &secrets(&[(key, "x")]), "node-manual", None).expect_err(key);
            assert!(error.chain().contains("node-db"), "{}", error.chain());
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }
}
