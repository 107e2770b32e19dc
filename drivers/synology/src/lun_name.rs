//! Ids of volumes, and the names of their LUNs and targets.
//!
//! compat: "Synology": the name of a LUN and its target is prefix, id and suffix in lower case; the IQN
//! of the target is `baseiqn` and that name.

use csi_types::attachment::Iqn;
use driver_core::config::{CommonConfig, ConfigError};
use driver_core::naming::{MIN_LEAF, VolumeNaming};
use driver_core::{Error, Parameters, VolumeId, VolumeName};

use crate::config::IscsiSettings;

/// The longest name of a LUN that DSM is known to take (docs/synology.md).
const LONGEST_NAME: usize = 200;
/// The longest IQN (RFC 3720).
const LONGEST_IQN: usize = 223;
/// Characters that ids may hold and names of LUNs may not, or cannot give back: DSM refuses `_`, and names are in
/// small letters.
const BANNED: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_:.+";

/// The naming rules of volumes.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    naming: VolumeNaming,
    base: String,
    prefix: String,
    suffix: String,
}

/// The name of the LUN of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LunName(String);

// === impl Names ===

impl Names {
    pub(crate) fn new(
        settings: &IscsiSettings,
        common: &CommonConfig,
    ) -> Result<Self, ConfigError> {
        let affixes = settings.prefix.len() + settings.suffix.len();
        let room = LONGEST_NAME
            .saturating_sub(affixes)
            .min(LONGEST_IQN.saturating_sub(affixes + settings.base.len()))
            .min(common.id_room.bytes());
        if room < MIN_LEAF {
            let problem = format!(
                "leaves {room} bytes for the id of a volume, with namePrefix and nameSuffix; {MIN_LEAF} \
                 are the least"
            );
            return Err(ConfigError::at("iscsi.baseiqn", problem));
        }
        Ok(Self {
            naming: VolumeNaming::new(common).at_most(room),
            base: settings.base.clone(),
            prefix: settings.prefix.clone(),
            suffix: settings.suffix.clone(),
        })
    }

    /// The id of a new volume. One that its LUN could not give back is mapped.
    pub(crate) fn volume_id(
        &self,
        name: &VolumeName,
        parameters: &Parameters,
    ) -> Result<VolumeId, Error> {
        self.naming.volume_id_without(name, parameters, BANNED)
    }

    /// The name of the LUN; `None` for an id that neither we nor democratic-csi give.
    pub(crate) fn lun(&self, id: &VolumeId) -> Option<LunName> {
        let id = id.as_str();
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let plain = id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.chars().all(word);
        (plain && id.len() <= 128)
            .then(|| LunName(format!("{}{id}{}", self.prefix, self.suffix).to_lowercase()))
    }

    /// The id of the volume of this LUN, if it can be one.
    pub(crate) fn id(&self, lun: &str) -> Option<VolumeId> {
        let id = lun.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        let id = VolumeId::parse(id).ok()?;
        (self.lun(&id)?.as_str() == lun).then_some(id)
    }

    /// Whether names of LUNs say that they are of this connection. Without a prefix and a suffix any could be.
    pub(crate) fn tells_ours(&self) -> bool {
        !(self.prefix.is_empty() && self.suffix.is_empty())
    }

    /// The IQN of the target of that name.
    pub(crate) fn iqn(&self, name: &str) -> Result<Iqn, Error> {
        let iqn = format!("{}{name}", self.base);
        Iqn::parse(&iqn).map_err(|why| {
            Error::invalid(format!("name the target of `{name}`"))
                .because(why)
                .advise("shorten iscsi.baseiqn, namePrefix or nameSuffix")
        })
    }

    /// The name of a shared target, made of the prefix.
    pub(crate) fn shared(&self, name: &str, number: u32) -> String {
        format!("{}{name}-{number}", self.prefix)
    }
}

// === impl LunName ===

impl LunName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}
