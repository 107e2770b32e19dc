//! `nvmet.*` of 25.10 and later. Texts and results were recorded on 25.10.6 unless a line says else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::rowset::{RowSet, first_free, merged};
use super::{Answer, Call, plain, unknown};
use crate::backend::Kind;
use crate::failure::{Failure, Invalid};
use crate::rows::{self, Row, Rows};
use crate::{query, random};

const HOSTS: RowSet = RowSet {
    service: "nvmet.host",
    noun: "NVMetHost",
    secrets: &["dhchap_key", "dhchap_ctrl_key"],
};
const SUBSYSTEMS: RowSet = RowSet {
    service: "nvmet.subsys",
    noun: "NVMetSubsys",
    secrets: &[],
};
const NAMESPACES: RowSet = RowSet {
    service: "nvmet.namespace",
    noun: "NVMetNamespace",
    secrets: &[],
};
const PORTS: RowSet = RowSet {
    service: "nvmet.port",
    noun: "NVMetPort",
    secrets: &[],
};
const HOST_LINKS: RowSet = RowSet {
    service: "nvmet.host_subsys",
    noun: "NVMetHostSubsys",
    secrets: &[],
};
const PORT_LINKS: RowSet = RowSet {
    service: "nvmet.port_subsys",
    noun: "NVMetPortSubsys",
    secrets: &[],
};

pub(super) async fn run(call: &Call, service: &str, verb: &str) -> Answer {
    let set = match service {
        "nvmet.global" => return global(call, verb).await,
        "nvmet.host" => HOSTS,
        "nvmet.subsys" => SUBSYSTEMS,
        "nvmet.namespace" => NAMESPACES,
        "nvmet.port" => PORTS,
        "nvmet.host_subsys" => HOST_LINKS,
        _ => PORT_LINKS,
    };
    match verb {
        "query" => return query(call, &set),
        "get_instance" => {
            let row = set.get(call, call.number(0))?;
            return Ok(show(call, &set, row, true));
        }
        "delete" => return delete(call, &set).await,
        "generate_key" => return Ok(json!(generated_key(call))),
        "transport_address_choices" => {
            return Ok(
                json!({"127.0.0.1": "127.0.0.1", "10.0.0.5": "10.0.0.5", "10.0.0.9": "10.0.0.9"}),
            );
        }
        "create" | "update" => {}
        _ => return Err(unknown(call)),
    }
    let own = (verb == "update").then(|| call.number(0));
    let (before, data) = match own {
        Some(id) => (set.get(call, id)?, call.object(1).clone()),
        None => (Map::new(), call.object(0).clone()),
    };
    let mut row = merged(&before, &data);
    let schema = format!("{}_{verb}", service.replace('.', "_"));
    let keys = match service {
        "nvmet.host" => check_keys(&row, &schema, own)?,
        _ => Vec::new(),
    };
    let device = match service {
        "nvmet.namespace" => check_device(call, &row, &schema, own).await?,
        _ => None,
    };
    {
        let kept = call.nas.rows();
        let mut errors = Vec::new();
        match service {
            "nvmet.host" => check_host(&kept, &row, &schema, own, &mut errors),
            "nvmet.subsys" => complete_subsystem(&kept, &mut row, &schema, own, &mut errors),
            "nvmet.namespace" => complete_namespace(&kept, &mut row, &schema, own, &mut errors),
            "nvmet.port" => complete_port(&kept, &mut row, &before, &schema, own, &mut errors),
            _ => check_link(&kept, &row, service, &schema, own, &mut errors),
        }
        errors.extend(keys);
        errors.extend(device);
        if !errors.is_empty() {
            return Err(Failure::Validation(errors));
        }
    }
    let id = match own {
        Some(id) => {
            set.update(call, id, row)?;
            id
        }
        None => set.insert(call, row)["id"].as_i64().unwrap_or_default(),
    };
    call.apply_exports().await?;
    let row = set.get(call, id)?;
    Ok(show(call, &set, row, false))
}

