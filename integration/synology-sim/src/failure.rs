//! The codes with which DSM refuses.

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i64,
    /// A mistake of the client that DSM might let pass, and the simulator does not.
    pub(crate) strict: Option<String>,
}

// === impl Failure ===

impl Failure {
    pub(crate) fn of(code: i64) -> Self {
        Self { code, strict: None }
    }

    pub(crate) fn strict(code: i64, why: impl Into<String>) -> Self {
        Self {
            code,
            strict: Some(why.into()),
        }
    }
}

/// Codes, each with where its meaning was read.
///
/// - guide: Synology, DSM Login Web API Guide, "Common error codes" and `SYNO.API.Auth`
/// - csi: SynologyOpenSource/synology-csi, pkg/dsm/webapi
/// - dcsi: democratic-csi, src/driver/controller-synology/http/index.js
/// - pve: jasoncheng7115/jt-pve-storage-synology, lib/.../Synology/API.pm and docs/TESTING.md, where
///   it says "observed" on a DS918+ with DSM 7.1.1
/// - n4s4: N4S4/synology-api, `error_codes.py`
/// - cinder: Cinder of `OpenStack`, `synology_common.py`
pub(crate) mod code {
    /// guide: unknown error; here what the storage of this machine did not do.
    pub(crate) const UNKNOWN: i64 = 100;
    /// guide: no parameter of API, method or version; here for every malformed parameter, too.
    pub(crate) const PARAMETER: i64 = 101;
    /// guide.
    pub(crate) const NO_API: i64 = 102;
    /// guide.
    pub(crate) const NO_METHOD: i64 = 103;
    /// guide.
    pub(crate) const NO_VERSION: i64 = 104;
    /// guide, csi. pve: also where the anti-CSRF token is missing.
    pub(crate) const NO_PERMISSION: i64 = 105;
    /// pve: a volume that is not there (observed on 7.1.1 and 7.3.2).
    pub(crate) const NO_VOLUME: i64 = 117;
    /// guide, csi, dcsi.
    pub(crate) const NO_SESSION: i64 = 119;
    /// guide, dcsi.
    pub(crate) const BAD_LOGIN: i64 = 400;
    /// csi: no such share.
    pub(crate) const NO_SHARE: i64 = 402;
    /// csi: invalid value of a share.
    pub(crate) const BAD_SHARE: i64 = 403;
    /// csi: the source of a clone, or its snapshot, is not there; csi, issue 38: the location of a new
    /// share is wrong.
    pub(crate) const SHARE_FAILED: i64 = 3300;
    /// csi: a share of that name exists.
    pub(crate) const SHARE_EXISTS: i64 = 3301;
    /// csi: the most shares.
    pub(crate) const MAX_SHARES: i64 = 3309;
    /// csi, dcsi: out of free space.
    pub(crate) const NO_SPACE: i64 = 18_990_002;
    /// pve (observed): the name is too long, and the LUN was made.
    pub(crate) const LONG_NAME_MADE: i64 = 18_990_068;
    /// n4s4: the location is not there.
    pub(crate) const BAD_LOCATION: i64 = 18_990_501;
    /// n4s4: the size is wrong; dcsi, issue 497: it is below the least.
    pub(crate) const BAD_SIZE: i64 = 18_990_502;
    /// csi, issue 23: what `map_target` answers for a LUN that cannot be loaded.
    pub(crate) const CANNOT_LOAD: i64 = 18_990_570;
    /// n4s4: no session is possible with that authentication.
    pub(crate) const BAD_AUTH_TYPE: i64 = 18_990_702;
    /// n4s4: a target of that IQN exists.
    pub(crate) const IQN_EXISTS: i64 = 18_990_745;
    /// dcsi: the type does not fit the filesystem.
    pub(crate) const TYPE_OF_FILESYSTEM: i64 = 18_990_318;
    /// csi, dcsi: bad LUN type.
    pub(crate) const BAD_TYPE: i64 = 18_990_500;
    /// pve (observed): an illegal name.
    pub(crate) const BAD_NAME: i64 = 18_990_503;
    /// pve (observed): bad LUN uuid.
    pub(crate) const BAD_UUID: i64 = 18_990_505;
    /// pve (observed): a parameter is missing.
    pub(crate) const MISSING: i64 = 18_990_508;
    /// csi: no such LUN.
    pub(crate) const NO_LUN: i64 = 18_990_531;
    /// csi, dcsi: no such snapshot.
    pub(crate) const NO_SNAPSHOT: i64 = 18_990_532;
    /// csi, dcsi: a LUN of that name exists.
    pub(crate) const LUN_EXISTS: i64 = 18_990_538;
    /// n4s4: a snapshot that cannot be deleted.
    pub(crate) const SNAPSHOT_KEPT: i64 = 18_990_540;
    /// csi, dcsi: the most LUNs.
    pub(crate) const MAX_LUNS: i64 = 18_990_541;
    /// csi, dcsi: the most targets.
    pub(crate) const MAX_TARGETS: i64 = 18_990_542;
    /// csi, dcsi: the most snapshots.
    pub(crate) const MAX_SNAPSHOTS: i64 = 18_990_543;
    /// dcsi: bad CHAP credentials.
    pub(crate) const BAD_CHAP: i64 = 18_990_708;
    /// pve and dcsi: no such target, or an id that is not a JSON text.
    pub(crate) const NO_TARGET: i64 = 18_990_710;
    /// csi, dcsi: a target of that name exists.
    pub(crate) const TARGET_EXISTS: i64 = 18_990_744;
}
