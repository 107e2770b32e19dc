//! What nodes tell, by both spellings of the rules.

use driver_core::config::{Document, NoEnvironment};

use super::*;

fn topology_of(section: &str) -> Result<BTreeMap<String, String>, ConfigError> {
    let yaml = format!("nodeTopology: {{{section}}}");
    let document = Document::parse(&yaml, &NoEnvironment).expect("yaml");
    let config: NodeTopologyConfig = document.section("nodeTopology")?;
    let keys = TopologyKeys {
        prefix: config.prefix()?,
        ..TopologyKeys::default()
    };
    let topology = NodeTopology::of(config, &keys)?;
    assert_eq!(document.findings(), []);
    let node = NodeId::parse("zone1-node-7").expect("name");
    let read = |path: &Path| match path.to_str() {
        Some("/etc/zone") => Ok("z4\n".to_owned()),
        Some("/labels") => Ok("a=\"b\"\ntopology.kubernetes.io/zone=\"z5\"\n".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let files = topology.files().map(|path| (path.to_owned(), read(path)));
    let sources = Sources {
        node: &node,
        hostname: "host.region2.example.org",
        variable: &|name| (name == "ZONE").then(|| "z3".to_owned()),
        files: &files.collect(),
    };
    let place = topology.tell(&sources);
    let segments = place
        .map(|place| place.segments().clone())
        .unwrap_or_default();
    let short = |(key, value): (String, String)| {
        let key = key.split_once('/').expect("a prefix").1.to_owned();
        (key, value)
    };
    Ok(segments.into_iter().map(short).collect())
}

fn is(section: &str, expected: &[(&str, &str)]) {
    let pairs = expected
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    assert_eq!(
        topology_of(section).expect(section),
        pairs.collect(),
        "{section}"
    );
}

#[test]
fn each_type_tells_its_key_and_several_tell_all_of_them() {
    is("", &[("cluster", "local")]);
    is("type: node", &[("node", "zone1-node-7")]);
    is(
        "type: [cluster, node], prefix: example.org",
        &[("cluster", "local"), ("node", "zone1-node-7")],
    );
}

#[test]
fn rules_read_every_source_in_both_spellings() {
    is(
        "type: zone, fromRegexp: [
            {topologyKey: zone, source: nodeName, regex: '(zone[0-9])-.*', template: '{match:1}'},
            {topologyKey: region, source: hostname, regex: '.*\\.(region\\d)\\..*', template: 'r-{match:1}'},
            {topologyKey: env, source: env, envName: ZONE},
            {topologyKey: file, source: file, file: /etc/zone},
            {topologyKey: label, source: labels, file: /labels, label: topology.kubernetes.io/zone}]",
        &[
            ("env", "z3"),
            ("file", "z4"),
            ("label", "z5"),
            ("region", "r-region2"),
            ("zone", "zone1"),
        ],
    );
    is(
        "type: custom, customRules: [{keySuffix: zone, source: nodeName,
            matchRegexp: '(zone)(.)-.*', resultTemplate: '${match:1}-${match:2}'}]",
        &[("zone", "zone-1")],
    );
}

#[test]
fn a_rule_that_does_not_fit_is_left_out() {
    is(
        "type: [node, zone], fromRegexp: [
            {topologyKey: a, source: nodeName, regex: zone2.*},
            {topologyKey: b, source: env, envName: NONE},
            {topologyKey: c, source: file, file: /none},
            {topologyKey: d, source: nodeName, regex: 'a|zone1'},
            {topologyKey: e, source: nodeName, template: 'not a label'},
            {topologyKey: f, source: nodeName, regex: '(x)?.*', template: 'f{match:1}'}]",
        &[("node", "zone1-node-7"), ("f", "f")],
    );
}

#[test]
fn rules_that_could_never_fit_are_refused_with_their_key() {
    for (rule, key) in [
        ("{topologyKey: a, source: env}", "envName"),
        ("{topologyKey: a, source: file, file: zone}", "file"),
        ("{topologyKey: a, source: labels, file: /labels}", "label"),
        (
            "{topologyKey: a, source: nodeName, regex: '(?=a)'}",
            "regex",
        ),
        (
            "{topologyKey: a, source: nodeName, regex: a, template: '{match:1}'}",
            "template",
        ),
        (
            "{topologyKey: a, source: nodeName, template: '{match:index}'}",
            "template",
        ),
        ("{topologyKey: 'a b', source: nodeName}", "topologyKey"),
    ] {
        let error = topology_of(&format!("type: zone, fromRegexp: [{rule}]")).expect_err(rule);
        let path = format!("proxy.nodeTopology.fromRegexp[0].{key}");
        assert_eq!(error.path(), Some(path.as_str()), "{error}");
    }
    assert!(topology_of("type: zone").is_err());
    assert!(topology_of("type: [zone, planet]").is_err());
}
