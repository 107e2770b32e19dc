//! Errors of DSM, and their meaning for a caller.
//!
//! The codes are those of Synology's login guide, of its CSI driver and of democratic-csi; the
//! simulator (`integration/synology-sim/src/failure.rs`) names the source of each.

use driver_core::{Call, Error, Kind};

/// A code of DSM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i64);

/// Why a call gave no answer, or none that can be used. No text of it holds a parameter.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// DSM refused.
    #[error("DSM refuses with code {}: {}", .0.0, .0.text())]
    Refused(Code),
    /// DSM refused the login.
    #[error("DSM refuses the login with code {}: {}", .0.0, .0.login_text())]
    Login(Code),
    /// The login was refused a short while ago.
    #[error("DSM has refused the login with code {}: {}", .0.0, .0.login_text())]
    LoginRefusedBefore(Code),
    /// No connection, so nothing was asked.
    #[error("no connection to {0}: {1}")]
    NoConnection(String, String),
    /// The connection ended before the answer.
    #[error("the connection to {0} ended before the answer: {1}")]
    Cut(String, String),
    /// No answer in time.
    #[error("{0} did not answer within {1} seconds")]
    Late(String, u64),
    /// The call has no time left.
    #[error("the time of this call is over")]
    NoTime,
    /// Not the web API.
    #[error("{0} answers with HTTP status {1}")]
    Status(String, u16),
    /// It wants to be asked elsewhere.
    #[error("{0} redirects to another address")]
    Redirect(String),
    /// An answer that is not of the web API.
    #[error("{0} gives an answer that is not understood: {1}")]
    Odd(String, &'static str),
    /// An API that this NAS does not have.
    #[error("this NAS has no {0}")]
    NoApi(&'static str),
    /// A configuration that cannot be used.
    #[error("{0}")]
    Config(String),
}

impl Code {
    /// guide: the session is not known.
    pub(crate) const NO_SESSION: Self = Self(119);
    /// No such volume, where a volume is asked for.
    pub(crate) const NO_VOLUME: Self = Self(117);
    pub(crate) const NO_SHARE: Self = Self(402);

    /// Whether the session has ended. 105 is also the answer to an account without permission, and to a
    /// missing token: a new login tells them apart.
    pub(crate) fn ends_session(self) -> bool {
        matches!(self.0, 105..=107) || self == Self::NO_SESSION
    }

    fn known(self) -> Option<(Kind, &'static str, &'static str)> {
        const SPACE: &str = "free space on the volume, or choose another with synology.volume";
        const MODEL: &str = "the most depends on the model; delete some that are not needed";
        Some(match self.0 {
            100 => (
                Kind::Internal,
                "unknown error",
                "look into the log of the NAS",
            ),
            101 => (Kind::Internal, "a parameter is missing or wrong", ""),
            102 => (
                Kind::Internal,
                "it has no such API",
                "install or start SAN Manager (before DSM 7: iSCSI Manager)",
            ),
            103 | 104 => (
                Kind::Internal,
                "it has no such method in this version",
                "this DSM is not supported",
            ),
            105 => (
                Kind::Denied,
                "no permission",
                "the account has to be an administrator of the NAS",
            ),
            106 | 107 | 119 => (Kind::Unreachable, "the session has ended", ""),
            109 | 110 | 111 | 117 | 118 => (Kind::Unreachable, "the NAS is busy", ""),
            402 => (Kind::NotFound, "no such shared folder", ""),
            403 => (Kind::Invalid, "a value is not allowed", ""),
            3300 => (Kind::NotFound, "the source to copy does not exist", ""),
            3301 => (Kind::Conflict, "a shared folder of that name exists", ""),
            3309 => (
                Kind::OutOfSpace,
                "the NAS has the most shared folders",
                MODEL,
            ),
            3328 => (Kind::Unreachable, "the NAS is busy with shared folders", ""),
            18_990_002 => (Kind::OutOfSpace, "the volume is out of space", SPACE),
            18_990_068 | 18_990_503 => (
                Kind::Invalid,
                "the name is not allowed",
                "see iscsi.namePrefix and nameSuffix",
            ),
            18_990_318 => (
                Kind::Invalid,
                "the type of LUN does not fit the filesystem of the volume",
                "on Btrfs lunTemplate.type is BLUN or BLUN_THICK, on ext4 THIN, ADV or FILE",
            ),
            18_990_500 => (
                Kind::Invalid,
                "the type of LUN is wrong for that",
                "see lunTemplate.type; thick LUNs have no snapshots",
            ),
            18_990_505 | 18_990_531 => (Kind::NotFound, "no such LUN", ""),
            18_990_508 => (Kind::Internal, "a parameter is missing", ""),
            18_990_532 => (Kind::NotFound, "no such snapshot", ""),
            18_990_538 => (Kind::Conflict, "a LUN of that name exists", ""),
            18_990_541 => (Kind::OutOfSpace, "the NAS has the most LUNs", MODEL),
            18_990_542 => (
                Kind::OutOfSpace,
                "the NAS has the most targets",
                "with `iscsi.mode: shared-target` many LUNs need one target",
            ),
            18_990_543 => (Kind::OutOfSpace, "the LUN has the most snapshots", MODEL),
            18_990_635 => (
                Kind::Invalid,
                "the I/O policy is not allowed",
                "see lunTemplate",
            ),
            18_990_708 => (
                Kind::Invalid,
                "the CHAP credentials are not allowed",
                "user and password are needed, and DSM takes passwords of 12 to 16 characters",
            ),
            18_990_710 => (Kind::NotFound, "no such target", ""),
            18_990_744 => (Kind::Conflict, "a target of that name exists", ""),
            _ => return None,
        })
    }

    fn text(self) -> &'static str {
        self.known()
            .map_or("not a code that is known", |known| known.1)
    }

    fn login_text(self) -> &'static str {
        match self.0 {
            400 => "the user or the password is wrong",
            401 => "the account is disabled",
            402 => "the account may not log in, or needs a second factor",
            403 | 404 | 406 => "the account needs a second factor",
            407 => "the NAS blocks this address after too many failed logins",
            408..=410 => "the password has expired",
            _ => self.text(),
        }
    }
}

