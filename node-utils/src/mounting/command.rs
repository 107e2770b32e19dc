//! The command that mounts, for each kind of volume.

use std::time::Duration;

use exec::{Command, Program, RunError, Runner, Variable};
use secrecy::{ExposeSecret as _, SecretString};

use super::MountRequest;
use crate::tools::Tools;
use csi_types::attachment::{Attachment, Objectivefs, Oneclient};
use csi_types::capability::FsType;
use csi_types::error::{Error, Kind};

const MOUNT: Program = Program::constant("mount");
const OBJECTIVEFS: Program = Program::constant("mount.objectivefs");
const ONECLIENT: Program = Program::constant("oneclient");

/// The variable from which `mount.cifs` reads the user and the password.
const USER: Variable = Variable::constant("USER");
const PASSWD: Variable = Variable::constant("PASSWD");
/// The variable from which `oneclient` reads its token.
const TOKEN: Variable = Variable::constant("ONECLIENT_ACCESS_TOKEN");
const OBJECTSTORE: Variable = Variable::constant("OBJECTSTORE");
/// The options that are security labels.
pub(crate) const LABELS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];
const LICENSE: &str = "OBJECTIVEFS_LICENSE";
/// The rest of a license is the key of its administrator, which no mount needs.
const LICENSE_LENGTH: usize = 24;

/// The modes that files and directories of an SMB share that is given to a group show unless an option says otherwise:
/// what mount.cifs(8) says, and the group may write.
const GROUP_MODES: [([&str; 2], &str); 2] = [
    (["file_mode=", "fmask="], "0775"),
    (["dir_mode=", "dmask="], "02775"),
];

/// The beginnings of options whose value is a secret.
const HIDDEN: [&str; 4] = ["pass", "password", "token", "secret"];

/// Starts a daemon of the host that outlives this container; [`MISSING`] if the host does not have its program.
const DAEMON: &str = include_str!("daemon.sh");
const MISSING: i32 = 127;
/// It may still be mounted: the host goes on with it.
pub(super) const GOES_ON: i32 = 75;

/// A command and where it runs.
pub(super) struct Plan<'a> {
    pub(super) place: &'a dyn Runner,
    pub(super) command: Command,
    /// The same for the host, which is tried first.
    pub(super) on_host: Option<(&'a dyn Runner, Command)>,
    /// The source of the mount, for messages.
    pub(super) source: String,
}

/// The account for an SMB server, taken out of the options.
#[derive(Default)]
struct Login {
    user: Option<String>,
    password: Option<SecretString>,
    domain: Option<String>,
}

// === impl Plan ===

impl Plan<'_> {
    /// Runs it for at most `limit`.
    pub(super) async fn perform(&self, limit: Duration) -> Result<(), RunError> {
        if let Some((host, command)) = &self.on_host {
            let outcome = host.perform(&command.clone().within(limit)).await;
            let is_missing = outcome.as_ref().is_err_and(|error| {
                matches!(error, RunError::NotFound { .. }) || error.exit_code() == Some(MISSING)
            });
            if !is_missing {
                return outcome;
            }
        }
        self.place
            .perform(&self.command.clone().within(limit))
            .await
    }
}

/// The plan of a mount that has so long.
pub(super) fn plan<'a>(
    tools: &'a Tools,
    request: &MountRequest<'_>,
    limit: Duration,
) -> Result<Plan<'a>, Error> {
    let asked = request.access.fs_type.as_ref().map(FsType::as_str);
    match request.attachment {
        Attachment::Nfs(share) => {
            let (fs_type, source) = (asked.unwrap_or("nfs"), share.colon_form());
            Ok(share_of(tools, request, fs_type, source, &flags(request)?))
        }
        Attachment::Lustre(share) => {
            let (fs_type, source) = (asked.unwrap_or("lustre"), share.colon_form());
            Ok(share_of(tools, request, fs_type, source, &flags(request)?))
        }
        Attachment::Smb(share) => smb(tools, request, asked.unwrap_or("cifs"), share.unc_form()),
        Attachment::Objectivefs(objectivefs) => objectivefs_of(tools, request, objectivefs, limit),
        Attachment::Oneclient(oneclient) => oneclient_of(tools, request, oneclient, limit),
        Attachment::Hostpath(_)
        | Attachment::Iscsi(_)
        | Attachment::Nvmeof(_)
        | Attachment::ZfsLocal(_) => {
            let kind = request.attachment.kind();
            Err(Error::invalid(format!(
                "mount a volume of the kind `{kind}` with a program"
            )))
        }
    }
}

