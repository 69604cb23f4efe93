//! A broker's lease: one stream a broker, each heartbeat answered by what C-16 makes of it. The stream breaking is how a dead
//! process is noticed at once: after a short grace its broker is fenced, unless the same life opened another stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use epoka_proto::error::ErrorCode;
use epoka_proto::events::now_unix_micros;
use epoka_proto::ids::{BrokerEpoch, BrokerId};
use epoka_proto::metadata::BrokerRegistration;
use epoka_proto::v1::{HeartbeatRequest, HeartbeatResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use super::Answers;
use crate::cluster::{Cluster, Command};
use crate::liveness::{Beat, Next, StreamId, is_caught_up};
use crate::shared::Shared;

/// Answers a broker need not have read yet; one that reads none at all is not worth more memory.
const UNREAD: usize = 16;

pub(super) fn serve(
    shared: Arc<Shared>,
    requests: Streaming<HeartbeatRequest>,
) -> Result<Response<Answers<HeartbeatResponse>>, Status> {
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    shared.require_active()?;
    let (answers, receiver) = mpsc::channel(UNREAD);
    let lease = Lease {
        stream: StreamId(STREAMS.fetch_add(1, Ordering::Relaxed)),
        shared,
        answers,
        holder: None,
    };
    tokio::spawn(lease.run(requests));
    Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
}

/// One heartbeat stream.
struct Lease {
    shared: Arc<Shared>,
    stream: StreamId,
    answers: mpsc::Sender<Result<HeartbeatResponse, Status>>,
    /// Whose stream it is, known from the first heartbeat.
    holder: Option<(BrokerId, BrokerEpoch)>,
}

impl Lease {
    async fn run(mut self, mut requests: Streaming<HeartbeatRequest>) {
        let shared = self.shared.clone();
        let mut deposed = std::pin::pin!(shared.deposed());
        let mut progress = self.shared.progress.subscribe();
        let mut last: Option<HeartbeatRequest> = None;
        loop {
            let waits_for_others = last.as_ref().is_some_and(|r| r.want_shutdown);
            tokio::select! {
                biased;
                status = &mut deposed => {
                    let _ = self.answers.send(Err(status)).await;
                    return;
                }
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        if !self.heard(&request).await {
                            break;
                        }
                        last = Some(request);
                    }
                    Ok(None) | Err(_) => break,
                },
                // What a draining broker waits for may come true through another one's heartbeat.
                _ = progress.changed(), if waits_for_others => {
                    if let Some(request) = &last && !self.answer(request, true).await {
                        break;
                    }
                }
                () = self.answers.closed() => break,
            }
        }
        self.closed().await;
    }

    /// Renews the lease and answers. False: the stream is at its end.
    async fn heard(&mut self, request: &HeartbeatRequest) -> bool {
        let id = BrokerId(request.broker_id);
        let epoch = BrokerEpoch(request.broker_epoch);
        if self.registration(id, epoch).is_none() {
            return self.refuse().await;
        }
        let now = self.shared.now();
        let beat = beat(request);
        {
            let mut liveness = self.shared.liveness.lock();
            if self.holder != Some((id, epoch)) {
                liveness.stream_opened(id, epoch, self.stream, now);
            }
            liveness.heard(id, epoch, &beat, now);
        }
        self.holder = Some((id, epoch));
        self.shared.progress.send_modify(|n| *n = n.wrapping_add(1));
        self.answer(request, false).await
    }

    /// Carries out what the heartbeat asks for and answers it; with `quietly`, only news is answered.
    async fn answer(&mut self, request: &HeartbeatRequest, quietly: bool) -> bool {
        let id = BrokerId(request.broker_id);
        let epoch = BrokerEpoch(request.broker_epoch);
        let beat = beat(request);
        let newest = self.shared.metadata.newest();
        let next = self.shared.metadata.read(|cluster| {
            let image = cluster.image();
            let registration = image.brokers.get(&id).filter(|b| b.epoch == epoch)?;
            let mut liveness = self.shared.liveness.lock();
            let next = liveness.next(image, registration, &beat, newest);
            Some((next, registration.fenced))
        });
        let Some((next, fenced)) = next else {
            return self.refuse().await;
        };
        let command = match next {
            Next::Unfence => Some(Command::Unfence { broker: id, epoch }),
            Next::Fence => Some(Command::Fence { broker: id, epoch }),
            Next::BeginShutdown => Some(Command::BeginShutdown { broker: id, epoch }),
            Next::ShutDownNow if !fenced => Some(Command::Fence { broker: id, epoch }),
            Next::Stay | Next::ShutDownNow => None,
        };
        if let Some(command) = command
            && let Err(status) = self.shared.propose(command).await
        {
            let _ = self.answers.send(Err(status)).await;
            return false;
        }
        if quietly && next != Next::ShutDownNow {
            return true;
        }
        let Some(registration) = self.registration(id, epoch) else {
            return self.refuse().await;
        };
        let response = HeartbeatResponse {
            error: 0,
            is_caught_up: is_caught_up(&registration, &beat),
            is_fenced: registration.fenced,
            should_shut_down: next == Next::ShutDownNow,
            topics_pending: self.shared.declared.pending_for(beat.metadata_offset),
        };
        self.answers.send(Ok(response)).await.is_ok()
    }

    /// This life of the broker is over, or never was (C-11).
    async fn refuse(&mut self) -> bool {
        let response = HeartbeatResponse {
            error: ErrorCode::StaleBrokerEpoch.code().into(),
            is_caught_up: false,
            is_fenced: true,
            should_shut_down: false,
            topics_pending: String::new(),
        };
        let _ = self.answers.send(Ok(response)).await;
        false
    }

    fn registration(&self, id: BrokerId, epoch: BrokerEpoch) -> Option<Arc<BrokerRegistration>> {
        let known = |image: &epoka_proto::metadata::Image| image.brokers.get(&id).cloned();
        let known = self.shared.metadata.read(|cluster| known(cluster.image()));
        known.filter(|b| b.epoch == epoch)
    }

    /// The stream is at its end: fences the broker if nothing takes its place in time.
    async fn closed(self) {
        let Some((broker, epoch)) = self.holder else {
            return;
        };
        let shared = self.shared.clone();
        let only = shared.liveness.lock().stream_closed(broker, self.stream);
        let is_unfenced = || {
            let image_has = |b: &Arc<BrokerRegistration>| b.epoch == epoch && !b.fenced;
            let read =
                |cluster: &Cluster| cluster.image().brokers.get(&broker).is_some_and(image_has);
            shared.metadata.read(read)
        };
        if !only || !shared.is_active() || !is_unfenced() {
            return;
        }
        let closed_at = now_unix_micros();
        drop(self);
        tokio::time::sleep(shared.config.stream_grace).await;
        let is_back = shared.liveness.lock().has_stream(broker, epoch);
        if is_back || !is_unfenced() {
            return;
        }
        // A stream may break though the broker is well, as when this controller was not running for a while.
        shared.timeline.stream_closed(broker, closed_at);
        if let Err(error) = shared.propose(Command::Fence { broker, epoch }).await {
            tracing::warn!(%broker, %error, "cannot fence");
        }
    }
}

fn beat(request: &HeartbeatRequest) -> Beat {
    Beat {
        metadata_offset: (request.metadata_offset >= 0).then_some(request.metadata_offset),
        want_fence: request.want_fence,
        want_shutdown: request.want_shutdown,
    }
}
