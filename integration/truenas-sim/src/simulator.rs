//! Starting a NAS, and everything that a test does to it from outside.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::{fmt, io};

use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::accounts::{Accounts, User};
use crate::backend::Backend;
use crate::clock::Clock;
use crate::control::Control;
use crate::counters::Counts;
use crate::failure::Failure;
use crate::faults::Faults;
use crate::host::Host;
use crate::model::Model;
use crate::nas::Nas;
use crate::{Generation, random, scram, server, tls};

/// The way a NAS is set up.
#[derive(Clone)]
pub struct Options {
    /// Its release.
    pub generation: Generation,
    /// Its pools and their sizes in bytes.
    pub pools: Vec<(String, u64)>,
    /// Users besides `root`.
    pub users: BTreeMap<String, User>,
    /// The password of `root`.
    pub root_password: String,
    /// The address where plain HTTP is served; port 0 takes a free one.
    pub http: SocketAddr,
    /// The address where TLS is served.
    pub https: SocketAddr,
    /// The address where the control endpoint is served; `None`: nowhere.
    pub control: Option<SocketAddr>,
    /// The names of the certificate.
    pub certificate_names: Vec<String>,
}

impl Options {
    /// A NAS of this release with the pool `tank` of 1 TiB, on free ports of this machine.
    pub fn new(generation: Generation) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            generation,
            pools: vec![("tank".to_owned(), 1 << 40)],
            users: BTreeMap::new(),
            root_password: "sesame-for-root".to_owned(),
            http: anywhere,
            https: anywhere,
            control: Some(anywhere),
            certificate_names: vec!["localhost".to_owned()],
        }
    }

    /// Another user; no roles is full administration.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, roles: Option<&[&str]>) -> Self {
        let roles = roles.map(|roles| roles.iter().map(|role| (*role).to_owned()).collect());
        let user = User {
            password: password.to_owned(),
            roles,
            otp: None,
        };
        self.users.insert(name.to_owned(), user);
        self
    }
}

/// A running NAS. It stops when this is dropped.
pub struct Simulator {
    nas: Arc<Nas>,
    model: Option<Arc<Model>>,
    http: SocketAddr,
    https: SocketAddr,
    control: Option<SocketAddr>,
    certificate: CertificateDer<'static>,
    api_key: String,
    tasks: Vec<AbortHandle>,
}

impl Simulator {
    /// Starts a NAS whose storage is in memory.
    pub async fn start(options: Options) -> io::Result<Self> {
        let model = Arc::new(Model::new(&options.pools));
        let backend: Arc<dyn Backend> = Arc::<Model>::clone(&model);
        let mut simulator = Self::start_with(options, backend).await?;
        simulator.model = Some(Arc::clone(&model));
        simulator.serve_control(Some(model)).await?;
        Ok(simulator)
    }

    /// Starts a NAS whose storage is that of this machine, where it has to run as root: the pools of these
    /// names, nfsd, samba, LIO and nvmet.
    pub async fn start_on_this_machine(options: Options) -> io::Result<Self> {
        let pools = options.pools.iter().map(|(name, _)| name.clone());
        let host = Host::open(pools.collect()).await;
        let host = host.map_err(|problem| io::Error::other(problem.to_string()))?;
        let mut simulator = Self::start_with(options, Arc::new(host)).await?;
        simulator.serve_control(None).await?;
        Ok(simulator)
    }

    async fn start_with(options: Options, backend: Arc<dyn Backend>) -> io::Result<Self> {
        let mut accounts = Accounts {
            users: options.users,
            ..Accounts::default()
        };
        accounts.users.insert(
            "root".to_owned(),
            User {
                password: options.root_password,
                roles: None,
                otp: None,
            },
        );
        let (_, api_key) = accounts.add_key("omnibus-csi", "root", &random::hex(64), None);
        let identity = tls::identity(options.certificate_names)?;
        let end_point = scram::end_point(&identity.certificate);
        let nas = Arc::new(Nas::new(options.generation, backend, accounts, end_point));
        let http = TcpListener::bind(options.http).await?;
        let https = TcpListener::bind(options.https).await?;
        let (http_address, https_address) = (http.local_addr()?, https.local_addr()?);
        let plain = tokio::spawn(server::serve(Arc::clone(&nas), http, None));
        let encrypted = tokio::spawn(server::serve(
            Arc::clone(&nas),
            https,
            Some(identity.acceptor),
        ));
        Ok(Self {
            nas,
            model: None,
            http: http_address,
            https: https_address,
            control: options.control,
            certificate: identity.certificate,
            api_key,
            tasks: vec![plain.abort_handle(), encrypted.abort_handle()],
        })
    }

