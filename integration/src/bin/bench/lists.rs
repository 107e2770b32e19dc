//! Many volumes, listed page by page.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use csi_proto::v1::ListVolumesRequest;
use integration::client::Client;
use integration::volume;

use crate::load;
use crate::report::{Report, row, title};

const PAGE: i32 = 1_000;
/// The longest time for one page, in milliseconds.
const PAGE_AIM: f64 = 100.0;

/// Makes volumes, lists them in pages, counts, and deletes them.
pub(crate) async fn pages(client: &Client, count: usize, report: &mut Report) -> Result<()> {
    let each = count / 64;
    let count = each * 64;
    let made = load::many(64, each, {
        let client = client.clone();
        move |who, call| {
            let mut client = client.clone();
            async move {
                let request = volume::create(&format!("list-{who}-{call}"), &BTreeMap::new());
                client.controller.create_volume(request).await?;
                Ok(())
            }
        }
    })
    .await?;
    let (slowest, ids) = walk(client).await?;
    ensure!(
        ids.len() == count,
        "{count} volumes were made, {} were listed",
        ids.len()
    );
    let unique: HashSet<_> = ids.iter().collect();
    ensure!(unique.len() == count, "some volumes were listed twice");

    title(&format!("{count} volumes, none lost and none repeated"));
    row(
        "made by 64 clients in",
        &format!("{:.2} s", made.took.as_secs_f64()),
    );
    let millis = slowest.as_secs_f64() * 1e3;
    let text = format!("{millis:.1} ms");
    report.aimed(
        &format!("slowest page of {PAGE} (aim in ms)"),
        &text,
        millis,
        PAGE_AIM,
    );

    let ids = std::sync::Arc::new(ids);
    let gone = load::many(64, each, {
        let client = client.clone();
        move |who, call| {
            let (mut client, ids) = (client.clone(), ids.clone());
            async move {
                client
                    .controller
                    .delete_volume(volume::delete(&ids[who * each + call]))
                    .await?;
                Ok(())
            }
        }
    })
    .await?;
    row(
        "deleted by 64 clients in",
        &format!("{:.2} s", gone.took.as_secs_f64()),
    );
    Ok(())
}

async fn walk(client: &Client) -> Result<(Duration, Vec<String>)> {
    let (mut slowest, mut ids) = (Duration::ZERO, Vec::new());
    let mut token = String::new();
    loop {
        let request = ListVolumesRequest {
            max_entries: PAGE,
            starting_token: token,
        };
        let began = Instant::now();
        let page = client
            .clone()
            .controller
            .list_volumes(request)
            .await?
            .into_inner();
        slowest = slowest.max(began.elapsed());
        ids.extend(
            page.entries
                .into_iter()
                .filter_map(|entry| entry.volume)
                .map(|v| v.volume_id),
        );
        token = page.next_token;
        if token.is_empty() {
            return Ok((slowest, ids));
        }
    }
}
