//! Which hosts an NVMe-oF subsystem lets in.
//!
//! A host is one row for all subsystems. One that was made here is known by its hash without a key, which no
//! one chooses by hand; it goes with the last subsystem that lets it in. Another one stays.

use driver_core::Call;
use futures_util::future::try_join_all;

use super::{access, gone};
use crate::api::Filter;
use crate::api::nvmet::{
    CreateHost, DeleteNvme, Host, HostLink, LinkHost, LinkPort, NvmeSession, QueryHostLinks,
    QueryHosts, QueryNvmeSessions, Subsystem, UpdateSubsystem,
};
use crate::backend::Nas;
use crate::command::{NvmeState, NvmeWish};
use crate::error::{Error as ApiError, Kind as ApiKind};

/// The hash of a host that was made here, and has no key.
const MARK: &str = "SHA-384";

// === impl NvmeState ===

impl NvmeState {
    /// Whether the subsystem lets in just these hosts; any if `None`. Without access per node an administrator may
    /// have closed it for hosts of his own: then it stays so.
    pub(super) fn admits(
        &self,
        subsystem: &Subsystem,
        hosts: Option<&[String]>,
        had_nodes: bool,
    ) -> bool {
        let mut links = self.hosts.iter().flatten();
        match hosts {
            None => {
                subsystem.allow_any_host || (!had_nodes && links.any(|link| !link.host.is_ours()))
            }
            Some(hosts) => {
                let seen = links.map(|link| link.host.hostnqn.as_str());
                !subsystem.allow_any_host && access::same(hosts.iter().map(String::as_str), seen)
            }
        }
    }
}

// === impl Host ===

impl Host {
    fn is_ours(&self) -> bool {
        self.hash == MARK && !self.has_key
    }
}

impl Nas {
    /// The links of the hosts that a subsystem lets in.
    pub(super) async fn host_links(
        &self,
        call: &Call,
        subsystem: i64,
    ) -> Result<Vec<HostLink>, ApiError> {
        let of_it = Filter::eq("subsys.id", subsystem);
        self.read(call, &QueryHostLinks(vec![of_it])).await
    }

    /// Lets just the hosts of the wish into an existing subsystem. Where none is left, the kernel ends the
    /// connections of those that had access when the subsystem is off its ports for a moment.
    pub(super) async fn admit_nvme(&self, call: &Call, wish: &NvmeWish) -> Result<(), ApiError> {
        let Some(subsystem) = wish.seen.subsystem(&wish.subsystem.name) else {
            return Ok(());
        };
        self.hosts(call, wish, subsystem).await?;
        // An interrupted call has removed their links already, or made none.
        let links = wish.seen.hosts.iter().flatten();
        let linked: Vec<&str> = links.map(|link| link.host.hostnqn.as_str()).collect();
        let bare = wish
            .out
            .iter()
            .filter(|name| !linked.contains(&name.as_str()));
        let bare: Vec<String> = bare.cloned().collect();
        self.remove_hosts(call, &bare).await?;
        if wish.hosts.as_ref().is_some_and(Vec::is_empty) {
            self.disconnect(call, subsystem.id).await?;
        }
        Ok(())
    }

    /// Lets just the hosts of the wish in. The kernel takes no hosts while any host is let in, and does not let
    /// any host in while there are some.
    pub(super) async fn hosts(
        &self,
        call: &Call,
        wish: &NvmeWish,
        subsystem: &Subsystem,
    ) -> Result<(Subsystem, Option<Vec<HostLink>>), ApiError> {
        let hosts = wish.hosts.as_deref();
        if wish.seen.admits(subsystem, hosts, wish.had_nodes) {
            return Ok((subsystem.clone(), wish.seen.hosts.clone()));
        }
        let open = |allow_any_host| UpdateSubsystem {
            id: subsystem.id,
            allow_any_host,
        };
        let links = match &wish.seen.hosts {
            Some(links) => links.clone(),
            None => self.host_links(call, subsystem.id).await?,
        };
        let Some(hosts) = &wish.hosts else {
            try_join_all(links.iter().map(|link| self.let_out(call, link))).await?;
            return Ok((self.write(call, &open(true)).await?, None));
        };
        let subsystem = if subsystem.allow_any_host {
            self.write(call, &open(false)).await?
        } else {
            subsystem.clone()
        };
        let (stay, go): (Vec<_>, Vec<_>) = links
            .into_iter()
            .partition(|link| hosts.contains(&link.host.hostnqn));
        let missing = hosts
            .iter()
            .filter(|nqn| !stay.iter().any(|link| link.host.hostnqn == **nqn));
        let (made, _) = tokio::try_join!(
            try_join_all(missing.map(|nqn| self.let_in(call, nqn, subsystem.id))),
            try_join_all(go.iter().map(|link| self.let_out(call, link))),
        )?;
        let links = stay.into_iter().chain(made).collect();
        Ok((subsystem, Some(links)))
    }

