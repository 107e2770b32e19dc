//! Access control lists as `datasetPermissionsAcls` has them, the arguments of `setfacl`, in the form of the
//! API. compat: "TrueNAS".
//!
//! Understood is `-m` with entries of NFS 4 (`u:kube:full_set:fd:allow`) or POSIX (`d:u:kube:rwx`).

use serde_json::{Map, Value, json};

use crate::api::filesystem::AclKind;

/// The bits of NFS 4, by their letters.
const BITS: [(char, &str); 14] = [
    ('r', "READ_DATA"),
    ('w', "WRITE_DATA"),
    ('x', "EXECUTE"),
    ('p', "APPEND_DATA"),
    ('D', "DELETE_CHILD"),
    ('d', "DELETE"),
    ('a', "READ_ATTRIBUTES"),
    ('A', "WRITE_ATTRIBUTES"),
    ('R', "READ_NAMED_ATTRS"),
    ('W', "WRITE_NAMED_ATTRS"),
    ('c', "READ_ACL"),
    ('C', "WRITE_ACL"),
    ('o', "WRITE_OWNER"),
    ('s', "SYNCHRONIZE"),
];
/// The names that `setfacl` of FreeBSD has for these sets.
const SETS: [(&str, &str); 4] = [
    ("full_set", "rwxpDdaARWcCos"),
    ("modify_set", "rwxpDdaARWcs"),
    ("read_set", "raRc"),
    ("write_set", "wpAW"),
];
const FLAGS: [(char, &str); 5] = [
    ('f', "FILE_INHERIT"),
    ('d', "DIRECTORY_INHERIT"),
    ('i', "INHERIT_ONLY"),
    ('n', "NO_PROPAGATE_INHERIT"),
    ('I', "INHERITED"),
];
/// Of no one in particular.
const NO_ID: i64 = -1;

/// Entries to be set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Acl {
    /// The kind of the list that they are entries of.
    pub(crate) kind: AclKind,
    entries: Vec<Value>,
}

impl Acl {
    /// Reads the arguments of one call of `setfacl`.
    pub(crate) fn parse(arguments: &[String]) -> Option<Self> {
        let [flag, list] = arguments else { return None };
        let nfs4 = list.ends_with(":allow") || list.ends_with(":deny");
        let (kind, read): (_, fn(&str) -> Option<Value>) = if nfs4 {
            (AclKind::Nfs4, of_nfs4)
        } else {
            (AclKind::Posix1e, of_posix)
        };
        let entries = list.split(',').map(read).collect::<Option<Vec<_>>>()?;
        (flag == "-m").then_some(Self { kind, entries })
    }

    /// Whether an entry has a name instead of a number.
    pub(crate) fn has_names(&self) -> bool {
        self.entries.iter().any(|entry| entry.get("who").is_some())
    }

    /// The list after the change: an entry replaces the one of the same holder, or comes first.
    pub(crate) fn over(&self, current: &[Value]) -> Vec<Value> {
        let mut list: Vec<Value> = current.iter().map(known).collect();
        for entry in self.entries.iter().rev() {
            match list.iter().position(|other| is_same(entry, other)) {
                Some(at) => list[at].clone_from(entry),
                None => list.insert(0, entry.clone()),
            }
        }
        if self.kind == AclKind::Posix1e {
            complete(&mut list);
            for default in [false, true] {
                let mut own = self
                    .entries
                    .iter()
                    .filter(|entry| entry["default"] == default)
                    .peekable();
                if own.peek().is_some() && !own.any(|entry| entry["tag"] == "MASK") {
                    set_mask(&mut list, default);
                }
            }
        }
        list
    }

    /// The list in the form that is sent: a number is enough where there is one.
    pub(crate) fn sent(mut list: Vec<Value>) -> Vec<Value> {
        for entry in list.iter_mut().filter_map(Value::as_object_mut) {
            if entry.get("id") != Some(&json!(NO_ID)) {
                entry.remove("who");
            }
        }
        list
    }
}