/// The connections to all subsystems. 25.10 looks for those of the NQN that it would give a subsystem of that name, 26 for
/// those of the NQN that it has.
async fn sessions(call: &Call) -> Result<Vec<Value>, Failure> {
    let sessions = call.nas.backend.sessions().await.map_err(plain)?;
    let kept = call.nas.rows();
    let global = kept.get("nvmet.global", 1);
    let base = global.map_or("", |row| rows::text(row, "basenqn"));
    let nqn = |row: &Row| {
        if call.generation.is_26() {
            rows::text(row, "subnqn").to_owned()
        } else {
            format!("{base}:{}", rows::text(row, "name"))
        }
    };
    let port = kept.all(PORTS.service).next();
    let port = port.map(|row| rows::number(row, "id"));
    let shown = sessions.iter().enumerate().filter_map(|(number, session)| {
        let mut subsystems = kept.all(SUBSYSTEMS.service);
        let subsystem = subsystems.find(|row| nqn(row) == session.target)?;
        Some(json!({
            "host_traddr": session.address,
            "hostnqn": session.initiator,
            "subsys_id": rows::number(subsystem, "id"),
            "port_id": port,
            "ctrl": number + 1,
        }))
    });
    Ok(shown.collect())
}

async fn global(call: &Call, verb: &str) -> Answer {
    match verb {
        "config" => {}
        "update" => {
            let changes = call.object(0).clone();
            if let Some(row) = call.nas.rows().get_mut("nvmet.global", 1) {
                row.extend(changes);
            }
            call.apply_exports().await?;
        }
        "sessions" => return call.query(sessions(call).await?),
        _ => return Err(unknown(call)),
    }
    Ok(Value::Object(
        call.nas
            .rows()
            .get("nvmet.global", 1)
            .cloned()
            .unwrap_or_default(),
    ))
}

fn query(call: &Call, set: &RowSet) -> Answer {
    let verbose = call
        .object(1)
        .get("extra")
        .is_some_and(|extra| extra["verbose"] == json!(true));
    if [HOST_LINKS.service, PORT_LINKS.service].contains(&set.service) {
        return query_links(call, set, verbose);
    }
    let rows: Vec<Row> = call.nas.rows().all(set.service).cloned().collect();
    let shown = rows
        .into_iter()
        .map(|row| show(call, set, row, verbose))
        .collect();
    call.query(shown)
}

/// The two tables of links have nothing that extends their rows, so the filters go to the database, which
/// knows its columns only (`plugins/datastore/filter.py`): those of the table, and behind a dot those of
/// the other tables with their long names. What the answer shows, such as `subsys.name`, is none.
fn query_links(call: &Call, set: &RowSet, verbose: bool) -> Answer {
    let host = set.service == HOST_LINKS.service;
    let (side, side_service) = if host {
        ("host", HOSTS.service)
    } else {
        ("port", PORTS.service)
    };
    let filters = call.params.first().cloned().unwrap_or_default();
    let columns = |table: &str| match table {
        "subsys" => &[
            "id",
            "nvmet_subsys_name",
            "nvmet_subsys_subnqn",
            "nvmet_subsys_serial",
        ][..],
        "host" => &["id", "nvmet_host_hostnqn"][..],
        _ => &[
            "id",
            "nvmet_port_index",
            "nvmet_port_addr_traddr",
            "nvmet_port_addr_trsvcid",
        ][..],
    };
    check_columns(&filters, side, &columns)?;
    let rows: Vec<Row> = call.nas.rows().all(set.service).cloned().collect();
    let found = rows.into_iter().filter(|row| {
        let kept = call.nas.rows();
        let mut columns_of = json!({"id": row["id"]});
        for (table, service) in [(side, side_service), ("subsys", SUBSYSTEMS.service)] {
            let id = rows::number(row, &format!("{table}_id"));
            columns_of[table] = json!(id);
            columns_of[format!("{table}_id")] = json!(id);
            let other = kept.get(service, id).cloned().unwrap_or_default();
            for column in columns(table) {
                let short = column
                    .trim_start_matches(&format!("nvmet_{table}_"))
                    .to_owned();
                let value = other.get(&short).cloned().unwrap_or_default();
                columns_of[format!("{table}.{column}")] = value;
            }
        }
        query::matches(&columns_of, &filters)
    });
    let shown = found.map(|row| show(call, set, row, verbose)).collect();
    let options = call.params.get(1).cloned().unwrap_or_default();
    query::apply(shown, &[json!([]), options])
}

