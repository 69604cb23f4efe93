//! Following the events of a cluster, however it was named: a local one through all its processes and their supervisor, any
//! other one through its brokers.

use std::time::Duration;

use epoka_client::Connections;
use epoka_client::events::Collector;

use crate::cluster::ClusterArgs;
use crate::failure::Outcome;

/// How long an event is held back for an earlier one from another node.
pub const WINDOW: Duration = Duration::from_millis(60);

/// Begins to follow the cluster.
///
/// # Errors
/// There is no cluster to follow.
pub async fn follow(cluster: &ClusterArgs) -> Outcome<Collector> {
    if cluster.bootstrap.is_empty() {
        let (description, _) = cluster.processes().await?;
        let sources = description.event_sources();
        return Ok(Collector::new(&Connections::default(), sources, WINDOW));
    }
    Ok(Collector::of_cluster(&cluster.client().await?, WINDOW))
}
