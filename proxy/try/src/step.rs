//! The steps of a volume's life, in their order: what each is called, and what it means if it fails.
//!
//! The names of steps are part of the JSON report and do not change. What a step does is in `life`
//! and `ending`.

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Serve,
    Probe,
    Identify,
    Capabilities,
    Capacity,
    Create,
    Attach,
    Stage,
    Publish,
    Write,
    Stats,
    Snapshot,
    Change,
    Restore,
    UseRestored,
    CompareRestored,
    Clone,
    UseClone,
    CompareClone,
    Independent,
    Expand,
    Health,
    ListVolumes,
    ListSnapshots,
    Unpublish,
    Unstage,
    Detach,
    DeleteCopies,
    DeleteSnapshot,
    DeleteVolume,
    DeleteAgain,
    NothingLeft,
    Stop,
}

/// What is told about a step.
struct Words {
    name: &'static str,
    title: &'static str,
    rpc: Option<&'static str>,
    /// What it means to a cluster that this failed.
    meaning: &'static str,
    /// Where to look.
    advice: &'static str,
}

// === impl Step ===

impl Step {
    /// Every step.
    pub(super) const ALL: [Self; 33] = [
        Self::Serve,
        Self::Probe,
        Self::Identify,
        Self::Capabilities,
        Self::Capacity,
        Self::Create,
        Self::Attach,
        Self::Stage,
        Self::Publish,
        Self::Write,
        Self::Stats,
        Self::Snapshot,
        Self::Change,
        Self::Restore,
        Self::UseRestored,
        Self::CompareRestored,
        Self::Clone,
        Self::UseClone,
        Self::CompareClone,
        Self::Independent,
        Self::Expand,
        Self::Health,
        Self::ListVolumes,
        Self::ListSnapshots,
        Self::Unpublish,
        Self::Unstage,
        Self::Detach,
        Self::DeleteCopies,
        Self::DeleteSnapshot,
        Self::DeleteVolume,
        Self::DeleteAgain,
        Self::NothingLeft,
        Self::Stop,
    ];

    /// Its name for machines.
    pub(super) fn name(self) -> &'static str {
        self.words().name
    }

    /// Its name for people, at most 36 characters.
    pub(super) fn title(self) -> &'static str {
        self.words().title
    }

    /// The call that it consists of, if it is one.
    pub(super) fn rpc(self) -> Option<&'static str> {
        self.words().rpc
    }

    /// What it means that it failed.
    pub(super) fn meaning(self) -> &'static str {
        self.words().meaning
    }

    /// Where to look when it failed.
    pub(super) fn advice(self) -> &'static str {
        self.words().advice
    }

    /// The heading that begins with this step.
    pub(super) fn chapter(self) -> Option<&'static str> {
        match self {
            Self::Serve => Some("The driver"),
            Self::Create => Some("A volume"),
            Self::Snapshot => Some("Its copies"),
            Self::Expand => Some("Its growth"),
            Self::Unpublish => Some("Its end"),
            _ => None,
        }
    }

    fn words(self) -> &'static Words {
        words::of(self)
    }
}

mod words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_name_of_its_own_and_a_title_that_fits_its_column() {
        let mut names: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Step::ALL.len());
        for step in Step::ALL {
            assert!(step.title().chars().count() <= 36, "{}", step.title());
            assert!(!step.meaning().is_empty() && !step.advice().is_empty());
        }
        let order: Vec<_> = Step::ALL.iter().map(|step| *step as usize).collect();
        assert!(order.is_sorted(), "the list is in the order of the enum");
    }
}
