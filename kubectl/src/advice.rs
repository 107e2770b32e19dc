//! The step that a message of the cluster asks for: the advice of the driver, which stands at its end, or else that of
//! the case.

use k8s_openapi::api::core::v1::Event;

mod cases;

pub(crate) use cases::OTHER_MODES;
use cases::{CLAIMS, NODES, PODS, VOLUMES, codes};

use crate::chain::printable;

/// The part of the cluster that says a message. Each asks again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Provisioner,
    /// The provisioner, of a volume that it deletes.
    Deleter,
    /// The controller of Kubernetes that binds claims to volumes.
    VolumeController,
    Attacher,
    AttachController,
    Resizer,
    Kubelet,
    Scheduler,
    DaemonSetController,
}

/// What follows `rpc error: code = ` in the text of an error of the driver.
pub(crate) const CODE: &str = "rpc error: code = ";
pub(crate) const TEXT: &str = " desc = ";
/// The words between the part of the cluster that speaks and its message.
pub(crate) const SAYS: &str = " says: ";
/// Brackets at the end of a message that are no advice.
const NO_ADVICE: [&str; 4] = ["os error ", "exit code ", "exit status ", "silent for "];
/// The words that an advice has at least.
const WORDS: usize = 3;

/// The end of a remedy that has a claim made again.
pub(crate) const ANEW: &str = "the spec of a claim cannot be changed, but for a larger size once it is bound and \
                               `volumeAttributesClassName`: delete the claim, which has no data yet, and make it again";

/// The step that gives a `PersistentVolume` another value of something that cannot be changed in it.
pub(crate) fn made_again(what: &str) -> String {
    format!(
        "{what} of a PersistentVolume cannot be changed: to have another, set `persistentVolumeReclaimPolicy: Retain`, which keeps the data, \
         delete the PersistentVolume and make it again"
    )
}

// === impl Speaker ===

impl Speaker {
    pub(crate) fn of(event: &Event) -> Self {
        let source = event.source.as_ref();
        let component = source.and_then(|source| source.component.as_deref());
        let component = component.or(event.reporting_component.as_deref());
        match event.reason.as_deref().unwrap_or_default() {
            "FailedScheduling" => Self::Scheduler,
            "FailedAttachVolume" => Self::AttachController,
            "FailedMount" | "FailedMapVolume" | "FailedUnMount" => Self::Kubelet,
            "FailedBinding" | "VolumeMismatch" | "ClaimLost" | "ClaimMisbound" => {
                Self::VolumeController
            }
            _ if component == Some("persistentvolume-controller") => Self::VolumeController,
            _ if component == Some("daemonset-controller") => Self::DaemonSetController,
            _ => Self::Provisioner,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Provisioner | Self::Deleter => "the provisioner",
            Self::VolumeController => "the volume controller of Kubernetes",
            Self::Attacher => "the attacher",
            Self::AttachController => "the attach controller of Kubernetes",
            Self::Resizer => "the resizer",
            Self::Kubelet => "the kubelet",
            Self::Scheduler => "the scheduler",
            Self::DaemonSetController => "the DaemonSet controller of Kubernetes",
        }
    }

    /// A message with who says it.
    pub(crate) fn says(self, message: &str) -> String {
        format!("{}{SAYS}{message}", self.name())
    }

    /// The step that its message asks for. `log` is the command that shows the log of the driver, if a pod has it.
    pub(crate) fn remedy(self, message: &str, log: Option<&str>) -> String {
        let again = format!("{} tries again by itself", self.name());
        if let Some(advice) = of_driver(message) {
            return format!("{}; {again}", by_plugin(advice));
        }
        if self == Self::Scheduler {
            let fitting = NODES.iter().filter(|(part, _)| message.contains(part));
            let steps: Vec<_> = fitting.map(|(_, step)| *step).collect();
            if !steps.is_empty() {
                return format!("{}; {again}", steps.join("; "));
            }
        } else if let Some(step) = self.known(message) {
            return step.to_owned();
        } else if let Some(step) = code(message).and_then(|code| codes(self, code)) {
            return format!("{step}; {again}");
        }
        let look = match (self, log) {
            (Self::Scheduler, _) => {
                "the events at the end of `kubectl describe pod` name what each node lacks"
                    .to_owned()
            }
            (Self::DaemonSetController, _) => {
                "correct what the message names; the events at the end of `kubectl describe ds` have all of it"
                    .to_owned()
            }
            (_, Some(log)) => format!(
                "`kubectl omnibus check` looks at the configuration and the storage; if it finds nothing, the last lines of {log} name \
                 the cause"
            ),
            (_, None) => {
                "`kubectl omnibus check` looks at the configuration and the storage".to_owned()
            }
        };
        format!("{look}; {again}")
    }