/// The fields of an entry that are sent again. The names of the special ones do not count.
fn known(entry: &Value) -> Value {
    const KEPT: [&str; 7] = ["tag", "id", "type", "perms", "flags", "default", "who"];
    let mut kept = Map::new();
    for (key, value) in entry.as_object().into_iter().flatten() {
        if KEPT.contains(&key.as_str()) && !value.is_null() {
            kept.insert(key.clone(), value.clone());
        }
    }
    let special = !matches!(entry["tag"].as_str(), Some("USER" | "GROUP"));
    if special {
        kept.remove("who");
    }
    kept.entry("id").or_insert_with(|| json!(NO_ID));
    Value::Object(kept)
}

fn is_same(entry: &Value, other: &Value) -> bool {
    let equal = |key: &str| entry.get(key) == other.get(key);
    let holder = match entry.get("who") {
        Some(name) => other.get("who") == Some(name),
        None => equal("id"),
    };
    equal("tag") && equal("type") && equal("default") && holder
}

/// The holder at the front of an entry, and the rest.
fn holder<'a>(fields: &[&'a str]) -> Option<(Map<String, Value>, Vec<&'a str>)> {
    let (&first, rest) = fields.split_first()?;
    let tag = match first {
        "u" | "user" => "USER",
        "g" | "group" => "GROUP",
        _ => return None,
    };
    let (&name, rest) = rest.split_first()?;
    let mut entry = Map::new();
    entry.insert("tag".to_owned(), json!(tag));
    entry.insert("id".to_owned(), json!(name.parse().unwrap_or(NO_ID)));
    if name.parse::<i64>().is_err() {
        entry.insert("who".to_owned(), json!(name));
    }
    Some((entry, rest.to_vec()))
}

fn bits(letters: &str, all: &[(char, &str)]) -> Option<Value> {
    let is_known = |c: char| c == '-' || all.iter().any(|(letter, _)| *letter == c);
    if !letters.chars().all(is_known) {
        return None;
    }
    let bit =
        |(letter, name): &(char, &str)| ((*name).to_owned(), json!(letters.contains(*letter)));
    Some(Value::Object(all.iter().map(bit).collect()))
}

/// `who:permissions[:flags]:allow`.
fn of_nfs4(text: &str) -> Option<Value> {
    let fields: Vec<&str> = text.split(':').collect();
    let special = ["owner@", "group@", "everyone@"];
    let (mut entry, rest) = match fields.split_first() {
        Some((first, rest)) if special.contains(first) => {
            let entry = Map::from_iter([("tag", json!(first)), ("id", json!(NO_ID))].map(own));
            (entry, rest.to_vec())
        }
        _ => holder(&fields)?,
    };
    let (permissions, flags, kind) = match rest.as_slice() {
        [permissions, kind] => (*permissions, "", *kind),
        [permissions, flags, kind] => (*permissions, *flags, *kind),
        _ => return None,
    };
    let kind = match kind {
        "allow" => "ALLOW",
        // The API refuses it for the special ones.
        "deny" if !entry["tag"].as_str()?.ends_with('@') => "DENY",
        _ => return None,
    };
    let set = SETS.iter().find(|(name, _)| *name == permissions);
    let letters = set.map_or(permissions, |(_, letters)| letters);
    entry.insert("perms".to_owned(), bits(letters, &BITS)?);
    entry.insert("flags".to_owned(), bits(flags, &FLAGS)?);
    entry.insert("type".to_owned(), json!(kind));
    Some(Value::Object(entry))
}

fn own((name, value): (&str, Value)) -> (String, Value) {
    (name.to_owned(), value)
}

/// `[d:]who:rwx`, the holder empty for the owner.
fn of_posix(text: &str) -> Option<Value> {
    let mut fields: Vec<&str> = text.split(':').collect();
    let default = ["d", "default"].contains(fields.first()?);
    if default {
        fields.remove(0);
    }
    let special = match fields.as_slice() {
        ["u" | "user", "", _] => Some("USER_OBJ"),
        ["g" | "group", "", _] => Some("GROUP_OBJ"),
        ["o" | "other", "", _] | ["o" | "other", _] => Some("OTHER"),
        ["m" | "mask", "", _] | ["m" | "mask", _] => Some("MASK"),
        _ => None,
    };
    let (mut entry, rest) = match special {
        Some(tag) => {
            let entry = Map::from_iter([("tag", json!(tag)), ("id", json!(NO_ID))].map(own));
            (entry, vec![*fields.last()?])
        }
        None => holder(&fields)?,
    };
    let [letters] = rest.as_slice() else {
        return None;
    };
    entry.insert("perms".to_owned(), bits(letters, &RWX)?);
    entry.insert("default".to_owned(), json!(default));
    Some(Value::Object(entry))
}

