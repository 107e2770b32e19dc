//! `sharing.nfs.*`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::rowset::{RowSet, merged};
use super::{Answer, Call, unknown};
use crate::Generation;
use crate::backend::Problem;
use crate::failure::{ENOENT, Failure, Invalid};
use crate::rows::{self, Row};

const SHARES: RowSet = RowSet {
    service: "sharing.nfs",
    noun: "SharingNFS",
    secrets: &[],
};

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => SHARES.query(call),
        "get_instance" => SHARES.get_instance(call),
        "create" => {
            let mut row = call.object(0).clone();
            check(call, &row, "sharingnfs_create", None).await?;
            row.insert("locked".to_owned(), json!(false));
            keep_networks(&mut row);
            locate(&mut row);
            let shown = SHARES.insert(call, row);
            call.apply_exports().await?;
            Ok(shown)
        }
        "update" => {
            let id = call.number(0);
            let mut row = merged(&SHARES.get(call, id)?, call.object(1));
            check(call, &row, "sharingnfs_update", Some(id)).await?;
            keep_networks(&mut row);
            locate(&mut row);
            let shown = SHARES.update(call, id, row)?;
            call.apply_exports().await?;
            Ok(shown)
        }
        "delete" => {
            SHARES.delete(call, call.number(0))?;
            call.apply_exports().await?;
            Ok(json!(true))
        }
        _ => Err(unknown(call)),
    }
}

/// `dataset` and `relative_path` of 26.
pub(super) fn locate(row: &mut Row) {
    let path = rows::text(row, "path").to_owned();
    row.insert("dataset".to_owned(), json!(path.strip_prefix("/mnt/")));
    row.insert("relative_path".to_owned(), json!(""));
}

/// The form that the middleware keeps networks in: bits that do not count are zero, and an address has its prefix.
fn keep_networks(row: &mut Row) {
    let given = rows::texts(row, "networks");
    let kept = given.into_iter().map(|text| match parse_network(&text) {
        Some(network) => written(network),
        None => text,
    });
    let kept: Vec<String> = kept.collect();
    row.insert("networks".to_owned(), json!(kept));
}

fn written((address, prefix): (IpAddr, u8)) -> String {
    let prefix = u32::from(prefix);
    let address = match address {
        IpAddr::V4(all) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or_default();
            IpAddr::V4(Ipv4Addr::from_bits(all.to_bits() & mask))
        }
        IpAddr::V6(all) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from_bits(all.to_bits() & mask))
        }
    };
    format!("{address}/{prefix}")
}

fn paths(row: &Row) -> Vec<String> {
    match row.get("path").and_then(Value::as_str) {
        Some(path) => vec![path.to_owned()],
        None => rows::texts(row, "paths"),
    }
}

async fn check(call: &Call, row: &Row, schema: &str, own: Option<i64>) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for path in paths(row) {
        errors.extend(check_path(call, &path, schema).await?);
    }
    check_networks(row, schema, &mut errors);
    check_hosts(row, schema, &mut errors);
    check_users(call, row, schema, &mut errors);
    if errors.is_empty() {
        let others: Vec<Row> = call.nas.rows().all(SHARES.service).cloned().collect();
        for other in others
            .iter()
            .filter(|other| own != Some(rows::number(other, "id")))
        {
            errors.extend(conflict(call.generation, row, other, schema));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Validation(errors))
    }
}

/// The first text was recorded on 25.10.6, where a path that is not there is no error.
pub(super) async fn check_path(
    call: &Call,
    path: &str,
    schema: &str,
) -> Result<Option<Invalid>, Failure> {
    let attribute = format!("{schema}.path");
    let pool = path
        .strip_prefix("/mnt/")
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default();
    if call.find_dataset(pool).await?.is_none() {
        return Ok(Some(Invalid::new(
            attribute,
            "The path must reside within a pool mount point",
        )));
    }
    let there = call.nas.backend.permissions(path).await;
    if call.generation <= Generation::V24_10 && matches!(there, Err(Problem::Missing(_))) {
        return Ok(Some(
            Invalid::new(attribute, "This path does not exist.").errno(ENOENT),
        ));
    }
    Ok(None)
}

fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text
        .split_once('/')
        .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Some(most), |prefix| prefix.parse().ok())?;
    (prefix <= most).then_some((address, prefix))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn overlap(left: (IpAddr, u8), right: (IpAddr, u8)) -> bool {
    if left.0.is_ipv4() != right.0.is_ipv4() {
        return false;
    }
    let width: u32 = if left.0.is_ipv4() { 32 } else { 128 };
    let shift = width - u32::from(left.1.min(right.1));
    shift >= 128 || bits(left.0) >> shift == bits(right.0) >> shift
}

