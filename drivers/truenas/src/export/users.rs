//! The nodes that use the share of a volume: a deletion waits until there is none.
//!
//! Of NFS 4 TrueNAS shows what each client holds open, by the number of the filesystem. Who has only mounted a share, and
//! who uses it by NFS 3, it does not know: its list of the latter keeps clients that are long gone. Of SMB it shows each
//! connection by the name of its share. What it cannot say, or not to this login, keeps no volume from being deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver_core::{Call, Error};

use super::connected::named;
use crate::api::filesystem::{Device, Stat};
use crate::api::nfs::{FindNfs4Clients, Nfs4Client};
use crate::api::smb::{FindSmbConnections, SmbConnection};
use crate::backend::{Keep, Nas};
use crate::command::Connected;
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::unknown;

/// The time that a NAS may take to say who uses a share: it parses what every client holds open, which takes about a
/// second for a thousand files. A deletion does not wait longer for that, nor for its turn to ask.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the log has it that the NAS does not say who uses a share.
#[derive(Debug, Default)]
pub(crate) struct Noted(AtomicBool);

/// The connections to SMB shares: their machines, by the name of the share in small letters.
pub(super) type Connections = BTreeMap<String, BTreeSet<String>>;

/// Clients of NFS 4 that hold anything open.
#[derive(Default)]
struct Holders(Vec<Nfs4Client>);

#[derive(Default)]
struct ByShare(Connections);

/// The nodes, as the algorithm needs to know them.
pub(super) fn users(
    share: &str,
    seen: Option<Connected>,
    noted: &Noted,
) -> Result<Vec<String>, Error> {
    let error = match seen {
        None => return Ok(Vec::new()),
        Some(Ok(nodes)) => return Ok(nodes),
        Some(Err(error)) => error,
    };
    match error.kind() {
        // It has not answered, and is asked again.
        ApiKind::Unreachable
        | ApiKind::Certificate
        | ApiKind::Login
        | ApiKind::NotAuthenticated
        | ApiKind::NotSent
        | ApiKind::UnknownOutcome
        | ApiKind::Overloaded => Err(unknown(format!("see who uses the share {share}"), &error)),
        // Another call has asked, and waits. Of a NAS that was too slow once nothing better comes.
        ApiKind::Busy if !noted.is_noted() => {
            Err(unknown(format!("see who uses the share {share}"), &error))
        }
        _ => {
            noted.once(&error);
            Ok(Vec::new())
        }
    }
}

/// A name that a client has sent, if nothing but a name can be read in it.
fn plain(name: &str) -> &str {
    let fits = |c: char| c.is_ascii_alphanumeric() || " ._:/@()-".contains(c);
    if name.chars().all(fits) { name } else { "" }
}

/// An address without its port, and without the brackets of IPv6.
fn host(address: &str) -> &str {
    let host = match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None if address.matches(':').count() > 1 => address,
        None => address.split(':').next().unwrap_or_default(),
    };
    match plain(host) {
        "" => "?",
        host => host,
    }
}

async fn in_time<T>(
    call: &Call,
    asked: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let answered = tokio::time::timeout(PATIENCE.min(call.remaining()), asked).await;
    answered.unwrap_or_else(|_| {
        let why = format!("it has not answered within {} s", PATIENCE.as_secs());
        Err(ApiError::new(ApiKind::Refused, why))
    })
}

// === impl Noted ===

impl Noted {
    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn once(&self, why: &ApiError) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %why,
                "the NAS does not say who uses a share: volumes are deleted as if no node did"
            );
        }
    }
}

impl Keep<Nfs4Client> for Holders {
    fn keep(&mut self, client: Nfs4Client) -> bool {
        let holds = !client.holds.is_empty();
        if holds {
            self.0.push(client);
        }
        holds
    }
}

impl Keep<SmbConnection> for ByShare {
    fn keep(&mut self, connection: SmbConnection) -> bool {
        let share = connection.service.to_lowercase();
        self.0.entry(share).or_default().insert(connection.machine)
    }
}