/// A name that is no column is an exception that the middleware does not expect, even without any row.
fn check_columns(
    filters: &Value,
    side: &str,
    columns: &dyn Fn(&str) -> &'static [&'static str],
) -> Result<(), Failure> {
    for filter in filters.as_array().into_iter().flatten() {
        if filter[0] == "OR" {
            check_columns(&filter[1], side, columns)?;
            continue;
        }
        let name = filter[0].as_str().unwrap_or_default();
        let unknown = match name.split_once('.') {
            Some((table, column)) if table == side || table == "subsys" => {
                (!columns(table).contains(&column)).then_some(column)
            }
            Some((table, _)) => Some(table),
            None => {
                let own = ["id", "subsys", "subsys_id", side];
                let known = own.contains(&name) || name.strip_suffix("_id") == Some(side);
                (!known).then_some(name)
            }
        };
        if let Some(column) = unknown {
            return Err(Failure::Exception {
                class: "KeyError".to_owned(),
                text: format!("'{column}'"),
            });
        }
    }
    Ok(())
}

/// Rows that point at others carry these whole; a subsystem lists what points at it if asked for.
fn show(call: &Call, set: &RowSet, mut row: Row, verbose: bool) -> Value {
    let nested = |set: &RowSet, id: i64| {
        let found = call.nas.rows().get(set.service, id).cloned();
        found.map_or(Value::Null, |row| show(call, set, row, false))
    };
    match set.service {
        "nvmet.subsys" => {
            let id = rows::number(&row, "id");
            let kept = call.nas.rows();
            let ids = |table: &str, field: &str| -> Value {
                if !verbose {
                    return json!([]);
                }
                kept.all(table)
                    .filter(|other| rows::number(other, "subsys_id") == id)
                    .map(|other| other[field].clone())
                    .collect()
            };
            row.insert("hosts".to_owned(), ids(HOST_LINKS.service, "host_id"));
            row.insert("namespaces".to_owned(), ids(NAMESPACES.service, "id"));
            row.insert("ports".to_owned(), ids(PORT_LINKS.service, "port_id"));
        }
        "nvmet.namespace" => {
            let subsystem = nested(&SUBSYSTEMS, rows::number(&row, "subsys_id"));
            row.insert("subsys".to_owned(), subsystem);
        }
        "nvmet.host_subsys" | "nvmet.port_subsys" => {
            let subsystem = nested(&SUBSYSTEMS, rows::number(&row, "subsys_id"));
            row.insert("subsys".to_owned(), subsystem);
            if set.service == "nvmet.host_subsys" {
                let host = nested(&HOSTS, rows::number(&row, "host_id"));
                row.insert("host".to_owned(), host);
            } else {
                let port = nested(&PORTS, rows::number(&row, "port_id"));
                row.insert("port".to_owned(), port);
            }
        }
        _ => {}
    }
    let mut shown = set.show(call, row);
    // Recorded: 25.10 leaves these lists empty unless they are asked for, 26 leaves them out.
    if set.service == SUBSYSTEMS.service
        && call.generation.is_26()
        && !verbose
        && let Value::Object(shown) = &mut shown
    {
        shown.retain(|key, _| !["hosts", "namespaces", "ports"].contains(&key.as_str()));
    }
    shown
}

