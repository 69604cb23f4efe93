//! One HTTP/2 connection to each address, opened when first used and re-opened by itself, shared by everything that asks
//! that node something.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epoka_proto::v1::controller_client::ControllerClient;
use epoka_proto::v1::events_client::EventsClient;
use epoka_proto::v1::log_client::LogClient;
use epoka_proto::v1::supervisor_client::SupervisorClient;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};

/// The largest message taken from a broker. A consumer asks for much less at a time, but a first batch always comes whole.
const LARGEST_MESSAGE: usize = 256 << 20;
/// HTTP/2 flow-control window of a stream: enough for a fast reader on a fast link.
const STREAM_WINDOW: u32 = 4 << 20;
/// HTTP/2 flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// HTTP/2 frame size. Large frames halve the CPU cost of bulk transfer.
const FRAME: u32 = 256 << 10;

/// Connections by address. Clones share them.
#[derive(Clone, Default)]
pub struct Connections {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
}

impl Connections {
    /// The connection to a node at `host:port`. Nothing is sent before it is used.
    ///
    /// # Errors
    /// The address cannot be part of a URL.
    pub fn channel(&self, address: &str) -> Result<Channel> {
        let mut channels = self.channels.lock().expect("nothing panics under it");
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|e| Error::Unreachable {
                addresses: address.to_owned(),
                reason: format!("not an address of the form host:port ({e})"),
            })?;
        let channel = endpoint
            .connect_timeout(Duration::from_secs(2))
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            // A silent peer (a paused process, a cut cable) is given up after a few seconds.
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// A broker's service for clients.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn log(&self, address: &str) -> Result<LogClient<Channel>> {
        let client = LogClient::new(self.channel(address)?);
        Ok(client
            .max_decoding_message_size(LARGEST_MESSAGE)
            .max_encoding_message_size(LARGEST_MESSAGE))
    }

    /// Any node's record of what happened to it.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn events(&self, address: &str) -> Result<EventsClient<Channel>> {
        Ok(EventsClient::new(self.channel(address)?))
    }

    /// A controller's service.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn controller(&self, address: &str) -> Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(self.channel(address)?))
    }

    /// The supervisor of a local cluster.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn supervisor(&self, address: &str) -> Result<SupervisorClient<Channel>> {
        Ok(SupervisorClient::new(self.channel(address)?))
    }
}
