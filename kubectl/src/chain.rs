//! The links between a claim and its pods, for people and for machines.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The exit code where a link could not be looked at, and none is known to be broken.
pub(crate) const CANNOT_TELL: u8 = 2;
/// The words before a right that is missing.
pub(crate) const RIGHT: &str = "not looked at: needs ";
/// So many remedies are printed: more would hide the first.
const REMEDIES: usize = 4;

/// The state of a link: the words of `omnibus-csi explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It was looked at, and is as it should be.
    Holds,
    /// It was looked at, and is not.
    Broken,
    /// It could not be looked at.
    Unknown,
    /// There is none: a volume that no pod uses.
    Absent,
}

/// One link of the chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Link {
    #[serde(rename = "link")]
    pub(crate) name: Cow<'static, str>,
    pub(crate) state: State,
    /// The observation.
    pub(crate) text: String,
    /// A step that repairs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    /// The node that it is about; none for what is not on a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) facts: Map<String, Value>,
}

/// All links of one claim.
#[derive(Debug, Serialize)]
pub(crate) struct Chain {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) state: State,
    /// The name of the first broken link.
    pub(crate) broken: Option<String>,
    pub(crate) links: Vec<Link>,
}

// === impl Link ===

impl Link {
    fn new(name: &'static str, state: State, text: &str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            state,
            text: printable(text),
            remedy: None,
            node: None,
            facts: Map::new(),
        }
    }

    pub(crate) fn holds(name: &'static str, text: &str) -> Self {
        Self::new(name, State::Holds, text)
    }

    pub(crate) fn absent(name: &'static str, text: &str) -> Self {
        Self::new(name, State::Absent, text)
    }

    pub(crate) fn unknown(name: &'static str, text: &str) -> Self {
        let link = Self::new(name, State::Unknown, text);
        if text.contains(RIGHT) {
            link.or_do(
                "ask an administrator of the cluster for that right, or to run this: \"Rights\" in docs/kubectl.md has all as a ClusterRole",
            )
        } else {
            link
        }
    }

    pub(crate) fn broken(name: &'static str, text: &str, remedy: &str) -> Self {
        Self::new(name, State::Broken, text).or_do(remedy)
    }

    /// The same, and something to do about it.
    #[must_use]
    pub(crate) fn or_do(mut self, remedy: &str) -> Self {
        self.remedy = Some(printable(remedy));
        self
    }

    #[must_use]
    pub(crate) fn on(mut self, node: &str) -> Self {
        self.node = Some(printable(node));
        self
    }

    #[must_use]
    pub(crate) fn with(mut self, fact: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(fact.to_owned(), value.into());
        self
    }
}

// === impl Chain ===

impl Chain {
    pub(crate) fn new(namespace: &str, claim: &str, links: Vec<Link>) -> Self {
        let first = |state| links.iter().find(|link| link.state == state);
        let broken = first(State::Broken).map(|link| link.name.to_string());
        let state = match (&broken, first(State::Unknown)) {
            (Some(_), _) => State::Broken,
            (None, Some(_)) => State::Unknown,
            (None, None) => State::Holds,
        };
        Self {
            namespace: printable(namespace),
            claim: printable(claim),
            state,
            broken,
            links,
        }
    }

    /// 0: all links hold; 1: one is broken; 2: it cannot be said.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.state {
            State::Holds | State::Absent => 0,
            State::Broken => 1,
            State::Unknown => CANNOT_TELL,
        }
    }

    /// The first broken link; else the first that is not known.
    pub(crate) fn first(&self) -> Option<&Link> {
        let named = |state| self.links.iter().find(|link| link.state == state);
        named(State::Broken).or(named(State::Unknown))
    }

    /// The chain, one link on a line, and what to do.
    pub(crate) fn picture(&self, ascii: bool) -> String {
        let mut text = String::new();
        let widest = self.links.iter().map(|link| link.name.len()).max();
        let widest = widest.unwrap_or_default();
        for link in &self.links {
            let mark = mark(link.state, ascii);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{mark} {:<widest$}  {}", link.name, shown(link));
        }
        let first = self.first();
        let _ = match (first, self.state) {
            (Some(link), State::Broken) => {
                writeln!(text, "\nbroken: {}: {}", link.name, shown(link))
            }
            (Some(link), _) => {
                writeln!(
                    text,
                    "\nno broken link, but unknown: {}: {}",
                    link.name,
                    shown(link)
                )
            }
            (None, _) => writeln!(text, "\n{}", self.well()),
        };
        let first = first.or_else(|| self.links.iter().find(|link| link.remedy.is_some()));
        if let Some(remedy) = first.and_then(|link| link.remedy.as_deref()) {
            let _ = writeln!(text, "do: {remedy}");
        }
        if self.state == State::Broken {
            self.next(&mut text);
        }
        text
    }

    /// The words for a chain in which nothing is broken or unknown.
    pub(crate) fn well(&self) -> &'static str {
        let mut links = self.links.iter();
        if links.any(|link| link.name == "bound" && link.state == State::Absent) {
            "waits for its first pod"
        } else {
            "all links hold"
        }
    }

    /// The remedies of the broken links after the first, each once: one of them may be closer to the cause.
    fn next(&self, text: &mut String) {
        let mut broken = self
            .links
            .iter()
            .filter(|link| link.state == State::Broken)
            .filter_map(|link| Some((link, link.remedy.as_deref()?)));
        let mut said: Vec<_> = broken
            .next()
            .map(|(_, remedy)| remedy)
            .into_iter()
            .collect();
        let mut left = 0;
        for (link, remedy) in broken {
            if said.contains(&remedy) {
                continue;
            }
            said.push(remedy);
            if said.len() > REMEDIES {
                left += 1;
                continue;
            }
            let on = link.node.as_ref().map(|node| format!(" on {node}"));
            let (name, on) = (&link.name, on.unwrap_or_default());
            let _ = writeln!(text, "do, if {name}{on} stays broken: {remedy}");
        }
        if left > 0 {
            let _ = writeln!(text, "{left} more remedies are in the output of --json");
        }
    }
}

