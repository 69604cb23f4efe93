//! A broker's settings: Kafka's property names and defaults, a few of our own under `epoka.`. Reading them is all that
//! happens here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use epoka_proto::ids::{BrokerId, Millis};

use crate::listeners::{self, Listener};

/// One property a broker understands.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its default as text; `None`: it must be given.
    pub default: Option<&'static str>,
    /// What it means, in a sentence.
    pub doc: &'static str,
}

macro_rules! keys {
    ($($name:literal $default:expr, $doc:literal;)*) => {
        /// Every property a broker understands.
        pub const KEYS: &[Key] = &[$(Key { name: $name, default: $default, doc: $doc },)*];
    };
}

keys! {
    "node.id" None, "This broker's id: a number of 0 or more, unique in the cluster.";
    "log.dirs" Some("data"), "Directories for partition logs, separated by commas.";
    "listeners" Some("PLAINTEXT://127.0.0.1:9092"), "Where clients connect: NAME://host:port, separated by commas. Kafka's protocol and the SDK's gRPC services are both served there.";
    "advertised.listeners" Some(""), "NAME://host:port that the clients of each listener are told; by default where it is bound.";
    "controller.quorum.bootstrap.servers" None, "host:port of the controllers, separated by commas.";
    "epoka.grpc.listener" Some("127.0.0.1:0"), "Where the broker's gRPC services bind; port 0 picks a free one.";
    "epoka.grpc.advertised" Some(""), "host:port at which other nodes reach the gRPC services; by default where they bind.";
    "broker.rack" Some(""), "The broker's rack.";
    "auto.create.topics.enable" Some("false"), "Whether asking for a topic that does not exist creates it. Kafka's default is true.";
    "broker.heartbeat.interval.ms" Some("2000"), "Time between heartbeats, in milliseconds.";
    "replica.lag.time.max.ms" Some("30000"), "A follower that was not caught up for this long leaves the ISR.";
    "replica.high.watermark.checkpoint.interval.ms" Some("5000"), "How often high watermarks are saved.";
    "log.flush.offset.checkpoint.interval.ms" Some("60000"), "How often recovery points are saved.";
    "log.flush.start.offset.checkpoint.interval.ms" Some("60000"), "How often log starts are saved.";
    "controlled.shutdown.deadline.ms" Some("5000"), "How long a clean stop waits for leadership to move away.";
    "socket.request.max.bytes" Some("104857600"), "The largest request a client may send, in bytes.";
    "queued.max.request.bytes" Some("268435456"), "Memory for requests of more than 64 KiB that are being read or wait for their turn, over all Kafka connections, in bytes; at least socket.request.max.bytes. Beyond it, reading waits. Kafka's default is -1, no bound.";
    "max.connections" Some("10000"), "Kafka connections at once; one more is closed. Also bounded by half of the files the process may open. Kafka's default is 2147483647.";
    "max.connections.per.ip" Some("2147483647"), "Kafka connections at once from one address; one more is closed.";
}

/// A broker's settings.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `node.id`
    pub node_id: BrokerId,
    /// `log.dirs`
    pub log_dirs: Vec<PathBuf>,
    /// `listeners` and `advertised.listeners`; at least one.
    pub listeners: Vec<Listener>,
    /// `epoka.grpc.listener`
    pub grpc_listen: SocketAddr,
    /// `epoka.grpc.advertised`; `None`: where the services are bound.
    pub grpc_advertised: Option<String>,
    /// `controller.quorum.bootstrap.servers`
    pub controllers: Vec<String>,
    /// `broker.rack`
    pub rack: Option<String>,
    /// `auto.create.topics.enable`
    pub auto_create_topics: bool,
    /// `broker.heartbeat.interval.ms`
    pub heartbeat_interval: Duration,
    /// `replica.lag.time.max.ms`
    pub replica_lag_time_max_ms: Millis,
    /// `replica.high.watermark.checkpoint.interval.ms`
    pub high_watermark_interval: Duration,
    /// `log.flush.offset.checkpoint.interval.ms`
    pub recovery_point_interval: Duration,
    /// `log.flush.start.offset.checkpoint.interval.ms`
    pub log_start_interval: Duration,
    /// `controlled.shutdown.deadline.ms`
    pub shutdown_deadline: Duration,
    /// `socket.request.max.bytes`
    pub request_max_bytes: usize,
    /// `queued.max.request.bytes`
    pub queued_max_request_bytes: usize,
    /// `max.connections`
    pub max_connections: usize,
    /// `max.connections.per.ip`
    pub max_connections_per_ip: usize,
}

