//! The addresses by which storage sees this node: those of its interfaces that are in a configured
//! network. Bridges and tunnels of pods have addresses too, which say nothing to a storage.

use std::net::IpAddr;
use std::str::FromStr;

use csi_types::NetworkError;
use driver_core::config::ConfigError;
use serde::{Deserialize, Deserializer, de};

const NETWORKS: &str = "proxy.nodeId.networks";

/// A network of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network(csi_types::Network);

/// The addresses of this machine that are in one of these networks, in their order.
pub(crate) fn of_this_node(networks: &[Network]) -> Result<Vec<IpAddr>, ConfigError> {
    let all = node_utils::addresses::of_this_machine().map_err(|error| {
        ConfigError::at(
            NETWORKS,
            format!("the addresses of this node cannot be read: {error}"),
        )
    })?;
    chosen(all, networks)
}

fn chosen(mut all: Vec<IpAddr>, networks: &[Network]) -> Result<Vec<IpAddr>, ConfigError> {
    // The id of a node has to be the same each time.
    all.sort_unstable();
    all.dedup();
    let of = |address: &IpAddr| {
        networks
            .iter()
            .position(|network| network.0.holds(*address))
    };
    all.retain(|address| of(address).is_some());
    all.sort_by_key(of);
    if all.is_empty() {
        let problem = "this node has no address in any of these networks";
        return Err(ConfigError::at(NETWORKS, problem)
            .advise("list the networks in which your nodes reach their storage"));
    }
    Ok(all)
}

// === impl Network ===

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        text.parse().map(Self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|problem| de::Error::custom(format!("`{}` {problem}", text.escape_debug())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        let parse = |text: &&str| text.parse().expect("an address");
        texts.iter().map(parse).collect()
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        let parse = |text: &&str| text.parse().expect("a network");
        texts.iter().map(parse).collect()
    }

    #[test]
    fn only_addresses_of_the_listed_networks_are_told_in_the_order_of_these() {
        let all = addresses(&[
            "172.17.0.1",
            "10.2.0.9",
            "fd00::9",
            "10.1.0.9",
            "fe80::1",
            "10.2.0.9",
        ]);
        let chosen = |texts: &[&str]| chosen(all.clone(), &networks(texts));
        assert_eq!(
            chosen(&["fd00::/64", "10.0.0.0/8"]).expect("some"),
            addresses(&["fd00::9", "10.1.0.9", "10.2.0.9"])
        );
        assert_eq!(
            chosen(&["10.2.0.9/32"]).expect("one"),
            addresses(&["10.2.0.9"])
        );
        assert_eq!(chosen(&["0.0.0.0/0", "::/0"]).expect("all").len(), 5);
        let error = chosen(&["192.168.0.0/16"]).expect_err("none");
        assert_eq!(error.path(), Some(NETWORKS));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "a/8",
            "10.0.0.0/-1",
            "10/8",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