    /// The step of a message that is known. Only of a claim without a volume may it be to delete the claim.
    fn known(self, message: &str) -> Option<&'static str> {
        let own: &[_] = match self {
            Self::Provisioner | Self::VolumeController => CLAIMS,
            Self::DaemonSetController => PODS,
            _ => &[],
        };
        let mut all = own.iter().chain(VOLUMES);
        let (_, step) = all.find(|(part, _)| message.contains(part))?;
        Some(*step)
    }
}

/// The text with the commands of the program in a pod as those of this program.
pub(crate) fn by_plugin(text: &str) -> String {
    let mut words = Vec::new();
    for word in printable(text).split(' ') {
        if !word.starts_with("--driver-config-file=") {
            words.push(word.replace("`omnibus-csi", "`kubectl omnibus"));
        } else if let Some(end) = word.strip_suffix('`').and(words.last_mut()) {
            end.push('`');
        }
    }
    words.join(" ")
}

/// The advice at the end of a message of the driver, which has it in brackets.
fn of_driver(message: &str) -> Option<&str> {
    let (_, text) = message.split_once(CODE)?;
    in_brackets(text)
}

/// The advice in the brackets at the end of a text of the driver.
pub(crate) fn in_brackets(text: &str) -> Option<&str> {
    let inner = text.trim_end().strip_suffix(')')?;
    let mut open = 1;
    let (at, _) = inner.char_indices().rev().find(|(_, char)| {
        match char {
            ')' => open += 1,
            '(' => open -= 1,
            _ => {}
        }
        open == 0
    })?;
    let advice = &inner[at + 1..];
    let is_advice = inner[..at].ends_with(' ')
        && !NO_ADVICE.iter().any(|begin| advice.starts_with(begin))
        && advice.split_whitespace().count() >= WORDS;
    is_advice.then_some(advice)
}

/// The code of an error of the driver.
fn code(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(CODE)?;
    rest.split_once(TEXT).map(|(code, _)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_of_the_driver_is_shown_and_what_else_is_in_brackets_is_none() {
        let of = |text: &str| {
            of_driver(&format!("failed: rpc error: code = Internal desc = {text}"))
                .map(str::to_owned)
        };
        let said = of("nas: it is full (free space, such as (old) snapshots)");
        assert_eq!(said.as_deref(), Some("free space, such as (old) snapshots"));
        for text in [
            "nas: refused (os error 111)",
            "connected is a (silent for 340 s)",
            "it ended (exit code 1)",
            "a (b) c",
            "look (twice)",
            "f(a b c)",
            "a b c)",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of_driver("of Kubernetes (make a larger one)"), None);
    }

    #[test]
    fn a_message_without_advice_has_a_step_by_its_case_or_its_code_or_names_the_log() {
        for (speaker, message, expected) in [
            (
                Speaker::Kubelet,
                "rpc error: code = Internal desc = mount.nfs: access denied by server",
                "allowed networks",
            ),
            (
                Speaker::Kubelet,
                "rpc error: code = Unavailable desc = nas: refused (os error 111)",
                "kubectl omnibus connections",
            ),
            (
                Speaker::Provisioner,
                "rpc error: code = OutOfRange desc = too small",
                "make it again",
            ),
            (
                Speaker::Resizer,
                "rpc error: code = OutOfRange desc = too small",
                "ask for a size",
            ),
            (
                Speaker::Kubelet,
                "rpc error: code = InvalidArgument desc = no such share",
                "The source of a PersistentVolume cannot be changed: to have another, set `persistentVolumeReclaimPolicy: Retain`",
            ),
            (Speaker::Attacher, "no login", "`logs x`"),
            (
                Speaker::Scheduler,
                "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.",
                "resources.requests",
            ),
            (
                Speaker::Scheduler,
                "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.",
                "kubectl uncordon",
            ),
            (Speaker::Scheduler, "no", "describe pod"),
        ] {
            let remedy = speaker.remedy(message, Some("`logs x`"));
            assert!(remedy.contains(expected), "{message}: {remedy}");
        }
    }

    #[test]
    fn an_event_is_of_the_part_that_says_it() {
        let event = |reason: &str, component: &str| {
            let value = serde_json::json!({
                "metadata": {}, "involvedObject": {}, "reason": reason, "source": {"component": component}
            });
            Speaker::of(&serde_json::from_value(value).expect("an event"))
        };
        let own = "org.example.csi_csi-controller_0a1b";
        assert_eq!(
            event("FailedScheduling", "my-scheduler"),
            Speaker::Scheduler
        );
        assert_eq!(event("FailedMount", "kubelet"), Speaker::Kubelet);
        assert_eq!(event("ProvisioningFailed", own), Speaker::Provisioner);
        let kubernetes = event("ProvisioningFailed", "persistentvolume-controller");
        assert_eq!(kubernetes, Speaker::VolumeController);
        let of_set = event("FailedCreate", "daemonset-controller");
        assert_eq!(of_set, Speaker::DaemonSetController);
    }
}
