//! `iscsi.extent.*`.

use serde_json::{Value, json};

use super::iscsi::{TARGETS, refuse_in_use};
use super::rowset::{RowSet, merged};
use super::{Answer, Call, unknown};
use crate::backend::Kind;
use crate::failure::{Failure, Invalid};
use crate::random;
use crate::rows::{self, Row};

const EXTENTS: RowSet = RowSet {
    service: "iscsi.extent",
    noun: "iSCSITargetExtent",
    secrets: &[],
};

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => query(call).await,
        "get_instance" => EXTENTS.get_instance(call),
        "create" => {
            let mut row = call.object(0).clone();
            complete(&mut row);
            check(call, &row, "iscsi_extent_create", None).await?;
            let shown = EXTENTS.insert(call, row);
            call.apply_exports().await?;
            Ok(shown)
        }
        "update" => {
            let id = call.number(0);
            let mut row = merged(&EXTENTS.get(call, id)?, call.object(1));
            complete(&mut row);
            check(call, &row, "iscsi_extent_update", Some(id)).await?;
            let shown = EXTENTS.update(call, id, row)?;
            call.apply_exports().await?;
            Ok(shown)
        }
        "delete" => delete(call).await,
        _ => Err(unknown(call)),
    }
}

/// An extent on a volume whose key is not loaded is locked.
async fn query(call: &Call) -> Answer {
    let mut shown = EXTENTS.shown(call);
    for row in &mut shown {
        let volume = row["disk"]
            .as_str()
            .and_then(|disk| disk.strip_prefix("zvol/"))
            .map(str::to_owned);
        if let Some(volume) = volume
            && let Some(dataset) = call.find_dataset(&volume).await?
            && row.get("locked").is_some()
        {
            row["locked"] = json!(dataset.locked());
        }
    }
    call.query(shown)
}

/// `serial`, `naa`, `path` and `vendor`, as recorded on 25.10.6.
fn complete(row: &mut Row) {
    if rows::text(row, "serial").is_empty() {
        row.insert("serial".to_owned(), json!(random::hex(15)));
    }
    row.entry("naa".to_owned())
        .or_insert_with(|| json!(format!("0x6589cfc000000{}", random::hex(19))));
    row.insert("vendor".to_owned(), json!("TrueNAS"));
    row.insert("locked".to_owned(), json!(false));
    if row.get("product_id").is_none_or(Value::is_null) {
        row.insert("product_id".to_owned(), json!("iSCSI Disk"));
    }
    if rows::text(row, "type") == "DISK" {
        if let Some(disk) = row.get("disk").filter(|disk| disk.is_string()).cloned() {
            let dataset = disk
                .as_str()
                .and_then(|disk| disk.strip_prefix("zvol/"))
                .map(str::to_owned);
            row.insert("path".to_owned(), disk);
            row.insert("dataset".to_owned(), json!(dataset));
            row.insert("relative_path".to_owned(), json!(""));
        }
    } else {
        row.insert("disk".to_owned(), Value::Null);
    }
    // A number when it is given, a text when it is shown.
    match row.get("filesize") {
        Some(Value::Number(size)) => {
            let size = size.to_string();
            row.insert("filesize".to_owned(), json!(size));
        }
        Some(Value::Null) | None => {
            row.insert("filesize".to_owned(), json!("0"));
        }
        Some(_) => {}
    }
}

fn flattened(name: &str) -> String {
    name.replace('.', "_").replace('/', "-")
}

