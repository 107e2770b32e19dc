//! All claims of a namespace, or of all, one on a line.

use std::collections::BTreeMap;
use std::fmt::Write;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::advice::{CODE, SAYS, TEXT, in_brackets};
use crate::chain::{CANNOT_TELL, Chain, Link, State, mark, printable, shown};
use crate::cluster::Cluster;
use crate::found::{Answer, Around};
use crate::read::{around, read_listed};
use crate::walk::{is_of_others, walk};

/// So many claims are looked at at once. Each starts a command in the controller's pod and in one of each node.
const AT_ONCE: usize = 8;
/// The length of a link's text on its line, without the mark of what was cut out.
const SHORT: usize = 140;
/// So much of it stands before that mark.
const BEGIN: usize = 60;

/// The chains of many claims, the sick ones first.
#[derive(Debug)]
pub(crate) struct Many {
    pub(crate) chains: Vec<Chain>,
    /// The number of claims of other drivers.
    others: usize,
    /// The only namespace that was looked at.
    namespace: Option<String>,
}

// === impl Many ===

impl Many {
    /// Looks at all claims of a namespace, or of all.
    pub(crate) async fn read(cluster: &Cluster, namespace: Option<&str>) -> Result<Self, String> {
        let claims = cluster.claims(namespace).await;
        if let Some(why) = claims.why_not() {
            return Err(format!("the claims: {why}"));
        }
        let mut places: BTreeMap<String, Vec<PersistentVolumeClaim>> = BTreeMap::new();
        for claim in claims.all() {
            let place = claim.metadata.namespace.as_deref().or(namespace);
            if let Some(place) = place {
                let of_place = places.entry(place.to_owned()).or_default();
                of_place.push(claim.clone());
            }
        }
        let mut many = Self {
            chains: Vec::new(),
            others: 0,
            namespace: namespace.map(str::to_owned),
        };
        for (place, claims) in places {
            let place = place.as_str();
            let around = Box::pin(around(cluster, place)).await;
            // Once more, after the pods: of a claim that is older than its pods, what was done since would seem to be missing.
            let claims = match cluster.claims(Some(place)).await {
                Answer::There(claims) => claims,
                _ => claims,
            };
            let looks = claims.iter().filter_map(|claim| {
                let name = claim.metadata.name.as_deref()?;
                Some(look(cluster, (place, name), claim, &around))
            });
            let looked: Vec<_> = stream::iter(looks)
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
            let all = looked.len();
            let before = many.chains.len();
            many.chains.extend(looked.into_iter().flatten());
            many.others += all - (many.chains.len() - before);
        }
        many.chains.sort_by_cached_key(|chain| {
            (
                rank(chain.state),
                chain.namespace.clone(),
                chain.claim.clone(),
            )
        });
        Ok(many)
    }

    /// 0: all links of all claims hold; 1: one is broken; 2: it cannot be said.
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.count(State::Broken), self.count(State::Unknown)) {
            (0, 0) => 0,
            (0, _) => CANNOT_TELL,
            _ => 1,
        }
    }

    fn count(&self, state: State) -> usize {
        let of = self.chains.iter().filter(|chain| chain.state == state);
        of.count()
    }

    /// One claim on a line with its first broken link, and the sum.
    pub(crate) fn picture(&self, ascii: bool) -> String {
        let mut text = String::new();
        let name = |chain: &Chain| match &self.namespace {
            Some(_) => chain.claim.clone(),
            None => format!("{}/{}", chain.namespace, chain.claim),
        };
        let widest = self.chains.iter().map(|chain| name(chain).len()).max();
        let widest = widest.unwrap_or_default();
        for chain in &self.chains {
            let (mark, name) = (mark(chain.state, ascii), name(chain));
            // Writing to a string does not fail.
            let _ = match chain.first() {
                Some(link) => {
                    let shown = shown(&Link {
                        text: short(&link.text),
                        ..link.clone()
                    });
                    writeln!(text, "{mark} {name:<widest$}  {}: {shown}", link.name)
                }
                None => writeln!(text, "{mark} {name:<widest$}  {}", chain.well()),
            };
        }
        if !self.chains.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", self.sum());
        let sick: Vec<_> = self
            .chains
            .iter()
            .filter(|chain| chain.first().is_some())
            .collect();
        if !sick.is_empty() {
            text.push_str("do: see all links and the remedies of each:\n");
        }
        for chain in sick {
            let (namespace, claim) = (&chain.namespace, &chain.claim);
            let _ = writeln!(text, "  kubectl omnibus explain -n {namespace} {claim}");
        }
        text
    }

    fn sum(&self) -> String {
        let place = match &self.namespace {
            Some(namespace) => format!("the namespace {}", printable(namespace)),
            None => "all namespaces".to_owned(),
        };
        let all = self.chains.len();
        let mut sum = format!("{} in {place}", claims(all, ""));
        if all > 0 {
            let (broken, unknown) = (self.count(State::Broken), self.count(State::Unknown));
            sum = format!("{sum}: {broken} with a broken link, {unknown} not known");
        }
        if self.others > 0 {
            let others = claims(self.others, " of other drivers");
            sum = format!("{sum}; {others} left out");
        }
        sum
    }
}

