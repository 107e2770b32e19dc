//! Parties of which many hang.

use super::*;

fn try_take(threads: &Threads) -> Option<Held> {
    threads.pool.take(&threads.party).ok()?.ok()
}

fn all(threads: &Threads) -> Vec<Held> {
    std::iter::from_fn(|| try_take(threads)).collect()
}

async fn until_one_waits(pool: &Pool) {
    while pool.quiet().2 == 0 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn however_many_hang_with_their_probes_another_still_gets_threads_and_a_probe() {
    let pool = ThreadPool::new(384);
    let mut kept = Vec::new();
    for hung in 1..=60 {
        let name = hung.to_string();
        for threads in [
            pool.party(format!("{name} (copies)")),
            pool.party(name.as_str()),
            pool.probe(name.as_str()),
        ] {
            let held = all(&threads);
            assert!(!held.is_empty(), "the {hung}th");
            kept.extend(held);
        }
        for other in [pool.party("other"), pool.probe("other")] {
            assert!(!all(&other).is_empty(), "{hung} hang");
        }
    }
    drop(kept);
    assert_eq!(all(&pool.party("other")).len(), 27);
    assert_eq!(pool.calls.quiet(), (384, 0, 0));
    assert_eq!(pool.probes.quiet(), (PROBES, 0, 0));
}

#[test]
fn what_comes_in_place_of_what_hangs_has_threads_of_its_own_but_not_without_end() {
    let pool = ThreadPool::new(384);
    let mut hung = Vec::new();
    for _ in 0..8 {
        let held = all(&pool.party("nas"));
        assert!(!held.is_empty(), "it was repaired");
        hung.extend(held);
    }
    assert!(hung.len() <= 2 * 27 + 8, "{}", hung.len());
    assert!(try_take(&pool.party("nas")).is_none());
    assert!(all(&pool.party("other")).len() > 10);
    hung.clear();
    assert!(try_take(&pool.party("nas")).is_some());
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_thread_waits_for_the_next_that_comes_back_in_the_order_of_asking() {
    let threads = ThreadPool::new(0).probe("node");
    let held = threads.take().await.expect("free");
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..3 {
        let (threads, sender) = (threads.clone(), sender.clone());
        tokio::spawn(async move {
            let held = threads.take().await;
            sender.send(number).expect("the receiver exists");
            drop(held.expect("a thread"));
        });
    }
    while threads.pool.quiet().2 < 3 {
        tokio::task::yield_now().await;
    }
    drop(held);
    for number in 0..3 {
        assert_eq!(order.recv().await, Some(number));
    }
    assert_eq!(threads.pool.quiet(), (PROBES, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_has_gone_while_it_waited_takes_no_thread_along() {
    let threads = ThreadPool::new(0).probe("node");
    let held = threads.take().await.expect("free");
    let waits = tokio::spawn({
        let threads = threads.clone();
        async move { threads.take().await.map(drop) }
    });
    until_one_waits(&threads.pool).await;
    waits.abort();
    assert!(waits.await.expect_err("gone").is_cancelled());
    drop(held);
    assert_eq!(threads.pool.quiet(), (PROBES, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_party_whose_threads_hang_for_long_is_refused_at_once() {
    let pool = ThreadPool::new(384);
    let threads = pool.party("nas");
    let _held = all(&threads);
    let start = tokio::time::Instant::now();
    let full = threads.take().await.expect_err("none comes back");
    assert_eq!((full, start.elapsed()), (Full::Own(27), WAIT_TIMEOUT));
    assert!(!threads.are_away());
    tokio::time::advance(Duration::from_secs(20)).await;
    let start = tokio::time::Instant::now();
    let full = threads.take().await.expect_err("they hang");
    assert_eq!((full, start.elapsed()), (Full::Away(27), Duration::ZERO));
    assert!(threads.are_away());
    let next = pool.party("nas");
    assert!(next.take().await.is_ok() && !next.are_away());
}

#[test]
fn returning_a_thread_checks_one_waiter_of_each_party_however_many_wait() {
    let pool = ThreadPool::new(384);
    let hung: Vec<_> = (0..20).map(|n| pool.party(n.to_string())).collect();
    let held: Vec<_> = hung.iter().flat_map(all).collect();
    let mut waiting = Vec::new();
    for _ in 0..100 {
        for threads in &hung {
            let wait = threads.pool.take(&threads.party).expect("room to wait");
            waiting.push(wait.expect_err("no thread"));
        }
    }
    let well = pool.party("well");
    let before = well.pool.looks();
    for _ in 0..10 {
        drop(try_take(&well).expect("a thread"));
    }
    assert!(well.pool.looks() - before <= 10 * hung.len());
    assert_eq!(well.pool.quiet().2, waiting.len());
    // Among the parties, too, who has come first is the first.
    let last = waiting.pop().expect("one waits");
    drop((held, last));
    for waits in waiting {
        drop(waits.blocking_recv().expect("a thread"));
    }
}

#[tokio::test(start_paused = true)]
async fn one_long_work_among_short_ones_is_no_sign_that_storage_hangs() {
    let pool = ThreadPool::new(384);
    let threads = pool.party("nas");
    let _long = try_take(&threads).expect("a thread");
    tokio::time::advance(Duration::from_mins(1)).await;
    let mut short = all(&threads);
    assert!(!threads.are_away(), "the others started only now");
    let waits = tokio::spawn({
        let threads = threads.clone();
        async move { threads.take().await }
    });
    until_one_waits(&threads.pool).await;
    drop(short.pop());
    assert!(waits.await.expect("no panic").is_ok(), "one came back");
}

#[tokio::test(start_paused = true)]
async fn a_party_is_not_blamed_if_others_use_the_threads() {
    let pool = ThreadPool::new(8);
    let parties = (0..8).map(|n| pool.party(n.to_string()));
    let held: Vec<_> = parties.filter_map(|party| try_take(&party)).collect();
    assert_eq!(held.len(), 8);
    let threads = pool.party("other").within(Duration::from_secs(1));
    let full = threads.take().await.expect_err("none is free");
    assert_eq!(full, Full::Others(Duration::from_secs(1)));
    assert!(is_for_lack_of_threads(&refused("ask", full)));
    assert!(!is_for_lack_of_threads(&refused("ask", Full::Own(1))));
    for (full, hangs) in [(Full::Own(1), false), (Full::Away(1), true)] {
        let error = refused("ask", full);
        assert_eq!(is_for_threads_that_hang(&error), hangs);
        assert!(is_for_want_of_a_thread(&error));
    }
    let other = Error::new(csi_types::error::Kind::Pending, "ask");
    assert!(!is_for_want_of_a_thread(&other));
}

#[tokio::test(start_paused = true)]
async fn threads_are_taken_on_the_account_of_the_task_and_freely_without_one() {
    assert!(matches!(take().await, Ok(None)));
    let one = ThreadPool::new(10).probe("one");
    let (first, second) = one.on_account(async { (take().await, take().await) }).await;
    assert!(matches!(first, Ok(Some(_))));
    assert_eq!(second.expect_err("full"), Full::Own(1));
}
