//! Shares, targets and subsystems on a strict simulator of each generation.

use super::*;

#[tokio::test]
async fn nfs_and_smb_shares_are_found_by_their_directory() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.filesystem("tank/a").await.expect("created");
        let path = || "/mnt/tank/a".to_owned();
        let options = nfs::NfsOptions {
            hosts: vec!["192.0.2.1".to_owned()],
            maproot_user: Some("root".to_owned()),
            enabled: true,
            ..nfs::NfsOptions::default()
        };
        let create = nfs::CreateNfsShare {
            path: path(),
            all_dirs: false,
            options,
        };
        let created = on.client.call(&create).await.expect("created");
        let found = on
            .client
            .call(&nfs::FindNfsShares { path: path() })
            .await
            .expect("read");
        assert_eq!(found, std::slice::from_ref(&created), "{ours}");
        assert_eq!(found[0].options.hosts, ["192.0.2.1"]);
        let mut options = create.options.clone();
        options.hosts.push("192.0.2.2".to_owned());
        let update = nfs::UpdateNfsShare {
            id: created.id,
            options,
        };
        let updated = on.client.call(&update).await.expect("updated");
        assert_eq!(updated.options.hosts.len(), 2, "{ours}");
        let delete = nfs::DeleteNfsShare { id: created.id };
        on.client.call(&delete).await.expect("deleted");
        assert_eq!(
            kind(on.client.call(&delete).await),
            Kind::NotFound,
            "{ours}"
        );
        let create = smb::CreateSmbShare {
            name: "share".to_owned(),
            path: path(),
            options: smb::SmbOptions {
                read_only: Some(true),
                access_based_enumeration: Some(true),
                guest_ok: Some(true),
                ..smb::SmbOptions::default()
            },
        };
        let created = on.client.call(&create).await.expect("created");
        assert!(created.readonly, "{ours}");
        assert_eq!(kind(on.client.call(&create).await), Kind::Exists, "{ours}");
        let found = on
            .client
            .call(&smb::FindSmbShares { path: path() })
            .await
            .expect("read");
        assert_eq!(found, std::slice::from_ref(&created), "{ours}");
        on.client
            .call(&smb::DeleteSmbShare { id: created.id })
            .await
            .expect("deleted");
    }
}

#[tokio::test]
async fn an_iscsi_target_is_made_and_taken_away() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.volume("tank/v").await.expect("created");
        let initiators = iscsi::CreateInitiators {
            initiators: vec!["iqn.2000-01.com.example:node".to_owned()],
            comment: "csi".to_owned(),
        };
        let initiators = on.client.call(&initiators).await.expect("created");
        let auth = iscsi::CreateAuth {
            tag: 5,
            user: "user".to_owned(),
            secret: "secret-secret".into(),
            peer: None,
        };
        on.client.call(&auth).await.expect("created");
        let basename = on
            .client
            .call(&iscsi::GetGlobal)
            .await
            .expect("read")
            .basename;
        assert!(basename.starts_with("iqn."), "{ours}");
        let extent = iscsi::CreateExtent {
            name: "pvc-1".to_owned(),
            zvol: "tank/v".to_owned(),
            serial: None,
            comment: String::new(),
            block_size: 512,
            hide_physical_block_size: true,
            insecure_tpc: true,
            xen: false,
            rpm: "SSD".to_owned(),
            avail_threshold: None,
            read_only: false,
        };
        let made = on.client.call(&extent).await.expect("created");
        assert_eq!(made.disk.as_deref(), Some("zvol/tank/v"), "{ours}");
        assert!(made.naa.is_some(), "{ours}");
        assert_eq!(kind(on.client.call(&extent).await), Kind::Exists, "{ours}");
        let portals = on
            .client
            .call(&iscsi::QueryPortals(vec![]))
            .await
            .expect("read");
        let groups = portals.iter().map(|portal| iscsi::TargetGroup {
            portal: portal.id,
            initiator: Some(initiators.id),
            auth_method: "CHAP".to_owned(),
            auth: Some(5),
        });
        let target = iscsi::CreateTarget {
            name: "pvc-1".to_owned(),
            groups: groups.collect(),
            ..iscsi::CreateTarget::default()
        };
        let target_made = on.client.call(&target).await.expect("created");
        assert_eq!(kind(on.client.call(&target).await), Kind::Exists, "{ours}");
        let lun = iscsi::CreateTargetExtent {
            target: target_made.id,
            extent: made.id,
            lun: Some(0),
        };
        let lun_made = on.client.call(&lun).await.expect("created");
        assert_eq!(kind(on.client.call(&lun).await), Kind::Exists, "{ours}");
        let query = iscsi::QueryTargetExtents(vec![Filter::eq("extent", made.id)]);
        assert_eq!(on.client.call(&query).await, Ok(vec![lun_made]), "{ours}");
        let remove = iscsi::DeleteTarget {
            id: target_made.id,
            force: true,
        };
        on.client.call(&remove).await.expect("deleted");
        assert_eq!(on.client.call(&query).await, Ok(vec![]), "{ours}");
        let remove = iscsi::DeleteExtent {
            id: made.id,
            force: true,
        };
        on.client.call(&remove).await.expect("deleted");
        on.delete("tank/v").await.expect("deleted");
    }
}

#[tokio::test]
async fn an_nvme_subsystem_is_made_and_taken_away() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.volume("tank/v").await.expect("created");
        let subsystem = nvmet::CreateSubsystem {
            name: "pvc-1".to_owned(),
            ..nvmet::CreateSubsystem::default()
        };
        let made = on.client.call(&subsystem).await;
        if ours < Generation::V25_10 {
            assert_eq!(kind(made), Kind::Unsupported);
            continue;
        }
        let made = made.expect("created");
        assert_eq!(
            kind(on.client.call(&subsystem).await),
            Kind::Exists,
            "{ours}"
        );
        let namespace = nvmet::CreateNamespace {
            subsystem: made.id,
            zvol: "tank/v".to_owned(),
            nsid: None,
        };
        let namespace_made = on.client.call(&namespace).await.expect("created");
        assert_eq!(namespace_made.subsys.id, made.id, "{ours}");
        assert_eq!(
            kind(on.client.call(&namespace).await),
            Kind::Exists,
            "{ours}"
        );
        let host = nvmet::CreateHost {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
                .to_owned(),
            key: None,
            controller_key: None,
            dh_group: None,
            hash: None,
        };
        let host = on.client.call(&host).await.expect("created");
        let link = nvmet::LinkHost {
            host: host.id,
            subsystem: made.id,
        };
        let link = on.client.call(&link).await.expect("linked");
        let links = nvmet::QueryHostLinks(vec![Filter::eq("subsys.id", made.id)]);
        assert_eq!(
            on.client.call(&links).await,
            Ok(vec![link.clone()]),
            "{ours}"
        );
        let subsystem = |force| nvmet::DeleteNvme::Subsystem { id: made.id, force };
        assert_eq!(
            kind(on.client.call(&subsystem(false)).await),
            Kind::Dependents,
            "{ours}"
        );
        for row in [
            nvmet::DeleteNvme::HostLink(link.id),
            nvmet::DeleteNvme::Namespace(namespace_made.id),
            subsystem(false),
            nvmet::DeleteNvme::Host(host.id),
        ] {
            on.client
                .call(&row)
                .await
                .unwrap_or_else(|error| panic!("{ours} {row:?}: {error}"));
        }
        assert_eq!(
            kind(on.client.call(&subsystem(true)).await),
            Kind::NotFound,
            "{ours}"
        );
    }
}
