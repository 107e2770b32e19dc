//! Every request that the client can build, with every field that it can set.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use driver_truenas::api::dataset::{
    CreateDataset, CreateKind, DeleteDataset, PromoteDataset, QueryDatasets, UpdateDataset,
};
use driver_truenas::api::filesystem::{
    AclKind, FindFilesystem, GetAcl, ListDirectory, SetAcl, SetOwner, SetPermissions, Stat,
};
use driver_truenas::api::replication::{CopySnapshot, RunningCopies};
use driver_truenas::api::resource::{DestroyResource, QueryResourceSnapshots, QueryResources};
use driver_truenas::api::service::{ControlService, ControlServiceJob, QueryServices, Verb};
use driver_truenas::api::snapshot::{
    CloneSnapshot, CreateSnapshot, DeleteSnapshot, FindSnapshots, HoldSnapshot, NameSnapshots,
    QuerySnapshots, ReleaseSnapshot, RenameSnapshot, UpdateSnapshot,
};
use driver_truenas::api::{
    Call, Enable, Filter, JobRequest, Request, iscsi, nfs, nvmet, pool, smb, system,
};
use driver_truenas::{Dialect, Error, Generation, Kind};
use serde_json::{Map, Value, json};

/// The generations of which the simulator has the tables.
pub(crate) const SIMULATED: [(Generation, truenas_sim::Generation); 7] = [
    (Generation::Core, truenas_sim::Generation::Core13),
    (Generation::V22_12, truenas_sim::Generation::V22_12),
    (Generation::V24_10, truenas_sim::Generation::V24_10),
    (Generation::V25_04, truenas_sim::Generation::V25_04),
    (Generation::V25_10, truenas_sim::Generation::V25_10),
    (Generation::V26, truenas_sim::Generation::V26Beta),
    (Generation::V26, truenas_sim::Generation::V26Rc),
];

type Encoded = Result<Call, Error>;

/// Encodes all requests in one dialect. What the generation lacks is an error.
pub(crate) fn all(dialect: &Dialect) -> Vec<Encoded> {
    let mut all = Vec::new();
    all.extend(system(dialect));
    all.extend(datasets(dialect));
    all.extend(snapshots(dialect));
    all.extend(jobs(dialect));
    all.extend(shares(dialect));
    all.extend(iscsi(dialect));
    all.extend(nvmet(dialect));
    all.extend(enabling(dialect));
    all
}

fn enabling(d: &Dialect) -> Vec<Encoded> {
    [
        Enable::NfsShare(1),
        Enable::SmbShare(1),
        Enable::Extent(1),
        Enable::Namespace(1),
    ]
    .map(|row| row.encode(d))
    .into()
}

fn system(d: &Dialect) -> Vec<Encoded> {
    let control = |verb| ControlService {
        verb,
        service: "nfs".to_owned(),
    };
    let mut all = vec![
        system::GetVersion.encode(d),
        system::GetInfo.encode(d),
        pool::QueryPools(vec![Filter::eq("name", "tank")]).encode(d),
        QueryServices {
            names: vec!["nfs".to_owned(), "cifs".to_owned()],
        }
        .encode(d),
    ];
    // There are no roles before.
    if d.generation() >= Generation::V24_04 {
        all.push(system::GetRoles.encode(d));
    }
    for verb in [Verb::Start, Verb::Stop, Verb::Restart, Verb::Reload] {
        all.push(control(verb).encode(d));
        all.push(ControlServiceJob(control(verb)).encode(d));
    }
    all
}

fn properties() -> Map<String, Value> {
    let all = json!({
        "comments": "made by a test",
        "managedby": "test",
        "sync": "STANDARD",
        "compression": "LZ4",
        "atime": "OFF",
        "exec": "ON",
        "quota": 0,
        "refquota": 2_u64 << 30,
        "reservation": 0,
        "refreservation": 0,
        "copies": 1,
        "snapdir": "HIDDEN",
        "deduplication": "OFF",
        "checksum": "ON",
        "readonly": "OFF",
        "recordsize": "128K",
        "aclmode": "PASSTHROUGH",
        "acltype": "NFSV4",
    });
    all.as_object().expect("an object").clone()
}

