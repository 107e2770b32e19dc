//! The flags of `try`, and what `try --help` teaches.

use std::path::PathBuf;

use clap::Args;

/// How to use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AccessFlag {
    /// As a folder with files
    Mount,
    /// As a raw device
    Block,
}

/// What `--help` teaches below the flags.
pub const AFTER: &str = "\
Without flags it makes folders in a temporary folder its storage: nothing to set up, nothing left \
behind. With --driver-config-file it asks the same of your own storage: will my NAS work?

It starts the server of this program on a unix socket and drives it as a cluster would: it creates \
a volume, mounts it, writes to it, takes a snapshot, restores and clones it, compares every byte, \
expands it, deletes everything, and proves that nothing is left.

What it touches:
  Only what it makes itself. Everything is called omnibus-try-<random>, so
  that leftovers can be found, also after a power cut. Other volumes are
  listed, never touched. Mounts are made where nobody else sees them, and are
  gone when it ends, even after kill -9. Interrupted (Ctrl-C) it cleans up;
  interrupted again it leaves at once.

What it needs:
  Root, or a kernel that lets users make bind mounts in a user namespace (most
  do): enough for storage that is a local directory. Everything else has to be
  mounted by root.

Examples:
  See a volume live its whole life:
    omnibus-csi try
  Try your own storage, with the parameters of your storage class:
    omnibus-csi try --driver-config-file=nas.yaml --fs-type=xfs --size=2Gi
  For a script:
    omnibus-csi try --json | jq .result

Exit codes:
  0    every step that is offered went well, and nothing is left (or --keep)
  1    a step failed; what was made is cleaned up, what could not be is named
  64   the command line or the configuration is wrong; nothing was begun
  130  interrupted (143: terminated); cleaned up as after a failure";

/// What to try.
#[derive(Debug, Args)]
pub struct Flags {
    /// The configuration of your storage, YAML (default: folders in a temporary folder)
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: Option<PathBuf>,
    /// A parameter of the storage class; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE")]
    pub parameters: Vec<String>,
    /// A parameter of the snapshot class; may be repeated
    #[arg(long = "snapshot-parameter", value_name = "KEY=VALUE")]
    pub snapshot_parameters: Vec<String>,
    /// Secrets for every call: lines of KEY=VALUE, or one JSON object
    #[arg(long, value_name = "PATH")]
    pub secrets_file: Option<PathBuf>,
    /// The size of the volume, such as 512Mi, 2Gi, 1000000
    #[arg(long, value_name = "SIZE", default_value = "1Gi")]
    pub size: String,
    /// How to use it
    #[arg(long, value_name = "HOW", default_value = "mount")]
    pub access: AccessFlag,
    /// The filesystem to ask for, such as ext4 or xfs (default: the driver decides)
    #[arg(long, value_name = "NAME")]
    pub fs_type: Option<String>,
    /// How long one call may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Stop before the end, also after a failure, and leave everything for a look
    #[arg(long)]
    pub keep: bool,
    /// Write one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
