use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::csi::plugin::Modes;
use crate::rpc::server::socket::Tcp;
use crate::telemetry::log::{LogFormat, Verbosity};

const REQUIRED: [&str; 4] = [
    "--driver-config-file=/c.yaml",
    "--csi-version=1.5.0",
    "--csi-name=org.example",
    "--server-socket=/s.sock",
];

fn parsed(args: &[&str], env: &[(&str, &str)]) -> Result<Invocation, ArgsError> {
    let env: BTreeMap<_, _> = env.iter().copied().collect();
    let argv = std::iter::once("bin/democratic-csi").chain(args.iter().copied());
    parse(argv.map(OsString::from).collect(), &|name| {
        env.get(name).map(ToString::to_string)
    })
}

fn serve(args: &[&str], env: &[(&str, &str)]) -> Serve {
    match parsed(args, env) {
        Ok(Invocation::Serve(serve)) => *serve,
        other => panic!("{args:?} {env:?}: {other:?}"),
    }
}

fn with(args: &[&str]) -> Serve {
    serve(&[&REQUIRED[..], args].concat(), &[])
}

fn refused(args: &[&str], env: &[(&str, &str)]) -> String {
    let error = parsed(args, env).expect_err("refused");
    assert_eq!(error.exit_code(), EX_USAGE, "{error}");
    error.to_string()
}

/// A flag, a value that is not its default, and whether the value has arrived.
type Row = (&'static str, &'static str, fn(&Serve) -> bool);

const FLAGS: [Row; 18] = [
    ("driver-config-file", "/d.yaml", |s| {
        s.driver_config_file == Path::new("/d.yaml")
    }),
    ("csi-version", "1.9.0", |s| s.version.to_string() == "1.9.0"),
    ("csi-name", "net.other", |s| s.name.as_str() == "net.other"),
    ("csi-mode", "node", |s| {
        s.modes
            == Modes {
                controller: false,
                node: true,
            }
    }),
    ("server-address", "127.0.0.2", |s| {
        s.tcp.as_ref().is_some_and(|t| t.host == "127.0.0.2")
    }),
    ("server-port", "7777", |s| {
        s.tcp.as_ref().is_some_and(|t| t.port == 7777)
    }),
    ("server-socket", "/t.sock", |s| {
        s.socket
            .as_ref()
            .is_some_and(|s| s.path == Path::new("/t.sock"))
    }),
    ("server-socket-permissions-mode", "0660", |s| {
        s.socket.as_ref().is_some_and(|s| s.mode == 0o660)
    }),
    ("legacy-sockets", "/sockets", |s| {
        s.legacy_sockets.folder.as_deref() == Some(Path::new("/sockets"))
    }),
    ("csi-addons-address", "unix:///addons.sock", |s| {
        s.addons
            .as_ref()
            .is_some_and(|s| s.path == Path::new("/addons.sock"))
    }),
    ("log-level", "silly", |s| {
        s.verbosity == Some(Verbosity::Silly)
    }),
    ("log-format", "json", |s| s.log_format == LogFormat::Json),
    ("metrics-address", ":9090", |s| {
        s.metrics == Some(([127, 0, 0, 1], 9090).into())
    }),
    ("console-address", ":9810", |s| {
        s.console == Some(([127, 0, 0, 1], 9810).into())
    }),
    ("kubelet-registration-path", "/kubelet/csi.sock", |s| {
        let registration = s.registration.as_ref();
        registration.is_some_and(|r| r.endpoint == "/kubelet/csi.sock")
    }),
    ("plugin-registration-path", "/registry", |s| {
        let registration = s.registration.as_ref();
        registration.is_some_and(|r| r.folder == Path::new("/registry"))
    }),
    ("shutdown-grace", "1.5", |s| {
        s.shutdown_grace == Duration::from_millis(1500)
    }),
    ("kubelet-dir", "/data/kubelet", |s| {
        format!("{:?}", s.dirs).contains("/data/kubelet")
    }),
];

/// A whole command line without `flag`, so that only its own value can have the effect.
fn others(flag: &str) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("driver-config-file", "/c.yaml"),
        ("csi-version", "1.5.0"),
        ("csi-name", "org.example"),
        ("server-socket", "/s.sock"),
        ("server-address", "127.0.0.1"),
        ("server-port", "10000"),
        ("kubelet-registration-path", "/csi.sock"),
    ];
    all.into_iter().filter(|(name, _)| *name != flag).collect()
}

