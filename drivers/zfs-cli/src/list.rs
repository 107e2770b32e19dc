//! One page of a list: the host filters, sorts and limits, so that only the page crosses the wire.
//!
//! The order is by creation, by transaction and GUID: neither changes while an object exists, even
//! if it is renamed.

use driver_core::{Error, Kind};
use exec::{Accept, Command, Output, Variable};

use super::COMMAND;
use super::query::properties;
use super::rows::{Rows, Scope, Whole};
use super::tools::{ZfsTools, of_the_pool, script};
use driver_zfs::backend::{Cursor, Entry, ListFilter, ListQuery, Listed};
use driver_zfs::id;
use driver_zfs::property::PropertyName;

const AFTER: Variable = Variable::constant("after");
const HELPER: Variable = Variable::constant("helper");

/// The largest output of a page: all properties of ten thousand volumes.
const OUTPUT: usize = 64 << 20;

/// The command of one page.
pub(super) fn command(tools: &ZfsTools, query: &ListQuery) -> Command {
    let after = query.after.map(key).unwrap_or_default();
    let mut command = script(LIST, [query.max.to_string(), properties(&[])]);
    for scope in &query.scopes {
        let (kinds, depth) = match (scope.kind, &scope.filter) {
            // Its content is one level below it.
            (_, ListFilter::Empty(_)) => ("filesystem,volume,snapshot", scope.depth + 1),
            (Some(kind), _) => (kind.word(), scope.depth),
            // A snapshot is one level below its dataset.
            (None, _) => ("snapshot", scope.depth + 1),
        };
        // The condition of the last property, and the property to check before it.
        let (rule, properties) = match &scope.filter {
            ListFilter::Having(having) => ("own", having.to_string()),
            ListFilter::Empty(having) => ("empty", having.to_string()),
            ListFilter::Lacking(having, lacking) => ("lacking", format!("{lacking},{having}")),
            ListFilter::Helpers => ("helper", PropertyName::TYPE.to_string()),
        };
        let depth = depth.to_string();
        let words = [&depth, kinds, rule, &properties, scope.parent.as_str()];
        command = command.args(words);
    }
    command
        .arg("--")
        .args(tools.words())
        .env(AFTER, after)
        .env(HELPER, id::HELPER)
        .accepting(Accept::Codes(vec![1]))
        .with_output_cap(OUTPUT)
        .within(COMMAND)
}

/// `$1` is the length of the page, `$2` the properties of what is on it; then for each scope its
/// depth, its kinds, its rule, the properties that are asked for and its parent; then `--` and the
/// words that begin a command of `zfs`.
///
/// The first command prints a few rows for each object; awk makes one line of them if the last row
/// matches the rule. The rule is announced by a line that begins with a tab, as no row does. The
/// content of an object comes after it, so whether it is empty is known at the end. `HostPaths` are
/// compared as text of one width: numbers of ZFS are longer than awk counts. The second awk prints
/// where the page ends if it is not the last one: the objects of a page may be gone when they are
/// read, so counting is not enough. Each part prints its exit status: a pipe only reports its last
/// part, and a killed process prints nothing. So no part may end before the one before it.
const LIST: &str = concat!(
    "\
max=$1; wanted=$2; shift 2; exec 4>&1
scopes=0; for word; do [ \"$word\" = -- ] && break; scopes=$((scopes + 1)); done
places() {
left=$scopes
while [ $left -gt 0 ]; do
depth=$1; kinds=$2; rule=$3; asked=$4; parent=$5; shift 5; left=$((left - 5))
one $left \"$@\"; echo $? >&3
done
}
one() {
shift $(($1 + 2)); printf '\\t%s\\n' \"$rule\"
\"$@\" get -Hp -d \"$depth\" -t \"$kinds\" -o name,property,value,source \"createtxg,guid,$asked\" \"$parent\" 3>&-
code=$?; [ $code -eq 1 ] || return $code
said=$(\"$@\" get -H -o name type \"${parent%%/*}\" 2>&1 >/dev/null 3>&-) && return 1
",
    of_the_pool!(),
    "\
return 4
}
those() {
LC_ALL=C awk -F '\\t' '
function put(name, place) {
if ((place \"\") > (ENVIRON[\"after\"] \"\")) print place \"\\t\" name
}
NF == 2 && $1 == \"\" { rule = $2; next }
$2 == \"createtxg\" {
txg = $3; asked = 0
if (rule == \"empty\") { above = $1; if (sub(/[\\/@][^\\/@]*$/, \"\", above)) full[above] = 1 }
next
}
$2 == \"guid\" { guid = $3; place = sprintf(\"%20s/%20s\", txg, guid); next }
{ own = ($4 == \"local\" || $4 == \"received\") }
rule == \"helper\" { if (index($1, \"@\" ENVIRON[\"helper\"])) put($1, place); next }
rule == \"lacking\" && !asked { asked = own ? 1 : 2; next }
rule == \"lacking\" && asked == 1 { next }
rule == \"empty\" { if (own) held[$1] = place; next }
own { put($1, place) }
END { for (name in held) if (!(name in full)) put(name, held[name]) }'
}
on_page() {
awk -F '\\t' -v max=\"$max\" '
NR <= max { print $2; last = $1 }
END { gsub(/ /, \"\", last); print (NR > max ? \"next=\" last : \"next=\") | \"cat 1>&3\" }'
}
page() {
shift $((scopes + 1))
tr '\\n' '\\0' | xargs -0 -r -- \"$@\" get -Hp -o name,property,value,source \"$wanted\" 3>&-
}
ended=$( { places \"$@\" |
{ those && echo . >&3; } |
{ LC_ALL=C sort && echo . >&3; } |
{ on_page && echo . >&3; } |
{ page \"$@\" >&4; echo $? >&3; }; } 3>&1 )
parts=0; worst=0; next=
for word in $ended; do
parts=$((parts + 1))
case $word in
.) ;;
next=*) next=${word#next=} ;;
*) [ $word -ne 123 ] || word=1; [ $word -le $worst ] || worst=$word ;;
esac; done
[ $parts -eq $((scopes / 5 + 5)) ] || exit 3
[ -z \"$next\" ] || printf '\\t%s\\n' \"$next\"
exit $worst"
);

fn key(place: Cursor) -> String {
    format!("{:>20}/{:>20}", place.createtxg, place.guid)
}

/// The entries of a page, in order. An unreadable one is left out: it must not hide all others.
pub(super) fn listed(query: &ListQuery, output: &Output) -> Result<Listed, Error> {
    let text = output.text();
    let (mut rows, mut next) = (Rows::default(), None);
    let parents = query.scopes.iter().map(|scope| scope.parent.as_str());
    let scope = Scope::of(parents).with_all_below();
    // The end of the page follows a tab, which no row begins with.
    match text
        .rsplit_once("\n\t")
        .or(text.split_once('\t').filter(|(a, _)| a.is_empty()))
    {
        Some((before, place)) => {
            rows.add(before, &scope);
            next = Some(place_of(place)?);
        }
        None => rows.add(&text, &scope),
    }
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
