//! Options of NFS shares that classes choose, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use csi_types::Network;
use driver_zfs::export::Subject;
use driver_zfs::parameter::{ChoiceNameError, ShareChoices};

use crate::api::nfs::NfsOptions;

/// The choices of a connection, each with all that a share allows by it, but for its comment.
#[derive(Debug, Default)]
pub(crate) struct NfsChoices {
    all: BTreeMap<String, NfsOptions>,
    offered: ShareChoices,
}

fn in_order(texts: &[String]) -> BTreeSet<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Reads a network as TrueNAS does: bits that do not count are zero, and an address is a network of its own.
pub(crate) fn network(text: &str) -> Option<Network> {
    let address = text.parse::<IpAddr>().map(Network::of);
    address.ok().or_else(|| text.parse().ok())
}

/// Networks in any order. What is no network stays as it is written.
fn networks(texts: &[String]) -> BTreeSet<Result<Network, &str>> {
    let read = |text| network(text).ok_or(text);
    texts.iter().map(String::as_str).map(read).collect()
}

/// Whether both are the same networks: TrueNAS writes them in its own form.
pub(super) fn are_same_networks(left: &[String], right: &[String]) -> bool {
    networks(left) == networks(right)
}

/// The users that clients are mapped to. An empty name is none.
fn users(options: &NfsOptions) -> [Option<&str>; 4] {
    let names = [
        &options.maproot_user,
        &options.maproot_group,
        &options.mapall_user,
        &options.mapall_group,
    ];
    names.map(|name| name.as_deref().filter(|name| !name.is_empty()))
}

/// Whether a share allows what was chosen, whatever the order of its clients is.
pub(super) fn is_so(chosen: &NfsOptions, share: &NfsOptions) -> bool {
    in_order(&chosen.hosts) == in_order(&share.hosts)
        && are_same_networks(&chosen.networks, &share.networks)
        && chosen.read_only == share.read_only
        && users(chosen) == users(share)
}

// === impl NfsChoices ===

impl NfsChoices {
    /// Adds one.
    pub(crate) fn add(&mut self, name: &str, options: NfsOptions) -> Result<(), ChoiceNameError> {
        // The dataset has nothing of it but its name.
        self.offered.add(name, Vec::new())?;
        self.all.insert(name.to_owned(), options);
        Ok(())
    }

    /// Their names.
    pub(crate) fn offered(&self) -> &ShareChoices {
        &self.offered
    }

    /// The options that the class of a volume chose, if the configuration still has them.
    pub(super) fn of(&self, subject: &Subject<'_>) -> Option<&NfsOptions> {
        self.all.get(subject.share_choice()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_the_same_in_any_order_and_with_users_of_no_name() {
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        let chosen = NfsOptions {
            networks: texts(&["10.0.0.0/8", "192.0.2.0/24"]),
            maproot_user: Some("root".to_owned()),
            ..NfsOptions::default()
        };
        let share = NfsOptions {
            comment: "another".to_owned(),
            networks: texts(&["192.0.2.0/24", "10.0.0.0/8"]),
            maproot_group: Some(String::new()),
            ..chosen.clone()
        };
        assert!(is_so(&chosen, &share));
        for other in [
            NfsOptions {
                read_only: true,
                ..share.clone()
            },
            NfsOptions {
                hosts: texts(&["192.0.2.1"]),
                ..share.clone()
            },
            NfsOptions {
                maproot_user: None,
                ..share.clone()
            },
        ] {
            assert!(!is_so(&chosen, &other), "{other:?}");
        }
    }

    #[test]
    fn networks_are_the_same_however_they_are_written() {
        for (given, kept, are_same) in [
            ("10.1.0.5/16", "10.1.0.0/16", true),
            ("192.0.2.7", "192.0.2.7/32", true),
            ("2001:DB8:0::/32", "2001:db8::/32", true),
            ("2001:DB8::1", "2001:db8::1/128", true),
            ("10.1.0.0/16", "10.1.0.0/17", false),
            ("192.0.2.7", "192.0.2.8/32", false),
            ("nonsense", "nonsense", true),
            ("nonsense", "10.0.0.0/8", false),
        ] {
            let [given, kept] = [given, kept].map(|text| vec![text.to_owned()]);
            let is = are_same_networks(&given, &kept);
            assert_eq!(is, are_same, "{given:?} {kept:?}");
        }
    }
}
