//! The login of a driver, made from that of an administrator: a user with its own group, a privilege with
//! the least roles, an API key, and for SSH the rules of sudo.
//!
//! From what a configuration [wants](Wanted) and what the NAS [has](Seen) follows a [`Plan`], which is
//! carried out or printed. It adds what is missing and takes nothing away. compat: "TrueNAS".

mod allow;
mod plan;
mod script;

use driver_core::config::{ConfigError, Document};
use driver_ssh::Settings as SshSettings;
use driver_zfs::ZfsConfig;
use driver_zfs::step::Permission;
use driver_zfs_cli::ssh;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::api::{Call, Request};
use crate::check::Needs;
use crate::config;
use crate::generation::Dialect;
use crate::settings::{HttpConnection, Protocol, Settings};
use crate::{Client, Error, Generation, Kind, Version};

pub use plan::{Made, Plan};

/// The administrator who makes the login.
#[derive(Debug)]
pub struct Administrator {
    /// The name.
    pub username: String,
    /// The API key.
    pub api_key: Option<SecretString>,
    /// The password.
    pub password: Option<SecretString>,
}

/// The login that a configuration needs.
#[derive(Debug)]
pub struct Wanted {
    user: String,
    needs: Needs,
    /// Disks with detached snapshots, whose empty parents are looked for, or NFS, whose clients are.
    looks: bool,
    /// The configuration logs in with a password.
    by_password: bool,
    shell: Option<Shell>,
    /// The parts of the login by SSH that no call makes.
    notes: Vec<String>,
}

/// A login by SSH.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    user: String,
    /// Below it the home folder is made, which the public key needs.
    pool: String,
    public_key: Option<String>,
    password: Option<SecretString>,
    /// The commands that sudo runs without a password.
    commands: Vec<String>,
}

/// The parts of the login that are there.
#[derive(Debug, Default)]
pub struct Seen {
    users: Vec<Value>,
    privilege: Option<Value>,
    key: Option<Value>,
}

/// A call as it stands, and its answer as it comes.
struct Raw(Call);

impl Request for Raw {
    type Answer = Value;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(self.0.clone())
    }
}

/// A query by one field.
fn find(service: &str, field: &str, value: &str) -> Raw {
    let filter = json!([[field, "=", value]]);
    Raw(Call::new(format!("{service}.query"), vec![filter]))
}

// === impl Administrator ===

impl Administrator {
    /// The NAS of a configuration, with this login, which must not travel in plain text.
    pub fn client(self, document: &Document) -> Result<Client, ConfigError> {
        let config: HttpConnection = document.section("httpConnection")?;
        let login = HttpConnection {
            username: Some(self.username),
            api_key: self.api_key,
            password: self.password,
            ..config
        };
        let settings: Settings = login.check()?;
        let endpoint = &settings.endpoint;
        if endpoint.protocol == Protocol::Http && !endpoint.is_loopback() {
            let problem = "is http: the login of the administrator would travel in plain text";
            return Err(ConfigError::at("httpConnection.protocol", problem)
                .advise("set it to https, or use --print and run the calls on the NAS"));
        }
        let at = |error: Error| ConfigError::at("httpConnection", error.message().to_owned());
        Client::new(settings).map_err(at)
    }
}

// === impl Wanted ===

impl Wanted {
    /// Reads a connection of TrueNAS. Touches no storage.
    pub fn of(document: &Document) -> Result<Self, ConfigError> {
        let driver = document.driver()?;
        if !crate::KINDS.contains(&driver) {
            return Err(ConfigError::at("driver", "is no driver of TrueNAS").advise(
                "name the file of one connection: of a folder, the one in it that is meant",
            ));
        }
        let files = driver.ends_with("-nfs") || driver.ends_with("-smb");
        let needs = Needs {
            service: match driver.rsplit('-').next() {
                Some("nfs") => "nfs",
                Some("smb") => "cifs",
                Some("iscsi") => "iscsitarget",
                _ => "nvmet",
            },
            datasets: driver.contains("-api-"),
            files,
            nodes: config::is_per_node(document)?,
            ..Needs::default()
        };
        let config: HttpConnection = document.section("httpConnection")?;
        let user = config.username.filter(|name| !name.is_empty());
        let user = user.filter(|name| name != "root").ok_or_else(|| {
            let problem = "has to name the user that is to be made, and that is not root";
            ConfigError::at("httpConnection.username", problem).advise("such as `csi`")
        })?;
        let mut zfs = ZfsConfig::read(document)?;
        if needs.service == "nfs" {
            zfs.offer(
                config::nfs(document)?.choices.offered(),
                document,
                "nfs.shareChoices",
            );
        }
        let settings = zfs.settings(&document.common()?, kind(files), None)?;
        let mut wanted = Self {
            user,
            looks: if needs.datasets {
                !files && settings.layout.detached.is_some()
            } else {
                needs.service == "nfs"
            },
            by_password: config.api_key.is_none() && config.password.is_some(),
            shell: None,
            notes: Vec::new(),
            needs,
        };
        if !wanted.needs.datasets {
            let pool = settings.layout.volumes.to_string();
            let pool = pool.split('/').next().unwrap_or_default().to_owned();
            let host = ssh::settings(document)?
                .ok_or_else(|| ConfigError::at("sshConnection", "is needed"))?;
            let commands = commands(&zfs, &settings.policy.permissions);
            wanted.log_in(host, pool, commands);
            if !zfs.cli.sudo_enabled && wanted.shell.is_some() {
                let note = "set `zfs.cli.sudoEnabled: true`: without it the user also needs \
                            `zfs allow`, see docs/zfs.md";
                wanted.notes.push(note.to_owned());
            }
        }
        Ok(wanted)
    }

