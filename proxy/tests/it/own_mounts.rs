//! A share that a controller mounts for itself, volumes that a node has staged, and what is left of them after a kill.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use csi_proto::v1;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{PROGRAM, Place, Server, by_one_writer, node_client};

/// A machine in which every mount is shared, as a container's are with what Nomad binds into it. Its `mount` is that of
/// the test, since no kernel need have a share here.
const MACHINE: &str = include_str!("own_mounts/machine.sh");
/// The time that Nomad lets a plugin end, unless its job says otherwise.
const NOMAD_WAITS: Duration = Duration::from_secs(5);

/// The place where the folder `share` is mounted, as that process sees it.
fn mounts(process: u32, share: &Path) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let fields = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let of_share = |fields: &Vec<String>| {
        fields[3].len() > 1 && share.ends_with(fields[3].trim_start_matches('/'))
    };
    let found = table.lines().map(fields).filter(of_share);
    found.map(|fields| fields[4].clone()).collect()
}

fn may_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
    }
    is_root
}

/// Makes the script the `mount` of the machine.
fn mount_is(place: &Place, script: &str) {
    let mount = place.path("bin/mount");
    fs::write(&mount, script).unwrap();
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The arguments of the program, with its socket in this folder.
fn arguments(place: &Place, folder: &Path, mode: &str) -> Vec<OsString> {
    let program = place.command();
    let all = program.get_args();
    let others = all.filter(|arg| !arg.to_string_lossy().starts_with("--server-socket="));
    let own = [
        format!("--server-socket={}", folder.join("csi.sock").display()),
        format!("--csi-mode={mode}"),
        "--log-level=info".to_owned(),
    ];
    let others = others.map(OsStr::to_owned);
    others.chain(own.map(OsString::from)).collect()
}

/// The program in a machine of its own, which goes on without it.
fn in_machine(place: &Place, folder: &Path, mode: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .args(["sh", "-c", MACHINE, "machine", PROGRAM])
        .args(arguments(place, folder, mode))
        .env("CSI", folder)
        .env("BIN", place.path("bin"))
        .stdin(Stdio::piped());
    command
}

/// A command in the machine of that process.
fn beside(machine: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{machine}/ns/mnt"));
    command
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, signal).unwrap();
}

fn lives(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/mountinfo")).is_ok_and(|text| !text.is_empty())
}

fn kill(process: u32) {
    signal(process, Signal::KILL);
    while lives(process) {
        std::thread::yield_now();
    }
}

/// Removes the folder of the socket as Nomad does, with all that is mounted there, which is nothing.
fn removed_by_nomad(machine: u32, folder: &Path) {
    let table = fs::read_to_string(format!("/proc/{machine}/mountinfo")).unwrap();
    let below = format!("{}/", folder.display());
    let below = table.lines().filter(|line| line.contains(&below));
    assert_eq!(below.collect::<Vec<_>>(), [""; 0]);
    let mut remove = beside(machine);
    remove.args(["rm", "-rf", "--"]).arg(folder);
    remove.stderr(Stdio::null()).status().unwrap();
    assert!(!folder.join("csi.sock").exists());
}

