//! A websocket connection: reading with a delay, limits of frames, the idle time of nginx, cuts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::Generation;
use crate::counters::Travel;
use crate::nas::Nas;
use crate::session::{Out, Protocol, Session};
use crate::{jsonrpc, legacy};

/// nginx closes a connection on which the server sends nothing for this long.
const IDLE: Duration = Duration::from_mins(1);
/// Before a login, and after it. Since 24.10.
const FRAME: (usize, usize) = (8192, 65_536);

/// Serves one connection until it ends.
pub(crate) async fn serve<S>(
    nas: Arc<Nas>,
    session: Arc<Session>,
    mut outbox: mpsc::UnboundedReceiver<Out>,
    mut socket: WebSocketStream<S>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    nas.register(&session);
    nas.counters.connected();
    if nas.faults.settings().refuse_address {
        let text = "You are not allowed to access this resource";
        close(&mut socket, 1008, text).await;
        return;
    }
    let mut cuts = nas.cuts();
    let (frames, queue) = mpsc::unbounded_channel();
    let worker = Worker(tokio::spawn(work(
        Arc::clone(&nas),
        Arc::clone(&session),
        queue,
    )));
    let mut sent = nas.clock.now();
    loop {
        let idle = nas.faults.settings().idle_timeout;
        tokio::select! {
            biased;
            _ = cuts.changed() => break,
            out = outbox.recv() => match out {
                Some(Out::Text(text)) => {
                    if socket.send(Message::text(text)).await.is_err() {
                        break;
                    }
                    sent = nas.clock.now();
                }
                Some(Out::Close(code, reason)) => {
                    close(&mut socket, code, reason).await;
                    break;
                }
                Some(Out::Cut) | None => break,
            },
            frame = socket.next() => match frame {
                Some(Ok(Message::Text(text))) => {
                    let due = Instant::now() + nas.faults.settings().round_trip();
                    let travel = Travel::begin(&nas);
                    drop(frames.send((due, text.as_str().to_owned(), travel)));
                }
                Some(Ok(Message::Binary(_))) => {
                    close(&mut socket, 1003, "Invalid websocket message type").await;
                    break;
                }
                Some(Ok(Message::Ping(_))) => {
                    // The answer is queued by the library.
                    if socket.flush().await.is_err() {
                        break;
                    }
                    sent = nas.clock.now();
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
            () = nas.clock.reach(sent + IDLE), if idle => break,
        }
    }
    drop(worker);
}

/// Ends the reading of frames with the connection.
struct Worker(tokio::task::JoinHandle<()>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    code: u16,
    reason: &str,
) {
    let frame = CloseFrame {
        code: CloseCode::from(code),
        reason: reason.to_owned().into(),
    };
    // The client may be gone already.
    drop(socket.close(Some(frame)).await);
    // It reads the frame before the connection ends.
    let rest = async { while let Some(Ok(_)) = socket.next().await {} };
    drop(tokio::time::timeout(Duration::from_secs(1), rest).await);
}

/// Executes frames in their order of arrival; calls run side by side.
async fn work(
    nas: Arc<Nas>,
    session: Arc<Session>,
    mut queue: mpsc::UnboundedReceiver<(Instant, String, Travel)>,
) {
    // 26 cancels the calls of a connection that dies; older releases finish them.
    let mut calls = JoinSet::new();
    let mut connected = false;
    while let Some((due, text, travel)) = queue.recv().await {
        tokio::time::sleep_until(due).await;
        let generation = nas.generation();
        if generation >= Generation::V24_10 && !fits(&session, text.len()) {
            continue;
        }
        let call = match session.protocol {
            Protocol::JsonRpc => jsonrpc::read(&session, &text).map(|request| {
                boxed(jsonrpc::run(
                    Arc::clone(&nas),
                    Arc::clone(&session),
                    request,
                    travel,
                ))
            }),
            _ => match legacy::read(&nas, &session, &mut connected, &text) {
                legacy::Message::Call {
                    id,
                    method,
                    params,
                    bytes,
                } => Some(boxed(legacy::run(
                    Arc::clone(&nas),
                    Arc::clone(&session),
                    id,
                    method,
                    params,
                    bytes,
                    travel,
                ))),
                legacy::Message::Subscribe { id, name } => {
                    legacy::subscribe(&nas, &session, &id, &name);
                    None
                }
                legacy::Message::Done => None,
            },
        };
        if let Some(call) = call {
            if generation.is_26() {
                calls.spawn(call);
            } else {
                tokio::spawn(call);
            }
        }
        while calls.try_join_next().is_some() {}
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn boxed(task: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(task)
}

fn fits(session: &Session, length: usize) -> bool {
    if session.login().is_none() && length > FRAME.0 {
        session.send(Out::Close(
            1007,
            "Anonymous connection max message length is 8 kB",
        ));
        return false;
    }
    if length > FRAME.1 {
        session.send(Out::Close(1009, "Max message length is 64 kB"));
        return false;
    }
    true
}
