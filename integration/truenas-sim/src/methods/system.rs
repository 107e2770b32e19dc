//! `system.*`, `service.*`, and the configuration of NFS and SMB.

use serde_json::{Value, json};

use super::{Answer, Call, unknown};
use crate::failure::Failure;
use crate::rows::{self, Row};

pub(super) async fn run(call: &Call, service: &str, verb: &str) -> Answer {
    match (service, verb) {
        ("nfs", "config") => Ok(json!({
            "id": 1,
            "servers": null,
            "allow_nonroot": false,
            "protocols": ["NFSV3", "NFSV4"],
            "v4_krb": false,
            "v4_domain": "",
            "bindip": [],
            "mountd_port": null,
            "rpcstatd_port": null,
            "rpclockd_port": null,
        })),
        ("smb", "config") => Ok(json!({
            "id": 1,
            "netbiosname": "truenas",
            "workgroup": "WORKGROUP",
            "description": "TrueNAS Server",
            "enable_smb1": false,
            "bindip": [],
        })),
        ("service", verb) => services(call, verb).await,
        ("system", verb) => system(call, verb),
        _ => Err(unknown(call)),
    }
}

fn system(call: &Call, verb: &str) -> Answer {
    let generation = call.generation;
    match verb {
        "version" => Ok(json!(generation.version())),
        "version_short" => Ok(json!(generation.version_short())),
        "boot_id" => Ok(json!(call.nas.boot_id())),
        "ready" => Ok(json!(true)),
        "state" => Ok(json!("READY")),
        "product_type" => Ok(json!(match generation {
            crate::Generation::Core13 => "CORE",
            crate::Generation::V22_12 | crate::Generation::V24_10 => "SCALE",
            _ => "COMMUNITY_EDITION",
        })),
        "info" => Ok(json!({
            "version": generation.version(),
            "hostname": "truenas",
            "physmem": 8_589_934_592_u64,
            "model": "truenas-sim",
            "cores": 2,
            "physical_cores": 2,
            "loadavg": [0.0, 0.0, 0.0],
            "uptime": "1 day",
            "uptime_seconds": 86_400.0,
            "system_serial": "truenas-sim",
            "system_product": "truenas-sim",
            "system_manufacturer": "truenas-sim",
            "license": null,
            "boottime": call.nas.clock.date(),
            "datetime": call.nas.clock.date(),
            "timezone": "UTC",
            "ecc_memory": true,
        })),
        _ => Err(unknown(call)),
    }
}

fn show(row: &Row) -> Value {
    let mut shown = row.clone();
    let running = rows::text(row, "state") == "RUNNING";
    shown.insert(
        "pids".to_owned(),
        if running {
            json!([1000 + rows::number(row, "id")])
        } else {
            json!([])
        },
    );
    Value::Object(shown)
}

fn find(call: &Call, name: &Value) -> Option<Row> {
    let kept = call.nas.rows();
    let wanted = |row: &&Row| match name {
        Value::String(name) => rows::text(row, "service") == name,
        other => row["id"] == *other,
    };
    kept.all("service").find(wanted).cloned()
}

async fn services(call: &Call, verb: &str) -> Answer {
    let argument = |index: usize| call.params.get(index).cloned().unwrap_or_default();
    match verb {
        "query" => {
            let rows = call.nas.rows().all("service").map(show).collect();
            call.query(rows)
        }
        "get_instance" => {
            let id = argument(0);
            let found = find(call, &id);
            found
                .map(|row| show(&row))
                .ok_or_else(|| Failure::not_found(None, format!("Service {id} does not exist")))
        }
        "update" => {
            let name = argument(0);
            let Some(row) = find(call, &name) else {
                let name = name
                    .as_str()
                    .map_or_else(|| name.to_string(), str::to_owned);
                return Err(Failure::invalid(
                    "service_update.id_or_name",
                    format!("{name} does not exist"),
                ));
            };
            let id = rows::number(&row, "id");
            if let Some(row) = call.nas.rows().get_mut("service", id) {
                row.insert(
                    "enable".to_owned(),
                    call.object(1).get("enable").cloned().unwrap_or_default(),
                );
            }
            Ok(json!(id))
        }
        "started" => Ok(json!(
            find(call, &argument(0)).is_some_and(|row| rows::text(&row, "state") == "RUNNING")
        )),
        "start" | "stop" | "restart" | "reload" => {
            change(call, verb, &argument(0), "service").await
        }
        "control" => {
            let verb = call.text(0).to_lowercase();
            change(call, &verb, &argument(1), "service").await
        }
        _ => Err(unknown(call)),
    }
}

async fn change(call: &Call, verb: &str, name: &Value, attribute: &str) -> Answer {
    let Some(row) = find(call, name) else {
        let name = name.as_str().unwrap_or_default();
        return Err(Failure::not_found(
            Some(attribute),
            format!("Service {name} not found"),
        ));
    };
    let running = match verb {
        "stop" => false,
        "reload" => rows::text(&row, "state") == "RUNNING",
        _ => true,
    };
    let id = rows::number(&row, "id");
    if let Some(row) = call.nas.rows().get_mut("service", id) {
        row.insert(
            "state".to_owned(),
            json!(if running { "RUNNING" } else { "STOPPED" }),
        );
    }
    call.apply_exports().await?;
    let row = find(call, name).map(|row| show(&row)).unwrap_or_default();
    call.nas
        .emit("changed", "service.query", &json!(id), Some(&row), None);
    // A stop answers whether the service still runs, in the old methods.
    Ok(json!(
        if verb == "stop" && call.method.name == "service.stop" {
            running
        } else {
            true
        }
    ))
}
