//! Clients that this project did not write lived on the simulator; what they sent is sent again, and answered
//! alike. `synology-sim --record` writes such a file.
//!
//! - `synology-csi`: Synology's own driver (`SynologyOpenSource/synology-csi` 2807900), LUNs, NFS and SMB
//! - `democratic-csi`: 1.9.4 and its branch `next`
//! - `cinder`: the driver of Cinder (`openstack/cinder` ab09bc3), LUNs and targets over HTTPS

use std::net::SocketAddr;

use serde_json::Value;
use synology_sim::{Options, Simulator, Version, shape};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where a client puts its parameters.
#[derive(Debug, Clone, Copy)]
enum Carrier {
    /// As both CSI drivers do.
    Url,
    /// As Cinder does, the session among them.
    Body,
}

/// A call that one of them sent, and what it got.
struct Exchange {
    path: String,
    form: String,
    cookie: Option<String>,
    in_url: Option<String>,
    error: Value,
    shape: Value,
}

impl Exchange {
    fn read(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let mut form = form_urlencoded::Serializer::new(String::new());
        for (key, value) in line["form"].as_object().expect("a form") {
            form.append_pair(key, value.as_str().expect("a text"));
        }
        Self {
            path: text("path").expect("a path"),
            form: form.finish(),
            cookie: text("cookie"),
            in_url: text("in_url"),
            error: line["error"].clone(),
            shape: line["shape"].clone(),
        }
    }

    async fn send(&self, nas: SocketAddr, carrier: Carrier) -> Value {
        let (path, form) = (&self.path, &self.form);
        let sid = self.in_url.as_ref();
        let sid = sid.map_or_else(String::new, |sid| format!("&_sid={sid}"));
        let cookie = self.cookie.as_ref();
        let cookie = cookie.map_or_else(String::new, |id| format!("Cookie: id={id}\r\n"));
        let headers = format!("Host: {nas}\r\n{cookie}Connection: close\r\n");
        let request = match carrier {
            Carrier::Url => format!("GET /webapi/{path}?{form}{sid} HTTP/1.1\r\n{headers}\r\n"),
            Carrier::Body => format!(
                "POST /webapi/{path} HTTP/1.1\r\n{headers}\
                 Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
                form.len()
            ),
        };
        let mut stream = TcpStream::connect(nas).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }
}

async fn replayed(version: Version, carrier: Carrier, record: &str) {
    let mut options = Options::new(version);
    (options.strict, options.csrf) = (false, false);
    let nas = Simulator::start(options).await.expect("a NAS");
    let mut failed = 0;
    for (number, line) in record.lines().enumerate() {
        let exchange = Exchange::read(line);
        let answer = exchange.send(nas.address(), carrier).await;
        let what = format!("line {}: {}", number + 1, exchange.form);
        assert_eq!(answer["error"], exchange.error, "{what}");
        assert_eq!(shape(&answer), exchange.shape, "{what}");
        failed += usize::from(answer["success"] != true);
    }
    assert!(record.lines().count() > 20, "it is a whole life");
    assert!(failed < 3, "{failed} calls were refused");
    assert_eq!(nas.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn the_driver_of_synology_lives_on_dsm_7() {
    replayed(
        Version::V7_2,
        Carrier::Url,
        include_str!("recorded/synology-csi-7.2.jsonl"),
    )
    .await;
}

#[tokio::test]
async fn the_driver_of_synology_lives_on_dsm_6() {
    replayed(
        Version::V6_2,
        Carrier::Url,
        include_str!("recorded/synology-csi-6.2.jsonl"),
    )
    .await;
}

#[tokio::test]
async fn democratic_csi_lives_on_dsm_7() {
    replayed(
        Version::V7_2,
        Carrier::Url,
        include_str!("recorded/democratic-csi-7.2.jsonl"),
    )
    .await;
}

#[tokio::test]
async fn democratic_csi_lives_on_dsm_6() {
    replayed(
        Version::V6_2,
        Carrier::Url,
        include_str!("recorded/democratic-csi-6.2.jsonl"),
    )
    .await;
}

/// On DSM 7 it cannot log in for long: that takes no session in the body.
#[tokio::test]
async fn cinder_lives_on_dsm_6() {
    replayed(
        Version::V6_2,
        Carrier::Body,
        include_str!("recorded/cinder-6.2.jsonl"),
    )
    .await;
}
