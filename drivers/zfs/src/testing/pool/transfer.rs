//! The effect of streams on the pool: snapshots in pieces, of which the last one completes a
//! dataset.

use csi_types::hex;
use driver_core::{Error, Kind};

use super::{Cut, Held, MemoryPool};
use crate::backend::{Base, Incoming};
use crate::name::{DatasetName, Since, SnapshotRef};
use crate::observed::{Guid, VolumeKind};
use crate::step::{Failed, Next};
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
    /// The snapshot that its stream starts from.
    since: Option<u64>,
    number: u64,
}

/// The part of a token that identifies its snapshot. A token contains neither `@` nor `/`.
pub(super) fn mark(cut: &Cut, name: &SnapshotRef) -> String {
    hex(format!("{} {name}", cut.guid).as_bytes())
}

/// The part of a token that identifies its stream.
fn stream_mark(cut: &Cut, name: &SnapshotRef, since: Option<u64>) -> String {
    let since = since.map_or_else(String::new, |since| format!("s{since}"));
    format!("{}{since}", mark(cut, name))
}

// === impl Piece ===

impl Piece {
    /// As bytes, which do not contain the content.
    pub(in crate::testing) fn text(&self) -> String {
        let since = self.since.unwrap_or_default();
        format!("piece {} of {} since {since}", self.number, self.cut.guid)
    }

    /// The part of a token that identifies its stream.
    fn mark(&self, sent: &SnapshotRef) -> String {
        stream_mark(&self.cut, sent, self.since)
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
        let part = self.arrived.as_ref().filter(|_| self.receiving);
        let part = part.map(|part| (&part.0, part.1));
        let beside = self.beside.as_ref().map(|part| (&part.1, part.2));
        let (stream, pieces) = part.or(beside)?;
        Some(format!("1-{stream}-{pieces}"))
    }
}

// === impl MemoryPool ===

impl MemoryPool {
    /// The pieces of a snapshot, or of what differs from an older one, from the position of a token.
    pub(in crate::testing) fn pieces(
        &self,
        from: &SnapshotRef,
        since: Option<&Base>,
        token: Option<&str>,
    ) -> Result<Vec<Piece>, Error> {
        let missing = |why: &str| Error::not_found(format!("send {from}")).because(why.to_owned());
        let cut = self
            .snapshots
            .get(from)
            .ok_or_else(|| missing("it is gone"))?;
        let held = self.datasets.get(&from.dataset);
        let kind = held.ok_or_else(|| missing("it is gone"))?.kind;
        if let Some(base) = since {
            let found = self.snapshots.get(&base.name);
            found
                .filter(|found| found.guid == base.guid.0)
                .ok_or_else(|| missing("what it starts from is gone"))?;
        }
        let since = since.map(|base| base.guid.0);
        let first = match token {
            None => 0,
            Some(token) => {
                let of = format!("1-{}-", stream_mark(cut, from, since));
                let number = token.strip_prefix(&of).and_then(|n| n.parse::<u64>().ok());
                number.ok_or_else(|| missing("it is another one"))?
            }
        };
        let piece = |number| Piece {
            kind,
            cut: cut.clone(),
            since,
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
    ) -> Result<(), Failed> {
        let to = &incoming.to.dataset;
        let failed = |next, kind, why: &str| {
            let error = Error::new(kind, format!("receive {to}")).because(why.to_owned());
            Failed { next, error }
        };
        let refused = |kind, why: &str| failed(Next::Observe, kind, why);
        let token = piece.mark(sent);
        if let Some(since) = piece.since {
            let added = self.begin_beside(incoming, since, token, piece.number);
            return added.map_err(|(next, kind, why)| failed(next, kind, why));
        }
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

    /// Starts a stream of what differs, or resumes its part.
    fn begin_beside(
        &mut self,
        incoming: &Incoming,
        since: u64,
        stream: String,
        number: u64,
    ) -> Result<(), (Next, Kind, &'static str)> {
        let to = &incoming.to.dataset;
        let bases = self.snapshots_of(to).find(|cut| cut.guid == since);
        let base = bases.map(|cut| cut.content);
        let taken = self.snapshots.contains_key(&incoming.to);
        let Some(held) = self.datasets.get_mut(to).filter(|held| !held.receiving) else {
            let why = "there is nothing to receive it into";
            return Err((Next::Observe, Kind::NotFound, why));
        };
        if let Some(part) = &held.beside {
            let fits = *part == (since, stream, number);
            return if fits {
                Ok(())
            } else {
                let why = "it contains partially-complete state";
                Err((Next::Tell, Kind::Busy, why))
            };
        }
        let changed = |why| Err((Next::Tell, Kind::Conflict, why));
        match base {
            _ if taken => Err((Next::Observe, Kind::Conflict, "its snapshot exists")),
            None => changed("no snapshot matches the incremental source"),
            Some(content) if content != held.content => changed("it has been modified"),
            Some(_) if number > 0 => Err((Next::Observe, Kind::NotFound, "there is no part")),
            Some(_) => {
                held.beside = Some((since, stream, 0));
                Ok(())
            }
        }
    }

    fn snapshots_of<'a>(&'a self, name: &'a DatasetName) -> impl Iterator<Item = &'a Cut> {
        let all = self.snapshots.iter();
        all.filter(move |(snapshot, _)| snapshot.dataset == *name)
            .map(|(_, cut)| cut)
    }

    /// Adds a piece; the last one completes the dataset and its snapshot.
    pub(in crate::testing) fn receive_piece(&mut self, incoming: &Incoming, piece: &Piece) {
        let to = &incoming.to.dataset;
        let Some(held) = self.datasets.get_mut(to) else {
            return;
        };
        if let Some((_, _, pieces)) = &mut held.beside {
            *pieces = piece.number + 1;
        }
        if let Some((_, pieces)) = &mut held.arrived {
            *pieces = piece.number + 1;
        }
        if piece.number + 1 < PIECES {
            return;
        }
        held.receiving = false;
        (held.arrived, held.beside) = (None, None);
        held.fill(&piece.cut);
        self.insert_snapshot(&incoming.to, &[]);
        if let Some(cut) = self.snapshots.get_mut(&incoming.to) {
            cut.guid = piece.cut.guid;
        }
    }
}
