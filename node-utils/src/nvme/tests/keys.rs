//! Attaching with a key: the kernel gets it by `/dev/nvme-fabrics`, and no program does.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use csi_types::error::Kind;

use super::attaching::{Target, attach_with, tools};
use crate::tools::Tools;

const KEY: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const THEIRS: &str = "DHHC-1:00:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:";
/// What the kernel shows of the words that it knows.
const WORDS: &str = "instance=-1,cntlid=-1,transport=%s,traddr=%s,trsvcid=%s,nqn=%s,queue_size=%d,\
                     nr_io_queues=%d,reconnect_delay=%d,ctrl_loss_tmo=%d,keep_alive_tmo=%d,hostnqn=%s,\
                     host_traddr=%s,host_iface=%s,hostid=%s,duplicate_connect,hdr_digest,data_digest,\
                     keyring=%d,tls_key=%d,dhchap_secret=%s,dhchap_ctrl_secret=%s,tls\n";

/// The tools of a node whose key is this.
fn with_key(target: &Arc<Target>, key: &str) -> Tools {
    let path = target.tree.path("etc/key");
    target.tree.file("etc/key", key);
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("mode");
    tools(target).with_nvme_key(Some(path))
}

/// Makes the connection of the next line that is written to the kernel. The line is kept.
fn connects(target: &Arc<Target>) -> Arc<Mutex<Option<String>>> {
    target.tree.file("dev/nvme-fabrics", WORDS);
    let kept = Arc::new(Mutex::new(None));
    let (of, line) = (Arc::clone(target), Arc::clone(&kept));
    target.tree.on_write(move |path, text| {
        if !path.ends_with("dev/nvme-fabrics") {
            return true;
        }
        let value = |name: &str| {
            let mut fields = text.split(',').filter_map(|field| field.split_once('='));
            let found = fields.find(|(known, _)| *known == name);
            found.expect("field").1.to_owned()
        };
        let host = (value("hostnqn"), value("hostid"));
        of.controller("nvme0", &value("traddr"), (&host.0, &host.1), "live");
        of.tree.file("sys/class/nvme/nvme0/dhchap_secret", KEY);
        of.namespaces();
        *line.lock().expect("lock") = Some(text.to_owned());
        false
    });
    kept
}

fn written(kept: &Arc<Mutex<Option<String>>>) -> Option<String> {
    kept.lock().expect("lock").clone()
}

