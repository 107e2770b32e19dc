//! Options of shares by class: at the creation of a volume, and afterwards.

use std::collections::BTreeMap;

use driver_core::{Driver as _, Exports as _, Kind, Modifier as _};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::parameter::{ClassProperties, ShareChoices};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};

use crate::modified::{is, modify, of_class, own};
use crate::orphans::call;
use crate::short::*;
use crate::world::*;

const READ_ONLY: (&str, &str) = ("shareOptions", "readonly");
const OFFICE: (&str, &str) = ("shareOptions", "office");

fn options(choice: (&str, &str)) -> &'static str {
    if choice == READ_ONLY {
        "ro=@10.0.0.0/8"
    } else {
        "rw=@10.1.0.0/16"
    }
}

/// A driver whose classes may choose one of two.
fn offering() -> MemoryDriver {
    let mut choices = ShareChoices::default();
    for choice in [READ_ONLY, OFFICE] {
        let value = PropertyValue::parse(options(choice)).unwrap();
        let option = Property::new(PropertyName::SHARENFS, value);
        choices.add(choice.1, vec![option]).unwrap();
    }
    allowing(&choices)
}

fn allowing(choices: &ShareChoices) -> MemoryDriver {
    let kind = VolumeKind::Filesystem;
    let names = ["compression", "shareOptions"].map(str::to_owned);
    let mut settings = settings(kind, "").unwrap();
    settings.policy.class = ClassProperties::allow(&names, kind, choices, &[]).unwrap();
    ZfsDriver::new(settings, MemoryHost::new(), MemoryExport::new(kind))
}

/// The choice of a volume, and its options.
fn chosen(driver: &MemoryDriver, id: u8) -> [Option<String>; 2] {
    let own: BTreeMap<String, String> = own(driver, id);
    [PropertyName::SHARE_OPTIONS, PropertyName::SHARENFS]
        .map(|name| own.get(name.as_str()).cloned())
}

fn with(choice: (&str, &str)) -> [Option<String>; 2] {
    [choice.1, options(choice)].map(|text| Some(text.to_owned()))
}

#[tokio::test]
async fn a_share_has_the_options_of_its_class_from_its_first_moment_on() {
    let driver = offering();
    well(&driver, &[create(0, From::Nothing)]).await;
    assert_eq!(chosen(&driver, 0), [None, None]);
    let mut id = 0;
    for (class, other) in [(READ_ONLY, OFFICE), (OFFICE, READ_ONLY)] {
        for (source, copy) in WAYS {
            id += 1;
            let request = of_class(id, &source, copy, &[class]);
            for _ in 0..2 {
                driver.create_volume(&call(), &request).await.unwrap();
                assert_eq!(chosen(&driver, id), with(class));
            }
            let request = of_class(id, &source, copy, &[other]);
            let error = driver.create_volume(&call(), &request).await.unwrap_err();
            is(&error, Kind::Conflict, &format!("shareOptions={}", other.1));
            assert_eq!(chosen(&driver, id), with(class));
        }
    }
}

#[tokio::test]
async fn the_options_of_a_share_are_changed_to_what_the_connection_offers_and_to_nothing_else() {
    let driver = offering();
    assert_eq!(driver.mutable_keys(), ["compression", "shareOptions"]);
    well(&driver, &[create(0, From::Nothing)]).await;
    for choice in [READ_ONLY, OFFICE] {
        modify(&driver, 0, &[choice]).await.unwrap();
        assert_eq!(chosen(&driver, 0), with(choice));
        let before = driver.backend().state().steps;
        modify(&driver, 0, &[choice]).await.unwrap();
        assert_eq!(driver.backend().state().steps, before);
    }
    for value in ["rw=*", "", "none", "readonly office"] {
        let class = [("shareOptions", value), ("compression", "lz4")];
        let error = modify(&driver, 0, &class).await.unwrap_err();
        is(&error, Kind::Invalid, "it can be office, readonly");
        let request = of_class(1, &From::Nothing, false, &class);
        let error = driver.create_volume(&call(), &request).await.unwrap_err();
        is(&error, Kind::Invalid, "it can be office, readonly");
    }
    assert_eq!(chosen(&driver, 0), with(OFFICE));
    assert!(!own(&driver, 0).contains_key("compression"));
}

#[tokio::test]
async fn a_choice_that_the_export_makes_is_recorded_last_wherever_a_call_is_cut() {
    let mut choices = ShareChoices::default();
    choices.add(OFFICE.1, Vec::new()).unwrap();
    let class = [("compression", "zstd"), OFFICE];
    for parts in 1.. {
        let driver = allowing(&choices);
        well(&driver, &[create(1, From::Nothing)]).await;
        driver.backend().state().targets.targets.remove("v1");
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps + parts);
        let modified = modify(&driver, 1, &class).await;
        driver.backend().state().cut_after = None;
        let is_exported = driver.is_exported(&call(), &volume(1)).await.unwrap();
        let [record, _] = chosen(&driver, 1);
        assert!(is_exported || record.is_none(), "{parts}");
        modify(&driver, 1, &class).await.unwrap();
        let [record, _] = chosen(&driver, 1);
        assert_eq!(record.as_deref(), Some(OFFICE.1), "{parts}");
        assert_eq!(own(&driver, 1)["compression"], "zstd", "{parts}");
        if modified.is_ok() {
            assert!(parts > 2, "it is done in one step");
            break;
        }
    }
}

#[tokio::test]
async fn options_beside_a_property_that_zfs_refused_are_taken_back() {
    let driver = offering();
    let request = of_class(0, &From::Nothing, false, &[READ_ONLY]);
    driver.create_volume(&call(), &request).await.unwrap();
    well(&driver, &[create(1, From::Nothing)]).await;
    driver.backend().state().pool.refuse_property = Some(PropertyName::COMPRESSION);
    for (id, before) in [(0, with(READ_ONLY)), (1, [None, None])] {
        let class = [("compression", "zstd"), OFFICE];
        let error = modify(&driver, id, &class).await.unwrap_err();
        is(&error, Kind::Invalid, "upgraded");
        assert_eq!(chosen(&driver, id), before);
    }
}

#[tokio::test]
async fn an_attempt_that_was_interrupted_gets_the_options_that_its_class_says_now() {
    for parts in 1.. {
        let driver = offering();
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps + parts);
        let first = of_class(0, &From::Nothing, false, &[READ_ONLY]);
        let made = driver.create_volume(&call(), &first).await;
        driver.backend().state().cut_after = None;
        if made.is_ok() {
            assert!(parts > 1, "it is made in one step");
            break;
        }
        let things = driver.backend().state().pool.things();
        let found = things.get(&dataset(0).into());
        let whole = found.is_some_and(|it| it.own.contains_key(&PropertyName::CONTEXT));
        let second = of_class(0, &From::Nothing, false, &[OFFICE]);
        let again = driver.create_volume(&call(), &second).await;
        if whole {
            is(&again.unwrap_err(), Kind::Conflict, "shareOptions=office");
        } else {
            again.unwrap();
            assert_eq!(chosen(&driver, 0), with(OFFICE), "{parts}");
        }
    }
}
