//! The pods that may have inline volumes of a connection: the section `inline` of its file.

use std::collections::BTreeSet;

use csi_types::{AbsolutePath, VolumeContext};
use driver_core::config::{ConfigError, Document};
use driver_core::{Error, VolumeId};
use node_utils::node::pods;
use serde::Deserialize;

/// What the kubelet says of a pod, where `podInfoOnMount` of the `CSIDriver` is set. It overwrites what the
/// author of the pod wrote under this key.
const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
/// Likewise. Where that setting is missing, an author can claim a namespace, but not know the uid, which
/// the kubelet has in the target.
const UID: &str = "csi.storage.k8s.io/pod.uid";
/// Stands for all namespaces.
const ALL: &str = "*";

/// `inline`, as it is written.
#[derive(Debug, Default, Deserialize)]
struct Section {
    /// The namespaces whose pods may have volumes here.
    #[serde(default)]
    namespaces: Option<Vec<String>>,
}

/// The pods that may have inline volumes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InlineRules {
    /// All of them.
    Everyone,
    /// Those of these namespaces.
    Of(BTreeSet<String>),
}

// === impl InlineRules ===

impl InlineRules {
    /// Reads the section. A connection among others has to name namespaces: each pod may name each of
    /// them. compat: "Inline volumes".
    pub(super) fn read(document: &Document, is_named: bool) -> Result<Self, ConfigError> {
        let section: Option<Section> = document.optional_section("inline")?;
        let Some(names) = section.and_then(|section| section.namespaces) else {
            let none = Self::Of(BTreeSet::new());
            return Ok(if is_named { none } else { Self::Everyone });
        };
        if names.iter().any(|name| name == ALL) {
            return Ok(Self::Everyone);
        }
        let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = |name: &String| (1..=63).contains(&name.len()) && name.bytes().all(label);
        match names.iter().find(|name| !fits(name)) {
            None => Ok(Self::Of(names.into_iter().collect())),
            Some(name) => {
                let problem = format!("`{}` is not the name of a namespace", name.escape_debug());
                Err(ConfigError::at("inline.namespaces", problem)
                    .advise("list namespaces, or `*` for all"))
            }
        }
    }

    /// Refuses a pod that may not have the volume.
    pub(crate) fn allow(
        &self,
        id: &VolumeId,
        target: &AbsolutePath,
        context: &VolumeContext,
    ) -> Result<(), Error> {
        let refused = || Error::invalid(format!("inline volume `{id}`"));
        let (reported, found) = (context.get(UID), pods::uid(target));
        if reported.is_some() && found.is_some() && reported != found.as_ref() {
            return Err(refused()
                .because("its attributes are not those of the pod that its target belongs to")
                .advise("set `podInfoOnMount: true` in the CSIDriver"));
        }
        let Self::Of(names) = self else {
            return Ok(());
        };
        if names.is_empty() {
            return Err(refused()
                .because("this connection is not for pods")
                .advise("list the namespaces in `inline.namespaces` of its file"));
        }
        match context.get(NAMESPACE) {
            Some(_) if found.is_some() && reported.is_none() => Err(refused()
                .because("nothing proves of which namespace the pod is: its uid is missing")
                .advise("set `podInfoOnMount: true` in the CSIDriver")),
            None => Err(refused()
                .because("nothing says of which namespace the pod is")
                .advise("set `podInfoOnMount: true` in the CSIDriver")),
            Some(name) if names.contains(name) => Ok(()),
            Some(name) => Err(refused()
                .because(format!(
                    "pods of namespace `{}` may not have volumes here",
                    name.escape_debug()
                ))
                .advise("list it in `inline.namespaces` of the driver's configuration")),
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_core::config::NoEnvironment;

    use super::*;

    fn read(section: &str, is_named: bool) -> Result<InlineRules, ConfigError> {
        let document = Document::parse(&format!("driver: x\n{section}\n"), &NoEnvironment)?;
        InlineRules::read(&document, is_named)
    }

    fn allows(rules: &InlineRules, namespace: Option<&str>) -> bool {
        let id = VolumeId::parse("csi-1").expect("an id");
        let target = AbsolutePath::parse("/t").expect("a path");
        let pair = namespace.map(|name| (NAMESPACE.to_owned(), name.to_owned()));
        rules
            .allow(&id, &target, &pair.into_iter().collect())
            .is_ok()
    }

    #[test]
    fn a_pod_that_claims_a_namespace_has_to_be_the_one_whose_target_it_is() {
        let some = read("inline: {namespaces: [build]}", true).expect("rules");
        let all = read("", false).expect("rules");
        let id = VolumeId::parse("csi-1").expect("an id");
        let of_kubelet = "/k/pods/u-1/volumes/kubernetes.io~csi/s/mount";
        for (target, uid, by_some, by_all) in [
            (of_kubelet, Some("u-1"), true, true),
            (of_kubelet, Some("u-2"), false, false),
            (of_kubelet, Some(""), false, false),
            (of_kubelet, None, false, true),
            ("/elsewhere/mount", Some("u-2"), true, true),
            ("/elsewhere/mount", None, true, true),
        ] {
            let target = AbsolutePath::parse(target).expect("a path");
            let uid = uid.map(|uid| (UID.to_owned(), uid.to_owned()));
            let namespace = (NAMESPACE.to_owned(), "build".to_owned());
            let context = uid.into_iter().chain([namespace]).collect();
            let allows = |rules: &InlineRules| rules.allow(&id, &target, &context).is_ok();
            assert_eq!(
                (allows(&some), allows(&all)),
                (by_some, by_all),
                "{target} {context:?}"
            );
        }
    }

    #[test]
    fn among_others_only_pods_of_listed_namespaces_are_let_in() {
        let none = read("", true).expect("rules");
        let empty = read("inline: {}", true).expect("rules");
        for rules in [&none, &empty] {
            assert!(!allows(rules, Some("build")) && !allows(rules, None));
        }
        let some = read("inline: {namespaces: [build, ci-1]}", true).expect("rules");
        assert!(allows(&some, Some("build")) && allows(&some, Some("ci-1")));
        assert!(!allows(&some, Some("ci-2")) && !allows(&some, None) && !allows(&some, Some("")));
        for everyone in [read("", false), read("inline: {namespaces: ['*']}", true)] {
            assert!(allows(&everyone.expect("rules"), None));
        }
        let alone = read("inline: {namespaces: [build]}", false).expect("rules");
        assert!(allows(&alone, Some("build")) && !allows(&alone, Some("other")));
        for bad in ["Build", "a b", "", "ci-*"] {
            let error = read(&format!("inline: {{namespaces: ['{bad}']}}"), true);
            assert_eq!(error.expect_err(bad).path(), Some("inline.namespaces"));
        }
    }
}
