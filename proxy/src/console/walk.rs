//! Pages of lists over all connections, one connection after the other.
//!
//! A page is asked of the storage when it is asked for, in the pages of the driver, and nothing of it is kept: ten
//! thousand volumes cost no memory. A search reads on until its page is full or its time is over, and then says where
//! to go on. A connection that does not answer in its time is named, and stops no other.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Call, Capabilities, Error, Kind, Page, PageRequest, PageToken};
use node_utils::memory;
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::query::Query;
use super::{Console, Refusal};
use crate::message;
use crate::routing::connection::Connection;
use crate::routing::connections::LazyConnection;

/// The time of a page. A person waits for it.
const PAGE: Duration = Duration::from_secs(8);
/// The time of one connection.
const ONE: Duration = Duration::from_secs(5);
/// The same for one that could not be used when it was last probed.
const SILENT: Duration = Duration::from_secs(2);
/// Rows of a page, unless others are asked for, and at most.
const ROWS: usize = 50;
const MOST_ROWS: usize = 200;
/// So many are asked for at once while a word is searched for: what drivers give at most.
const SEARCHED: usize = 2_000;

/// A list that drivers have.
pub(super) trait Listing: Send + Sync {
    /// The answer of a driver.
    type Found: Send;
    /// The part of it that is shown.
    type Row: Serialize + Send;

    /// Whether a driver has it.
    fn has(&self, can: &Capabilities) -> bool;

    /// Asks a driver for a page.
    fn ask(
        &self,
        connection: &Connection,
        call: &Call,
        page: &PageRequest,
    ) -> impl Future<Output = Result<Page<Self::Found>, Error>> + Send;

    /// The row, if the word to look for is in it.
    fn row(
        &self,
        connection: &Connection,
        found: Self::Found,
        search: Option<&str>,
    ) -> Option<Self::Row>;
}

/// One page.
#[derive(Debug, Serialize)]
pub(super) struct Walked<R> {
    rows: Vec<R>,
    /// The place to go on; none at the end.
    next: Option<String>,
    /// The number of those that were looked at.
    looked_at: usize,
    /// Connections that could not be asked.
    silent: Vec<Silent>,
    /// Connections whose drivers have no such list.
    unsupported: Vec<String>,
}

/// A connection that could not be asked.
#[derive(Debug, Serialize)]
pub(super) struct Silent {
    pub(super) connection: String,
    pub(super) error: String,
}

/// The state of a walk over the connections.
struct Walk<'a, L: Listing> {
    what: &'a L,
    search: Option<String>,
    limit: usize,
    until: Instant,
    walked: Walked<L::Row>,
}

// === impl Console ===

impl Console {
    /// One page of a list.
    pub(super) async fn walk<L: Listing>(
        &self,
        what: &L,
        query: &Query<'_>,
    ) -> Result<Walked<L::Row>, Refusal> {
        let (from, mut token) = match query.text("after").map(|after| after.split_once('/')) {
            None => ("", None),
            Some(None) => return Err(Refusal::bad("`after` is not of this list")),
            Some(Some((name, ""))) => (name, None),
            Some(Some((name, token))) => (name, Some(PageToken(token.to_owned()))),
        };
        let only = query.text("connection");
        let mut walk = Walk {
            what,
            search: query.search(),
            limit: query.limit(ROWS, MOST_ROWS),
            until: Instant::now() + PAGE,
            walked: Walked {
                rows: Vec::new(),
                next: None,
                looked_at: 0,
                silent: Vec::new(),
                unsupported: Vec::new(),
            },
        };
        for lazy in self.plugin.connections.all() {
            let name: &str = lazy.name().text();
            if name < from || only.is_some_and(|only| only != name) {
                continue;
            }
            if lazy.kind().is_some() && !what.has(lazy.can()) {
                walk.walked.unsupported.push(name.to_owned());
                continue;
            }
            let after = token.take().filter(|_| name == from);
            if walk.is_over() {
                walk.walked.next = Some(format!("{name}/"));
                break;
            }
            let was_silent = self.plugin.states.is_bad(lazy.name());
            walk.connection(&lazy, after, was_silent).await;
            if walk.walked.next.is_some() {
                break;
            }
        }
        if walk.walked.looked_at >= ROWS {
            memory::trim();
        }
        Ok(walk.walked)
    }
}

// === impl Walk ===

impl<L: Listing> Walk<'_, L> {
    fn is_over(&self) -> bool {
        self.walked.rows.len() >= self.limit || Instant::now() >= self.until
    }

    /// The pages of one connection, as far as there is room and time.
    async fn connection(
        &mut self,
        lazy: &Arc<LazyConnection>,
        mut after: Option<PageToken>,
        was_silent: bool,
    ) {
        let name = lazy.name().text().clone();
        let patience = if was_silent { SILENT } else { ONE };
        loop {
            let most = match self.search {
                Some(_) => SEARCHED,
                None => self.limit - self.walked.rows.len(),
            };
            let asked = self.page(lazy, after.clone(), most, patience).await;
            let rows = match asked {
                Ok((rows, looked_at, next)) => {
                    self.walked.looked_at += looked_at;
                    after = next;
                    rows
                }
                Err(error) => {
                    self.walked.silent.push(Silent {
                        connection: name.to_string(),
                        error: message::of(&error),
                    });
                    return;
                }
            };
            self.walked.rows.extend(rows);
            let Some(next) = &after else { return };
            if self.is_over() {
                self.walked.next = Some(format!("{name}/{}", next.0));
                return;
            }
        }
    }

    /// The rows of one page of a driver that have the word, how many were looked at, and where the next begins.
    async fn page(
        &self,
        lazy: &Arc<LazyConnection>,
        after: Option<PageToken>,
        most: usize,
        patience: Duration,
    ) -> Result<(Vec<L::Row>, usize, Option<PageToken>), Error> {
        let page = PageRequest {
            max: Some(most),
            after: after.clone(),
        };
        let found = asked(lazy, patience, async |connection, call| {
            self.what.ask(connection, call, &page).await
        });
        let (connection, found) = found.await?;
        let (looked_at, room) = (found.entries.len(), self.limit - self.walked.rows.len());
        let (mut rows, mut last) = (Vec::new(), 0);
        for (place, one) in found.entries.into_iter().enumerate() {
            if let Some(row) = self.what.row(&connection, one, self.search.as_deref()) {
                if rows.len() == room {
                    // The driver says where a page goes on that ends with the last row that has room.
                    let shorter = Box::pin(self.page(lazy, after, last + 1, patience));
                    return shorter.await;
                }
                rows.push(row);
                last = place;
            }
        }
        Ok((rows, looked_at, found.next))
    }
}

/// Asks a connection, within a time for all of it: its driver may have to be built.
pub(super) async fn asked<T>(
    lazy: &Arc<LazyConnection>,
    patience: Duration,
    ask: impl AsyncFnOnce(&Connection, &Call) -> Result<T, Error>,
) -> Result<(Arc<Connection>, T), Error> {
    let asked = async {
        let connection = lazy.look().await?;
        let answer = connection.ask_within(patience, "ask its storage", async |call| {
            ask(&connection, call).await
        });
        let answer = answer.await?;
        Ok((connection, answer))
    };
    timeout(patience, asked)
        .await
        .unwrap_or_else(|_| Err(late(patience)))
}

/// The error of a storage that was waited for so long.
pub(super) fn late(patience: Duration) -> Error {
    let error = Error::new(Kind::Timeout, "ask its storage");
    error.because(format!("it did not answer within {patience:?}"))
}
