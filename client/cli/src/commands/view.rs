//! A look at a whole cluster: its processes, its partitions, and what each replica holds. `status` prints it once, `watch`
//! again and again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use epoka_client::{Broker, Client, ClientConfig, Metadata, Partition, ReplicaState, Target};
use epoka_proto::ids::{BrokerId, TopicPartition};
use epoka_proto::v1::Process;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::ClusterArgs;
use crate::failure::Outcome;

/// How long a node may take to answer; a paused one never does.
const PATIENCE: Duration = Duration::from_millis(700);

/// Everything that `status` shows.
pub struct View {
    bootstrap: String,
    processes: Vec<Process>,
    /// `None` when no broker answers.
    metadata: Option<Metadata>,
    /// What each broker that answers says of its replicas.
    replicas: BTreeMap<BrokerId, Vec<ReplicaState>>,
    /// For how long no controller has answered any broker that could be asked, when that is longer than usual.
    controller_silent: Option<Duration>,
}

impl View {
    /// Asks everybody.
    ///
    /// # Errors
    /// There is no cluster, or it does not run.
    pub async fn take(cluster: &ClusterArgs) -> Outcome<Self> {
        if cluster.bootstrap.is_empty() {
            let (description, processes) = cluster.processes().await?;
            let client = Client::new(description.brokers_grpc(), patient_client());
            // With every broker down there is nothing to know of partitions; the processes are still worth showing.
            let metadata = client.refresh().await.ok().map(|m| (*m).clone());
            let (replicas, controller_silent) = match &metadata {
                Some(metadata) => ask_brokers(&client, metadata).await,
                None => (BTreeMap::new(), None),
            };
            return Ok(Self {
                bootstrap: description.bootstrap,
                processes,
                metadata,
                replicas,
                controller_silent,
            });
        }
        Self::of(&cluster.client().await?).await
    }

    /// Asks the brokers of a cluster, whose processes are not known.
    ///
    /// # Errors
    /// None of them answers.
    pub async fn of(client: &Client) -> Outcome<Self> {
        let metadata = (*client.refresh().await?).clone();
        let (replicas, controller_silent) = ask_brokers(client, &metadata).await;
        let kafka: Vec<_> = metadata.brokers.values().map(|b| b.kafka.clone()).collect();
        Ok(Self {
            bootstrap: kafka.join(","),
            processes: Vec::new(),
            metadata: Some(metadata),
            replicas,
            controller_silent,
        })
    }

    /// Whether a broker answered, which is where partitions are known.
    pub fn knows_partitions(&self) -> bool {
        self.metadata.is_some()
    }

    /// As scripts read it.
    pub fn json(&self) -> Value {
        let processes: Vec<_> = self.processes.iter().map(process_json).collect();
        let partitions = self.metadata.as_ref().map(|m| {
            let all = m.partitions();
            all.map(|(n, p)| self.partition_json(&n, p))
                .collect::<Vec<_>>()
        });
        let brokers = self.metadata.as_ref().map(|m| {
            let describe = |(id, b): (&BrokerId, &Broker)| {
                json!({"id": id.0, "kafka": b.kafka, "standing": standing(b), "answers": self.replicas.contains_key(id)})
            };
            m.brokers.iter().map(describe).collect::<Vec<_>>()
        });
        json!({
            "bootstrap": self.bootstrap,
            "cluster_id": self.metadata.as_ref().map(|m| &m.cluster_id),
            "processes": processes,
            "brokers": brokers,
            "partitions": partitions,
            "controller_silent_ms": self.controller_silent.map(|silent| silent.as_millis()),
        })
    }

    fn partition_json(&self, name: &TopicPartition, partition: &Partition) -> Value {
        let replicas = self
            .replicas_of(name, partition)
            .filter_map(|(broker, state)| {
                let state = state?;
                let mut replica = json!({
                    "broker": broker.0,
                    "log_start": state.log_start.0,
                    "log_end": state.log_end.0,
                    "high_watermark": state.high_watermark.0,
                });
                if let Some(why) = &state.offline {
                    replica["offline"] = json!(why);
                }
                Some(replica)
            });
        json!({
            "topic": &*name.topic,
            "partition": name.partition,
            "leader": partition.leader.map(|l| l.0),
            "leader_epoch": partition.leader_epoch.0,
            "partition_epoch": partition.partition_epoch.0,
            "isr": numbers(&partition.isr),
            "min_isr": partition.min_isr,
            "replicas": replicas.collect::<Vec<_>>(),
        })
    }

    /// As a person reads it; only this partition, if one is named.
    pub fn text(&self, only: Option<&TopicPartition>) -> String {
        let mut out = String::new();
        if !self.processes.is_empty() {
            let rows = self.processes.iter().map(|p| self.process_row(p)).collect();
            out += &table(
                &["process", "state", "pid", "kafka", "grpc", "standing"],
                rows,
            );
            out.push('\n');
        }
        let Some(metadata) = &self.metadata else {
            return out;
        };
        if self.processes.is_empty() {
            let brokers = metadata.brokers.iter();
            let rows = brokers.map(|(id, b)| {
                vec![
                    format!("broker {id}"),
                    b.kafka.clone(),
                    self.standing(*id, b),
                ]
            });
            out += &table(&["broker", "address", "standing"], rows.collect());
            out.push('\n');
        }
        if let Some(silent) = self.controller_silent {
            let seconds = silent.as_secs();
            let _ = writeln!(
                out,
                "no controller has answered for {seconds} s: leaders go on, but a dead one is not replaced and no topic can be changed\n"
            );
        }
        let partitions = metadata
            .partitions()
            .filter(|(name, _)| only.is_none_or(|o| o == name));
        let rows: Vec<_> = partitions.map(|(n, p)| self.partition_row(&n, p)).collect();
        if rows.is_empty() {
            out += "no partitions\n";
        } else {
            let header = [
                "partition",
                "leader",
                "epoch",
                "isr",
                "replicas: log end (high watermark)",
            ];
            out += &table(&header, rows);
        }
        out
    }