/// The options of the request, of the operator and of the secret; then `defaults`.
/// compat: "Mount flags".
fn flags(request: &MountRequest<'_>) -> Result<Vec<String>, Error> {
    let mut flags = Vec::new();
    for flag in request.access.flags.iter() {
        check(flag)?;
        check_hidden(flag)?;
        flags.push(flag.to_owned());
    }
    flags.push("defaults".to_owned());
    Ok(flags)
}

/// Within quotes a comma does not end an option of a security context; the programs that mount
/// shares know no quotes in others.
pub(crate) fn check(flag: &str) -> Result<(), Error> {
    let name = flag.split('=').next().unwrap_or_default();
    if flag.contains([',', '"']) && !LABELS.contains(&name) {
        let name: String = name.chars().take(32).flat_map(char::escape_debug).collect();
        return Err(Error::invalid(format!("use the mount option `{name}`"))
            .advise("its value holds a comma or a quote, which would make several options of it"));
    }
    Ok(())
}

fn share_of<'a>(
    tools: &'a Tools,
    request: &MountRequest<'_>,
    fs_type: &str,
    source: String,
    flags: &[String],
) -> Plan<'a> {
    let command = Command::new(MOUNT).args(["-t", fs_type, "-o"]);
    let command = with_options(command, flags.join(","))
        .arg(source.as_str())
        .arg(request.staging.as_str());
    Plan {
        on_host: None,
        place: tools.mount(fs_type),
        command,
        source,
    }
}

/// Adds options, which no log shows: the specification warns that they may be secret. What is too
/// short for a secret is not hidden, because it would be in every word that holds it.
fn with_options(command: Command, options: String) -> Command {
    const SHORTEST_SECRET: usize = 8;
    if options.len() < SHORTEST_SECRET {
        return command.arg(options);
    }
    command.secret_arg(SecretString::from(options))
}

/// The account travels in the environment of `mount.cifs`: arguments are seen by every user of the
/// node.
fn smb<'a>(
    tools: &'a Tools,
    request: &MountRequest<'_>,
    fs_type: &str,
    source: String,
) -> Result<Plan<'a>, Error> {
    let (mut login, mut rest) = (Login::default(), Vec::new());
    let mut named = false;
    for flag in request.access.flags.iter() {
        named |= flag.eq_ignore_ascii_case("guest") || starts(flag, "credentials=");
        if !login.takes(flag) {
            check(flag)?;
            check_hidden(flag)?;
            rest.push(flag.to_owned());
        }
    }
    rest.push("defaults".to_owned());
    if login.user.is_none() && !named {
        // Without it mount.cifs would ask for a password.
        rest.push("guest".to_owned());
    }
    if let Some(group) = request.access.group {
        rest.push(format!("gid={group}"));
        for (names, mode) in GROUP_MODES {
            let said = |flag| names.iter().any(|name| starts(flag, name));
            if !request.access.flags.iter().any(said) {
                rest.push(format!("{}{mode}", names[0]));
            }
        }
    }
    if let Some(domain) = &login.domain {
        rest.push(format!("domain={domain}"));
    }
    let mut plan = share_of(tools, request, fs_type, source, &rest);
    if let Some(user) = login.user {
        plan.command = plan.command.env(USER, user);
    }
    if let Some(password) = login.password {
        plan.command = plan.command.secret_env(PASSWD, password);
    }
    Ok(plan)
}

/// Refuses options that hold a password or a token: every user of the node sees the command line. Those of SMB that
/// can go another way were taken out before; the second password of Linux 6.10 cannot.
fn check_hidden(flag: &str) -> Result<(), Error> {
    let is_token = flag.starts_with("-t") && !flag.starts_with("--");
    let name = flag.trim_start_matches('-');
    let Some(hidden) = HIDDEN.iter().find(|hidden| starts(name, hidden)) else {
        return if is_token { Err(shown("-t")) } else { Ok(()) };
    };
    Err(shown(hidden))
}

fn shown(option: &str) -> Error {
    Error::invalid(format!("use the mount option `{option}`")).advise(
        "every user of the node would see its value. For SMB give the one password that is valid now, \
         for oneclient the secret `token`; mounts of NFS and Lustre have no password",
    )
}

fn starts(flag: &str, head: &str) -> bool {
    flag.get(..head.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(head))
}

/// A value with a comma has quotes around it, which are not part of it. `mount.cifs` knows no quotes, so all others are.
fn unquoted(value: &str) -> &str {
    let inside = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inside
        .filter(|inside| inside.contains(','))
        .unwrap_or(value)
}

