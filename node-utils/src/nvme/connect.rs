//! `nvme connect`: one route, one command, and the controller that the kernel made of it.

use std::net::ToSocketAddrs as _;

use exec::{Command, Program};
use tokio::time::Instant;
use tracing::warn;

use super::NvmeFacts;
use super::authenticated;
use super::controller::{Controller, State, ip, option};
use super::host_identity::HostIdentity;
use super::request::{self, Request};
use crate::blocking;
use crate::device::{look, until};
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::DhchapKey;
use csi_types::attachment::{Fabric, Nvmeof, Transport};
use csi_types::error::{Error, Kind};

const NVME: Program = Program::constant("nvme");
const MODPROBE: Program = Program::constant("modprobe");

/// The way the kernel behaves when the target is cut off, unless the volume says otherwise.
pub(super) type Endurance = [(&'static str, &'static str); 3];

/// What is set for the connections of a volume.
///
/// Input and output wait while the kernel reconnects and fail when it gives up; a filesystem does
/// not survive that. A storage server may take half an hour to boot and import its pools. But after
/// a node is lost the orchestrator gives its volumes to another one, eleven minutes later at the
/// earliest, and what waits here must not be written after that. So it gives up after 45 minutes
/// where the storage itself keeps the lost node out, elsewhere after eleven. Not never: a target
/// that is gone for good must not hold processes, and the node's shutdown, for ever.
///
/// It tries every two seconds, by default ten, because what waits is a pod: a target that is back
/// should be used at once. A try is one small packet.
///
/// It notices a silent cut after about five seconds, its default, said here because with several
/// routes this is how long the others are not used. A target that is merely slow costs a reconnect,
/// not an error.
pub(super) fn endurance(volume: &Nvmeof) -> Endurance {
    let loss = if volume.is_fenced { "2700" } else { "660" };
    [
        ("ctrl-loss-tmo", loss),
        ("reconnect-delay", "2"),
        ("keep-alive-tmo", "5"),
    ]
}

/// The options of a volume that select the host identity.
const HOST: [&str; 2] = ["hostnqn", "hostid"];

/// Options whose value is a key.
const SECRET: [&str; 3] = ["dhchap-secret", "dhchap-ctrl-secret", "tls-key"];

/// The time that loading a module may take to show its device node.
const NODE: std::time::Duration = std::time::Duration::from_secs(3);

/// A way to a target, and what its other side is called in the kernel.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    way: Transport,
    addresses: Vec<String>,
    endurance: Endurance,
}

// === impl Resolved ===

impl Resolved {
    /// Looks the name up if it is one: sysfs shows addresses, never names.
    pub(super) async fn of(
        way: Transport,
        endurance: Endurance,
        deadline: Instant,
    ) -> Result<Self, Error> {
        if way.fabric == Fabric::Fc || ip(&way.address).is_some() {
            let addresses = vec![way.address.clone()];
            return Ok(Self {
                way,
                addresses,
                endurance,
            });
        }
        let doing = format!("look up the host of {}", place(&way));
        let host = way.address.clone();
        // Not a matter of the volume: a resolver that hangs must not hold it.
        let lookup = blocking::spawn(move || (host.as_str(), 0_u16).to_socket_addrs());
        let failed = || Error::new(Kind::Unreachable, doing.clone());
        let found = match tokio::time::timeout_at(deadline, lookup).await {
            Ok(Ok(found)) => found.map_err(|error| failed().because(error))?,
            Ok(Err(_)) => return Err(failed()),
            Err(elapsed) => return Err(Error::new(Kind::Timeout, doing).because(elapsed)),
        };
        let mut addresses: Vec<String> = Vec::new();
        for address in found {
            let address = address.ip().to_string();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(failed());
        }
        Ok(Self {
            way,
            addresses,
            endurance,
        })
    }

