//! Services: `service.*`.

use serde::Deserialize;
use serde_json::json;

use super::{Call, Done, Filter, JobRequest, Request, query};
use crate::{Client, Dialect, Error, Generation};

/// Finds services by name: `nfs`, `cifs`, `iscsitarget`, `nvmet`.
#[derive(Debug, Clone)]
pub struct QueryServices {
    /// Their names.
    pub names: Vec<String>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Service {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub service: String,
    /// Whether it is started with the NAS.
    #[serde(default)]
    pub enable: bool,
    /// `RUNNING` or `STOPPED`.
    #[serde(default)]
    pub state: String,
}

/// An action on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Start it.
    Start,
    /// Stop it.
    Stop,
    /// Stop and start it.
    Restart,
    /// Let it read its configuration again.
    Reload,
}

/// Does something to a service, up to 25.04. Use [`Client::control`], which knows all generations.
#[derive(Debug, Clone)]
pub struct ControlService {
    /// The action.
    pub verb: Verb,
    /// Its name.
    pub service: String,
}

/// The same from 25.10 on: a job.
#[derive(Debug, Clone)]
pub struct ControlServiceJob(pub ControlService);

impl Client {
    /// Starts, stops, restarts or reloads a service.
    pub async fn control(&self, control: ControlService) -> Result<(), Error> {
        if self.dialect().await?.generation() >= Generation::V25_10 {
            return self.run(&ControlServiceJob(control)).await;
        }
        self.call(&control).await.map(|Done| ())
    }
}

impl Request for QueryServices {
    type Answer = Vec<Service>;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        let names = Filter::any_of("service", self.names.iter().map(String::as_str));
        Ok(query("service.query", &[names], json!({})))
    }
}

impl Request for ControlService {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        if dialect.generation() >= Generation::V25_10 {
            return Err(dialect.lacks("plain call that controls a service"));
        }
        let method = match self.verb {
            Verb::Start => "service.start",
            Verb::Stop => "service.stop",
            Verb::Restart => "service.restart",
            Verb::Reload => "service.reload",
        };
        Ok(Call::new(method, vec![json!(self.service)]))
    }
}

impl JobRequest for ControlServiceJob {
    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V25_10, "job that controls a service")?;
        let verb = match self.0.verb {
            Verb::Start => "START",
            Verb::Stop => "STOP",
            Verb::Restart => "RESTART",
            Verb::Reload => "RELOAD",
        };
        Ok(Call::new(
            "service.control",
            vec![json!(verb), json!(self.0.service)],
        ))
    }
}
