//! `iscsi.*` but for extents.

use serde_json::{Map, Value, json};

use super::rowset::{RowSet, first_free, merged};
use super::{Answer, Call, plain, unknown};
use crate::Generation;
use crate::failure::{EFAULT, Failure, Invalid};
use crate::rows::{self, Row, Rows};

const PORTALS: RowSet = RowSet {
    service: "iscsi.portal",
    noun: "iSCSIPortal",
    secrets: &[],
};
const INITIATORS: RowSet = RowSet {
    service: "iscsi.initiator",
    noun: "iSCSITargetAuthorizedInitiator",
    secrets: &[],
};
const AUTHS: RowSet = RowSet {
    service: "iscsi.auth",
    noun: "iSCSITargetAuthCredential",
    secrets: &["secret", "peersecret"],
};
pub(super) const TARGETS: RowSet = RowSet {
    service: "iscsi.target",
    noun: "iSCSITarget",
    secrets: &[],
};
const LINKS: RowSet = RowSet {
    service: "iscsi.targetextent",
    noun: "iSCSITargetToExtent",
    secrets: &[],
};

pub(super) async fn run(call: &Call, service: &str, verb: &str) -> Answer {
    let set = match service {
        "iscsi.global" => return global(call, verb).await,
        "iscsi.portal" => PORTALS,
        "iscsi.initiator" => INITIATORS,
        "iscsi.auth" => AUTHS,
        "iscsi.target" => TARGETS,
        _ => LINKS,
    };
    match verb {
        "query" => return set.query(call),
        "get_instance" => return set.get_instance(call),
        "listen_ip_choices" => {
            return Ok(
                json!({"0.0.0.0": "0.0.0.0", "::": "::", "127.0.0.1": "127.0.0.1", "10.0.0.5": "10.0.0.5", "10.0.0.6": "10.0.0.6"}),
            );
        }
        "validate_name" => return Ok(validate_name(call)),
        "delete" => return delete(call, &set).await,
        "create" | "update" => {}
        _ => return Err(unknown(call)),
    }
    let own = (verb == "update").then(|| call.number(0));
    let (before, data) = match own {
        Some(id) => (set.get(call, id)?, call.object(1)),
        None => (Map::new(), call.object(0)),
    };
    let mut row = merged(&before, data);
    // The name that errors carry: `iscsi_target_create`, and `iscsiportal_create` in old releases.
    let schema = call
        .method
        .args
        .last()
        .map_or("", |argument| argument.name.as_str());
    // Those of a link are named after the service, whatever its argument is called.
    let schema = if schema == "data" || service == "iscsi.targetextent" {
        format!("{}_{verb}", service.replace('.', "_"))
    } else {
        schema.to_owned()
    };
    {
        let kept = call.nas.rows();
        let errors = match service {
            "iscsi.portal" => complete_portal(&kept, &mut row, &schema, own),
            "iscsi.auth" => check_auth(&row, &schema),
            "iscsi.target" => complete_target(&kept, &mut row, &schema, own),
            "iscsi.targetextent" => complete_link(call.generation, &kept, &mut row, &schema, own)?,
            _ => Vec::new(),
        };
        if !errors.is_empty() {
            return Err(Failure::Validation(errors));
        }
    }
    let shown = match own {
        Some(id) => set.update(call, id, row)?,
        None => set.insert(call, row),
    };
    call.apply_exports().await?;
    Ok(shown)
}

async fn global(call: &Call, verb: &str) -> Answer {
    match verb {
        "config" => {}
        "update" => {
            let changes = call.object(0).clone();
            if let Some(row) = call.nas.rows().get_mut("iscsi.global", 1) {
                row.extend(changes);
            }
            call.apply_exports().await?;
        }
        "client_count" => return Ok(json!(sessions(call).await?.len())),
        "sessions" => return call.query(sessions(call).await?),
        _ => return Err(unknown(call)),
    }
    let row = call
        .nas
        .rows()
        .get("iscsi.global", 1)
        .cloned()
        .unwrap_or_default();
    Ok(Value::Object(for_generation(call, row)))
}

fn for_generation(call: &Call, mut row: Row) -> Row {
    if call.generation < Generation::V25_04 {
        row.remove("iser");
    }
    if call.generation.is_26() {
        row.insert("direct_config".to_owned(), Value::Null);
        row.insert("mode".to_owned(), json!(0));
    }
    row
}

