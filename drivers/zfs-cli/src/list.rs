//! One page of a list: the host filters, sorts and limits, so that only the page crosses the wire.
//!
//! The order is by creation, by transaction and GUID: neither changes while an object exists, even
//! if it is renamed.

use driver_core::{Error, Kind};
use exec::{Accept, Command, Output};

use super::COMMAND;
use super::query::properties;
use super::rows::{Rows, Scope, Whole};
use super::tools::{ZfsTools, of_the_pool};
use driver_zfs::backend::{Cursor, Entry, ListFilter, ListQuery, Listed};
use driver_zfs::id;

/// The largest output of a page: all properties of ten thousand volumes.
const OUTPUT: usize = 32 << 20;

/// The command of one page.
pub(super) fn command(tools: &ZfsTools, query: &ListQuery) -> Command {
    let after = query.after.map(key).unwrap_or_default();
    let max = query.max.to_string();
    let fixed = [
        max,
        after,
        id::HELPER.to_owned(),
        properties(&query.properties),
    ];
    let mut command = Command::function(LIST).args(fixed);
    for scope in &query.scopes {
        let (kinds, depth) = match (scope.kind, &scope.filter) {
            // Its content is one level below it.
            (_, ListFilter::Empty(_)) => ("filesystem,volume,snapshot", scope.depth + 1),
            (Some(kind), _) => (kind.word(), scope.depth),
            // A snapshot is one level below its dataset.
            (None, _) => ("snapshot", scope.depth + 1),
        };
        // What an object must have of its own, and what it must not have. Each query shows both.
        let (rule, having, lacking) = match &scope.filter {
            ListFilter::Having(having) => ("own", having.as_str(), "-"),
            ListFilter::Empty(having) => ("empty", having.as_str(), "-"),
            ListFilter::Lacking(having, lacking) => ("own", having.as_str(), lacking.as_str()),
            ListFilter::Helpers => ("helper", "-", "-"),
        };
        let (depth, parent) = (depth.to_string(), scope.parent.as_str());
        command = command.args([rule, having, lacking, parent, &*depth, kinds]);
    }
    command
        .arg("--")
        .args(tools.words())
        .accepting(Accept::Codes(vec![1]))
        .with_output_cap(OUTPUT)
        .within(COMMAND)
}

/// See `script/list.sh`. The words are the length of the page, where it starts, the mark of helper
/// snapshots and the properties; then six for each scope; then `--` and the words that begin a
/// command of `zfs`.
const LIST: &str = concat!(
    "not_imported() {\n",
    of_the_pool!(),
    "}\n",
    include_str!("script/list.sh")
);

fn key(place: Cursor) -> String {
    format!("{:>20}/{:>20}", place.createtxg, place.guid)
}

/// The entries of a page, in order. An unreadable one is left out: it must not hide all others.
pub(super) fn listed(query: &ListQuery, output: &Output) -> Result<Listed, Error> {
    let text = output.text();
    let mut rows = Rows::default();
    let parents = query.scopes.iter().map(|scope| scope.parent.as_str());
    let scope = Scope::of(parents).with_all_below();
    // The end of the page is in the last line, after a tab.
    let text = text.trim_end_matches('\n');
    let end = text
        .strip_prefix('\t')
        .map(|place| ("", place))
        .filter(|(_, place)| !place.contains('\n'))
        .or_else(|| text.rsplit_once("\n\t"));
    let Some((before, place)) = end else {
        return Err(Error::new(Kind::Internal, "list datasets").because("the answer has no end"));
    };
    rows.add(before, &scope);
    let next = (!place.is_empty()).then(|| place_of(place)).transpose()?;
    let (objects, strange) = rows.into_objects();
    for error in strange {
        tracing::warn!("left out of a list: {}", error.chain());
    }
    let mut entries: Vec<Entry> = objects
        .into_iter()
        .map(|object| match object {
            Whole::Dataset(dataset) => Entry::Dataset(dataset),
            Whole::Snapshot(snapshot) => Entry::Snapshot(snapshot),
        })
        .collect();
    entries.sort_by_key(Entry::cursor);
    entries.truncate(query.max);
    Ok(Listed { entries, next })
}

fn place_of(text: &str) -> Result<Cursor, Error> {
    let number = |text: &str| text.parse().ok();
    let place = text
        .trim_end()
        .split_once('/')
        .and_then(|(createtxg, guid)| {
            Some(Cursor {
                createtxg: number(createtxg)?,
                guid: number(guid)?,
            })
        });
    place.ok_or_else(|| {
        Error::new(Kind::Internal, "list datasets")
            .because(format!("{text:?} is not a position in a list"))
    })
}