fn volume_properties() -> Map<String, Value> {
    let all = json!({
        "comments": "made by a test",
        "sync": "STANDARD",
        "compression": "LZ4",
        "refreservation": 0,
        "copies": 1,
        "deduplication": "OFF",
        "checksum": "ON",
        "readonly": "OFF",
    });
    all.as_object().expect("an object").clone()
}

fn user_properties() -> BTreeMap<String, String> {
    BTreeMap::from([(
        "democratic-csi:csi_volume_name".to_owned(),
        "pvc-1".to_owned(),
    )])
}

fn filesystem(share_type: &str) -> CreateDataset {
    CreateDataset {
        name: "tank/a".to_owned(),
        kind: CreateKind::Filesystem {
            share_type: Some(share_type.to_owned()),
        },
        create_ancestors: true,
        properties: properties(),
        user_properties: BTreeMap::new(),
    }
}

fn volume() -> CreateDataset {
    CreateDataset {
        name: "tank/v".to_owned(),
        kind: CreateKind::Volume {
            size: 1 << 30,
            block_size: Some("16K".to_owned()),
            sparse: true,
            force_size: true,
        },
        create_ancestors: true,
        properties: volume_properties(),
        user_properties: BTreeMap::new(),
    }
}

fn with_property(name: &str, value: &str) -> CreateDataset {
    let mut dataset = filesystem("GENERIC");
    dataset.properties.insert(name.to_owned(), json!(value));
    dataset
}

fn with_user_properties(dataset: CreateDataset) -> CreateDataset {
    CreateDataset {
        user_properties: user_properties(),
        ..dataset
    }
}

fn update(properties: Map<String, Value>) -> UpdateDataset {
    UpdateDataset {
        id: "tank/a".to_owned(),
        properties,
        user_properties: BTreeMap::new(),
    }
}

fn datasets(d: &Dialect) -> Vec<Encoded> {
    let id = || "tank/a".to_owned();
    let growth = [("volsize", json!(2_u64 << 30)), ("force_size", json!(true))];
    let growth = growth.map(|(name, value)| (name.to_owned(), value));
    let some = QueryDatasets {
        filters: vec![Filter::starts_with("id", "tank/")],
        properties: vec!["refquota".to_owned(), "mountpoint".to_owned()],
        user_properties: true,
        snapshots: true,
        short: false,
    };
    let mut user = update(Map::new());
    let (set, remove) = (
        ("a:b".to_owned(), Some("c".to_owned())),
        ("a:d".to_owned(), None),
    );
    user.user_properties.extend([set, remove]);
    let resources = |properties| QueryResources {
        paths: vec![id()],
        properties,
        depth: None,
    };
    let delete = DeleteDataset {
        id: id(),
        recursive: false,
        force: false,
    };
    vec![
        QueryDatasets::by_id("tank/a").encode(d),
        some.encode(d),
        filesystem("GENERIC").encode(d),
        filesystem("SMB").encode(d),
        with_property("snapdev", "HIDDEN").encode(d),
        with_property("xattr", "SA").encode(d),
        with_user_properties(filesystem("GENERIC")).encode(d),
        volume().encode(d),
        with_user_properties(volume()).encode(d),
        update(properties()).encode(d),
        update(growth.into_iter().collect()).encode(d),
        user.encode(d),
        delete.encode(d),
        PromoteDataset { id: id() }.encode(d),
        resources(vec!["refquota".to_owned()]).encode(d),
        resources(vec![]).encode(d),
        DestroyResource { path: id() }.encode(d),
    ]
}

