//! The sections `nfs`, `smb`, `iscsi` and `nvmeof` for TrueNAS, with the keys of democratic-csi.
//!
//! compat: "TrueNAS".

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use csi_types::attachment::{FieldError, Interface, Listed, Portal, Server};
use csi_types::{DhchapKey, Network};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document, Finding};
use driver_core::template::Template;
use driver_zfs::export::ExportNaming;
use driver_zfs::nodes::{Form, NodeKeys, NodesConfig};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use crate::api::iscsi::{CreateExtent, TargetGroup};
use crate::api::nfs::NfsOptions;
use crate::api::nvmet::CreateSubsystem;
use crate::api::smb::SmbOptions;
use crate::export::access::Access;
use crate::export::choices::{NfsChoices, network};
use crate::export::iscsi::IscsiExport;
use crate::export::nvmeof::NvmeExport;
use crate::export::share::{NfsExport, SmbExport, SmbNaming};
use crate::export::users::Noted;
use crate::settings::{HttpConnection, Protocol, Settings};

/// The comment that says whose a share is.
const COMMENT: &str = "omnibus-csi: {{zfs.datasetName}}";

const ANY_CERTIFICATE: &str =
    "any certificate is accepted: the password or key goes to whatever answers at that address";
const PIN_IT: &str = "give the certificate of the NAS in httpConnection.tls.certificateSha256, or its authority in tls.ca";

/// Reads the section `httpConnection`.
pub(crate) fn connection(document: &Document) -> Result<Settings, ConfigError> {
    document.without_effect(&[(
        "httpConnection.apiVersion",
        "which protocol the NAS speaks is found out",
    )]);
    let config: HttpConnection = document.section("httpConnection")?;
    let (key, user) = (config.api_key.is_some(), config.username.is_some());
    let doubtful = |path: &str, message: &str, advice: &str| {
        document.add(Finding::doubtful(
            format!("httpConnection.{path}"),
            message,
            advice,
        ));
    };
    if key && !user {
        doubtful(
            "username",
            "is missing beside the apiKey",
            "name the user of the key: TrueNAS from 26 on does not log in without, and 25.04 \
             and 25.10 only by a method that is going away",
        );
    }
    let settings = config.check()?;
    let is_https = settings.endpoint.protocol == Protocol::Https;
    if is_https && settings.tls.accepts_any(settings.allow_insecure) {
        doubtful("allowInsecure", ANY_CERTIFICATE, PIN_IT);
    }
    if settings.endpoint.protocol == Protocol::Http && !settings.endpoint.is_loopback() {
        doubtful(
            "protocol",
            "is http: the password or key crosses the network in clear text",
            "use https: from 25.04 on, TrueNAS revokes an API key that comes in clear text, and \
             this driver does not send it",
        );
    }
    Ok(settings)
}

/// Whether the driver needs nothing but the API.
fn is_by_api(document: &Document) -> bool {
    document
        .driver()
        .is_ok_and(|driver| driver.contains("-api-"))
}

/// A list that may be absent, null or one value.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(D::Error::custom("expected a text")),
    };
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => all.into_iter().map(text).collect(),
        one => text(one).map(|one| if one.is_empty() { vec![] } else { vec![one] }),
    }
}

/// The names of nodes, if the section says them.
fn access(
    section: &str,
    nodes: Option<&NodesConfig>,
    form: Form,
) -> Result<Option<Access>, ConfigError> {
    let key = format!("{section}.nodes");
    nodes
        .map(|nodes| Access::read(nodes, form, &key))
        .transpose()
}

/// Whether only the nodes that a volume is published to have access.
pub(crate) fn is_per_node(document: &Document) -> Result<bool, ConfigError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        nodes: Option<Value>,
    }
    let driver = document.driver()?;
    let section = driver.rsplit('-').next().unwrap_or_default();
    let section: Option<Section> = document.optional_section(section)?;
    Ok(section.is_some_and(|section| section.nodes.is_some()))
}