impl Nas {
    /// The clients of NFS 4 that hold something of the filesystem of this directory open.
    pub(super) async fn nfs_clients_at(&self, call: &Call, path: &str) -> Connected {
        let (holders, device) = tokio::try_join!(
            self.nfs_holders(call),
            in_time(call, self.filesystem_at(call, path)),
        )?;
        let of_it = holders.iter();
        let of_it = of_it.filter(|client| device.is_some_and(|d| client.holds.contains(&d)));
        let names = of_it.map(|client| named(plain(&client.name), host(&client.address)));
        Ok(names.collect())
    }

    /// The clients of NFS 4 that hold anything open. The question keeps the NAS busy to its end, so that one is asked at a
    /// time, and all calls that wait for the next one share it.
    async fn nfs_holders(&self, call: &Call) -> Result<Arc<Vec<Nfs4Client>>, ApiError> {
        let nas = self.clone();
        let turn = self.turn_in_the_end("clients of NFS 4");
        let mut round = self.holders().join(turn, move |turn| async move {
            let holders: Result<Holders, _> = nas.read_rows_slowly(&FindNfs4Clients).await;
            drop(turn);
            holders.map(|holders| holders.0)
        });
        let asked = tokio::time::timeout(PATIENCE.min(call.remaining()), round.asked()).await;
        asked.unwrap_or_else(|_| {
            let why = "it still works on an earlier question for clients of NFS 4";
            Err(ApiError::new(ApiKind::Busy, why))
        })?;
        in_time(call, round.answer()).await
    }

    /// The filesystem that is mounted at this directory, if one is: another one has the number of that above.
    async fn filesystem_at(&self, call: &Call, path: &str) -> Result<Option<Device>, ApiError> {
        let stat = Stat {
            path: path.to_owned(),
        };
        let found = match self.read(call, &stat).await {
            Err(error) if error.kind() == ApiKind::NotFound => return Ok(None),
            found => found?,
        };
        if found.is_mountpoint == Some(false) {
            return Ok(None);
        }
        let device = found.device().ok_or_else(|| {
            let why = format!("the number of the filesystem at {path} is missing");
            ApiError::protocol(why).of("filesystem.stat")
        });
        device.map(Some)
    }

    /// The connections to all SMB shares.
    pub(super) async fn smb_connections(&self, call: &Call) -> Result<Connections, ApiError> {
        let asked = self.read_rows(call, &FindSmbConnections, ByShare::default);
        Ok(in_time(call, asked).await?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_by_its_address_without_the_port() {
        for (address, expected) in [
            ("10.0.0.7:790", "10.0.0.7"),
            ("[fe80::7]:790", "fe80::7"),
            ("fe80::7", "fe80::7"),
            ("10.0.0.7", "10.0.0.7"),
            ("", "?"),
        ] {
            assert_eq!(host(address), expected, "{address}");
        }
        assert_eq!(plain("Linux NFSv4.2 node-7"), "Linux NFSv4.2 node-7");
        assert_eq!(plain("a\nb"), "");
    }

    #[test]
    fn a_nas_that_refuses_to_say_it_has_none_and_one_that_does_not_answer_is_asked_again() {
        let failed = |kind| Some(Err(ApiError::new(kind, "no")));
        for kind in [
            ApiKind::Denied,
            ApiKind::Unsupported,
            ApiKind::Refused,
            ApiKind::NotFound,
            ApiKind::Protocol,
        ] {
            let noted = Noted::default();
            let nodes = users("a", failed(kind), &noted);
            assert_eq!(nodes.expect("none"), [""; 0], "{kind:?}");
            assert!(noted.is_noted(), "{kind:?}");
            // Another question to this NAS is not waited for.
            let nodes = users("a", failed(ApiKind::Busy), &noted);
            assert_eq!(nodes.expect("none"), [""; 0], "{kind:?}");
        }
        for kind in [ApiKind::UnknownOutcome, ApiKind::Busy] {
            let noted = Noted::default();
            let error = users("a", failed(kind), &noted).expect_err("unknown");
            assert_eq!(error.kind(), driver_core::Kind::Unreachable, "{kind:?}");
            assert!(!noted.is_noted(), "{kind:?}");
        }
    }
}
