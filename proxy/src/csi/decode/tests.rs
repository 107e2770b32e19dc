//! Every required field, every limit, and requests with anything at all in them.

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::volume_content_source::{SnapshotSource, Type as Content, VolumeSource};
use driver_core::Kind;
use driver_core::text::MAX_MAP;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::rpc::Rpc;

fn capability() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn id() -> String {
    "v".to_owned()
}

fn create() -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: id(),
        volume_capabilities: vec![capability()],
        ..v1::CreateVolumeRequest::default()
    }
}

fn stage() -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: id(),
        staging_target_path: "/s".into(),
        volume_capability: Some(capability()),
        ..v1::NodeStageVolumeRequest::default()
    }
}

fn publish() -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: id(),
        staging_target_path: "/s".into(),
        target_path: "/t".into(),
        volume_capability: Some(capability()),
        ..v1::NodePublishVolumeRequest::default()
    }
}

/// A message, decoded from its bytes by the call that takes it.
trait Decode: Message + Default + Clone {
    const RPC: Rpc;

    fn decode_it(self) -> Result<(), Error> {
        request(Self::RPC, &self.encode_to_vec()).expect("its own bytes")
    }
}

macro_rules! decodes {
    ($($message:ident by $rpc:ident,)*) => {$(
        impl Decode for v1::$message {
            const RPC: Rpc = Rpc::$rpc;
        }
    )*};
}

decodes! {
    CreateVolumeRequest by CreateVolume,
    DeleteVolumeRequest by DeleteVolume,
    ControllerPublishVolumeRequest by ControllerPublishVolume,
    ControllerUnpublishVolumeRequest by ControllerUnpublishVolume,
    ValidateVolumeCapabilitiesRequest by ValidateVolumeCapabilities,
    ListVolumesRequest by ListVolumes,
    CreateSnapshotRequest by CreateSnapshot,
    DeleteSnapshotRequest by DeleteSnapshot,
    GetSnapshotRequest by GetSnapshot,
    CreateVolumeGroupSnapshotRequest by CreateVolumeGroupSnapshot,
    DeleteVolumeGroupSnapshotRequest by DeleteVolumeGroupSnapshot,
    GetVolumeGroupSnapshotRequest by GetVolumeGroupSnapshot,
    GetMetadataAllocatedRequest by GetMetadataAllocated,
    GetMetadataDeltaRequest by GetMetadataDelta,
    ControllerExpandVolumeRequest by ControllerExpandVolume,
    ControllerGetVolumeRequest by ControllerGetVolume,
    ControllerGetVolumeHealthRequest by ControllerGetVolumeHealth,
    ControllerListVolumeHealthRequest by ControllerListVolumeHealth,
    NodeStageVolumeRequest by NodeStageVolume,
    NodeUnstageVolumeRequest by NodeUnstageVolume,
    NodePublishVolumeRequest by NodePublishVolume,
    NodeUnpublishVolumeRequest by NodeUnpublishVolume,
    NodeGetVolumeStatsRequest by NodeGetVolumeStats,
    NodeGetVolumeHealthRequest by NodeGetVolumeHealth,
    NodeExpandVolumeRequest by NodeExpandVolume,
}

/// A field, and what makes it wrong.
type Fault<'a, R> = (&'a str, fn(&mut R));

