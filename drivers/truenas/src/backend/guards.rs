//! Guards: whether what a plan is made from is still there.
//!
//! What its verb looked at just before is not looked at again. The NAS destroys nothing on a condition, so a dataset
//! that takes the place of another one right before a destruction is destroyed: no look can rule that out. It can only
//! be recent, however long the NAS took for what came between.

use std::time::{Duration, Instant};

use driver_core::{Call, Error, Kind};
use driver_zfs::name::Object;
use driver_zfs::observed::{Query, State};
use driver_zfs::property::PropertyName;
use driver_zfs::step::{Failed, Guard, Next, Still};

use super::Api;
use super::pool_rows::PoolRows;
use super::reads::Reads;
use crate::Dialect;

/// So long after a look a plan may begin, and something be destroyed, without another one. The calls of a verb follow
/// each other within it; to destroy something and to make another one of its name takes others about as long.
const FRESH: Duration = Duration::from_secs(5);

fn query_of(guard: &Guard) -> Query {
    match &guard.object {
        Object::Dataset(name) => Query::Dataset(name.clone()),
        Object::Snapshot(name) => Query::Snapshot(name.clone()),
    }
}

/// Whether a guard holds in what was looked at.
fn holds(state: &State, guard: &Guard) -> bool {
    let (guid, properties) = match &guard.object {
        Object::Dataset(name) => match state.dataset(name) {
            Some(dataset) => (dataset.guid, &dataset.properties),
            None => return false,
        },
        Object::Snapshot(name) => match state.snapshot(name) {
            Some(snapshot) => (snapshot.guid, &snapshot.properties),
            None => return false,
        },
    };
    match &guard.still {
        Still::Itself(expected) => guid == *expected,
        Still::Has(name, text) => properties.own(name) == text.as_deref(),
    }
}

impl Api {
    /// Whether guards hold, by a look that began at `looked`, or by another one if that is older than [`FRESH`]. Answers
    /// since when that is known. A property is always looked at again.
    pub(super) async fn check(
        &self,
        call: &Call,
        dialect: &Dialect,
        guards: &[Guard],
        looked: Option<Instant>,
    ) -> Result<Instant, Failed> {
        let now = Instant::now();
        let recent = looked.filter(|looked| now.duration_since(*looked) < FRESH);
        let is_unknown = |guard: &&Guard| recent.is_none() || matches!(guard.still, Still::Has(..));
        let unknown: Vec<&Guard> = guards.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(recent.unwrap_or(now));
        }
        let names = unknown.iter().filter_map(|guard| match &guard.still {
            Still::Has(name, _) => Some(name.clone()),
            Still::Itself(_) => None,
        });
        let names: Vec<PropertyName> = names.collect();
        let queries: Vec<Query> = unknown.iter().map(|guard| query_of(guard)).collect();
        let wanted = Reads::of(&queries, &names, false);
        let nothing = PoolRows::default();
        let rows = self.nas.pool_rows(call, dialect, &wanted, &nothing);
        let rows = rows.await.map_err(Failed::terminal)?;
        let state = rows.state(&queries).map_err(Failed::terminal)?;
        match unknown.into_iter().find(|guard| !holds(&state, guard)) {
            None => Ok(recent.unwrap_or(now)),
            Some(guard) => Err(Failed {
                next: Next::Observe,
                error: Error::new(Kind::Busy, format!("find that {guard}")),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_core::BackendIdentity;
    use driver_core::config::{Document, NoEnvironment};
    use driver_zfs::name::DatasetName;
    use driver_zfs::observed::Guid;
    use serde_json::json;
    use truenas_sim::{Generation, Options, Simulator};

    use super::*;
    use crate::backend::Nas;
    use crate::config;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_look_counts_for_a_while_and_never_for_a_property() {
        let nas = Simulator::start(Options::new(Generation::V25_10)).await;
        let nas = nas.expect("an appliance");
        let made = nas.call("pool.dataset.create", vec![json!({"name": "tank/v"})]);
        made.await.unwrap_or_else(|failure| panic!("{failure:?}"));
        let text = format!(
            "driver: truenas-api-nfs
httpConnection: {{protocol: https, host: 127.0.0.1, port: {}, username: root, apiKey: {}, \
             apiKeyLogin: plain, allowInsecure: true}}
",
            nas.https().port(),
            nas.api_key(),
        );
        let document = Document::parse(&text, &NoEnvironment).expect("a document");
        let connection = config::connection(&document).expect("a connection");
        let client = Nas::new(connection).expect("a NAS");
        let api = Api::new(client, BackendIdentity("test".to_owned()));
        let call = Call::within(Duration::from_mins(1));
        let dialect = api.dialect(&call).await.expect("a release");
        let another = || Still::Itself(Guid(u64::MAX));
        let marked =
            |text: Option<&str>| Still::Has(PropertyName::MANAGED, text.map(str::to_owned));
        let now = Instant::now();
        let old = now.checked_sub(FRESH).expect("a time");
        for (still, looked, outcome) in [
            (another(), Some(now), Ok(())),
            (another(), Some(old), Err(Next::Observe)),
            (another(), None, Err(Next::Observe)),
            (marked(Some("true")), Some(now), Err(Next::Observe)),
            (marked(None), Some(now), Ok(())),
        ] {
            let object = DatasetName::parse("tank/v").expect("a name").into();
            let guard = Guard { object, still };
            let what = format!("{guard:?}, {looked:?} of {now:?}");
            let checked = api.check(&call, &dialect, &[guard], looked).await;
            let checked = checked.map(drop).map_err(|failed| failed.next);
            assert_eq!(checked, outcome, "{what}");
        }
    }
}
