use super::snapshot::read;
use super::*;
use crate::backup::time;
use std::time::SystemTime;

fn seconds(text: &str) -> Option<Duration> {
    time(text).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
}

#[test]
fn times_of_restic_are_read_in_every_zone() {
    for (text, wanted) in [
        ("1970-01-01T00:00:00Z", Some((0, 0))),
        ("2000-02-29T12:00:00Z", Some((951_825_600, 0))),
        (
            "2026-11-25T23:22:51.291366555Z",
            Some((1_795_648_971, 291_366_555)),
        ),
        (
            "2026-11-26T00:22:51.5+01:00",
            Some((1_795_648_971, 500_000_000)),
        ),
        ("2026-11-25T18:52:51-04:30", Some((1_795_648_971, 0))),
        ("1969-12-31T23:59:59Z", None),
        ("2026-11-25", None),
        ("", None),
    ] {
        let wanted = wanted.map(|(seconds, nanos)| Duration::new(seconds, nanos));
        assert_eq!(seconds(text), wanted, "{text}");
    }
}

fn printed(tags: &str) -> Vec<Backup> {
    let text = format!(
        r#"[{{"time":"2026-11-25T23:22:51Z","tree":"1c","paths":["/b/v/pvc-1"],"hostname":"undefined",
            "tags":[{tags}],"id":"bb747e82"}}]"#
    );
    read(text.as_bytes(), |instance| instance == Some("i")).expect("json")
}

#[test]
fn only_a_named_snapshot_of_the_instance_is_one_however_its_tag_is_glued() {
    let source = r#""source=democratic-csi""#;
    let name = r#""csi_snapshot_name=s""#;
    let glued = r#""csi_volume_id=pvc-1csi_instance_id=i""#;
    let apart = r#""csi_volume_id=pvc-1","csi_instance_id=i""#;
    for own in [glued, apart] {
        let found = printed(&format!("{source},{own},{name}"));
        assert_eq!(found.len(), 1, "{own}");
        assert_eq!((found[0].volume.as_str(), &*found[0].name), ("pvc-1", "s"));
    }
    for tags in [
        format!("{source},{glued}"),
        format!("{glued},{name}"),
        format!(r#"{source},"csi_volume_id=pvc-1",{name}"#),
        format!(r#"{source},"csi_volume_id=pvc-1csi_instance_id=j",{name}"#),
        format!(r#"{source},"csi_volume_id=../xcsi_instance_id=i",{name}"#),
    ] {
        assert_eq!(printed(&tags), [], "{tags}");
    }
    assert_eq!(read(b"null", |_| true).expect("json"), []);
}

#[test]
fn a_restore_is_whole_unless_more_than_attributes_failed() {
    let owner = "ignoring error for /a: lchown /t/a: operation not permitted\n";
    let times = "ignoring error for /a: UtimesNano: operation not permitted\n";
    let content = "ignoring error for /b: write /t/b: no space left on device\n";
    let named = "ignoring error for /xattr: lchown x: write /t/xattr: lchown x: no space left\n";
    let end = |count: usize| format!("Fatal: There were {count} errors\n");
    let judge = |said: String| only_metadata(&said, "/t");
    assert!(judge(format!("{owner}{}", end(1))));
    assert!(judge(format!("{owner}{times}{}", end(2))));
    assert!(!judge(format!("{owner}{content}{}", end(2))));
    assert!(!judge(format!("{named}{}", end(1))));
    assert!(!judge(format!("{owner}{}", end(2))), "a line is missing");
    assert!(!judge(end(1)) && !judge(end(0)));
    assert!(!judge(owner.to_owned()));
}

#[test]
fn the_version_is_read() {
    assert_eq!(version("restic 0.14.0 compiled with go1.19"), Some((0, 14)));
    assert_eq!(version("restic 0.18.0-dev (x) compiled"), Some((0, 18)));
    assert_eq!(version("something"), None);
}

/// What restic 0.14 printed on standard error where one of two packs was removed, with fewer of its ten tries.
const WITHOUT_A_PACK: &str = "\
Load(<data/f8969da806>, 900150, 0) returned error, retrying after 552.330144ms: open /r/data/f8/f8969da806: no such file or directory
Load(<data/f8969da806>, 900150, 0) returned error, retrying after 15.394871241s: open /r/data/f8/f8969da806: no such file or directory
ignoring error for /src/f1: StreamPack: open /r/data/f8/f8969da806: no such file or directory
ignoring error for /src/f2: StreamPack: open /r/data/f8/f8969da806: no such file or directory
ignoring error for /src/f1: UtimesNano: no such file or directory
ignoring error for /src/f2: UtimesNano: no such file or directory
Fatal: There were 4 errors
";

#[test]
fn a_restore_without_a_pack_is_an_error_that_names_the_repository() {
    assert!(!only_metadata(WITHOUT_A_PACK, "/target"));
    let output = Output {
        status: exec::Status::Exit(1),
        stdout: Vec::new(),
        stderr: WITHOUT_A_PACK.into(),
    };
    let error = output.check(&Command::new(TOOL)).expect_err("exit code 1");
    let error = failed("restoring snapshot s", error);
    assert_eq!(error.kind(), Kind::Internal);
    let advice = error.advice().unwrap_or_default();
    assert!(
        advice.contains("packs of the repository are lost"),
        "{advice}"
    );
}
