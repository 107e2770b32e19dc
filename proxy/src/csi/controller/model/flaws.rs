//! Proves that the model can fail: it finds defects that are planted in a storage or in the
//! process.

use super::{SEQUENCES, Seen, Story, story};

/// A defect that is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    // Of a storage.
    /// What it is to delete stays, and it says that it is gone.
    DeletesNothing,
    /// It reports partial volumes as absent.
    HidesHalves,
    /// It does not announce a change, and then does not report its effect.
    ChangesUntold,
    /// Each page of a list but the last lacks an entry.
    ListsTooFew,
    /// It reports an expansion without doing it.
    GrowsInWordsOnly,
    /// What it keeps for a copy stays after the copy is complete.
    KeepsCopiesOpen,
    // Of the process.
    /// From one call to the next it forgets what it does not know the outcome of, and who is at work.
    ForgetsEverything,
    /// A call without an outcome is reported as a final failure.
    SoundsFinal,
    /// A connection whose file is gone stays.
    ServesWhatIsGone,
    /// A connection ends with the first mistake in its file.
    DropsTheLastGood,
    /// An old name means another connection than the one that had it.
    MeansAnother,
    /// Volumes are created outside of the requested topology.
    KnowsNoZones,
    /// Volumes are created in a connection that accepts no new ones.
    ClosesNothing,
}

/// The most steps in the report of a defect: short enough to read. Most take two to seven, one in
/// fifty takes eight.
const FEW: usize = 10;

impl Flaw {
    const ALL: [Self; 13] = [
        Self::DeletesNothing,
        Self::HidesHalves,
        Self::ChangesUntold,
        Self::ListsTooFew,
        Self::GrowsInWordsOnly,
        Self::KeepsCopiesOpen,
        Self::ForgetsEverything,
        Self::SoundsFinal,
        Self::ServesWhatIsGone,
        Self::DropsTheLastGood,
        Self::MeansAnother,
        Self::KnowsNoZones,
        Self::ClosesNothing,
    ];
}

#[test]
fn a_planted_defect_is_found_and_reported_in_few_steps() {
    let seed = super::seed();
    for flaw in Flaw::ALL {
        let tried = |number| story(seed, number, Some(flaw), &mut Seen::new());
        let found = (0..SEQUENCES).find_map(tried);
        let Story { steps, text } = found.unwrap_or_else(|| panic!("{flaw:?}: seed {seed}"));
        assert!(steps <= FEW, "{flaw:?}: {text}");
    }
}