#[test]
fn every_flag_has_its_effect_in_every_form() {
    for (flag, value, arrived) in FLAGS {
        let rest: Vec<String> = others(flag)
            .iter()
            .map(|(name, value)| format!("--{name}={value}"))
            .collect();
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let (name, joined) = (format!("--{flag}"), format!("--{flag}={value}"));
        assert!(
            arrived(&serve(&[&rest[..], &[&joined]].concat(), &[])),
            "{joined}"
        );
        assert!(
            arrived(&serve(&[&[name.as_str(), value], &rest[..]].concat(), &[])),
            "{flag}"
        );
        let upper = flag.replace('-', "_").to_uppercase();
        let variable = format!("DEMOCRATIC_CSI_{upper}");
        assert!(arrived(&serve(&rest, &[(&variable, value)])), "{variable}");
        if cli::OURS.contains(&flag) {
            let variable = format!("OMNIBUS_CSI_{upper}");
            assert!(arrived(&serve(&rest, &[(&variable, value)])), "{variable}");
        }
        // Without it the effect is not there: the row can fail.
        if let Ok(Invocation::Serve(without)) = parsed(&rest, &[]) {
            assert!(
                !arrived(&without),
                "{flag} has its effect without being given"
            );
        }
        let known: Vec<_> = cli::DEMOCRATIC.iter().chain(&cli::OURS).collect();
        assert_eq!(known.len(), FLAGS.len(), "a flag is missing in this table");
    }
}

#[test]
fn the_command_line_wins_over_the_environment_but_csi_version_wins_over_all() {
    let env = [
        ("DEMOCRATIC_CSI_CSI_NAME", "from.env"),
        ("CSI_VERSION", "1.2.0"),
    ];
    let serve = serve(&REQUIRED, &env);
    assert_eq!(serve.name.as_str(), "org.example");
    assert_eq!(serve.version.to_string(), "1.2.0");
}

#[test]
fn empty_variables_count_as_unset() {
    let env: Vec<_> = VARIABLES
        .iter()
        .map(|variable| (variable.name, ""))
        .collect();
    assert_eq!(serve(&REQUIRED, &env).version.to_string(), "1.5.0");
    assert!(without_effect(&|_| Some(String::new())).is_empty());
}

#[test]
fn modes_are_repeated_listed_or_separated_and_both_by_default() {
    let both = Modes {
        controller: true,
        node: true,
    };
    assert_eq!(with(&[]).modes, both);
    assert_eq!(
        with(&["--csi-mode=node", "--csi-mode=controller"]).modes,
        both
    );
    assert_eq!(with(&["--csi-mode=node,controller"]).modes, both);
    assert_eq!(with(&["--csi-mode", "node", "controller"]).modes, both);
    assert!(!with(&["--csi-mode=controller"]).modes.node);
    let problem = refused(&[&REQUIRED[..], &["--csi-mode=nod"]].concat(), &[]);
    assert!(problem.contains("--csi-mode: `nod`"), "{problem}");
}

#[test]
fn the_command_line_of_the_helm_chart_is_understood() {
    let serve = serve(
        &[
            "--csi-version=1.5.0",
            "--csi-name=org.democratic-csi.nfs",
            "--driver-config-file=/config/driver-config-file.yaml",
            "--log-level=info",
            "--csi-mode=node",
            "--csi-mode=controller",
            "--server-socket=/csi-data/csi.sock.internal",
        ],
        &[("CSI_NODE_ID", "worker-1"), ("NODE_ENV", "production")],
    );
    assert_eq!(serve.node_id.as_str(), "worker-1");
    assert_eq!(serve.log_format, LogFormat::Json);
    assert_eq!(serve.verbosity, Some(Verbosity::Info));
    assert!(serve.warnings.is_empty());
    let socket = serve.socket.unwrap();
    assert_eq!(
        (socket.path, socket.mode),
        ("/csi-data/csi.sock.internal".into(), 0o600)
    );
}

#[test]
fn unknown_flags_are_left_out_with_their_value_and_named_in_a_warning() {
    let serve = with(&["--log-levle=debug", "--frobnicate", "hard", "stray", "-x"]);
    assert_eq!(
        serve.warnings,
        [
            "unknown flag --log-levle is ignored; is --log-level meant?",
            "unknown flag --frobnicate is ignored",
            "`stray` means nothing here and is ignored",
            "`-x` means nothing here and is ignored",
        ]
    );
    assert_eq!(serve.verbosity, None);
}