fn server(section: &str, host: &str) -> Result<Server, ConfigError> {
    Server::parse(host)
        .map_err(|error| ConfigError::at(format!("{section}.shareHost"), error.to_string()))
}

fn template(section: &str, text: Option<Template>) -> Result<Template, ConfigError> {
    match text {
        Some(template) => Ok(template),
        None => Template::compile(COMMENT)
            .map_err(|error| ConfigError::at(section.to_owned(), error.to_string())),
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NfsConfig {
    share_host: String,
    #[serde(default)]
    share_alldirs: bool,
    #[serde(default, deserialize_with = "list")]
    share_allowed_hosts: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    share_allowed_networks: Vec<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_maproot_user: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_maproot_group: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_mapall_user: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_mapall_group: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_comment_template: Option<Template>,
    /// Options that a class may choose, by name.
    #[serde(default)]
    share_choices: BTreeMap<String, NfsChoice>,
    nodes: Option<NodesConfig>,
}

/// One choice of options: what it leaves out is as the section says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_field_names,
    reason = "they are the keys of the configuration"
)]
struct NfsChoice {
    #[serde(default, deserialize_with = "list")]
    share_allowed_hosts: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    share_allowed_networks: Vec<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_maproot_user: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_maproot_group: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_mapall_user: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_mapall_group: Option<String>,
    #[serde(default)]
    share_read_only: bool,
}

/// Warns of clients that TrueNAS would refuse with the first volume.
fn clients(document: &Document, config: &NfsConfig) {
    for (index, text) in config.share_allowed_networks.iter().enumerate() {
        if network(text).is_none() {
            document.add(Finding::doubtful(
                format!("nfs.shareAllowedNetworks[{index}]"),
                "is not a network",
                "write it as 192.0.2.0/24; hosts stand in shareAllowedHosts",
            ));
        }
    }
    for (index, text) in config.share_allowed_hosts.iter().enumerate() {
        if text.contains('/') {
            document.add(Finding::doubtful(
                format!("nfs.shareAllowedHosts[{index}]"),
                "is not the name or the address of a host",
                "networks stand in shareAllowedNetworks",
            ));
        }
    }
}

/// Refuses networks that no TrueNAS takes together.
fn check_networks(texts: &[String], key: &str) -> Result<(), ConfigError> {
    let mut networks: Vec<Network> = Vec::new();
    for text in texts {
        let refused = |why: &str| {
            let problem = format!("`{}` {why}", text.escape_debug());
            ConfigError::at(format!("{key}.shareAllowedNetworks"), problem)
        };
        let Some(network) = network(text) else {
            return Err(refused("is not a network")
                .advise("write it as 192.0.2.0/24; hosts stand in shareAllowedHosts"));
        };
        if network.is_everything() {
            return Err(refused("is every address, which TrueNAS does not take")
                .advise("name the networks of the clients"));
        }
        if networks.iter().any(|other| other.overlaps(&network)) {
            return Err(refused("overlaps another one, which TrueNAS does not take"));
        }
        networks.push(network);
    }
    Ok(())
}

/// Refuses hosts that no TrueNAS takes.
fn check_hosts(hosts: &[String], key: &str) -> Result<(), ConfigError> {
    for (index, host) in hosts.iter().enumerate() {
        let is_odd = |c: char| c.is_whitespace() || c == '/' || c == '"';
        let address = host.parse::<IpAddr>();
        let why = if host.is_empty() || host.contains(is_odd) {
            "is not the name or the address of a host"
        } else if address.is_ok_and(|address| address.is_unspecified()) {
            "is every host, which TrueNAS does not take"
        } else if hosts[..index].contains(host) {
            "stands there twice, which TrueNAS does not take"
        } else {
            continue;
        };
        let problem = format!("`{}` {why}", host.escape_debug());
        return Err(ConfigError::at(format!("{key}.shareAllowedHosts"), problem)
            .advise("networks stand in shareAllowedNetworks"));
    }
    Ok(())
}