fn others<'a>(kept: &'a Rows, table: &str, own: Option<i64>) -> impl Iterator<Item = &'a Row> {
    kept.all(table)
        .filter(move |row| own != Some(rows::number(row, "id")))
}

/// What the models of 25.10 and later say of an NQN. One of a UUID is that and nothing more.
fn refusal_of_nqn(nqn: &str) -> Option<&'static str> {
    if let Some(uuid) = nqn.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:") {
        return (uuid.len() != 36).then_some("Value error, uuid is incorrect length");
    }
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_dated = nqn.strip_prefix("nqn.").is_some_and(|rest| {
        let date = rest.get(..8).and_then(|date| date.strip_suffix('.'));
        date.and_then(|date| date.split_once('-'))
            .is_some_and(|(year, month)| {
                year.len() == 4 && digits(year) && month.len() == 2 && digits(month)
            })
    });
    if !is_dated {
        return Some("Value error, must start with \"nqn.YYYY-MM.<reverse.domain>\"");
    }
    let domain = nqn[12..].split(':').next().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| {
        let ends = label.starts_with('-') || label.ends_with('-');
        (1..=63).contains(&label.len()) && !ends && label.bytes().all(plain)
    };
    let top = domain.split('.').next().unwrap_or_default();
    let is_top = top.len() > 1 && top.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_domain = is_top && domain.contains('.') && domain.split('.').all(is_label);
    (!is_domain).then_some("Value error, domain does not appear to be valid")
}

/// A key as `nvme gen-dhchap-key` makes it: of the length of its hash, with a checksum behind it.
fn generated_key(call: &Call) -> String {
    let hash = call.params.first().and_then(Value::as_str);
    let (number, length) = match hash {
        Some("SHA-384") => ("02", 48),
        Some("SHA-512") => ("03", 64),
        _ => ("01", 32),
    };
    let mut key = random::bytes(length);
    let sum = checksum(&key).to_le_bytes();
    key.extend(sum);
    format!("DHHC-1:{number}:{}:", STANDARD.encode(key))
}

/// CRC-32 as of Ethernet.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), step);
    !bytes.iter().fold(u32::MAX, add)
}

/// What `do_create` and `do_update` say of a key (`plugins/nvmet/host.py`, 25.10 to 27). They look at the length of one
/// with a hash only, and at no checksum.
fn refusal_of_key(key: &str) -> Result<Option<String>, Failure> {
    let length = match key.get(..10) {
        Some("DHHC-1:00:") if key.ends_with(':') => return Ok(None),
        Some("DHHC-1:00:") => {
            let text = "Unexpected key termination. Use \"nvme gen-dhchap-key\" to generate.";
            return Ok(Some(text.to_owned()));
        }
        Some("DHHC-1:01:") => 32,
        Some("DHHC-1:02:") => 48,
        Some("DHHC-1:03:") => 64,
        _ => {
            let text = "Unexpected key format. Use \"nvme gen-dhchap-key\" to generate.";
            return Ok(Some(text.to_owned()));
        }
    };
    let encoded = key.split(':').nth(2).unwrap_or_default();
    let decoded = STANDARD.decode(encoded).map_err(|_| Failure::Exception {
        class: "Error".to_owned(),
        text: "Incorrect padding".to_owned(),
    })?;
    let is_right = decoded.len() == length + 4;
    Ok((!is_right).then(|| format!("Expected key length of {length}")))
}

/// The keys of a host. The model refuses one of the NAS alone, but only of a new host: in a change what is left out counts
/// as given.
fn check_keys(row: &Row, schema: &str, own: Option<i64>) -> Result<Vec<Invalid>, Failure> {
    let key = |name: &str| row.get(name).and_then(Value::as_str);
    if own.is_none() && key("dhchap_ctrl_key").is_some() && key("dhchap_key").is_none() {
        let text = "Value error, Cannot configure bi-directional authentication without setting dhchap_key";
        return Err(Failure::Validation(vec![Invalid::new(schema, text)]));
    }
    let mut errors = Vec::new();
    for name in HOSTS.secrets {
        let refusal = key(name).map(refusal_of_key).transpose()?.flatten();
        errors.extend(refusal.map(|text| Invalid::new(format!("{schema}.{name}"), text)));
    }
    Ok(errors)
}