/// The sessions of all iSCSI targets.
pub(super) async fn sessions(call: &Call) -> Result<Vec<Value>, Failure> {
    let sessions = call.nas.backend.sessions().await.map_err(plain)?;
    let rows = call.nas.rows();
    let global = rows.get("iscsi.global", 1);
    let base = global.map_or("", |row| rows::text(row, "basename"));
    // It looks only at targets whose names begin with its base name.
    let mine = sessions
        .iter()
        .filter(|session| session.target.starts_with(base));
    Ok(mine
        .map(|session| {
            json!({
                "initiator": session.initiator,
                "initiator_addr": session.address,
                "initiator_alias": null,
                "target": session.target,
                "target_alias": session.target.rsplit(':').next(),
                "header_digest": null,
                "data_digest": null,
                "max_data_segment_length": 262_144,
                "max_receive_data_segment_length": 262_144,
                "max_burst_length": 1_048_576,
                "first_burst_length": 65_536,
                "immediate_data": true,
                "iser": false,
                "offload": false,
            })
        })
        .collect())
}

fn complete_portal(kept: &Rows, row: &mut Row, schema: &str, own: Option<i64>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let listen = row
        .get("listen")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for (index, entry) in listen.iter().enumerate() {
        let taken = kept
            .all(PORTALS.service)
            .filter(|other| own != Some(rows::number(other, "id")))
            .any(|other| {
                other["listen"].as_array().is_some_and(|list| {
                    list.iter().any(|each| {
                        each["ip"] == entry["ip"] && each.get("port") == entry.get("port")
                    })
                })
            });
        if taken {
            let ip = entry["ip"].as_str().unwrap_or_default();
            let port = entry.get("port").and_then(Value::as_i64).unwrap_or(3260);
            errors.push(Invalid::new(
                format!("{schema}.listen.{index}"),
                format!("{ip}:{port} already in use."),
            ));
        }
    }
    if own.is_none() {
        row.insert("tag".to_owned(), json!(kept.next_id(PORTALS.service)));
    }
    errors
}

/// The text about the length was recorded on 25.10.6.
fn check_auth(row: &Row, schema: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    for (field, name) in [("secret", "Secret"), ("peersecret", "Peer Secret")] {
        let secret = rows::text(row, field);
        if field == "peersecret" && secret.is_empty() {
            continue;
        }
        let attribute = format!("{schema}.{field}");
        if !(12..=16).contains(&secret.len()) {
            errors.push(Invalid::new(
                &attribute,
                format!("{name} must be between 12 and 16 characters."),
            ));
        }
        if secret.contains('#') {
            errors.push(Invalid::new(
                &attribute,
                format!("{name} contains invalid characters: #"),
            ));
        }
    }
    let (secret, peer) = (rows::text(row, "secret"), rows::text(row, "peersecret"));
    if !peer.is_empty() && secret == peer {
        errors.push(Invalid::new(
            format!("{schema}.peersecret"),
            "The peer secret cannot be the same as user secret.",
        ));
    }
    if !peer.is_empty() && rows::text(row, "peeruser").is_empty() {
        errors.push(Invalid::new(
            format!("{schema}.peeruser"),
            "The peer user is required if you set a peer secret.",
        ));
    }
    errors
}

/// The text about the portal was recorded on 25.10.6.
fn complete_target(kept: &Rows, row: &mut Row, schema: &str, own: Option<i64>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let name = rows::text(row, "name").to_owned();
    let alias = rows::text(row, "alias").to_owned();
    let others: Vec<&Row> = kept
        .all(TARGETS.service)
        .filter(|other| own != Some(rows::number(other, "id")))
        .collect();
    if others.iter().any(|other| rows::text(other, "name") == name) {
        errors.push(Invalid::new(
            format!("{schema}.name"),
            "Target with this name already exists",
        ));
    }
    if name.len() > 120 {
        errors.push(Invalid::new(
            format!("{schema}.name"),
            "Target name must not be longer than 120 characters",
        ));
    }
    if !alias.is_empty() {
        if others
            .iter()
            .any(|other| rows::text(other, "alias") == alias)
        {
            errors.push(Invalid::new(
                format!("{schema}.alias"),
                "Alias already exists",
            ));
        }
        if alias.contains('"') {
            errors.push(Invalid::new(
                format!("{schema}.alias"),
                "Double quotes are not allowed",
            ));
        }
        if alias == "target" {
            errors.push(Invalid::new(
                format!("{schema}.alias"),
                "target is a reserved word",
            ));
        }
    }
    let alias = if alias.is_empty() {
        Value::Null
    } else {
        json!(alias)
    };
    row.insert("alias".to_owned(), alias);
    check_groups(kept, row, schema, &mut errors);
    if own.is_none() {
        row.insert(
            "rel_tgt_id".to_owned(),
            json!(kept.next_id(TARGETS.service)),
        );
        row.entry("iscsi_parameters".to_owned())
            .and_modify(null_to_parameters)
            .or_insert_with(|| json!({"QueuedCommands": null}));
    }
    errors
}

