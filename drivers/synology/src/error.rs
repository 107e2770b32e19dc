//! Errors of DSM, and their meaning for a caller.
//!
//! The codes are those of Synology's login guide, of its CSI driver and of democratic-csi; the
//! simulator (`integration/synology-sim/src/failure.rs`) names the source of each.

use driver_core::{Call, Effect, Error, Kind};

use crate::client::Request;

const SPACE: &str = "free space on the volume, or choose another with synology.volume";
const MODEL: &str = "the most depends on the model; delete some that are not needed";
const VOLUME: &str = "check synology.volume, and the volume in Storage Manager";
/// What DSM does not find was there a moment ago, or is asked for in a list: nothing is known of the volume.
const AGAIN: &str = "try again";

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
    #[error("{0} does not answer as the web API of DSM")]
    Foreign(String),
    /// An answer of the web API that cannot be used.
    #[error("{0} gives an answer that is not understood: {1}")]
    Odd(String, String),
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
    /// The NAS blocks the address after too many failed logins: no word about this one.
    pub(crate) const BLOCKED: Self = Self(407);
    /// No such volume, where a volume is asked for.
    pub(crate) const NO_VOLUME: Self = Self(117);
    pub(crate) const NO_SHARE: Self = Self(402);
    pub(crate) const UNKNOWN: Self = Self(100);
    pub(crate) const NO_PERMISSION: Self = Self(105);
    /// The copy of a shared folder was refused: its source, or the snapshot, is not there.
    pub(crate) const SHARE_FAILED: Self = Self(3300);
    pub(crate) const LUN_EXISTS: Self = Self(18_990_538);
    pub(crate) const BAD_LUN_TYPE: Self = Self(18_990_500);

    /// Whether the session has ended for certain.
    pub(crate) fn ends_session(self) -> bool {
        matches!(self.0, 106 | 107) || self == Self::NO_SESSION
    }

    /// Whether it says that a LUN is not there.
    pub(crate) fn is_no_lun(self) -> bool {
        matches!(self.0, 18_990_505 | 18_990_531)
    }

    /// Whether it says that a target is not there.
    pub(crate) fn is_no_target(self) -> bool {
        self.0 == 18_990_710
    }

    fn known(self) -> Option<(Kind, &'static str, &'static str)> {
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
            402 => (Kind::Unreachable, "no such shared folder", AGAIN),
            403 => (Kind::Invalid, "a value is not allowed", ""),
            2301 | 2370 | 2371 => (
                Kind::Unreachable,
                "the rules of NFS cannot be changed now",
                AGAIN,
            ),
            3300..=3399 => return self.known_of_shares(),
            18_990_000.. => return self.known_of_luns(),
            _ => return None,
        })
    }

    fn known_of_luns(self) -> Option<(Kind, &'static str, &'static str)> {
        Some(match self.0 {
            18_990_002 => (Kind::OutOfSpace, "the volume is out of space", SPACE),
            18_990_068 | 18_990_503 => (
                Kind::Invalid,
                "the name is not allowed",
                "see iscsi.namePrefix and nameSuffix",
            ),
            18_990_318 => (
                Kind::Internal,
                "the LUN cannot be made on that filesystem",
                "the volume may be full or read-only; on Btrfs lunTemplate.type is BLUN or BLUN_THICK, on ext4 THIN or FILE",
            ),
            18_990_500 => (
                Kind::Invalid,
                "the type of LUN is wrong for that",
                "see lunTemplate.type; thick LUNs have no snapshots",
            ),
            18_990_501 => (
                Kind::Unreachable,
                "the NAS does not find the volume",
                VOLUME,
            ),
            18_990_502 => (
                Kind::OutOfRange,
                "the size of the LUN is not allowed",
                "DSM makes LUNs of 1 GiB and more",
            ),
            18_990_505 | 18_990_531 => (Kind::Unreachable, "no such LUN", AGAIN),
            18_990_004 => (Kind::Unreachable, "no such object", AGAIN),
            18_990_513 => (Kind::Conflict, "a snapshot of that name exists", ""),
            18_990_540 => (
                Kind::Busy,
                "the snapshot cannot be deleted now",
                "look at it in SAN Manager: it may be in use, or protected",
            ),
            18_990_570 => (
                Kind::Internal,
                "the LUN cannot be loaded",
                "a LUN of the type ADV needs 10 GiB; delete it, and use THIN on ext4",
            ),
            18_990_622 => (
                Kind::Invalid,
                "the attributes of the LUN are not allowed",
                "see dev_attribs in lunTemplate",
            ),
            18_990_508 => (Kind::Internal, "a parameter is missing", ""),
            18_990_532 => (Kind::Unreachable, "no such snapshot", AGAIN),
            18_990_538 => (Kind::Conflict, "a LUN of that name exists", ""),
            18_990_541 => (Kind::OutOfSpace, "the NAS has the most LUNs", MODEL),
            18_990_543 => (Kind::OutOfSpace, "the LUN has the most snapshots", MODEL),
            18_990_635 => (
                Kind::Invalid,
                "the I/O policy is not allowed",
                "see lunTemplate",
            ),
            _ => return self.known_of_targets(),
        })
    }

    fn known_of_targets(self) -> Option<(Kind, &'static str, &'static str)> {
        Some(match self.0 {
            18_990_542 => (
                Kind::OutOfSpace,
                "the NAS has the most targets",
                "with `iscsi.mode: shared-target` many LUNs need one target",
            ),
            18_990_700 => (
                Kind::Invalid,
                "the name of the target is not allowed",
                "see iscsi.namePrefix and nameSuffix",
            ),
            18_990_702 => (
                Kind::Invalid,
                "the authentication of the target is not allowed",
                "auth_type in targetTemplate is 0, 1 or 2",
            ),
            18_990_708 => (
                Kind::Invalid,
                "the CHAP credentials are not allowed",
                "user and password are needed, and DSM takes passwords of 12 to 16 characters",
            ),
            18_990_710 => (Kind::Unreachable, "no such target", AGAIN),
            18_990_722 | 18_990_724 => (
                Kind::Unreachable,
                "the NAS cannot read the target or its configuration",
                AGAIN,
            ),
            18_990_744 => (Kind::Conflict, "a target of that name exists", ""),
            18_990_745 => (Kind::Conflict, "a target of that IQN exists", ""),
            _ => return None,
        })
    }

    fn known_of_shares(self) -> Option<(Kind, &'static str, &'static str)> {
        Some(match self.0 {
            3300 => (
                Kind::Internal,
                "the shared folder is refused: its location, or a parameter",
                VOLUME,
            ),
            3301 => (Kind::Conflict, "a shared folder of that name exists", ""),
            3304 | 3313 => (
                Kind::Unreachable,
                "the NAS does not find the volume",
                VOLUME,
            ),
            3305 | 3312 | 3319 => (Kind::Conflict, "the name is taken or reserved", ""),
            3309 => (
                Kind::OutOfSpace,
                "the NAS has the most shared folders",
                MODEL,
            ),
            3314 => (
                Kind::Unreachable,
                "the volume is read-only",
                "look at it in Storage Manager",
            ),
            3320 => (Kind::OutOfSpace, "the volume is out of space", SPACE),
            3328 | 3330 | 3332 | 3336 => {
                (Kind::Unreachable, "the NAS is busy with shared folders", "")
            }
            3329 => (
                Kind::OutOfSpace,
                "the shared folder has the most snapshots",
                MODEL,
            ),
            3337 => (Kind::Busy, "the shared folder is preserved", ""),
            3341 => (Kind::OutOfRange, "the quota is not allowed", ""),
            3350 => (
                Kind::Busy,
                "the snapshot is immutable",
                "its protection ends by itself",
            ),
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
            Self::Login(Code::BLOCKED) | Self::LoginRefusedBefore(Code::BLOCKED) => {
                Kind::Unreachable
            }
            Self::Login(_) | Self::LoginRefusedBefore(_) => Kind::Denied,
            Self::NoConnection(..)
            | Self::Cut(..)
            | Self::Late(..)
            | Self::Status(..)
            | Self::Redirect(_) => Kind::Unreachable,
            Self::NoTime => Kind::Timeout,
            Self::Odd(..) | Self::Foreign(_) => Kind::Internal,
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
            Self::Status(..) | Self::Foreign(_) => {
                "check that httpConnection.port is that of DSM (5000, with TLS 5001)"
            }
            Self::NoApi(_) => {
                "install or start the package on the NAS (SAN Manager, before DSM 7 iSCSI Manager)"
            }
            Self::Cut(..) | Self::Late(..) | Self::NoTime | Self::Odd(..) | Self::Config(_) => "",
        }
    }

    /// With the name of the call whose answer is not understood.
    pub(crate) fn naming(self, request: &Request) -> Self {
        match self {
            Self::Odd(address, why) => Self::Odd(address, format!("{}: {why}", request.name())),
            other => other,
        }
    }

    /// As an error of `call`, which was doing that.
    pub(crate) fn while_doing(self, call: &Call, doing: impl Into<String>) -> Error {
        let effect = match self {
            // A call of a moment ago may be at work in the NAS.
            Self::Login(Code::BLOCKED) | Self::LoginRefusedBefore(Code::BLOCKED) => {
                Effect::Possible
            }
            _ => call.effect(),
        };
        let error = Error::new(self.kind(), doing).with_effect(effect);
        let error = match self.advice() {
            "" => error,
            advice => error.advise(advice),
        };
        error.because(self)
    }
}

/// The outcome of a change. A refusal proves nothing: `look` says whether the change was made all the same. A success is
/// believed, without a look.
pub(crate) async fn unless_done(
    call: &Call,
    doing: &str,
    changed: Result<(), Failure>,
    look: impl Future<Output = Result<bool, Failure>>,
) -> Result<(), Error> {
    let Err(refusal) = changed else {
        return Ok(());
    };
    match look.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(refusal.while_doing(call, doing)),
        Err(failure) => {
            let why =
                format!("{refusal}; whether it was done all the same is not known: {failure}");
            Err(failure.while_doing(call, doing).because(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_refusal_is_not_lost_where_the_look_fails_too() {
        let call = Call::within(Duration::from_mins(1));
        let refused = Err(Failure::Refused(Code::NO_PERMISSION));
        let look = async { Err(Failure::NoTime) };
        let outcome = unless_done(&call, "delete snapshot `s`", refused, look).await;
        let error = outcome.expect_err("nothing is known");
        assert_eq!(error.kind(), Kind::Timeout);
        let text = error.chain();
        for part in [
            "delete snapshot `s`: DSM refuses with code 105",
            "the time of this call is over",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
