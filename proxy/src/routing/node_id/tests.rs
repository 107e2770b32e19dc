//! Ids of nodes, encoded and decoded, and their names at backends.

use driver_core::config::{Document, NoEnvironment};

use super::*;
use crate::routing::connection::PerDriver;

fn config(yaml: &str) -> NodeIdConfig {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    document.section("nodeId").expect("keys")
}

fn addresses() -> Vec<IpAddr> {
    let parse = |text: &str| text.parse().expect("an address");
    ["10.0.0.9", "fd00::9"].map(parse).into()
}

const ALL: &str = "
nodeId:
  parts: {nodeName: true, hostname: true, iqn: true, nqn: true, addresses: true}
  networks: [10.0.0.0/8, 'fd00::/64']
  iqnPrefix: [{shortName: deb, prefix: 'iqn.1993-08.org.debian:01:'}]
  nqnPrefix: [{shortName: '1', prefix: 'nqn.2014-08.org.nvmexpress:uuid:'}]";

fn written(yaml: &str) -> Result<NodeId, ConfigError> {
    let config = config(yaml);
    config.check()?;
    let name = NodeId::parse("node-1").expect("name");
    let initiators = Initiators {
        iqn: &|| Ok("iqn.1993-08.org.debian:01:ab".to_owned()),
        nqn: &|| Ok("nqn.2014-08.org.nvmexpress:uuid:77".to_owned()),
        addresses: &|_| Ok(addresses()),
    };
    config.of_this_node(&name, "host-1", &initiators)
}

#[test]
fn an_id_has_the_configured_parts_and_is_read_back_with_the_same_tables() {
    let plain = written("nodeId: {}").expect("an id");
    assert_eq!(plain.as_str(), "n=node-1");
    let id = written(ALL).expect("an id");
    assert_eq!(
        id.as_str(),
        "n=node-1/h=host-1/ideb=ab/v1=77/a=10.0.0.9,fd00::9"
    );
    let read = config(ALL).read(&id).expect("ours");
    assert_eq!(read.iqn.as_deref(), Some("iqn.1993-08.org.debian:01:ab"));
    assert_eq!(
        read.nqn.as_deref(),
        Some("nqn.2014-08.org.nvmexpress:uuid:77")
    );
    assert_eq!(read.addresses, addresses());
    let foreign = [
        "node-1",
        "x=1",
        "n=a/n=b",
        "n=",
        "izz=ab",
        "n=a/",
        "a=",
        "a=x",
        "a=10.0.0.9/a=10.0.0.8",
    ];
    for foreign in foreign {
        let id = NodeId::parse(foreign).expect("text");
        assert_eq!(config(ALL).read(&id), None, "{foreign}");
    }
}

#[test]
fn tables_that_make_no_id_are_refused_with_their_key() {
    for (yaml, path) in [
        ("nodeId: {parts: {nodeName: false}}", "proxy.nodeId.parts"),
        ("nodeId: {parts: {iqn: true}}", IQN_PREFIX),
        ("nodeId: {parts: {addresses: true}}", NETWORKS),
        (
            "nodeId: {parts: {iqn: true}, iqnPrefix: [{shortName: A, prefix: x}]}",
            "proxy.nodeId.iqnPrefix[0].shortName",
        ),
        (
            "nodeId: {parts: {nqn: true}, nqnPrefix: [{shortName: a, prefix: x}]}",
            NQN_PREFIX,
        ),
    ] {
        let error = written(yaml).expect_err(path);
        assert_eq!(error.path(), Some(path));
    }
}

#[test]
fn each_backend_gets_the_part_that_it_knows() {
    let identity = NodeIdentity {
        node_name: Some("node-1".to_owned()),
        hostname: Some("host-1".to_owned()),
        iqn: Some("iqn.a".to_owned()),
        nqn: None,
        addresses: Vec::new(),
    };
    let id = NodeId::parse("n=node-1/h=host-1/ia=a").expect("id");
    let mapped = |yaml: &str| {
        let yaml = format!("proxy: {{perDriver: {{{yaml}}}}}");
        let document = Document::parse(&yaml, &NoEnvironment).expect("yaml");
        let mapping = PerDriver::read(&document)
            .expect("keys")
            .mapping()
            .expect("a mapping");
        mapping.of(&id, &identity).map(|id| id.as_str().to_owned())
    };
    assert_eq!(mapped("").expect("id"), "node-1", "as without a proxy");
    assert_eq!(mapped("nodeIdType: whole").expect("id"), id.as_str());
    assert_eq!(mapped("nodeIdType: hostname").expect("id"), "host-1");
    assert_eq!(mapped("nodeIdType: iqn").expect("id"), "iqn.a");
    assert_eq!(
        mapped("nodeIdType: nqn").expect_err("none").kind(),
        driver_core::Kind::NotFound
    );
    let map = "nodeIdMap: [{nodeName: node-1, value: x1}]";
    assert_eq!(
        mapped(&format!("nodeIdType: local, {map}")).expect("id"),
        "x1"
    );
    let template = "nodeIdTemplate: '{{ hostname }}.example.org'";
    assert_eq!(
        mapped(&format!("nodeIdType: local, {template}")).expect("id"),
        "host-1.example.org"
    );
}

#[test]
fn an_id_without_the_name_of_a_node_is_passed_on_unchanged() {
    let id = NodeId::parse("h=host-1").expect("id");
    let identity = NodeIdentity {
        hostname: Some("host-1".to_owned()),
        ..NodeIdentity::default()
    };
    let mapped = Mapping::default().of(&id, &identity);
    assert_eq!(mapped.expect("id"), id);
}
