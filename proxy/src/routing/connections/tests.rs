//! Drivers that are dropped, replaced, and held by the calls that found them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driver_core::config::CommonConfig;

use super::*;
use crate::testing::{Gate, Memory};

fn connection(driver: &Arc<Memory>) -> Connection {
    let document =
        driver_core::config::Document::parse("driver: memory", &driver_core::config::NoEnvironment);
    let name = ConnectionName::parse("nas").expect("a name");
    Connection::among(name, driver.clone(), &document.expect("yaml"))
}

async fn found(connections: &Connections) -> Result<Arc<Connection>, Error> {
    let handle = VolumeHandle::parse("v:nas/a").expect("a handle");
    Ok(connections.of_volume(&handle).await?.0)
}

#[tokio::test(start_paused = true)]
async fn an_idle_driver_is_dropped_and_built_again() {
    let built = Arc::new(AtomicUsize::new(0));
    let (driver, counter) = (Memory::new(), built.clone());
    let again = driver.clone();
    let blueprint = Blueprint::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(connection(&again))
    });
    let connections = Connections::named(Names::default());
    connections.put(LazyConnection::new(connection(&driver), blueprint));
    let idle = Duration::from_mins(1);
    let let_go = || {
        connections
            .all()
            .iter()
            .filter(|lazy| lazy.let_go(idle))
            .count()
    };
    let call = found(&connections).await.expect("there");
    tokio::time::advance(idle).await;
    assert_eq!(let_go(), 0, "a call still uses it");
    drop(call);
    assert_eq!(let_go(), 1);
    assert_eq!(let_go(), 0, "it is gone");
    drop(found(&connections).await.expect("built again"));
    drop(found(&connections).await.expect("there"));
    assert_eq!(built.load(Ordering::Relaxed), 1);
    assert_eq!(let_go(), 0, "it was just used");
}

#[tokio::test(start_paused = true)]
async fn a_question_to_all_is_no_use_and_builds_what_was_let_go_only_once() {
    let built = Arc::new(AtomicUsize::new(0));
    let (driver, counter) = (Memory::new(), built.clone());
    let again = driver.clone();
    let blueprint = Blueprint::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(connection(&again))
    });
    let lazy = Arc::new(LazyConnection::new(connection(&driver), blueprint));
    let idle = Duration::from_mins(1);
    tokio::time::advance(idle).await;
    drop(lazy.look().await.expect("it is there"));
    assert!(lazy.let_go(idle), "it is idle");
    let looks = [lazy.look(), lazy.look(), lazy.look()];
    for look in futures_util::future::join_all(looks).await {
        drop(look.expect("built"));
    }
    assert_eq!(built.load(Ordering::Relaxed), 1);
    assert!(!lazy.let_go(idle), "the next question will come");
    assert!(lazy.peek_in_use().is_none(), "it is not in use");
    tokio::time::advance(idle).await;
    assert!(lazy.let_go(idle), "nor since");
    let refused = LazyConnection::refused(lazy.name().clone(), "why");
    let error = Arc::new(refused).look().await.expect_err("no file");
    assert!(
        error.chain().contains("cannot be used: why"),
        "{}",
        error.chain()
    );
}

#[tokio::test(start_paused = true)]
async fn a_build_that_hangs_costs_each_call_a_limited_time_and_one_thread() {
    let built = Arc::new(AtomicUsize::new(0));
    let (driver, counter, gate) = (Memory::new(), built.clone(), Arc::<Gate>::default());
    let (again, wait) = (driver.clone(), gate.clone());
    let blueprint = Blueprint::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        wait.pass();
        Ok(connection(&again))
    });
    let connections = Connections::named(Names::default());
    connections.put(LazyConnection::new(connection(&driver), blueprint));
    let lazy = connections.all().remove(0);
    assert!(lazy.let_go(Duration::ZERO));
    let shut = gate.shut();
    let waiting: Vec<_> = (0..100)
        .map(|n| {
            let (connections, lazy) = (connections.clone(), lazy.clone());
            tokio::spawn(async move {
                match n % 2 {
                    0 => found(&connections).await,
                    _ => lazy.look().await,
                }
            })
        })
        .collect();
    while built.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    for one in waiting {
        let error = one.await.expect("no panic").expect_err("late");
        assert_eq!(error.kind(), Kind::Pending);
    }
    let start = tokio::time::Instant::now();
    found(&connections).await.expect_err("still late");
    lazy.look().await.expect_err("still late");
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(shut);
    while lazy.peek().is_none() {
        tokio::task::yield_now().await;
    }
    drop(found(&connections).await.expect("there"));
    assert_eq!(built.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn drivers_whose_building_hangs_keep_no_other_from_being_built() {
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Arc::<Gate>::default());
    let let_go = |blueprint| {
        let lazy = Arc::new(LazyConnection::new(connection(&Memory::new()), blueprint));
        assert!(lazy.let_go(Duration::ZERO));
        lazy
    };
    let look = |lazy: Arc<LazyConnection>| tokio::spawn(async move { lazy.look().await });
    let shut = gate.shut();
    let hung: Vec<_> = (0..64)
        .map(|_| {
            let (started, gate, driver) = (started.clone(), gate.clone(), Memory::new());
            look(let_go(Blueprint::new(move || {
                started.fetch_add(1, Ordering::Relaxed);
                gate.pass();
                Ok(connection(&driver))
            })))
        })
        .collect();
    while started.load(Ordering::Relaxed) < hung.len() {
        tokio::task::yield_now().await;
    }
    let driver = Memory::new();
    let good = look(let_go(Blueprint::new(move || Ok(connection(&driver)))));
    good.await.expect("no panic").expect("built");
    drop(shut);
    for one in hung {
        one.await.expect("no panic").expect("built in the end");
    }
}