fn check_host(kept: &Rows, row: &Row, schema: &str, own: Option<i64>, errors: &mut Vec<Invalid>) {
    let nqn = rows::text(row, "hostnqn");
    if let Some(why) = refusal_of_nqn(nqn) {
        errors.push(Invalid::new(format!("{schema}.hostnqn"), why));
    }
    if others(kept, HOSTS.service, own).any(|other| rows::text(other, "hostnqn") == nqn) {
        errors.push(Invalid::new(
            format!("{schema}.hostnqn"),
            "Object with this hostnqn already exists",
        ));
    }
}

fn complete_subsystem(
    kept: &Rows,
    row: &mut Row,
    schema: &str,
    own: Option<i64>,
    errors: &mut Vec<Invalid>,
) {
    let name = rows::text(row, "name").to_owned();
    if others(kept, SUBSYSTEMS.service, own).any(|other| rows::text(other, "name") == name) {
        errors.push(Invalid::new(
            format!("{schema}.name"),
            "Object with this name already exists",
        ));
    }
    let chosen = rows::text(row, "subnqn");
    if chosen.is_empty() {
        let base = kept
            .get("nvmet.global", 1)
            .map(|row| rows::text(row, "basenqn").to_owned())
            .unwrap_or_default();
        row.insert("subnqn".to_owned(), json!(format!("{base}:{name}")));
    } else if let Some(why) = refusal_of_nqn(chosen) {
        errors.push(Invalid::new(format!("{schema}.subnqn"), why));
    }
    let nqn = rows::text(row, "subnqn").to_owned();
    if errors.is_empty()
        && others(kept, SUBSYSTEMS.service, own).any(|other| rows::text(other, "subnqn") == nqn)
    {
        errors.push(Invalid::new(
            format!("{schema}.subnqn"),
            "Object with this subnqn already exists",
        ));
    }
    row.entry("serial".to_owned())
        .or_insert_with(|| json!(random::hex(20)));
}

async fn check_device(
    call: &Call,
    row: &Row,
    schema: &str,
    own: Option<i64>,
) -> Result<Option<Invalid>, Failure> {
    let wrong = |text: String| Ok(Some(Invalid::new(format!("{schema}.device_path"), text)));
    let path = rows::text(row, "device_path");
    if rows::text(row, "device_type") == "ZVOL" {
        let found = call
            .find_dataset(path.strip_prefix("zvol/").unwrap_or_default())
            .await?;
        if found.is_none_or(|dataset| dataset.kind != Kind::Volume) {
            return wrong(format!("ZVOL device_path must be a block device: {path}"));
        }
    }
    let kept = call.nas.rows();
    let extent = kept
        .all("iscsi.extent")
        .find(|row| rows::text(row, "path") == path);
    if let Some(extent) = extent {
        let name = rows::text(extent, "name");
        return wrong(format!(
            "This device_path already used by iSCSI extent: {name}"
        ));
    }
    if let Some(other) = others(&kept, NAMESPACES.service, own)
        .find(|other| rows::text(other, "device_path") == path)
    {
        let subsystem = kept.get(SUBSYSTEMS.service, rows::number(other, "subsys_id"));
        let name = subsystem.map(|row| rows::text(row, "name"));
        let name = name.unwrap_or_default();
        return wrong(format!(
            "This device_path already used by subsystem: {name}"
        ));
    }
    Ok(None)
}

