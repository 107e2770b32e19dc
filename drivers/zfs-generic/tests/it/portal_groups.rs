//! Portal groups of LIO that are there already: what is changed in them, and what is made anew, on a
//! configfs that pretends.

use crate::common::{Ask, Host, LIO, Volume};
use driver_core::NodeId;
use driver_zfs::property::PropertyName;
use driver_zfs_generic::DiskExport;

const GROUP: &str = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-1/tpgt_1";

/// The same without the line that says what nodes are called.
fn open(text: &str) -> String {
    let (start, _) = text.split_once("    nodes:").unwrap();
    start.to_owned()
}

async fn present(host: &Host, export: &DiskExport, volume: &mut Volume) {
    host.settle(export, volume, &Ask::Establish).await.unwrap();
}

#[tokio::test]
async fn initiators_that_the_kernel_remembers_go_with_their_group_unless_it_may_be_in_use() {
    // Whether the kernel lists sessions, and which initiators it lists.
    for sessions in [Some(""), Some("iqn.foreign\n"), None] {
        let host = Host::new();
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        present(&host, &host.export(&open(LIO)), &mut volume).await;
        let memory = host.path(&format!("{GROUP}/memory"));
        std::fs::write(&memory, "iqn.foreign").unwrap();
        let file = host.path(&format!("{GROUP}/dynamic_sessions"));
        match sessions {
            Some(text) => std::fs::write(file, text).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let named = host.export(LIO);
        present(&host, &named, &mut volume).await;
        assert_eq!(memory.exists(), sessions != Some(""), "{sessions:?}");
        let facts = host.facts(&named, &volume).await;
        assert_eq!(facts.missing, [""; 0]);
        let any = host.text(&format!("{GROUP}/attrib/generate_node_acls"));
        assert_eq!(any.trim(), "0");
    }
}

#[tokio::test]
async fn initiators_that_the_kernel_remembers_go_also_after_a_node_was_put_out() {
    let host = Host::new();
    let volume = Volume::new("tank/v", "pvc-1", 7);
    let mut volume = volume.remembering(PropertyName::PUBLISHED, "a,");
    present(&host, &host.export(&open(LIO)), &mut volume).await;
    let memory = host.path(&format!("{GROUP}/memory"));
    std::fs::write(&memory, "iqn.foreign").unwrap();
    let named = host.export(LIO);
    let revoke = Ask::Revoke(Some(NodeId::parse("a").unwrap()));
    host.settle(&named, &mut volume, &revoke).await.unwrap();
    let any = host.text(&format!("{GROUP}/attrib/generate_node_acls"));
    assert_eq!(any.trim(), "0");
    assert!(memory.exists());
    present(&host, &named, &mut volume).await;
    assert!(!memory.exists());
}

#[tokio::test]
async fn a_group_whose_configuration_lets_the_kernel_remember_is_not_made_anew() {
    let host = Host::new();
    let mut volume = Volume::new("tank/v", "pvc-1", 7);
    let tpg = "    tpg: {attributes: {cache_dynamic_acls: 1}}\n";
    let export = host.export(&format!("{LIO}{tpg}"));
    present(&host, &export, &mut volume).await;
    let memory = host.path(&format!("{GROUP}/memory"));
    std::fs::write(&memory, "").unwrap();
    let portal = host.path(&format!("{GROUP}/np/0.0.0.0:3260"));
    std::fs::remove_dir(&portal).unwrap();
    present(&host, &export, &mut volume).await;
    assert!(memory.exists() && portal.is_dir());
}

#[tokio::test]
async fn a_recreated_group_keeps_foreign_portals_at_whatever_step_it_is_interrupted() {
    let (mut steps, mut cut) = (0, 0);
    while cut <= steps {
        let mut host = Host::new();
        let mut volume = Volume::new("tank/v", "pvc-1", 7);
        let open_export = host.export(&open(LIO));
        present(&host, &open_export, &mut volume).await;
        let portals = ["192.0.2.7:3260", "[2001:db8::7]:3261"].map(|portal| {
            let portal = host.path(&format!("{GROUP}/np/{portal}"));
            std::fs::create_dir(&portal).unwrap();
            portal
        });
        // The tool that made the portals saved them too.
        std::fs::remove_file(host.path("etc/saved.json")).unwrap();
        present(&host, &open_export, &mut volume).await;
        let named = host.export(LIO);
        host.counted();
        host.cut = (cut > 0).then_some(cut);
        let ask = Ask::Establish;
        let done = host.settle(&named, &mut volume, &ask).await.is_ok();
        if cut == 0 {
            steps = host.counted();
        }
        assert_eq!(done, cut == 0, "cut {cut} of {steps}");
        host.cut = None;
        present(&host, &named, &mut volume).await;
        for portal in portals {
            assert!(portal.is_dir(), "cut {cut}: {}", portal.display());
        }
        let saved = host.text("etc/saved.json");
        assert!(saved.contains("192.0.2.7") && saved.contains("[2001:db8::7]"));
        assert!(host.facts(&named, &volume).await.missing.is_empty());
        cut += 1;
    }
    assert!(steps > 5, "{steps}");
}

#[tokio::test]
async fn an_attribute_that_the_kernel_does_not_change_is_named_with_advice() {
    let host = Host::new();
    let mut volume = Volume::new("tank/v", "pvc-1", 7);
    let text = open(LIO);
    let export = host.export(&text);
    host.settle(&export, &mut volume, &Ask::Establish)
        .await
        .unwrap();
    let attribute = host.path("cfg/target/core/iblock_0/pvc-1/attrib/emulate_tpu");
    std::fs::remove_file(&attribute).unwrap();
    std::os::unix::fs::symlink("/dev/null", &attribute).unwrap();
    let export = host.export(&format!(
        "{text}    block: {{attributes: {{emulate_tpu: 1}}}}\n"
    ));
    let error = host
        .settle(&export, &mut volume, &Ask::Establish)
        .await
        .unwrap_err();
    assert!(error.stderr().contains("emulate_tpu"), "{error}");
    assert!(error.stderr().contains("see block.attributes"), "{error}");
}
