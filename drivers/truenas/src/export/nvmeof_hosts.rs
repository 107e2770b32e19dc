//! The hosts that an NVMe-oF subsystem lets in.
//!
//! A host is one row for all subsystems. One that was made here is known by its hash without a group, which no
//! one chooses by hand; it goes with the last subsystem that lets it in. Another one stays, and keeps its key.

use std::sync::Arc;

use csi_types::DhchapKey;
use driver_core::Call;
use driver_zfs::export::Act;
use driver_zfs::nodes::NodeKeys;

use super::nvmeof_change::{HOSTS, NvmeChange, SUBSYSTEM};
use super::{access, gone};
use crate::api::Filter;
use crate::api::nvmet::{
    CreateHost, DeleteNvme, Host, HostLink, LinkHost, LinkPort, QueryHostLinks, QueryHosts,
    Subsystem, UpdateHost, UpdateSubsystem,
};
use crate::backend::Nas;
use crate::command::{Command, Id, NvmeState, task};
use crate::error::{Error as ApiError, Kind as ApiKind};

/// The hash of a host that was made here, without a group.
const MARK: &str = "SHA-384";

/// The most names of one question: a name has 223 bytes at most, and a message 64 kB.
const AT_ONCE: usize = 200;

/// Who should get in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission<'a> {
    /// Just these hosts; any if `None`.
    pub(super) hosts: Option<&'a [String]>,
    /// The keys by which they prove who they are.
    pub(super) keys: &'a Arc<NodeKeys>,
    /// Whether there was access per node before.
    pub(super) had_nodes: bool,
}

// === impl NvmeState ===

impl NvmeState {
    /// Whether the subsystem lets in just these hosts; any if `None`. Without access per node an administrator may
    /// have closed it for hosts of his own: then it stays so.
    fn admits(&self, subsystem: &Subsystem, admission: Admission<'_>) -> bool {
        let mut links = self.links();
        match admission.hosts {
            None => {
                let is_theirs = |link: &HostLink| !link.host.may_go(admission.keys);
                subsystem.allow_any_host || (!admission.had_nodes && links.any(is_theirs))
            }
            Some(hosts) => {
                let seen = links.map(|link| link.host.hostnqn.as_str());
                let wanted = self.wanted(hosts, admission.keys);
                !subsystem.allow_any_host && access::same(wanted.map(String::as_str), seen)
            }
        }
    }

    fn links(&self) -> impl Iterator<Item = &HostLink> {
        self.hosts.iter().flatten()
    }

    fn is_in(&self, nqn: &str) -> bool {
        self.links().any(|link| link.host.hostnqn == nqn)
    }

    /// The row of a host that has another key than the configuration has of it, or none, and was not made here: its key
    /// is not changed, and it is not let in.
    pub(super) fn unprovable(&self, nqn: &str, keys: &NodeKeys) -> Option<&Host> {
        let key = keys.of(nqn)?;
        let linked = self.links().map(|link| &link.host);
        let mut known = linked.chain(&self.keyed);
        known.find(|host| host.hostnqn == nqn && !host.has(key) && !host.is_ours())
    }