impl Login {
    /// Takes what an option says about who logs in; `false` if it says nothing about that.
    fn takes(&mut self, flag: &str) -> bool {
        let value = |heads: &[&str]| {
            let head = heads.iter().find(|head| starts(flag, head))?;
            Some(unquoted(&flag[head.len()..]))
        };
        if let Some(password) = value(&["password=", "pass="]) {
            self.password = Some(SecretString::from(password));
        } else if let Some(domain) = value(&["domain=", "dom=", "workgroup="]) {
            if check(flag).is_err() {
                return false;
            }
            self.domain = Some(domain.to_owned());
        } else if let Some(user) = value(&["username=", "user="]) {
            self.is(user);
        } else {
            return false;
        }
        true
    }

    /// A user in any spelling of `mount.cifs`: `user`, `domain/user`, `user%password`.
    fn is(&mut self, text: &str) {
        let (user, password) = match text.split_once('%') {
            Some((user, password)) => (user, Some(password)),
            None => (text, None),
        };
        if let Some(password) = password {
            self.password = Some(SecretString::from(password));
        }
        self.user = Some(match user.split_once('/') {
            Some((domain, user)) if !domain.is_empty() && !domain.contains([',', '"']) => {
                self.domain.get_or_insert_with(|| domain.to_owned());
                user.to_owned()
            }
            _ => user.to_owned(),
        });
    }
}

/// The daemon gets its environment and nothing else; what the volume says goes before the secret.
fn objectivefs_of<'a>(
    tools: &'a Tools,
    request: &MountRequest<'_>,
    volume: &Objectivefs,
    limit: Duration,
) -> Result<Plan<'a>, Error> {
    let mut env = request.secrets.env.clone();
    for (name, value) in &volume.env {
        env.insert(name.clone(), value.secret().clone());
    }
    if let Some(license) = env.get_mut(&Variable::constant(LICENSE)) {
        let short: String = license
            .expose_secret()
            .chars()
            .take(LICENSE_LENGTH)
            .collect();
        *license = SecretString::from(short);
    }
    let store = volume.filesystem.store().map(SecretString::from);
    if let Some(store) = env.remove(&OBJECTSTORE).or(store) {
        env.insert(OBJECTSTORE, store);
    } else {
        let doing = format!("mount `{}`", volume.filesystem);
        return Err(Error::new(Kind::Busy, doing).advise(
            "nothing says in which object store it is: name it in `filesystem` (`s3://…`) or in \
             `env.OBJECTSTORE`",
        ));
    }
    let flags: Vec<&str> = request.access.flags.iter().collect();
    for flag in &flags {
        check(flag)?;
        check_hidden(flag)?;
    }
    let complete = |command: Command| {
        let command = if flags.is_empty() {
            command
        } else {
            with_options(command.arg("-o"), flags.join(","))
        };
        let command = command
            .arg(volume.filesystem.bare())
            .arg(request.staging.as_str());
        env.iter().fold(command, |command, (name, value)| {
            command.secret_env(name.clone(), value.clone())
        })
    };
    Ok(Plan {
        on_host: Some((tools.host(), complete(started_by_init(limit, &OBJECTIVEFS)))),
        place: tools.here(),
        command: complete(Command::new(OBJECTIVEFS)),
        source: volume.filesystem.to_string(),
    })
}

/// A program that leaves a daemon, which outlives this process and its container.
fn started_by_init(limit: Duration, program: &Program) -> Command {
    // It ends before this process gives up, so that nothing is mounted later.
    let seconds = limit.as_secs().saturating_sub(1).max(1);
    Command::script(DAEMON)
        .arg(seconds.to_string())
        .arg(program.as_str())
}

fn oneclient_of<'a>(
    tools: &'a Tools,
    request: &MountRequest<'_>,
    volume: &Oneclient,
    limit: Duration,
) -> Result<Plan<'a>, Error> {
    let mut command = started_by_init(limit, &ONECLIENT)
        .arg("-H")
        .arg(volume.server.as_str());
    for flag in request.access.flags.iter() {
        check_hidden(flag)?;
        command = with_options(command, flag.to_owned());
    }
    for (option, spaces) in [
        ("--space", &volume.space_names),
        ("--space-id", &volume.space_ids),
    ] {
        for space in spaces {
            command = command.arg(option).arg(space.as_str());
        }
    }
    command = command.arg(request.staging.as_str());
    // compat: "Shares and daemons": the token of the secret wins, and neither is an argument.
    let of_volume = volume
        .token
        .as_ref()
        .map(csi_types::attachment::Hidden::secret);
    if let Some(token) = request.secrets.token.as_ref().or(of_volume) {
        command = command.secret_env(TOKEN, token.clone());
    }
    Ok(Plan {
        on_host: None,
        place: tools.host(),
        command,
        source: "oneclient".to_owned(),
    })
}