const RWX: [(char, &str); 3] = [('r', "READ"), ('w', "WRITE"), ('x', "EXECUTE")];

/// Adds the entries that the API wants in a list of POSIX: those of owner, group and others in each half.
fn complete(list: &mut Vec<Value>) {
    for default in [false, true] {
        let half: Vec<Value> = list
            .iter()
            .filter(|entry| entry["default"] == default)
            .cloned()
            .collect();
        let has = |tag: &str| half.iter().any(|entry| entry["tag"] == tag);
        if half.is_empty() {
            continue;
        }
        for tag in ["USER_OBJ", "GROUP_OBJ", "OTHER"]
            .into_iter()
            .filter(|tag| !has(tag))
        {
            let access = list
                .iter()
                .find(|entry| entry["tag"] == tag && entry["default"] == false);
            if let Some(mut entry) = access.cloned() {
                entry["default"] = json!(default);
                list.push(entry);
            }
        }
    }
}

/// As `setfacl` does where the entries name no mask: it lets through all that the group and those who are
/// named may.
fn set_mask(list: &mut Vec<Value>, default: bool) {
    let named = |entry: &Value| matches!(entry["tag"].as_str(), Some("USER" | "GROUP"));
    let half: Vec<&Value> = list
        .iter()
        .filter(|entry| entry["default"] == default)
        .collect();
    let may = |bit: &str| {
        half.iter()
            .filter(|entry| named(entry) || entry["tag"] == "GROUP_OBJ")
            .any(|entry| entry["perms"][bit] == true)
    };
    let perms: Map<String, Value> = RWX
        .iter()
        .map(|(_, bit)| own((bit, json!(may(bit)))))
        .collect();
    let is_named = half.iter().any(|entry| named(entry));
    let mask = list
        .iter_mut()
        .find(|entry| entry["default"] == default && entry["tag"] == "MASK");
    match mask {
        Some(mask) => mask["perms"] = Value::Object(perms),
        None if is_named => {
            list.push(json!({"tag": "MASK", "id": NO_ID, "default": default, "perms": perms}));
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entry: &str) -> Option<Acl> {
        Acl::parse(&["-m".to_owned(), entry.to_owned()])
    }

    fn set(perms: &Value) -> Vec<&str> {
        let all = perms.as_object().expect("an object").iter();
        all.filter(|(_, value)| **value == true)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    #[test]
    fn the_entries_of_the_examples_are_understood() {
        let everyone = parse("everyone@:full_set:fd:allow").expect("understood");
        assert_eq!(everyone.kind, AclKind::Nfs4);
        let entry = &everyone.entries[0];
        assert_eq!(entry["tag"], "everyone@");
        assert_eq!(entry["type"], "ALLOW");
        assert_eq!(set(&entry["perms"]).len(), 14);
        assert_eq!(set(&entry["flags"]), ["DIRECTORY_INHERIT", "FILE_INHERIT"]);
        let group = &parse("g:builtin_users:modify_set:allow").expect("understood");
        assert_eq!(group.entries[0]["who"], "builtin_users");
        assert!(group.has_names());
        assert_eq!(set(&group.entries[0]["flags"]), Vec::<&str>::new());
        let user = parse("u:1000:r-x---a-R-c---:deny").expect("understood");
        assert_eq!(user.entries[0]["id"], 1000);
        assert!(!user.has_names());
        assert_eq!(
            parse("u:kube:rwx,d:u:kube:r-x")
                .expect("understood")
                .entries
                .len(),
            2
        );
    }

    #[test]
    fn what_the_api_has_no_words_for_is_not_understood() {
        for entry in [
            "everyone@:full_set:deny",
            "everyone@:read_data/execute:allow",
            "u:kube:full_set:q:allow",
            "u:kube",
            "",
            "u:kube:rwq",
        ] {
            assert_eq!(parse(entry), None, "{entry}");
        }
        for flag in ["-b", "-x", "-a"] {
            assert_eq!(
                Acl::parse(&[flag.to_owned(), "u:kube:rwx".to_owned()]),
                None
            );
        }
    }

    #[test]
    fn an_entry_replaces_that_of_the_same_holder_and_comes_first_otherwise() {
        let acl = parse("u:kube:full_set:allow").expect("understood");
        let owner = json!({"tag": "owner@", "id": -1, "who": null, "type": "ALLOW", "perms": {"BASIC": "READ"}, "flags": {"BASIC": "INHERIT"}});
        let first = acl.over(std::slice::from_ref(&owner));
        assert_eq!(first.len(), 2);
        assert_eq!(first[0]["who"], "kube");
        // As it comes back: the name has a number.
        let mut back = first.clone();
        back[0]["id"] = json!(3000);
        back[0]["perms"] = json!({"BASIC": "READ"});
        let again = acl.over(&back);
        assert_eq!(again.len(), 2);
        assert_eq!(again[0]["perms"], first[0]["perms"]);
        assert_eq!(Acl::sent(vec![back[0].clone()])[0].get("who"), None);
    }

    #[test]
    fn a_list_of_posix_is_complete() {
        let perms = json!({"READ": true, "WRITE": false, "EXECUTE": true});
        let trivial = ["USER_OBJ", "GROUP_OBJ", "OTHER"]
            .map(|tag| json!({"tag": tag, "id": -1, "default": false, "perms": perms}));
        let acl = parse("u:1000:rwx,d:u:1000:rwx").expect("understood");
        let list = acl.over(&trivial);
        let tags = |default: bool| {
            let half = list.iter().filter(|entry| entry["default"] == default);
            let mut tags: Vec<&str> = half.filter_map(|entry| entry["tag"].as_str()).collect();
            tags.sort_unstable();
            tags
        };
        for default in [false, true] {
            let all = ["GROUP_OBJ", "MASK", "OTHER", "USER", "USER_OBJ"];
            assert_eq!(tags(default), all, "{default}");
        }
        let mask = list
            .iter()
            .find(|entry| entry["tag"] == "MASK")
            .expect("a mask");
        assert_eq!(set(&mask["perms"]).len(), 3);
        assert_eq!(acl.over(&list), list, "a second time changes nothing");
    }

    #[test]
    fn a_mask_that_is_there_lets_a_new_entry_through() {
        let perms = json!({"READ": true, "WRITE": false, "EXECUTE": true});
        let half = |default: bool| {
            ["USER_OBJ", "GROUP_OBJ", "MASK", "OTHER"]
                .map(|tag| json!({"tag": tag, "id": -1, "default": default, "perms": perms}))
        };
        let inherited = [half(false), half(true)].concat();
        let mask = |entries: &str, default: bool| {
            let list = parse(entries).expect("understood").over(&inherited);
            let is_mask = |entry: &&Value| entry["tag"] == "MASK" && entry["default"] == default;
            let masks: Vec<&Value> = list.iter().filter(is_mask).collect();
            assert_eq!(masks.len(), 1, "{entries}");
            set(&masks[0]["perms"]).len()
        };
        // Each half on its own: the other one stays.
        assert_eq!(mask("u:1000:rwx", false), 3);
        assert_eq!(mask("u:1000:rwx", true), 2);
        assert_eq!(mask("d:u:1000:rwx", false), 2);
        assert_eq!(mask("d:u:1000:rwx", true), 3);
        // A mask that is named is the mask.
        assert_eq!(mask("u:1000:rwx,m::r--", false), 1);
        assert_eq!(mask("u:1000:rwx,d:u:1000:rwx,d:m::r--", true), 1);
        assert_eq!(mask("u:1000:rwx,d:u:1000:rwx,d:m::r--", false), 3);
    }
}