/// The last text was recorded on 25.10.6; the others are those of `test_300_nfs`.
fn check_networks(row: &Row, schema: &str, errors: &mut Vec<Invalid>) {
    let attribute = format!("{schema}.networks");
    let networks = rows::texts(row, "networks");
    if networks
        .iter()
        .any(|network| network == "0.0.0.0/0" || network == "::/0")
    {
        errors.push(Invalid::new(
            &attribute,
            "No entry is required to configure all networks",
        ));
    }
    let bad: Vec<_> = networks
        .iter()
        .filter(|network| parse_network(network).is_none())
        .cloned()
        .collect();
    if !bad.is_empty() {
        let text = format!(
            "The following do not appear to be valid IPv4 or IPv6 networks: {}",
            bad.join(", ")
        );
        errors.push(Invalid::new(&attribute, text));
    }
    let parsed: Vec<_> = networks
        .iter()
        .filter_map(|network| parse_network(network))
        .collect();
    for (index, left) in parsed.iter().enumerate() {
        if parsed[index + 1..]
            .iter()
            .any(|right| overlap(*left, *right))
        {
            errors.push(Invalid::new(&attribute, "Overlapped networks detected"));
            break;
        }
    }
}

fn check_hosts(row: &Row, schema: &str, errors: &mut Vec<Invalid>) {
    let attribute = format!("{schema}.hosts");
    let hosts = rows::texts(row, "hosts");
    let mut wrong = |text: &str| errors.push(Invalid::new(&attribute, text));
    if hosts
        .iter()
        .enumerate()
        .any(|(index, host)| hosts[..index].contains(host))
    {
        wrong("Entries must be unique");
    }
    let unfit = |host: &&String| host.contains(char::is_whitespace) || host.contains('"');
    let unfit: Vec<&str> = hosts.iter().filter(unfit).map(String::as_str).collect();
    if !unfit.is_empty() {
        let text = format!("Cannot contain spaces or quotes: {}", unfit.join(", "));
        wrong(&text);
    }
    if hosts.iter().any(|host| host == "::" || host == "0.0.0.0") {
        wrong("No entry is required to configure all hosts");
    }
    // Names are not looked up; those that can never be resolved stand for the ones that are not.
    let unknown: Vec<_> = hosts
        .iter()
        .filter(|host| host.ends_with(".invalid"))
        .cloned()
        .collect();
    if !unknown.is_empty() {
        wrong(&format!(
            "Unable to resolve host(s): {}",
            unknown.join(", ")
        ));
    }
}

fn check_users(call: &Call, row: &Row, schema: &str, errors: &mut Vec<Invalid>) {
    let given = |field: &str| {
        row.get(field)
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
    };
    for kind in ["maproot", "mapall"] {
        let (user, group) = (format!("{kind}_user"), format!("{kind}_group"));
        if given(&group).is_some() && given(&user).is_none() {
            let text = "This field is required when map group is specified";
            errors.push(Invalid::new(format!("{schema}.{user}"), text));
        }
        if let Some(name) = given(&user).filter(|name| !knows_user(call, name)) {
            errors.push(Invalid::new(
                format!("{schema}.{user}"),
                format!("User not found: {name}"),
            ));
        }
        if let Some(name) =
            given(&group).filter(|name| !GROUPS.contains(name) && !knows_user(call, name))
        {
            errors.push(Invalid::new(
                format!("{schema}.{group}"),
                format!("Group not found: {name}"),
            ));
        }
    }
    if given("maproot_user").is_some() && given("mapall_user").is_some() {
        let text = "maproot_user disqualifies mapall_user";
        errors.push(Invalid::new(format!("{schema}.mapall_user"), text));
    }
}

const GROUPS: [&str; 6] = ["root", "wheel", "nogroup", "nobody", "users", "daemon"];

fn knows_user(call: &Call, name: &str) -> bool {
    ["root", "nobody", "daemon", "www-data", "admin"].contains(&name)
        || call.nas.accounts().users.contains_key(name)
}

/// The text of 25.10 was recorded there for a host; those of older releases are known from reports of users.
fn conflict(generation: Generation, row: &Row, other: &Row, schema: &str) -> Option<Invalid> {
    let path = paths(row)
        .into_iter()
        .find(|path| paths(other).contains(path))?;
    let (hosts, networks) = (rows::texts(row, "hosts"), rows::texts(row, "networks"));
    let (other_hosts, other_networks) =
        (rows::texts(other, "hosts"), rows::texts(other, "networks"));
    let open = hosts.is_empty() && networks.is_empty();
    let other_open = other_hosts.is_empty() && other_networks.is_empty();
    let host = hosts.iter().find(|host| other_hosts.contains(host));
    let network = networks.iter().find(|network| {
        let parsed = parse_network(network);
        other_networks.iter().any(|other| {
            parsed
                .zip(parse_network(other))
                .is_some_and(|(left, right)| overlap(left, right))
        })
    });
    if !open && !other_open && host.is_none() && network.is_none() {
        return None;
    }
    if generation >= Generation::V25_04 {
        let client = host.or(network).map_or_else(
            || "everybody".to_owned(),
            |client| format!("{{'{client}'}}"),
        );
        let text = format!(
            "ERROR - Export conflict. Another share with the same path exports {path} for {client}"
        );
        return Some(Invalid::new(format!("{schema}.path"), text));
    }
    if let Some(host) = host {
        let text = format!("Another NFS share already exports this dataset for {host}");
        return Some(Invalid::new(format!("{schema}.hosts"), text));
    }
    if network.is_some() {
        let text = "Another NFS share already exports this dataset for some network";
        return Some(Invalid::new(format!("{schema}.networks"), text));
    }
    (open && other_open).then(|| {
        let text = "Another NFS share already exports this dataset for all networks";
        Invalid::new(format!("{schema}.networks"), text)
    })
}
