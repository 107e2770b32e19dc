//! The table: every setting of a server, two values of it, and where the difference shows.

use std::fs;

use integration::observe::{Setup, free_port};
use integration::place::Place;

/// One setting with two values.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The flag, the variable, the path of the key, or the parameter.
    pub(crate) name: &'static str,
    /// The two values.
    pub(crate) changes: [Change; 2],
    /// The subject of [`integration::observe::Seen`] in which they have to differ.
    pub(crate) subject: &'static str,
}

/// The way a value is set. `{place}`, `{port}` and `{admin}` in a value stand for the folder of the run
/// and for two free ports.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// The flag is absent.
    Absent,
    /// The flag has this value.
    Flag(&'static str),
    /// The variable has this value; empty is unset.
    Env(&'static str),
    /// These lines are added to the configuration.
    Config(&'static str),
    /// The key of the driver's own section has this value.
    Section(&'static str),
    /// The configuration names this driver.
    Driver(&'static str),
    /// The parameter of the snapshot class has this value.
    Snapshot(&'static str),
    /// The secret of the node's calls has this value.
    Secret(&'static str),
}

use Change::{Absent, Config, Driver, Env, Flag, Secret, Section, Snapshot};

const fn set(name: &'static str, one: Change, other: Change, subject: &'static str) -> Setting {
    Setting {
        name,
        changes: [one, other],
        subject,
    }
}

/// A variable that does nothing: that is said in the log.
const fn says_so(name: &'static str) -> Setting {
    set(name, Env("1"), Env(""), "notes")
}

/// All of them.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    set("--driver-config-file", Flag("{place}/config.yaml"), Flag("{place}/absent.yaml"), "exit"),
    set("--csi-version", Flag("1.13.0"), Flag("1.2.0"), "controller capabilities"),
    set("--csi-name", Flag("org.one"), Flag("org.two"), "plugin"),
    set("--csi-mode", Flag("controller"), Flag("node"), "controller capabilities"),
    set("--server-socket", Flag("{place}/csi.sock"), Flag("unix://{place}/other.sock"), "listener"),
    set("--server-socket-permissions-mode", Flag("0600"), Flag("0660"), "listener"),
    set("--legacy-sockets", Flag("{place}"), Flag("sockets"), "exit"),
    set("--csi-addons-address", Flag("{place}/addons.sock"), Flag("{place}/absent/addons.sock"), "exit"),
    set("--server-address", Flag("127.0.0.1"), Flag("192.0.2.1"), "exit"),
    set("--server-port", Flag("{port}"), Flag("notaport"), "exit"),
    set("--log-level", Flag("error"), Flag("silly"), "log levels"),
    set("--log-format", Flag("text"), Flag("json"), "log form"),
    set("--metrics-address", Flag("127.0.0.1:{admin}"), Absent, "metrics"),
    set("--console-address", Flag("127.0.0.1:{admin}"), Flag("192.0.2.1:1"), "exit"),
    set("--shutdown-grace", Flag("0"), Flag("60"), "copy"),
    set("--kubelet-registration-path", Flag("/csi.sock"), Absent, "exit"),
    set("--plugin-registration-path", Flag("{place}"), Flag("{place}/absent"), "exit"),
    set("--kubelet-dir", Flag("/data/kubelet"), Flag("data/kubelet"), "exit"),

    set("DEMOCRATIC_CSI_DRIVER_CONFIG_FILE", Env("{place}/config.yaml"), Env("{place}/absent.yaml"), "exit"),
    set("DEMOCRATIC_CSI_CSI_VERSION", Env("1.13.0"), Env("1.2.0"), "controller capabilities"),
    set("DEMOCRATIC_CSI_CSI_NAME", Env("org.one"), Env("org.two"), "plugin"),
    set("DEMOCRATIC_CSI_CSI_MODE", Env("controller"), Env("node"), "controller capabilities"),
    set("DEMOCRATIC_CSI_SERVER_SOCKET", Env("{place}/csi.sock"), Env("{place}/other.sock"), "listener"),
    set("DEMOCRATIC_CSI_SERVER_SOCKET_PERMISSIONS_MODE", Env("0600"), Env("0660"), "listener"),
    set("DEMOCRATIC_CSI_LEGACY_SOCKETS", Env("{place}"), Env("sockets"), "exit"),
    set("OMNIBUS_CSI_LEGACY_SOCKETS", Env("{place}"), Env("sockets"), "exit"),
    set("DEMOCRATIC_CSI_CSI_ADDONS_ADDRESS", Env("{place}/addons.sock"), Env("{place}/absent/addons.sock"), "exit"),
    set("OMNIBUS_CSI_CSI_ADDONS_ADDRESS", Env("{place}/addons.sock"), Env("{place}/absent/addons.sock"), "exit"),
    set("DEMOCRATIC_CSI_SERVER_ADDRESS", Env("127.0.0.1"), Env("192.0.2.1"), "exit"),
    set("DEMOCRATIC_CSI_SERVER_PORT", Env("{port}"), Env("notaport"), "exit"),
    set("DEMOCRATIC_CSI_LOG_LEVEL", Env("error"), Env("silly"), "log levels"),
    set("DEMOCRATIC_CSI_LOG_FORMAT", Env("text"), Env("json"), "log form"),
    set("DEMOCRATIC_CSI_METRICS_ADDRESS", Env("127.0.0.1:{admin}"), Env(""), "metrics"),
    set("DEMOCRATIC_CSI_CONSOLE_ADDRESS", Env("127.0.0.1:{admin}"), Env("192.0.2.1:1"), "exit"),
    set("DEMOCRATIC_CSI_SHUTDOWN_GRACE", Env("0"), Env("60"), "copy"),
    set("DEMOCRATIC_CSI_KUBELET_REGISTRATION_PATH", Env("/csi.sock"), Env(""), "exit"),
    set("DEMOCRATIC_CSI_PLUGIN_REGISTRATION_PATH", Env("{place}"), Env("{place}/absent"), "exit"),
    set("OMNIBUS_CSI_KUBELET_REGISTRATION_PATH", Env("/csi.sock"), Env(""), "exit"),
    set("OMNIBUS_CSI_PLUGIN_REGISTRATION_PATH", Env("{place}"), Env("{place}/absent"), "exit"),
    set("DEMOCRATIC_CSI_KUBELET_DIR", Env("/data/kubelet"), Env("data/kubelet"), "exit"),
    set("OMNIBUS_CSI_KUBELET_DIR", Env("/data/kubelet"), Env("data/kubelet"), "exit"),
    set("OMNIBUS_CSI_LOG_FORMAT", Env("text"), Env("json"), "log form"),
    set("OMNIBUS_CSI_METRICS_ADDRESS", Env("127.0.0.1:{admin}"), Env(""), "metrics"),
    set("OMNIBUS_CSI_CONSOLE_ADDRESS", Env("127.0.0.1:{admin}"), Env("192.0.2.1:1"), "exit"),
    set("OMNIBUS_CSI_SHUTDOWN_GRACE", Env("0"), Env("60"), "copy"),
    set("CSI_VERSION", Env("1.2.0"), Env(""), "controller capabilities"),
    set("CSI_NODE_ID", Env("one"), Env("two"), "node"),
    set("CSI_ENDPOINT", Env("unix://{place}/csi.sock"), Env("unix://{place}/other.sock"), "listener"),
    set("MOUNT_DEFAULT_TIMEOUT", Env("30000"), Env("0"), "exit"),
    set("ISCSI_DEFAULT_TIMEOUT", Env("30000"), Env("0"), "exit"),
    set("NVMEOF_DEFAULT_TIMEOUT", Env("30000"), Env("0"), "exit"),
    set("OMNIBUS_CSI_NVME_KEY_FILE", Env("/keys/node"), Env("keys/node"), "exit"),
    set("FILESYSTEM_DEFAULT_TIMEOUT", Env("30000"), Env("0"), "exit"),
    set("ISCSIADM_HOST_STRATEGY", Env("chroot"), Env("docker"), "exit"),
    set("ISCSIADM_HOST_PATH", Env("iscsiadm"), Env("sbin/iscsiadm"), "exit"),
    says_so("SSH_REUSE_CONNECTION"),
    says_so("RESTIC_DEFAULT_TIMEOUT"),
    says_so("KOPIA_DEFAULT_TIMEOUT"),
    says_so("FILESYSTEM_TYPE_DETECTION_STRATEGY"),
    says_so("DEMOCRATIC_CSI_IS_CONTAINER"),
    says_so("CONTAINER_SANDBOX_MOUNT_POINT"),
    says_so("CSI_SANITY"),
    says_so("LOG_MEMORY_USAGE"),
    says_so("LOG_MEMORY_USAGE_INTERVAL"),
    says_so("MANUAL_GC"),
    says_so("MANUAL_GC_INTERVAL"),
    says_so("LOG_GRPC_SESSIONS"),
    says_so("GRPC_IMPLEMENTATION"),
    says_so("NODE_OPTIONS"),
    says_so("NODE_OPTIONS_CSI_1"),
    says_so("NODE_OPTIONS_CSI_2"),
    says_so("NODE_OPTIONS_CSI_3"),
    says_so("NODE_OPTIONS_CSI_4"),

    set("driver", Driver("local-hostpath"), Driver("zfs-generic-nfs"), "exit"),
    set("instance_id", Config("instance_id: one"), Config("instance_id: two"), "context"),
    set("csi.access_modes", Config("csi: {access_modes: [SINGLE_NODE_WRITER]}"), Config("csi: {access_modes: [MULTI_NODE_MULTI_WRITER]}"), "volume"),
    set("service.identity.capabilities.service", Config("service: {identity: {capabilities: {service: [CONTROLLER_SERVICE]}}}"), Config("service: {identity: {capabilities: {service: []}}}"), "plugin capabilities"),
    set("service.identity.capabilities.volume_expansion", Config("service: {identity: {capabilities: {volume_expansion: [ONLINE]}}}"), Config("service: {identity: {capabilities: {volume_expansion: [OFFLINE]}}}"), "plugin capabilities"),
    set("service.controller.capabilities.rpc", Config("service: {controller: {capabilities: {rpc: [CREATE_DELETE_VOLUME]}}}"), Config("service: {controller: {capabilities: {rpc: [LIST_VOLUMES]}}}"), "controller capabilities"),
    set("service.node.capabilities.rpc", Config("service: {node: {capabilities: {rpc: [STAGE_UNSTAGE_VOLUME]}}}"), Config("service: {node: {capabilities: {rpc: [STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS]}}}"), "node capabilities"),
    set("_private.csi.volume.idTemplate", Config("_private: {csi: {volume: {idTemplate: 'a-{{name}}'}}}"), Config("_private: {csi: {volume: {idTemplate: 'b-{{name}}'}}}"), "volume"),
    set("_private.csi.volume.idHash.strategy", Config("_private: {csi: {volume: {idHash: {strategy: md5}}}}"), Config("_private: {csi: {volume: {idHash: {strategy: crc32}}}}"), "volume"),
    set("_private.csi.volume.deleteStrategy", Config("_private: {csi: {volume: {deleteStrategy: retain}}}"), Config("_private: {csi: {volume: {deleteStrategy: delete}}}"), "left"),
    set("_private.csi.volume.volumeContext.driver", Config("_private: {csi: {volume: {volumeContext: {driver: memory}}}}"), Config(""), "notes"),
    set("_private.volume_context.*.*", Config("_private: {volume_context: {observed: {node_attach_driver: hostpath, path: '{place}/base/v/observed'}}}"), Config(""), "staging without context"),
    set("node.mount.mount_flags", Config("node: {mount: {mount_flags: noexec}}"), Config("node: {mount: {mount_flags: nosuid}}"), "mount options"),
    set("node.mount.checkFilesystem.*.enabled", Config("node: {mount: {checkFilesystem: {ext4: {enabled: true}}}}"), Config(""), "notes"),
    set("node.mount.checkFilesystem.*.customOptions", Config("node: {mount: {checkFilesystem: {ext4: {customOptions: [-f]}}}}"), Config(""), "notes"),
    set("node.mount.checkFilesystem.*.customFilesystemOptions", Config("node: {mount: {checkFilesystem: {ext4: {customFilesystemOptions: [-f]}}}}"), Config(""), "notes"),
    set("node.format.*.customOptions", Config("node: {format: {ext4: {customOptions: [-m, '0']}}}"), Config(""), "notes"),
    set("node.kata.directVolumes", Config("node: {kata: {directVolumes: true}}"), Config("node: {kata: {directVolumes: false}}"), "exit"),
    set("node.csiProxy.enabled", Config("node: {csiProxy: {enabled: true}}"), Config(""), "notes"),
    set("node.csiProxy.services.*.version", Config("node: {csiProxy: {services: {disk: {version: v1}}}}"), Config(""), "notes"),
    set("node.csiProxy.services.*.connection", Config("node: {csiProxy: {services: {disk: {connection: x}}}}"), Config(""), "notes"),

    set("local-hostpath.shareBasePath", Section("{place}/base"), Section("{place}/other"), "context"),
    set("local-hostpath.controllerBasePath", Section("{place}/base"), Section("{place}/other"), "folder"),
    set("local-hostpath.createBase", Section("true"), Section("perhaps"), "exit"),
    set("local-hostpath.shareHost", Section("nas"), Config(""), "notes"),
    set("local-hostpath.mountOptions", Section("ro"), Config(""), "notes"),
    set("local-hostpath.dirPermissionsMode", Section("'0777'"), Section("'0750'"), "folder"),
    set("local-hostpath.dirPermissionsUser", Section("1234"), Section("0"), "folder"),
    set("local-hostpath.dirPermissionsGroup", Section("1234"), Section("0"), "folder"),
    set("local-hostpath.snapshots.default_driver", Section("filecopy"), Section("restic"), "snapshot"),

    set("driver (of a snapshot class)", Snapshot("driver=filecopy"), Snapshot("driver=restic"), "snapshot"),
    set("democratic-csi.org/driver", Snapshot("democratic-csi.org/driver=filecopy"), Snapshot("democratic-csi.org/driver=restic"), "snapshot"),
    set("democratic-csi.org/local-hostpath/driver", Snapshot("democratic-csi.org/local-hostpath/driver=filecopy"), Snapshot("democratic-csi.org/local-hostpath/driver=restic"), "snapshot"),
    set("democratic-csi.org/{instance}/driver", Snapshot("democratic-csi.org/one/driver=filecopy"), Snapshot("democratic-csi.org/one/driver=restic"), "snapshot"),
    set("mount_flags (a secret of the node)", Secret("mount_flags=noexec"), Secret("unknown=nosuid"), "notes"),
];

/// The run in which `setting` has the value of `change`.
pub(crate) fn apply(setting: &Setting, change: &Change, place: &Place) -> Setup {
    let mut setup = Setup::new(place);
    fs::create_dir(place.path().join("other")).expect("a folder");
    let fill = |text: &str| {
        let mut text = text.replace("{place}", &place.path().display().to_string());
        for name in ["port", "admin"] {
            let mark = format!("{{{name}}}");
            if text.contains(&mark) {
                let port = free_port().to_string();
                fs::write(place.path().join(name), &port).expect("a file");
                text = text.replace(&mark, &port);
            }
        }
        text
    };
    let flag = flag_of(setting.name);
    setup.busy = flag == "--shutdown-grace";
    if flag.starts_with("--server-address") || flag.starts_with("--server-port") {
        setup.listeners.clear();
    }
    if setting.name.contains("{instance}") {
        setup.launch.config += "instance_id: one\n";
    }
    match change {
        Absent => setup.launch = setup.launch.unset(&flag),
        Flag(value) => set_flag(&mut setup, &flag, &fill(value)),
        Env(value) => {
            setup.launch = setup.launch.unset(&flag);
            if ["--server-socket", "CSI_ENDPOINT"].contains(&flag.as_str()) {
                setup.listeners.clear();
            }
            setup.launch = setup.launch.env(setting.name, &fill(value));
        }
        Config(lines) => setup.launch.config += &(fill(lines) + "\n"),
        Driver(kind) => {
            setup.launch.config = setup
                .launch
                .config
                .replace("driver: local-hostpath", &format!("driver: {kind}"));
        }
        Section(value) => set_key(&mut setup, setting.name, &fill(value)),
        Snapshot(pair) => setup.snapshot_parameters.extend([split(pair)]),
        Secret(pair) => setup.node_secrets.extend([split(pair)]),
    }
    // The other half of a pair.
    let other = match flag.as_str() {
        "--server-address" => Some(("--server-port", "{port}")),
        "--server-port" => Some(("--server-address", "127.0.0.1")),
        "--plugin-registration-path" => Some(("--kubelet-registration-path", "/csi.sock")),
        _ => None,
    };
    if let Some((other, value)) = other {
        set_flag(&mut setup, other, &fill(value));
    }
    setup
}

fn split(pair: &str) -> (String, String) {
    let (key, value) = pair.split_once('=').expect("a pair");
    (key.to_owned(), value.to_owned())
}

fn set_flag(setup: &mut Setup, flag: &str, value: &str) {
    if flag == "--server-socket" {
        setup.listeners = vec![format!("{flag}={value}")];
        return;
    }
    setup
        .launch
        .flags
        .retain(|given| !given.starts_with(&format!("{flag}=")));
    setup.launch.flags.push(format!("{flag}={value}"));
}

/// The flag for which a variable stands, or the name itself.
fn flag_of(name: &str) -> String {
    let stem = ["DEMOCRATIC_CSI_", "OMNIBUS_CSI_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    stem.map_or_else(
        || name.to_owned(),
        |stem| format!("--{}", stem.to_lowercase().replace('_', "-")),
    )
}

fn set_key(setup: &mut Setup, path: &str, value: &str) {
    let keys: Vec<_> = path.split('.').skip(1).collect();
    let line = match keys[..] {
        [key] => format!("  {key}: {value}\n"),
        [section, key] => format!("  {section}: {{{key}: {value}}}\n"),
        _ => panic!("{path} is deeper than this driver's section"),
    };
    let without: Vec<_> = setup
        .launch
        .config
        .lines()
        .filter(|line| !line.trim_start().starts_with(&format!("{}:", keys[0])))
        .map(str::to_owned)
        .collect();
    setup.launch.config = without.join("\n") + "\n" + &line;
}
