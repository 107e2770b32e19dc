//! The state of one NAS, sessions, and the way of a call to its method.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::Duration;

use nas_host::Answer;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, code};
use crate::faults::Faults;
use crate::host::Host;
use crate::lun::Lun;
use crate::params::Params;
use crate::share::Share;
use crate::target::Target;
use crate::version::Version;

/// The properties of a simulated NAS.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each named after what it does"
)]
pub struct Options {
    /// The release.
    pub version: Version,
    /// The account that may log in.
    pub account: String,
    /// With this password.
    pub password: String,
    /// The volumes.
    pub volumes: Vec<VolumeOptions>,
    /// The most LUNs, targets and snapshots of a LUN; models differ.
    pub most: (usize, usize, usize),
    /// The number of times that a LUN that is being deleted, copied or snapshotted is still listed so. democratic-csi
    /// waits for deletions, Synology's CSI driver for copies.
    pub lag: usize,
    /// Whether every call has to echo the token of the login. pve (see [`crate`]): a setting of DSM.
    pub csrf: bool,
    /// Whether a parameter that no source names, and one in the URL, is refused or recorded. A NAS ignores the
    /// first and takes the second.
    pub strict: bool,
    /// Whether it serves HTTPS in place of HTTP.
    pub tls: bool,
    /// Whether the answer to a snapshot has its uuid in capital letters, and lists have not. No source: a
    /// client has to stand it.
    pub capital_uuids: bool,
    /// Whether the copy of a shared folder has its quota. csi says that it may be 0 until it is set.
    pub clones_keep_quota: bool,
    /// How many users are listed with their permissions where no number is asked for. No source: a client has to
    /// stand a NAS that gives a part.
    pub users_listed: usize,
    /// Whether a copy has the description of its source and not the one that was asked for. No source.
    pub clones_keep_description: bool,
}

/// One volume of the NAS.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Its path.
    pub path: String,
    /// `btrfs` or `ext4`.
    pub filesystem: String,
    /// Its size in bytes.
    pub size: u64,
}

#[derive(Debug)]
pub(crate) struct Dsm {
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    pub(crate) counts: BTreeMap<String, usize>,
    /// Mistakes of the client that DSM might let pass.
    pub(crate) violations: Vec<String>,
    sessions: BTreeMap<String, Option<String>>,
    pub(crate) luns: Vec<Lun>,
    pub(crate) targets: Vec<Target>,
    pub(crate) shares: Vec<Share>,
    /// The states of volumes, by their paths, and of LUNs, by their names, that are not `normal`.
    pub(crate) statuses: BTreeMap<String, String>,
    /// The names of targets that are disabled.
    pub(crate) disabled: BTreeSet<String>,
    /// Objects of other packages: the list that shows each, and how it is shown.
    pub(crate) foreign: Vec<(String, Value)>,
    /// The place where each call is recorded.
    pub(crate) record: Option<File>,
    /// How much later each answer comes.
    pub(crate) slowness: Duration,
    /// Calls that are not answered yet, and how often there was none before one came.
    pub(crate) in_flight: usize,
    pub(crate) rounds: usize,
    pub(crate) clock: u64,
    next: u64,
    host: Option<Host>,
}

/// The LUNs, targets and shared folders of the model, which the storage behind it has to hold.
#[derive(Debug, Clone)]
pub struct Held {
    pub(crate) luns: Vec<Lun>,
    pub(crate) targets: Vec<Target>,
    pub(crate) shares: Vec<Share>,
}

/// The way a call says who it is.
#[derive(Debug, Default)]
pub(crate) struct Carrier {
    pub(crate) cookie: Option<String>,
    pub(crate) token: Option<String>,
    /// `_sid` of the URL.
    pub(crate) in_url: Option<String>,
}

// === impl Options ===

impl Options {
    /// A NAS with `/volume1` on Btrfs and `/volume2` on ext4, of 1 TiB each.
    pub fn new(version: Version) -> Self {
        let volume = |path: &str, filesystem: &str| VolumeOptions {
            path: path.to_owned(),
            filesystem: filesystem.to_owned(),
            size: 1 << 40,
        };
        Self {
            version,
            account: "csi".to_owned(),
            password: "sesame".to_owned(),
            volumes: vec![volume("/volume1", "btrfs"), volume("/volume2", "ext4")],
            most: (256, 128, 256),
            lag: 1,
            csrf: version.is_7(),
            strict: true,
            tls: false,
            capital_uuids: false,
            clones_keep_quota: false,
            users_listed: usize::MAX,
            clones_keep_description: false,
        }
    }
}

