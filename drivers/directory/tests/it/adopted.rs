//! A directory that others made becomes a volume with a size and a claim, and its content stays as it is.

use std::os::unix::fs::MetadataExt;

use driver_core::{
    AdoptVolume, Adopter as _, AdoptionState, Claim, DeleteVolume, Driver, ExpandVolume,
    Expander as _, Kind, Lister as _, MadeFor, ObjectName, PageRequest, SizeRange,
};

use crate::common::{Place, call, cannot, id, request, tree};

const SIZE: u64 = 64 << 20;

fn of(source: &str, size: Option<u64>) -> AdoptVolume {
    AdoptVolume {
        source: source.to_owned(),
        size,
        made_for: MadeFor {
            claim: Claim::parse("shop/data"),
            persistent_volume: ObjectName::parse("data-of-then"),
        },
    }
}

/// A place with a directory of others where a volume would be.
async fn place() -> Place {
    let place = Place::with("  dirPermissionsMode: \"0777\"\n");
    // The base is in use.
    place.volume("pvc-1").await;
    let photos = place.base().join("v/photos");
    std::fs::create_dir(&photos).expect("folder");
    std::fs::write(photos.join("one"), "1").expect("file");
    place
}

#[tokio::test]
async fn an_adopted_directory_is_a_volume_and_its_content_is_as_it_was() {
    if !rustix::process::geteuid().is_root() {
        cannot("the claim of a directory is believed where root alone writes it");
        return;
    }
    let place = place().await;
    let photos = place.base().join("v/photos");
    let look = || (tree(&photos), photos.metadata().expect("look").mode());
    let before = look();
    let absolute = photos.display().to_string();
    let asked = of(&absolute, Some(SIZE));
    let driver = &place.driver;
    let plan = driver.plan_adoption(&call(), &asked).await.expect("a plan");
    assert_eq!((plan.id, plan.state), (id("photos"), AdoptionState::Open));
    let page = PageRequest::default();
    let listed = driver.list_volumes(&call(), &page).await.expect("a list");
    assert_eq!(listed.entries[0].capacity, None, "nothing was done");
    let made = driver.adopt_volume(&call(), &asked).await.expect("adopted");
    assert_eq!(
        (made.capacity, &made.made_for),
        (Some(SIZE), &asked.made_for)
    );
    assert_eq!(look(), before);
    let found = driver.get_volume(&call(), &id("photos")).await;
    assert_eq!(found.expect("found"), made);
    // Again, by its other name and without what is recorded.
    let again = AdoptVolume {
        made_for: MadeFor::default(),
        ..of("v/photos", None)
    };
    let plan = driver.plan_adoption(&call(), &again).await.expect("a plan");
    assert_eq!(plan.state, AdoptionState::Done);
    let made_again = driver.adopt_volume(&call(), &again).await;
    assert_eq!(made_again.expect("adopted"), made);
    let size = SizeRange::new(128 << 20, 0).expect("a range");
    let photos_id = id("photos");
    let call = call();
    let grown = driver.expand_volume(&call, ExpandVolume::new(&photos_id, size));
    assert_eq!(grown.await.expect("grown").capacity, 128 << 20);
    // A class would have made another one.
    let error = place
        .create(&request("photos"))
        .await
        .expect_err("conflict");
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    let gone = driver.delete_volume(&call, DeleteVolume::new(&photos_id));
    gone.await.expect("deleted");
    assert!(!photos.exists());
}

#[tokio::test]
async fn what_can_be_no_volume_is_refused_and_it_is_said_what_to_do() {
    let place = place().await;
    let outside = place.base().join("old/photos").display().to_string();
    let created = place.base().join("v/pvc-1").display().to_string();
    for (source, size, expected, words) in [
        ("v/none", Some(SIZE), Kind::NotFound, "no such directory"),
        ("v/photos/one", Some(SIZE), Kind::Invalid, "can be called"),
        ("v/..", Some(SIZE), Kind::Invalid, "can be called"),
        ("v/", Some(SIZE), Kind::Invalid, "can be called"),
        ("/etc", Some(SIZE), Kind::Invalid, "move it there"),
        (outside.as_str(), Some(SIZE), Kind::Invalid, "v/photos"),
        ("v/photos", None, Kind::Invalid, "--size"),
        (created.as_str(), Some(SIZE), Kind::Conflict, "already"),
    ] {
        let asked = of(source, size);
        let error = place.driver.adopt_volume(&call(), &asked).await;
        let error = error.expect_err(source);
        assert_eq!(error.kind(), expected, "{source}: {}", error.chain());
        assert!(error.chain().contains(words), "{source}: {}", error.chain());
    }
    let plan = place
        .driver
        .plan_adoption(&call(), &of(&created, None))
        .await;
    assert_eq!(plan.expect("a plan").state, AdoptionState::Volume);
}
