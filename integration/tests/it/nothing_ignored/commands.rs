//! The flags and variables of the commands beside serving: each with two values, and the answer,
//! the exit code or what is left must differ.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use integration::place::{Place, unmount_below};
use integration::requirement;
use integration::server::Launch;
use integration::tools;

/// The commands that have flags.
pub(crate) const COMMANDS: [&str; 4] = ["try", "check", "liveness-probe", "version"];

/// A flag of a command with two values; an empty one is the flag's absence, `=` alone a flag
/// without value.
type Flag = (&'static str, &'static str, &'static str, &'static str);

const FLAGS: [Flag; 19] = [
    ("try", "--driver-config-file", "{place}/templated.yaml", ""),
    ("try", "--parameter", "x=1", "x=2"),
    (
        "try",
        "--snapshot-parameter",
        "driver=filecopy",
        "driver=restic",
    ),
    (
        "try",
        "--secrets-file",
        "{place}/secrets.yaml",
        "{place}/absent.yaml",
    ),
    ("try", "--size", "8Mi", "16Mi"),
    ("try", "--access", "mount", "block"),
    ("try", "--fs-type", "", "xfs"),
    ("try", "--csi-version", "1.13.0", "1.2.0"),
    ("try", "--timeout", "60", "0.000001"),
    ("try", "--keep", "=", ""),
    ("try", "--json", "=", ""),
    ("try", "--log-level", "silly", "error"),
    (
        "check",
        "--driver-config-file",
        "{place}/config.yaml",
        "{place}/absent.yaml",
    ),
    ("check", "--offline", "=", ""),
    ("check", "--json", "=", ""),
    ("liveness-probe", "--csi-version", "1.13.0", "0.3.0"),
    (
        "liveness-probe",
        "--csi-address",
        "{place}/csi.sock",
        "{place}/absent.sock",
    ),
    ("liveness-probe", "--timeout", "0.2", "5"),
    ("version", "--environment", "=", ""),
];

/// Less than the longer of two timeouts, and more than the other with all that a busy machine adds.
const A_WHILE: Duration = Duration::from_secs(4);

/// The variables that only these commands read, or that only a terminal shows.
const VARIABLES: [&str; 6] = [
    "DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_VERSION",
    "DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_ADDRESS",
    "DEMOCRATIC_CSI_LIVENESS_PROBE_TIMEOUT",
    "TMPDIR",
    "NO_COLOR",
    "NODE_ENV",
];

/// The flags of `command` that are tested here.
pub(crate) fn flags_of(command: &str) -> BTreeSet<String> {
    let flags = FLAGS.iter().filter(|(of, ..)| *of == command);
    flags.map(|(_, flag, ..)| (*flag).to_owned()).collect()
}

/// Whether this variable is tested here.
pub(crate) fn tests(variable: &str) -> bool {
    VARIABLES.contains(&variable)
}

/// Runs every flag and variable with both of its values.
pub(crate) async fn all_differ() {
    if !requirement::root("what the other commands do") {
        return;
    }
    let place = Place::new();
    prepare(&place);
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    // It accepts, and never answers.
    let _mute = UnixListener::bind(place.path().join("mute.sock")).expect("a socket");
    for (command, flag, one, other) in FLAGS {
        let mut seen = Vec::new();
        for value in [one, other] {
            let value = value.replace("{place}", &place.path().display().to_string());
            seen.push(run(command, flag, &value, &place).await);
        }
        assert_ne!(seen[0], seen[1], "{command} {flag}: {one:?} or {other:?}");
    }
    variables(&place).await;
    assert!(server.terminate().await.success());
}

fn prepare(place: &Place) {
    let base = place.path().join("storage");
    fs::create_dir(&base).expect("a folder");
    let section = format!(
        "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  controllerBasePath: {base}\n",
        base = base.display()
    );
    let template = "_private: {csi: {volume: {idTemplate: '{{name}}-{{parameters.x}}'}}}\n";
    let write = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("a file");
    write("templated.yaml", &format!("{section}{template}"));
    write("secrets.yaml", "password=x\n");
    // A file cannot be a base; a base that does not exist yet can.
    write("gone.yaml", &section.replace("storage", "secrets.yaml"));
    fs::create_dir(place.path().join("tmp")).expect("a folder");
    fs::create_dir(place.path().join("tmp2")).expect("a folder");
}

