//! Volumes: made once, found again, listed in pages, grown, removed.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::common::{Place, call, id, leftovers, parameters, request, snapshot_id};
use csi_types::Attachment;
use driver_core::topology::NODE_KEY;
use driver_core::{
    CapacityQuery, CapacityReporter as _, DeleteVolume, Driver, Effect, ExpandVolume,
    Expander as _, FindVolume, Kind, Lister as _, PageRequest, PageToken, SizeRange, Source,
    Topology, TopologyRequirement,
};

#[tokio::test]
async fn a_volume_is_made_once_and_found_again() {
    let place = Place::new();
    let first = place.create(&request("pvc-1")).await.expect("first");
    assert_eq!(place.create(&request("pvc-1")).await.expect("again"), first);
    assert_eq!(first.capacity, Some(1 << 20));
    let context = first.attachment.to_context();
    let path = place.base().join("v/pvc-1");
    assert_eq!(context["path"], path.display().to_string());
    assert!(matches!(first.attachment, Attachment::Hostpath(_)));
    assert_eq!(first.topology, [Topology::node("node-1")]);
    let found = place.driver.get_volume(&call(), &id("pvc-1")).await;
    assert_eq!(found.expect("found"), first);
    place
        .driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await
        .expect("found");
    assert_eq!(path.metadata().expect("look").mode() & 0o7777, 0o755);
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn a_name_that_was_used_for_something_else_is_a_conflict() {
    let place = Place::new();
    place.volume("pvc-1").await;
    place.volume("pvc-2").await;
    let mut larger = request("pvc-1");
    larger.size = SizeRange::new(2 << 20, 0).expect("range");
    let mut other = request("pvc-1");
    other.parameters = parameters(&[("a", "b")]);
    let mut copy = request("pvc-1");
    copy.source = Some(Source::Volume(id("pvc-2")));
    for request in [larger, other, copy] {
        let error = place.create(&request).await.expect_err("conflict");
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    }
    let mut same = request("pvc-1");
    same.parameters = parameters(&[("csi.storage.k8s.io/pvc/name", "claim")]);
    place
        .create(&same)
        .await
        .expect("only the provisioner's own keys differ");
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn mode_and_owner_are_those_of_the_configuration() {
    let extra = "  dirPermissionsMode: \"2770\"\n  dirPermissionsUser: 1234\n  \
                 dirPermissionsGroup: 4321\n";
    if !rustix::process::geteuid().is_root() {
        crate::common::cannot("changing owners needs root");
        return;
    }
    let place = Place::with(extra);
    let meta = place.volume("pvc-1").await.metadata().expect("look");
    assert_eq!(
        (meta.mode() & 0o7777, meta.uid(), meta.gid()),
        (0o2770, 1234, 4321)
    );
}

#[tokio::test]
async fn a_deleted_volume_is_gone_with_everything_in_it_and_nothing_else() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    let outside = place.dir.path().join("outside");
    std::fs::create_dir(&outside).expect("folder");
    std::fs::write(outside.join("kept"), "kept").expect("file");
    let mut deep = path.clone();
    for _ in 0..300 {
        deep.push("d");
        std::fs::create_dir(&deep).expect("folder");
    }
    symlink(&outside, path.join("link")).expect("link");
    let closed = path.join("closed");
    std::fs::create_dir(&closed).expect("folder");
    std::fs::write(closed.join("file"), "x").expect("file");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o0)).expect("mode");
    for _ in 0..2 {
        place
            .driver
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
            .await
            .expect("delete");
        assert!(!path.exists());
    }
    assert_eq!(
        std::fs::read_to_string(outside.join("kept")).expect("kept"),
        "kept"
    );
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn what_is_not_a_directory_is_never_taken_for_a_volume() {
    let place = Place::new();
    place.volume("real").await;
    let shelf = place.base().join("v");
    let outside = place.dir.path().join("outside");
    std::fs::create_dir(&outside).expect("folder");
    symlink(&outside, shelf.join("link")).expect("link");
    std::fs::write(shelf.join("file"), "x").expect("file");
    std::fs::create_dir(shelf.join("lost+found")).expect("folder");
    for name in ["link", "file"] {
        let found = place.driver.get_volume(&call(), &id(name)).await;
        let error = found.expect_err("no volume");
        assert_eq!(error.kind(), Kind::NotFound);
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        let is_named = cause.is_some_and(|cause| cause.starts_with("it is a symbolic link"));
        assert_eq!(is_named, name == "link");
        let made = place.create(&request(name)).await;
        assert_eq!(made.expect_err("taken").kind(), Kind::Conflict);
        let deleted = place
            .driver
            .delete_volume(&call(), DeleteVolume::new(&id(name)))
            .await;
        let error = deleted.expect_err("it would not be deleted");
        assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        assert!(
            error
                .advice()
                .is_some_and(|advice| advice.contains("by hand"))
        );
        assert!(shelf.join(name).symlink_metadata().is_ok(), "{name} stays");
    }
    let page = place
        .driver
        .list_volumes(&call(), &PageRequest::default())
        .await
        .expect("list");
    assert_eq!(page.entries.len(), 1);
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn volumes_without_a_record_are_served_as_they_are() {
    let place = Place::new();
    place.volume("ours").await;
    std::fs::create_dir(place.base().join("v/theirs")).expect("folder");
    let mut wanted = request("theirs");
    wanted.parameters = parameters(&[("any", "thing")]);
    let volume = place.create(&wanted).await.expect("adopted");
    assert_eq!(volume.capacity, None);
    let grown = place
        .driver
        .expand_volume(
            &call(),
            ExpandVolume::new(&id("theirs"), SizeRange::new(5 << 30, 0).expect("range")),
        )
        .await
        .expect("grown");
    assert_eq!(grown.capacity, 5 << 30);
    let forged = place.base().join("v/ours");
    rustix::fs::setxattr(
        &forged,
        "user.omnibus-csi",
        b"{\"is\":\"volume\",\"v\":1,\"capacity\":-5}",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("attribute");
    let found = place
        .driver
        .get_volume(&call(), &id("ours"))
        .await
        .expect("found");
    let own = node_utils::shares::may_mount().is_ok().then_some(1 << 20);
    assert_eq!(found.capacity, own, "a forged record is no record");
}

#[tokio::test]
async fn the_size_that_a_pod_writes_counts_nowhere() {
    if node_utils::shares::may_mount().is_err() {
        crate::common::cannot("attributes of root");
        return;
    }
    let place = Place::new();
    let volume = place.volume("pvc-1").await;
    let forge = |attribute: &str| {
        let text = b"v1 7fffffffffffffff 0 0123456789abcdef";
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&volume, attribute, text, flags).expect("attribute");
    };
    forge("user.omnibus-csi");
    let taken = place.snapshot("pvc-1", "one").await.expect("snapshot");
    assert_eq!(taken.size, 1 << 20);
    let mut limited = request("pvc-2");
    limited.size = SizeRange::new(1 << 20, 1 << 20).expect("range");
    limited.source = Some(Source::Volume(id("pvc-1")));
    let made = place.create(&limited).await.expect("clone");
    assert_eq!(made.capacity, Some(1 << 20));
    let again = place.create(&request("pvc-1")).await.expect("the same");
    assert_eq!(again.capacity, Some(1 << 20));

    // Where only such a record can be kept, it is believed up to the size of the filesystem.
    rustix::fs::removexattr(&volume, "trusted.omnibus-csi").expect("removed");
    let space = rustix::fs::statvfs(&volume).expect("space");
    let most = space.f_blocks * space.f_frsize;
    let found = place.driver.get_volume(&call(), &id("pvc-1")).await;
    assert_eq!(found.expect("volume").capacity, Some(most));
    let taken = place.snapshot("pvc-1", "two").await.expect("snapshot");
    assert_eq!(taken.size, most);
    // A size that was asked for is.
    let mut large = request("pvc-1");
    large.size = SizeRange::new(1 << 60, 0).expect("range");
    rustix::fs::setxattr(
        &volume,
        "user.omnibus-csi",
        format!("v1 {:x} 0 {}", 1_u64 << 60, "e3b0c44298fc1c14").as_bytes(),
        rustix::fs::XattrFlags::empty(),
    )
    .expect("attribute");
    let again = place.create(&large).await.expect("the same");
    assert_eq!(again.capacity, Some(1 << 60));
}

#[tokio::test]
async fn a_volume_grows_and_never_shrinks() {
    let place = Place::new();
    place.volume("pvc-1").await;
    let expand = |required, limit| {
        let size = SizeRange::new(required, limit).expect("range");
        let driver = &place.driver;
        async move {
            driver
                .expand_volume(&call(), ExpandVolume::new(&id("pvc-1"), size))
                .await
        }
    };
    assert_eq!(expand(5 << 20, 0).await.expect("grown").capacity, 5 << 20);
    let kept = expand(2 << 20, 0).await.expect("large enough");
    assert_eq!(
        (kept.capacity, kept.node_expansion_required),
        (5 << 20, false)
    );
    assert_eq!(
        expand(0, 2 << 20).await.expect_err("limit").kind(),
        Kind::OutOfRange
    );
    let found = place
        .driver
        .get_volume(&call(), &id("pvc-1"))
        .await
        .expect("found");
    assert_eq!(found.capacity, Some(5 << 20));
    let size = SizeRange::new(1, 0).expect("range");
    let missing = place
        .driver
        .expand_volume(&call(), ExpandVolume::new(&id("pvc-2"), size))
        .await;
    assert_eq!(missing.expect_err("missing").kind(), Kind::NotFound);
}

#[tokio::test]
async fn pages_neither_lose_nor_repeat_a_volume() {
    let place = Place::new();
    let mut wanted = BTreeSet::new();
    for number in 0..57 {
        let name = format!("pvc-{number}");
        place.volume(&name).await;
        wanted.insert(name);
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = PageRequest {
            max: Some(10),
            after,
        };
        let page = place
            .driver
            .list_volumes(&call(), &page)
            .await
            .expect("page");
        seen.extend(page.entries.iter().map(|volume| volume.id.to_string()));
        if seen.len() == 20 {
            // Changes between pages move no other volume.
            place
                .driver
                .delete_volume(&call(), DeleteVolume::new(&id(&seen[3])))
                .await
                .expect("delete");
            place.volume("a-late-one").await;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), wanted.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), wanted);
    for bad in [
        "",
        "invalid-token",
        "pvc-1",
        "v1/",
        "v1/../x",
        "v1/a/b",
        "s1/a-b",
        "v2/a",
    ] {
        let page = PageRequest {
            max: None,
            after: Some(PageToken(bad.into())),
        };
        let error = place
            .driver
            .list_volumes(&call(), &page)
            .await
            .expect_err(bad);
        assert_eq!(error.kind(), Kind::Pending, "{bad}");
    }
}