impl Failure {
    /// The code with which DSM refused the call, if it did.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(code) => Some(*code),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Refused(code) => code.known().map_or(Kind::Internal, |known| known.0),
            Self::Login(_) | Self::LoginRefusedBefore(_) => Kind::Denied,
            Self::NoConnection(..)
            | Self::Cut(..)
            | Self::Late(..)
            | Self::Status(..)
            | Self::Redirect(_) => Kind::Unreachable,
            Self::NoTime => Kind::Timeout,
            Self::Odd(..) => Kind::Internal,
            Self::NoApi(_) => Kind::Unsupported,
            Self::Config(_) => Kind::Invalid,
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Self::Refused(code) => code.known().map_or(
                "look for the code in the log of the NAS, and tell us what it means",
                |known| known.2,
            ),
            Self::Login(code) | Self::LoginRefusedBefore(code) => match code.0 {
                407 => "take the address out of Control Panel, Security, Account, Auto Block",
                401..=406 => "use an account without a second factor that may log in to DSM",
                _ => {
                    "correct httpConnection.username and password; no further login is tried for three minutes, because DSM blocks addresses after a few"
                }
            },
            Self::NoConnection(..) => "check httpConnection: protocol, host, port and tls",
            Self::Redirect(_) => {
                "set httpConnection.protocol to https and the port to that of HTTPS, 5001 as a rule"
            }
            Self::Status(..) | Self::Odd(..) => {
                "check that httpConnection.port is that of DSM (5000, with TLS 5001)"
            }
            Self::NoApi(_) => {
                "install or start the package on the NAS (SAN Manager, before DSM 7 iSCSI Manager)"
            }
            Self::Cut(..) | Self::Late(..) | Self::NoTime | Self::Config(_) => "",
        }
    }

    /// As an error of `call` about an object that DSM has just listed. Then "not found" is not reliable.
    pub(crate) fn of_listed(self, call: &Call, doing: &str) -> Error {
        if self.kind() != Kind::NotFound {
            return self.while_doing(call, doing);
        }
        Error::new(Kind::Unreachable, doing)
            .with_effect(call.effect())
            .because(self)
            .advise("try again: DSM lists it, and does not find it when asked for its snapshots")
    }

    /// As an error of `call`, which was doing that.
    pub(crate) fn while_doing(self, call: &Call, doing: impl Into<String>) -> Error {
        let error = Error::new(self.kind(), doing).with_effect(call.effect());
        let error = match self.advice() {
            "" => error,
            advice => error.advise(advice),
        };
        error.because(self)
    }
}