    /// The connection that goes this way, unless it is on its way out.
    pub(super) fn find<'a>(&self, controllers: &'a [Controller]) -> Option<&'a Controller> {
        controllers.iter().find(|controller| {
            controller.state != State::Going && controller.goes(&self.way, &self.addresses)
        })
    }

    /// The place to which it leads, without its options, of which some are secret.
    pub(super) fn place(&self) -> String {
        place(&self.way)
    }

    /// Whether the volume says the key for it.
    pub(super) fn has_key(&self) -> bool {
        authenticated::has_key(&self.way)
    }

    /// Connects this way, by the first of its addresses that answers. Whatever the command says,
    /// what counts is whether the kernel has the connection.
    pub(super) async fn connect(
        &self,
        tools: &Tools,
        kernel: &Kernel,
        facts: &NvmeFacts,
        (host, key): (&HostIdentity, Option<&DhchapKey>),
        deadline: Instant,
    ) -> Result<(), Error> {
        let key = key.filter(|_| !self.has_key());
        let is_proven = key.is_some() || authenticated::has_secret(&self.way);
        let doing = format!("connect to {} by {}", facts.nqn(), place(&self.way));
        let mut last = Error::new(Kind::Timeout, doing.clone());
        for address in &self.addresses {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let limit = tools.timeouts().nvme.min(left);
            let settings = settings(&self.way, address, facts, (host, self.endurance));
            let ended = if is_proven {
                let request = Request::of(&settings, key);
                let soon = Instant::now() + limit;
                authenticated::connect(kernel, facts, request, &doing, soon).await
            } else {
                let ended = tools
                    .here()
                    .run_checked(&command(&settings).within(limit))
                    .await;
                let failed = || Error::new(Kind::Unreachable, doing.clone());
                ended.map(drop).map_err(|error| failed().because(error))
            };
            let there = {
                let (this, kernel, nqn) = (self.clone(), kernel.clone(), facts.nqn().clone());
                move || Ok(this.find(&Controller::of(&kernel, &nqn)?).is_some())
            };
            if look(deadline, &doing, there).await? {
                return Ok(());
            }
            last = match ended {
                // It says that it did, and there is nothing: cut off again at once.
                Ok(()) => Error::new(Kind::Unreachable, doing.clone()),
                Err(error) => error,
            };
        }
        if last.advice().is_some() {
            return Err(last);
        }
        let proof = if is_proven {
            "and to have the same key for it"
        } else {
            "and if it asks for a key, OMNIBUS_CSI_NVME_KEY_FILE has to name a file with it"
        };
        Err(last.advise(format!(
            "the kernel's log says why; a target that lets only some hosts in has to allow {}, {proof}",
            host.nqn
        )))
    }
}

/// Whether a way says a key.
pub(super) fn says_key(way: &Transport) -> bool {
    let mut options = way.options.iter();
    options.any(|option| request::may_be(&option.name, &SECRET))
}

/// The place where a way leads, without its options: one may be a key.
fn place(way: &Transport) -> String {
    let (fabric, address) = (way.fabric.as_str(), &way.address);
    match way.port {
        Some(port) => format!("{fabric} {address} port {port}"),
        None => format!("{fabric} {address}"),
    }
}

/// The settings of one way, by the names that `nvme connect` has for them. A flag has an empty value.
///
/// compat: "NVMe over fabrics". The options of the volume are passed on as they are.
fn settings<'a>(
    way: &'a Transport,
    address: &str,
    facts: &NvmeFacts,
    (host, endurance): (&HostIdentity, Endurance),
) -> Vec<(&'a str, String)> {
    let mut settings = vec![
        ("nqn", facts.nqn().to_string()),
        ("transport", way.fabric.as_str().to_owned()),
        ("traddr", address.to_owned()),
    ];
    settings.extend(way.port.map(|port| ("trsvcid", port.to_string())));
    if HOST.iter().all(|name| option(way, name).is_none()) {
        settings.push(("hostnqn", host.nqn.clone()));
        settings.push(("hostid", host.id.clone()));
    }
    for (name, value) in endurance {
        if option(way, name).is_none() {
            settings.push((name, value.to_owned()));
        }
    }
    let given = way.options.iter();
    settings.extend(given.map(|given| (given.name.as_str(), given.value.clone())));
    settings
}

/// The command for one way.
fn command(settings: &[(&str, String)]) -> Command {
    let mut command = Command::new(NVME).arg("connect");
    for (name, value) in settings {
        command = command.arg(format!("--{name}"));
        if !value.is_empty() && request::may_be(name, &SECRET) {
            command = command.secret_arg(value.clone().into());
        } else if !value.is_empty() {
            command = command.arg(value.as_str());
        }
    }
    command
}

