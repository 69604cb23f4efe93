//! What a controller is told at its start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use epoka_proto::v1::NewTopic;

/// The configuration of one controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Its id among the controllers.
    pub id: i32,
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The quorum: ids and `host:port` of all voters, this one included. Empty: this controller alone.
    pub voters: Vec<(i32, String)>,
    /// Its directory; created where absent.
    pub data_dir: PathBuf,
    /// A broker that is silent for longer has lost its session.
    pub session_timeout: Duration,
    /// How long a broker whose heartbeat stream broke may take to open another before it is fenced.
    pub stream_grace: Duration,
    /// The id of a new cluster; drawn at random when absent.
    pub initial_cluster_id: Option<String>,
    /// Cluster-wide configuration of a new cluster, such as `min.insync.replicas` = `2`.
    pub initial_configs: BTreeMap<String, String>,
    /// Topics to make where they are missing, once enough brokers serve.
    pub topics: Vec<NewTopic>,
    /// Not 0, and the metadata is lost: it is rebuilt from what so many brokers hold, instead of beginning a new cluster.
    pub restore_brokers: usize,
    /// How often leaderships are moved back to preferred leaders, and leaderless partitions tried again; `None`: never.
    pub balance_interval: Option<Duration>,
}

impl ControllerConfig {
    /// A quorum of one with Kafka's defaults.
    pub fn new(id: i32, listen: SocketAddr, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            id,
            listen,
            voters: Vec::new(),
            data_dir: data_dir.into(),
            session_timeout: Duration::from_secs(9),
            stream_grace: Duration::from_millis(30),
            initial_cluster_id: None,
            initial_configs: BTreeMap::new(),
            topics: Vec::new(),
            restore_brokers: 0,
            balance_interval: Some(Duration::from_secs(300)),
        }
    }
}
