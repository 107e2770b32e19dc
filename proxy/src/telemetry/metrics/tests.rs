use super::*;

const NO_REASON: Option<fn() -> String> = None;

fn on(connection: &Arc<str>) -> Subject {
    Subject {
        connection: connection.clone(),
        ..Subject::default()
    }
}

fn page(metrics: &Metrics) -> String {
    metrics.encode().unwrap()
}

#[test]
fn an_rpc_is_in_flight_until_it_ends_and_then_counted_with_its_code_and_connection() {
    let metrics = Metrics::new();
    let mut rpc = metrics.rpc(Rpc::CreateVolume);
    assert!(page(&metrics).contains("omnibus_csi_rpc_in_flight{rpc=\"CreateVolume\"} 1\n"));
    rpc.is_about(on(&Arc::from("nas")));
    rpc.ended(Code::AlreadyExists, NO_REASON);
    let page = page(&metrics);
    assert!(
        page.contains("omnibus_csi_rpc_in_flight{rpc=\"CreateVolume\"} 0\n"),
        "{page}"
    );
    let counted =
        "omnibus_csi_rpc_total{rpc=\"CreateVolume\",code=\"ALREADY_EXISTS\",connection=\"nas\"} 1";
    assert!(page.contains(counted), "{page}");
    let timed = "omnibus_csi_rpc_duration_seconds_count{rpc=\"CreateVolume\",connection=\"nas\"} 1";
    assert!(page.contains(timed), "{page}");
}

#[test]
fn an_rpc_whose_future_was_dropped_is_counted_as_well() {
    let metrics = Metrics::new();
    drop(metrics.rpc(Rpc::Probe));
    metrics.rpc_abandoned("Probe");
    let page = page(&metrics);
    let counted = "omnibus_csi_rpc_total{rpc=\"Probe\",code=\"UNKNOWN\",connection=\"\"} 1";
    assert!(page.contains(counted), "{page}");
    assert!(
        page.contains("omnibus_csi_rpc_abandoned_total{rpc=\"Probe\"} 1"),
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
    let call = "omnibus_csi_backend_calls_total{connection=\"nas\",verb=\"create_volume\",outcome=\"failed\"} 1";
    assert!(page.contains(call), "{page}");
    let command = "omnibus_csi_commands_total{program=\"mkfs.ext4\",outcome=\"unknown\"} 1";
    assert!(page.contains(command), "{page}");
    let bucket =
        "omnibus_csi_command_duration_seconds_bucket{le=\"0.005\",program=\"mkfs.ext4\"} 1";
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
    for name in [
        "process_virtual_memory_bytes",
        "process_max_fds",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
    ] {
        let is_figure = |line: &str| line.starts_with(&format!("{name} "));
        assert!(page.lines().any(is_figure), "{name}: {page}");
    }
}

#[test]
fn a_connection_that_is_gone_has_no_metrics() {
    let metrics = Metrics::new();
    let call = |name: &str| {
        let name = Arc::from(name);
        metrics.connection_loaded(&name, &Arc::from("memory"), None);
        let mut rpc = metrics.rpc(Rpc::CreateVolume);
        rpc.is_about(on(&name));
        rpc.ended(Code::Ok, NO_REASON);
        metrics.backend_call(&name, "create_volume", Outcome::Done, Duration::ZERO);
        metrics.connection_refused(&name);
        metrics.connection_health(&name, true);
        metrics.lost_export(&name, Outcome::Done);
        metrics.lost_export(&name, Outcome::Failed);
    };
    call("nas");
    call("other");
    let mut late = metrics.rpc(Rpc::CreateVolume);
    late.is_about(on(&Arc::from("nas")));
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
    late.ended(Code::Ok, NO_REASON);
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

/// One of everything.
fn full() -> Metrics {
    let metrics = Metrics::new();
    let nas: Arc<str> = Arc::from("nas");
    metrics.connections(1);
    metrics.folders_unread(0);
    metrics.connection_loaded(&nas, &Arc::from("memory"), None);
    metrics.connection_health(&nas, true);
    metrics.lost_export(&nas, Outcome::Done);
    for usage in [
        Usage::Available,
        Usage::Volumes,
        Usage::Orphans,
        Usage::Unhealthy,
    ] {
        metrics.connection_usage(&nas, usage, Some(7));
    }
    metrics.backend_call(&nas, "create_volume", Outcome::Done, Duration::ZERO);
    metrics.command("mount", Outcome::Done, Duration::ZERO);
    metrics.rpc_abandoned("Probe");
    drop(metrics.rpc(Rpc::Probe));
    metrics
}

#[test]
fn every_metric_has_the_prefix_of_this_program_or_is_about_the_process() {
    let page = full().encode_text().unwrap();
    let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = names.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        let known = name.starts_with("omnibus_csi_") || name.starts_with("process_");
        assert!(known, "{name}");
    }
}

#[test]
fn in_the_text_format_each_sample_follows_the_type_of_its_name() {
    let page = full().encode_text().unwrap();
    let mut current = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            current = rest.split(' ').next().unwrap();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "the help comes first");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        } else {
            assert!(line.starts_with(current), "{line} after {current}");
        }
    }
}

#[test]
fn a_measurement_of_a_storage_is_reported_until_it_cannot_be_measured() {
    let metrics = Metrics::new();
    let nas: Arc<str> = Arc::from("nas");
    let line = "omnibus_csi_connection_available_bytes{connection=\"nas\"} 7\n";
    metrics.connection_usage(&nas, Usage::Available, Some(7));
    assert!(page(&metrics).contains(line));
    metrics.connection_usage(&nas, Usage::Available, None);
    assert!(!page(&metrics).contains("connection_available_bytes{"));
    metrics.connection_gone(&nas, &Arc::from("memory"));
    metrics.connection_usage(&nas, Usage::Available, Some(7));
    assert!(
        !page(&metrics).contains(line),
        "a connection that is gone has no series"
    );
}