#[test]
fn what_nomad_removes_after_a_killed_controller_holds_nothing_of_its_share() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    for name in ["share", "csi", "bin"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let (share, csi) = (place.path("share"), place.path("csi"));
    fs::write(share.join("precious"), "data").unwrap();
    let real = Command::new("sh").args(["-c", "command -v mount"]).output();
    let real = String::from_utf8(real.unwrap().stdout).unwrap();
    fs::copy(real.trim(), place.path("bin/real")).unwrap();
    let fake = format!(
        "#!/bin/sh\nfor target in \"$@\"; do :; done\nexec {} --bind {} \"$target\"\n",
        place.path("bin/real").display(),
        share.display()
    );
    mount_is(&place, &fake);
    let config = "driver: nfs-client\nnfs: {shareHost: 127.0.0.1, shareBasePath: /export/csi}\n";
    fs::write(place.path("config.yaml"), config).unwrap();
    let mut server = Server::of(&mut in_machine(&place, &csi, "controller"));
    let machine = server.child.id();
    // What is bound is no NFS, so the program says that it cannot use it, and leaves it where it is.
    server.line("the storage of the connection cannot be used");
    let program = process_of(&mut server);
    let mounted = mounts(program, &share);
    assert_eq!(mounted.len(), 1, "{mounted:?}");
    assert!(!Path::new(&mounted[0]).starts_with(&csi), "{mounted:?}");
    kill(program);
    removed_by_nomad(machine, &csi);
    assert_eq!(fs::read(share.join("precious")).unwrap(), b"data");
}

/// What Nomad gives a plugin of nodes, in its client's folder `csi`: `plugins/ALLOCATION` for the socket, removed at each
/// stop, and `node/PLUGIN` for volumes, which stays. Neither is below the other.
struct Nomad {
    place: Place,
    staging: PathBuf,
    target: PathBuf,
    /// The staging path of a volume whose server does not answer.
    silent: PathBuf,
}

impl Nomad {
    fn new() -> Self {
        let place = Place::new();
        let volumes = place.path("csi/node/org.example");
        let staged = |id: &str| {
            let staging = volumes.join("staging/default").join(id);
            staging.join("rw-file-system-single-node-writer")
        };
        let this = Self {
            staging: staged("web"),
            silent: staged("silent"),
            target: volumes.join("per-alloc/job/web/rw-file-system-single-node-writer"),
            place,
        };
        for folder in [&*this.staging, &*this.silent, this.target.parent().unwrap()] {
            fs::create_dir_all(folder).unwrap();
        }
        for folder in ["bin", "share"] {
            fs::create_dir(this.place.path(folder)).unwrap();
        }
        fs::write(this.share().join("precious"), "data").unwrap();
        fs::write(this.place.path("silence"), "").unwrap();
        let waits = format!(
            "#!/bin/sh\n: >{}\nwhile [ -e {} ]; do sleep 0.05; done\nexit 32\n",
            this.place.path("asked").display(),
            this.place.path("silence").display()
        );
        mount_is(&this.place, &waits);
        fs::write(this.place.path("config.yaml"), "driver: node-manual\n").unwrap();
        this
    }

    fn share(&self) -> PathBuf {
        self.place.path("share")
    }

