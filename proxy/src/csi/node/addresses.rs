//! The addresses by which storage sees this node: those of its interfaces that are in a configured
//! network. Bridges and tunnels of pods have addresses too, which say nothing to a storage.

use std::net::IpAddr;
use std::str::FromStr;

use driver_core::config::ConfigError;
use serde::{Deserialize, Deserializer, de};

const NETWORKS: &str = "proxy.nodeId.networks";

/// A network: an address, and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u32,
}

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
    let of = |address: &IpAddr| networks.iter().position(|network| network.holds(*address));
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

impl Network {
    fn holds(self, address: IpAddr) -> bool {
        fn same(width: u32, bits: u32, differing: u128) -> bool {
            bits == 0 || differing >> (width - bits) == 0
        }
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                same(32, self.bits, differing.into())
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same(128, self.bits, own.to_bits() ^ other.to_bits())
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "is no network like `10.0.0.0/8` or `fd00::/64`";
        let (address, bits) = text.split_once('/').ok_or(FORM)?;
        let address: IpAddr = address.parse().map_err(|_| FORM)?;
        let bits: u32 = bits.parse().map_err(|_| FORM)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        (bits <= width)
            .then_some(Self { address, bits })
            .ok_or(FORM)
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
