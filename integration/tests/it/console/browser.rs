//! The console in a real Chromium: judged by what is seen. `OMNIBUS_CONSOLE_PICTURES` names a folder for pictures of all
//! views; with the whole path of `docs/pictures`, it makes those that the documentation shows.

use std::env;
use std::fs;
use std::path::PathBuf;

use integration::chromium::{Chromium, Window};
use integration::requirement;
use serde_json::{Value, json};

use super::site::{HOSTILE, Running, Site};

const WHAT: &str = "the console in Chromium";

/// Wide and narrow, light and dark.
const WINDOWS: [(&str, Window); 4] = [
    ("light", window(1180, 780, false, false)),
    ("dark", window(1180, 780, false, true)),
    ("phone", window(390, 800, true, false)),
    ("phone-dark", window(390, 800, true, true)),
];

/// The pictures of the documentation.
const SHOWN: [&str; 2] = ["connections-light", "calls-phone"];

const VIEWS: [&str; 5] = ["connections", "volumes", "snapshots", "calls", "orphans"];

/// A day of free space and an hour of calls, made up: the test runs for seconds.
const PAST: &str = r#"(() => {
const ask = window.fetch;
window.fetch = async (address, ...more) => {
  const answer = await ask(address, ...more);
  const path = String(address);
  if (!path.startsWith("/api/connections") && !path.startsWith("/api/calls")) return answer;
  const body = await answer.json();
  const now = Math.floor(Date.now() / 1000);
  for (const row of body.rows) {
    if (row.history && row.history.length) {
      const free = row.history[0][1];
      row.history = Array.from({ length: 96 }, (_, n) => [now - (95 - n) * 900, Math.round(free * (1.32 - 0.0031 * n + 0.035 * Math.sin(n / 6) + (n > 60 ? 0.06 : 0)))]);
      row.available = row.history[95][1];
    }
  }
  if (body.minutes) body.minutes = body.minutes.map(([ok, failed], n) => [ok + Math.round(5 + 4 * Math.sin(n / 4) + (n % 5)), failed + (n === 38 || n === 39 ? 3 : 0)]);
  return new Response(JSON.stringify(body), { status: 200, headers: { "Content-Type": "application/json" } });
};
})()"#;

