//! The addresses of the interfaces of this machine.

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// All of them, but for those of loopback interfaces, in no order.
pub fn of_this_machine() -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter(|one| !one.flags.contains(InterfaceFlags::IFF_LOOPBACK));
    let address = |one: nix::ifaddrs::InterfaceAddress| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Ok(all.filter_map(address).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_uses_one_of_them_to_reach_any_other_machine() {
        let all = of_this_machine().expect("addresses");
        assert!(all.iter().all(|address| !address.is_loopback()), "{all:?}");
        // Nothing is sent: the kernel only looks for a route.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().expect("an address").ip();
            assert!(all.contains(&own), "{own} of {all:?}");
        }
    }
}
