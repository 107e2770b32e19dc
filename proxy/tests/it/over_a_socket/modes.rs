//! Volumes whose source was used in the other way: as a filesystem, or as a raw device. Whether a claim may do that is
//! judged by the provisioner.

use csi_proto::v1::volume_capability::BlockVolume;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use driver_core::AccessRules;
use driver_core::contract::fake::Verb;

use super::*;

fn raw() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..mounted()
    }
}

async fn made(
    served: &Served,
    name: &str,
    capability: &v1::VolumeCapability,
    source: Option<Type>,
) -> Result<v1::Volume, Status> {
    let request = v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability.clone()],
        volume_content_source: source.map(|source| v1::VolumeContentSource {
            r#type: Some(source),
        }),
        ..Default::default()
    };
    let reply = served.controller().create_volume(request).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

/// A snapshot of a volume, and the volume itself.
async fn sources(served: &Served, volume_id: &str, name: &str) -> [Type; 2] {
    let snapshot_id = served.snapshot(volume_id, name).await;
    let volume_id = volume_id.to_owned();
    [
        Type::Snapshot(SnapshotSource { snapshot_id }),
        Type::Volume(VolumeSource { volume_id }),
    ]
}

#[tokio::test]
async fn a_disk_is_made_of_one_that_was_used_in_the_other_way() {
    let plain = AccessRules::filesystem(&["ext4"]);
    let rules = AccessRules {
        block: true,
        block_modes: plain.mount_modes.clone(),
        ..plain
    };
    let driver = Arc::new(FakeDriver::new().with_access_rules(rules));
    let served = serve_alone(&driver).await;
    for (name, from, to) in [("a", mounted(), raw()), ("b", raw(), mounted())] {
        let volume = made(&served, name, &from, None).await.expect("a volume");
        let all = sources(&served, &volume.volume_id, &format!("{name}-s")).await;
        for (number, source) in all.into_iter().enumerate() {
            let copy = format!("{name}{number}");
            let first = made(&served, &copy, &to, Some(source.clone())).await;
            let first = first.expect("a copy");
            let of = first.content_source.clone().and_then(|of| of.r#type);
            assert_eq!(of.as_ref(), Some(&source));
            let again = made(&served, &copy, &to, Some(source)).await;
            assert_eq!(again.expect("the same"), first);
        }
    }
}

#[tokio::test]
async fn a_directory_is_made_no_disk_and_the_driver_is_not_asked_for_one() {
    let (served, driver) = alone().await;
    let volume = made(&served, "a", &mounted(), None).await;
    let all = sources(&served, &volume.expect("a volume").volume_id, "s").await;
    let asked = driver.calls(Verb::CreateVolume);
    for source in all {
        let status = made(&served, "copy", &raw(), Some(source)).await;
        let status = status.expect_err("a raw device");
        is(
            &status,
            Code::InvalidArgument,
            "the volumes are directories, not devices",
        );
    }
    assert_eq!(driver.calls(Verb::CreateVolume), asked);
}
