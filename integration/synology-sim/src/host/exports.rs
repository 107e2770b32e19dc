//! The exports of the machine: targets of LIO, lines of nfsd, usershares of samba.

use std::fs;

use nas_host::command::run;
use nas_host::configfs::converge;
use nas_host::lio::{Chap, Disk, MODULES, Target as LioTarget};
use nas_host::usershares::{self, Usershares};
use nas_host::{Answer, Failed, exports};
use serde_json::Value;

use super::Host;
use crate::dsm::Held;
use crate::lun::Lun;
use crate::share::Share;
use crate::target::Target;

/// Attributes of a LUN that LIO has under the same names.
const ATTRIBUTES: [&str; 5] = [
    "emulate_3pc",
    "emulate_caw",
    "emulate_fua_write",
    "emulate_tpu",
    "emulate_tpws",
];

// === impl Host ===

impl Host {
    /// Exports what the model shows, and nothing else.
    pub(super) async fn export(&mut self, held: &Held) -> Answer<()> {
        let mut wanted = Vec::new();
        for lun in held.luns.iter().filter(|lun| lun.is_there()) {
            wanted.extend(self.disk(lun)?.objects());
        }
        wanted.extend(
            held.targets
                .iter()
                .flat_map(|target| target.lio().objects()),
        );
        if self.exported.is_empty() && !wanted.is_empty() {
            run(&[&["modprobe", "-a"], &MODULES[..]].concat()).await?;
        }
        converge(&mut self.exported, wanted)?;
        let lines: Answer<Vec<_>> = held.shares.iter().map(Share::nfs).collect();
        exports::apply("synology-sim", &lines?.concat()).await?;
        let mut wanted = Usershares::new();
        for share in &held.shares {
            if let Some(access) = share.smb()? {
                let words = [&share.name, &share.folder(), "", &access, "guest_ok=n"];
                let words = words.map(|word: &str| word.to_owned()).to_vec();
                wanted.insert(share.name.clone(), words);
            }
        }
        usershares::apply(&mut self.usershares, wanted).await
    }

    /// Its serial number is that of DSM, from which LIO makes the same NAA number. pve (observed): the uuid, with
    /// `d` for each dash.
    fn disk(&self, lun: &Lun) -> Answer<Disk> {
        let switches = lun.attributes.as_array().into_iter().flatten();
        let switch = |one: &Value| {
            let name = ATTRIBUTES.iter().find(|name| one["dev_attrib"] == **name)?;
            Some(((*name).to_owned(), one["enable"].to_string()))
        };
        Ok(Disk {
            name: lun.uuid.clone(),
            device: format!("/dev/zvol/{}", self.dataset(&lun.uuid)?),
            serial: lun.uuid.replace('-', "d"),
            readonly: false,
            attributes: switches.filter_map(switch).collect(),
        })
    }
}

// === impl Target ===

impl Target {
    fn lio(&self) -> LioTarget {
        let chap = || Chap {
            initiator: self.chap.clone(),
            target: (self.auth_type == 2).then(|| self.mutual_chap.clone()),
        };
        LioTarget {
            iqn: self.iqn.clone(),
            portals: vec!["0.0.0.0:3260".to_owned()],
            initiators: Vec::new(),
            chap: (self.auth_type > 0).then(chap),
            disks: self.mapped.clone().into_iter().collect(),
        }
    }
}

// === impl Share ===

impl Share {
    fn folder(&self) -> String {
        format!("{}/{}", self.path, self.name)
    }

    /// Its line for nfsd, if it has rules.
    fn nfs(&self) -> Answer<String> {
        let rules = self.rules.as_array().into_iter().flatten();
        let clients: Vec<_> = rules.map(client).collect::<Answer<_>>()?;
        Ok(if clients.is_empty() {
            String::new()
        } else {
            format!("\"{}\" {}\n", self.folder(), clients.join(" "))
        })
    }

    /// The users samba lets in, by their numbers, if there are any.
    fn smb(&self) -> Answer<Option<String>> {
        let mut all = Vec::new();
        for entry in &self.permissions {
            let access = match (&entry["is_writable"], &entry["is_readonly"]) {
                (Value::Bool(true), _) => "F",
                (_, Value::Bool(true)) => "R",
                _ => continue,
            };
            let user = uid(entry["name"].as_str().unwrap_or_default())?;
            all.push(format!("S-1-22-1-{user}:{access}"));
        }
        Ok((!all.is_empty()).then(|| all.join(",")))
    }
}

/// One client with its options. csi: `PrivilegeRule`; `root` maps no user to another.
fn client(rule: &Value) -> Answer<String> {
    let unsupported = || Failed(format!("this rule of NFS is not made here: {rule}"));
    let name = rule["client"].as_str().ok_or_else(unsupported)?;
    let is_plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "*./:_-".contains(c));
    if !is_plain || rule["root_squash"] != "root" || rule["security_flavor"]["sys"] != true {
        return Err(unsupported());
    }
    let writes = if rule["privilege"] == "rw" {
        "rw"
    } else {
        "ro"
    };
    let mut options = vec![writes, "no_subtree_check", "no_root_squash"];
    options.push(if rule["async"] == true {
        "async"
    } else {
        "sync"
    });
    options.extend((rule["insecure"] == true).then_some("insecure"));
    options.extend((rule["crossmnt"] == true).then_some("crossmnt"));
    Ok(format!("{name}({})", options.join(",")))
}

/// The number of a user of this machine.
fn uid(user: &str) -> Answer<String> {
    let file = fs::read_to_string("/etc/passwd");
    let file = file.map_err(|error| Failed(format!("/etc/passwd: {error}")))?;
    let found = file.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        (name == user).then(|| rest.split(':').nth(1).map(str::to_owned))?
    });
    found.ok_or_else(|| Failed(format!("there is no user {user} on this machine")))
}