    /// Links a host, which is made if there is none. Other volumes wait, so that none removes it in between.
    async fn let_in(&self, call: &Call, nqn: &str, subsystem: i64) -> Result<HostLink, ApiError> {
        let _turn = self.turn(call, nqn).await?;
        let find = QueryHosts(vec![Filter::eq("hostnqn", nqn)]);
        let host = if let Some(host) = self.read(call, &find).await?.pop() {
            host.id
        } else {
            let create = CreateHost {
                hostnqn: nqn.to_owned(),
                key: None,
                controller_key: None,
                dh_group: None,
                hash: Some(MARK.to_owned()),
            };
            self.write(call, &create).await?.id
        };
        self.write(call, &LinkHost { host, subsystem }).await
    }

    /// Removes the link of a host, and the host if it was made here and no other subsystem lets it in.
    async fn let_out(&self, call: &Call, link: &HostLink) -> Result<(), ApiError> {
        let _turn = self.turn(call, &link.host.hostnqn).await?;
        gone(self.write(call, &DeleteNvme::HostLink(link.id)).await)?;
        self.remove_host(call, &link.host).await
    }

    /// Removes those hosts that were made here, unless a subsystem lets them in.
    async fn remove_hosts(&self, call: &Call, names: &[String]) -> Result<(), ApiError> {
        if names.is_empty() {
            return Ok(());
        }
        let query = QueryHosts(vec![Filter::any_of("hostnqn", names.iter().cloned())]);
        for host in self.read(call, &query).await? {
            let _turn = self.turn(call, &host.hostnqn).await?;
            self.remove_host(call, &host).await?;
        }
        Ok(())
    }

    /// Removes a host that was made here, unless a subsystem lets it in.
    async fn remove_host(&self, call: &Call, host: &Host) -> Result<(), ApiError> {
        if !host.is_ours() {
            return Ok(());
        }
        let links = QueryHostLinks(vec![Filter::eq("host.id", host.id)]);
        if !self.read(call, &links).await?.is_empty() {
            return Ok(());
        }
        match self.write(call, &DeleteNvme::Host(host.id)).await {
            // Another process has linked it just now.
            Err(error) if matches!(error.kind(), ApiKind::Dependents | ApiKind::Invalid) => Ok(()),
            outcome => gone(outcome),
        }
    }

    /// Removes a subsystem with all that is in it, and the hosts that were made for it.
    pub(super) async fn remove_subsystem(
        &self,
        call: &Call,
        id: i64,
        hosts: Option<&[HostLink]>,
        names: &[String],
    ) -> Result<(), ApiError> {
        let links = match hosts {
            Some(links) => links.to_vec(),
            None if names.is_empty() => Vec::new(),
            // `nodes` was removed from the configuration.
            None => self.host_links(call, id).await?,
        };
        try_join_all(links.iter().map(|link| self.let_out(call, link))).await?;
        self.remove_hosts(call, names).await?;
        let delete = DeleteNvme::Subsystem { id, force: true };
        gone(self.write(call, &delete).await)
    }

    /// Ends the connections to a subsystem that lets in no host.
    async fn disconnect(&self, call: &Call, subsystem: i64) -> Result<(), ApiError> {
        if self.sessions(call, subsystem).await?.is_empty() {
            return Ok(());
        }
        for link in self.port_links(call, subsystem).await? {
            gone(self.write(call, &DeleteNvme::PortLink(link.id)).await)?;
            let port = link.port.id;
            self.write(call, &LinkPort { port, subsystem }).await?;
        }
        match self.sessions(call, subsystem).await?.first() {
            None => Ok(()),
            Some(session) => Err(ApiError::new(
                ApiKind::Busy,
                format!("host {} is still connected", session.hostnqn),
            )),
        }
    }

    async fn sessions(&self, call: &Call, subsystem: i64) -> Result<Vec<NvmeSession>, ApiError> {
        let query = QueryNvmeSessions(vec![Filter::eq("subsys_id", subsystem)]);
        self.read(call, &query).await
    }
}
