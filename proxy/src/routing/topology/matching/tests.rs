//! The three set-ups of Kubernetes, and what makes them different from democratic-csi.

use driver_core::config::{Document, NoEnvironment};

use super::*;
use crate::routing::connection::PerDriver;

fn reach_with(yaml: &str, keys: &TopologyKeys) -> Result<Accessibility, ConfigError> {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    PerDriver::read(&document)?.accessibility(keys)
}

const TWO_ZONES: &str = "
driver: x
proxy:
  perDriver:
    topology:
      - requirements: {region: region1, zone: zone1}
        extra: {custom.prefix/custom.name: custom.value}
      - requirements: {region: region1, zone: 2}";

fn accessibility() -> Accessibility {
    reach_with(TWO_ZONES, &TopologyKeys::default()).expect("the accessibility")
}

fn place(pairs: &[(&str, &str)]) -> Topology {
    let keys = TopologyKeys::default();
    let pair = |(key, value): &(&str, &str)| (keys.key(key), (*value).to_owned());
    Topology::new(pairs.iter().map(pair).collect())
}

fn zone(name: &str) -> Topology {
    place(&[("region", "region1"), ("zone", name)])
}

fn wanted(requisite: &[Topology]) -> TopologyRequirement {
    TopologyRequirement {
        requisite: requisite.to_vec(),
        preferred: Vec::new(),
    }
}

#[test]
fn without_a_requirement_a_volume_is_made_and_bound_to_what_reaches_it() {
    let accessibility = accessibility();
    assert!(accessibility.accept(&wanted(&[])).is_ok());
    let shown = accessibility.of_volume(&[]);
    assert_eq!(shown.len(), 2);
    assert_eq!(
        shown[0].segments()["custom.prefix/custom.name"],
        "custom.value"
    );
    assert_eq!(
        shown[0].segments()["org.democratic-csi.topology/zone"],
        "zone1"
    );
    assert_eq!(shown[1], zone("2"));
}

#[test]
fn storage_of_a_node_in_a_zone_stays_on_its_node() {
    let shown = accessibility().of_volume(&[place(&[("node", "n1")])]);
    let on = |zone| place(&[("region", "region1"), ("zone", zone), ("node", "n1")]);
    assert_eq!(shown[1], on("2"));
    assert_eq!(
        shown[0].segments()["org.democratic-csi.topology/node"],
        "n1"
    );
    assert_eq!(
        shown[0].segments()["custom.prefix/custom.name"],
        "custom.value"
    );
}

#[test]
fn a_place_without_a_node_is_this_node_if_this_node_is_in_it() {
    let reported = place(&[("node", "n1"), ("zone", "z1")]);
    for prefix in [DEFAULT_PREFIX, "example.org"] {
        let keys = TopologyKeys {
            prefix: prefix.to_owned(),
            rule: Rule::Any,
        };
        let wire = |place: &Topology| {
            let rename = |(key, value): (&String, &String)| {
                let short = key.rsplit('/').next().expect("a key");
                (keys.key(short), value.clone())
            };
            Topology::new(place.segments().iter().map(rename).collect())
        };
        let accessibility = reach_with("driver: x", &keys).expect("the accessibility");
        let accessibility = accessibility.on_node(&Topology::node("n1"), Some(&wire(&reported)));
        let asked = |zone| accessibility.place_for_driver(&wire(&place(&[("zone", zone)])));
        assert!(Topology::node("n1").reaches(&asked("z1")), "{prefix}");
        assert!(!Topology::node("n1").reaches(&asked("z2")), "{prefix}");
        let other = wire(&place(&[("zone", "z1"), ("node", "n2")]));
        let other = accessibility.place_for_driver(&other);
        assert!(!Topology::node("n1").reaches(&other), "{prefix}");
    }
}

#[test]
fn topologies_that_a_class_allows_may_name_fewer_keys_than_the_connection() {
    let class = |name| wanted(&[place(&[("zone", name)])]);
    assert!(accessibility().accept(&class("zone1")).is_ok());
    let error = accessibility()
        .accept(&class("zone3"))
        .expect_err("another zone");
    assert_eq!(error.kind(), Kind::OutOfSpace);
    assert!(error.chain().contains("zone=zone3"), "{}", error.chain());
}

#[test]
fn the_node_of_a_pod_may_have_more_keys_than_the_connection() {
    let node = |zone| place(&[("region", "region1"), ("zone", zone), ("node", "n1")]);
    assert!(accessibility().accept(&wanted(&[node("2")])).is_ok());
    assert!(accessibility().accept(&wanted(&[node("zone3")])).is_err());
}

#[test]
fn one_zone_of_a_cluster_is_enough_unless_all_are_demanded() {
    let cluster = wanted(&[zone("zone3"), zone("2"), zone("zone1")]);
    assert!(accessibility().accept(&cluster).is_ok());
    let strict = TopologyKeys {
        rule: Rule::All,
        ..TopologyKeys::default()
    };
    let strict = reach_with(TWO_ZONES, &strict).expect("the accessibility");
    assert!(strict.accept(&cluster).is_err());
    assert!(strict.accept(&wanted(&[zone("2"), zone("zone1")])).is_ok());
}

#[test]
fn the_preferred_order_decides_among_several_and_refuses_nothing() {
    let mut wish = wanted(&[zone("zone1"), zone("zone3")]);
    wish.preferred = vec![zone("zone3"), zone("zone1")];
    let accessibility = accessibility();
    assert!(accessibility.accept(&wish).is_ok());
    assert_eq!(accessibility.rank(&wish), 1);
    assert_eq!(Accessibility::everywhere().rank(&wish), 0);
}

#[test]
fn keys_of_another_prefix_are_an_error_instead_of_matching_everything() {
    let other = Topology::new([("zone".to_owned(), "zone1".to_owned())].into());
    let error = accessibility()
        .accept(&wanted(&[other]))
        .expect_err("no prefix");
    assert_eq!(error.kind(), Kind::Invalid);
}

#[test]
fn local_storage_follows_the_prefix_both_ways() {
    let keys = TopologyKeys {
        prefix: "example.org".to_owned(),
        rule: Rule::Any,
    };
    let accessibility = reach_with("driver: x", &keys).expect("the accessibility");
    let shown = accessibility.of_volume(&[Topology::node("n1")]);
    assert_eq!(shown[0].segments()["example.org/node"], "n1");
    assert_eq!(
        accessibility.place_for_driver(&shown[0]),
        Topology::node("n1")
    );
}

#[test]
fn what_no_node_could_carry_is_refused_with_its_place() {
    for (yaml, path) in [
        (
            "[{extra: {a: b}}]",
            "proxy.perDriver.topology[0].requirements",
        ),
        (
            "[{requirements: {zone: 'a b'}}]",
            "proxy.perDriver.topology[0]",
        ),
        (
            "[{requirements: {zone: [a]}}]",
            "proxy.perDriver.topology[0].requirements.zone",
        ),
    ] {
        let yaml = format!("{{driver: x, proxy: {{perDriver: {{topology: {yaml}}}}}}}");
        let error = reach_with(&yaml, &TopologyKeys::default()).expect_err(path);
        assert_eq!(error.path(), Some(path));
    }
}