fn check_groups(kept: &Rows, row: &Row, schema: &str, errors: &mut Vec<Invalid>) {
    let mut portals = Vec::new();
    let groups = row
        .get("groups")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for (index, group) in groups.iter().enumerate() {
        let at = |field: &str| format!("{schema}.groups.{index}.{field}");
        let number = |field: &str| group.get(field).and_then(Value::as_i64);
        let portal = number("portal").unwrap_or_default();
        if portals.contains(&portal) {
            errors.push(Invalid::new(
                at("portal"),
                format!("Portal {portal} cannot be duplicated on a target"),
            ));
        }
        portals.push(portal);
        if kept.get(PORTALS.service, portal).is_none() {
            errors.push(Invalid::new(
                at("portal"),
                format!("{portal} Portal not found in database"),
            ));
        }
        if let Some(id) =
            number("initiator").filter(|id| kept.get(INITIATORS.service, *id).is_none())
        {
            errors.push(Invalid::new(
                at("initiator"),
                format!("{id} Initiator not found in database"),
            ));
        }
        let tag = number("auth");
        let method = group
            .get("authmethod")
            .and_then(Value::as_str)
            .unwrap_or("NONE");
        if method != "NONE" && tag.is_none() {
            errors.push(Invalid::new(
                at("auth"),
                "Authentication group is required if authentication method is not None.",
            ));
        }
        // A group of credentials is named by its tag, not by the id of a row.
        // Recorded on 26: not looked for once the portal is missing.
        if let Some(tag) = tag.filter(|_| errors.is_empty()).filter(|tag| {
            kept.all(AUTHS.service)
                .all(|row| rows::number(row, "tag") != *tag)
        }) {
            errors.push(Invalid::new(
                at("auth"),
                format!("{tag} Auth not found in database"),
            ));
        }
    }
}

fn null_to_parameters(value: &mut Value) {
    if value.is_null() {
        *value = json!({"QueuedCommands": null});
    }
}

/// What is not there is found by the database, not by a check. Recorded on 25.10.6.
fn complete_link(
    generation: Generation,
    kept: &Rows,
    row: &mut Row,
    schema: &str,
    own: Option<i64>,
) -> Result<Vec<Invalid>, Failure> {
    let (target, extent) = (rows::number(row, "target"), rows::number(row, "extent"));
    let others: Vec<&Row> = kept
        .all(LINKS.service)
        .filter(|other| own != Some(rows::number(other, "id")))
        .collect();
    let used: Vec<i64> = others
        .iter()
        .filter(|other| rows::number(other, "target") == target)
        .map(|other| rows::number(other, "lunid"))
        .collect();
    let lun = match row.get("lunid").and_then(Value::as_i64) {
        Some(lun) => lun,
        None => first_free(0, &used),
    };
    row.insert("lunid".to_owned(), json!(lun));
    if kept.get(TARGETS.service, target).is_none() || kept.get("iscsi.extent", extent).is_none() {
        let page = if generation.is_26() { 20 } else { 14 };
        let text = format!(
            "(sqlite3.IntegrityError) FOREIGN KEY constraint failed\n[SQL: INSERT INTO services_iscsitargettoextent \
             (iscsi_extent_id, iscsi_target_id, iscsi_lunid) VALUES (?, ?, ?)]\n[parameters: ({extent}, {target}, \
             {lun})]\n(Background on this error at: https://sqlalche.me/e/{page}/gkpj)"
        );
        return Err(Failure::Exception {
            class: "IntegrityError".to_owned(),
            text,
        });
    }
    let mut errors = Vec::new();
    if used.contains(&lun) {
        errors.push(Invalid::new(
            format!("{schema}.lunid"),
            "LUN ID is already being used for this target.",
        ));
    }
    if others
        .iter()
        .any(|other| rows::number(other, "extent") == extent)
    {
        errors.push(Invalid::new(
            format!("{schema}.extent"),
            "Extent is already in use.",
        ));
    }
    Ok(errors)
}

