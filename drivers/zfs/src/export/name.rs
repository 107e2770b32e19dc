//! Names of targets and subsystems: the rule of the configuration, and the name itself.

use std::fmt;

use driver_core::Error;
use driver_core::config::ConfigError;
use driver_core::config::scalar::unless_falsy;
use driver_core::naming;
use driver_core::template::Template;
use serde::{Deserialize, Serialize};

use super::Subject;
use crate::property::PropertyName;

/// The longest name: together with a base name it must fit into the 223 bytes of an IQN.
const MAX: usize = 200;

/// The way exports of one connection are named. compat: "ZFS".
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportNaming {
    /// Makes the name from `name` and `parameters`; without it, it is the volume id.
    #[serde(default, deserialize_with = "unless_falsy")]
    pub name_template: Option<Template>,
    /// Comes before it.
    #[serde(default)]
    pub name_prefix: String,
    /// Comes after it.
    #[serde(default)]
    pub name_suffix: String,
}

/// The name of a target, a subsystem or a backstore: lower-case letters, digits and `-._:`.
///
/// Safe in every configuration tree and as an argument of every tool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportName(String);

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportNameError {
    /// There is nothing.
    #[error("is empty")]
    Empty,
    /// Too long to be part of the name of a target.
    #[error("is longer than {MAX} bytes")]
    TooLong,
    /// A character that targets do not have.
    #[error("holds {0:?}: only letters, digits and `-._:` can be in the name of a target")]
    Character(char),
    /// It would escape a directory, or look like an option.
    #[error("begins with a dot or a dash")]
    Begin,
}

/// The variables of the template.
#[derive(Serialize)]
struct NameData<'a> {
    name: &'a str,
    parameters: &'a std::collections::BTreeMap<String, String>,
}

// === impl ExportNaming ===

impl ExportNaming {
    /// Rejects parts that no name may contain. `section` is their section of the configuration.
    pub fn check(&self, section: &str) -> Result<(), ConfigError> {
        for (key, part) in [
            ("namePrefix", &self.name_prefix),
            ("nameSuffix", &self.name_suffix),
        ] {
            if !part.is_empty() {
                ExportName::parse(&format!("a{}", part.to_lowercase())).map_err(|error| {
                    ConfigError::at(format!("{section}.{key}"), error.to_string())
                })?;
            }
        }
        Ok(())
    }

    /// The name of the export of a volume: as recorded in `property`, or else by the template, or,
    /// without a request, prefix, volume id and suffix.
    pub fn name(
        &self,
        subject: &Subject<'_>,
        property: &PropertyName,
    ) -> Result<ExportName, Error> {
        let refused = || Error::invalid(format!("name the export of volume `{}`", subject.id));
        let parse = |text: &str| ExportName::parse(text).map_err(|error| refused().because(error));
        if let Some(name) = subject.remembered(property) {
            return parse(name);
        }
        let middle = match (&self.name_template, subject.request) {
            (Some(template), Some(asked)) => {
                let data = NameData {
                    name: asked.name.as_str(),
                    parameters: asked.parameters.raw(),
                };
                template.render(&data).map_err(|error| {
                    refused()
                        .because(error)
                        .advise("see nameTemplate in the configuration")
                })?
            }
            _ => subject.id.as_str().to_owned(),
        };
        let name = format!("{}{middle}{}", self.name_prefix, self.name_suffix);
        parse(&name.to_lowercase())
    }

    /// The longest name of a volume. The result of a template is known only with a request.
    pub fn longest(&self, longest: &Subject<'_>) -> Option<ExportName> {
        let (prefix, suffix) = (&self.name_prefix, &self.name_suffix);
        let mut name = match self.name_template {
            Some(_) => "x".repeat(MAX),
            None => format!("{prefix}{}{suffix}", longest.id).to_lowercase(),
        };
        // A longer one is rejected before the volume is created.
        name.truncate(MAX);
        ExportName::parse(&name).ok()
    }
}

// === impl ExportName ===

impl ExportName {
    /// This name, or as much of it as fits into `longest` with a hash of all of it.
    #[must_use]
    pub fn within(self, longest: usize) -> Self {
        Self(naming::shortened(&self.0, longest))
    }

