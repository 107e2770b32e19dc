//! The methods and fields of one release, read from `tables/*.tsv`.
//!
//! The tables hold facts: which methods a release has, their arguments, types, defaults, roles, job
//! locks. The first line of each names the release and the commit of the middleware that it was read
//! from. A method that is not in the table does not exist for the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::Value;

use crate::Generation;

/// The methods of one release.
#[derive(Debug)]
pub struct Table {
    /// The tag or branch of the middleware, and the commit.
    pub release: String,
    methods: BTreeMap<String, Method>,
    types: BTreeMap<String, Vec<Field>>,
    choices: BTreeMap<String, Vec<Value>>,
    roles: BTreeMap<String, Vec<String>>,
}

/// One method of the API.
#[derive(Debug)]
pub struct Method {
    /// Its full name.
    pub name: String,
    pub(crate) style: Style,
    pub(crate) access: Access,
    /// `Some` for methods that run as a job.
    pub(crate) job: Option<Lock>,
    /// The fields of the created object, where the release declares them.
    pub(crate) result: Vec<String>,
    /// The positional arguments.
    pub args: Vec<Field>,
}

/// Which of the two validators of the middleware checks a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `middlewared/schema.py`, all methods up to 24.10 and some of 25.04.
    Accepts,
    /// Models of `middlewared/api/`.
    Model,
}

#[derive(Debug)]
pub(crate) enum Access {
    /// No login is needed.
    NoLogin,
    /// Any login will do.
    Login,
    /// One of these roles, or full administration.
    Roles(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lock {
    None,
    Name(String),
    /// `prefix{args[n]}`.
    Argument(String, usize),
    /// `prefix{args[0]["path"]}`.
    Path(String),
}

/// An argument of a method or a field of an object.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Whether it may be absent, and what it is then.
    pub presence: Presence,
    pub(crate) ty: Type,
}

/// Whether a field may be absent.
#[derive(Debug, PartialEq)]
pub enum Presence {
    /// It must be given.
    Required,
    /// It may be absent and stays so.
    Optional,
    /// It may be absent and has this value then.
    Default(Value),
}

#[derive(Debug)]
pub(crate) enum Type {
    Any,
    Null,
    Bool,
    Map,
    Num,
    Int(Limits),
    Str(Limits),
    Choice(Vec<Value>),
    /// A list of choices that stands once in the table.
    Choices(String),
    Object(String),
    List(Box<Self>, Limits),
    Nullable(Box<Self>),
    Union(Vec<Self>),
    Tagged(String, BTreeMap<String, Self>),
}

/// The bounds of a number, a text or a list.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
    pub(crate) above: Option<i64>,
    pub(crate) below: Option<i64>,
    /// This value is allowed beside the bounds.
    pub(crate) or: Option<i64>,
    pub(crate) pattern: Option<String>,
    pub(crate) not_pattern: Option<String>,
    pub(crate) explanation: Option<String>,
}

impl Limits {
    pub(crate) fn bounded(&self) -> bool {
        self.min.is_some()
            || self.max.is_some()
            || self.above.is_some()
            || self.below.is_some()
            || self.pattern.is_some()
    }

    fn parse(value: Option<&Value>) -> Self {
        let Some(value) = value else {
            return Self::default();
        };
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| value.get(key).and_then(Value::as_i64);
        Self {
            min: number("min"),
            max: number("max"),
            above: number("gt"),
            below: number("lt"),
            or: number("or"),
            pattern: text("re"),
            not_pattern: text("not"),
            explanation: text("why"),
        }
    }
}

impl Table {
    /// The table of a generation, parsed once.
    pub fn of(generation: Generation) -> &'static Self {
        static TABLES: [OnceLock<Table>; 7] = [const { OnceLock::new() }; 7];
        let index = Generation::ALL
            .iter()
            .position(|each| *each == generation)
            .unwrap_or_default();
        TABLES[index].get_or_init(|| Self::parse(generation.table_text()))
    }

    /// The method of this name, if the release has it and the simulator knows it.
    pub fn method(&self, name: &str) -> Option<&Method> {
        self.methods.get(name)
    }

    /// The names of all methods.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// The fields of an object type.
    pub fn fields(&self, name: &str) -> &[Field] {
        self.types.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn choices(&self, name: &str) -> &[Value] {
        self.choices.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a role is named anywhere in this table.
    pub fn has_role(&self, role: &str) -> bool {
        let is = |known: &String| known == role;
        let needed = self.methods.values().any(|method| match &method.access {
            Access::Roles(roles) => roles.iter().any(is),
            Access::NoLogin | Access::Login => false,
        });
        let mut included = self.roles.values().flatten();
        role == "FULL_ADMIN" || needed || self.roles.contains_key(role) || included.any(is)
    }

    /// The roles given and all roles that these include.
    pub(crate) fn expand_roles(&self, roles: &[String]) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut open: Vec<String> = roles.to_vec();
        while let Some(role) = open.pop() {
            if let Some(includes) = self.roles.get(&role) {
                open.extend(includes.iter().filter(|each| !all.contains(*each)).cloned());
            }
            all.insert(role);
        }
        all
    }

    fn parse(text: &str) -> Self {
        let mut table = Self {
            release: String::new(),
            methods: BTreeMap::new(),
            types: BTreeMap::new(),
            choices: BTreeMap::new(),
            roles: BTreeMap::new(),
        };
        let mut owner = Owner::None;
        for line in text.lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            match columns.as_slice() {
                ["release", release, commit] => table.release = format!("{release} {commit}"),
                ["method", name, style, access, job, result] => {
                    table.methods.insert(
                        (*name).to_owned(),
                        Method::parse(name, style, access, job, result),
                    );
                    owner = Owner::Method((*name).to_owned());
                }
                ["type", name] => {
                    table.types.insert((*name).to_owned(), Vec::new());
                    owner = Owner::Type((*name).to_owned());
                }
                ["choices", name, list] => {
                    let list: Vec<Value> = serde_json::from_str(list).expect("a list of choices");
                    table.choices.insert((*name).to_owned(), list);
                }
                ["role", name, includes] => {
                    table.roles.insert(
                        (*name).to_owned(),
                        includes.split(',').map(str::to_owned).collect(),
                    );
                }
                ["", name, presence, ty] => {
                    let field = Field::parse(name, presence, ty);
                    match &owner {
                        Owner::Method(method) => {
                            table
                                .methods
                                .get_mut(method)
                                .expect("the method")
                                .args
                                .push(field);
                        }
                        Owner::Type(name) => {
                            table.types.get_mut(name).expect("the type").push(field);
                        }
                        Owner::None => panic!("a field of nothing: {line}"),
                    }
                }
                ["same", _] => {}
                _ => panic!("no such line in a table: {line}"),
            }
        }
        table
    }
}

