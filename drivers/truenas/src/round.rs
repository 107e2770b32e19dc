//! A question that several callers have at one time: it is asked once for all who came before it was asked.
//!
//! An answer to a question that was asked earlier is given to none, and no answer is kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use crate::{Error, Kind};

type Outcome<T> = Result<Arc<T>, Error>;

/// The round that can be joined, if there is one. Its task has it.
type Open<T> = Mutex<Weak<watch::Sender<Stage<T>>>>;

/// The progress of a round.
enum Stage<T> {
    /// It waits for its turn.
    Open,
    Asked,
    Answered(Outcome<T>),
}

/// The rounds of one question.
pub(crate) struct Rounds<T>(Arc<Open<T>>);

/// The part of one caller in a round.
pub(crate) struct Member<T>(watch::Receiver<Stage<T>>);

fn lock<T>(open: &Open<T>) -> MutexGuard<'_, Weak<watch::Sender<Stage<T>>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on it cannot be joined. `false`: all callers have given up.
fn close<T>(open: &Open<T>, round: &watch::Sender<Stage<T>>) -> bool {
    let mut open = lock(open);
    *open = Weak::new();
    round.receiver_count() > 0
}

/// Its task has ended without an answer.
fn lost() -> Error {
    Error::new(Kind::UnknownOutcome, "the question was given up").nothing_done()
}

// === impl Rounds ===

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Rounds<T> {
    /// Joins the open round, or opens one: a task of its own waits for `turn`, and then asks, also when its callers give
    /// up while it does.
    pub(crate) fn join<G, A>(
        &self,
        turn: impl Future<Output = G> + Send + 'static,
        ask: impl FnOnce(G) -> A + Send + 'static,
    ) -> Member<T>
    where
        G: Send + 'static,
        A: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let mut open = lock(&self.0);
        if let Some(round) = open.upgrade() {
            return Member(round.subscribe());
        }
        let (round, member) = watch::channel(Stage::Open);
        let round = Arc::new(round);
        *open = Arc::downgrade(&round);
        drop(open);
        let open = Arc::clone(&self.0);
        tokio::spawn(async move {
            let turn = turn.await;
            if close(&open, &round) {
                round.send_replace(Stage::Asked);
                let answer = ask(turn).await;
                round.send_replace(Stage::Answered(answer.map(Arc::new)));
            }
        });
        Member(member)
    }
}

// === impl Member ===

impl<T> Member<T> {
    /// Waits until it is asked.
    pub(crate) async fn asked(&mut self) -> Result<(), Error> {
        let asked = self.0.wait_for(|stage| !matches!(stage, Stage::Open)).await;
        asked.map(drop).map_err(|_| lost())
    }

    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Outcome<T> {
        let is_there = |stage: &Stage<T>| matches!(stage, Stage::Answered(_));
        let answered = self.0.wait_for(is_there).await;
        match answered.as_deref() {
            Ok(Stage::Answered(outcome)) => outcome.clone(),
            _ => Err(lost()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A question whose answers are counted.
    #[derive(Default)]
    struct Question {
        rounds: Rounds<usize>,
        turn: Arc<tokio::sync::Mutex<()>>,
        asked: Arc<AtomicUsize>,
    }

    impl Question {
        fn join(&self) -> Member<usize> {
            let asked = Arc::clone(&self.asked);
            let turn = Arc::clone(&self.turn).lock_owned();
            self.rounds.join(turn, move |turn| async move {
                let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::task::yield_now().await;
                drop(turn);
                Ok(number)
            })
        }
    }

    #[tokio::test]
    async fn one_answer_is_for_all_who_came_before_it_was_asked_and_for_none_later() {
        let question = Question::default();
        let busy = question.turn.lock().await;
        let mut early = [question.join(), question.join(), question.join()];
        drop(busy);
        for member in &mut early {
            member.asked().await.expect("asked");
        }
        let mut late = question.join();
        for member in &mut early {
            assert_eq!(*member.answer().await.expect("an answer"), 1);
        }
        assert_eq!(*late.answer().await.expect("an answer"), 2);
    }

    #[tokio::test]
    async fn what_no_caller_waits_for_is_not_asked() {
        let question = Question::default();
        let busy = question.turn.lock().await;
        drop(question.join());
        // Its task waits for its turn.
        tokio::task::yield_now().await;
        drop(busy);
        drop(question.turn.lock().await);
        assert_eq!(question.asked.load(Ordering::SeqCst), 0);
        assert_eq!(*question.join().answer().await.expect("an answer"), 1);
    }

    fn defect() -> Error {
        panic!("a defect")
    }

    #[tokio::test]
    async fn an_answer_that_fails_is_the_answer_of_all_and_a_defect_is_none() {
        let rounds: Rounds<usize> = Rounds::default();
        let denied = || async { Err::<usize, _>(Error::new(Kind::Denied, "no")) };
        let turn = std::future::ready(());
        let mut first = rounds.join(turn.clone(), move |()| denied());
        let mut second = rounds.join(turn.clone(), move |()| denied());
        for member in [&mut first, &mut second] {
            let error = member.answer().await.expect_err("denied");
            assert_eq!(error.kind(), Kind::Denied);
        }
        let mut third = rounds.join(turn, |()| async { Err::<usize, _>(defect()) });
        let error = third.answer().await.expect_err("a defect");
        assert_eq!(error.kind(), Kind::UnknownOutcome);
    }
}