/// Makes sure that the kernel supports NVMe over fabrics. It loads the module of a transport itself
/// on the first connect.
pub(super) async fn ready(tools: &Tools, kernel: &Kernel, deadline: Instant) -> Result<(), Error> {
    let doing = "find the kernel's NVMe over fabrics";
    let node = kernel.dev("nvme-fabrics");
    let there = move || Ok(node.exists().then_some(()));
    let present = there.clone();
    if look(deadline, doing, present).await?.is_some() {
        return Ok(());
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let load = Command::new(MODPROBE).arg("nvme-fabrics").within(left);
    if let Err(error) = tools.host().run_checked(&load).await {
        warn!(error = %error, "cannot load the module for NVMe over fabrics");
    }
    until(deadline.min(Instant::now() + NODE), doing, there)
        .await?
        .ok_or_else(|| {
            Error::new(Kind::Unreachable, doing).advise(format!(
                "load its modules on the host at boot: nvme-fabrics and nvme-{}",
                Fabric::Tcp.as_str()
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_types::attachment::{Listed, Nqn, Nsid};

    fn line(way: &str) -> String {
        line_of(way, false)
    }

    fn line_of(way: &str, is_fenced: bool) -> String {
        let volume = Nvmeof {
            nqn: Nqn::parse("nqn.2026-11.lab:dev-a").expect("nqn"),
            nsid: Nsid::parse("1").expect("nsid"),
            transports: Listed::transports(way, []).expect("transports"),
            device_id: None,
            is_fenced,
        };
        let way = Transport::parse(way).expect("transport");
        let facts = NvmeFacts::of(&volume);
        let host = HostIdentity {
            nqn: "nqn.h".into(),
            id: "i".into(),
        };
        let of_node = (&host, endurance(&volume));
        command(&settings(&way, &way.address, &facts, of_node)).to_string()
    }

    #[test]
    fn a_plain_way_waits_eleven_minutes_and_45_where_the_storage_fences_nodes() {
        for (is_fenced, seconds) in [(false, 660), (true, 2700)] {
            assert_eq!(
                line_of("tcp://10.0.0.1", is_fenced),
                format!(
                    "nvme connect --nqn nqn.2026-11.lab:dev-a --transport tcp --traddr 10.0.0.1 \
                     --trsvcid 4420 --hostnqn nqn.h --hostid i --ctrl-loss-tmo {seconds} \
                     --reconnect-delay 2 --keep-alive-tmo 5"
                )
            );
        }
    }

    #[test]
    fn what_the_volume_says_is_not_said_again_by_us() {
        assert_eq!(
            line(
                "rdma://[fe80::1]:4421?ctrl-loss-tmo=-1&--reconnect-delay=7&keep-alive-tmo=9&hostnqn=nqn.x"
            ),
            "nvme connect --nqn nqn.2026-11.lab:dev-a --transport rdma --traddr fe80::1 \
             --trsvcid 4421 --ctrl-loss-tmo -1 --reconnect-delay 7 --keep-alive-tmo 9 \
             --hostnqn nqn.x"
        );
    }

    #[test]
    fn fibre_channel_has_no_port_a_flag_no_value_and_a_key_is_not_shown() {
        let line = line(
            "fc://[nn-0x1000000044001123:pn-0x2000000055001123]?tls&dhchap-secret=DHHC-1:00:abc:",
        );
        assert!(!line.contains("--trsvcid"), "{line}");
        assert!(line.contains(" --tls --dhchap-secret "), "{line}");
        assert!(!line.contains("DHHC"), "{line}");
    }

    #[test]
    fn a_key_is_not_shown_by_whatever_spelling_its_option_is_understood() {
        for name in [
            "dhchap-secret",
            "dhchap-s",
            "dhchap_secret",
            "dhchap-ctrl-sec",
            "tls_key",
            "tls-key",
            "tls-k",
        ] {
            let line = line(&format!("tcp://10.0.0.1?{name}=c4n4ry"));
            assert!(!line.contains("c4n4ry"), "{line}");
        }
        let line = line("tcp://10.0.0.1?host-iface=eth0&tls-key-identity=public");
        assert!(line.contains("eth0"), "{line}");
    }
}
