//! One list over several connections, in pages that every client can receive.
//!
//! Clients reject messages above 4 MiB and sidecars never raise that limit, so a reply stays below
//! a fourth of it. Connections are sorted by name alone, so that a page continues where the last
//! one ended even if connections were added or removed in between. A connection that cannot be
//! listed is left out and reported at the end: an incomplete list never ends with success.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Capabilities, Error, Kind, Page, PageRequest, PageToken};
use futures_util::future::join_all;
use node_utils::blocking::is_for_want_of_a_thread;
use node_utils::memory;
use prost::Message;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::csi::encode;
use crate::message;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, LazyConnection};
use crate::routing::folder::States;
use crate::rpc::Task;

/// The largest reply, in bytes.
const MAX_REPLY: usize = 1 << 20;
/// The most entries of a page: what fits into a reply when the entries are of ordinary size.
const MAX_ENTRIES: usize = 2_000;
/// What so many entries were made of is worth giving back.
const MANY_ENTRIES: usize = 500;
/// The number of connections that are asked at once. They answer in milliseconds, and a hundred connections in a second
/// or two.
const AT_ONCE: usize = 8;
/// A page that took this long ends, though more connections are to come: sidecars give up after 10 s.
const PAGE: Duration = Duration::from_secs(2);
/// How long a connection may take that did not answer when its health was last asked for.
const FOR_SILENT_ONES: Duration = Duration::from_secs(2);
/// The longest time of a page.
const WHOLE: Duration = Duration::from_millis(9_500);

/// A page of a list, as it is sent.
#[derive(Debug)]
pub(super) struct Listed<E> {
    pub(super) entries: Vec<E>,
    pub(super) next_token: String,
}

/// Where a list over several connections continues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Place {
    /// The first that could not be listed, if one could not.
    failed: Option<Code>,
    /// The connection, and its own token; `None` at the end.
    at: Option<(Code, Option<PageToken>)>,
}

/// The code for the name of a connection in a token; connections are sorted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Code(u64);

/// The listed objects, and how it is encoded.
pub(super) trait Listing: Send + Sync {
    /// The answer of a driver.
    type Found: Send;
    /// The encoded entry.
    type Entry: Message;

    /// Whether a driver can list. The volumes of other drivers were made by hand and are unknown.
    fn has(&self, can: &Capabilities) -> bool;

    /// Asks one connection.
    fn ask(
        &self,
        task: &Task,
        connection: &Connection,
        page: &PageRequest,
    ) -> impl Future<Output = Result<Page<Self::Found>, Error>> + Send;

    /// Encodes one of its entries.
    fn entry(&self, connection: &Connection, found: &Self::Found) -> Self::Entry;
}

/// Lists one connection: its tokens are those of the driver, and its failure is that of the list.
pub(super) async fn of_one<L: Listing>(
    task: &Task,
    connection: &Connection,
    page: PageRequest,
    what: &L,
) -> Result<Listed<L::Entry>, Error> {
    let mut sizes = Sizes::new(page);
    loop {
        let found = what.ask(task, connection, &sizes.page).await?;
        let entries = found
            .entries
            .iter()
            .map(|found| what.entry(connection, found));
        let entries: Vec<_> = entries.collect();
        if sizes.fits(entries.len(), bytes(&entries)) {
            let next_token = encode::next_token(&found)?;
            drop(found);
            if entries.len() >= MANY_ENTRIES {
                memory::trim();
            }
            return Ok(Listed {
                entries,
                next_token,
            });
        }
    }
}

/// One of several connections, in its place in the order.
#[derive(Debug)]
struct Stop {
    code: Code,
    lazy: Arc<LazyConnection>,
}

/// Why a connection is missing in a list.
#[derive(Debug)]
enum Missing {
    /// Its driver rejects the token to continue from.
    Token(Error),
    /// It could not be asked, or failed.
    Silent,
}