fn snapshots(d: &Dialect) -> Vec<Encoded> {
    let id = || "tank/a@s".to_owned();
    let create = CreateSnapshot {
        dataset: "tank/a".to_owned(),
        name: "s".to_owned(),
        ..CreateSnapshot::default()
    };
    vec![
        QuerySnapshots::by_id("tank/a@s").encode(d),
        QuerySnapshots {
            properties: vec!["used".to_owned()],
            holds: true,
            ..QuerySnapshots::of("tank/a")
        }
        .encode(d),
        create.encode(d),
        CreateSnapshot {
            user_properties: user_properties(),
            ..create.clone()
        }
        .encode(d),
        CreateSnapshot {
            recursive: true,
            exclude: vec!["tank/a/b".to_owned()],
            ..create
        }
        .encode(d),
        DeleteSnapshot {
            id: id(),
            defer: true,
        }
        .encode(d),
        CloneSnapshot {
            snapshot: id(),
            dataset: "tank/c".to_owned(),
            properties: BTreeMap::new(),
        }
        .encode(d),
        CloneSnapshot {
            snapshot: id(),
            dataset: "tank/c".to_owned(),
            properties: BTreeMap::from([("refquota".to_owned(), "1073741824".to_owned())]),
        }
        .encode(d),
        FindSnapshots {
            name: "s".to_owned(),
            below: "tank".to_owned(),
        }
        .encode(d),
        NameSnapshots {
            dataset: "tank/a".to_owned(),
        }
        .encode(d),
        RenameSnapshot {
            id: id(),
            name: "t".to_owned(),
        }
        .encode(d),
        HoldSnapshot { id: id() }.encode(d),
        ReleaseSnapshot { id: id() }.encode(d),
        UpdateSnapshot {
            id: id(),
            user_properties: BTreeMap::from([
                ("a:b".to_owned(), Some("c".to_owned())),
                ("a:d".to_owned(), None),
            ]),
        }
        .encode(d),
        QueryResourceSnapshots {
            paths: vec![id()],
            properties: vec!["used".to_owned()],
            recursive: false,
            holds: true,
        }
        .encode(d),
    ]
}

fn jobs(d: &Dialect) -> Vec<Encoded> {
    let path = || "/mnt/tank/a".to_owned();
    let nfs4 = json!({
        "tag": "owner@",
        "type": "ALLOW",
        "id": null,
        "perms": {"BASIC": "FULL_CONTROL"},
        "flags": {"BASIC": "INHERIT"},
    });
    let posix = json!({
        "tag": "USER_OBJ",
        "id": -1,
        "default": false,
        "perms": {"READ": true, "WRITE": true, "EXECUTE": true},
    });
    let acl = |kind, entry: &Value| SetAcl {
        path: path(),
        kind,
        entries: vec![entry.clone()],
        uid: Some(0),
        gid: Some(0),
        recursive: false,
    };
    vec![
        Stat { path: path() }.encode(d),
        FindFilesystem { path: path() }.encode(d),
        ListDirectory {
            path: path(),
            limit: 1,
        }
        .encode(d),
        RunningCopies.encode(d),
        GetAcl {
            path: path(),
            names: true,
        }
        .encode(d),
        SetPermissions {
            path: path(),
            mode: Some("0770".to_owned()),
            uid: Some(1000),
            gid: Some(1000),
            recursive: true,
            strip_acl: true,
        }
        .encode(d),
        SetOwner {
            path: path(),
            uid: Some(1000),
            gid: Some(1000),
            recursive: true,
        }
        .encode(d),
        acl(AclKind::Nfs4, &nfs4).encode(d),
        acl(AclKind::Posix1e, &posix).encode(d),
        CopySnapshot {
            source: "tank/a".to_owned(),
            snapshot: "s".to_owned(),
            target: "tank/copy".to_owned(),
            properties: false,
            only_from_scratch: true,
        }
        .encode(d),
    ]
}

fn shares(d: &Dialect) -> Vec<Encoded> {
    let nfs_options = nfs::NfsOptions {
        comment: "made by a test".to_owned(),
        networks: vec!["10.0.0.0/8".to_owned()],
        hosts: vec!["192.0.2.1".to_owned()],
        read_only: false,
        maproot_user: Some("root".to_owned()),
        maproot_group: Some("wheel".to_owned()),
        mapall_user: None,
        mapall_group: None,
        security: vec!["SYS".to_owned()],
        enabled: true,
    };
    let smb_options = smb::SmbOptions {
        comment: Some("made by a test".to_owned()),
        read_only: Some(false),
        browsable: Some(true),
        access_based_enumeration: Some(true),
        enabled: Some(true),
        home: Some(false),
        hosts_allow: Some(vec!["10.0.0.0/8".to_owned()]),
        hosts_deny: Some(vec!["ALL".to_owned()]),
        guest_ok: Some(false),
        recycle_bin: Some(false),
        time_machine: Some(false),
        acl: Some(true),
        shadow_copy: Some(true),
        streams: Some(true),
        durable_handles: Some(true),
        path_suffix: Some("%U".to_owned()),
        auxiliary: Some("vfs objects =".to_owned()),
    };
    let smb = |options| smb::CreateSmbShare {
        name: "share".to_owned(),
        path: "/mnt/tank/a".to_owned(),
        options,
    };
    let path = || "/mnt/tank/a".to_owned();
    vec![
        nfs::FindNfsShares { path: path() }.encode(d),
        nfs::FindManyNfsShares {
            paths: vec![path()],
        }
        .encode(d),
        nfs::QueryNfsShares(vec![Filter::eq("id", 1)]).encode(d),
        nfs::CreateNfsShare {
            path: path(),
            all_dirs: true,
            options: nfs_options.clone(),
        }
        .encode(d),
        nfs::UpdateNfsShare {
            id: 1,
            options: nfs_options,
        }
        .encode(d),
        nfs::DeleteNfsShare { id: 1 }.encode(d),
        nfs::FindNfs4Clients.encode(d),
        smb::FindSmbShares { path: path() }.encode(d),
        smb::QuerySmbShares(vec![Filter::eq("name", "share")]).encode(d),
        smb(smb::SmbOptions::default()).encode(d),
        smb(smb_options.clone()).encode(d),
        smb::UpdateSmbShare {
            id: 1,
            options: smb_options,
        }
        .encode(d),
        smb::DeleteSmbShare { id: 1 }.encode(d),
        smb::FindSmbConnections.encode(d),
    ]
}

