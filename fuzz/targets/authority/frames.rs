//! An independent reader of one direction of an HTTP/2 connection, without limits or repairs.

use h2_authority::hpack::{Decoder, Field};

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// The largest frame that may be sent without SETTINGS.
const MAX_FRAME: usize = 16 * 1024;
const HEAD: usize = 9;

/// The events of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A frame that carries no headers, as it came.
    Frame(Vec<u8>),
    /// A header block.
    Block {
        stream: u32,
        end_stream: bool,
        priority: Vec<u8>,
        fields: Vec<Field>,
    },
}

/// All events up to the end, or to the first error.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) events: Vec<Event>,
    /// Whether it is valid to the end.
    pub(crate) is_sound: bool,
}

/// An incomplete header block.
struct Open {
    flags: u8,
    stream: u32,
    priority: Vec<u8>,
    fragment: Vec<u8>,
}

impl Event {
    /// The same event with a valid authority.
    pub(crate) fn repaired(&self) -> Self {
        match self {
            Self::Frame(bytes) => Self::Frame(bytes.clone()),
            Self::Block {
                stream,
                end_stream,
                priority,
                fields,
            } => {
                let mut fields = fields.clone();
                for field in fields
                    .iter_mut()
                    .filter(|field| field.name == b":authority")
                {
                    field.value = b"localhost".to_vec();
                }
                Self::Block {
                    stream: *stream,
                    end_stream: *end_stream,
                    priority: priority.clone(),
                    fields,
                }
            }
        }
    }
}

impl Reading {
    /// Reads the frames after a preface. `stateless`: each block must be independent of earlier
    /// ones.
    pub(crate) fn of(bytes: &[u8], stateless: bool) -> Self {
        let mut reading = Self {
            events: Vec::new(),
            is_sound: true,
        };
        reading.is_sound = reading.frames(bytes, stateless).is_some();
        reading
    }

    pub(crate) fn first_block(&self) -> Option<&Event> {
        let is_block = |event: &&Event| matches!(event, Event::Block { .. });
        self.events.iter().find(is_block)
    }

    fn frames(&mut self, bytes: &[u8], stateless: bool) -> Option<()> {
        let mut rest = bytes;
        let mut decoder = Decoder::new(1 << 20);
        let mut open: Option<Open> = None;
        while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
            let &[l0, l1, l2, kind, flags, stream @ ..] = head;
            let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
            let stream = u32::from_be_bytes(stream);
            if length > MAX_FRAME {
                return None;
            }
            let Some((payload, after)) = after.split_at_checked(length) else {
                break;
            };
            let mut block = match (open.take(), kind) {
                (Some(mut open), CONTINUATION) if open.stream == stream => {
                    open.fragment.extend_from_slice(payload);
                    open
                }
                (Some(_), _) => return None,
                (None, HEADERS) => opened(flags, stream, payload)?,
                (None, _) => {
                    self.events
                        .push(Event::Frame(rest[..HEAD + length].to_vec()));
                    rest = after;
                    continue;
                }
            };
            rest = after;
            if flags & END_HEADERS == 0 {
                open = Some(block);
                continue;
            }
            if stateless {
                decoder = Decoder::new(1 << 20);
            }
            self.events.push(Event::Block {
                stream,
                end_stream: block.flags & END_STREAM != 0,
                priority: std::mem::take(&mut block.priority),
                fields: decoder.decode(&block.fragment).ok()?,
            });
        }
        Some(())
    }
}

fn opened(flags: u8, stream: u32, payload: &[u8]) -> Option<Open> {
    let (mut padding, mut rest, mut priority) = (0, payload, Vec::new());
    if flags & PADDED != 0 {
        let (&length, after) = rest.split_first()?;
        (padding, rest) = (usize::from(length), after);
    }
    if flags & PRIORITY != 0 {
        let (bytes, after) = rest.split_at_checked(5)?;
        (priority, rest) = (bytes.to_vec(), after);
    }
    Some(Open {
        flags,
        stream,
        priority,
        fragment: rest[..rest.len().checked_sub(padding)?].to_vec(),
    })
}