fn validate_name(call: &Call) -> Value {
    let name = call.text(0);
    let own = call.params.get(1).and_then(Value::as_i64);
    let kept = call.nas.rows();
    let taken = kept
        .all(TARGETS.service)
        .any(|row| rows::text(row, "name") == name && own != Some(rows::number(row, "id")));
    if taken {
        json!("Target with this name already exists")
    } else {
        Value::Null
    }
}

async fn delete(call: &Call, set: &RowSet) -> Answer {
    let id = call.number(0);
    let row = set.get(call, id)?;
    match set.service {
        "iscsi.target" => delete_target(call, &row).await?,
        "iscsi.targetextent" => {
            let target = call
                .nas
                .rows()
                .get(TARGETS.service, rows::number(&row, "target"))
                .cloned();
            let in_use = target.filter(|_| !call.flag(1));
            if let Some(target) = in_use.as_ref().map(|target| rows::text(target, "name")) {
                refuse_in_use(
                    call,
                    target,
                    &format!("Associated target(s) {target} is in use."),
                )
                .await?;
            }
            set.delete(call, id)?;
        }
        "iscsi.auth" => {
            let tag = rows::number(&row, "tag");
            let alone = call
                .nas
                .rows()
                .all(AUTHS.service)
                .filter(|row| rows::number(row, "tag") == tag)
                .count()
                == 1;
            let used = call.nas.rows().all(TARGETS.service).any(|target| {
                target["groups"]
                    .as_array()
                    .is_some_and(|groups| groups.iter().any(|group| group["auth"] == json!(tag)))
            });
            if alone && used {
                let text = format!("Authorized access of {tag} is being used by target(s)");
                return Err(Failure::call(EFAULT, text));
            }
            set.delete(call, id)?;
        }
        _ => {
            // A portal or initiator that goes takes its groups out of the targets.
            let field = if set.service == "iscsi.portal" {
                "portal"
            } else {
                "initiator"
            };
            set.delete(call, id)?;
            drop_groups(&mut call.nas.rows(), field, id);
        }
    }
    call.apply_exports().await?;
    Ok(json!(true))
}

fn drop_groups(kept: &mut Rows, field: &str, id: i64) {
    for target in kept.ids(TARGETS.service) {
        if let Some(Value::Array(groups)) = kept
            .get_mut(TARGETS.service, target)
            .and_then(|row| row.get_mut("groups"))
        {
            if field == "portal" {
                groups.retain(|group| group[field] != json!(id));
            } else {
                for group in groups.iter_mut().filter(|group| group[field] == json!(id)) {
                    group[field] = Value::Null;
                }
            }
        }
    }
}

async fn delete_target(call: &Call, row: &Row) -> Result<(), Failure> {
    let (id, name) = (rows::number(row, "id"), rows::text(row, "name"));
    if !call.flag(1) {
        refuse_in_use(call, name, &format!("Target {name} is in use.")).await?;
    }
    let links = call
        .nas
        .rows()
        .take(LINKS.service, |link| rows::number(link, "target") == id);
    if call.flag(2) {
        for extent in links.iter().map(|link| rows::number(link, "extent")) {
            call.nas.rows().remove("iscsi.extent", extent);
        }
    }
    TARGETS.delete(call, id)?;
    Ok(())
}

/// Refuses if an initiator is connected to a target, known by its full name or the end of it.
pub(super) async fn refuse_in_use(call: &Call, target: &str, text: &str) -> Result<(), Failure> {
    let suffix = format!(":{target}");
    let sessions = call.nas.backend.sessions().await.map_err(plain)?;
    if sessions
        .iter()
        .any(|session| session.target == target || session.target.ends_with(&suffix))
    {
        return Err(Failure::call(EFAULT, text));
    }
    Ok(())
}