    /// The result of `fits` for this name, or for as much of it as fits.
    pub fn shortened<T>(&self, fits: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let lengths = (1..=self.0.len()).rev();
        lengths
            .filter_map(|length| self.0.get(..length))
            .find_map(|name| fits(&Self(name.to_owned())))
    }

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, ExportNameError> {
        let allowed = |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_' | ':')
        };
        if text.is_empty() {
            return Err(ExportNameError::Empty);
        }
        if text.len() > MAX {
            return Err(ExportNameError::TooLong);
        }
        if let Some(c) = text.chars().find(|c| !allowed(*c)) {
            return Err(ExportNameError::Character(c));
        }
        if text.starts_with(['.', '-']) {
            return Err(ExportNameError::Begin);
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use driver_core::{Kind, Parameters, VolumeId, VolumeName};

    use super::*;
    use crate::export::Asked;
    use crate::name::DatasetName;
    use crate::observed::{Dataset, Guid, VolumeKind};
    use crate::property::{Properties, Value};

    #[test]
    fn a_name_that_is_too_long_keeps_its_beginning_and_gets_a_hash() {
        let of = |text: &str| ExportName::parse(text).expect("a name").within(64);
        let long = format!("csi-{}", "a".repeat(80));
        let (one, other) = (of(&format!("{long}1")), of(&format!("{long}2")));
        assert_ne!(one, other);
        assert_eq!(one, of(&format!("{long}1")));
        assert_eq!(one.as_str().len(), 64);
        assert!(one.as_str().starts_with("csi-aaaa"), "{one}");
        assert!(ExportName::parse(one.as_str()).is_ok());
        let fits = "a".repeat(64);
        assert_eq!(of(&fits).as_str(), fits);
    }

    fn naming(template: Option<&str>) -> ExportNaming {
        ExportNaming {
            name_template: template.map(|text| Template::compile(text).unwrap()),
            name_prefix: "csi-".into(),
            name_suffix: "-K8s".into(),
        }
    }

    fn named(
        naming: &ExportNaming,
        asked: bool,
        volume: Option<&Dataset>,
    ) -> Result<String, Error> {
        let id = VolumeId::parse("pvc-1").unwrap();
        let dataset = DatasetName::parse("tank/v/pvc-1").unwrap();
        let (name, parameters) = (VolumeName::parse("Pvc-ONE").unwrap(), Parameters::default());
        let request = Asked {
            name: &name,
            parameters: &parameters,
        };
        let subject = Subject {
            id: &id,
            dataset: &dataset,
            request: asked.then_some(request),
            chosen: None,
            volume,
        };
        let name = naming.name(&subject, &PropertyName::ISCSI_ASSETS)?;
        Ok(name.as_str().to_owned())
    }

    #[test]
    fn names_follow_the_template_and_without_a_request_the_volume_id() {
        let template = naming(Some("{{name}}.x"));
        assert_eq!(named(&template, true, None).unwrap(), "csi-pvc-one.x-k8s");
        assert_eq!(named(&template, false, None).unwrap(), "csi-pvc-1-k8s");
        assert_eq!(named(&naming(None), true, None).unwrap(), "csi-pvc-1-k8s");
    }

    #[test]
    fn what_is_remembered_counts_before_everything_else() {
        let volume = Dataset {
            name: DatasetName::parse("tank/v/pvc-1").unwrap(),
            kind: VolumeKind::Zvol,
            guid: Guid(1),
            properties: Properties::from_iter([(PropertyName::ISCSI_ASSETS, Value::own("old"))]),
        };
        assert_eq!(named(&naming(None), true, Some(&volume)).unwrap(), "old");
    }

    #[test]
    fn names_that_a_target_cannot_have_are_refused_before_anything_is_made() {
        for template in ["a b", "../x", "a/b", "{{{parameters.none}}}$(x)", "a\u{e9}"] {
            let error = named(&naming(Some(template)), true, None).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{template:?}");
        }
        for text in ["", "..", "-o", "a\nb", "A", "a|b"] {
            assert!(ExportName::parse(text).is_err(), "{text:?}");
        }
        assert!(naming(None).check("iscsi").is_ok());
        let bad = ExportNaming {
            name_prefix: "a/".into(),
            ..ExportNaming::default()
        };
        assert_eq!(
            bad.check("iscsi").unwrap_err().path(),
            Some("iscsi.namePrefix")
        );
    }
}