#[tokio::test]
async fn only_a_volume_that_this_node_can_reach_is_made() {
    let place = Place::new();
    let elsewhere = Topology::new([(NODE_KEY.to_owned(), "node-2".to_owned())].into());
    let mut wanted = request("pvc-1");
    wanted.topology = TopologyRequirement {
        requisite: vec![elsewhere.clone()],
        preferred: vec![],
    };
    let error = place.create(&wanted).await.expect_err("elsewhere");
    assert_eq!(error.kind(), Kind::OutOfSpace);
    assert!(!place.base().exists(), "nothing was made");
    wanted.topology.requisite.push(Topology::node("node-1"));
    place.create(&wanted).await.expect("here");
    let query = |topology| CapacityQuery {
        topology,
        ..CapacityQuery::default()
    };
    let there = place
        .driver
        .capacity(&call(), &query(Some(elsewhere)))
        .await
        .expect("there");
    assert_eq!(there.available, 0);
    let here = query(Some(Topology::node("node-1")));
    assert!(
        place
            .driver
            .capacity(&call(), &here)
            .await
            .expect("here")
            .available
            > 0
    );
}

#[tokio::test]
async fn a_copy_of_what_another_node_has_is_refused_so_that_the_scheduler_chooses_again() {
    let place = Place::new();
    let mut wanted = request("pvc-1");
    for source in [
        Source::Volume(id("elsewhere")),
        Source::Snapshot(snapshot_id("elsewhere-s")),
    ] {
        wanted.source = Some(source);
        wanted.topology = TopologyRequirement::default();
        let error = place.create(&wanted).await.expect_err("no place is named");
        assert_eq!(error.kind(), Kind::NotFound);
        let here = vec![Topology::node("node-1")];
        for (requisite, preferred) in [(here.clone(), vec![]), (vec![], here.clone())] {
            wanted.topology = TopologyRequirement {
                requisite,
                preferred,
            };
            let error = place.create(&wanted).await.expect_err("not on this node");
            assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
            assert_eq!(error.effect(), Effect::None);
        }
        assert!(!place.base().exists(), "nothing was made");
    }
}

