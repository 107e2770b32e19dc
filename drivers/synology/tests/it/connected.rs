//! A deletion while an initiator is connected to the target of the volume.

use std::time::Duration;

use csi_types::Attachment;
use driver_core::{Call, DeleteVolume, Effect, Kind, Volume};
use synology_sim::Version;

use crate::nas::{Nas, TARGET};

const NODE: (&str, &str) = ("iqn.1993-08.org.debian:01:node", "10.0.0.77");

fn iqn(volume: &Volume) -> String {
    match &volume.attachment {
        Attachment::Iscsi(disk) => disk.iqn.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lun_stays_while_an_initiator_is_connected_and_goes_when_it_leaves() {
    for version in [Version::V6_2, Version::V7_2] {
        let nas = Nas::start(version, "").await;
        let (volume, other) = (
            nas.create("pvc-1", None).await,
            nas.create("pvc-2", None).await,
        );
        nas.sim.connect(&iqn(&volume), &[NODE]);
        let short = Call::within(Duration::from_secs(10));
        let error = nas
            .driver
            .delete_volume(&short, DeleteVolume::new(&volume.id))
            .await;
        let error = error.expect_err("it is in use");
        let text = error.chain();
        assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        let named = format!("connected is {} at {}", NODE.0, NODE.1);
        assert!(text.contains(&named), "{text}");
        assert_eq!(nas.objects(), (2, 2));
        assert_eq!(nas.sim.count(&format!("{TARGET}/delete")), 0);

        // Another volume is deleted while this one waits.
        let call = Call::within(Duration::from_mins(1));
        let leaves = async {
            nas.delete(&other.id).await;
            assert_eq!(nas.objects(), (1, 1));
            nas.sim.connect(&iqn(&volume), &[]);
        };
        let (gone, ()) = tokio::join!(
            nas.driver
                .delete_volume(&call, DeleteVolume::new(&volume.id)),
            leaves
        );
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(nas.objects(), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_connected_to_a_shared_target_says_nothing_of_one_volume() {
    let nas = Nas::start(Version::V7_2, "mode: shared-target").await;
    let volume = nas.create("pvc-1", None).await;
    nas.sim.connect(&iqn(&volume), &[NODE]);
    nas.delete(&volume.id).await;
    assert_eq!(nas.objects().0, 0);
}