/// Checks a choice that stands at `key`, and adds to it what the section says.
fn chosen(choice: NfsChoice, of_all: &NfsOptions, key: &str) -> Result<NfsOptions, ConfigError> {
    let mut options = NfsOptions {
        read_only: choice.share_read_only,
        ..of_all.clone()
    };
    check_networks(&choice.share_allowed_networks, key)?;
    check_hosts(&choice.share_allowed_hosts, key)?;
    if !choice.share_allowed_networks.is_empty() || !choice.share_allowed_hosts.is_empty() {
        options.networks = choice.share_allowed_networks;
        options.hosts = choice.share_allowed_hosts;
    }
    let maps_root = choice.share_maproot_user.is_some() || choice.share_maproot_group.is_some();
    let maps_all = choice.share_mapall_user.is_some() || choice.share_mapall_group.is_some();
    if maps_root && maps_all {
        let problem = "excludes shareMapallUser: TrueNAS takes only one of them";
        return Err(ConfigError::at(format!("{key}.shareMaprootUser"), problem));
    }
    for (user, group, field) in [
        (
            &choice.share_maproot_user,
            &choice.share_maproot_group,
            "shareMaprootUser",
        ),
        (
            &choice.share_mapall_user,
            &choice.share_mapall_group,
            "shareMapallUser",
        ),
    ] {
        if group.is_some() && user.is_none() {
            let problem = "is needed: TrueNAS takes no group without a user";
            return Err(ConfigError::at(format!("{key}.{field}"), problem));
        }
    }
    if maps_root || maps_all {
        options.maproot_user = choice.share_maproot_user;
        options.maproot_group = choice.share_maproot_group;
        options.mapall_user = choice.share_mapall_user;
        options.mapall_group = choice.share_mapall_group;
    }
    Ok(options)
}

/// Reads the choices of classes.
fn choices(
    given: BTreeMap<String, NfsChoice>,
    of_all: &NfsOptions,
    is_per_node: bool,
) -> Result<NfsChoices, ConfigError> {
    let mut choices = NfsChoices::default();
    if is_per_node && !given.is_empty() {
        let problem =
            "goes with no shareChoices: each node has its place in the one list of clients";
        return Err(ConfigError::at("nfs.nodes", problem));
    }
    for (name, choice) in given {
        let key = format!("nfs.shareChoices.{name}");
        let options = chosen(choice, of_all, &key)?;
        choices
            .add(&name, options)
            .map_err(|error| ConfigError::at(key, error.to_string()))?;
    }
    Ok(choices)
}

