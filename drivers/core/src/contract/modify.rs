//! Changes of volumes that exist. Whether a volume has a value is seen by creating it again: another value is a conflict.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use super::{Fresh, Mutable, call, expect, expect_kind};
use crate::call::Call;
use crate::error::{Effect, Error, Kind};
use crate::parameters::Parameters;
use crate::request::ModifyVolume;
use crate::text::VolumeId;
use crate::volume::Volume;

/// The parameters that can be changed, if any can.
fn mutable(fresh: &Fresh) -> Option<Mutable> {
    let modifier = fresh.driver.modifier()?;
    let keys = modifier.mutable_keys();
    let mutable = fresh
        .mutable
        .expect("the suite knows values of this driver");
    for (key, _) in mutable.good.iter().chain([&(mutable.bad.0, [""; 2])]) {
        assert!(keys.contains(key), "{key} is not among {keys:?}");
    }
    Some(mutable)
}

/// All good parameters with their first or their second value.
fn all(mutable: Mutable, which: usize) -> BTreeMap<String, String> {
    let one = |(key, values): &(&str, [&str; 2])| ((*key).to_owned(), values[which].to_owned());
    mutable.good.iter().map(one).collect()
}

async fn try_modify(
    fresh: &Fresh,
    call: &Call,
    id: &VolumeId,
    parameters: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let parameters = Parameters::new(parameters.clone());
    let request = ModifyVolume::new(id, &parameters);
    fresh.driver.modify_volume(call, request).await
}

async fn try_create(
    fresh: &Fresh,
    name: &str,
    parameters: &BTreeMap<String, String>,
) -> Result<Volume, Error> {
    let mut request = fresh.request(name, None);
    request.parameters = Parameters::new(parameters.clone());
    fresh.driver.create_volume(&call(), &request).await
}

/// Whether a volume that exists has these values.
async fn has(fresh: &Fresh, name: &str, parameters: &BTreeMap<String, String>) -> bool {
    match try_create(fresh, name, parameters).await {
        Ok(_) => true,
        Err(error) if error.kind() == Kind::Conflict => false,
        Err(error) => panic!("create {name} again: {}", error.chain()),
    }
}

pub(super) async fn volumes_are_changed_as_asked_or_not_at_all(fresh: &Fresh) {
    let volume = fresh.create("contract-changed").await;
    let Some(mutable) = mutable(fresh) else {
        let outcome = try_modify(fresh, &call(), &volume.id, &BTreeMap::new()).await;
        expect_kind("modify", outcome, &[Kind::Unsupported]);
        return;
    };
    let [first, second] = [0, 1].map(|which| all(mutable, which));
    for round in 0..2 {
        let call = call();
        let changed = try_modify(fresh, &call, &volume.id, &first).await;
        expect("modify", changed);
        let is_told = call.effect() == Effect::Possible;
        assert!(round > 0 || is_told, "a change was not reported");
        assert!(has(fresh, "contract-changed", &first).await);
    }
    // One parameter of several leaves the others as they are.
    let (key, values) = mutable.good[0];
    let one = BTreeMap::from([(key.to_owned(), values[1].to_owned())]);
    expect("modify", try_modify(fresh, &call(), &volume.id, &one).await);
    let mut mixed = first.clone();
    mixed.extend(one);
    assert!(has(fresh, "contract-changed", &mixed).await);
    expect(
        "modify",
        try_modify(fresh, &call(), &volume.id, &first).await,
    );

    let (key, value) = mutable.bad;
    let mut wrong = second.clone();
    wrong.insert(key.to_owned(), value.to_owned());
    let refused = call();
    let outcome = try_modify(fresh, &refused, &volume.id, &wrong).await;
    expect_kind("modify to what cannot be", outcome, &[Kind::Invalid]);
    assert_eq!(refused.effect(), Effect::None);
    assert!(
        has(fresh, "contract-changed", &first).await,
        "it changed something"
    );
    expect(
        "nothing to change",
        try_modify(fresh, &call(), &volume.id, &BTreeMap::new()).await,
    );

    let missing = fresh.id("contract-missing");
    let outcome = try_modify(fresh, &call(), &missing, &first).await;
    expect_kind("modify nothing", outcome, &[Kind::NotFound]);
    for id in ["..", "a/b", "-rf", "$(a)", "a@b"] {
        let id = VolumeId::parse(id).expect("an id");
        let outcome = try_modify(fresh, &call(), &id, &first).await;
        expect_kind(
            "modify what is not ours",
            outcome,
            &[Kind::Invalid, Kind::NotFound],
        );
    }
    fresh.delete(&volume.id).await;
    let outcome = try_modify(fresh, &call(), &volume.id, &first).await;
    expect_kind("modify what is deleted", outcome, &[Kind::NotFound]);
}

pub(super) async fn parameters_count_at_creation(fresh: &Fresh) {
    let Some(mutable) = mutable(fresh) else {
        return;
    };
    let [first, second] = [0, 1].map(|which| all(mutable, which));
    let name = "contract-made";
    let volume = expect("create", try_create(fresh, name, &first).await);
    assert_eq!(
        expect("create again", try_create(fresh, name, &first).await),
        volume
    );
    let other = try_create(fresh, name, &second).await;
    expect_kind("create with other values", other, &[Kind::Conflict]);
    assert!(has(fresh, name, &first).await, "a conflict changes nothing");
    let (key, value) = mutable.bad;
    let wrong = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let outcome = try_create(fresh, "contract-wrong", &wrong).await;
    expect_kind("create with what cannot be", outcome, &[Kind::Invalid]);
    assert!(!fresh.exists(&fresh.id("contract-wrong")).await);
}

pub(super) async fn changes_at_once_end_with_one_of_them(fresh: &Fresh) {
    let Some(mutable) = mutable(fresh) else {
        return;
    };
    let both = [0, 1].map(|which| all(mutable, which));
    let volume = fresh.create("contract-race").await;
    let callers = (0..fresh.callers)
        .map(async |n| try_modify(fresh, &call(), &volume.id, &both[n % 2]).await);
    for outcome in join_all(callers).await {
        if let Err(error) = outcome {
            let kinds = [Kind::Pending, Kind::Busy, Kind::Internal];
            assert!(kinds.contains(&error.kind()), "{}", error.chain());
        }
    }
    expect(
        "modify",
        try_modify(fresh, &call(), &volume.id, &both[0]).await,
    );
    assert!(has(fresh, "contract-race", &both[0]).await);
}

/// Only for storage that a test can disconnect.
pub(super) async fn a_change_that_is_cut_is_completed_by_a_retry(fresh: &Fresh) {
    let (Some(mutable), Some(cut)) = (mutable(fresh), &fresh.cut) else {
        return;
    };
    let both = [0, 1].map(|which| all(mutable, which));
    let volume = fresh.create("contract-cut").await;
    for parts in 0.. {
        let wanted = &both[parts % 2];
        let call = call();
        cut(Some(parts));
        let changed = try_modify(fresh, &call, &volume.id, wanted).await;
        cut(None);
        if let Err(error) = &changed {
            assert_eq!(error.effect(), call.effect(), "{}", error.chain());
        }
        let is_done = changed.is_ok();
        expect("modify", try_modify(fresh, &call, &volume.id, wanted).await);
        assert!(has(fresh, "contract-cut", wanted).await);
        if is_done {
            assert!(parts > 0, "it does nothing");
            return;
        }
    }
}
