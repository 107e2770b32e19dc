//! Queries to many connections, a few at a time.
//!
//! Asking a thousand at once would take all threads. One that does not answer gives up its turn,
//! and may still answer later.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;

/// The most concurrent queries. With their turns all of a hundred silent connections are asked within seven seconds.
const AT_ONCE: usize = 8;
/// One that takes longer gives up its turn. A sound connection answers sooner.
const TURN: Duration = Duration::from_millis(500);

/// All answers, in the order of the questions.
pub(super) async fn in_turns<F: Future>(questions: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let turns = Semaphore::new(AT_ONCE);
    let questions = questions
        .into_iter()
        .map(|question| in_turn(&turns, question));
    join_all(questions).await
}

async fn in_turn<F: Future>(turns: &Semaphore, question: F) -> F::Output {
    let turn = turns.acquire().await;
    let mut question = pin!(question);
    let answered = tokio::time::timeout(TURN, &mut question).await;
    drop(turn);
    match answered {
        Ok(answer) => answer,
        Err(_) => question.await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn few_are_asked_at_once_and_those_that_are_silent_keep_no_turn() {
        let (now, most) = (Cell::new(0), Cell::new(0));
        let quick = |n: usize| {
            let (now, most) = (&now, &most);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                tokio::task::yield_now().await;
                now.set(now.get() - 1);
                n
            }
        };
        let in_order: Vec<_> = (0..100).collect();
        assert_eq!(in_turns((0..100).map(quick)).await, in_order);
        assert_eq!(most.get(), AT_ONCE);
        let answered = Cell::new(0);
        let some_hang = in_turns((0..100).map(async |n: usize| {
            if n < 2 * AT_ONCE {
                pending::<()>().await;
            }
            answered.set(answered.get() + 1);
        }));
        let waited = tokio::time::timeout(Duration::from_mins(1), some_hang).await;
        assert!(waited.is_err(), "some never answer");
        assert_eq!(answered.get(), 100 - 2 * AT_ONCE);
    }
}
