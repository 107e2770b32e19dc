//! The hosts that an NVMe-oF subsystem lets in.
//!
//! A host is one row for all subsystems. One that was made here is known by its hash without a key, which no
//! one chooses by hand; it goes with the last subsystem that lets it in. Another one stays.

use driver_core::Call;
use driver_zfs::export::Act;

use super::nvmeof_change::{HOSTS, NvmeChange, SUBSYSTEM};
use super::{access, gone};
use crate::api::Filter;
use crate::api::nvmet::{
    CreateHost, DeleteNvme, Host, HostLink, LinkHost, LinkPort, QueryHostLinks, QueryHosts,
    Subsystem, UpdateSubsystem,
};
use crate::backend::Nas;
use crate::command::{Command, Id, NvmeState, task};
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

    /// The acts that are missing until a subsystem lets in just these hosts; any if `None`. The kernel takes no hosts
    /// while any host is let in, and does not let any host in while there are some.
    pub(super) fn admission(
        &self,
        id: &Id,
        existing: Option<&Subsystem>,
        hosts: Option<&[String]>,
        had_nodes: bool,
    ) -> Vec<Act<Command>> {
        if existing.is_some_and(|subsystem| self.admits(subsystem, hosts, had_nodes)) {
            return Vec::new();
        }
        let open = |subsystem: &Subsystem, allow_any_host| {
            task(NvmeChange::UpdateSubsystem(UpdateSubsystem {
                id: subsystem.id,
                allow_any_host,
            }))
        };
        let links = || self.hosts.iter().flatten();
        let out = |link: &HostLink| {
            let out = task(NvmeChange::LetOut(link.clone())).named(HOSTS);
            Act::Task(out.after(SUBSYSTEM))
        };
        let Some(hosts) = hosts else {
            let mut acts: Vec<_> = links().map(out).collect();
            let opened = existing.map(|subsystem| open(subsystem, true).after(HOSTS));
            acts.extend(opened.map(|open| Act::Task(open.named(HOSTS))));
            return acts;
        };
        let closed = existing.filter(|subsystem| subsystem.allow_any_host);
        let closed = closed.map(|subsystem| Act::Task(open(subsystem, false).named(SUBSYSTEM)));
        let is_in = |nqn: &str| links().any(|link| link.host.hostnqn == nqn);
        let missing = hosts.iter().filter(|nqn| !is_in(nqn)).map(|nqn| {
            let let_in = task(NvmeChange::LetIn(nqn.clone(), id.clone())).named(HOSTS);
            Act::Task(let_in.after(SUBSYSTEM))
        });
        let go = links().filter(|link| !hosts.contains(&link.host.hostnqn));
        closed
            .into_iter()
            .chain(missing)
            .chain(go.map(out))
            .collect()
    }

    /// The acts that are missing until an existing subsystem lets in just these hosts, and no one else is connected.
    /// Where none is left, the kernel ends the connections of those that had access when the subsystem is off its ports
    /// for a moment. `out` are hosts that go, and `is_open` says whether the dataset remembers one of them.
    pub(super) fn revocation(
        &self,
        subsystem: &Subsystem,
        hosts: &[String],
        out: Vec<String>,
        is_open: bool,
    ) -> Vec<Act<Command>> {
        let id = Id::Known(subsystem.id);
        let mut acts = self.admission(&id, Some(subsystem), Some(hosts), true);
        // A node that is still remembered may be connected.
        if acts.is_empty() && !is_open {
            return acts;
        }
        // An interrupted call has removed their links already, or made none.
        let links = self.hosts.iter().flatten();
        let linked: Vec<&str> = links.map(|link| link.host.hostnqn.as_str()).collect();
        let is_bare = |name: &String| !linked.contains(&name.as_str());
        let bare: Vec<String> = out.into_iter().filter(is_bare).collect();
        if !bare.is_empty() {
            let remove = task(NvmeChange::RemoveHosts(bare)).named(HOSTS);
            acts.push(Act::Task(remove.after(SUBSYSTEM)));
        }
        if hosts.is_empty() {
            let end = task(NvmeChange::Disconnect(subsystem.id));
            acts.push(Act::Task(end.after(SUBSYSTEM).after(HOSTS)));
        }
        acts
    }

    /// The acts that remove a subsystem with all that is in it, and the hosts that were made for it: those that it lets
    /// in, and those that the volume remembers.
    pub(super) fn removal(&self, subsystem: i64, names: Vec<String>) -> Vec<Act<Command>> {
        let links = self.hosts.iter().flatten();
        let out = links.map(|link| task(NvmeChange::LetOut(link.clone())).named(HOSTS));
        let mut acts: Vec<_> = out.map(Act::Task).collect();
        if !names.is_empty() {
            let remove = task(NvmeChange::RemoveHosts(names));
            acts.push(Act::Task(remove.after(HOSTS).named(HOSTS)));
        }
        let remove = task(NvmeChange::RemoveSubsystem(subsystem));
        acts.push(Act::Task(remove.after(HOSTS)));
        acts
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

    /// Links a host, which is made if there is none. Other volumes wait, so that none removes it in between.
    pub(super) async fn let_in(
        &self,
        call: &Call,
        nqn: &str,
        subsystem: i64,
    ) -> Result<HostLink, ApiError> {
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
    pub(super) async fn let_out(&self, call: &Call, link: &HostLink) -> Result<(), ApiError> {
        let _turn = self.turn(call, &link.host.hostnqn).await?;
        gone(self.write(call, &DeleteNvme::HostLink(link.id)).await)?;
        self.remove_host(call, &link.host).await
    }

    /// Removes those hosts that were made here, unless a subsystem lets them in.
    pub(super) async fn remove_hosts(&self, call: &Call, names: &[String]) -> Result<(), ApiError> {
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
            outcome => gone(outcome).map(drop),
        }
    }

    /// Ends the connections to a subsystem that lets in no host.
    pub(super) async fn disconnect(&self, call: &Call, subsystem: i64) -> Result<(), ApiError> {
        if self.nvme_sessions(call, subsystem).await?.is_empty() {
            return Ok(());
        }
        for link in self.port_links(call, subsystem).await? {
            gone(self.write(call, &DeleteNvme::PortLink(link.id)).await)?;
            let port = link.port.id;
            self.write(call, &LinkPort { port, subsystem }).await?;
        }
        match self.nvme_sessions(call, subsystem).await?.first() {
            None => Ok(()),
            Some(session) => Err(ApiError::new(
                ApiKind::Busy,
                format!("host {} is still connected", session.hostnqn),
            )),
        }
    }
}