fn complete_namespace(
    kept: &Rows,
    row: &mut Row,
    schema: &str,
    own: Option<i64>,
    errors: &mut Vec<Invalid>,
) {
    let subsystem = rows::number(row, "subsys_id");
    if kept.get(SUBSYSTEMS.service, subsystem).is_none() {
        let text = format!("No subsystem with ID {subsystem}");
        errors.push(Invalid::new(format!("{schema}.subsys_id"), text));
    }
    let used: Vec<i64> = others(kept, NAMESPACES.service, own)
        .filter(|other| rows::number(other, "subsys_id") == subsystem)
        .map(|other| rows::number(other, "nsid"))
        .collect();
    let nsid = match row.get("nsid").and_then(Value::as_i64) {
        Some(nsid) => nsid,
        None => first_free(1, &used),
    };
    if used.contains(&nsid) {
        let text = format!("This record already exists (Subsystem ID: {subsystem}/NSID: {nsid})");
        errors.push(Invalid::new(format!("{schema}.nsid"), text));
    }
    row.insert("nsid".to_owned(), json!(nsid));
    row.insert("locked".to_owned(), json!(false));
    for field in ["device_uuid", "device_nguid"] {
        row.entry(field.to_owned())
            .or_insert_with(|| json!(random::uuid()));
    }
    let dataset = rows::text(row, "device_path")
        .strip_prefix("zvol/")
        .map(str::to_owned);
    row.insert("dataset".to_owned(), json!(dataset));
    row.insert("relative_path".to_owned(), json!(""));
}

fn complete_port(
    kept: &Rows,
    row: &mut Row,
    before: &Row,
    schema: &str,
    own: Option<i64>,
    errors: &mut Vec<Invalid>,
) {
    let key = |row: &Row| {
        ["addr_trtype", "addr_traddr", "addr_trsvcid"]
            .map(|field| row.get(field).cloned().unwrap_or_default())
    };
    if rows::text(row, "addr_trtype") == "RDMA" {
        let text = "This platform cannot support NVMe-oF(RDMA) or is missing an RDMA capable NIC.";
        errors.push(Invalid::new(format!("{schema}.addr_trtype"), text));
    }
    if row.get("addr_trsvcid").is_none_or(Value::is_null) {
        row.insert("addr_trsvcid".to_owned(), json!(4420));
    }
    if others(kept, PORTS.service, own).any(|other| key(other) == key(row)) {
        let text = "There already is a port using the same transport and address";
        errors.push(Invalid::new(format!("{schema}.addr_traddr"), text));
    }
    let linked = own.is_some_and(|id| {
        kept.all(PORT_LINKS.service)
            .any(|link| rows::number(link, "port_id") == id)
    });
    if linked && rows::flag(before, "enabled") {
        for field in ["addr_trtype", "addr_trsvcid", "addr_traddr"] {
            if before.get(field) != row.get(field) {
                let text = format!(
                    "Cannot change {field} on an active port.  Disable first to allow change."
                );
                errors.push(Invalid::new(format!("{schema}.{field}"), text));
            }
        }
    }
    if own.is_none() {
        row.insert("index".to_owned(), json!(kept.next_id(PORTS.service)));
    }
    let family = if rows::text(row, "addr_traddr").contains(':') {
        "IPV6"
    } else {
        "IPV4"
    };
    row.insert("addr_adrfam".to_owned(), json!(family));
}