/// `whole` is accepted; with each of `faults` it is refused as invalid, naming the field.
fn refuses<R: Decode>(whole: &R, faults: &[Fault<'_, R>]) {
    whole.clone().decode_it().expect("a whole request");
    for (field, fault) in faults {
        let mut request = whole.clone();
        fault(&mut request);
        let error = request.decode_it().expect_err(field);
        assert_eq!(error.kind(), Kind::Invalid, "{field}: {}", error.chain());
        assert!(error.chain().contains(field), "{field}: {}", error.chain());
    }
}

#[test]
fn every_required_field_of_the_controller_is_required() {
    refuses(
        &create(),
        &[
            ("name", |r| r.name.clear()),
            ("volume_capabilities", |r| r.volume_capabilities.clear()),
            ("access_type", |r| {
                r.volume_capabilities[0].access_type = None;
            }),
            ("access_mode", |r| {
                r.volume_capabilities[0].access_mode = None;
            }),
            ("volume_content_source", |r| {
                r.volume_content_source = Some(v1::VolumeContentSource { r#type: None });
            }),
            ("snapshot_id", |r| {
                let content = Content::Snapshot(SnapshotSource::default());
                let r#type = Some(content);
                r.volume_content_source = Some(v1::VolumeContentSource { r#type });
            }),
            ("volume_id", |r| {
                let content = Content::Volume(VolumeSource::default());
                let r#type = Some(content);
                r.volume_content_source = Some(v1::VolumeContentSource { r#type });
            }),
        ],
    );
    let volume_id = id();
    let delete = v1::DeleteVolumeRequest {
        volume_id,
        ..Default::default()
    };
    refuses(&delete, &[("volume_id", |r| r.volume_id.clear())]);
    refuses(
        &v1::ControllerPublishVolumeRequest {
            volume_id: id(),
            node_id: id(),
            volume_capability: Some(capability()),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("node_id", |r| r.node_id.clear()),
            ("volume_capability", |r| r.volume_capability = None),
        ],
    );
    refuses(
        &v1::ControllerUnpublishVolumeRequest {
            volume_id: id(),
            ..Default::default()
        },
        &[("volume_id", |r| r.volume_id.clear())],
    );
}

#[test]
fn every_required_field_about_an_existing_volume_is_required() {
    refuses(
        &v1::ValidateVolumeCapabilitiesRequest {
            volume_id: id(),
            volume_capabilities: vec![capability()],
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("volume_capabilities", |r| r.volume_capabilities.clear()),
        ],
    );
    refuses(
        &v1::ControllerExpandVolumeRequest {
            volume_id: id(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 1,
                limit_bytes: 0,
            }),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("capacity_range", |r| r.capacity_range = None),
            ("capacity_range", |r| {
                r.capacity_range = Some(v1::CapacityRange::default());
            }),
        ],
    );
    let get = v1::ControllerGetVolumeRequest { volume_id: id() };
    refuses(&get, &[("volume_id", |r| r.volume_id.clear())]);
}

#[test]
fn every_required_field_of_snapshots_is_required() {
    refuses(
        &v1::CreateSnapshotRequest {
            source_volume_id: id(),
            name: id(),
            ..Default::default()
        },
        &[
            ("source_volume_id", |r| r.source_volume_id.clear()),
            ("name", |r| r.name.clear()),
        ],
    );
    let delete = v1::DeleteSnapshotRequest {
        snapshot_id: id(),
        ..Default::default()
    };
    refuses(&delete, &[("snapshot_id", |r| r.snapshot_id.clear())]);
    let get = v1::GetSnapshotRequest {
        snapshot_id: id(),
        ..Default::default()
    };
    refuses(&get, &[("snapshot_id", |r| r.snapshot_id.clear())]);
}

#[test]
fn every_required_field_of_groups_and_ranges_is_required() {
    let create = v1::CreateVolumeGroupSnapshotRequest {
        name: id(),
        source_volume_ids: vec![id(), id()],
        ..Default::default()
    };
    refuses(
        &create,
        &[
            ("name", |r| r.name.clear()),
            ("source_volume_ids", |r| r.source_volume_ids.clear()),
            ("source_volume_ids", |r| r.source_volume_ids[1].clear()),
        ],
    );
    let delete = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id(),
        snapshot_ids: vec![id()],
        ..Default::default()
    };
    refuses(
        &delete,
        &[
            ("group_snapshot_id", |r| r.group_snapshot_id.clear()),
            ("snapshot_ids", |r| r.snapshot_ids[0].clear()),
        ],
    );
    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id(),
        snapshot_ids: vec![id()],
        ..Default::default()
    };
    refuses(
        &get,
        &[("group_snapshot_id", |r| r.group_snapshot_id.clear())],
    );
    let allocated = v1::GetMetadataAllocatedRequest {
        snapshot_id: id(),
        ..Default::default()
    };
    refuses(
        &allocated,
        &[
            ("snapshot_id", |r| r.snapshot_id.clear()),
            ("max_results", |r| r.max_results = -1),
        ],
    );
    let delta = v1::GetMetadataDeltaRequest {
        base_snapshot_id: id(),
        target_snapshot_id: id(),
        ..Default::default()
    };
    refuses(
        &delta,
        &[
            ("base_snapshot_id", |r| r.base_snapshot_id.clear()),
            ("target_snapshot_id", |r| r.target_snapshot_id.clear()),
        ],
    );
}

#[test]
fn every_required_field_of_the_node_is_required() {
    refuses(
        &stage(),
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("staging_target_path", |r| r.staging_target_path.clear()),
            ("volume_capability", |r| r.volume_capability = None),
        ],
    );
    refuses(
        &v1::NodeUnstageVolumeRequest {
            volume_id: id(),
            staging_target_path: "/s".into(),
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("staging_target_path", |r| r.staging_target_path.clear()),
        ],
    );
    refuses(
        &publish(),
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("target_path", |r| r.target_path.clear()),
            ("volume_capability", |r| r.volume_capability = None),
        ],
    );
    refuses(
        &v1::NodeUnpublishVolumeRequest {
            volume_id: id(),
            target_path: "/t".into(),
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("target_path", |r| r.target_path.clear()),
        ],
    );
    refuses(
        &v1::NodeGetVolumeStatsRequest {
            volume_id: id(),
            volume_path: "/t".into(),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("volume_path", |r| r.volume_path.clear()),
        ],
    );
    refuses(
        &v1::NodeGetVolumeHealthRequest {
            volume_id: id(),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("volume_publish_path", |r| {
                r.volume_publish_path = "relative".into();
            }),
            ("staging_target_path", |r| {
                r.staging_target_path = "relative".into();
            }),
        ],
    );
    refuses(
        &v1::NodeExpandVolumeRequest {
            volume_id: id(),
            volume_path: "/t".into(),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.clear()),
            ("volume_path", |r| r.volume_path.clear()),
        ],
    );
}

fn flags(r: &mut v1::CreateVolumeRequest, flags: Vec<String>) {
    let mount_flags = flags;
    let mount = MountVolume {
        mount_flags,
        ..MountVolume::default()
    };
    r.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
}
fn group(r: &mut v1::CreateVolumeRequest, group: &str) {
    let mount = MountVolume {
        volume_mount_group: group.to_owned(),
        ..MountVolume::default()
    };
    r.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
}

#[test]
fn every_size_and_number_of_a_new_volume_has_its_limit() {
    let mut largest = create();
    largest.name = "n".repeat(128);
    largest
        .parameters
        .insert("k".into(), "v".repeat(MAX_MAP - 1));
    largest
        .mutable_parameters
        .insert("k".into(), "v".repeat(MAX_MAP - 1));
    largest.secrets.insert("k".into(), "v".repeat(MAX_MAP - 1));
    flags(&mut largest, vec!["f".repeat(MAX_MAP / 2); 2]);
    refuses(
        &largest,
        &[
            ("name", |r| r.name.push('n')),
            ("name", |r| r.name = "a\u{b}".into()),
            ("parameters", |r| {
                drop(r.parameters.insert("l".into(), String::new()));
            }),
            ("mutable_parameters", |r| {
                r.mutable_parameters.insert("l".into(), String::new());
            }),
            ("secrets", |r| {
                drop(r.secrets.insert("l".into(), String::new()));
            }),
            ("secrets", |r| {
                r.secrets = [("a b".into(), "x".into())].into();
            }),
            ("mount_flags", |r| flags(r, vec!["f".repeat(MAX_MAP + 1)])),
            ("mount_flags", |r| flags(r, vec!["a b".into()])),
            ("volume_mount_group", |r| group(r, "wheel")),
            ("volume_mount_group", |r| group(r, "+1")),
            ("volume_mount_group", |r| group(r, "4294967296")),
            ("access_mode", |r| {
                r.volume_capabilities[0].access_mode = Some(AccessMode { mode: 8 });
            }),
            ("access_mode", |r| {
                r.volume_capabilities[0].access_mode = Some(AccessMode { mode: -1 });
            }),
            ("capacity_range", |r| {
                r.capacity_range = Some(v1::CapacityRange {
                    required_bytes: -1,
                    limit_bytes: 0,
                });
            }),
            ("accessibility_requirements", |r| {
                r.accessibility_requirements = Some(v1::TopologyRequirement {
                    requisite: vec![v1::Topology::default()],
                    preferred: vec![],
                });
            }),
        ],
    );
}

#[test]
fn every_id_path_and_context_has_its_limit() {
    refuses(
        &v1::ControllerPublishVolumeRequest {
            volume_id: "v".repeat(512),
            node_id: "n".repeat(256),
            volume_capability: Some(capability()),
            ..Default::default()
        },
        &[
            ("volume_id", |r| r.volume_id.push('v')),
            ("node_id", |r| r.node_id.push('n')),
            ("volume_context", |r| {
                r.volume_context.insert("k".into(), "v".repeat(MAX_MAP));
            }),
        ],
    );
    let mut longest = stage();
    longest.staging_target_path = format!("/{}", "s".repeat(4094));
    refuses(
        &longest,
        &[
            ("staging_target_path", |r| r.staging_target_path.push('s')),
            ("staging_target_path", |r| {
                r.staging_target_path = "/a/../b".into();
            }),
            ("staging_target_path", |r| {
                r.staging_target_path = "/".into();
            }),
            ("staging_target_path", |r| {
                r.staging_target_path = "relative".into();
            }),
            ("publish_context", |r| {
                r.publish_context.insert("k".into(), "v".repeat(MAX_MAP));
            }),
            ("volume_context", |r| {
                r.volume_context.insert("k".into(), "v".repeat(MAX_MAP));
            }),
        ],
    );
    refuses(
        &v1::ListVolumesRequest::default(),
        &[("max_entries", |r| r.max_entries = -1)],
    );
}

#[test]
fn an_unknown_token_restarts_the_list() {
    for token in ["t".repeat(MAX_TOKEN + 1), "a\u{0}b".to_owned()] {
        let error = page(0, token).expect_err("refused");
        assert_eq!(error.kind(), Kind::Pending);
    }
    let page = page(0, String::new()).expect("the first page");
    assert!(page.max.is_none() && page.after.is_none());
}

#[test]
fn only_the_publish_context_says_that_a_storage_fences_nodes() {
    let key = "storage_fences_nodes";
    let pair = |value: &str| [(key.to_owned(), value.to_owned())].into();
    for (published, is_fenced) in [("true", true), ("false", false), ("", false)] {
        let request = v1::NodeStageVolumeRequest {
            volume_context: pair("true"),
            publish_context: pair(published),
            ..stage()
        };
        let read = StageRequest::try_from(request).expect("a request");
        assert_eq!(read.is_fenced, is_fenced, "{published:?}");
    }
    let read = StageRequest::try_from(v1::NodeStageVolumeRequest {
        volume_context: pair("true"),
        ..stage()
    });
    assert!(!read.expect("a request").is_fenced, "nothing was said");
}

#[test]
fn mutable_parameters_win_over_parameters_of_the_same_key() {
    let mut request = create();
    request.parameters = [("a".into(), "1".into()), ("b".into(), "1".into())].into();
    request.mutable_parameters = [("a".into(), "2".into())].into();
    let decoded = CreateVolumeRequest::try_from(request).expect("valid");
    let raw = decoded.parameters.raw();
    assert_eq!((raw["a"].as_str(), raw["b"].as_str()), ("2", "1"));
}

#[test]
fn no_error_shows_a_secret_or_a_mount_flag() {
    let mut request = create();
    request.secrets = [("pass word".into(), "hunter2".into())].into();
    let error = request.decode_it().expect_err("a bad key");
    assert!(!error.chain().contains("hunter2") && !error.chain().contains("pass word"));
    let mut request = create();
    let mount = MountVolume {
        mount_flags: vec!["password=hunter2 x".into()],
        ..MountVolume::default()
    };
    request.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
    let error = request.decode_it().expect_err("a bad flag");
    assert!(!error.chain().contains("hunter2"));
}

#[test]
fn an_empty_message_is_refused_or_understood_and_never_a_panic() {
    for rpc in Rpc::ALL {
        assert!(request(rpc, &[]).is_some(), "{rpc:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_at_all_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for rpc in Rpc::ALL {
            let _ = request(rpc, &bytes);
        }
    }

    #[test]
    fn no_text_makes_decoding_panic(text in any::<String>(), number in any::<i64>(), mode in any::<i32>()) {
        let mut request = create();
        request.name.clone_from(&text);
        request.capacity_range = Some(v1::CapacityRange { required_bytes: number, limit_bytes: number.wrapping_neg() / 2 });
        request.secrets.insert(text.clone(), text.clone());
        request.volume_capabilities[0].access_mode = Some(AccessMode { mode });
        let segments = [(text.clone(), text.clone())].into();
        request.accessibility_requirements = Some(v1::TopologyRequirement {
            requisite: vec![v1::Topology { segments }],
            preferred: vec![],
        });
        let _ = request.decode_it();
        let mut request = publish();
        request.target_path.clone_from(&text);
        request.volume_id = text;
        let _ = request.decode_it();
    }
}

/// The first byte of a seed for fuzzing is the place of its call in the list, which a new call moves.
#[test]
fn seeds_are_requests_of_the_calls_in_their_names() {
    let words = |name: &str| -> String {
        name.char_indices()
            .flat_map(|(at, c)| {
                let dash = (at > 0 && c.is_ascii_uppercase()).then_some('-');
                dash.into_iter().chain([c.to_ascii_lowercase()])
            })
            .collect()
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/requests");
    let mut seen = 0;
    for seed in std::fs::read_dir(folder).expect("the seeds") {
        let seed = seed.expect("a seed");
        let name = seed.file_name().into_string().expect("a name");
        let bytes = std::fs::read(seed.path()).expect("its bytes");
        let (first, message) = bytes.split_first().expect("a byte");
        let rpc = Rpc::ALL[usize::from(*first)];
        assert!(
            name.starts_with(&words(rpc.name())),
            "{name} is of {}",
            rpc.name()
        );
        assert!(request(rpc, message).is_some(), "{name} is no message");
        seen += 1;
    }
    assert!(seen > 20, "{seen} seeds");
}