#[test]
fn every_version_of_the_specification_from_one_on_is_accepted() {
    for minor in 0..=13 {
        let version = format!("--csi-version=1.{minor}.0");
        let args = [
            &[
                "--csi-name=a",
                "--driver-config-file=/c",
                "--server-socket=/s",
            ],
            &[version.as_str()][..],
        ];
        serve(&args.concat(), &[]);
    }
    for (version, why) in [
        ("0.3.0", "another wire protocol"),
        ("1.14.0", "1.13.0"),
        ("x", "not a"),
    ] {
        let problem = refused(&REQUIRED, &[("CSI_VERSION", version)]);
        assert!(
            problem.contains("--csi-version") && problem.contains(why),
            "{problem}"
        );
    }
}

#[test]
fn sockets_are_paths_with_or_without_a_scheme() {
    for text in [
        "/run/csi.sock",
        "unix:///run/csi.sock",
        "unix:/run/csi.sock",
    ] {
        let env = [("CSI_ENDPOINT", text)];
        let socket = serve(&REQUIRED[..3], &env).socket.unwrap();
        assert_eq!(socket.path, PathBuf::from("/run/csi.sock"), "{text}");
    }
    let long = format!("--server-socket=/{}", "x".repeat(107));
    assert!(refused(&[&REQUIRED[..3], &[&long]].concat(), &[]).contains("at most 107"));
}

#[test]
fn the_endpoint_of_the_specification_counts_only_where_no_flag_says_where() {
    let endpoint = [("CSI_ENDPOINT", "tcp://[::1]:99")];
    assert_eq!(serve(&REQUIRED, &endpoint).tcp, None);
    let tcp = serve(&REQUIRED[..3], &endpoint).tcp;
    assert_eq!(
        tcp,
        Some(Tcp {
            host: "::1".into(),
            port: 99
        })
    );
    let problem = refused(&REQUIRED[..3], &[("CSI_ENDPOINT", "tcp://nowhere")]);
    assert!(problem.contains("CSI_ENDPOINT"), "{problem}");
}

#[test]
fn all_problems_are_reported_at_once_each_with_its_flag() {
    let problem = refused(
        &[
            "--csi-name=_",
            "--server-socket-permissions-mode=0999",
            "--metrics-address=there",
            "--shutdown-grace=-1",
            "--server-port=1",
        ],
        &[("MOUNT_DEFAULT_TIMEOUT", "30s"), ("CSI_NODE_ID", "a\u{1}b")],
    );
    for flag in [
        "--csi-version is required",
        "--driver-config-file is required",
        "--csi-name:",
        "--server-socket-permissions-mode:",
        "--metrics-address:",
        "--shutdown-grace:",
        "--server-address, --server-port:",
        "MOUNT_DEFAULT_TIMEOUT:",
        "CSI_NODE_ID:",
    ] {
        assert!(problem.contains(flag), "{flag} in\n{problem}");
    }
    assert!(refused(&REQUIRED[..3], &[]).contains("nowhere to listen"));
}

#[test]
fn the_deadlines_of_programs_are_in_milliseconds() {
    let timeouts = |env: &[(&str, &str)]| serve(&REQUIRED, env).programs.timeouts();
    assert_eq!(timeouts(&[]).mount, Duration::from_secs(30));
    let given = timeouts(&[("MOUNT_DEFAULT_TIMEOUT", "1500")]);
    assert_eq!(given.mount, Duration::from_millis(1500));
    assert_eq!(given.iscsi, timeouts(&[]).iscsi);
}

#[test]
fn metrics_are_on_the_loopback_unless_said_otherwise() {
    let metrics = |text| {
        with(&["--metrics-address", text])
            .metrics
            .unwrap()
            .to_string()
    };
    assert_eq!(metrics("9090"), "127.0.0.1:9090");
    assert_eq!(metrics(":9090"), "127.0.0.1:9090");
    assert_eq!(metrics("localhost:9090"), "127.0.0.1:9090");
    assert_eq!(metrics("0.0.0.0:9090"), "0.0.0.0:9090");
    assert_eq!(metrics("[::]:9090"), "[::]:9090");
    assert_eq!(with(&[]).metrics, None);
}

