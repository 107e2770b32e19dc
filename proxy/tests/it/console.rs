//! The console: its page, its rules for browsers, and its lists, over the socket of the program.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::harness::{Place, Server};
use super::{http, upkeep};

const VOLUMES: usize = 10_000;

/// A server with the console, and its address.
fn start(place: &Place) -> (Server, String) {
    let mut server = Server::of(place.command().arg("--console-address=127.0.0.1:0"));
    let line = server.line("the console is served");
    let address = line["address"].as_str().unwrap().to_owned();
    (server, address)
}

fn get(address: &str, target: &str) -> (String, String) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let answer = http(address, &request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn api(address: &str, target: &str) -> Value {
    let (head, body) = get(address, target);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {head}");
    assert!(head.contains("Content-Type: application/json"), "{head}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{target}: {error}: {body}"))
}

fn words<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

#[test]
fn every_answer_of_the_console_has_the_rules_for_browsers_and_nothing_is_changed_by_it() {
    let place = Place::new();
    let (_server, address) = start(&place);
    for target in [
        "/",
        "/console.js",
        "/console.css",
        "/icon.svg",
        "/api/status",
        "/no",
    ] {
        let (head, _) = get(&address, target);
        for rule in [
            "Content-Security-Policy: default-src 'none'; script-src 'self'; ",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "X-Content-Type-Options: nosniff",
            "Cross-Origin-Resource-Policy: same-origin",
            "Cache-Control: no-store",
        ] {
            assert!(head.contains(rule), "{target} lacks {rule}: {head}");
        }
        assert!(!head.contains("unsafe-"), "{head}");
        assert!(!head.contains("Access-Control-"), "{head}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get"] {
        let request = format!("{method} /api/volumes HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let answer = http(&address, &request);
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
    }
    let head = format!("HEAD / HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let answer = http(&address, &head);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "no body: {answer}");
}

#[test]
fn a_page_of_someone_else_in_the_same_browser_gets_nothing() {
    let place = Place::new();
    let (_server, address) = start(&place);
    let asked = |headers: &str| {
        http(
            &address,
            &format!("GET /api/status HTTP/1.1\r\n{headers}\r\n"),
        )
    };
    let port = address.rsplit_once(':').unwrap().1;
    for headers in [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: evil.example:{port}\r\n"),
        format!("Host: localhost.evil.example:{port}\r\n"),
        String::new(),
        format!("Host: {address}\r\nHost: evil.example\r\n"),
    ] {
        let answer = asked(&headers);
        assert!(answer.starts_with("HTTP/1.1 421 "), "{headers}: {answer}");
        assert!(!answer.contains("org.example"), "{answer}");
    }
    for site in ["cross-site", "same-site"] {
        let answer = asked(&format!("Host: {address}\r\nSec-Fetch-Site: {site}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403 "), "{site}: {answer}");
    }
    // Through a forwarded port it has another one.
    for good in ["localhost:1", "127.0.0.1", "[::1]:65535"] {
        let answer = asked(&format!("Host: {good}\r\nSec-Fetch-Site: same-origin\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{good}: {answer}");
    }
}

#[test]
fn ten_thousand_volumes_are_paged_and_searched_by_the_server() {
    let place = Place::new();
    for number in 0..VOLUMES {
        fs::create_dir_all(place.path("base/v").join(format!("pvc-{number:05}"))).unwrap();
    }
    let (_server, address) = start(&place);
    let walk = |query: &str| {
        let (mut seen, mut pages, mut after) = (Vec::new(), 0, String::new());
        loop {
            let page = api(&address, &format!("/api/volumes?{query}&after={after}"));
            let rows = page["rows"].as_array().unwrap();
            seen.extend(rows.iter().map(|row| words(row, "id").to_owned()));
            pages += 1;
            let Some(next) = page["next"].as_str() else {
                return (seen, pages);
            };
            after = next.replace('/', "%2F");
        }
    };
    let first = api(&address, "/api/volumes");
    assert_eq!(first["rows"].as_array().unwrap().len(), 50);
    assert_eq!(first["looked_at"], 50, "no more was read than is shown");
    let (all, pages) = walk("limit=200");
    assert_eq!((all.len(), pages), (VOLUMES, 50));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), VOLUMES);
    // Everything that is found is found once, wherever the pages end.
    let (found, _) = walk("limit=7&search=PVC-0123");
    let expected: Vec<_> = (1230..1240)
        .map(|number| format!("pvc-{number:05}"))
        .collect();
    assert_eq!(found, expected);
    let (found, _) = walk("limit=200&search=9");
    let expected = (0..VOLUMES).filter(|number| format!("{number:05}").contains('9'));
    assert_eq!(found.len(), expected.count());
    let none = api(&address, "/api/volumes?search=%3Cimg%20src%3Dx%3E");
    assert_eq!(none["rows"].as_array().unwrap().len(), 0);
    let used = api(&address, "/api/details?volume=pvc-00001&volume=none");
    assert_eq!(used["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn the_calls_of_the_last_hour_are_shown_with_their_reasons_and_probes_are_not() {
    let place = Place::new();
    let (_server, address) = start(&place);
    super::probe(&place.socket(), &[]);
    let calls = api(&address, "/api/calls");
    assert_eq!(calls["rows"], serde_json::json!([]));
    assert_eq!(calls["minutes"].as_array().unwrap().len(), 60);
}

#[test]
fn connections_are_shown_with_their_health_and_free_space_and_the_storage_is_not_asked_for_it() {
    let place = Place::new();
    let (_server, address) = start(&place);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let page = api(&address, "/api/connections");
        let row = &page["rows"][0];
        if row["health"] == "good" && row["available"].is_u64() && row["volumes"] == 0 {
            assert_eq!(row["driver"], "local-hostpath");
            assert_eq!(row["history"].as_array().unwrap().len(), 1);
            break;
        }
        assert!(std::time::Instant::now() < until, "{page}");
        std::thread::yield_now();
    }
    let status = api(&address, "/api/status");
    assert_eq!(status["name"], "org.example");
    assert_eq!(
        (&status["connections"], &status["unhealthy"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn orphans_are_listed_and_a_storage_that_does_not_answer_is_named_with_its_own_words_as_text() {
    let place = Place::new();
    upkeep::host(&place, upkeep::ZFS);
    let (_server, address) = start(&place);
    let page = api(&address, "/api/orphans");
    let rows = page["rows"].as_array().unwrap();
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (words(row, "object"), words(row, "kind")))
        .collect();
    let helper = "tank/v/whole@volume-source-for-volume-pvc-9";
    assert_eq!(
        shown,
        [
            ("tank/v/pvc-1", "half-made volume"),
            (helper, "helper snapshot")
        ]
    );
    // What a host says is text of someone else.
    let hostile =
        "#!/bin/sh\necho 'cannot open: <img src=x onerror=alert(1)>\"><script>' >&2; exit 1\n";
    upkeep::host(&place, hostile);
    let page = api(&address, "/api/volumes");
    assert_eq!(page["rows"], serde_json::json!([]));
    let said = words(&page["silent"][0], "error");
    assert!(said.contains("<img src=x onerror=alert(1)>"), "{said}");
}

#[test]
fn without_its_flag_there_is_no_console_and_nothing_is_remembered() {
    let place = Place::new();
    let mut server = place.start();
    let said = server.line("serving").to_string() + &format!("{:?}", server.lines);
    assert!(!said.contains("the console is served"), "{said}");
}