fn way(options: &str) -> [String; 1] {
    [format!("tcp://10.0.0.1:4440{options}")]
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_node_goes_to_the_kernel_and_to_no_program() {
    let target = Target::new(true);
    let kept = connects(&target);
    let tools = with_key(&target, KEY);
    let attached = attach_with(&target, &tools, &way("?hdr-digest")).await;
    assert_eq!(attached.expect("attached").device.name(), "nvme0n2");
    assert!(target.commands().is_empty());
    let line = written(&kept).expect("a line");
    let start = format!(
        "nqn={},transport=tcp,traddr=10.0.0.1,trsvcid=4440,",
        target.nqn
    );
    assert!(line.starts_with(&start), "{line}");
    let end = format!(",keep_alive_tmo=5,hdr_digest,dhchap_secret={KEY}");
    assert!(line.ends_with(&end), "{line}");
    let shown = target.tree.path("sys/class/nvme/nvme0/dhchap_secret");
    let mode = shown.metadata().expect("file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_volume_comes_before_that_of_the_node_and_is_no_argument_either() {
    for of_node in [false, true] {
        let target = Target::new(true);
        let kept = connects(&target);
        let tools = if of_node {
            with_key(&target, KEY)
        } else {
            tools(&target)
        };
        let way = way(&format!("?dhchap-secret={THEIRS}"));
        let attached = attach_with(&target, &tools, &way).await;
        attached.expect("attached");
        assert!(target.commands().is_empty());
        let line = written(&kept).expect("a line");
        let end = format!(",dhchap_secret={THEIRS}");
        assert!(line.ends_with(&end) && !line.contains(KEY), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_no_argument_by_whatever_spelling_its_option_is_understood() {
    for (option, name) in [
        ("dhchap-s", "dhchap_secret"),
        ("--dhchap_secr", "dhchap_secret"),
        ("dhchap-ctrl-secret", "dhchap_ctrl_secret"),
        ("dhchap-c", "dhchap_ctrl_secret"),
    ] {
        let target = Target::new(true);
        let kept = connects(&target);
        let way = way(&format!("?{option}={THEIRS}"));
        let attached = attach_with(&target, &tools(&target), &way).await;
        attached.expect(option);
        assert!(target.commands().is_empty());
        let line = written(&kept).expect("a line");
        assert!(line.ends_with(&format!(",{name}={THEIRS}")), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_proves_itself_by_its_own_key_to_a_target_that_proves_itself_too() {
    let target = Target::new(true);
    let kept = connects(&target);
    let way = way(&format!("?dhchap-ctrl-secret={THEIRS}"));
    let attached = attach_with(&target, &with_key(&target, KEY), &way).await;
    attached.expect("attached");
    let line = written(&kept).expect("a line");
    let end = format!(",dhchap_ctrl_secret={THEIRS},dhchap_secret={KEY}");
    assert!(line.ends_with(&end), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_none_or_may_be_either_goes_neither_to_the_kernel_nor_to_a_program() {
    for (option, name) in [
        ("dhchap-secret", "dhchap_secret"),
        ("dhchap-c", "dhchap_ctrl_secret"),
        ("dhchap", "dhchap"),
        ("dhchap-secrets", "dhchap_secrets"),
    ] {
        let target = Target::new(true);
        let kept = connects(&target);
        let way = way(&format!("?{option}=c4n4ry"));
        let error = attach_with(&target, &tools(&target), &way).await;
        let error = error.expect_err(option);
        assert_eq!(error.kind(), Kind::Invalid, "{option}");
        let text = error.chain();
        assert!(text.contains(&format!("`{name}`")), "{text}");
        assert!(!text.contains("c4n4ry"), "{text}");
        assert_eq!(written(&kept), None, "{option}");
        assert!(target.commands().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_connection_that_is_there_already_are_hidden() {
    let target = Target::new(true);
    target.controller("nvme0", "10.0.0.1", ("nqn.h", "i"), "live");
    target.namespaces();
    let shown = ["dhchap_secret", "dhchap_ctrl_secret"].map(|name| {
        let path = format!("sys/class/nvme/nvme0/{name}");
        target.tree.file(&path, KEY);
        target.tree.path(&path)
    });
    for path in &shown {
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(path, mode).expect("mode");
    }
    let attached = attach_with(&target, &tools(&target), &way("")).await;
    attached.expect("attached");
    assert!(target.commands().is_empty(), "nothing was missing");
    for path in &shown {
        let mode = path.metadata().expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kernel_without_keys_gets_none_to_write_into_its_log() {
    let target = Target::new(true);
    target.tree.file("dev/nvme-fabrics", "transport=%s\n");
    let tools = with_key(&target, KEY);
    let error = attach_with(&target, &tools, &way("")).await;
    let error = error.expect_err("no keys");
    assert_eq!(error.kind(), Kind::Unreachable);
    let text = error.chain();
    assert!(
        text.contains("DH-CHAP") && text.contains("unset OMNIBUS_CSI_NVME_KEY_FILE"),
        "{text}"
    );
    assert!(!error.chain().contains("DHHC"), "{}", error.chain());
    assert_eq!(target.tree.read("dev/nvme-fabrics"), "transport=%s\n");
    assert!(target.commands().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_option_that_only_a_program_knows_is_named_where_a_key_is_needed() {
    for (option, name) in [
        ("persistent", "persistent"),
        ("keyring=.nvme", "keyring"),
        ("tls-key=c4n4ry", "tls_key"),
        ("nr-io=4", "nr_io"),
        ("hdr-digest=1", "hdr_digest"),
    ] {
        let target = Target::new(true);
        let kept = connects(&target);
        let way = way(&format!("?{option}"));
        let error = attach_with(&target, &with_key(&target, KEY), &way).await;
        let error = error.expect_err(option);
        assert_eq!(error.kind(), Kind::Invalid, "{option}");
        let text = error.chain();
        assert!(
            text.contains(&format!("`{name}`")) && text.contains("cat /dev/nvme-fabrics"),
            "{text}"
        );
        assert!(!text.contains("c4n4ry"), "{text}");
        assert_eq!(written(&kept), None, "{option}");
        assert!(target.commands().is_empty());
        let attached = attach_with(&target, &tools(&target), &way).await;
        attached.expect(option);
        assert_eq!(target.commands().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_wrong_is_an_error_with_its_file_and_connects_nothing() {
    let target = Target::new(true);
    target.tree.file("dev/nvme-fabrics", WORDS);
    let tools = with_key(&target, &KEY.replace("AQID", "AQIE"));
    let error = attach_with(&target, &tools, &way("")).await;
    let error = error.expect_err("mistyped");
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.chain().contains("etc/key"), "{}", error.chain());
    assert_eq!(target.tree.read("dev/nvme-fabrics"), WORDS);
    assert!(target.commands().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_key_is_not_there_connects_without_one() {
    let target = Target::new(true);
    let missing = target.tree.path("etc/nowhere/key");
    let tools = tools(&target).with_nvme_key(Some(missing));
    let attached = attach_with(&target, &tools, &way("")).await;
    attached.expect("attached");
    assert_eq!(target.commands().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_key_of_the_node_is_no_matter_of_a_volume_with_its_own() {
    let target = Target::new(true);
    let kept = connects(&target);
    let tools = with_key(&target, "no key");
    let way = way(&format!("?dhchap-secret={KEY}"));
    let attached = attach_with(&target, &tools, &way).await;
    attached.expect("attached");
    let line = written(&kept).expect("a line");
    assert!(line.ends_with(&format!(",dhchap_secret={KEY}")), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_key_of_the_node_is_no_matter_of_those_routes_that_have_their_own() {
    let target = Target::new(true);
    let kept = connects(&target);
    let tools = with_key(&target, "no key");
    let ways = [
        "tcp://10.0.0.2:4440".to_owned(),
        format!("tcp://10.0.0.1:4440?dhchap-secret={THEIRS}"),
    ];
    let attached = attach_with(&target, &tools, &ways).await;
    attached.expect("attached");
    let line = written(&kept).expect("a line");
    assert!(line.contains(",traddr=10.0.0.1,"), "{line}");
    assert!(
        line.ends_with(&format!(",dhchap_secret={THEIRS}")),
        "{line}"
    );
    assert!(target.commands().is_empty());
    assert_eq!(target.controllers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_comes_to_nothing_is_an_error_that_says_what_the_target_has_to_know() {
    let target = Target::new(true);
    target.tree.file("dev/nvme-fabrics", WORDS);
    let tools = with_key(&target, KEY);
    let error = attach_with(&target, &tools, &way("")).await;
    let error = error.expect_err("refused");
    assert_eq!(error.kind(), Kind::Unreachable);
    let text = error.chain();
    assert!(
        text.contains("allow nqn.") && text.contains("same key"),
        "{text}"
    );
    assert!(!text.contains("DHHC"), "{text}");
    assert!(target.controllers().is_empty());
}
