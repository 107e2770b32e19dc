//! All claims of a namespace, or of all, one on a line.

use std::collections::BTreeMap;
use std::fmt::Write;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::chain::{CANNOT_TELL, Chain, State, mark, printable, shown};
use crate::cluster::Cluster;
use crate::found::Around;
use crate::read::{around, read_listed};
use crate::walk::{is_of_others, walk};

/// So many claims are looked at at once. Each starts a command in the controller's pod and in one of each node.
const AT_ONCE: usize = 8;
/// The length of a link's text on its line.
const SHORT: usize = 120;

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
        let mut places: BTreeMap<&str, Vec<(&str, &PersistentVolumeClaim)>> = BTreeMap::new();
        for claim in claims.all() {
            let meta = &claim.metadata;
            let place = meta.namespace.as_deref().or(namespace);
            if let (Some(place), Some(name)) = (place, meta.name.as_deref()) {
                places.entry(place).or_default().push((name, claim));
            }
        }
        let mut many = Self {
            chains: Vec::new(),
            others: 0,
            namespace: namespace.map(str::to_owned),
        };
        for (place, claims) in places {
            let around = Box::pin(around(cluster, place)).await;
            let looks = claims
                .into_iter()
                .map(|(name, claim)| look(cluster, (place, name), claim, &around));
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
                    let shown = short(&shown(link));
                    writeln!(text, "{mark} {name:<widest$}  {}: {shown}", link.name)
                }
                None => writeln!(text, "{mark} {name:<widest$}  all links hold"),
            };
        }
        if !self.chains.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", self.sum());
        if let Some(chain) = self.chains.first().filter(|chain| chain.first().is_some()) {
            let _ = writeln!(
                text,
                "do: `kubectl omnibus explain -n {} {}` has all links and the remedy of the first",
                chain.namespace, chain.claim
            );
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

/// The beginning of a long text.
fn short(text: &str) -> String {
    match text.char_indices().nth(SHORT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
