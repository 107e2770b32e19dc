//! `system.*`, `service.*`, and the configuration of NFS and SMB.

use serde_json::{Value, json};

use super::{Answer, Call, plain, unknown};
use crate::backend::{NfsClient, SmbConnection};
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
        ("nfs", "get_nfs4_clients") => {
            let clients = call.nas.backend.nfs_clients().await.map_err(plain)?;
            call.query(clients.iter().zip(1..).map(nfs_client).collect())
        }
        ("smb", "status") => smb_status(call).await,
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

/// A client as the middleware reads it from the files of nfsd.
fn nfs_client((client, number): (&NfsClient, u64)) -> Value {
    let state = |(device, at): (&u64, u64)| {
        // As the kernel prints the number that `stat(2)` has.
        let major = (device >> 8) & 0xfff;
        let minor = (device & 0xff) | ((device >> 12) & !0xff);
        let id = (u128::from(number) << 64) + u128::from(at);
        json!({id.to_string(): {
            "type": "open",
            "access": "rw",
            "deny": "--",
            "superblock": format!("{major:02x}:{minor:02x}:{}", 136 + at),
            "filename": "/a",
            "owner": "open id:\u{0}\u{0}\u{0}8",
        }})
    };
    let states: Vec<Value> = client.holds.iter().zip(1..).map(state).collect();
    json!({
        "id": number.to_string(),
        "info": {
            "clientid": 6_273_260_596_088_110_000_u64 + number,
            "address": client.address,
            "status": "confirmed",
            "seconds from last renew": 5,
            "name": client.name,
            "minor version": 2,
            "Implementation domain": "kernel.org",
            "Implementation name": "Linux",
            "Implementation time": [0, 0],
            "callback state": "UP",
            "callback address": client.address,
        },
        "states": states,
    })
}

/// What smbstatus says; of the levels that of connections to shares, and that of sessions with these.
async fn smb_status(call: &Call) -> Answer {
    let level = call.text(0);
    if !matches!(level, "SHARES" | "ALL") {
        return Err(unknown(call));
    }
    let connections = call.nas.backend.smb_connections().await.map_err(plain)?;
    let row = |(connection, number): (&SmbConnection, u64)| {
        json!({
            "service": connection.share,
            "server_id": {
                "pid": (1000 + number).to_string(),
                "task_id": "0",
                "vnn": "4294967295",
                "unique_id": number.to_string(),
            },
            "tcon_id": number.to_string(),
            "session_id": number.to_string(),
            "machine": connection.machine,
            "connected_at": "2026-11-29T12:00:00.000000+00:00",
            "encryption": {"cipher": "-", "degree": "none"},
            "signing": {"cipher": "-", "degree": "none"},
        })
    };
    let mut rows: Vec<Value> = connections.iter().zip(1..).map(row).collect();
    if level == "ALL" {
        rows = rows.iter().map(smb_session).collect();
    }
    crate::query::apply(rows, call.params.get(1..).unwrap_or_default())
}

/// The session of a connection to a share, with that connection.
fn smb_session(connection: &Value) -> Value {
    json!({
        "session_id": connection["session_id"],
        "server_id": connection["server_id"],
        "uid": 1000,
        "gid": 1000,
        "username": "csi",
        "groupname": "csi",
        "remote_machine": connection["machine"],
        "session_dialect": "SMB3_11",
        "encryption": connection["encryption"],
        "signing": connection["signing"],
        "share_connections": [connection],
    })
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
