//! The source of a volume, as a note in the description of its LUN: DSM has no other field for it.
//!
//! A LUN without such a note (made by democratic-csi, or by a DSM that drops the description of a copy)
//! may have any source, so a repeated request is accepted.

use driver_core::{SnapshotId, Source, VolumeId};

/// Stands before the note.
const MARK: &str = "csi-source: ";
/// Says that it was made empty.
const NONE: &str = "none";

/// What is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nothing.
    Unknown,
    /// The text of the note.
    Known(Option<Source>),
}

// === impl Origin ===

impl Origin {
    pub(crate) fn read(description: &str) -> Self {
        let Some((_, note)) = description.rsplit_once(MARK) else {
            return Self::Unknown;
        };
        let source = match note.split_once(' ') {
            None if note == NONE => return Self::Known(None),
            Some(("volume", id)) => VolumeId::parse(id).ok().map(Source::Volume),
            Some(("snapshot", id)) => SnapshotId::parse(id).ok().map(Source::Snapshot),
            _ => None,
        };
        source.map_or(Self::Unknown, |source| Self::Known(Some(source)))
    }

    /// The text of the note, if there is one.
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            Self::Unknown => None,
            Self::Known(source) => source,
        }
    }
}

/// The description with its note.
pub(crate) fn noted(description: &str, source: Option<&Source>) -> String {
    let note = match source {
        Some(Source::Volume(id)) => format!("volume {id}"),
        Some(Source::Snapshot(id)) => format!("snapshot {id}"),
        // What comes from elsewhere is refused before.
        None | Some(Source::Elsewhere(_)) => NONE.to_owned(),
    };
    let space = if description.is_empty() { "" } else { " " };
    format!("{description}{space}{MARK}{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_behind_any_description() {
        let volume = Source::Volume(VolumeId::parse("pvc-1").expect("an id"));
        let snapshot = Source::Snapshot(SnapshotId::parse("/lun/a/b").expect("an id"));
        for source in [None, Some(volume), Some(snapshot)] {
            for description in ["", "ns-name", "csi-source: none"] {
                let text = noted(description, source.as_ref());
                assert_eq!(Origin::read(&text), Origin::Known(source.clone()), "{text}");
            }
        }
        for text in ["", "mine", "csi-source: ", "csi-source: other x"] {
            assert_eq!(Origin::read(text), Origin::Unknown, "{text}");
        }
    }
}