    /// The folder of the socket of an allocation.
    fn plugin(&self, allocation: &str) -> PathBuf {
        let folder = self.place.path("csi/plugins").join(allocation);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn stage_web(&self) -> v1::NodeStageVolumeRequest {
        let share = self.share();
        let context = [("node_attach_driver", "hostpath"), ("path", text(&share))];
        stage("web", &self.staging, &context)
    }

    fn publish_web(&self) -> v1::NodePublishVolumeRequest {
        let staged = self.stage_web();
        v1::NodePublishVolumeRequest {
            volume_id: staged.volume_id,
            staging_target_path: staged.staging_target_path,
            target_path: text(&self.target).to_owned(),
            volume_capability: staged.volume_capability,
            volume_context: staged.volume_context,
            ..Default::default()
        }
    }

    fn stage_silent(&self) -> v1::NodeStageVolumeRequest {
        let nfs = ("node_attach_driver", "nfs");
        let context = [nfs, ("server", "127.0.0.1"), ("share", "/export")];
        stage("silent", &self.silent, &context)
    }

    /// Whether the volume is mounted for the job, and nowhere else but where it is staged.
    fn job_has_its_volume(&self, machine: u32) -> bool {
        let places = [&self.staging, &self.target].map(|path| text(path).to_owned());
        let mounted: BTreeSet<_> = mounts(machine, &self.share()).into_iter().collect();
        let seen = format!("/proc/{machine}/root{}/precious", self.target.display());
        mounted == BTreeSet::from(places) && fs::read(seen).is_ok_and(|data| data == b"data")
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn stage(id: &str, staging: &Path, context: &[(&str, &str)]) -> v1::NodeStageVolumeRequest {
    let context = context.iter();
    v1::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging).to_owned(),
        volume_capability: Some(by_one_writer()),
        volume_context: context
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..Default::default()
    }
}

fn process_of(server: &mut Server) -> u32 {
    let pid = server.line("serving")["pid"].as_u64().unwrap();
    u32::try_from(pid).unwrap()
}

/// The program with a filesystem at `$HUNG` that waits for answers from it, and gets none.
const HUNG: &str = "exec 7<>/dev/fuse && mount -i -t fuse \
    -o fd=7,rootmode=40000,user_id=0,group_id=0 silent \"$HUNG\" && exec \"$@\"";

#[tokio::test]
async fn statistics_of_a_mount_that_hangs_are_its_condition_within_two_seconds() {
    if !may_mount() {
        return;
    }
    let device = fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        node_utils::requirement::this_test_could_not_run(&format!("/dev/fuse: {error}"));
        return;
    }
    let place = Place::new();
    let hung = place.path("hung");
    fs::create_dir(&hung).unwrap();
    let program = place.command();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .args(["sh", "-c", HUNG, "machine", PROGRAM])
        .args(program.get_args())
        .env("HUNG", &hung);
    let _server = Server::of(&mut command);
    let mut client = node_client(&place.socket()).await;
    for _ in 0..2 {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: "v".to_owned(),
            volume_path: text(&hung).to_owned(),
            ..Default::default()
        };
        let began = Instant::now();
        let reply = client.node_get_volume_stats(request).await;
        let (reply, took) = (reply.unwrap().into_inner(), began.elapsed());
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(reply.usage.is_empty(), "{:?}", reply.usage);
        let condition = reply.volume_condition.unwrap();
        assert!(condition.abnormal);
        let said = &condition.message;
        assert!(said.starts_with("FilesystemDoesNotAnswer: "), "{said}");
    }
}

#[tokio::test]
async fn volumes_of_a_node_plugin_outlive_its_end_by_nomad_in_the_midst_of_a_call() {
    if !may_mount() {
        return;
    }
    let nomad = Nomad::new();
    let socket = nomad.plugin("first");
    let mut server = Server::of(&mut in_machine(&nomad.place, &socket, "node"));
    let (machine, program) = (server.child.id(), process_of(&mut server));
    let mut client = node_client(&socket.join("csi.sock")).await;
    client.node_stage_volume(nomad.stage_web()).await.unwrap();
    let published = client.node_publish_volume(nomad.publish_web()).await;
    published.unwrap();
    assert!(nomad.job_has_its_volume(machine));
    let request = nomad.stage_silent();
    let call = tokio::spawn(async move { client.node_stage_volume(request).await });
    while !nomad.place.path("asked").exists() {
        assert!(!call.is_finished(), "nothing is asked to mount it");
        tokio::task::yield_now().await;
    }
    signal(program, Signal::TERM);
    server.until("shutting down: no new calls; waiting for those in progress");
    tokio::time::sleep(NOMAD_WAITS).await;
    assert!(lives(program), "a call is in progress");
    kill(program);
    call.await.unwrap().unwrap_err();
    removed_by_nomad(machine, &socket);
    assert!(nomad.job_has_its_volume(machine));

    // The next allocation of the plugin has another folder for its socket, and the same volumes.
    let socket = nomad.plugin("second");
    let mut command = beside(machine);
    command
        .arg(PROGRAM)
        .args(arguments(&nomad.place, &socket, "node"));
    let _next = Server::of(&mut command);
    let mut client = node_client(&socket.join("csi.sock")).await;
    client.node_stage_volume(nomad.stage_web()).await.unwrap();
    let published = client.node_publish_volume(nomad.publish_web()).await;
    published.unwrap();
    assert!(nomad.job_has_its_volume(machine));
    let unpublish = v1::NodeUnpublishVolumeRequest {
        volume_id: "web".to_owned(),
        target_path: text(&nomad.target).to_owned(),
    };
    client.node_unpublish_volume(unpublish).await.unwrap();
    for (id, staging) in [("web", &nomad.staging), ("silent", &nomad.silent)] {
        let unstage = v1::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(staging).to_owned(),
        };
        client.node_unstage_volume(unstage).await.unwrap();
    }
    assert_eq!(mounts(machine, &nomad.share()), [""; 0]);
    assert_eq!(fs::read(nomad.share().join("precious")).unwrap(), b"data");
}

