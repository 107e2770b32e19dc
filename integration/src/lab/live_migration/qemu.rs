//! A QEMU with a guest, on one of the two machines, controlled from the machine `storage`.
//!
//! The machines have none: it is that of the host, with its own libraries. It connects to here with its monitor and
//! with the guest's serial port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::Host;
use crate::lab::pair::STORAGE;
use crate::wait::until_within;

/// Its folder on each machine.
const FOLDER: &str = "/root/qemu";
/// The time for anything that it does, emulated by an emulated processor.
const PATIENCE: Duration = Duration::from_mins(10);
/// The port at which one that waits is given a guest.
const PORT: u16 = 4444;
/// The milliseconds for which the guest may stand still at the end of its move.
const PAUSE: u64 = 2000;

/// A running QEMU.
pub(super) struct Qemu {
    address: &'static str,
    monitor: BufReader<TcpStream>,
    printed: Arc<Mutex<String>>,
    console: JoinHandle<()>,
}

// === impl Qemu ===

impl Qemu {
    /// One that starts the guest of a disk.
    pub(super) async fn start(host: &Host, disk: &Path) -> Self {
        Self::run(host, disk, &[]).await
    }

    /// One that waits for a guest that runs.
    pub(super) async fn wait(host: &Host, disk: &Path) -> Self {
        Self::run(host, disk, &["-incoming", "defer"]).await
    }

    async fn run(host: &Host, disk: &Path, more: &[&str]) -> Self {
        let (monitor, console) = (listener(), listener());
        let program = format!("{FOLDER}/qemu-system-x86_64");
        let loader = format!("{FOLDER}/ld-linux-x86-64.so.2");
        let modules = format!("--setenv=QEMU_MODULE_DIR={FOLDER}");
        // Each write is on the storage before the guest hears of it, and the node remembers nothing of the disk.
        let drive = format!(
            "file={},format=raw,if=none,id=disk,cache=directsync,werror=report,rerror=report",
            disk.display()
        );
        let device = "virtio-blk-pci,drive=disk,bootindex=0";
        let (qmp, serial) = (way_to(&monitor), way_to(&console));
        let service = ["systemd-run", "--quiet", "--collect", &modules];
        let start: [&str; 6] = [&loader, "--library-path", FOLDER, &program, "-L", FOLDER];
        let machine = "-accel tcg,tb-size=32 -M pc -m 16 -nodefaults -display none";
        let parts = [
            "-drive", &drive, "-device", device, "-qmp", &qmp, "-serial", &serial,
        ];
        let mut words = [&service[..], &start[..]].concat();
        words.extend(machine.split(' '));
        words.extend(parts);
        words.extend(more);
        host.run(&words);
        let (printed, console) = reader(accepted(&console).await);
        let mut qemu = Self {
            address: host.address,
            monitor: BufReader::new(accepted(&monitor).await),
            printed,
            console,
        };
        qemu.ask("qmp_capabilities", &json!({}));
        qemu
    }

    /// Waits until the guest has printed so many more numbers.
    ///
    /// # Panics
    /// If it prints an error.
    pub(super) async fn prints(&self, more: usize) {
        let goal = self.lines() + more;
        until_within(PATIENCE, "numbers of the guest", || {
            (self.lines() >= goal).then_some(())
        })
        .await;
    }

    fn lines(&self) -> usize {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_numbers = printed.chars().all(|c| c.is_ascii_hexdigit() || c == '\n');
        assert!(is_numbers, "the guest met an error: {printed}");
        assert!(!self.console.is_finished(), "QEMU has ended");
        printed.matches('\n').count()
    }

    /// Moves the guest to another one; the milliseconds for which it stood still.
    ///
    /// # Panics
    /// If it stays.
    pub(super) async fn moves_to(&mut self, other: &mut Self) -> u64 {
        let way = json!({"uri": format!("tcp:{}:{PORT}", other.address)});
        self.ask("migrate-set-parameters", &json!({"downtime-limit": PAUSE}));
        other.ask("migrate-incoming", &way);
        self.ask("migrate", &way);
        until_within(PATIENCE, "the guest to move", || {
            let said = self.ask("query-migrate", &json!({}));
            match said["status"].as_str() {
                Some("completed") => said["downtime"].as_u64(),
                Some("failed" | "cancelled") => panic!("{said}"),
                _ => None,
            }
        })
        .await
    }

    /// Ends it; what its guest printed.
    ///
    /// # Panics
    /// If it stays.
    pub(super) async fn end(mut self) -> String {
        // It may be gone before it has answered.
        self.say("quit", &json!({}));
        let console = self.console;
        until_within(PATIENCE, "the end of QEMU", || {
            console.is_finished().then_some(())
        })
        .await;
        console.join().expect("the reader has not panicked");
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *printed)
    }

    fn say(&mut self, command: &str, arguments: &Value) {
        let request = json!({"execute": command, "arguments": arguments});
        let written = writeln!(self.monitor.get_mut(), "{request}");
        written.expect("QEMU reads");
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        self.say(command, arguments);
        loop {
            let mut line = String::new();
            let length = self.monitor.read_line(&mut line);
            assert_ne!(length.expect("QEMU answers"), 0, "QEMU has ended");
            let mut said: Value = serde_json::from_str(&line).expect("QMP is JSON");
            assert_eq!(said.get("error"), None, "{command}");
            // Others are its greeting, and events.
            if let Some(answer) = said.get_mut("return") {
                return answer.take();
            }
        }
    }
}

fn listener() -> TcpListener {
    let listener = TcpListener::bind((STORAGE, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a switch");
    listener
}

fn way_to(listener: &TcpListener) -> String {
    let address = listener.local_addr().expect("an address");
    format!("tcp:{address}")
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    let accepted = until_within(PATIENCE, "QEMU to connect", || listener.accept().ok()).await;
    accepted.0
}

/// Reads what a guest prints.
fn reader(mut stream: TcpStream) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let printed = Arc::new(Mutex::new(String::new()));
    let all = Arc::clone(&printed);
    let reader = thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    });
    (printed, reader)
}