fn iscsi(d: &Dialect) -> Vec<Encoded> {
    let group = |initiator, auth: Option<i64>| iscsi::TargetGroup {
        portal: 1,
        initiator,
        auth_method: if auth.is_some() { "CHAP" } else { "NONE" }.to_owned(),
        auth,
    };
    let groups = vec![group(Some(1), Some(2)), group(None, None)];
    let target = |queued_commands| iscsi::CreateTarget {
        name: "pvc-1".to_owned(),
        alias: Some("tank/csi/v/pvc-1".to_owned()),
        groups: groups.clone(),
        queued_commands,
    };
    let by_id = || vec![Filter::eq("id", 1)];
    vec![
        iscsi::GetGlobal.encode(d),
        iscsi::QueryTargets(by_id()).encode(d),
        iscsi::QueryExtents(by_id()).encode(d),
        iscsi::QueryTargetExtents(by_id()).encode(d),
        iscsi::QueryPortals(by_id()).encode(d),
        iscsi::QueryInitiators(by_id()).encode(d),
        iscsi::QueryAuths(vec![Filter::eq("tag", 1)]).encode(d),
        iscsi::QuerySessions(vec![Filter::eq("target", "iqn.x:y")]).encode(d),
        target(None).encode(d),
        target(Some(128)).encode(d),
        iscsi::UpdateTarget {
            id: 1,
            groups: groups.clone(),
        }
        .encode(d),
        iscsi::DeleteTarget { id: 1, force: true }.encode(d),
        iscsi::CreateExtent {
            name: "pvc-1".to_owned(),
            zvol: "tank/v".to_owned(),
            serial: Some("0123456789abcde".to_owned()),
            comment: "made by a test".to_owned(),
            block_size: 512,
            hide_physical_block_size: true,
            insecure_tpc: true,
            xen: false,
            rpm: "SSD".to_owned(),
            avail_threshold: Some(80),
            read_only: false,
        }
        .encode(d),
        iscsi::DeleteExtent { id: 1, force: true }.encode(d),
        iscsi::CreateTargetExtent {
            target: 1,
            extent: 1,
            lun: Some(0),
        }
        .encode(d),
        iscsi::DeleteTargetExtent { id: 1, force: true }.encode(d),
        iscsi::CreateInitiators {
            initiators: vec!["iqn.2000-01.x:y".to_owned()],
            comment: "made by a test".to_owned(),
        }
        .encode(d),
        iscsi::UpdateInitiators {
            id: 1,
            initiators: vec![],
        }
        .encode(d),
        iscsi::DeleteInitiators { id: 1 }.encode(d),
        iscsi::CreateAuth {
            tag: 1,
            user: "user".to_owned(),
            secret: "secret-secret".into(),
            peer: Some(("nas".to_owned(), "another-secret".into())),
        }
        .encode(d),
        iscsi::DeleteAuth { id: 1 }.encode(d),
    ]
}