/// Runs a program where every `mount` is this one.
const WITHOUT_MOUNT: &str = r#"
/bin/mount --bind "$FAKE" "$(command -v mount)" || exit 99
exec "$@"
"#;

#[test]
fn a_check_whose_share_cannot_be_mounted_leaves_no_folder() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let (fake, tried) = (place.path("mount"), place.path("tried"));
    let text = format!(
        "#!/bin/sh\necho \"$@\" >>{}\necho 'mount.nfs: no server' >&2\nexit 32\n",
        tried.display()
    );
    fs::write(&fake, text).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let share = place.path("new/share");
    for (driver, section) in [("nfs-client", "nfs"), ("smb-client", "smb")] {
        let config = format!(
            "driver: {driver}\n{section}: {{shareHost: 127.0.0.1, shareBasePath: /export/csi, controllerBasePath: {}}}\n",
            share.display()
        );
        fs::write(place.path("config.yaml"), config).unwrap();
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                WITHOUT_MOUNT,
                "machine",
            ])
            .args([PROGRAM, "check", "--driver-config-file"])
            .arg(place.path("config.yaml"))
            .env("FAKE", &fake)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("no server"), "{said}");
        let tried = fs::read_to_string(&tried).unwrap();
        assert!(
            tried.trim_end().ends_with(share.to_str().unwrap()),
            "{tried}"
        );
        assert!(
            !place.path("new").exists(),
            "{driver}: a check makes nothing"
        );
    }
}

/// A container, whose root filesystem is a layer over that of the machine.
const CONTAINER: &str = include_str!("own_mounts/container.sh");

#[test]
fn a_new_base_in_the_layer_of_a_container_is_refused_unless_the_configuration_says_that_it_may_be_lost()
 {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    for name in ["layers", "files"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let config = place.path("files").join("config.yaml");
    let check = |base: &str, more: &str| {
        let text = format!(
            "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}{more}}}\n"
        );
        fs::write(&config, text).unwrap();
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                CONTAINER,
                "container",
                PROGRAM,
            ])
            .arg("check")
            .arg(format!("--driver-config-file={}", config.display()))
            .env("LAYERS", place.path("layers"))
            .env("FILES", place.path("files"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), format!("{text}{said}"))
    };
    let (code, said) = check("/var/lib/omnibus-csi-test-base", "");
    if code == Some(99) {
        node_utils::requirement::this_test_could_not_run("it mounts an overlay");
        return;
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("overlayfs")
            && said.contains("only if it may be lost, set `createBase: true`"),
        "{said}"
    );
    // Nor is it advised where the administrator makes the base: a directory in the layer goes with it, too.
    let (code, said) = check("/var/lib/omnibus-csi-test-base", ", createBase: false");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("goes with this container") && !said.contains("make the directory"),
        "{said}"
    );
    // A directory of the image is in the layer, too.
    let (code, said) = check("/var/lib", "");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("overlayfs"), "{said}");
    // One that may be lost.
    let (code, said) = check("/var/lib/omnibus-csi-test-base", ", createBase: true");
    assert_eq!(code, Some(0), "{said}");
}
