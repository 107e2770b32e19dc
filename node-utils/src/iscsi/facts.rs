//! The facts that a detach needs: the target, the portals, the number of the disk.

use std::fmt;

use csi_types::attachment::{Host, Iqn, Iscsi, Lun, Portal};

/// The facts that a detach needs, as the record of a staged volume keeps them: one line of text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IscsiFacts {
    iqn: Iqn,
    lun: Lun,
    portals: Vec<Portal>,
}

// === impl IscsiFacts ===

impl IscsiFacts {
    /// Those of a volume.
    pub fn of(volume: &Iscsi) -> Self {
        Self::new(volume.iqn.clone(), volume.lun, volume.portals.to_vec())
    }

    /// A portal that is there twice counts once.
    pub(super) fn new(iqn: Iqn, lun: Lun, portals: Vec<Portal>) -> Self {
        let mut each: Vec<Portal> = Vec::with_capacity(portals.len());
        for portal in portals {
            if !each.contains(&portal) {
                each.push(portal);
            }
        }
        Self {
            iqn,
            lun,
            portals: each,
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("iscsi ")?.split(' ');
        let lun = Lun::parse(words.next()?).ok()?;
        let iqn = Iqn::parse(words.next()?).ok()?;
        let portals = words.map(|text| Portal::parse(text, Portal::ISCSI).ok());
        Some(Self::new(iqn, lun, portals.collect::<Option<_>>()?))
    }

    /// The name of the target.
    pub fn iqn(&self) -> &Iqn {
        &self.iqn
    }

    /// The number of the volume there.
    pub fn lun(&self) -> Lun {
        self.lun
    }

    /// The place where the target is reached, in order.
    pub fn portals(&self) -> &[Portal] {
        &self.portals
    }
}

impl fmt::Display for IscsiFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi {} {}", self.lun, self.iqn)?;
        for portal in &self.portals {
            write!(f, " {portal}")?;
        }
        Ok(())
    }
}

/// A portal as sysfs shows it: an address or a name, and a port.
pub(super) fn shown(host: &str, port: &str) -> Option<Portal> {
    let port = port.parse().ok()?;
    let host = match host.parse() {
        Ok(address) => Host::Ip(address),
        Err(_) if host.contains(':') => Host::v6(host).ok()?,
        Err(_) => Host::parse(host).ok()?,
    };
    Some(Portal { host, port })
}

/// Whether both are one place, as far as their texts tell.
pub(super) fn is_same(one: &Portal, other: &Portal) -> bool {
    match (&one.host, &other.host) {
        (Host::Name(one_name), Host::Name(other_name)) => {
            one.port == other.port && one_name.eq_ignore_ascii_case(other_name)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portal(text: &str) -> Portal {
        Portal::parse(text, Portal::ISCSI).expect("portal")
    }

    #[test]
    fn one_address_has_many_spellings_and_one_name_too() {
        let of_sysfs = |host: &str, port: &str| shown(host, port).expect("portal");
        let address = portal("[FD00::0:1]:3260");
        assert!(is_same(&address, &of_sysfs("fd00::1", "3260")));
        assert!(!is_same(&address, &of_sysfs("fd00::1", "3261")));
        assert!(is_same(&portal("NAS.lan"), &of_sysfs("nas.lan", "3260")));
        let zoned = portal("[fe80::1%eth0]:3260");
        assert!(is_same(&zoned, &of_sysfs("fe80::1%eth0", "3260")));
        assert!(!is_same(&zoned, &of_sysfs("fe80::1%eth1", "3260")));
        for (host, port) in [
            ("", "3260"),
            ("a b", "3260"),
            ("a", "x"),
            ("(null)", "3260"),
        ] {
            assert_eq!(shown(host, port), None);
        }
    }

    #[test]
    fn the_text_of_facts_is_read_back_and_other_text_is_refused() {
        let portals = ["10.0.0.1", "[fd00::1]:3261", "10.0.0.1:3260"].map(portal);
        let iqn = Iqn::parse("iqn.2005-10.org.x:a").expect("name");
        let lun = Lun::parse("300").expect("number");
        let facts = IscsiFacts::new(iqn.clone(), lun, portals.into());
        let text = facts.to_string();
        assert_eq!(
            text,
            "iscsi 300 iqn.2005-10.org.x:a 10.0.0.1:3260 [fd00::1]:3261"
        );
        assert_eq!(IscsiFacts::parse(&text), Some(facts));
        let none = IscsiFacts::new(iqn, lun, Vec::new());
        assert_eq!(IscsiFacts::parse(&none.to_string()), Some(none));
        for bad in [
            "iscsi 0",
            "iscsi x iqn.a",
            "iscsi -1 iqn.a",
            "iscsi 16384 iqn.a",
            "iscsi 0 nqn.a",
            "iscsi 0 iqn.a/../b",
            "iscsi 0 iqn.a,b",
            "iscsi 0 iqn.a b:0",
            "iscsi 0 iqn.a  b",
            "nvme 0 iqn.a",
            "",
        ] {
            assert_eq!(IscsiFacts::parse(bad), None, "{bad}");
        }
    }
}