#[tokio::test(start_paused = true)]
async fn the_connections_of_a_class_are_opened_at_the_same_time() {
    let all_at_once = Arc::new(std::sync::Barrier::new(3));
    let connections = Connections::named(Names::default());
    for name in ["a", "b", "c"] {
        let named = move || {
            let name = ConnectionName::parse(name).expect("a name");
            Connection::of(name, Memory::new(), &CommonConfig::default())
        };
        let others = Arc::clone(&all_at_once);
        let blueprint = Blueprint::new(move || {
            others.wait();
            Ok(named())
        });
        connections.put(LazyConnection::new(named(), blueprint));
    }
    for lazy in connections.all() {
        assert!(lazy.let_go(Duration::ZERO));
    }
    let class = [("connections".to_owned(), "a,b,c".to_owned())];
    let class = driver_core::Parameters::new(class.into());
    let opened = connections.for_new(&class).await.expect("all of them");
    assert_eq!(opened.len(), 3);
}

#[tokio::test]
async fn a_driver_that_cannot_be_built_again_says_why_each_time() {
    let driver = Memory::new();
    let blueprint = Blueprint::new({
        let tried = AtomicUsize::new(0);
        move || {
            assert_ne!(tried.fetch_add(1, Ordering::Relaxed), 0, "a defect");
            Err(driver_core::config::ConfigError::new("no such file"))
        }
    });
    let connections = Connections::named(Names::default());
    connections.put(LazyConnection::new(connection(&driver), blueprint));
    assert!(connections.all()[0].let_go(Duration::ZERO));
    for why in ["defect", "no such file"] {
        let error = found(&connections).await.expect_err(why);
        assert_eq!(error.kind(), Kind::Internal);
        assert!(error.chain().contains(why), "{}", error.chain());
    }
}

#[tokio::test]
async fn a_call_keeps_the_connection_that_it_found_and_the_old_one_goes_with_its_last_call() {
    let (old, new) = (Memory::new(), Memory::new());
    let connections = Connections::named(Names::default());
    let name = ConnectionName::parse("nas").expect("a name");
    connections.put(LazyConnection::fixed(connection(&old)));
    let call = found(&connections).await.expect("there");
    connections.put(LazyConnection::fixed(connection(&new)));
    assert!(!Arc::ptr_eq(
        &call,
        &found(&connections).await.expect("there")
    ));
    assert_eq!(Arc::strong_count(&old), 2, "the call holds it");
    drop(call);
    assert_eq!(Arc::strong_count(&old), 1);
    connections.remove(&name);
    assert!(connections.is_empty());
    assert_eq!(Arc::strong_count(&new), 1);
}

#[tokio::test]
async fn a_single_connection_gives_out_the_ids_of_its_driver_whatever_they_look_like() {
    let driver = Memory::new();
    let config = CommonConfig::default();
    let connections =
        Connections::single(Connection::of(ConnectionName::unnamed(), driver, &config));
    let handle = VolumeHandle::parse("v:nas/a").expect("a handle");
    let (only, id) = connections.of_volume(&handle).await.expect("there");
    assert_eq!(
        (only.volume_handle(&id), id.as_str()),
        ("v:nas/a".to_owned(), "v:nas/a")
    );
}

#[tokio::test]
async fn handles_without_a_name_follow_a_connection_that_was_renamed() {
    let driver = Memory::new();
    let parse = |name: &str| ConnectionName::parse(name).expect("a name");
    let connections = Connections::named(Names {
        aliases: [(parse("old"), parse("nas"))].into(),
        bare: Bare::Of(parse("old")),
        ..Names::default()
    });
    connections.put(LazyConnection::fixed(connection(&driver)));
    let bare = VolumeHandle::parse("pvc-1").expect("a handle");
    let (found, id) = connections.of_volume(&bare).await.expect("there");
    assert_eq!((found.name(), id.as_str()), (&parse("nas"), "pvc-1"));
    assert_eq!(connections.name_of(&bare), parse("nas"));
}