impl BrokerConfig {
    /// Reads properties. The error is one sentence that names the property and what is wrong with it.
    pub fn from_properties(properties: &BTreeMap<String, String>) -> Result<Self, String> {
        if let Some(unknown) = properties
            .keys()
            .find(|name| KEYS.iter().all(|k| k.name != **name))
        {
            let near = epoka_proto::config::nearest(unknown, KEYS.iter().map(|k| k.name));
            let hint = near
                .map(|n| format!("; did you mean `{n}`?"))
                .unwrap_or_default();
            return Err(format!("`{unknown}` is not a broker property{hint}"));
        }
        let read = Properties(properties);
        let node_id: i32 = read.number("node.id")?;
        if node_id < 0 {
            return Err(format!("node.id is {node_id}, but ids start at 0"));
        }
        let log_dirs: Vec<PathBuf> = read
            .list("log.dirs")?
            .into_iter()
            .map(PathBuf::from)
            .collect();
        if log_dirs.is_empty() {
            return Err("log.dirs names no directory".into());
        }
        let controllers = read.list("controller.quorum.bootstrap.servers")?;
        if controllers.is_empty() {
            return Err("controller.quorum.bootstrap.servers names no controller".into());
        }
        let listeners = listeners::read(
            &read.text("listeners")?,
            &read.text("advertised.listeners")?,
        )?;
        let grpc_listen = read.address("epoka.grpc.listener")?;
        let grpc_advertised = Some(read.text("epoka.grpc.advertised")?).filter(|t| !t.is_empty());
        if grpc_advertised.is_none() && grpc_listen.ip().is_unspecified() {
            return Err(format!(
                "epoka.grpc.listener binds every address ({grpc_listen}), so other nodes must be told one that they can \
                 reach: set epoka.grpc.advertised=HOST:{}",
                grpc_listen.port()
            ));
        }
        let request_max_bytes = read.number("socket.request.max.bytes")?;
        let queued_max_request_bytes = read.number("queued.max.request.bytes")?;
        if queued_max_request_bytes < request_max_bytes {
            return Err(format!(
                "queued.max.request.bytes is {queued_max_request_bytes}, less than socket.request.max.bytes \
                 ({request_max_bytes}): the largest request could never be read"
            ));
        }
        Ok(Self {
            node_id: BrokerId(node_id),
            log_dirs,
            listeners,
            grpc_listen,
            grpc_advertised,
            controllers,
            rack: Some(read.text("broker.rack")?).filter(|t| !t.is_empty()),
            auto_create_topics: read.flag("auto.create.topics.enable")?,
            heartbeat_interval: read.millis("broker.heartbeat.interval.ms")?,
            replica_lag_time_max_ms: read.millis("replica.lag.time.max.ms")?.as_millis() as Millis,
            high_watermark_interval: read
                .millis("replica.high.watermark.checkpoint.interval.ms")?,
            recovery_point_interval: read.millis("log.flush.offset.checkpoint.interval.ms")?,
            log_start_interval: read.millis("log.flush.start.offset.checkpoint.interval.ms")?,
            shutdown_deadline: read.millis("controlled.shutdown.deadline.ms")?,
            request_max_bytes,
            queued_max_request_bytes,
            max_connections: read.number("max.connections")?,
            max_connections_per_ip: read.number("max.connections.per.ip")?,
        })
    }
}

struct Properties<'a>(&'a BTreeMap<String, String>);

impl Properties<'_> {
    fn text(&self, name: &str) -> Result<String, String> {
        let default = || KEYS.iter().find(|k| k.name == name).and_then(|k| k.default);
        let value = self.0.get(name).map(String::as_str).or_else(default);
        value
            .map(|v| v.trim().to_owned())
            .ok_or_else(|| format!("{name} must be set"))
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> Result<N, String> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| format!("{name} is `{text}`, which is not a number it can take"))
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| format!("{name} is `{text}`, which is neither true nor false"))
    }

    fn millis(&self, name: &str) -> Result<Duration, String> {
        Ok(Duration::from_millis(
            self.number::<u32>(name)?.max(1).into(),
        ))
    }

    fn list(&self, name: &str) -> Result<Vec<String>, String> {
        let text = self.text(name)?;
        let items = text.split(',').map(str::trim).filter(|t| !t.is_empty());
        Ok(items.map(str::to_owned).collect())
    }

    /// `PLAINTEXT://127.0.0.1:9092` or `127.0.0.1:9092`.
    fn address(&self, name: &str) -> Result<SocketAddr, String> {
        let text = self.text(name)?;
        let address = text.rsplit_once("://").map_or(text.as_str(), |(_, a)| a);
        let wrong = || format!("{name} is `{text}`, which is not ADDRESS:PORT");
        let resolved = address.parse().ok().or_else(|| {
            use std::net::ToSocketAddrs as _;
            address.to_socket_addrs().ok()?.next()
        });
        resolved.ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<BrokerConfig, String> {
        let mut properties = BTreeMap::from([
            ("node.id".to_owned(), "1".to_owned()),
            (
                "controller.quorum.bootstrap.servers".to_owned(),
                "127.0.0.1:9093".to_owned(),
            ),
        ]);
        properties.extend(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
        BrokerConfig::from_properties(&properties)
    }

    #[test]
    fn defaults_are_kafkas() {
        let config = read(&[]).expect("complete");
        let first = config.listeners.first().expect("a listener");
        assert_eq!(first.listen, "127.0.0.1:9092".parse().expect("address"));
        assert_eq!(config.replica_lag_time_max_ms, 30_000);
    }

    #[test]
    fn a_wrong_property_is_named_with_its_remedy() {
        for (key, value, says) in [
            ("node.di", "1", "did you mean `node.id`"),
            ("node.id", "-1", "ids start at 0"),
            ("node.id", "one", "not a number"),
            (
                "listeners",
                "PLAINTEXT://0.0.0.0:9092",
                "advertised.listeners=PLAINTEXT://HOST:9092",
            ),
            (
                "epoka.grpc.listener",
                "0.0.0.0:19093",
                "epoka.grpc.advertised=HOST:19093",
            ),
            ("epoka.grpc.listener", "nowhere", "not ADDRESS:PORT"),
            ("log.dirs", " ", "names no directory"),
            (
                "queued.max.request.bytes",
                "1000",
                "less than socket.request.max.bytes",
            ),
        ] {
            let error = read(&[(key, value)]).expect_err(key);
            assert!(error.contains(says), "{error}");
        }
    }
}