fn nvmet(d: &Dialect) -> Vec<Encoded> {
    let by_id = || vec![Filter::eq("id", 1)];
    let mut all = vec![
        nvmet::GetNvmeGlobal.encode(d),
        nvmet::QuerySubsystems(by_id()).encode(d),
        nvmet::QueryNamespaces(vec![Filter::eq("device_path", "zvol/tank/v")]).encode(d),
        nvmet::QueryPorts(by_id()).encode(d),
        nvmet::QueryHosts(vec![Filter::eq("hostnqn", "nqn.x")]).encode(d),
        nvmet::QueryPortLinks(vec![Filter::eq("subsys.id", 1)]).encode(d),
        nvmet::QueryHostLinks(vec![Filter::eq("host.id", 1)]).encode(d),
        nvmet::QueryNvmeSessions(vec![Filter::eq("subsys_id", 1)]).encode(d),
        nvmet::CreateSubsystem {
            name: "pvc-1".to_owned(),
            subnqn: Some("nqn.2011-06.com.example:pvc-1".to_owned()),
            allow_any_host: true,
            qid_max: Some(4),
            ieee_oui: Some("000000".to_owned()),
            ana: Some(false),
            pi_enable: Some(false),
        }
        .encode(d),
        nvmet::UpdateSubsystem {
            id: 1,
            allow_any_host: false,
        }
        .encode(d),
        nvmet::CreateNamespace {
            subsystem: 1,
            zvol: "tank/v".to_owned(),
            nsid: Some(1),
        }
        .encode(d),
        nvmet::CreateHost {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
                .to_owned(),
            key: Some("DHHC-1:00:AAAA:".into()),
            controller_key: Some("DHHC-1:00:BBBB:".into()),
            dh_group: Some("2048-BIT".to_owned()),
            hash: Some("SHA-256".to_owned()),
        }
        .encode(d),
        nvmet::UpdateHost {
            id: 1,
            key: "DHHC-1:00:AAAA:".into(),
        }
        .encode(d),
        nvmet::LinkPort {
            port: 1,
            subsystem: 1,
        }
        .encode(d),
        nvmet::LinkHost {
            host: 1,
            subsystem: 1,
        }
        .encode(d),
    ];
    for row in [
        nvmet::DeleteNvme::Subsystem { id: 1, force: true },
        nvmet::DeleteNvme::Namespace(1),
        nvmet::DeleteNvme::Host(1),
        nvmet::DeleteNvme::PortLink(1),
        nvmet::DeleteNvme::HostLink(1),
    ] {
        all.push(row.encode(d));
    }
    all
}

#[test]
fn what_a_generation_lacks_is_refused_before_anything_is_sent() {
    let refused = |generation| {
        let calls = all(&Dialect::of(generation));
        let errors = calls.into_iter().filter_map(Result::err);
        errors
            .inspect(|error| assert_eq!(error.kind(), Kind::Unsupported, "{error}"))
            .count()
    };
    assert!(refused(Generation::Core) > refused(Generation::V22_12));
    assert!(refused(Generation::V25_04) > refused(Generation::V25_10));
    // What went: the plain calls of services, the update of snapshots, xattr.
    assert_eq!(refused(Generation::V26), 6);
}

#[test]
fn every_request_of_the_sources_is_encoded_here() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let files = fs::read_dir(folder).expect("the sources");
    let mut requests = Vec::new();
    for file in files {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a text");
        for line in text.lines() {
            let name = line.split_once("Request for ").map(|(_, name)| name);
            let name = name.filter(|_| line.starts_with("impl "));
            requests.extend(name.map(|name| name.trim_end_matches(" {").to_owned()));
        }
    }
    assert!(requests.len() > 50, "{requests:?}");
    let here = include_str!("catalogue.rs");
    requests.retain(|name| !here.contains(name.as_str()));
    assert!(requests.is_empty(), "{requests:?}");
}

#[test]
fn every_request_is_one_that_its_generation_knows() {
    for (ours, theirs) in SIMULATED {
        let calls = all(&Dialect::of(ours)).into_iter().flatten();
        for call in calls {
            let checked = truenas_sim::check(theirs, call.method(), call.params());
            let method = call.method();
            assert_eq!(
                checked,
                Ok(()),
                "{} {method} {:?}",
                theirs.name(),
                call.params()
            );
        }
    }
}

#[test]
fn a_call_prints_no_argument() {
    for call in all(&Dialect::of(Generation::V26)).into_iter().flatten() {
        let printed = format!("{call:?}");
        assert!(
            !printed.contains("secret") && !printed.contains("DHHC"),
            "{printed}"
        );
    }
}