/// Lists several connections in the order of their codes, some of them at the same time.
pub(super) async fn of_all<L: Listing>(
    task: &Task,
    connections: Vec<Arc<LazyConnection>>,
    page: PageRequest,
    what: &L,
    states: &States,
) -> Result<Listed<L::Entry>, Error> {
    let place = page.after.map(|token| Place::read(&token)).transpose()?;
    let mut place = place.unwrap_or_else(Place::start);
    let mut stops: Vec<Stop> = connections.into_iter().map(Stop::new).collect();
    stops.sort_by_key(|stop| stop.code);
    let Some((first, inner)) = place.at.take() else {
        return Err(incomplete(&stops, place.failed));
    };
    let mut gathered = Gathered {
        entries: Vec::new(),
        bytes: 0,
        max: page.max.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES),
    };
    let rest: Vec<&Stop> = stops.iter().filter(|stop| stop.code >= first).collect();
    // Several at once, so that their waiting does not add up. A full page must know whether it is the last,
    // and asks one more for that.
    let (mut next, began) = (0, Instant::now());
    while next < rest.len() && place.at.is_none() {
        // Those that do not answer used up the time of the others, which come on the next page.
        if next > 0 && began.elapsed() >= PAGE {
            place.at = Some((rest[next].code, None));
            break;
        }
        let left = gathered.left();
        let many = AT_ONCE.min(left.max(1));
        let asked = rest.iter().skip(next).take(many).map(|stop| {
            let page = PageRequest {
                // A full page must know whether it is the last.
                max: Some(left.max(1)),
                after: inner.clone().filter(|_| stop.code == first),
            };
            let was_silent = states.is_bad(stop.lazy.name());
            stop.list(task, page, what, time_for(began.elapsed(), was_silent))
        });
        next += many;
        for (code, listed) in join_all(asked).await {
            let continued = inner.clone().filter(|_| code == first);
            match listed {
                Ok(None) => {}
                Ok(Some(listed)) => {
                    place.at = gathered.take(code, continued, listed);
                }
                // A mistake of the caller: no other connection would accept its token either.
                Err(Missing::Token(error)) => return Err(error),
                Err(Missing::Silent) => place.failed = place.failed.or(Some(code)),
            }
            if place.at.is_some() {
                break;
            }
        }
    }
    if gathered.entries.is_empty() && place.at.is_none() && place.failed.is_some() {
        return Err(incomplete(&stops, place.failed));
    }
    let next_token = place.write()?;
    Ok(Listed {
        entries: gathered.entries,
        next_token,
    })
}

/// An incomplete page of several connections.
struct Gathered<E> {
    entries: Vec<E>,
    bytes: usize,
    max: usize,
}

impl<E: Message> Gathered<E> {
    fn left(&self) -> usize {
        self.max.saturating_sub(self.entries.len())
    }

    /// Adds the entries of one connection if they all fit; returns where the next page begins if
    /// this one is full.
    fn take(
        &mut self,
        code: Code,
        continued: Option<PageToken>,
        listed: Listed<E>,
    ) -> Option<(Code, Option<PageToken>)> {
        let more = bytes(&listed.entries);
        let full = listed.entries.len() > self.left() || self.bytes + more > MAX_REPLY;
        if full && !self.entries.is_empty() {
            return Some((code, continued));
        }
        self.bytes += more;
        self.entries.extend(listed.entries);
        let token = Some(listed.next_token).filter(|token| !token.is_empty())?;
        Some((code, Some(PageToken(token))))
    }
}

/// The end of an incomplete list.
fn incomplete(stops: &[Stop], failed: Option<Code>) -> Error {
    let missing = stops.iter().find(|stop| Some(stop.code) == failed);
    let missing = missing.filter(|stop| stop.lazy.name().is_named());
    let name = missing.map_or_else(
        || "the content of an unreadable folder".to_owned(),
        |stop| format!("connection `{}`", stop.lazy.name()),
    );
    Error::new(Kind::Unreachable, "end the list")
        .because(format!(
            "{name} could not be listed: its entries are missing here"
        ))
        .advise("the log says why; list again when it can be reached")
}

// === impl Stop ===

impl Stop {
    fn new(lazy: Arc<LazyConnection>) -> Self {
        Self {
            code: Code::of(lazy.name()),
            lazy,
        }
    }