/// The chain of one claim; none if it is of another driver.
async fn look(
    cluster: &Cluster,
    of: (&str, &str),
    claim: &PersistentVolumeClaim,
    around: &Around,
) -> Option<Chain> {
    let read = read_listed(cluster, of, claim.clone(), around.clone());
    let found = Box::pin(read).await;
    (!is_of_others(&found)).then(|| Chain::new(of.0, of.1, walk(&found)))
}

/// The sick ones come first.
fn rank(state: State) -> u8 {
    match state {
        State::Broken => 0,
        State::Unknown => 1,
        State::Holds | State::Absent => 2,
    }
}

fn claims(count: usize, of: &str) -> String {
    match count {
        1 => format!("1 claim{of}"),
        count => format!("{count} claims{of}"),
    }
}

/// A text for a line. A long one loses what says least, as far as it has to, and at last its middle: a path or a reason
/// stands at its end.
fn short(text: &str) -> String {
    let cuts: [fn(&str) -> Option<String>; 4] = [
        without_frame,
        without_advice,
        without_preemption,
        without_context,
    ];
    let mut text = text.to_owned();
    for cut in cuts {
        if text.chars().count() > SHORT {
            text = cut(&text).unwrap_or(text);
        }
    }
    let chars: Vec<char> = text.chars().collect();
    let Some(cut) = chars.len().checked_sub(SHORT).filter(|cut| *cut > 0) else {
        return text;
    };
    let part = |chars: &[char]| chars.iter().collect::<String>();
    format!(
        "{} ... {}",
        part(&chars[..BEGIN]).trim_end(),
        part(&chars[BEGIN + cut..]).trim_start()
    )
}

/// An error of the driver without the call that had it and its code.
fn without_frame(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(CODE)?;
    let (_, error) = rest.rsplit_once(TEXT)?;
    Some(match before.split_once(SAYS) {
        Some((speaker, _)) => format!("{speaker}{SAYS}{error}"),
        None => format!("{before}{error}"),
    })
}

/// The advice at the end is the remedy.
fn without_advice(text: &str) -> Option<String> {
    let advice = format!("({})", in_brackets(text)?);
    let text = text.trim_end().strip_suffix(advice.as_str())?;
    Some(text.trim_end().to_owned())
}

/// The scheduler ends with why it would be of no use to end other pods.
fn without_preemption(text: &str) -> Option<String> {
    let (text, _) = text.split_once(" preemption: ")?;
    Some(text.to_owned())
}

/// The words before the one who speaks.
fn without_context(text: &str) -> Option<String> {
    let (before, message) = text.split_once(SAYS)?;
    let (_, speaker) = before.rsplit_once("; ")?;
    Some(format!("{speaker}{SAYS}{message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_loses_its_middle_and_keeps_its_end() {
        assert_eq!(short("no such file"), "no such file");
        let exact = "é".repeat(SHORT);
        assert_eq!(short(&exact), exact);
        let long = format!("begin {} /var/lib/storage/v", "middle ".repeat(40));
        let cut = short(&long);
        assert!(cut.starts_with("begin middle"), "{cut}");
        assert!(
            cut.contains(" ... ") && cut.ends_with(" /var/lib/storage/v"),
            "{cut}"
        );
        assert!(cut.chars().count() <= SHORT + 5, "{cut}");
    }

    #[test]
    fn a_long_text_keeps_its_cause() {
        for (text, cause) in [
            (
                "the provisioner says: ProvisioningFailed: failed to provision volume with StorageClass \"nas\": rpc error: code = ResourceExhausted \
                 desc = nas: the pool tank is full (delete snapshots, or add a disk)",
                "the provisioner says: nas: the pool tank is full (delete snapshots, or add a disk)",
            ),
            (
                "it cannot be attached; the attacher says: rpc error: code = FailedPrecondition desc = publish volume `pvc-1`: it is published to the \
                 node worker-1 (delete the pod there first, or see that the node is gone for good and let it be fenced)",
                "it cannot be attached; the attacher says: publish volume `pvc-1`: it is published to the node worker-1",
            ),
            (
                "web-0 waits; the scheduler says: FailedScheduling: 0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are \
                 available: 3 No preemption victims found for incoming pod.",
                "web-0 waits; the scheduler says: FailedScheduling: 0/3 nodes are available: 3 Insufficient memory.",
            ),
            (
                "there is no pod of the driver on this node: the DaemonSet storage/csi-node fits the labels and taints of the node; the DaemonSet \
                 controller of Kubernetes says: FailedCreate: exceeded quota: few",
                "the DaemonSet controller of Kubernetes says: FailedCreate: exceeded quota: few",
            ),
        ] {
            assert_eq!(short(text), cause);
        }
    }
}