    fn log_in(&mut self, host: SshSettings, pool: String, commands: Vec<String>) {
        if host.user == "root" {
            let note = "sshConnection.username is root: nothing is made for it; name another user, \
                        and it gets a login with sudo";
            self.notes.push(note.to_owned());
            return;
        }
        self.shell = Some(Shell {
            user: host.user,
            pool,
            public_key: host.key.and_then(|key| key.public_line()),
            password: host.password,
            commands,
        });
    }

    /// The name of its privilege.
    fn privilege(&self) -> String {
        format!("omnibus-csi {}", self.user)
    }

    /// The name of its API key. One with a list of calls has another: an upgrade revokes it, and its name
    /// stays taken.
    fn key(&self, generation: Generation) -> String {
        let has_user = generation >= Generation::V25_04;
        let kind = if has_user { "" } else { "-calls" };
        format!("omnibus-csi-{}{kind}", self.user)
    }

    /// Looks for what is there. Changes nothing.
    pub async fn look(&self, nas: &Client) -> Result<Seen, Error> {
        let dialect = nas.dialect().await?;
        let mut seen = Seen::default();
        if dialect.generation() >= Generation::V25_04 {
            let shell = self.shell.as_ref().map(|shell| &shell.user);
            let shell = shell.filter(|name| **name != self.user);
            for name in [&self.user].into_iter().chain(shell) {
                seen.users
                    .extend(first(nas, "user", "username", name).await?);
            }
            seen.privilege = first(nas, "privilege", "name", &self.privilege()).await?;
        }
        seen.key = first(nas, "api_key", "name", &self.key(dialect.generation())).await?;
        Ok(seen)
    }
}

async fn first(
    nas: &Client,
    service: &str,
    field: &str,
    value: &str,
) -> Result<Option<Value>, Error> {
    let rows = nas.call(&find(service, field, value)).await?;
    Ok(rows.as_array().and_then(|rows| rows.first().cloned()))
}

fn kind(files: bool) -> driver_zfs::observed::VolumeKind {
    use driver_zfs::observed::VolumeKind;
    if files {
        VolumeKind::Filesystem
    } else {
        VolumeKind::Zvol
    }
}

/// The commands that the login by SSH runs as root, where SCALE has it.
fn commands(zfs: &ZfsConfig, permissions: &[Permission]) -> Vec<String> {
    let tool = zfs
        .dataset_permissions_acls_binary
        .as_deref()
        .unwrap_or("setfacl");
    let tool = if tool.starts_with('/') {
        tool.to_owned()
    } else {
        format!("/usr/bin/{tool}")
    };
    let mut all = vec!["/usr/sbin/zfs".to_owned()];
    all.extend(permissions.iter().map(|permission| match permission {
        Permission::Mode(_) => "/usr/bin/chmod".to_owned(),
        Permission::Owner(_) => "/usr/bin/chown".to_owned(),
        Permission::Acl(_) => tool.clone(),
    }));
    all.dedup();
    all
}

/// The dialect of a release, such as `25.10`, without asking a NAS.
pub fn dialect_of(release: &str) -> Result<Dialect, Error> {
    let parsed = Version::parse(release);
    let generation = parsed.and_then(|version| {
        let (major, minor) = version.numbers();
        Generation::of(major, minor)
    });
    let unknown = || {
        Error::new(
            Kind::Config,
            format!("{release:?} is no release of TrueNAS"),
        )
    };
    generation.map(Dialect::of).ok_or_else(unknown)
}

// === impl Shell ===

impl Shell {
    /// The work to do by hand where no call does it.
    fn in_words(&self) -> String {
        let login = match &self.public_key {
            Some(key) => format!(
                "a home folder in the pool {} and the public key `{key}`",
                self.pool
            ),
            None => "a password, allowed for SSH".to_owned(),
        };
        format!(
            "make the user {} for SSH, with {login}, and let sudo run without a password: {}",
            self.user,
            self.commands.join(", ")
        )
    }
}