/// The answer, without what is different each time.
async fn run(command: &str, flag: &str, value: &str, place: &Place) -> String {
    let path = |name: &str| place.path().join(name).display().to_string();
    let mut arguments = vec![command.to_owned()];
    match (command, flag) {
        ("try", "--json") => {}
        ("try", "--parameter") => {
            arguments.extend([
                format!("--driver-config-file={}", path("templated.yaml")),
                "--json".into(),
            ]);
        }
        ("try", _) => arguments.push("--json".into()),
        ("check", "--offline") => {
            arguments.push(format!("--driver-config-file={}", path("gone.yaml")));
        }
        ("check", "--json") => {
            arguments.push(format!("--driver-config-file={}", path("config.yaml")));
        }
        ("liveness-probe", "--csi-version") => {
            arguments.push(format!("--csi-address={}", path("csi.sock")));
        }
        ("liveness-probe", "--timeout") => {
            arguments.push(format!("--csi-address={}", path("mute.sock")));
        }
        _ => {}
    }
    match value {
        "" => {}
        "=" => arguments.push(flag.to_owned()),
        value => arguments.push(format!("{flag}={value}")),
    }
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let output = tools::omnibus(&words, &[("TMPDIR", &path("tmp"))]).await;
    let slow = began.elapsed() > A_WHILE && flag == "--timeout";
    let left = entries(place.path().join("tmp")) + entries(place.path().join("storage"));
    remove(&place.path().join("tmp"));
    format!(
        "{} slow={slow} left={} {}",
        output.status,
        left > 0,
        said(&output, flag)
    )
}

fn said(output: &Output, flag: &str) -> String {
    if flag == "--log-level" {
        // How much, not what.
        return format!("{}", output.stderr.len() > 2000);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if flag == "--environment" {
        return text.into_owned();
    }
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(mut value) => {
            steady(&mut value);
            nameless(&value.to_string())
        }
        // A table for people: only that it is one.
        Err(_) => format!("text, {}", text.lines().count() > 0),
    }
}

/// Takes out what a clock measured.
fn steady(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.retain(|key, _| key != "milliseconds");
            fields.values_mut().for_each(steady);
        }
        serde_json::Value::Array(entries) => entries.iter_mut().for_each(steady),
        _ => {}
    }
}

/// Takes out the random part of names.
fn nameless(text: &str) -> String {
    let mark = "omnibus-try-";
    let mut parts = text.split(mark);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(mark);
        plain.push_str(part.get(8..).unwrap_or_default());
    }
    plain
}

fn entries(folder: PathBuf) -> usize {
    fs::read_dir(folder).map_or(0, |entries| {
        let shown = entries.flatten().filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("omnibus-try")
        });
        shown.count()
    })
}

fn remove(folder: &Path) {
    // What `--keep` keeps is mounted.
    unmount_below(folder);
    fs::remove_dir_all(folder).expect("removed");
    fs::create_dir(folder).expect("a folder");
}

async fn variables(place: &Place) {
    let path = |name: &str| place.path().join(name).display().to_string();
    let probe = |key: &'static str, value: String, socket: &str| {
        let address = format!("--csi-address={}", path(socket));
        async move {
            let asks = !key.ends_with("ADDRESS");
            let words: &[&str] = if asks {
                &["liveness-probe", &address]
            } else {
                &["liveness-probe"]
            };
            let began = Instant::now();
            let output = tools::omnibus(words, &[(key, &value)]).await;
            (output.status.code(), began.elapsed() > A_WHILE)
        }
    };
    let key = "DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_VERSION";
    let (one, other) = (
        probe(key, "1.5.0".into(), "csi.sock").await,
        probe(key, "0.3.0".into(), "csi.sock").await,
    );
    assert_ne!(one.0, other.0, "{key}");
    let key = "DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_ADDRESS";
    let (one, other) = (
        probe(key, path("csi.sock"), "").await,
        probe(key, path("absent.sock"), "").await,
    );
    assert_ne!(one.0, other.0, "{key}");
    let key = "DEMOCRATIC_CSI_LIVENESS_PROBE_TIMEOUT";
    let (one, other) = (
        probe(key, "0.2".into(), "mute.sock").await,
        probe(key, "5".into(), "mute.sock").await,
    );
    assert_ne!(one.1, other.1, "{key}");
    for (tmp, expected) in [("tmp", 1), ("tmp2", 0)] {
        tools::omnibus(&["try", "--keep"], &[("TMPDIR", &path(tmp))]).await;
        assert_eq!(entries(place.path().join("tmp")), expected, "TMPDIR");
        remove(&place.path().join("tmp"));
    }
    on_a_terminal(place).await;
}

/// `script` gives the program a terminal.
async fn on_a_terminal(place: &Place) {
    const WHAT: &str = "variables that only a terminal shows";
    let Some(script) = requirement::tool(WHAT, "script") else {
        return;
    };
    let program = integration::binary::omnibus_csi().display().to_string();
    let run = async |words: &str, variables: &str| {
        let command = format!("env TERM=xterm-256color {variables} {program} {words}");
        let arguments = ["-qec", &command, "/dev/null"];
        let output = tools::run(&script, arguments, place.path()).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let coloured = run("try", "").await;
    let plain = run("try", "NO_COLOR=1").await;
    let colours = |text: &str| text.contains("\u{1b}[3");
    assert!(
        colours(&coloured) && !colours(&plain),
        "NO_COLOR:\n{coloured}\n{plain}"
    );
    let serve = "--driver-config-file=absent.yaml --csi-name=a.b --csi-version=1.5.0 --server-socket=x.sock";
    let text = run(serve, "").await;
    let json = run(serve, "NODE_ENV=production").await;
    assert!(
        !text.starts_with('{') && json.starts_with('{'),
        "NODE_ENV:\n{text}\n{json}"
    );
}
