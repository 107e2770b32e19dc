use super::*;

fn page(metrics: &Metrics) -> String {
    metrics.encode().unwrap()
}

#[test]
fn an_rpc_is_in_flight_until_it_ends_and_then_counted_with_its_code_and_connection() {
    let metrics = Metrics::new();
    let mut rpc = metrics.rpc("CreateVolume");
    assert!(page(&metrics).contains("csi_rpc_in_flight{rpc=\"CreateVolume\"} 1\n"));
    rpc.on_connection(&Arc::from("nas"));
    rpc.ended(Code::AlreadyExists);
    let page = page(&metrics);
    assert!(
        page.contains("csi_rpc_in_flight{rpc=\"CreateVolume\"} 0\n"),
        "{page}"
    );
    let counted =
        "csi_rpc_total{rpc=\"CreateVolume\",code=\"ALREADY_EXISTS\",connection=\"nas\"} 1";
    assert!(page.contains(counted), "{page}");
    let timed = "csi_rpc_duration_seconds_count{rpc=\"CreateVolume\",connection=\"nas\"} 1";
    assert!(page.contains(timed), "{page}");
}

#[test]
fn an_rpc_whose_future_was_dropped_is_counted_as_well() {
    let metrics = Metrics::new();
    drop(metrics.rpc("Probe"));
    metrics.rpc_abandoned("Probe");
    let page = page(&metrics);
    let counted = "csi_rpc_total{rpc=\"Probe\",code=\"UNKNOWN\",connection=\"\"} 1";
    assert!(page.contains(counted), "{page}");
    assert!(
        page.contains("csi_rpc_abandoned_total{rpc=\"Probe\"} 1"),
        "{page}"
    );
}

#[test]
fn backend_calls_and_commands_are_counted_by_how_they_ended() {
    let metrics = Metrics::new();
    let took = Duration::from_millis(3);
    metrics.backend_call(&Arc::from("nas"), "create_volume", Outcome::Failed, took);
    metrics.command("mkfs.ext4", Outcome::Unknown, took);
    let page = page(&metrics);
    let call =
        "backend_calls_total{connection=\"nas\",verb=\"create_volume\",outcome=\"failed\"} 1";
    assert!(page.contains(call), "{page}");
    let command = "commands_total{program=\"mkfs.ext4\",outcome=\"unknown\"} 1";
    assert!(page.contains(command), "{page}");
    let bucket = "command_duration_seconds_bucket{le=\"0.005\",program=\"mkfs.ext4\"} 1";
    assert!(page.contains(bucket), "{page}");
}

#[test]
fn the_page_says_what_runs_and_how_large_it_is_and_ends_as_the_format_demands() {
    let page = page(&Metrics::new());
    assert!(
        page.contains(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"")),
        "{page}"
    );
    let resident = page
        .lines()
        .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
        .unwrap();
    assert!(resident.parse::<u64>().unwrap() > 100_000, "{resident}");
    let open = page
        .lines()
        .find_map(|line| line.strip_prefix("process_open_fds "))
        .unwrap();
    assert!(open.parse::<u64>().unwrap() >= 3, "{open}");
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn of_a_connection_that_is_gone_nothing_is_told_any_more() {
    let metrics = Metrics::new();
    let call = |name: &str| {
        let name = Arc::from(name);
        metrics.connection_loaded(&name, &Arc::from("memory"), None);
        let mut rpc = metrics.rpc("CreateVolume");
        rpc.on_connection(&name);
        rpc.ended(Code::Ok);
        metrics.backend_call(&name, "create_volume", Outcome::Done, Duration::ZERO);
        metrics.connection_refused(&name);
        metrics.connection_health(&name, true);
    };
    call("nas");
    call("other");
    let mut late = metrics.rpc("CreateVolume");
    late.on_connection(&Arc::from("nas"));
    let before = page(&metrics).matches("\"nas\"").count();
    metrics.connection_gone(&Arc::from("nas"), &Arc::from("memory"));
    let after = page(&metrics);
    assert!(!after.contains("\"nas\""), "{after}");
    assert_eq!(
        after.matches("\"other\"").count(),
        before,
        "the others stay"
    );
    // What ends later does not bring it back.
    late.ended(Code::Ok);
    metrics.backend_call(
        &Arc::from("nas"),
        "create_volume",
        Outcome::Done,
        Duration::ZERO,
    );
    assert!(!page(&metrics).contains("\"nas\""));
    call("nas");
    assert_eq!(page(&metrics).matches("\"nas\"").count(), before);
}