    async fn serve_control(&mut self, model: Option<Arc<Model>>) -> io::Result<()> {
        if let Some(address) = self.control {
            let listener = TcpListener::bind(address).await?;
            self.control = Some(listener.local_addr()?);
            let control = Control {
                nas: Arc::clone(&self.nas),
                model,
            };
            self.tasks
                .push(tokio::spawn(server::serve_control(control, listener)).abort_handle());
        }
        Ok(())
    }

    /// The address of plain HTTP.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The address of TLS.
    pub fn https(&self) -> SocketAddr {
        self.https
    }

    /// The address of the control endpoint.
    pub fn control(&self) -> Option<SocketAddr> {
        self.control
    }

    /// The certificate of the NAS, which it has signed itself.
    pub fn certificate_pem(&self) -> String {
        tls::pem(&self.certificate)
    }

    /// The same as bytes.
    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    /// A key of `root`, with full administration.
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// A new key of a user, as the user would write it down.
    pub fn add_api_key(&self, name: &str, user: &str) -> String {
        self.nas
            .accounts()
            .add_key(name, user, &random::hex(64), None)
            .1
    }

    /// Revokes the key that starts with this number.
    pub fn revoke_api_key(&self, id: i64) {
        if let Some(key) = self.nas.accounts().keys.get_mut(&id) {
            key.revoked = true;
        }
    }

    /// Asks this user for a second factor from now on.
    pub fn require_otp(&self, user: &str, code: &str) {
        if let Some(user) = self.nas.accounts().users.get_mut(user) {
            user.otp = Some(code.to_owned());
        }
    }

    /// The release that runs now.
    pub fn generation(&self) -> Generation {
        self.nas.generation()
    }

    /// The NAS is upgraded: its connections drop, its state stays, jobs start again at 1.
    pub fn upgrade(&self, generation: Generation) {
        self.nas.upgrade(generation);
    }

    /// The middleware restarts: connections drop, jobs are gone.
    pub fn restart(&self) {
        self.nas.restart();
    }

    /// Every connection is cut.
    pub fn cut_connections(&self) {
        self.nas.cut_connections();
    }

    /// Every login ends, with its connection open.
    pub fn expire_sessions(&self) {
        self.nas.expire_sessions();
    }

    /// The number of websockets that are open.
    pub fn connections(&self) -> usize {
        self.nas.open_sessions().len()
    }

    /// A job is forgotten, as the oldest ones are.
    pub fn evict_job(&self, id: i64) {
        self.nas.jobs.evict(id);
    }

    /// The faults of this simulator.
    pub fn faults(&self) -> &Faults {
        &self.nas.faults
    }

    /// The clock of the NAS.
    pub fn clock(&self) -> &Clock {
        &self.nas.clock
    }

    /// Calls, exchanges and bytes since the start or the last reset.
    pub fn counts(&self) -> Counts {
        self.nas.counters.counts()
    }

    /// Counts from 0 again.
    pub fn reset_counts(&self) {
        self.nas.counters.reset();
    }

    /// The storage in memory.
    pub fn model(&self) -> Option<&Model> {
        self.model.as_deref()
    }

    /// Makes what an administrator makes before there are volumes: the dataset `tank/csi/v` for them, a portal,
    /// initiators and, where there is NVMe-oF, a port.
    pub async fn set_up(&self, address: &str) -> Result<(), Failure> {
        for name in ["tank/csi", "tank/csi/v"] {
            let dataset = json!({"name": name});
            self.call("pool.dataset.create", vec![dataset]).await?;
        }
        let listen = if self.generation().is_core() {
            json!({"ip": address, "port": 3260})
        } else {
            json!({"ip": address})
        };
        let portal = json!({"listen": [listen], "comment": "csi"});
        self.call("iscsi.portal.create", vec![portal]).await?;
        let initiators = json!({"initiators": [], "comment": "csi"});
        self.call("iscsi.initiator.create", vec![initiators])
            .await?;
        if self.generation() >= Generation::V25_10 {
            let port = json!({"addr_trtype": "TCP", "addr_traddr": address, "addr_trsvcid": 4420});
            self.call("nvmet.port.create", vec![port]).await?;
        }
        Ok(())
    }

    /// Runs a method as `root`, without network, faults or counting. A job is waited for.
    pub async fn call(&self, method: &str, params: Vec<Value>) -> Result<Value, Failure> {
        self.nas.local_call(method, params).await
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("generation", &self.generation)
            .field("pools", &self.pools)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("nas", &self.nas)
            .field("https", &self.https)
            .finish_non_exhaustive()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.nas.restart();
        for task in &self.tasks {
            task.abort();
        }
    }
}
