//! The event service of a broker: its own events, and those of the controllers for whoever reaches brokers only.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::dial::Dial;
use epoka_proto::events::EventLog;
use epoka_proto::v1::events_client::EventsClient;
use epoka_proto::v1::events_server::Events;
use epoka_proto::v1::{Event, WatchRequest};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use super::Node;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(1);
/// Pause between two tries to reach a controller.
const RETRY: Duration = Duration::from_millis(200);
/// How long a controller may be silent before it is asked for a sign of life, and how long that may take.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Events that may wait for a slow reader.
const QUEUE: usize = 256;

/// Serves the events of one node, and passes on those of its controllers.
pub(super) struct EventService {
    own: EventLog,
    controllers: Vec<String>,
}

impl EventService {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self {
            own: node.events().clone(),
            controllers: node.config.controllers.clone(),
        }
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<Event, Status>> + Send>>;

#[tonic::async_trait]
impl Events for EventService {
    type WatchStream = Answers;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Answers>, Status> {
        if !request.get_ref().of_controllers {
            return self.own.watch(request).await;
        }
        let (sender, events) = mpsc::channel(QUEUE);
        for controller in &self.controllers {
            tokio::spawn(pass_on(controller.clone(), sender.clone()));
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }
}

/// Passes on a controller's events until nobody listens. After an interruption they are told from the oldest on again.
async fn pass_on(controller: String, listener: mpsc::Sender<Result<Event, Status>>) {
    let following = async {
        loop {
            if let Err(error) = follow(&controller, &listener).await {
                tracing::debug!(controller, %error, "cannot follow its events for now");
            }
            sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = listener.closed() => {}
        () = following => {}
    }
}

async fn follow(
    controller: &str,
    listener: &mpsc::Sender<Result<Event, Status>>,
) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(format!("http://{controller}"))?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .connect_with_connector(Dial::within(CONNECT))
        .await?;
    let watched = EventsClient::new(channel)
        .watch(WatchRequest::default())
        .await?;
    let mut events = watched.into_inner();
    while let Some(event) = events.message().await? {
        if listener.send(Ok(event)).await.is_err() {
            break;
        }
    }
    Ok(())
}