#[test]
fn the_console_is_on_the_loopback_or_refused_and_never_without_a_controller() {
    let console = |text| with(&["--console-address", text]).console;
    for text in ["9810", ":9810", "localhost:9810", "127.0.0.1:9810"] {
        assert_eq!(console(text), Some(([127, 0, 0, 1], 9810).into()), "{text}");
    }
    assert_eq!(console("[::1]:0").unwrap().to_string(), "[::1]:0");
    assert_eq!(with(&[]).console, None);
    for text in ["0.0.0.0:9810", "[::]:9810", "192.0.2.1:9810"] {
        let flag = format!("--console-address={text}");
        let problem = refused(&[REQUIRED.as_slice(), &[&flag]].concat(), &[]);
        assert!(problem.contains("is no loopback address"), "{problem}");
        assert!(problem.contains("kubectl port-forward"), "{problem}");
    }
    let flags = ["--console-address=:9810", "--csi-mode=node"];
    let problem = refused(&[REQUIRED.as_slice(), &flags].concat(), &[]);
    assert!(problem.contains("no controller service"), "{problem}");
}

#[test]
fn every_variable_without_effect_is_named_when_it_is_set() {
    for variable in VARIABLES {
        let named = without_effect(&|name| (name == variable.name).then(|| "1".into()));
        match variable.effect {
            Effect::None(why) => assert_eq!(named, [(variable.name, why)]),
            Effect::Flag(_) | Effect::Acts(_) => assert!(named.is_empty(), "{}", variable.name),
        }
    }
}

#[test]
fn the_probe_of_the_chart_is_understood_by_name_and_by_subcommand() {
    let probe = |argv: &[&str], env: &[(&str, &str)]| {
        let env: BTreeMap<_, _> = env.iter().copied().collect();
        let argv = argv.iter().map(OsString::from).collect();
        match parse(argv, &|name| env.get(name).map(ToString::to_string)) {
            Ok(Invocation::Command(Command::LivenessProbe(flags))) => flags,
            other => panic!("{other:?}"),
        }
    };
    let flags = [
        "--csi-version=1.9.0",
        "--csi-address=/csi-data/csi.sock",
        "--csi-vresion=1",
    ];
    let by_name = probe(&[&["bin/liveness-probe"], &flags[..]].concat(), &[]);
    assert_eq!(by_name.csi_address, "/csi-data/csi.sock");
    assert!(by_name.check_version().is_ok());
    let warning = "unknown flag --csi-vresion is ignored; is --csi-version meant?";
    assert_eq!(by_name.warnings, [warning]);
    let by_subcommand = probe(
        &[&["omnibus-csi", "liveness-probe"], &flags[..]].concat(),
        &[],
    );
    assert_eq!(by_subcommand.csi_version.as_deref(), Some("1.9.0"));
    assert_eq!(by_subcommand.warnings, [warning]);
    let env = [
        ("DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_ADDRESS", "/e.sock"),
        ("DEMOCRATIC_CSI_LIVENESS_PROBE_CSI_VERSION", "1.0.0"),
        ("DEMOCRATIC_CSI_LIVENESS_PROBE_TIMEOUT", "3"),
    ];
    let by_env = probe(&["liveness-probe"], &env);
    assert_eq!(by_env.csi_address, "/e.sock");
    assert_eq!(by_env.csi_version.as_deref(), Some("1.0.0"));
    assert_eq!(by_env.timeout(), Ok(Duration::from_secs(3)));
}

#[test]
fn help_and_version_are_no_errors_and_a_misspelt_subcommand_is_one() {
    for question in ["--help", "-h", "--version"] {
        assert_eq!(parsed(&[question], &[]).unwrap_err().exit_code(), 0);
    }
    assert!(refused(&["chek"], &[]).contains("'check'"));
    Cli::command().debug_assert();
}

