//! The event service of a broker: its own events, and those of the controllers for whoever reaches brokers only.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::dial::Dial;
use epoka_proto::events::EventLog;
use epoka_proto::v1::controller_client::ControllerClient;
use epoka_proto::v1::events_client::EventsClient;
use epoka_proto::v1::events_server::Events;
use epoka_proto::v1::{DescribeQuorumRequest, DescribeQuorumResponse, Event, WatchRequest};
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
    controllers: Arc<[String]>,
}

impl EventService {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self {
            own: node.events().clone(),
            controllers: node.config.controllers.as_slice().into(),
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
        for controller in self.controllers.iter() {
            let known = self.controllers.clone();
            tokio::spawn(pass_on(controller.clone(), known, sender.clone()));
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }
}

/// Passes on a controller's events until nobody listens. After an interruption they are told from the oldest on again.
async fn pass_on(
    controller: String,
    known: Arc<[String]>,
    listener: mpsc::Sender<Result<Event, Status>>,
) {
    let following = async {
        loop {
            if let Err(error) = follow(&controller, &known, &listener).await {
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

/// Whether the controller that was reached at this address is one that is known by another: the connection went astray then, as
/// the address changed hands.
fn is_another(reached: &DescribeQuorumResponse, dialed: &str, known: &[String]) -> bool {
    let own = reached
        .voters
        .iter()
        .find(|v| v.id == reached.controller_id);
    own.is_some_and(|own| own.address != dialed && known.contains(&own.address))
}

async fn follow(
    controller: &str,
    known: &[String],
    listener: &mpsc::Sender<Result<Event, Status>>,
) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(format!("http://{controller}"))?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .connect_with_connector(Dial::within(CONNECT))
        .await?;
    let described = ControllerClient::new(channel.clone())
        .describe_quorum(DescribeQuorumRequest {})
        .await?
        .into_inner();
    anyhow::ensure!(
        !is_another(&described, controller, known),
        "another controller is at its address"
    );
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

#[cfg(test)]
mod tests {
    use epoka_proto::v1::QuorumVoter;

    use super::*;

    #[test]
    fn a_controller_is_known_by_its_own_address() {
        let voter = |id, address: &str| QuorumVoter {
            id,
            address: address.into(),
            log_end: None,
        };
        let reached = |controller_id| DescribeQuorumResponse {
            controller_id,
            voters: vec![voter(1, "a:1"), voter(2, "b:1")],
            ..DescribeQuorumResponse::default()
        };
        let known = ["a:1".to_owned(), "b:1".to_owned()];
        assert!(!is_another(&reached(1), "a:1", &known));
        assert!(is_another(&reached(2), "a:1", &known));
        // Here it goes by another name than among controllers.
        assert!(!is_another(&reached(2), "proxy:1", &["proxy:1".to_owned()]));
    }
}
