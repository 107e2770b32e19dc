use csi_types::NodeId;

use super::*;
use crate::testing::keeper::{Held, Keeper};
use crate::testing::volume;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    flags: MoveFlags,
}

fn flags(more: &[&str]) -> Result<MoveFlags, clap::Error> {
    let line = [
        "x",
        "v:nas/pvc-1",
        "--to=ssd",
        "--driver-config-file=/c.yaml",
        "--csi-name=org.example.csi",
    ];
    let line = line.iter().chain(more);
    <Line as clap::Parser>::try_parse_from(line).map(|line| line.flags)
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for good in [
        &[][..],
        &["--finish"],
        &["--finish", "--while-attached"],
        &["--finish", "--dry-run"],
        &["--give-up"],
    ] {
        assert!(flags(good).is_ok(), "{good:?}");
    }
    for bad in [
        &["--while-attached"][..],
        &["--give-up", "--finish"],
        &["--give-up", "--dry-run"],
        &["--size=much"],
        &["--claim=photos"],
    ] {
        assert!(flags(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_new_volume_has_the_size_of_the_old_one_or_the_one_that_is_said() {
    let id = VolumeId::parse("pvc-1").expect("an id");
    let of = |capacity| Volume {
        capacity,
        published_to: vec![NodeId::parse("node-a").expect("a node")],
        ..volume(&id, "/x", None)
    };
    let bytes = |range: SizeRange| range.choose(1).expect("a size");
    for (capacity, said) in [(Some(5), None), (Some(5), Some(5)), (None, Some(5))] {
        let range = wanted(&of(capacity), said).expect("a size");
        assert_eq!(bytes(range), 5);
    }
    let refused = wanted(&of(Some(5)), Some(6)).expect_err("another size");
    assert!(refused.contains("leave --size out"), "{refused}");
    let refused = wanted(&of(None), None).expect_err("no size");
    assert!(refused.contains("--size"), "{refused}");
}

#[tokio::test]
async fn drivers_that_send_no_streams_are_refused_by_their_name_and_with_the_remedy() {
    let connection = |name| Keeper::of(Held::default()).connection(name);
    let ends = Ends {
        source: connection("nas"),
        id: VolumeId::parse("pvc-1").expect("an id"),
        target: connection("ssd"),
    };
    assert_eq!(ends.handle(), "v:nas/pvc-1");
    let refused = ends.movers().err().expect("no streams");
    for word in ["nas: the driver `keeper`", "names `ssd`", "dataSource"] {
        assert!(refused.contains(word), "{refused}");
    }
}