/// The texts that can hardly be read: less than 4.5 to 1 against what is behind them.
const PALE: &str = r#"(() => {
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => { for (let at = node; at; at = at.parentElement) { const color = parts(getComputedStyle(at).backgroundColor); if (color.length < 4 || color[3] > 0.9) return color; } return [255, 255, 255]; };
  const pale = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(".skip, .unseen")) continue;
    const [one, two] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) pale.push(`${node.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return pale;
})()"#;

const fn window(width: u32, height: u32, is_phone: bool, is_dark: bool) -> Window {
    Window {
        width,
        height,
        is_phone,
        is_dark,
    }
}

/// A page over a console.
struct Page<'a> {
    chromium: Chromium,
    running: &'a Running,
}

impl Page<'_> {
    /// Opens a view, and waits until it is drawn.
    async fn open(&mut self, view: &str) {
        let address = format!("http://{}/#/{view}", self.running.address());
        // The same page with another fragment is not loaded again.
        self.chromium.open("about:blank").await;
        self.chromium.open(&address).await;
        self.drawn(view.split('?').next().unwrap_or(view)).await;
    }

    async fn drawn(&mut self, view: &str) {
        let main = "document.getElementById('main')";
        let drawn = format!(
            "!!{main} && {main}.dataset.view === '{view}' && !{main}.hasAttribute('aria-busy')"
        );
        self.chromium.until(&drawn).await;
        if view == "volumes" {
            self.chromium
                .until(&format!("{main}.dataset.details === 'done'"))
                .await;
        }
    }

    async fn text(&mut self) -> String {
        let text = self.chromium.value("document.body.innerText").await;
        text.as_str().expect("text").to_owned()
    }

    /// The number of rows of the table.
    async fn rows(&mut self) -> u64 {
        let rows = self
            .chromium
            .value("document.querySelectorAll('tbody tr').length")
            .await;
        rows.as_u64().expect("a number")
    }

    /// Nothing was run, asked for elsewhere, or refused by the rules of the page; and all can be read.
    async fn is_sound(&mut self, what: &str) {
        let injected =
            "document.querySelectorAll('main img, main script, [onerror], iframe').length";
        assert_eq!(self.chromium.value(injected).await, 0, "{what}");
        let wide = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(
            self.chromium.value(wide).await,
            false,
            "{what}: wider than its window"
        );
        let pale = self.chromium.value(PALE).await;
        assert_eq!(pale, json!([]), "{what}");
        let own = format!("http://{}/", self.running.address());
        for event in self.chromium.events() {
            let method = event["method"].as_str().unwrap_or_default();
            assert!(
                ![
                    "Runtime.exceptionThrown",
                    "Log.entryAdded",
                    "Page.javascriptDialogOpening"
                ]
                .contains(&method),
                "{what}: {event}"
            );
            if method == "Network.requestWillBeSent" {
                let url = event["params"]["request"]["url"]
                    .as_str()
                    .unwrap_or_default();
                assert!(
                    url.starts_with(&own) || url == "about:blank",
                    "{what}: {url}"
                );
            }
        }
    }

    async fn picture(&mut self, name: &str) {
        let Some(folder) = env::var_os("OMNIBUS_CONSOLE_PICTURES").map(PathBuf::from) else {
            return;
        };
        if folder.ends_with("docs/pictures") && !SHOWN.contains(&name) {
            return;
        }
        let picture = self.chromium.picture().await;
        fs::write(folder.join(format!("console-{name}.png")), picture).expect("a file");
    }
}

async fn opened(running: &Running) -> Option<Page<'_>> {
    let program = requirement::tool(WHAT, "chromium")?;
    let mut chromium = Chromium::start(&program).await;
    let past = json!({"source": PAST});
    chromium
        .call("Page.addScriptToEvaluateOnNewDocument", past)
        .await;
    Some(Page { chromium, running })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs Chromium: a part of `make test-real`"]
async fn every_view_can_be_read_wide_and_narrow_light_and_dark_and_no_name_becomes_html() {
    let running = Site::new().start(10).await;
    let Some(mut page) = opened(&running).await else {
        return;
    };
    let mut backs = Vec::new();
    for (name, window) in WINDOWS {
        page.chromium.look(window).await;
        for view in VIEWS {
            page.open(view).await;
            let what = format!("{view}, {name}");
            let text = page.text().await;
            let expected: &[&str] = match view {
                "connections" => &[
                    "nas",
                    "archive",
                    "mute",
                    "odd",
                    "File not usable",
                    "free",
                    "ago",
                ],
                "volumes" => &[
                    "pvc-shop",
                    "shop/database",
                    "worker-1",
                    "exported",
                    "missing",
                    "mute did not answer",
                ],
                "snapshots" => &["pvc-shop", "snapshot-monday", "snapshot-tuesday"],
                "calls" => &["CreateVolume", "OK", "shop/database-test", "ms"],
                _ => &["No orphans", "archive"],
            };
            for word in expected {
                assert!(text.contains(word), "{what} does not show {word}: {text}");
            }
            if ["volumes", "calls"].contains(&view) {
                for hostile in HOSTILE {
                    assert!(
                        text.contains(hostile),
                        "{what} does not show {hostile} as it is: {text}"
                    );
                }
            }
            page.is_sound(&what).await;
            page.picture(&format!("{view}-{name}")).await;
        }
        page.open("family?volume=v%3Anas%2Fpvc-restored").await;
        let text = page.text().await;
        for word in [
            "v:nas/pvc-shop",
            "snapshot-monday",
            "v:nas/pvc-restored",
            "v:nas/pvc-clone",
        ] {
            assert!(text.contains(word), "{name}: {text}");
        }
        page.is_sound(&format!("family, {name}")).await;
        page.picture(&format!("family-{name}")).await;
        let back = page
            .chromium
            .value("getComputedStyle(document.body).backgroundColor")
            .await;
        backs.push(back);
    }
    assert_ne!(backs[0], backs[1], "light and dark");
    let curves = "document.querySelectorAll('svg.curve polyline').length";
    page.open("connections").await;
    assert_eq!(
        page.chromium.value(curves).await,
        2,
        "of the two that can be used"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs Chromium: a part of `make test-real`"]
async fn ten_thousand_volumes_are_found_and_walked_by_keyboard_alone() {
    let running = Site::new().start(10_000).await;
    let Some(mut page) = opened(&running).await else {
        return;
    };
    page.chromium.look(WINDOWS[0].1).await;
    page.open("connections").await;
    page.chromium.press("2").await;
    page.drawn("volumes").await;
    assert_eq!(page.rows().await, 50);
    let first = first_volume(&mut page).await;
    page.chromium.press("n").await;
    page.chromium
        .until("location.hash.includes('after=')")
        .await;
    page.drawn("volumes").await;
    assert_ne!(first_volume(&mut page).await, first, "the next page");
    page.chromium.press("/").await;
    page.chromium
        .until("document.activeElement.id === 'search'")
        .await;
    for key in "pvc-0123".chars() {
        page.chromium.press(&key.to_string()).await;
    }
    page.chromium
        .until("document.querySelectorAll('tbody tr').length === 10")
        .await;
    assert_eq!(
        page.chromium.value("document.activeElement.id").await,
        "search",
        "the field keeps the keys"
    );
    let text = page.text().await;
    assert!(
        text.contains("pvc-01234") && !text.contains("pvc-01300"),
        "{text}"
    );
    // From there to the first volume, and into it.
    for _ in 0..30 {
        page.chromium.press("Tab").await;
        let at = "document.activeElement.closest('td') !== null";
        if page.chromium.value(at).await == true {
            break;
        }
    }
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(
        page.chromium.value(outline).await,
        "solid",
        "it is seen where the keys go"
    );
    page.chromium.press("Enter").await;
    page.drawn("family").await;
    assert!(page.text().await.contains("v:archive/pvc-0123"));
    for (key, view) in
        ["1", "3", "4", "5"]
            .into_iter()
            .zip(["connections", "snapshots", "calls", "orphans"])
    {
        page.chromium.press(key).await;
        page.drawn(view).await;
    }
    page.is_sound("by keyboard").await;
    for (name, window) in WINDOWS {
        page.chromium.look(window).await;
        page.open("volumes?connection=archive").await;
        assert_eq!(page.rows().await, 50);
        page.is_sound(&format!("ten thousand, {name}")).await;
    }
}

async fn first_volume(page: &mut Page<'_>) -> Value {
    page.chromium
        .value("document.querySelector('td a').textContent")
        .await
}