#[test]
fn help_names_every_flag_and_every_exit_code() {
    let help = Cli::command().render_long_help().to_string();
    for flag in cli::DEMOCRATIC.iter().chain(&cli::OURS) {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
    for part in ["Exit codes:", "Examples:", "Signals:", "  64  "] {
        assert!(help.contains(part), "{part}");
    }
    let mut whole = Cli::command();
    whole.build();
    let commands = whole.get_subcommands().flat_map(|command| {
        let below: Vec<_> = command.get_subcommands().collect();
        if below.is_empty() {
            vec![command]
        } else {
            below
        }
    });
    for command in commands {
        let name = command.get_name();
        let help = command.clone().render_long_help().to_string();
        // These two print a line.
        if !["liveness-probe", "version"].contains(&name) {
            for part in ["Exit codes:", "Examples:"] {
                assert!(help.contains(part), "{name}: {part}");
            }
        }
    }
}

#[test]
fn by_default_orphans_are_old_and_stay() {
    let orphans = |args: &[&str]| {
        let args = [&["orphans", "--driver-config-file=/c.yaml"][..], args].concat();
        match parsed(&args, &[]) {
            Ok(Invocation::Command(Command::Orphans(flags))) => flags,
            other => panic!("{args:?}: {other:?}"),
        }
    };
    let plain = orphans(&[]);
    assert_eq!(plain.min_age, Duration::from_hours(1));
    assert!(!plain.remove && !plain.json && plain.connection.is_none());
    let flags = orphans(&["--min-age=7d", "--remove", "--json", "--connection=nas"]);
    assert_eq!(flags.min_age, Duration::from_hours(7 * 24));
    assert!(flags.remove && flags.json);
    assert_eq!(flags.connection.as_deref(), Some("nas"));
    for age in [
        "",
        "1",
        "h",
        "-1h",
        "+1h",
        "1.5h",
        "1 h",
        "1w",
        "99999999999999999d",
        "1\u{e9}",
    ] {
        let age = format!("--min-age={age}");
        refused(&["orphans", "--driver-config-file=/c.yaml", &age], &[]);
    }
    refused(&["orphans"], &[]);
}

#[test]
fn by_default_exports_are_only_looked_at() {
    let exports = |args: &[&str]| {
        let args = [&["exports", "--driver-config-file=/c.yaml"][..], args].concat();
        match parsed(&args, &[]) {
            Ok(Invocation::Command(Command::Exports(flags))) => flags,
            other => panic!("{args:?}: {other:?}"),
        }
    };
    let plain = exports(&[]);
    assert!(!plain.repair && !plain.json && plain.connection.is_none());
    let flags = exports(&["--repair", "--json", "--connection", "nas"]);
    assert!(flags.repair && flags.json);
    assert_eq!(flags.connection.as_deref(), Some("nas"));
    refused(
        &["exports", "--driver-config-file=/c.yaml", "--remove"],
        &[],
    );
}

#[test]
fn a_file_may_follow_a_command_without_its_flag() {
    for args in [
        &["check", "nas.yaml", "--offline"][..],
        &["check", "--offline", "--driver-config-file", "nas.yaml"],
    ] {
        let Ok(Invocation::Command(Command::Check(flags))) = parsed(args, &[]) else {
            panic!("{args:?}");
        };
        assert_eq!(flags.driver_config_file, Path::new("nas.yaml"));
        assert!(flags.offline);
    }
    for args in [
        ["check", "a.yaml", "--driver-config-file=b.yaml"],
        ["check", "a.yaml", "b.yaml"],
    ] {
        assert!(parsed(&args, &[]).is_err(), "{args:?}");
    }
}

#[test]
fn help_is_not_broken_into_lines_twice_on_a_terminal_of_eighty_columns() {
    for command in [
        "",
        "check",
        "orphans",
        "exports",
        "export-pvs",
        "adopt",
        "move",
        "connections",
        "try",
    ] {
        let mut whole = Cli::command();
        whole.build();
        let chosen = match command {
            "" => whole,
            name => whole.find_subcommand(name).expect(name).clone(),
        };
        let help = |width| {
            let help = chosen.clone().term_width(width).render_long_help();
            help.to_string()
        };
        let wide = help(1000);
        let lines: Vec<_> = wide.lines().collect();
        for pair in lines.windows(2) {
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let is_broken = pair[0].len() > 60 && is_text(pair[0]) && is_text(pair[1]);
            assert!(!is_broken, "{command}: {}\n{}", pair[0], pair[1]);
        }
        let narrow = help(80);
        // The line of usage is never broken.
        let text = |line: &&str| !line.starts_with("Usage: ");
        assert!(
            narrow.lines().filter(text).all(|line| line.len() <= 80),
            "{command}: {narrow}"
        );
    }
}