    /// Those of these hosts that are in, or can get in.
    fn wanted<'a>(&self, hosts: &'a [String], keys: &NodeKeys) -> impl Iterator<Item = &'a String> {
        let hosts = hosts.iter();
        hosts.filter(move |nqn| self.is_in(nqn) || self.unprovable(nqn, keys).is_none())
    }

    /// The acts that are missing until a subsystem lets in just these hosts; any if `None`. The kernel takes no hosts
    /// while any host is let in, and does not let any host in while there are some.
    pub(super) fn admission(
        &self,
        id: &Id,
        existing: Option<&Subsystem>,
        admission: Admission<'_>,
    ) -> Vec<Act<Command>> {
        if existing.is_some_and(|subsystem| self.admits(subsystem, admission)) {
            return Vec::new();
        }
        let open = |subsystem: &Subsystem, allow_any_host| {
            task(NvmeChange::UpdateSubsystem(UpdateSubsystem {
                id: subsystem.id,
                allow_any_host,
            }))
        };
        let out = |link: &HostLink| {
            let keys = Arc::clone(admission.keys);
            let out = task(NvmeChange::LetOut(link.clone(), keys)).named(HOSTS);
            Act::Task(out.after(SUBSYSTEM))
        };
        let Some(hosts) = admission.hosts else {
            let mut acts: Vec<_> = self.links().map(out).collect();
            let opened = existing.map(|subsystem| open(subsystem, true).after(HOSTS));
            acts.extend(opened.map(|open| Act::Task(open.named(HOSTS))));
            return acts;
        };
        let closed = existing.filter(|subsystem| subsystem.allow_any_host);
        let closed = closed.map(|subsystem| Act::Task(open(subsystem, false).named(SUBSYSTEM)));
        let wanted = self.wanted(hosts, admission.keys);
        let missing = wanted.filter(|nqn| !self.is_in(nqn)).map(|nqn| {
            let key = admission.keys.of(nqn).cloned();
            let let_in = task(NvmeChange::LetIn(nqn.clone(), key, id.clone())).named(HOSTS);
            Act::Task(let_in.after(SUBSYSTEM))
        });
        let go = self.links();
        let go = go.filter(|link| !hosts.contains(&link.host.hostnqn));
        closed
            .into_iter()
            .chain(missing)
            .chain(go.map(out))
            .collect()
    }

    /// The acts that are missing until the hosts that are in have the keys of the configuration. What is connected goes
    /// on.
    pub(super) fn new_keys(&self, admission: Admission<'_>) -> Vec<Act<Command>> {
        let hosts = admission.hosts.unwrap_or_default();
        let listed = self.links().map(|link| &link.host);
        let listed = listed.filter(|host| hosts.contains(&host.hostnqn) && host.is_ours());
        let changed = listed.filter_map(|host| {
            let key = admission.keys.of(&host.hostnqn);
            let key = key.filter(|key| !host.has(key))?;
            let change = task(NvmeChange::SetKey(host.clone(), key.clone())).named(HOSTS);
            Some(Act::Task(change.after(SUBSYSTEM)))
        });
        changed.collect()
    }

    /// The acts that are missing until an existing subsystem lets in just these hosts, and no one else is connected.
    /// Where none is left, the kernel ends the connections of those that had access when the subsystem is off its ports
    /// for a moment. `out` are hosts that go, and `is_open` says whether the dataset remembers one of them.
    pub(super) fn revocation(
        &self,
        subsystem: &Subsystem,
        admission: Admission<'_>,
        out: Vec<String>,
        is_open: bool,
    ) -> Vec<Act<Command>> {
        let id = Id::Known(subsystem.id);
        let mut acts = self.admission(&id, Some(subsystem), admission);
        // A node that is still remembered may be connected.
        if acts.is_empty() && !is_open {
            return acts;
        }
        // An interrupted call has removed their links already, or made none.
        let bare = out.into_iter().filter(|name| !self.is_in(name));
        let bare: Vec<String> = bare.collect();
        if !bare.is_empty() {
            let keys = Arc::clone(admission.keys);
            let remove = task(NvmeChange::RemoveHosts(bare, keys)).named(HOSTS);
            acts.push(Act::Task(remove.after(SUBSYSTEM)));
        }
        if admission.hosts.is_none_or(<[String]>::is_empty) {
            let end = task(NvmeChange::Disconnect(subsystem.id));
            acts.push(Act::Task(end.after(SUBSYSTEM).after(HOSTS)));
        }
        acts
    }

    /// The acts that remove a subsystem with all that is in it, and the hosts that were made for it: those that it lets
    /// in, and those that the volume remembers.
    pub(super) fn removal(
        &self,
        subsystem: i64,
        names: Vec<String>,
        keys: &Arc<NodeKeys>,
    ) -> Vec<Act<Command>> {
        let out = self.links().map(|link| {
            let keys = Arc::clone(keys);
            task(NvmeChange::LetOut(link.clone(), keys)).named(HOSTS)
        });
        let mut acts: Vec<_> = out.map(Act::Task).collect();
        if !names.is_empty() {
            let remove = task(NvmeChange::RemoveHosts(names, Arc::clone(keys)));
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
        self.hash == MARK && self.dh_group.is_none() && !self.has_controller_key
    }

    fn has(&self, key: &DhchapKey) -> bool {
        self.key.as_ref().is_some_and(|own| own.is(key))
    }

    /// Whether nothing of it is lost when it goes. The key of a node that the configuration does not have may be another
    /// one's.
    fn may_go(&self, keys: &NodeKeys) -> bool {
        self.is_ours() && (self.key.is_none() || keys.of(&self.hostnqn).is_some())
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

    /// The hosts of these names.
    pub(super) async fn hosts_called(
        &self,
        call: &Call,
        names: &[String],
    ) -> Result<Vec<Host>, ApiError> {
        let mut hosts = Vec::new();
        for names in names.chunks(AT_ONCE) {
            let query = QueryHosts(vec![Filter::any_of("hostnqn", names.iter().cloned())]);
            hosts.extend(self.read(call, &query).await?);
        }
        Ok(hosts)
    }

    /// Links a host, which is made if there is none, and gets its key before. Other volumes wait, so that none removes it
    /// in between.
    pub(super) async fn let_in(
        &self,
        call: &Call,
        nqn: &str,
        key: Option<&DhchapKey>,
        subsystem: i64,
    ) -> Result<HostLink, ApiError> {
        let _turn = self.turn(call, nqn).await?;
        let find = QueryHosts(vec![Filter::eq("hostnqn", nqn)]);
        let host = if let Some(host) = self.read(call, &find).await?.pop() {
            if let Some(key) = key.filter(|key| !host.has(key)) {
                self.change_key(call, &host, key).await?;
            }
            host.id
        } else {
            let create = CreateHost {
                hostnqn: nqn.to_owned(),
                key: key.map(|key| key.secret().clone()),
                controller_key: None,
                dh_group: None,
                hash: Some(MARK.to_owned()),
            };
            self.write(call, &create).await?.id
        };
        self.write(call, &LinkHost { host, subsystem }).await
    }

    /// Gives a host another key.
    pub(super) async fn set_key(
        &self,
        call: &Call,
        host: &Host,
        key: &DhchapKey,
    ) -> Result<(), ApiError> {
        let _turn = self.turn(call, &host.hostnqn).await?;
        self.change_key(call, host, key).await
    }

    async fn change_key(&self, call: &Call, host: &Host, key: &DhchapKey) -> Result<(), ApiError> {
        if !host.is_ours() {
            // It was made a moment ago: what is planned next says more.
            let why = format!("there is another host {}", host.hostnqn);
            return Err(ApiError::new(ApiKind::Exists, why));
        }
        let update = UpdateHost {
            id: host.id,
            key: key.secret().clone(),
        };
        self.write(call, &update).await.map(drop)
    }

    /// Removes the link of a host, and the host if it was made here and no other subsystem lets it in.
    pub(super) async fn let_out(
        &self,
        call: &Call,
        link: &HostLink,
        keys: &NodeKeys,
    ) -> Result<(), ApiError> {
        let _turn = self.turn(call, &link.host.hostnqn).await?;
        gone(self.write(call, &DeleteNvme::HostLink(link.id)).await)?;
        self.remove_host(call, &link.host, keys).await
    }

    /// Removes those hosts that were made here, unless a subsystem lets them in.
    pub(super) async fn remove_hosts(
        &self,
        call: &Call,
        names: &[String],
        keys: &NodeKeys,
    ) -> Result<(), ApiError> {
        for host in self.hosts_called(call, names).await? {
            let _turn = self.turn(call, &host.hostnqn).await?;
            self.remove_host(call, &host, keys).await?;
        }
        Ok(())
    }

    /// Removes a host that was made here, unless a subsystem lets it in.
    async fn remove_host(&self, call: &Call, host: &Host, keys: &NodeKeys) -> Result<(), ApiError> {
        if !host.may_go(keys) {
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
