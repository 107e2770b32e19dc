//! The effect of streams on the pool: snapshots in pieces, of which the last one completes a
//! dataset.

use std::fmt::Write as _;

use driver_core::{Error, Kind};

use super::{Cut, Held, MemoryPool};
use crate::backend::Incoming;
use crate::name::{Since, SnapshotRef};
use crate::observed::{Guid, VolumeKind};
use crate::testing::RecordWriter;

/// The size of a block of a zvol.
const BLOCK: u64 = 16 << 10;
/// The number of pieces of a snapshot.
const PIECES: u64 = 4;

/// One piece of a snapshot.
#[derive(Debug, Clone)]
pub(in crate::testing) struct Piece {
    kind: VolumeKind,
    cut: Cut,
    number: u64,
}

/// Text as a readable number: a token contains neither `@` nor `/`.
fn hex(text: &str) -> String {
    let mut digits = String::new();
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The part of a token that identifies its snapshot.
pub(super) fn mark(cut: &Cut, name: &SnapshotRef) -> String {
    hex(&format!("{} {name}", cut.guid))
}

// === impl Piece ===

impl Piece {
    /// As bytes, which do not contain the content.
    pub(in crate::testing) fn text(&self) -> String {
        format!("piece {} of {}", self.number, self.cut.guid)
    }

    /// Whether this text is of this snapshot.
    pub(in crate::testing) fn is(&self, text: &str) -> bool {
        self.text() == text
    }
}

// === impl Held ===

impl Held {
    /// The position to resume from.
    pub(super) fn token(&self) -> Option<String> {
        let (snapshot, pieces) = self.arrived.as_ref().filter(|_| self.receiving)?;
        Some(format!("1-{snapshot}-{pieces}"))
    }
}

// === impl MemoryPool ===

impl MemoryPool {
    /// The pieces of a snapshot, from the position of a token.
    pub(in crate::testing) fn pieces(
        &self,
        from: &SnapshotRef,
        token: Option<&str>,
    ) -> Result<Vec<Piece>, Error> {
        let missing = |why: &str| Error::not_found(format!("send {from}")).because(why.to_owned());
        let cut = self
            .snapshots
            .get(from)
            .ok_or_else(|| missing("it is gone"))?;
        let held = self.datasets.get(&from.dataset);
        let kind = held.ok_or_else(|| missing("it is gone"))?.kind;
        let first = match token {
            None => 0,
            Some(token) => {
                let of = format!("1-{}-", mark(cut, from));
                let number = token.strip_prefix(&of).and_then(|n| n.parse::<u64>().ok());
                number.ok_or_else(|| missing("it is another one"))?
            }
        };
        let piece = |number| Piece {
            kind,
            cut: cut.clone(),
            number,
        };
        Ok((first..PIECES).map(piece).collect())
    }

    /// The records of a snapshot, or of what differs from an older one. Its content is one block, which is another one
    /// after each write.
    pub(in crate::testing) fn records(
        &self,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Vec<u8>, Error> {
        let find = |since: &Since| {
            let found = match since {
                Since::Snapshot(name) => self.snapshots.get(name),
                Since::Mark(name) => self.marks.get(name),
            };
            found.ok_or_else(|| Error::not_found(format!("send {since}")).because("it is gone"))
        };
        let cut = find(&Since::Snapshot(of.clone()))?;
        let base = since.map(find).transpose()?;
        let writer = RecordWriter::new(Guid(cut.guid), base.map(|base| Guid(base.guid)));
        if base.is_some_and(|base| base.content == cut.content) {
            return Ok(writer.end());
        }
        let writer = writer.object(BLOCK).write(0, BLOCK, 100);
        Ok(writer.end())
    }

    /// Starts a stream, or resumes the existing part.
    pub(in crate::testing) fn begin_receive(
        &mut self,
        incoming: &Incoming,
        piece: &Piece,
        sent: &SnapshotRef,
    ) -> Result<(), Error> {
        let to = &incoming.to.dataset;
        let refused =
            |kind, why: &str| Error::new(kind, format!("receive {to}")).because(why.to_owned());
        let token = mark(&piece.cut, sent);
        match self.datasets.get(to) {
            None if incoming.goes_on => return Err(refused(Kind::NotFound, "it is gone")),
            None => {}
            Some(held) => {
                let fits = held.arrived == Some((token.clone(), piece.number));
                if !incoming.goes_on || !fits {
                    return Err(refused(Kind::Conflict, "it exists"));
                }
                return Ok(());
            }
        }
        let parent = to.parent();
        if piece.number > 0 || parent.is_none_or(|parent| !self.datasets.contains_key(&parent)) {
            return Err(refused(
                Kind::NotFound,
                "there is nothing to receive it into",
            ));
        }
        self.insert(to, piece.kind, &incoming.properties, None);
        if let Some(held) = self.datasets.get_mut(to) {
            (held.receiving, held.mounted) = (true, false);
            held.arrived = Some((token, 0));
        }
        Ok(())
    }

    /// Adds a piece; the last one completes the dataset and its snapshot.
    pub(in crate::testing) fn receive_piece(&mut self, incoming: &Incoming, piece: &Piece) {
        let to = &incoming.to.dataset;
        let Some(held) = self.datasets.get_mut(to) else {
            return;
        };
        if let Some((_, pieces)) = &mut held.arrived {
            *pieces = piece.number + 1;
        }
        if piece.number + 1 < PIECES {
            return;
        }
        held.receiving = false;
        held.arrived = None;
        held.fill(&piece.cut);
        self.insert_snapshot(&incoming.to, &[]);
        if let Some(cut) = self.snapshots.get_mut(&incoming.to) {
            cut.guid = piece.cut.guid;
        }
    }
}
