//! The costs of verbs on TrueNAS: exchanges in a row, counted by the simulator of each generation.
//!
//! Exchanges do not depend on the load of the machine; the times near and far away do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume,
    Parameters, Secrets, SizeRange, SnapshotName, TopologyRequirement, VolumeName,
};
use futures_util::future::try_join_all;
use truenas_sim::{Generation, Options, Simulator};

use crate::report::{Report, row, title};

/// So long that requests which are sent together are on their way together.
const ROUND_TRIP_MS: u64 = 120;
const GENERATIONS: [Generation; 5] = [
    Generation::V22_12,
    Generation::V24_10,
    Generation::V25_04,
    Generation::V25_10,
    Generation::V26Rc,
];
const VERBS: [&str; 5] = ["create", "snapshot", "unsnapshot", "grow", "delete"];

/// A protocol.
struct Kind {
    name: &'static str,
    section: &'static str,
    /// The exchanges of a creation that are aimed at.
    aim: u32,
    /// Those of each verb of democratic-csi 1.9, read from its source where it has the protocol.
    theirs: Option<[u32; 5]>,
    files: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "nfs",
        section: "nfs: {shareHost: 10.0.0.5, shareAllowedNetworks: [10.0.0.0/8]}",
        aim: 4,
        theirs: Some([13, 5, 1, 1, 6]),
        files: true,
    },
    Kind {
        name: "smb",
        section: "smb: {shareHost: 10.0.0.5}",
        aim: 4,
        theirs: None,
        files: true,
    },
    Kind {
        name: "iscsi",
        section: "iscsi: {targetPortal: '10.0.0.5:3260', targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1}]}",
        aim: 5,
        theirs: Some([14, 5, 1, 2, 9]),
        files: false,
    },
    Kind {
        name: "nvmeof",
        section: "nvmeof: {transports: ['tcp://10.0.0.5:4420'], ports: [1]}",
        aim: 5,
        theirs: None,
        files: false,
    },
];

/// Prints a table of each protocol.
pub(crate) async fn exchanges(report: &mut Report) -> Result<()> {
    for kind in &KINDS {
        title(&format!(
            "TrueNAS {} by its API, exchanges in a row",
            kind.name
        ));
        if let Some(theirs) = kind.theirs {
            row("democratic-csi 1.9, by its source", &shown(theirs));
        }
        for generation in GENERATIONS {
            if kind.name == "nvmeof" && generation < Generation::V25_10 {
                continue;
            }
            let costs = of(kind, generation).await?;
            let text = shown(costs);
            let created = f64::from(u32::try_from(costs[0])?);
            let aim = f64::from(kind.aim);
            report.aimed(generation.name(), &text, created, aim);
        }
    }
    Ok(())
}

fn shown(costs: [impl std::fmt::Display; 5]) -> String {
    let all = VERBS.iter().zip(costs);
    let text: Vec<String> = all.map(|(verb, cost)| format!("{verb} {cost}")).collect();
    text.join("  ")
}

/// Prints how long one creation takes, and many at once, near and far away.
pub(crate) async fn times() -> Result<()> {
    title("TrueNAS 25.10 by its API: a creation, and 64 at once");
    for kind in &KINDS {
        let mut text = Vec::new();
        for round_trip in [0, 50] {
            let (one, many) = created_in(kind, round_trip).await?;
            text.push(format!(
                "{round_trip} ms: {:.0} ms, {:.0} ms",
                one.as_secs_f64() * 1e3,
                many.as_secs_f64() * 1e3
            ));
        }
        row(kind.name, &text.join("   "));
    }
    Ok(())
}

/// The time that one creation takes with such a round trip, and 64 at once.
async fn created_in(kind: &Kind, round_trip: u64) -> Result<(Duration, Duration)> {
    let nas = set_up(Generation::V25_10).await?;
    let driver = driver(&nas, kind)?;
    let make = async |name: String| -> Result<()> {
        let call = Call::within(Duration::from_mins(2));
        let asked = asked(driver.as_ref(), kind, &name)?;
        let made = driver.create_volume(&call, &asked).await;
        made.map(drop)
            .map_err(|error| anyhow!("{}: {}", kind.name, error.chain()))
    };
    make("warm".to_owned()).await?;
    nas.faults()
        .set(|settings| settings.round_trip_ms = round_trip);
    let start = Instant::now();
    make("pvc-one".to_owned()).await?;
    let one = start.elapsed();
    let start = Instant::now();
    try_join_all((0..64).map(|number| make(format!("pvc-{number}")))).await?;
    Ok((one, start.elapsed()))
}