// === impl Dsm ===

impl Dsm {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            faults: Faults::default(),
            counts: BTreeMap::new(),
            violations: Vec::new(),
            sessions: BTreeMap::new(),
            luns: Vec::new(),
            targets: Vec::new(),
            shares: Vec::new(),
            statuses: BTreeMap::new(),
            disabled: BTreeSet::new(),
            foreign: Vec::new(),
            record: None,
            slowness: Duration::ZERO,
            in_flight: 0,
            rounds: 0,
            clock: 1_700_000_000,
            next: 1,
            host: None,
        }
    }

    /// The same, on a pool of this machine.
    pub(crate) fn on_this_machine(mut options: Options, pool: &str) -> Answer<Self> {
        let host = Host::open(pool, &mut options.volumes)?;
        Ok(Self {
            host: Some(host),
            ..Self::new(options)
        })
    }

    /// Removes all LUNs, targets and shared folders.
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        let before = self.held();
        (self.luns, self.targets, self.shares) = Default::default();
        self.follow(before)
    }

    pub(crate) fn held(&self) -> Held {
        Held {
            luns: self.luns.clone(),
            targets: self.targets.clone(),
            shares: self.shares.clone(),
        }
    }

    /// Makes the model hold this again.
    pub(crate) fn restore(&mut self, held: Held) {
        (self.luns, self.targets, self.shares) = (held.luns, held.targets, held.shares);
    }

    /// Makes the storage of this machine as the model now is. If that fails, the call has failed: the model is
    /// as before it, but for what has no storage any more.
    fn follow(&mut self, before: Held) -> Result<(), Failure> {
        let held = self.held();
        let Some(host) = &mut self.host else {
            return Ok(());
        };
        let Err(failed) = host.follow(&held) else {
            return Ok(());
        };
        (self.luns, self.targets, self.shares) = (before.luns, before.targets, before.shares);
        self.luns.retain(|lun| host.has(&lun.uuid));
        self.shares.retain(|share| host.has(&share.uuid));
        if failed.0.contains("out of space") || failed.0.contains("No space left") {
            return Err(Failure::of(code::NO_SPACE));
        }
        Err(Failure::strict(code::UNKNOWN, failed.0))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn uuid(&mut self) -> String {
        let number = self.number();
        format!("{number:08x}-5eed-4000-8000-{:012x}", number * 7919)
    }

    /// The time of something new, each a second later.
    pub(crate) fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn expire_sessions(&mut self) {
        self.sessions.clear();
    }

    pub(crate) fn volume(&self, path: &str) -> Option<&VolumeOptions> {
        self.options
            .volumes
            .iter()
            .find(|volume| volume.path == path)
    }

    /// The free space of a volume: thin LUNs take nothing.
    pub(crate) fn free(&self, path: &str) -> u64 {
        let size = self.volume(path).map_or(0, |volume| volume.size);
        let luns = self.luns.iter().filter(|lun| lun.location == path);
        let taken: u64 = luns.filter(|lun| lun.is_thick()).map(|lun| lun.size).sum();
        size.saturating_sub(taken)
    }

    /// Whether a call changes anything.
    pub(crate) fn changes(method: &str) -> bool {
        !matches!(
            method,
            "query"
                | "login"
                | "logout"
                | "list"
                | "get"
                | "info"
                | "load"
                | "list_snapshot"
                | "get_snapshot"
        )
    }

    /// Answers one call.
    ///
    /// Read from: DSM Login Web API Guide, "Making requests": `api`, `version` and `method` name it.
    pub(crate) fn answer(&mut self, path: &str, form: &[u8], carrier: &Carrier) -> Value {
        let before = self.host.is_some().then(|| self.held());
        let mut outcome = self.call(path, form, carrier);
        // A refused call may have made something, too.
        if let Some(Err(failure)) = before.map(|before| self.follow(before)) {
            outcome = Err(failure);
        }
        match outcome {
            Ok(Value::Null) => json!({"success": true}),
            Ok(data) => json!({"data": data, "success": true}),
            Err(failure) => {
                if let Some(why) = failure.strict {
                    self.violations.push(why);
                }
                json!({"error": {"code": failure.code}, "success": false})
            }
        }
    }

    fn call(&mut self, path: &str, form: &[u8], carrier: &Carrier) -> Result<Value, Failure> {
        let (api, method, version) = named(form)?;
        let apis = self.options.version.apis();
        let strict = self.options.strict;
        if api == "SYNO.API.Info" {
            return info(&apis, path, &method, form, strict);
        }
        let known = apis.get(&api).ok_or_else(|| Failure::of(code::NO_API))?;
        // Both CSI drivers and Cinder log in there, whatever the list of APIs says.
        let is_old_login = api == "SYNO.API.Auth" && path == "auth.cgi";
        if known["path"] != path && !is_old_login {
            return Err(Failure::strict(
                code::NO_API,
                format!("{api} is not on {path} of this release"),
            ));
        }
        if version < 1
            || known["maxVersion"]
                .as_u64()
                .is_none_or(|most| version > most)
        {
            return Err(Failure::of(code::NO_VERSION));
        }
        let mut params = Params::read(form, known["requestFormat"] == "JSON", strict);
        for key in ["api", "method", "version"] {
            params.take(key);
        }
        if api == "SYNO.API.Auth" {
            return self.auth(&method, params, carrier);
        }
        self.admit(&mut params, carrier)?;
        match api.as_str() {
            "SYNO.Core.ISCSI.LUN" => self.lun_method(&method, params),
            "SYNO.Core.ISCSI.Target" => self.target_method(&method, params),
            "SYNO.Core.Storage.Volume" => self.volume_method(&method, params),
            "SYNO.Core.System" => self.system_method(&method, params),
            "SYNO.Core.ISCSI.Node" => node_method(&method, params),
            _ => self.share_method(&api, &method, version, params),
        }
    }

    /// Read from: DSM Login Web API Guide, `SYNO.API.Auth`. `enable_syno_token` and `synotoken`: there,
    /// and pve.
    fn auth(
        &mut self,
        method: &str,
        mut params: Params,
        carrier: &Carrier,
    ) -> Result<Value, Failure> {
        if method == "logout" {
            let sid = params.optional_text("_sid")?;
            params.optional_text("session")?;
            params.done()?;
            for sid in sid.into_iter().chain(carrier.cookie.clone()) {
                self.sessions.remove(&sid);
            }
            return Ok(Value::Null);
        }
        if method != "login" {
            return Err(Failure::of(code::NO_METHOD));
        }
        let (account, password) = (params.text("account")?, params.text("passwd")?);
        params.optional_text("session")?;
        let format = params.optional_text("format")?;
        if !matches!(format.as_deref(), None | Some("sid" | "cookie")) {
            return Err(Failure::of(code::PARAMETER));
        }
        let wants_token = params.optional_text("enable_syno_token")?.as_deref() == Some("yes");
        params.done()?;
        if account != self.options.account || password != self.options.password {
            return Err(Failure::of(code::BAD_LOGIN));
        }
        let number = self.number();
        let sid = format!("sid-{number}-canary");
        let token = wants_token.then(|| format!("token-{number}-canary"));
        self.sessions.insert(sid.clone(), token.clone());
        let mut data = Map::from_iter([("sid".to_owned(), Value::from(sid))]);
        if let Some(token) = token {
            data.insert("synotoken".to_owned(), Value::from(token));
        }
        Ok(Value::Object(data))
    }

    /// Read from: pve: on DSM 7.1.1 `_sid` in a form counts for nothing, the cookie `id` does; with
    /// protection against CSRF the token has to be there, or the answer is 105. csi uses the cookie, dcsi
    /// `_sid` in the URL, which a log of DSM 7 shows, too (its issue 374).
    fn admit(&self, params: &mut Params, carrier: &Carrier) -> Result<(), Failure> {
        let in_form = params.optional_text("_sid")?;
        let in_form = in_form.filter(|_| !self.options.version.is_7());
        let sid = carrier.cookie.clone().or(carrier.in_url.clone());
        let sid = sid.or(in_form);
        let session = sid.and_then(|sid| self.sessions.get(&sid));
        let Some(token) = session else {
            return Err(Failure::of(code::NO_SESSION));
        };
        let echoed = token.is_some() && *token == carrier.token;
        if self.options.csrf && !echoed {
            return Err(Failure::of(code::NO_PERMISSION));
        }
        Ok(())
    }

    /// Read from: csi, storage.go (fields; sizes are texts), cinder (`readonly`, `eppool_used_byte`) and pve
    /// (117 for a volume that is not there).
    fn volume_method(&mut self, method: &str, mut params: Params) -> Result<Value, Failure> {
        match method {
            "get" => {
                let path = params.text("volume_path")?;
                params.done()?;
                let volume = self
                    .volume(&path)
                    .ok_or_else(|| Failure::of(code::NO_VOLUME))?;
                Ok(json!({"volume": self.shown_volume(volume)}))
            }
            "list" => {
                params.ignore(&["limit", "offset", "location"]);
                params.done()?;
                let volumes = self.options.volumes.iter();
                let shown: Vec<Value> = volumes.map(|volume| self.shown_volume(volume)).collect();
                Ok(json!({"volumes": shown}))
            }
            _ => Err(Failure::of(code::NO_METHOD)),
        }
    }

    /// The state of a volume or a LUN.
    pub(crate) fn status(&self, name: &str) -> &str {
        self.statuses.get(name).map_or("normal", String::as_str)
    }

    fn shown_volume(&self, volume: &VolumeOptions) -> Value {
        let free = self.free(&volume.path);
        json!({
            "display_name": volume.path.trim_start_matches('/'),
            "volume_path": volume.path,
            "status": self.status(&volume.path),
            "readonly": self.status(&volume.path) == "read_only",
            "fs_type": volume.filesystem,
            "size_total_byte": volume.size.to_string(),
            "size_free_byte": free.to_string(),
            "eppool_used_byte": volume.size.saturating_sub(free).to_string(),
            "container": "internal",
            "location": "internal",
        })
    }

    /// Read from: csi, systeminfo.go (`type` `network` gives the name of the host), cinder (`firmware` and
    /// `define`).
    fn system_method(&mut self, method: &str, mut params: Params) -> Result<Value, Failure> {
        if method != "info" {
            return Err(Failure::of(code::NO_METHOD));
        }
        let kind = params.optional_text("type")?;
        params.done()?;
        Ok(match kind.as_deref() {
            Some("network") => json!({"hostname": "simulated"}),
            Some("define") => json!({
                "support_storage_mgr": "yes",
                "support_iscsi_target": "yes",
                "support_vaai": "yes",
                "supportsnapshot": "yes",
            }),
            _ => json!({
                "model": "DS918+",
                "firmware_ver": self.options.version.firmware(),
                "serial": "1930PDN000000",
            }),
        })
    }

    /// Objects of other packages in a list, such as `luns`.
    pub(crate) fn foreign(&self, list: &str) -> impl Iterator<Item = Value> {
        let foreign = self.foreign.iter().filter(move |(known, _)| known == list);
        foreign.map(|(_, object)| object.clone())
    }
}

