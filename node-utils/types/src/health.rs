//! The conditions of a volume: one type, for what a storage tells and for what a node sees.
//!
//! Both dialects of the specification are encoded from it: one flag and a text up to 1.12, a list from 1.13 on.

use std::fmt;

/// The most conditions of a volume. The kubelet takes 16 of a storage for an error.
pub const MAX_CONDITIONS: usize = 8;

/// The kind of a condition. The worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionKind {
    /// The volume can be used, and not as it should.
    Degraded,
    /// The volume cannot be used; its data is believed to exist.
    Inaccessible,
    /// Data is gone, or probably is.
    DataLoss,
}

/// One word for programs, in `CamelCase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(&'static str);

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    kind: ConditionKind,
    reason: Reason,
    message: String,
}

/// All that is known to be wrong with a volume, the worst first: at most [`MAX_CONDITIONS`], and no two of the same kind
/// and reason. None: nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions(Vec<Condition>);

// === impl Reason ===

impl Reason {
    /// The longest word.
    const LONGEST: usize = 64;

    /// A word that is known when this is compiled.
    ///
    /// # Panics
    /// If it is not in `CamelCase`; in a constant that is an error of the compiler.
    pub const fn constant(word: &'static str) -> Self {
        let bytes = word.as_bytes();
        assert!(
            !bytes.is_empty() && bytes.len() <= Self::LONGEST,
            "a reason is a short word"
        );
        assert!(
            bytes[0].is_ascii_uppercase(),
            "a reason begins with a capital letter"
        );
        let mut at = 0;
        while at < bytes.len() {
            assert!(
                bytes[at].is_ascii_alphanumeric(),
                "a reason has letters and digits only"
            );
            at += 1;
        }
        Self(word)
    }

    /// The word.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

// === impl Condition ===

impl Condition {
    /// A condition. The message is for people.
    pub fn new(kind: ConditionKind, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            kind,
            reason,
            message: message.into(),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> ConditionKind {
        self.kind
    }

    /// One word for programs.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The observation, for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

// === impl Conditions ===

impl Conditions {
    /// Adds a condition. Of two of the same kind and reason the first stays; what does not fit is the least bad.
    pub fn add(&mut self, condition: Condition) {
        let is_same =
            |known: &Condition| (known.kind, known.reason) == (condition.kind, condition.reason);
        if self.0.iter().any(is_same) {
            return;
        }
        let place = self.0.partition_point(|known| known.kind >= condition.kind);
        self.0.insert(place, condition);
        self.0.truncate(MAX_CONDITIONS);
    }

    /// Whether nothing is wrong.
    pub fn is_healthy(&self) -> bool {
        self.0.is_empty()
    }

    /// The worst condition.
    pub fn worst(&self) -> Option<&Condition> {
        self.0.first()
    }

    /// The conditions, the worst first.
    pub fn iter(&self) -> std::slice::Iter<'_, Condition> {
        self.0.iter()
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<T: IntoIterator<Item = Condition>>(all: T) -> Self {
        let mut conditions = Self::default();
        conditions.extend(all);
        conditions
    }
}

impl Extend<Condition> for Conditions {
    fn extend<T: IntoIterator<Item = Condition>>(&mut self, all: T) {
        all.into_iter().for_each(|condition| self.add(condition));
    }
}

impl IntoIterator for Conditions {
    type Item = Condition;
    type IntoIter = std::vec::IntoIter<Condition>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Conditions {
    type Item = &'a Condition;
    type IntoIter = std::slice::Iter<'a, Condition>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Reason = Reason::constant("PoolFull");
    const WORDS: [&str; 10] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"];

    #[test]
    fn the_worst_comes_first_and_nothing_is_said_twice() {
        let all: Conditions = [
            Condition::new(ConditionKind::Degraded, FULL, "first"),
            Condition::new(ConditionKind::Degraded, FULL, "second"),
            Condition::new(ConditionKind::DataLoss, FULL, ""),
            Condition::new(ConditionKind::Inaccessible, FULL, ""),
        ]
        .into_iter()
        .collect();
        let kinds: Vec<_> = all.iter().map(Condition::kind).collect();
        assert_eq!(
            kinds,
            [
                ConditionKind::DataLoss,
                ConditionKind::Inaccessible,
                ConditionKind::Degraded
            ]
        );
        assert_eq!(all.iter().last().map(Condition::message), Some("first"));
        assert_eq!(
            all.worst().map(Condition::kind),
            Some(ConditionKind::DataLoss)
        );
        assert!(!all.is_healthy() && Conditions::default().is_healthy());
    }

    #[test]
    fn there_are_never_more_than_eight_and_the_bad_ones_stay() {
        let mut all = Conditions::default();
        for word in WORDS {
            let reason = Reason(word);
            all.add(Condition::new(ConditionKind::Degraded, reason, ""));
        }
        all.add(Condition::new(ConditionKind::Inaccessible, FULL, ""));
        assert_eq!(all.iter().count(), MAX_CONDITIONS);
        assert_eq!(all.worst().map(Condition::reason), Some(FULL));
    }
}