async fn check(call: &Call, row: &Row, schema: &str, own: Option<i64>) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let name = rows::text(row, "name");
    let serial = rows::text(row, "serial");
    let others: Vec<Row> = {
        let kept = call.nas.rows();
        kept.all(EXTENTS.service)
            .filter(|other| own != Some(rows::number(other, "id")))
            .cloned()
            .collect()
    };
    if others.iter().any(|other| rows::text(other, "name") == name) {
        errors.push(Invalid::new(
            format!("{schema}.name"),
            "Extent name must be unique",
        ));
    } else if others
        .iter()
        .any(|other| flattened(rows::text(other, "name")) == flattened(name))
    {
        let text = format!(
            "Extent name must be unique when flattened ({})",
            flattened(name)
        );
        errors.push(Invalid::new(format!("{schema}.name"), text));
    }
    if others
        .iter()
        .any(|other| rows::text(other, "serial") == serial)
    {
        errors.push(Invalid::new(
            format!("{schema}.serial"),
            "Serial number must be unique",
        ));
    }
    if rows::text(row, "type") == "DISK" {
        check_disk(call, row, schema, &others, &mut errors).await?;
    } else {
        let path = rows::text(row, "path");
        if path.is_empty() {
            errors.push(Invalid::new(
                format!("{schema}.path"),
                "This field is required",
            ));
        }
        if let Some(other) = others
            .iter()
            .find(|other| rows::text(other, "path") == path)
        {
            let text = format!(
                "File currently in use by extent {}",
                rows::text(other, "name")
            );
            errors.push(Invalid::new(format!("{schema}.path"), text));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Validation(errors))
    }
}

async fn check_disk(
    call: &Call,
    row: &Row,
    schema: &str,
    others: &[Row],
    errors: &mut Vec<Invalid>,
) -> Result<(), Failure> {
    let attribute = format!("{schema}.disk");
    let disk = rows::text(row, "disk");
    if disk.is_empty() {
        errors.push(Invalid::new(attribute, "This field is required"));
        return Ok(());
    }
    if let Some(other) = others
        .iter()
        .find(|other| rows::text(other, "disk") == disk)
    {
        let text = format!(
            "Disk currently in use by extent {}",
            rows::text(other, "name")
        );
        errors.push(Invalid::new(&attribute, text));
    }
    let namespace = call
        .nas
        .rows()
        .all("nvmet.namespace")
        .find(|row| rows::text(row, "device_path") == disk)
        .cloned();
    if let Some(namespace) = namespace {
        let subsystem = rows::number(&namespace, "subsys_id");
        let name = call
            .nas
            .rows()
            .get("nvmet.subsys", subsystem)
            .map(|row| rows::text(row, "name").to_owned());
        let text = format!(
            "Disk currently in use by NVMe-oF subsystem {} NSID {}",
            name.unwrap_or_default(),
            rows::number(&namespace, "nsid")
        );
        errors.push(Invalid::new(&attribute, text));
    }
    let volume = disk.strip_prefix("zvol/").unwrap_or_default();
    let (dataset, snapshot) = volume
        .split_once('@')
        .map_or((volume, false), |(dataset, _)| (dataset, true));
    let found = call.find_dataset(dataset).await?;
    if found.is_none_or(|dataset| dataset.kind != Kind::Volume) {
        let text = format!("Device '/dev/{disk}' for volume '{volume}' does not exist");
        errors.push(Invalid::new(&attribute, text));
    }
    if snapshot && !rows::flag(row, "ro") {
        errors.push(Invalid::new(
            format!("{schema}.ro"),
            "Must be set when disk is a ZFS Snapshot",
        ));
    }
    Ok(())
}

async fn delete(call: &Call) -> Answer {
    let id = call.number(0);
    EXTENTS.get(call, id)?;
    let (links, targets): (Vec<i64>, Vec<String>) = {
        let kept = call.nas.rows();
        let links = kept
            .all("iscsi.targetextent")
            .filter(|link| rows::number(link, "extent") == id);
        links
            .map(|link| {
                let target = kept.get(TARGETS.service, rows::number(link, "target"));
                let name = target
                    .map(|target| rows::text(target, "name").to_owned())
                    .unwrap_or_default();
                (rows::number(link, "id"), name)
            })
            .unzip()
    };
    if !call.flag(2) {
        for target in &targets {
            refuse_in_use(
                call,
                target,
                &format!("Associated target(s) {target} is in use."),
            )
            .await?;
        }
    }
    for link in links {
        call.nas.rows().remove("iscsi.targetextent", link);
    }
    EXTENTS.delete(call, id)?;
    call.apply_exports().await?;
    Ok(json!(true))
}