/// Read from: cinder.
fn node_method(method: &str, params: Params) -> Result<Value, Failure> {
    if method != "list" {
        return Err(Failure::of(code::NO_METHOD));
    }
    params.done()?;
    Ok(json!({"nodes": [{"uuid": "00000001-5eed-4000-8000-000000000001"}]}))
}

/// The method a form asks for. Cinder writes these three as JSON, too.
pub(crate) fn named(form: &[u8]) -> Result<(String, String, u64), Failure> {
    let mut found: BTreeMap<String, String> = form_urlencoded::parse(form).into_owned().collect();
    let mut take = |key: &str| {
        let text = found.remove(key);
        let text = text.ok_or_else(|| Failure::of(code::PARAMETER))?;
        Ok::<_, Failure>(serde_json::from_str::<String>(&text).unwrap_or(text))
    };
    let (api, method) = (take("api")?, take("method")?);
    let version = take("version")?
        .parse()
        .map_err(|_| Failure::of(code::PARAMETER))?;
    Ok((api, method, version))
}

fn info(
    apis: &Value,
    path: &str,
    method: &str,
    form: &[u8],
    strict: bool,
) -> Result<Value, Failure> {
    if path != "query.cgi" || method != "query" {
        return Err(Failure::of(code::NO_METHOD));
    }
    let mut params = Params::read(form, false, strict);
    for key in ["api", "method", "version"] {
        params.take(key);
    }
    let wanted = params.text("query")?;
    params.done()?;
    let wanted: BTreeSet<&str> = wanted.split(',').collect();
    let all = apis.as_object().into_iter().flatten();
    let chosen = all.filter(|(api, _)| wanted.contains("all") || wanted.contains(api.as_str()));
    Ok(chosen
        .map(|(api, entry)| (api.clone(), entry.clone()))
        .collect::<Map<_, _>>()
        .into())
}