#[tokio::test]
async fn reading_makes_nothing() {
    let place = Place::new();
    for exists in [false, true] {
        if exists {
            std::fs::create_dir(place.base()).expect("folder");
        }
        let (call, query, page) = (call(), CapacityQuery::default(), PageRequest::default());
        let free = place.driver.capacity(&call, &query).await;
        assert!(free.expect("free").available > 0);
        assert!(place.driver.probe(&call).await.is_empty());
        let listed = place.driver.list_volumes(&call, &page).await;
        assert!(listed.expect("list").entries.is_empty());
        assert_eq!(place.base().exists(), exists);
    }
    assert_eq!(std::fs::read_dir(place.base()).expect("list").count(), 0);
}

#[tokio::test]
async fn a_shelf_that_is_a_link_leads_nowhere() {
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    std::fs::create_dir_all(outside.join("victim")).expect("folder");
    std::fs::create_dir(place.base()).expect("folder");
    symlink(&outside, place.base().join("v")).expect("link");
    assert!(place.create(&request("pvc-1")).await.is_err());
    assert!(
        place
            .driver
            .delete_volume(&call(), DeleteVolume::new(&id("victim")))
            .await
            .is_err()
    );
    assert!(!place.driver.probe(&call()).await.is_empty());
    assert!(outside.join("victim").exists());
    assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 1);
}

#[tokio::test]
async fn a_new_volume_inherits_from_its_shelf_as_one_made_by_mkdir_does() {
    let place = Place::new();
    let shelf = place.base().join("v");
    std::fs::create_dir_all(&shelf).expect("folders");
    // Owner, group, mask and others, and one user by name.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 7, 1234),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let default = "system.posix_acl_default";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&shelf, default, &acl, flags).expect("acl");
    std::fs::set_permissions(&shelf, PermissionsExt::from_mode(0o2775)).expect("mode");
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    rustix::fs::mkdir(shelf.join("by-mkdir"), mode).expect("folder");
    let made = place.volume("pvc-1").await;
    let look = |path: &std::path::Path| {
        let meta = path.metadata().expect("look");
        let attribute = |name: &str| {
            let mut value = vec![0; 1000];
            let length = rustix::fs::getxattr(path, name, &mut value[..]).expect(name);
            value.truncate(length);
            value
        };
        let acls = [attribute(default), attribute("system.posix_acl_access")];
        (meta.mode(), meta.uid(), meta.gid(), acls)
    };
    assert_eq!(look(&made), look(&shelf.join("by-mkdir")));
    assert_eq!(made.metadata().expect("look").mode() & 0o2000, 0o2000);
}