/// Reads the section `nfs`.
pub(crate) fn nfs(document: &Document) -> Result<NfsExport, ConfigError> {
    let config: NfsConfig = document.section("nfs")?;
    if config.share_maproot_user.is_some() && config.share_mapall_user.is_some() {
        let problem = "excludes shareMapallUser: TrueNAS takes only one of them";
        return Err(ConfigError::at("nfs.shareMaprootUser", problem));
    }
    let is_open = config.share_allowed_hosts.is_empty() && config.share_allowed_networks.is_empty();
    if config.nodes.is_some() && !is_open {
        let problem =
            "names the clients itself: leave shareAllowedHosts and shareAllowedNetworks out";
        return Err(ConfigError::at("nfs.nodes", problem));
    }
    if config.nodes.is_none() && is_open {
        document.add(Finding::doubtful(
            "nfs.shareAllowedNetworks",
            "is empty, and so is shareAllowedHosts: every volume can be mounted from anywhere",
            "name the networks or the addresses of the nodes",
        ));
    }
    clients(document, &config);
    let options = NfsOptions {
        comment: String::new(),
        networks: config.share_allowed_networks,
        hosts: config.share_allowed_hosts,
        read_only: false,
        maproot_user: config.share_maproot_user,
        maproot_group: config.share_maproot_group,
        mapall_user: config.share_mapall_user,
        mapall_group: config.share_mapall_group,
        security: Vec::new(),
        enabled: true,
    };
    Ok(NfsExport {
        by_api: is_by_api(document),
        server: server("nfs", &config.share_host)?,
        choices: choices(config.share_choices, &options, config.nodes.is_some())?,
        options,
        all_dirs: config.share_alldirs,
        comment: template("nfs.shareCommentTemplate", config.share_comment_template)?,
        access: access("nfs", config.nodes.as_ref(), Form::Address)?,
        noted: Noted::default(),
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SmbConfig {
    share_host: String,
    #[serde(default, deserialize_with = "unless_falsy")]
    name_template: Option<Template>,
    #[serde(default)]
    name_prefix: String,
    #[serde(default)]
    name_suffix: String,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_comment_template: Option<Template>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_auxiliary_configuration_template: Option<Template>,
    share_home: Option<bool>,
    share_allowed_hosts: Option<Vec<String>>,
    share_denied_hosts: Option<Vec<String>>,
    share_guest_ok: Option<bool>,
    share_recycle_bin: Option<bool>,
    share_browsable: Option<bool>,
    share_access_based_enumeration: Option<bool>,
    share_time_machine: Option<bool>,
    nodes: Option<Value>,
}

/// Reads the section `smb`.
pub(crate) fn smb(document: &Document) -> Result<SmbExport, ConfigError> {
    let old = "no TrueNAS that is supported has it";
    document.without_effect(&[
        ("smb.shareDefaultPermissions", old),
        ("smb.shareGuestOnly", old),
        ("smb.shareShowHiddenFiles", old),
        ("smb.shareStorageTask", old),
    ]);
    let config: SmbConfig = document.section("smb")?;
    if config.nodes.is_some() {
        let problem = "is of the other protocols: samba compares addresses when a client connects, and a client that is \
                       connected stays. Shares of SMB have users";
        return Err(ConfigError::at("smb.nodes", problem));
    }
    Ok(SmbExport {
        by_api: is_by_api(document),
        server: server("smb", &config.share_host)?,
        options: SmbOptions {
            home: config.share_home,
            hosts_allow: config.share_allowed_hosts,
            hosts_deny: config.share_denied_hosts,
            guest_ok: config.share_guest_ok,
            recycle_bin: config.share_recycle_bin,
            browsable: config.share_browsable,
            access_based_enumeration: config.share_access_based_enumeration,
            time_machine: config.share_time_machine,
            ..SmbOptions::default()
        },
        naming: SmbNaming {
            template: config.name_template,
            prefix: config.name_prefix,
            suffix: config.name_suffix,
        },
        auxiliary: config.share_auxiliary_configuration_template,
        comment: template("smb.shareCommentTemplate", config.share_comment_template)?,
        noted: Noted::default(),
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IscsiConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    target_portal: Option<String>,
    #[serde(default, deserialize_with = "list")]
    target_portals: Vec<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    interface: Option<String>,
    #[serde(default)]
    target_groups: Vec<GroupConfig>,
    #[serde(default, deserialize_with = "unless_falsy")]
    extent_comment_template: Option<Template>,
    #[serde(default = "yes")]
    extent_insecure_tpc: bool,
    #[serde(default)]
    extent_xen_compat: bool,
    #[serde(default = "sector")]
    extent_blocksize: u32,
    #[serde(default = "yes")]
    extent_disable_physical_blocksize: bool,
    #[serde(default = "ssd")]
    extent_rpm: String,
    #[serde(default, deserialize_with = "unless_falsy")]
    extent_avail_threshold: Option<u64>,
    nodes: Option<NodesConfig>,
}

fn yes() -> bool {
    true
}

fn sector() -> u32 {
    512
}

/// The words that TrueNAS knows for the speed of a disk.
const SPEEDS: [&str; 6] = ["UNKNOWN", "SSD", "5400", "7200", "10000", "15000"];

fn ssd() -> String {
    "SSD".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the keys of democratic-csi")]
struct GroupConfig {
    target_group_portal_group: i64,
    #[serde(default, deserialize_with = "unless_falsy")]
    target_group_initiator_group: Option<i64>,
    #[serde(default, deserialize_with = "unless_falsy")]
    target_group_auth_type: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    target_group_auth_group: Option<i64>,
}

impl GroupConfig {
    fn read(&self, index: usize) -> Result<TargetGroup, ConfigError> {
        let at = |key: &str, problem: &str| {
            ConfigError::at(format!("iscsi.targetGroups[{index}].{key}"), problem)
        };
        let method = self.target_group_auth_type.as_deref().unwrap_or("None");
        let method = method.to_uppercase().replace(' ', "_");
        if !["NONE", "CHAP", "CHAP_MUTUAL"].contains(&method.as_str()) {
            let problem = "has to be None, CHAP or CHAP Mutual";
            return Err(at("targetGroupAuthType", problem));
        }
        if method != "NONE" && self.target_group_auth_group.is_none() {
            let problem = "is needed: the tag of the group of credentials on TrueNAS";
            return Err(at("targetGroupAuthGroup", problem));
        }
        Ok(TargetGroup {
            portal: self.target_group_portal_group,
            initiator: self.target_group_initiator_group,
            auth_method: method,
            auth: self.target_group_auth_group.filter(|tag| *tag > 0),
        })
    }
}

/// Reads the section `iscsi`.
pub(crate) fn iscsi(document: &Document) -> Result<IscsiExport, ConfigError> {
    let naming: ExportNaming = document.section("iscsi")?;
    naming.check("iscsi")?;
    let config: IscsiConfig = document.section("iscsi")?;
    let portals = Listed::<Portal>::portals(
        config.target_portal.as_deref().unwrap_or_default(),
        config.target_portals.iter().map(String::as_str),
    );
    let portals = portals.map_err(|error| match error {
        FieldError::Empty => ConfigError::at(
            "iscsi.targetPortal",
            "is needed: no node could reach a volume",
        ),
        error => ConfigError::at("iscsi.targetPortal", error.to_string()),
    })?;
    if config.target_groups.is_empty() {
        let problem = "is needed: the numbers of a portal and of a group of initiators on TrueNAS";
        return Err(ConfigError::at("iscsi.targetGroups", problem));
    }
    let has_list = |group: &GroupConfig| group.target_group_initiator_group.is_some();
    if config.nodes.is_some() && config.target_groups.iter().any(has_list) {
        let problem = "names the initiators itself: leave targetGroupInitiatorGroup out";
        return Err(ConfigError::at("iscsi.nodes", problem));
    }
    let groups = config.target_groups.iter().enumerate();
    let groups = groups.map(|(index, group)| group.read(index));
    if ![512, 1024, 2048, 4096].contains(&config.extent_blocksize) {
        let problem = "has to be 512, 1024, 2048 or 4096";
        return Err(ConfigError::at("iscsi.extentBlocksize", problem));
    }
    let interface = config.interface.as_deref().map(Interface::parse);
    let interface = interface
        .transpose()
        .map_err(|error| ConfigError::at("iscsi.interface", error.to_string()))?;
    let rpm = config.extent_rpm.to_uppercase();
    if !rpm.is_empty() && !SPEEDS.contains(&&*rpm) {
        document.add(Finding::doubtful(
            "iscsi.extentRpm",
            format!("TrueNAS takes one of {}", SPEEDS.join(", ")),
            "leave it out for SSD",
        ));
    }
    let threshold = config.extent_avail_threshold;
    Ok(IscsiExport {
        by_api: is_by_api(document),
        portals,
        interface,
        naming,
        groups: groups.collect::<Result<_, _>>()?,
        extent: CreateExtent {
            name: String::new(),
            zvol: String::new(),
            serial: None,
            comment: String::new(),
            block_size: config.extent_blocksize,
            hide_physical_block_size: config.extent_disable_physical_blocksize,
            insecure_tpc: config.extent_insecure_tpc,
            xen: config.extent_xen_compat,
            rpm: if rpm.is_empty() { ssd() } else { rpm },
            avail_threshold: threshold
                .filter(|part| (1..100).contains(part))
                .and_then(|part| u8::try_from(part).ok()),
            read_only: false,
        },
        comment: config.extent_comment_template,
        access: access("iscsi", config.nodes.as_ref(), Form::Initiator)?,
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NvmeConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    transport: Option<String>,
    #[serde(default, deserialize_with = "list")]
    transports: Vec<String>,
    #[serde(default)]
    ports: Vec<i64>,
    #[serde(default)]
    subsystem_template: SubsystemConfig,
    #[serde(default)]
    namespace_template: NamespaceConfig,
    nodes: Option<NodesConfig>,
    dhchap_keys: Option<BTreeMap<String, SecretString>>,
}

#[derive(Debug, Default, Deserialize)]
struct SubsystemConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    qid_max: Option<u32>,
    #[serde(default, deserialize_with = "unless_falsy")]
    ieee_oui: Option<String>,
    ana: Option<bool>,
    pi_enable: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct NamespaceConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    nsid: Option<u32>,
}

/// A key of a node that TrueNAS takes: one of a hash has the length of that.
fn dhchap_key(text: &str) -> Result<DhchapKey, String> {
    let text = text.trim();
    let key = DhchapKey::parse(text).map_err(|error| error.to_string())?;
    let length = [("01", 32), ("02", 48), ("03", 64)]
        .into_iter()
        .find(|(hash, _)| text.starts_with(&format!("DHHC-1:{hash}:")));
    match length {
        Some((hash, length)) if key.length() != length => Err(format!(
            "is a key of another length than TrueNAS takes: one with :{hash}: has {length} bytes"
        )),
        _ => Ok(key),
    }
}

/// Reads the section `nvmeof`.
pub(crate) fn nvmeof(document: &Document) -> Result<NvmeExport, ConfigError> {
    let naming: ExportNaming = document.section("nvmeof")?;
    naming.check("nvmeof")?;
    let config: NvmeConfig = document.section("nvmeof")?;
    let transports = Listed::transports(
        config.transport.as_deref().unwrap_or_default(),
        config.transports.iter().map(String::as_str),
    );
    let transports = transports.map_err(|error| match error {
        FieldError::Empty => ConfigError::at(
            "nvmeof.transports",
            "is needed: no node could reach a volume",
        ),
        error => ConfigError::at("nvmeof.transports", error.to_string()),
    })?;
    if config.ports.is_empty() {
        let problem = "is needed: the numbers of the ports on TrueNAS that subsystems are on";
        return Err(ConfigError::at("nvmeof.ports", problem));
    }
    let template = config.subsystem_template;
    let access = access("nvmeof", config.nodes.as_ref(), Form::Host)?;
    let keys = config.dhchap_keys.map_or_else(
        || Ok(NodeKeys::default()),
        |given| {
            let given = given.iter();
            let given = given.map(|(id, key)| (id, dhchap_key(key.expose_secret())));
            Access::keys(access.as_ref(), given, "nvmeof.dhchapKeys")
        },
    )?;
    Ok(NvmeExport {
        by_api: is_by_api(document),
        transports,
        naming,
        ports: config.ports,
        subsystem: CreateSubsystem {
            qid_max: template.qid_max,
            ieee_oui: template.ieee_oui,
            ana: template.ana,
            pi_enable: template.pi_enable,
            ..CreateSubsystem::default()
        },
        nsid: config.namespace_template.nsid,
        access,
        keys: Arc::new(keys),
    })
}
