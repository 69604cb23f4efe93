//! The way to the active controller: which of the known addresses it is at, and calls that are tried again elsewhere when
//! that changed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::dial::Dial;
use epoka_proto::error::ErrorCode;
use epoka_proto::v1::controller_client::ControllerClient as Client;
use epoka_proto::v1::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, AlterConfigsRequest,
    AlterPartitionRequest, AlterPartitionResponse, CreatePartitionsRequest, CreateTopicsRequest,
    DeleteTopicsRequest, ElectLeadersRequest, ElectLeadersResponse, RegisterRequest,
    RegisterResponse, TopicResults, WithdrawRequest, WithdrawResponse,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// The metadata entry in which a controller that is not active names the one that is.
const ACTIVE_HINT: &str = "epoka-active";
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(1);
/// Pause before a call is tried at another controller.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long an administrative call may take, controller failover included: less than callers wait for a broker.
const CALL_DEADLINE: Duration = Duration::from_secs(4);
/// The largest metadata snapshot or answer taken.
const MESSAGE_LIMIT: usize = 256 << 20;

/// Which controller to talk to. Shared by everything in a node that does.
pub struct ActiveController {
    known: Vec<String>,
    current: Mutex<String>,
}

impl ActiveController {
    /// Knows these addresses, and begins with the first.
    pub fn new(known: Vec<String>) -> Self {
        let current = known.first().cloned().unwrap_or_default();
        Self {
            known,
            current: Mutex::new(current),
        }
    }

    /// The address to try.
    pub fn address(&self) -> String {
        self.current.lock().clone()
    }

    /// That address failed with this status: on to the one it named, or to the next known one. An address that somebody
    /// else has moved on from already stays as it is.
    pub fn failed(&self, address: &str, status: &Status) {
        let mut current = self.current.lock();
        if *current != address {
            return;
        }
        let hint = status
            .metadata()
            .get(ACTIVE_HINT)
            .and_then(|v| v.to_str().ok());
        // A node may know a controller by another address than the controller itself does.
        *current = match hint.filter(|h| self.known.iter().any(|k| k == h)) {
            Some(hint) => hint.to_owned(),
            None => {
                let at = self.known.iter().position(|k| k == address);
                let next = at.map_or(0, |at| (at + 1) % self.known.len());
                self.known[next].clone()
            }
        };
    }

    /// A connection of its own to the controller to try.
    pub async fn connect(&self) -> Result<(String, Client<Channel>), Status> {
        let address = self.address();
        let unreachable = |error: tonic::transport::Error| {
            use std::error::Error as _;
            let cause = error.source().map(|s| format!(": {s}")).unwrap_or_default();
            Status::unavailable(format!("{error}{cause}"))
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| Status::invalid_argument(e.to_string()))?
            .http2_keep_alive_interval(Duration::from_secs(3))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(true);
        match endpoint.connect_with_connector(Dial::within(CONNECT)).await {
            Ok(channel) => Ok((
                address,
                Client::new(channel).max_decoding_message_size(MESSAGE_LIMIT),
            )),
            Err(error) => {
                let status = unreachable(error);
                self.failed(&address, &status);
                Err(status)
            }
        }
    }
}

/// Calls the active controller, wherever it is.
pub struct ControllerClient {
    active: Arc<ActiveController>,
    connected: Mutex<Option<(String, Client<Channel>)>>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $response:ty;)*) => {
        $($(#[$doc])*
        pub async fn $name(&self, request: $request) -> Result<$response, Status> {
            self.call(|mut client| {
                let request = request.clone();
                async move { client.$name(request).await }
            })
            .await
        })*
    };
}

impl ControllerClient {
    /// A client that connects when it is first used.
    pub fn new(active: Arc<ActiveController>) -> Self {
        Self {
            active,
            connected: Mutex::default(),
        }
    }

    calls! {
        /// Introduces this process.
        register(RegisterRequest) -> RegisterResponse;
        /// Proposes ISRs.
        alter_partition(AlterPartitionRequest) -> AlterPartitionResponse;
        /// Gives up failed replicas.
        withdraw(WithdrawRequest) -> WithdrawResponse;
        /// Creates topics.
        create_topics(CreateTopicsRequest) -> TopicResults;
        /// Deletes topics.
        delete_topics(DeleteTopicsRequest) -> TopicResults;
        /// Adds partitions to topics.
        create_partitions(CreatePartitionsRequest) -> TopicResults;
        /// Changes configuration values.
        alter_configs(AlterConfigsRequest) -> TopicResults;
        /// Elects preferred or unclean leaders.
        elect_leaders(ElectLeadersRequest) -> ElectLeadersResponse;
        /// Takes a block of producer ids.
        allocate_producer_ids(AllocateProducerIdsRequest) -> AllocateProducerIdsResponse;
    }

    /// Gives up the connection: the next call has a new one.
    pub fn disconnect(&self) {
        self.connected.lock().take();
    }

    async fn call<T, F, Fut>(&self, call: F) -> Result<T, Status>
    where
        F: Fn(Client<Channel>) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + CALL_DEADLINE;
        loop {
            let status = match timeout_at(deadline, self.attempt(&call)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => {
                    return Err(Status::deadline_exceeded(
                        "no active controller answered in time",
                    ));
                }
            };
            let elsewhere = matches!(
                status.code(),
                Code::Unavailable | Code::FailedPrecondition | Code::Unknown
            );
            if !elsewhere || Instant::now() + RETRY_PAUSE >= deadline {
                return Err(status);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn attempt<T, F, Fut>(&self, call: &F) -> Result<T, Status>
    where
        F: Fn(Client<Channel>) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let wanted = self.active.address();
        let ready = self
            .connected
            .lock()
            .clone()
            .filter(|(address, _)| *address == wanted);
        let (address, client) = match ready {
            Some(ready) => ready,
            None => {
                let fresh = self.active.connect().await?;
                *self.connected.lock() = Some(fresh.clone());
                fresh
            }
        };
        match call(client).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => {
                if status.code() != Code::InvalidArgument {
                    self.connected.lock().take();
                    self.active.failed(&address, &status);
                }
                Err(status)
            }
        }
    }
}

/// What a client is told when the controller could not be asked.
pub fn unanswered(status: &Status) -> ErrorCode {
    match status.code() {
        Code::DeadlineExceeded => ErrorCode::RequestTimedOut,
        Code::Unavailable | Code::FailedPrecondition => ErrorCode::NotController,
        _ => ErrorCode::UnknownServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_address_gives_way_to_the_hint_or_the_next_but_only_once() {
        let active = ActiveController::new(vec!["a:1".into(), "b:1".into(), "c:1".into()]);
        let status = Status::unavailable("gone");
        active.failed("a:1", &status);
        assert_eq!(active.address(), "b:1");
        active.failed("a:1", &status); // an old failure, told late
        assert_eq!(active.address(), "b:1");
        let mut hinted = Status::failed_precondition("not active");
        hinted
            .metadata_mut()
            .insert(ACTIVE_HINT, "a:1".parse().expect("ascii"));
        active.failed("b:1", &hinted);
        assert_eq!(active.address(), "a:1");
    }
}
