//! Files that are something else, and text that was copied from elsewhere.

use std::fs;

use super::{
    CheckFlags, DIRECTORY, ISCSI, Mistake, NFS, SYNOLOGY, TRUENAS, changed, check, flags, whole,
};

pub(super) const MISTAKES: &[Mistake] = &[
    whole(
        "csiDriver: {name: a}\ndriver: {config: {driver: node-manual}}",
        "this is a values file of the chart: give what is under driver.config",
    ),
    whole(
        "apiVersion: v1\nkind: Secret\nstringData: {driver-config-file.yaml: ''}",
        "this is a manifest of the kind Secret",
    ),
    whole("a: 1\n---\nb: 2", "remove what follows the line `---`"),
    whole("driver: x\n  nfs: {}\n", "look at the indent of this line"),
    whole(
        "\u{feff}driver: zfs-nsf\n",
        "driver: there is no driver `zfs-nsf`",
    ),
    whole("driver: zfs-nfs", "is one of these meant: zfs-generic-nfs?"),
    whole(
        "driver: truenas-nfs-api",
        "is one of these meant: freenas-api-nfs",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ csi@example",
        "this is a public key: give the private one",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: \"-----BEGIN OPENSSH PRIVATE KEY-----\\n...\\n-----END OPENSSH PRIVATE KEY-----\"",
        "this is a placeholder for a private key",
    ),
    changed(
        ISCSI,
        "lio\n",
        "lio\n  nameTemplate: '{{ parameters.name | lower }}'\n",
        "Handlebars has no `|`",
    ),
    changed(
        TRUENAS,
        "apiKey: 1-x",
        "apiKey: 1-x, tls: {certificateSha256: 'AB:CD'}",
        "a SHA-256 fingerprint is 64 hexadecimal digits",
    ),
    // What else a storage would refuse or believe is seen without it.
    changed(
        TRUENAS,
        "iscsi:\n",
        "iscsi:\n  extentRpm: fast\n",
        "iscsi.extentRpm: TrueNAS takes one of UNKNOWN, SSD, 5400",
    ),
    changed(
        TRUENAS,
        "apiKey: 1-x",
        "apiKey: 1-x, allowInsecure: true",
        "httpConnection.allowInsecure: any certificate is accepted",
    ),
    whole(
        "driver: freenas-api-nfs\nhttpConnection: {host: nas.example, username: csi, apiKey: 1-x}\n\
         zfs: {datasetParentName: tank/v}\n\
         nfs: {shareHost: nas.example, shareAllowedNetworks: [10.0.0.0/8, 10.0.0/8]}",
        "nfs.shareAllowedNetworks[1]: is not a network",
    ),
    whole(
        "driver: freenas-api-nfs\nhttpConnection: {host: nas.example, username: csi, apiKey: 1-x}\n\
         zfs: {datasetParentName: tank/v}\nnfs: {shareHost: nas.example, shareAllowedHosts: 10.0.0.0/8}",
        "nfs.shareAllowedHosts[0]: is not the name or the address of a host",
    ),
    changed(
        SYNOLOGY,
        "protocol: https",
        "protocol: http",
        "httpConnection.protocol: is http: the password crosses the network in clear text",
    ),
    changed(
        SYNOLOGY,
        "password: x",
        "password: x, allowInsecure: true",
        "httpConnection.allowInsecure: any certificate is accepted",
    ),
    whole(
        "driver: synology-iscsi\nhttpConnection: {protocol: https, host: nas.example, username: csi, password: x}\n\
         iscsi: {targetPortal: nas.example, baseiqn: 'iqn.2000-01.com.synology:', lunTemplate: {type: blun}}",
        "iscsi.lunTemplate.type: is no type of LUN that is known here",
    ),
    changed(
        DIRECTORY,
        "  controllerBasePath: ",
        "  dirPermissionsGroup: no-such-group\n  controllerBasePath: ",
        "no account `no-such-group` in /etc/group of the machine or container of this process; give its number",
    ),
    changed(
        ISCSI,
        "iscsi:\n",
        "nfs: {shareHost: nas.example}\niscsi:\n",
        "nfs: nothing reads this key",
    ),
];

#[test]
fn nothing_is_compared_with_a_name_that_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let parents = "/mnt/tank/v, detachedSnapshotsDatasetParentName: tank/s}";
    fs::write(file.path(), NFS.replace("tank/v}", parents)).expect("a file");
    let table = check(&flags(file.path())).table();
    assert!(table.contains("is a path"), "{table}");
    assert!(!table.contains("another pool"), "{table}");
}

#[test]
fn a_host_that_is_down_is_the_first_that_is_said_and_said_once() {
    // Bound and not listening, so that no other program gets the port.
    let closed = tokio::net::TcpSocket::new_v4().expect("a socket");
    closed.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = closed.local_addr().expect("an address");
    let port = address.port();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let online = CheckFlags {
        offline: false,
        ..flags(file.path())
    };
    for good in [NFS, TRUENAS, SYNOLOGY] {
        let here = format!("host: 127.0.0.1, port: {port}");
        fs::write(file.path(), good.replace("host: nas.example", &here)).expect("a file");
        let table = check(&online).table();
        let said = table.lines().find(|line| line.starts_with("ERROR"));
        let said = said.expect(&table);
        assert!(said.contains("Connection refused"), "{table}");
        assert_eq!(said.matches(&address.to_string()).count(), 1, "{table}");
        assert!(!said.contains("tank/v"), "{table}");
        assert!(
            table.contains("a firewall") || table.contains("check httpConnection"),
            "{table}"
        );
    }
}

#[test]
fn warnings_are_counted_in_the_last_line_and_one_key_is_complained_of_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), TRUENAS.replace("https", "http")).expect("a file");
    let table = check(&flags(file.path())).table();
    let last = table.lines().last().unwrap_or_default();
    let warnings = table.matches("WARNING ").count();
    assert!(
        warnings > 0 && last.contains(&format!("{warnings} warning")),
        "{table}"
    );
    let example = TRUENAS.replace("host: nas.example", "host: server address");
    fs::write(file.path(), example).expect("a file");
    let table = check(&flags(file.path())).table();
    assert_eq!(
        table.matches(" httpConnection.host: ").count(),
        1,
        "{table}"
    );
}

#[test]
fn connections_in_the_main_file_are_said_to_be_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("proxy.yaml");
    let yaml = format!(
        "{{driver: proxy, proxy: {{configFolder: {}}}, connections: {{a: {{driver: node-manual}}}}}}",
        dir.path().join("none").display()
    );
    fs::write(&file, yaml).expect("a file");
    let table = check(&flags(&file)).table();
    for said in ["each is a file in `proxy.configFolder`", "make the folder"] {
        assert!(table.contains(said), "{said}: {table}");
    }
}
