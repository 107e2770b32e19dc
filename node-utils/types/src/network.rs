//! A network: an address, and how many of its bits count.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network. Bits of its address that do not count are zero, and an IPv4 network that was written as IPv6 is one of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// Why a text is no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no network like `10.0.0.0/8` or `fd00::/64`")]
pub struct NetworkError;

/// The bits of an address of IPv6 before the address of IPv4 that it stands for.
const MAPPED: u32 = 96;

// === impl Network ===

impl Network {
    /// The network of this address alone.
    pub fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { address, bits }
    }

    fn new(address: IpAddr, bits: u32) -> Self {
        let (address, bits) = match (address.to_canonical(), address.is_ipv6()) {
            (IpAddr::V4(inner), true) if bits >= MAPPED => (IpAddr::V4(inner), bits - MAPPED),
            _ => (address, bits),
        };
        let address = match address {
            IpAddr::V4(all) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or_default();
                IpAddr::V4(Ipv4Addr::from_bits(all.to_bits() & mask))
            }
            IpAddr::V6(all) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or_default();
                IpAddr::V6(Ipv6Addr::from_bits(all.to_bits() & mask))
            }
        };
        Self { address, bits }
    }

    /// Whether an address is in it.
    pub fn holds(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && Self::new(address, self.bits).address == self.address
    }

    /// Whether some address is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.address) || other.holds(self.address)
    }

    /// Whether every address of its kind is in it.
    pub fn is_everything(&self) -> bool {
        self.bits == 0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, bits) = text.split_once('/').ok_or(NetworkError)?;
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let is_number = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
        let bits = bits.parse().ok().filter(|bits| is_number && *bits <= width);
        Ok(Self::new(address, bits.ok_or(NetworkError)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_is_the_same_however_it_is_written() {
        for (written, meant) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("FD00:0::1/64", "fd00::/64"),
            ("fd00::1/128", "fd00::1/128"),
            ("fd00::1/0", "::/0"),
            ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ] {
            assert_eq!(network(written).to_string(), meant);
            assert_eq!(network(meant), network(written));
        }
        let of = |text: &str| Network::of(text.parse().unwrap()).to_string();
        assert_eq!(of("10.0.0.1"), "10.0.0.1/32");
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1/32");
        assert_eq!(of("fd00::1"), "fd00::1/128");
    }

    #[test]
    fn it_holds_its_addresses_and_no_other() {
        let holds = |of: &str, address: &str| network(of).holds(address.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "255.255.255.255"));
        assert!(!holds("0.0.0.0/0", "fd00::1"));
        assert!(!holds("::/0", "10.0.0.1"));
        assert!(holds("fd00::/127", "fd00::1"));
        assert!(!holds("fd00::/127", "fd00::2"));
    }

    #[test]
    fn networks_overlap_if_one_is_in_the_other() {
        let overlap = |left: &str, right: &str| {
            let (left, right) = (network(left), network(right));
            assert_eq!(left.overlaps(&right), right.overlaps(&left));
            left.overlaps(&right)
        };
        assert!(overlap("10.0.0.0/8", "10.1.0.0/16"));
        assert!(overlap("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!overlap("10.0.0.0/16", "10.1.0.0/16"));
        assert!(!overlap("0.0.0.0/0", "::/0"));
        assert!(network("10.1.2.3/0").is_everything());
        assert!(!network("10.0.0.0/1").is_everything());
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "a/8",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10/8",
            "10.0.0.0/8 ",
            "10.0.0.0/8/8",
            "010.0.0.0/8",
        ] {
            assert_eq!(bad.parse::<Network>(), Err(NetworkError), "{bad}");
        }
    }
}
