//! The control endpoint: the library's faults and switches over HTTP, on a port of its own.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Generation;
use crate::backend::Session;
use crate::faults::{Rule, Settings};
use crate::model::Model;
use crate::nas::Nas;

#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) nas: Arc<Nas>,
    pub(crate) model: Option<Arc<Model>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Busy {
    dataset: String,
    times: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolStatus {
    pool: String,
    status: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mounted {
    dataset: String,
    mounted: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Connected {
    target: String,
    initiator: String,
    address: String,
}

impl Control {
    pub(crate) async fn answer(&self, verb: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        match self.run(verb.as_str(), path, body).await {
            Ok(value) => (200, value),
            Err(problem) => problem,
        }
    }

    async fn run(&self, verb: &str, path: &str, body: &[u8]) -> Result<Value, (u16, Value)> {
        let nas = &self.nas;
        match (verb, path) {
            ("GET", "/generation") => return Ok(json!(nas.generation())),
            ("PUT", "/generation") => nas.upgrade(read::<Generation>(body)?),
            ("GET", "/counts") => return Ok(json!(nas.counters.counts())),
            ("DELETE", "/counts") => nas.counters.reset(),
            ("GET", "/faults") => return Ok(json!(nas.faults.rules())),
            ("POST", "/faults") => nas.faults.add(read::<Rule>(body)?),
            ("DELETE", "/faults") => nas.faults.clear(),
            ("POST", "/faults/release") => nas.faults.release(),
            ("POST", "/busy") => {
                let busy: Busy = read(body)?;
                nas.faults.busy(&busy.dataset, busy.times);
            }
            ("GET", "/settings") => return Ok(json!(nas.faults.settings())),
            ("PUT", "/settings") => {
                let settings: Settings = read(body)?;
                nas.faults.set(|all| *all = settings);
            }
            ("POST", "/restart") => nas.restart(),
            ("POST", "/connections/cut") => nas.cut_connections(),
            ("POST", "/sessions/expire") => nas.expire_sessions(),
            ("POST", "/keys/revoke") => {
                let id: i64 = read(body)?;
                match nas.accounts().keys.get_mut(&id) {
                    Some(key) => key.revoked = true,
                    None => return Err((404, json!({"message": format!("there is no key {id}")}))),
                }
            }
            ("POST", "/clock/advance") => nas.clock.advance(Duration::from_millis(read(body)?)),
            (_, "/initiators" | "/pools" | "/mounts") => self.make_up(verb, path, body)?,
            ("POST", "/call") => {
                let (method, params): (String, Vec<Value>) = read(body)?;
                return Ok(match nas.local_call(&method, params).await {
                    Ok(result) => json!({"result": result}),
                    Err(failure) => json!({"error": failure.jsonrpc()}),
                });
            }
            _ => {
                return Err((
                    404,
                    json!({"message": format!("there is no {verb} {path}")}),
                ));
            }
        }
        Ok(Value::Null)
    }

    /// What only the model has.
    fn make_up(&self, verb: &str, path: &str, body: &[u8]) -> Result<(), (u16, Value)> {
        let Some(model) = &self.model else {
            let message = "only the model has what is made up";
            return Err((409, json!({"message": message})));
        };
        match (verb, path) {
            ("POST", "/initiators") => {
                let Connected {
                    target,
                    initiator,
                    address,
                } = read(body)?;
                model.connect(Session {
                    target,
                    initiator,
                    address,
                });
            }
            ("PUT", "/pools") => {
                let PoolStatus { pool, status } = read(body)?;
                model.set_pool_status(&pool, &status);
            }
            ("PUT", "/mounts") => {
                let Mounted { dataset, mounted } = read(body)?;
                model.set_mounted(&dataset, mounted);
            }
            _ => {
                return Err((
                    404,
                    json!({"message": format!("there is no {verb} {path}")}),
                ));
            }
        }
        Ok(())
    }
}

fn read<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, (u16, Value)> {
    serde_json::from_slice(body).map_err(|error| (400, json!({"message": error.to_string()})))
}
