use driver_core::VolumeId;

use super::*;
use crate::testing::keeper::{Held, Keeper};

#[test]
fn a_size_is_read_as_a_claim_asks_for_it() {
    for (text, bytes) in [
        ("1", 1),
        ("10Gi", 10 << 30),
        ("5G", 5_000_000_000),
        ("64Mi", 64 << 20),
        ("2k", 2_000),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in [
        "",
        "0",
        "Gi",
        "-1",
        "+1",
        "1.5Gi",
        "1gi",
        "10 Gi",
        "16384Pi",
        "9223372036854775808",
    ] {
        assert!(size(text).is_err(), "{text}");
    }
}

fn plan(state: AdoptionState) -> Adoption {
    Adoption {
        id: VolumeId::parse("photos").expect("an id"),
        state,
        steps: vec!["set refquota=1".to_owned(), "change the export".to_owned()],
        remarks: vec!["its 3 snapshots stay".to_owned()],
    }
}

#[test]
fn what_is_done_and_what_would_be_are_different_words() {
    let said = report(
        "tank/photos",
        "v:nas/photos",
        &plan(AdoptionState::Open),
        true,
    );
    let expected = "\
tank/photos would become the volume `v:nas/photos`:
  set refquota=1
  change the export
  mark it as a volume
note: its 3 snapshots stay
";
    assert_eq!(said, expected);
    let said = report(
        "tank/photos",
        "v:nas/photos",
        &plan(AdoptionState::Open),
        false,
    );
    assert!(said.starts_with("tank/photos becomes the volume"), "{said}");
    let said = report(
        "tank/photos",
        "v:nas/photos",
        &plan(AdoptionState::Done),
        false,
    );
    assert!(said.starts_with("tank/photos was adopted as"), "{said}");
    assert!(!said.contains("mark it"), "{said}");
}

#[test]
fn one_connection_is_meant() {
    let connection = |name| Keeper::of(Held::default()).connection(name);
    let of = |connections| Chosen {
        connections,
        problems: Vec::new(),
    };
    assert!(only(of(vec![connection("a")]), false).is_ok());
    assert!(only(of(vec![connection("a"), connection("b")]), false).is_err());
    assert!(only(of(vec![]), false).is_err());
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    flags: AdoptFlags,
}

#[tokio::test]
async fn a_driver_that_cannot_is_refused_by_its_name() {
    let line = [
        "x",
        "--driver-config-file=/c.yaml",
        "--csi-name=org.example.csi",
        "tank/photos",
    ];
    let line = <Line as clap::Parser>::try_parse_from(line).expect("good flags");
    let connection = Keeper::of(Held::default()).connection("nas");
    let refused = adopt(&connection, &line.flags).await;
    let expected = "nas: the driver `keeper` cannot make a volume of what exists";
    assert_eq!(refused, Err(expected.to_owned()));
}
