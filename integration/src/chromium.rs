//! A headless Chromium, asked over its debugging pipe for the page that it shows, and for the requests of that page.
#![expect(
    clippy::disallowed_methods,
    reason = "starts Chromium, which is no part of the program"
)]

use std::path::Path;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::wait;

/// A running Chromium with one page. It is killed when it is dropped.
#[derive(Debug)]
pub struct Chromium {
    ask: pipe::Sender,
    hear: BufReader<pipe::Receiver>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    _child: Child,
    _folder: TempDir,
}

/// A size of the window.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// In points.
    pub width: u32,
    /// In points.
    pub height: u32,
    /// Whether it is a phone.
    pub is_phone: bool,
    /// Whether the person likes it dark.
    pub is_dark: bool,
}

// === impl Chromium ===

impl Chromium {
    /// Starts it with an empty page.
    pub async fn start(program: &Path) -> Self {
        let folder = TempDir::with_prefix("omnibus-chromium-").expect("a temporary folder");
        let [to, from] = ["to", "from"].map(|name| folder.path().join(name));
        for fifo in [&to, &from] {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, fifo, FileType::Fifo, mode, 0).expect("a pipe");
        }
        let open = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        let ask = open().open_sender(&to).expect("a pipe");
        let hear = open().open_receiver(&from).expect("a pipe");
        let child = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<"$TO" 4>"$FROM""#])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                "--force-device-scale-factor=1",
                "--font-render-hinting=none",
                "--remote-debugging-pipe",
            ])
            .arg(format!(
                "--user-data-dir={}",
                folder.path().join("profile").display()
            ))
            .env("TO", &to)
            .env("FROM", &from)
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("Chromium can be started");
        let mut chromium = Self {
            ask,
            hear: BufReader::new(hear),
            session: None,
            last: 0,
            events: Vec::new(),
            _child: child,
            _folder: folder,
        };
        let target = chromium
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = chromium.call("Target.attachToTarget", attach).await;
        chromium.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            chromium.call(&format!("{domain}.enable"), json!({})).await;
        }
        chromium
    }

    /// Calls a method of its protocol.
    ///
    /// # Panics
    /// If it is refused, or not answered in time.
    pub async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let bytes = [message.to_string().as_bytes(), b"\0"].concat();
        self.ask.write_all(&bytes).await.expect("it takes messages");
        loop {
            let answer = self.message().await;
            if answer["id"] != id {
                self.events.push(answer);
                continue;
            }
            assert!(answer["error"].is_null(), "{method}: {answer}");
            return answer["result"].clone();
        }
    }

    async fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        let read = timeout(wait::PATIENCE, self.hear.read_until(0, &mut bytes)).await;
        read.expect("Chromium answers in time").expect("it answers");
        bytes.pop();
        serde_json::from_slice(&bytes).expect("JSON")
    }

    /// The value of an expression on the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let ask = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", ask).await;
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression on the page is true.
    pub async fn until(&mut self, expression: &str) {
        let deadline = tokio::time::Instant::now() + wait::PATIENCE;
        while self.value(expression).await != true {
            if tokio::time::Instant::now() >= deadline {
                let shown = self.value("document.body.innerText").await;
                panic!("waited in vain for {expression}: {shown}");
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Opens an address.
    pub async fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address})).await;
        self.until("document.readyState === 'complete'").await;
    }

    /// Shows the page in such a window.
    pub async fn look(&mut self, window: Window) {
        let size = json!({"width": window.width, "height": window.height, "deviceScaleFactor": 1, "mobile": window.is_phone});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if window.is_dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Presses a key: one character, or `Tab`, `Enter`, `Escape`.
    pub async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            other => (0, Some(other)),
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if let Some(text) = text {
            down["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", down).await;
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", up).await;
    }

    /// A picture of what is seen, as PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        let picture = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await;
        decoded(picture["data"].as_str().expect("a picture"))
    }

    /// The events of its protocol since this was last asked for.
    pub fn events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }
}

/// The bytes of a text in base64.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_usize, 0);
    for digit in digits {
        held = (held << 6 | digit) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).expect("a byte"));
        }
    }
    bytes
}
