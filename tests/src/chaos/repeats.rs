//! Records that a client itself sent twice. A leader that is replaced refuses what it has appended and not yet committed, and
//! librdkafka takes that for "not written": it may send those records again in other batches than before, whose sequence numbers
//! no broker can recognize, is refused as out of order, begins a new epoch of its producer id (KIP-360), and sends them once
//! more. Kafka's brokers answer the same, and the batches on disk tell such a record from one that a broker took twice.

use std::collections::BTreeSet;

use epoka_proto::batch::batches;

use super::run::TOPIC;
use crate::harness::history::Anomaly;
use crate::harness::{Audit, Cluster, files};

/// Takes records out of the anomalies of an audit that are there once for each epoch of their producer; returns how many.
pub fn take_out(audit: &mut Audit, cluster: &Cluster) -> usize {
    let before = audit.anomalies.len();
    audit.anomalies.retain(|anomaly| match anomaly {
        Anomaly::Duplicate(_, places) => !is_clients_own(cluster, places),
        _ => true,
    });
    before - audit.anomalies.len()
}

fn is_clients_own(cluster: &Cluster, places: &BTreeSet<(i32, i64)>) -> bool {
    let epochs: BTreeSet<_> = places
        .iter()
        .map(|&(partition, offset)| producer_epoch(cluster, partition, offset))
        .collect();
    epochs.len() == places.len()
}

/// Which epoch of which producer wrote what lies at this offset.
fn producer_epoch(cluster: &Cluster, partition: i32, offset: i64) -> (i64, i16) {
    let replica = cluster.brokers()[0];
    let log = files::log_bytes(&cluster.partition_dir(replica, TOPIC, partition));
    batches(&log)
        .map(|batch| batch.expect("a whole batch").0)
        .find(|header| header.last_offset().0 >= offset)
        .and_then(|header| Some((header.producer_id?.0, header.producer_epoch.0)))
        .expect("a batch of an idempotent producer")
}
