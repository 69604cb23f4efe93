//! One HTTP/2 connection to each address, opened when first used and re-opened by itself, shared by everything that asks
//! that node something.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use epoka_proto::destination::{self, Destination};
use epoka_proto::dial::Dial;
use epoka_proto::ids::BrokerId;

use epoka_proto::v1::controller_client::ControllerClient;
use epoka_proto::v1::events_client::EventsClient;
use epoka_proto::v1::log_client::LogClient;
use epoka_proto::v1::supervisor_client::SupervisorClient;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};

/// The largest message taken from a broker. A consumer asks for much less at a time, but a first batch always comes whole.
const LARGEST_MESSAGE: usize = 256 << 20;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);
/// HTTP/2 flow-control window of a stream: enough for a fast reader on a fast link.
const STREAM_WINDOW: u32 = 4 << 20;
/// HTTP/2 flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// HTTP/2 frame size. Large frames halve the CPU cost of bulk transfer.
const FRAME: u32 = 256 << 10;

/// Connections by address. Clones share them.
#[derive(Clone, Default)]
pub struct Connections {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    channels: Mutex<HashMap<String, Numbered>>,
    opened: AtomicU64,
    cluster: OnceLock<String>,
}

/// A connection, and which one it is of those that were opened.
#[derive(Clone)]
struct Numbered {
    number: u64,
    channel: Channel,
}

/// Whom to reach: an address, and who must be behind it. Should somebody else be there, the call fails and the next one has a
/// new connection.
#[derive(Clone, Debug)]
pub struct Target {
    address: String,
    whom: Whom,
}

#[derive(Clone, Copy, Debug)]
enum Whom {
    Anybody,
    /// Any broker of the client's cluster.
    Member,
    Broker(BrokerId),
}

impl Target {
    /// This broker, at `host:port`.
    pub fn broker(id: BrokerId, address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            whom: Whom::Broker(id),
        }
    }

    /// A broker of the client's cluster, at `host:port`.
    pub fn member(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            whom: Whom::Member,
        }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Whoever is there.
impl From<&str> for Target {
    fn from(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            whom: Whom::Anybody,
        }
    }
}

/// Whoever is there.
impl From<&String> for Target {
    fn from(address: &String) -> Self {
        address.as_str().into()
    }
}

/// A connection for calls to one target.
#[derive(Clone)]
pub struct Connection {
    opened: Numbered,
    target: Target,
    shared: Arc<Shared>,
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.opened.channel.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let node = match self.target.whom {
            Whom::Anybody => return self.opened.channel.call(request).boxed(),
            Whom::Member => None,
            Whom::Broker(id) => Some(destination::broker(id)),
        };
        let destination = Destination {
            node: node.as_deref(),
            cluster: self.shared.cluster.get().map(String::as_str),
        };
        let mut metadata = MetadataMap::from_headers(std::mem::take(request.headers_mut()));
        destination.write(&mut metadata);
        *request.headers_mut() = metadata.into_headers();
        let answer = self.opened.channel.call(request);
        let (shared, address) = (self.shared.clone(), self.target.address.clone());
        let number = self.opened.number;
        async move {
            let mut answer = answer.await?;
            let metadata = MetadataMap::from_headers(std::mem::take(answer.headers_mut()));
            if destination::is_misrouted(&metadata) {
                shared.give_up(&address, Some(number));
            }
            *answer.headers_mut() = metadata.into_headers();
            Ok(answer)
        }
        .boxed()
    }
}

impl Shared {
    /// Whoever asks for this address next gets a new connection, unless this one has made room for another already.
    fn give_up(&self, address: &str, number: Option<u64>) {
        let mut channels = self.channels.lock().expect("nothing panics under it");
        let is_it = |opened: &Numbered| number.is_none_or(|number| opened.number == number);
        if channels.get(address).is_some_and(is_it) {
            channels.remove(address);
        }
    }

    fn open(&self, address: &str) -> Result<Numbered> {
        let mut channels = self.channels.lock().expect("nothing panics under it");
        if let Some(opened) = channels.get(address) {
            return Ok(opened.clone());
        }
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|e| Error::Unreachable {
                addresses: address.to_owned(),
                reason: format!("not an address of the form host:port ({e})"),
            })?;
        let channel = endpoint
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            // A silent peer (a paused process, a cut cable) is given up after a few seconds.
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .connect_with_connector_lazy(Dial::within(CONNECT));
        let opened = Numbered {
            number: self.opened.fetch_add(1, Ordering::Relaxed),
            channel,
        };
        channels.insert(address.to_owned(), opened.clone());
        Ok(opened)
    }
}

impl Connections {
    /// The connection to a node. Nothing is sent before it is used.
    ///
    /// # Errors
    /// The address cannot be part of a URL.
    pub fn to(&self, target: impl Into<Target>) -> Result<Connection> {
        let target = target.into();
        Ok(Connection {
            opened: self.shared.open(&target.address)?,
            target,
            shared: self.shared.clone(),
        })
    }

    /// Somebody is at this address who has no business there: the next connection finds out where it leads now.
    pub(crate) fn give_up(&self, address: &str) {
        self.shared.give_up(address, None);
    }

    /// Brokers that are named must be of this cluster from now on. The first word counts.
    pub(crate) fn belong_to(&self, cluster_id: &str) {
        if !cluster_id.is_empty() {
            let _ = self.shared.cluster.set(cluster_id.to_owned());
        }
    }

    /// A broker's service for clients.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub fn log(&self, target: impl Into<Target>) -> Result<LogClient<Connection>> {
        let client = LogClient::new(self.to(target)?);
        Ok(client
            .max_decoding_message_size(LARGEST_MESSAGE)
            .max_encoding_message_size(LARGEST_MESSAGE))
    }

    /// Any node's record of what happened to it.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub fn events(&self, target: impl Into<Target>) -> Result<EventsClient<Connection>> {
        Ok(EventsClient::new(self.to(target)?))
    }

    /// A controller's service.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub fn controller(&self, target: impl Into<Target>) -> Result<ControllerClient<Connection>> {
        Ok(ControllerClient::new(self.to(target)?))
    }

    /// The supervisor of a local cluster.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub fn supervisor(&self, target: impl Into<Target>) -> Result<SupervisorClient<Connection>> {
        Ok(SupervisorClient::new(self.to(target)?))
    }
}