enum Owner {
    None,
    Method(String),
    Type(String),
}

impl Method {
    fn parse(name: &str, style: &str, access: &str, job: &str, result: &str) -> Self {
        Self {
            name: name.to_owned(),
            style: if style == "pydantic" {
                Style::Model
            } else {
                Style::Accepts
            },
            access: match access {
                "none" => Access::NoLogin,
                "login" => Access::Login,
                roles => Access::Roles(list(roles.strip_prefix("roles:").unwrap_or(roles))),
            },
            job: job.strip_prefix("job:").map(Lock::parse),
            result: list(result),
            args: Vec::new(),
        }
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',')
        .filter(|each| !each.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Lock {
    fn parse(text: &str) -> Self {
        match text.strip_prefix('~') {
            None if text.is_empty() => Self::None,
            None => Self::Name(text.to_owned()),
            // `filesystem.setperm` and its kin of 26 have one lock for each path.
            Some("path") => Self::Path("perm_change:".to_owned()),
            Some(computed) => match computed.split_once("{args[") {
                Some((prefix, rest)) => Self::Argument(
                    prefix.to_owned(),
                    rest.trim_end_matches("]}").parse().unwrap_or_default(),
                ),
                None => Self::Name(computed.to_owned()),
            },
        }
    }

    /// The lock that a call with these arguments takes.
    pub(crate) fn key(&self, params: &[Value]) -> Option<String> {
        match self {
            Self::None => None,
            Self::Name(name) => Some(name.clone()),
            Self::Argument(prefix, index) => {
                let argument = params.get(*index).map(|value| {
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned)
                });
                Some(format!("{prefix}{}", argument.unwrap_or_default()))
            }
            Self::Path(prefix) => {
                let path = params.first().and_then(|data| data.get("path"));
                let path = path.and_then(Value::as_str).unwrap_or_default();
                Some(format!("{prefix}{}", path.trim_end_matches('/')))
            }
        }
    }
}

impl Field {
    fn parse(name: &str, presence: &str, ty: &str) -> Self {
        let presence = match presence {
            "!" => Presence::Required,
            "?" => Presence::Optional,
            default => Presence::Default(
                serde_json::from_str(default.trim_start_matches('='))
                    .expect("a default value in a table"),
            ),
        };
        let ty: Value = serde_json::from_str(ty).expect("a type in a table");
        Self {
            name: name.to_owned(),
            presence,
            ty: Type::parse(&ty),
        }
    }
}

impl Type {
    fn parse(value: &Value) -> Self {
        match value {
            Value::String(name) => match name.as_str() {
                "any" => Self::Any,
                "null" => Self::Null,
                "bool" => Self::Bool,
                "map" => Self::Map,
                "num" => Self::Num,
                "int" => Self::Int(Limits::default()),
                "str" => Self::Str(Limits::default()),
                other => match other.strip_prefix('#') {
                    Some(name) if name.starts_with("Choices") => Self::Choices(name.to_owned()),
                    Some(name) => Self::Object(name.to_owned()),
                    None => panic!("no such type: {other}"),
                },
            },
            Value::Array(parts) => Self::parse_compound(parts),
            other => panic!("no such type: {other}"),
        }
    }

    fn parse_compound(parts: &[Value]) -> Self {
        let limits = |index: usize| Limits::parse(parts.get(index));
        match parts[0].as_str().unwrap_or_default() {
            "int" => Self::Int(limits(1)),
            "num" => Self::Num,
            "str" => Self::Str(limits(1)),
            "enum" => Self::Choice(parts[1..].to_vec()),
            "list" => Self::List(Box::new(Self::parse(&parts[1])), limits(2)),
            "opt" => Self::Nullable(Box::new(Self::parse(&parts[1]))),
            "or" => Self::Union(parts[1..].iter().map(Self::parse).collect()),
            "tag" => {
                let Value::Object(branches) = &parts[2] else {
                    panic!("a tagged union without branches")
                };
                let branches = branches
                    .iter()
                    .map(|(tag, ty)| (tag.clone(), Self::parse(ty)))
                    .collect();
                Self::Tagged(parts[1].as_str().unwrap_or_default().to_owned(), branches)
            }
            other => panic!("no such type: {other}"),
        }
    }
}