    async fn list<L: Listing>(
        &self,
        task: &Task,
        page: PageRequest,
        what: &L,
        limit: Duration,
    ) -> (Code, Result<Option<Listed<L::Entry>>, Missing>) {
        let goes_on = page.after.is_some();
        // A missing driver or thread is no rejection of the token.
        let is_token = |error: &Error| {
            goes_on && error.kind() == Kind::Pending && !is_for_want_of_a_thread(error)
        };
        let asked = async {
            let connection = self.lazy.look().await?;
            if !what.has(&connection.can()) {
                return Ok(None);
            }
            of_one(task, &connection, page, what).await.map(Some)
        };
        let listed = timeout(limit, asked).await;
        let listed = listed.unwrap_or_else(|_| Err(silent("list", limit)));
        let listed = match listed {
            Err(error) if is_token(&error) => return (self.code, Err(Missing::Token(error))),
            listed => listed,
        };
        let listed = listed.map_err(|error| {
            let error = message::of(&error);
            warn!(connection = %self.lazy.name(), error, "a connection is missing in a list");
            Missing::Silent
        });
        (self.code, listed)
    }
}

/// How long a connection may take on a page that takes this long already.
pub(super) fn time_for(elapsed: Duration, was_silent: bool) -> Duration {
    let left = WHOLE.saturating_sub(elapsed);
    if was_silent {
        left.min(FOR_SILENT_ONES)
    } else {
        left
    }
}

/// No answer in time.
pub(super) fn silent(doing: &str, limit: Duration) -> Error {
    Error::new(Kind::Timeout, doing).because(format!("no answer within {limit:?}"))
}

fn bytes<E: Message>(entries: &[E]) -> usize {
    // Each entry has a tag and a length before it.
    entries.iter().map(|entry| entry.encoded_len() + 6).sum()
}

// === impl Code ===

impl Code {
    /// FNV-1a, reduced to 48 bits to keep tokens short.
    fn of(name: &ConnectionName) -> Self {
        let hash = name
            .text()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Self((hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
    }

    fn read(digits: &str) -> Option<Self> {
        let fine = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
        fine.then(|| u64::from_str_radix(digits, 16).ok().map(Self))
            .flatten()
    }
}

/// Digits of a code.
const DIGITS: usize = 12;
/// Marks the first connection that is missing.
const FAILED: char = '!';

// === impl Place ===

impl Place {
    fn start() -> Self {
        Self {
            failed: None,
            at: Some((Code(0), None)),
        }
    }

    fn read(token: &PageToken) -> Result<Self, Error> {
        let foreign = || {
            Error::new(Kind::Pending, "request field `starting_token`")
                .because("the token is not of this list")
                .advise("list again from the beginning")
        };
        let mut rest = token.0.as_str();
        let mut failed = None;
        if let Some(marked) = rest.strip_prefix(FAILED) {
            let (code, after) = marked.split_at_checked(DIGITS).ok_or_else(foreign)?;
            failed = Some(Code::read(code).ok_or_else(foreign)?);
            rest = after;
        }
        if rest.is_empty() && failed.is_some() {
            return Ok(Self { failed, at: None });
        }
        let (code, inner) = rest.split_once('/').ok_or_else(foreign)?;
        let code = Code::read(code).ok_or_else(foreign)?;
        let inner = (!inner.is_empty()).then(|| PageToken(inner.to_owned()));
        Ok(Self {
            failed,
            at: Some((code, inner)),
        })
    }

    fn write(&self) -> Result<String, Error> {
        let failed = self.failed.map(|code| format!("{FAILED}{:012x}", code.0));
        let at = self.at.as_ref().map(|(code, inner)| {
            let inner = inner.as_ref().map_or("", |token| token.0.as_str());
            format!("{:012x}/{inner}", code.0)
        });
        let text = failed.unwrap_or_default() + &at.unwrap_or_default();
        let next = (!text.is_empty()).then_some(PageToken(text));
        encode::next_token(&Page::<()> {
            entries: Vec::new(),
            next,
        })
    }
}

/// Finds a page size whose reply is small enough.
#[derive(Debug)]
struct Sizes {
    page: PageRequest,
}

// === impl Sizes ===

impl Sizes {
    fn new(mut page: PageRequest) -> Self {
        page.max = Some(page.max.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES));
        Self { page }
    }

    /// Whether a reply can be sent; if not, the next request is for a smaller page. A single entry
    /// is always sent: it cannot be split.
    fn fits(&mut self, entries: usize, bytes: usize) -> bool {
        if bytes <= MAX_REPLY || entries <= 1 {
            return true;
        }
        // A little less than what would fit if all entries were alike.
        let proportional = entries * (MAX_REPLY / 1024) / (bytes / 1024 + 1);
        self.page.max = Some(proportional.clamp(1, entries - 1));
        false
    }
}

#[cfg(test)]
mod tests;