fn check_link(
    kept: &Rows,
    row: &Row,
    service: &str,
    schema: &str,
    own: Option<i64>,
    errors: &mut Vec<Invalid>,
) {
    let (field, noun, table) = if service == "nvmet.host_subsys" {
        ("host_id", "Host", HOSTS.service)
    } else {
        ("port_id", "Port", PORTS.service)
    };
    let (left, subsystem) = (rows::number(row, field), rows::number(row, "subsys_id"));
    if kept.get(table, left).is_none() {
        let text = format!("No {} with ID {left}", noun.to_lowercase());
        errors.push(Invalid::new(format!("{schema}.{field}"), text));
    }
    if kept.get(SUBSYSTEMS.service, subsystem).is_none() {
        errors.push(Invalid::new(
            format!("{schema}.subsys_id"),
            format!("No subsystem with ID {subsystem}"),
        ));
    }
    let same = |other: &Row| {
        rows::number(other, field) == left && rows::number(other, "subsys_id") == subsystem
    };
    if others(kept, service, own).any(same) {
        let text =
            format!("This record already exists ({noun} ID: {left}/Subsystem ID: {subsystem})");
        errors.push(Invalid::new(format!("{schema}.{field}"), text));
    }
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

async fn delete(call: &Call, set: &RowSet) -> Answer {
    let id = call.number(0);
    let row = set.get(call, id)?;
    let force = call.object(1).get("force") == Some(&json!(true));
    let linked = |table: &str, field: &str| -> Vec<Row> {
        call.nas
            .rows()
            .all(table)
            .filter(|link| rows::number(link, field) == id)
            .cloned()
            .collect()
    };
    let refused = |service: &str, text: String| {
        Failure::invalid(format!("{}_delete.id", service.replace('.', "_")), text)
    };
    match set.service {
        "nvmet.subsys" => {
            let name = rows::text(&row, "name");
            let namespaces = linked(NAMESPACES.service, "subsys_id");
            let ports = linked(PORT_LINKS.service, "subsys_id");
            if !force && !namespaces.is_empty() {
                let ids: Vec<String> = namespaces
                    .iter()
                    .map(|row| rows::number(row, "nsid").to_string())
                    .collect();
                let count = plural(namespaces.len(), "namespace");
                return Err(refused(
                    set.service,
                    format!("Subsystem {name} contains {count}: {}", ids.join(", ")),
                ));
            }
            if !force && !ports.is_empty() {
                return Err(refused(
                    set.service,
                    format!(
                        "Subsystem {name} visible on {}",
                        plural(ports.len(), "port")
                    ),
                ));
            }
            for table in [NAMESPACES.service, PORT_LINKS.service, HOST_LINKS.service] {
                call.nas
                    .rows()
                    .take(table, |link| rows::number(link, "subsys_id") == id);
            }
        }
        "nvmet.host" | "nvmet.port" => {
            let (table, field) = if set.service == "nvmet.host" {
                (HOST_LINKS.service, "host_id")
            } else {
                (PORT_LINKS.service, "port_id")
            };
            let links = linked(table, field);
            if !force && !links.is_empty() {
                let names = subsystem_names(call, &links);
                let count = plural(links.len(), "subsystem");
                let label = if set.service == "nvmet.host" {
                    format!("Host {}", rows::text(&row, "hostnqn"))
                } else {
                    format!("Port #{}", rows::number(&row, "index"))
                };
                return Err(refused(
                    set.service,
                    format!("{label} used by {count}: {names}"),
                ));
            }
            call.nas
                .rows()
                .take(table, |link| rows::number(link, field) == id);
        }
        _ => {}
    }
    set.delete(call, id)?;
    call.apply_exports().await?;
    if set.service == PORT_LINKS.service {
        left_port(call, &row).await;
    }
    Ok(json!(true))
}

/// The kernel ends the connections of the subsystem of this link.
async fn left_port(call: &Call, link: &Row) {
    let subsystem = rows::number(link, "subsys_id");
    let subsystem = call.nas.rows().get(SUBSYSTEMS.service, subsystem).cloned();
    if let Some(subsystem) = subsystem {
        let nqn = rows::text(&subsystem, "subnqn");
        call.nas.backend.left_port(nqn).await;
    }
}

fn subsystem_names(call: &Call, links: &[Row]) -> String {
    let kept = call.nas.rows();
    let name = |link: &Row| {
        let subsystem = kept.get(SUBSYSTEMS.service, rows::number(link, "subsys_id"));
        subsystem
            .map(|row| rows::text(row, "name").to_owned())
            .unwrap_or_default()
    };
    links.iter().map(name).collect::<Vec<_>>().join(", ")
}