    fn process_row(&self, process: &Process) -> Vec<String> {
        let broker = (process.kind == "broker")
            .then(|| self.metadata.as_ref()?.brokers.get(&BrokerId(process.id)));
        let standing = broker
            .flatten()
            .map(|b| self.standing(BrokerId(process.id), b));
        vec![
            format!("{} {}", process.kind, process.id),
            process.state.clone(),
            some(process.pid).map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            if process.kafka.is_empty() {
                "-".to_owned()
            } else {
                process.kafka.clone()
            },
            process.grpc.clone(),
            standing.unwrap_or_default(),
        ]
    }

    /// What a broker is in the cluster, and whether it answers.
    fn standing(&self, id: BrokerId, broker: &Broker) -> String {
        let silent = match self.replicas.contains_key(&id) {
            true => "",
            false => ", does not answer",
        };
        format!("{}{silent}", standing(broker))
    }

    fn partition_row(&self, name: &TopicPartition, partition: &Partition) -> Vec<String> {
        let isr: Vec<_> = numbers(&partition.isr).iter().map(i32::to_string).collect();
        let mut replicas = String::new();
        for (broker, state) in self.replicas_of(name, partition) {
            let _ = match state {
                None => write!(replicas, "{broker}: -  "),
                Some(ReplicaState {
                    offline: Some(why), ..
                }) => write!(replicas, "{broker}: offline, {why}  "),
                Some(state) => write!(
                    replicas,
                    "{broker}: {} ({})  ",
                    state.log_end, state.high_watermark
                ),
            };
        }
        vec![
            name.to_string(),
            partition
                .leader
                .map_or_else(|| "none".to_owned(), |l| l.to_string()),
            partition.leader_epoch.to_string(),
            if isr.is_empty() {
                "none".to_owned()
            } else {
                isr.join(",")
            },
            replicas.trim_end().to_owned(),
        ]
    }

    fn replicas_of<'a>(
        &'a self,
        name: &'a TopicPartition,
        partition: &'a Partition,
    ) -> impl Iterator<Item = (BrokerId, Option<&'a ReplicaState>)> {
        let mut brokers = partition.replicas.clone();
        brokers.sort();
        brokers.into_iter().map(move |broker| {
            let held = self.replicas.get(&broker);
            (
                broker,
                held.and_then(|r| r.iter().find(|r| r.partition == *name)),
            )
        })
    }
}

/// What a broker is in the cluster, as its brokers know.
fn standing(broker: &Broker) -> &'static str {
    match (broker.fenced, broker.shutting_down) {
        (true, _) => "fenced",
        (false, true) => "shutting down",
        (false, false) => "serving",
    }
}

/// A client that gives up on a silent node soon.
fn patient_client() -> ClientConfig {
    ClientConfig {
        request_timeout: PATIENCE,
        ..ClientConfig::default()
    }
}

/// What the replicas of each broker that answers hold, and for how long none of these brokers has heard a controller.
async fn ask_brokers(
    client: &Client,
    metadata: &Metadata,
) -> (BTreeMap<BrokerId, Vec<ReplicaState>>, Option<Duration>) {
    let asked = metadata.brokers.iter().map(|(&id, broker)| async move {
        let admin = client.admin();
        let target = Target::broker(id, &broker.grpc);
        let both = async {
            tokio::join!(
                admin.replicas_at(target.clone()),
                admin.readiness_at(target.clone())
            )
        };
        let (replicas, readiness) = timeout(PATIENCE, both).await.ok()?;
        Some((id, replicas.ok()?, readiness.ok()?))
    });
    let answers = join_all(asked).await.into_iter().flatten();
    let mut held = BTreeMap::new();
    let mut silences = Vec::new();
    for (id, replicas, readiness) in answers {
        held.insert(id, replicas);
        silences.push(readiness.controller_silent);
    }
    // `None` where a controller answers, which is less than any silence.
    (held, silences.into_iter().min().flatten())
}

fn process_json(process: &Process) -> Value {
    let mut described = json!({
        "kind": process.kind,
        "id": process.id,
        "pid": some(process.pid),
        "state": process.state,
        "grpc": process.grpc,
        "log_dirs": process.log_dirs,
    });
    if !process.kafka.is_empty() {
        described["kafka"] = json!(process.kafka);
    }
    described
}

/// The wire's 0 is no process.
fn some(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

fn numbers(ids: &[BrokerId]) -> Vec<i32> {
    let mut ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids
}

/// Columns as wide as their widest cell.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let header = header.iter().map(|h| (*h).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|r| r.get(column))
            .map(|c| c.chars().count())
            .max()
    };
    let widths: Vec<_> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["orders-0".into(), "1".into()],
            vec!["a".into(), "none".into()],
        ];
        assert_eq!(
            table(&["partition", "leader"], rows),
            "partition  leader\norders-0   1\na          none\n"
        );
    }
}
