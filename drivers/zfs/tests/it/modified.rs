//! Properties that classes set: at the creation of a volume, and afterwards.

use std::collections::BTreeMap;

use driver_core::{
    CreateVolume, Driver as _, Effect, Error, Kind, Modifier as _, ModifyVolume, Parameters,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};

use crate::orphans::call;
use crate::short::*;
use crate::world::*;

pub(crate) fn allowing(kind: VolumeKind, zfs: &str) -> MemoryDriver {
    let settings = settings(kind, zfs).unwrap();
    ZfsDriver::new(settings, MemoryHost::new(), MemoryExport::new(kind))
}

fn pairs(all: &[(&str, &str)]) -> Parameters {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Parameters::new(all.iter().map(pair).collect())
}

pub(crate) fn of_class(id: u8, source: &From, copy: bool, class: &[(&str, &str)]) -> CreateVolume {
    let mut request = request(id, source, copy);
    let own = request.parameters.raw().clone().into_iter();
    let class = pairs(class).raw().clone();
    request.parameters = Parameters::new(own.chain(class).collect());
    request
}

pub(crate) async fn modify(
    driver: &MemoryDriver,
    id: u8,
    class: &[(&str, &str)],
) -> Result<(), Error> {
    let (id, parameters) = (volume(id), pairs(class));
    driver
        .modify_volume(&call(), ModifyVolume::new(&id, &parameters))
        .await
}

/// The own properties of a volume.
pub(crate) fn own(driver: &MemoryDriver, id: u8) -> BTreeMap<String, String> {
    let things = driver.backend().state().pool.things();
    let own = &things[&dataset(id).into()].own;
    own.iter()
        .map(|(name, text)| (name.to_string(), text.clone()))
        .collect()
}

pub(crate) fn is(error: &Error, kind: Kind, words: &str) {
    assert_eq!(error.kind(), kind, "{}", error.chain());
    let text = format!("{}; {}", error.chain(), error.advice().unwrap_or_default());
    assert!(text.contains(words), "{words} is not in: {text}");
}

#[tokio::test]
async fn a_class_comes_before_the_configuration_for_new_volumes_clones_and_copies() {
    let zfs = "  datasetProperties: {compression: lz4, recordsize: 16K}\n  \
               volumeParameters: [compression, recordsize]\n";
    let driver = allowing(VolumeKind::Filesystem, zfs);
    let class = [("compression", "zstd-9"), ("recordsize", "1M")];
    let requests = [
        of_class(0, &From::Nothing, false, &class),
        of_class(1, &From::Volume(0), false, &class),
        of_class(2, &From::Volume(0), true, &class),
    ];
    for (id, request) in (0..).zip(&requests) {
        driver.create_volume(&call(), request).await.unwrap();
        let own = own(&driver, id);
        assert_eq!(own["compression"], "zstd-9", "{id}");
        assert_eq!(own["recordsize"], "1048576", "{id}");
    }
    well(&driver, &[create(3, From::Nothing)]).await;
    assert_eq!(own(&driver, 3)["compression"], "lz4");
    assert_eq!(own(&driver, 3)["recordsize"], "16K");
}

#[tokio::test]
async fn a_class_sets_the_blocks_of_a_zvol_and_nobody_changes_them_later() {
    let driver = allowing(
        VolumeKind::Zvol,
        "  volumeParameters: [volblocksize, sync]\n",
    );
    let class = [("volblocksize", "64K"), ("sync", "always")];
    let request = of_class(0, &From::Nothing, false, &class);
    for _ in 0..2 {
        driver.create_volume(&call(), &request).await.unwrap();
    }
    {
        let state = driver.backend().state();
        let things = state.pool.things();
        assert_eq!(
            things[&dataset(0).into()].own[&PropertyName::SYNC],
            "always"
        );
        let facts = state
            .pool
            .show(&[driver_zfs::observed::Query::Dataset(dataset(0))], &[]);
        let facts = &facts.dataset(&dataset(0)).unwrap().properties;
        assert_eq!(facts.number(&PropertyName::VOLBLOCKSIZE), Some(64 << 10));
    }
    assert_eq!(driver.mutable_keys(), ["sync"]);
    let error = modify(&driver, 0, &[("sync", "disabled"), ("volblocksize", "64K")]).await;
    is(
        &error.unwrap_err(),
        Kind::Invalid,
        "zfs.volumeParameters allows sync",
    );
    assert_eq!(own(&driver, 0)["sync"], "always");
}

#[tokio::test]
async fn what_a_class_may_not_set_is_refused_by_name_before_there_is_anything() {
    for (kind, key) in [
        (VolumeKind::Filesystem, "recordsize"),
        (VolumeKind::Zvol, "volblocksize"),
    ] {
        let zfs = format!("  volumeParameters: [{key}]\n");
        let driver = allowing(kind, &zfs);
        for (class, words) in [
            (("sync", "always"), format!("allows {key}")),
            ((key, "3K"), "powers of two".to_owned()),
        ] {
            let request = of_class(0, &From::Nothing, false, &[class]);
            let error = driver.create_volume(&call(), &request).await.unwrap_err();
            is(&error, Kind::Invalid, &words);
        }
        assert!(
            !driver
                .backend()
                .state()
                .pool
                .things()
                .contains_key(&dataset(0).into())
        );
    }
}