pub(crate) fn shown(link: &Link) -> String {
    match &link.node {
        Some(node) => format!("{node}: {}", link.text),
        None => link.text.clone(),
    }
}

pub(crate) fn mark(state: State, ascii: bool) -> &'static str {
    match (state, ascii) {
        (State::Holds, false) => "✔",
        (State::Broken, false) => "✘",
        (State::Unknown, false) => "?",
        (State::Absent, false) => "·",
        (State::Holds, true) => "ok     ",
        (State::Broken, true) => "BROKEN ",
        (State::Unknown, true) => "?      ",
        (State::Absent, true) => "-      ",
    }
}

/// The text on one line, without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_broken_link_is_named_with_its_remedy_and_its_node() {
        let links = vec![
            Link::holds("claim", "bound"),
            Link::unknown("class", "not looked at"),
            Link::broken("attached", "it is\n\u{1b}[31mgone", "start it").on("one"),
            Link::broken("pod", "gone as well", "make it"),
        ];
        let chain = Chain::new("default", "data", links);
        assert_eq!(chain.broken.as_deref(), Some("attached"));
        assert_eq!(chain.exit_code(), 1);
        let drawn = chain.picture(false);
        assert!(drawn.starts_with("✔ claim"), "{drawn}");
        assert!(drawn.contains("one: it is [31mgone"), "{drawn}");
        let remedies = "\ndo: start it\ndo, if pod stays broken: make it\n";
        assert!(drawn.ends_with(remedies), "{drawn}");
        assert!(!drawn.contains('\u{1b}'), "{drawn}");
        let plain = chain.picture(true);
        assert!(
            plain.is_ascii() && plain.contains("BROKEN  attached"),
            "{plain}"
        );
    }

    #[test]
    fn each_remedy_is_printed_once_and_of_many_the_first_few() {
        let broken = |name, remedy: &str| Link::broken(name, "gone", remedy);
        let mut links = vec![
            broken("controller", "make it"),
            broken("node-pod", "make it").on("one"),
            broken("pod", "wait").on("one"),
        ];
        let drawn = Chain::new("a", "b", links.clone()).picture(true);
        let expected = "\ndo: make it\ndo, if pod on one stays broken: wait\n";
        assert!(drawn.ends_with(expected), "{drawn}");
        links.extend((0..4).map(|number| broken("pod", &format!("step {number}"))));
        let drawn = Chain::new("a", "b", links).picture(true);
        assert!(drawn.contains("stays broken: step 1\n"), "{drawn}");
        assert!(!drawn.contains("step 2"), "{drawn}");
        assert!(
            drawn.ends_with("\n2 more remedies are in the output of --json\n"),
            "{drawn}"
        );
    }

    #[test]
    fn what_was_not_looked_at_is_no_success_and_what_is_absent_is_no_failure() {
        let unknown = vec![
            Link::holds("claim", "bound"),
            Link::unknown("class", "silent"),
        ];
        assert_eq!(Chain::new("a", "b", unknown).exit_code(), 2);
        let forbidden = vec![Link::unknown("pod", "not looked at: needs list on pods")];
        let drawn = Chain::new("a", "b", forbidden).picture(true);
        assert!(drawn.contains("\ndo: ask an administrator"), "{drawn}");
        let absent = vec![Link::absent("pod", "no pod uses it").or_do("start one")];
        let absent = Chain::new("a", "b", absent);
        assert_eq!(absent.exit_code(), 0);
        assert!(absent.picture(true).ends_with("do: start one\n"));
    }
}