async fn of(kind: &Kind, generation: Generation) -> Result<[u64; 5]> {
    let nas = set_up(generation).await?;
    let driver = driver(&nas, kind)?;
    let driver = driver.as_ref();
    let call = || Call::within(Duration::from_mins(2));
    let well =
        |error: driver_core::Error| anyhow!("{} on {generation}: {}", kind.name, error.chain());
    // Connecting is once for all.
    driver
        .create_volume(&call(), &asked(driver, kind, "warm")?)
        .await
        .map_err(well)?;
    nas.faults()
        .set(|settings| settings.round_trip_ms = ROUND_TRIP_MS);
    let mut costs = [0; 5];
    settle(&nas).await;
    let volume = driver
        .create_volume(&call(), &asked(driver, kind, "pvc-1")?)
        .await
        .map_err(well)?;
    costs[0] = settle(&nas).await;
    let snapshots = driver.snapshots().ok_or_else(|| anyhow!("no snapshots"))?;
    let request = CreateSnapshot {
        name: SnapshotName::parse("s-1")?,
        source: volume.id.clone(),
        parameters: Parameters::default(),
        secrets: Secrets::new(),
    };
    let taken = snapshots
        .create_snapshot(&call(), &request)
        .await
        .map_err(well)?;
    costs[1] = settle(&nas).await;
    snapshots
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .map_err(well)?;
    costs[2] = settle(&nas).await;
    let expander = driver.expander().ok_or_else(|| anyhow!("no growth"))?;
    let size = SizeRange::new(4 << 30, 0)?;
    expander
        .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
        .await
        .map_err(well)?;
    costs[3] = settle(&nas).await;
    driver
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await
        .map_err(well)?;
    costs[4] = settle(&nas).await;
    Ok(costs)
}

/// The exchanges since the last time. What is still on its way does not count as the beginning of the next.
async fn settle(nas: &Simulator) -> u64 {
    tokio::time::sleep(Duration::from_millis(2 * ROUND_TRIP_MS)).await;
    let counts = nas.counts();
    nas.reset_counts();
    counts.exchanges
}

fn asked(driver: &dyn Driver, kind: &Kind, name: &str) -> Result<CreateVolume> {
    let name = VolumeName::parse(name)?;
    let parameters = Parameters::default();
    let access = if kind.files {
        Access::Mount(MountAccess::default())
    } else {
        Access::Block
    };
    Ok(CreateVolume {
        id: driver
            .name_volume(&name, &parameters)
            .map_err(|error| anyhow!(error.chain()))?,
        name,
        size: SizeRange::new(2 << 30, 0)?,
        capabilities: vec![VolumeCapability {
            access,
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters,
        secrets: Secrets::new(),
        source: None,
        topology: TopologyRequirement::default(),
    })
}

fn driver(nas: &Simulator, kind: &Kind) -> Result<Arc<dyn Driver>> {
    let zfs = if kind.files {
        ", datasetEnableQuotas: true, datasetPermissionsMode: '0777'"
    } else {
        ""
    };
    let text = format!(
        "driver: truenas-api-{}
httpConnection: {{protocol: https, host: 127.0.0.1, port: {}, username: root, apiKey: {}, apiKeyLogin: plain, allowInsecure: true}}
zfs: {{datasetParentName: tank/csi/v{zfs}}}
{}
",
        kind.name,
        nas.https().port(),
        nas.api_key(),
        kind.section,
    );
    let document = Document::parse(&text, &NoEnvironment)?;
    Ok(driver_truenas::from_document(&document)?)
}

/// A NAS with a portal, initiators and a port.
async fn set_up(generation: Generation) -> Result<Simulator> {
    let nas = Simulator::start(Options::new(generation)).await?;
    let made = nas.set_up("10.0.0.5").await;
    made.map_err(|failure| anyhow!("{failure:?}"))?;
    Ok(nas)
}