#[tokio::test]
async fn without_a_list_a_class_sets_nothing_but_what_templates_read() {
    let zfs = "  datasetProperties: {compression: '{{parameters.compression}}'}\n";
    let driver = allowing(VolumeKind::Filesystem, zfs);
    let class = [("compression", "gzip"), ("recordsize", "junk")];
    let request = of_class(0, &From::Nothing, false, &class);
    driver.create_volume(&call(), &request).await.unwrap();
    assert_eq!(own(&driver, 0)["compression"], "gzip");
    assert_eq!(own(&driver, 0).get("recordsize"), None);
    assert!(driver.modifier().is_none());
    assert!(driver.class_keys().is_empty());
}

#[tokio::test]
async fn all_changes_are_one_command_and_none_if_there_is_nothing_to_change() {
    let driver = allowing(
        VolumeKind::Filesystem,
        "  volumeParameters: [atime, sync, compression]\n",
    );
    well(&driver, &[create(0, From::Nothing)]).await;
    let class = [
        ("atime", "off"),
        ("sync", "always"),
        ("compression", "gzip-6"),
    ];
    for (exchanges, steps) in [(2, 3), (1, 0)] {
        let before = driver.backend().state().clone();
        modify(&driver, 0, &class).await.unwrap();
        let after = driver.backend().state().clone();
        assert_eq!(after.exchanges - before.exchanges, exchanges);
        assert_eq!(after.steps - before.steps, steps);
    }
    let own = own(&driver, 0);
    assert_eq!(
        (own["atime"].as_str(), own["compression"].as_str()),
        ("off", "gzip")
    );
}

#[tokio::test]
async fn what_zfs_set_beside_a_property_that_it_refused_is_taken_back() {
    for kind in KINDS {
        let driver = allowing(kind, "  volumeParameters: [compression, logbias, sync]\n");
        well(&driver, &[create(0, From::Nothing)]).await;
        modify(&driver, 0, &[("sync", "always")]).await.unwrap();
        driver.backend().state().pool.refuse_property = Some(PropertyName::COMPRESSION);
        let class = [
            ("compression", "zstd"),
            ("logbias", "throughput"),
            ("sync", "disabled"),
        ];
        let error = modify(&driver, 0, &class).await.unwrap_err();
        is(&error, Kind::Invalid, "upgraded");
        assert_eq!(error.effect(), Effect::None, "{kind}");
        let own = own(&driver, 0);
        assert_eq!(own["sync"], "always", "{kind}");
        assert_eq!(own.get("logbias"), None, "{kind}");
        assert_eq!(own.get("compression"), None, "{kind}");
    }
}

#[tokio::test]
async fn an_attempt_that_was_interrupted_gets_what_its_class_says_now() {
    let zfs = "  volumeParameters: [compression]\n";
    for parts in 1.. {
        let driver = allowing(VolumeKind::Filesystem, zfs);
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps + parts);
        let first = of_class(0, &From::Nothing, false, &[("compression", "lz4")]);
        let made = driver.create_volume(&call(), &first).await;
        driver.backend().state().cut_after = None;
        if made.is_ok() {
            assert!(parts > 2, "it is made in one step");
            break;
        }
        let things = driver.backend().state().pool.things();
        let found = things.get(&dataset(0).into());
        let whole = found.is_some_and(|it| it.own.contains_key(&PropertyName::CONTEXT));
        let second = of_class(0, &From::Nothing, false, &[("compression", "zstd")]);
        let again = driver.create_volume(&call(), &second).await;
        if whole {
            is(&again.unwrap_err(), Kind::Conflict, "compression=zstd");
        } else {
            again.unwrap();
            assert_eq!(own(&driver, 0)["compression"], "zstd", "{parts}");
        }
    }
}

#[tokio::test]
async fn a_change_that_is_killed_anywhere_is_completed_by_the_next_process() {
    let zfs = "  volumeParameters: [compression, logbias, sync]\n";
    let class = [
        ("compression", "zstd"),
        ("logbias", "throughput"),
        ("sync", "always"),
    ];
    for kind in KINDS {
        let driver = allowing(kind, zfs);
        well(&driver, &[create(0, From::Nothing)]).await;
        let before = own(&driver, 0);
        modify(&driver, 0, &class).await.unwrap();
        let whole = own(&driver, 0);
        for parts in 0.. {
            let driver = allowing(kind, zfs);
            well(&driver, &[create(0, From::Nothing)]).await;
            let steps = driver.backend().state().steps;
            driver.backend().state().cut_after = Some(steps + parts);
            let modified = modify(&driver, 0, &class).await;
            driver.backend().state().cut_after = None;
            // Each property is as it was, or as its class says, and nothing else was changed.
            for (name, text) in own(&driver, 0) {
                let wanted = [before.get(&name), whole.get(&name)];
                assert!(wanted.contains(&Some(&text)), "{kind} {parts}: {name}");
            }
            let host = MemoryHost::from_state(driver.backend().state().clone());
            let settings = settings(kind, zfs).unwrap();
            let driver = ZfsDriver::new(settings, host, MemoryExport::new(kind));
            modify(&driver, 0, &class).await.unwrap();
            assert_eq!(own(&driver, 0), whole, "{kind} {parts}");
            let steps = driver.backend().state().steps;
            modify(&driver, 0, &class).await.unwrap();
            assert_eq!(driver.backend().state().steps, steps, "{kind} {parts}");
            if modified.is_ok() {
                assert!(parts > class.len(), "it is done in one step");
                break;
            }
        }
    }
}
