//! How a command finds its cluster: through the directory of a local one, or through addresses.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use epoka_client::{Client, ClientConfig, Connections, Error};
use epoka_proto::v1::{Process, ProcessesRequest};
use futures::future::select_ok;
use tokio::time::timeout;

use super::description::Description;
use crate::failure::{Failure, Outcome};

/// How long a broker may take to answer where the others say it is.
const ADVERTISED: Duration = Duration::from_secs(2);

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// The directory of a local cluster, as given to `up`.
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".epoka",
        env = "EPOKA_DATA_DIR"
    )]
    pub data_dir: PathBuf,
    /// Addresses (host:port,...) of brokers of any cluster, as Kafka clients take them, instead of a directory.
    #[arg(
        long,
        value_name = "ADDRESSES",
        value_delimiter = ',',
        env = "EPOKA_BOOTSTRAP"
    )]
    pub bootstrap: Vec<String>,
}

impl ClusterArgs {
    /// A client of the cluster, which has answered.
    ///
    /// # Errors
    /// There is no cluster there, or it does not answer.
    pub async fn client(&self) -> Outcome<Client> {
        if !self.bootstrap.is_empty() {
            let client = Client::connect(self.bootstrap.clone()).await.map_err(|e| match e {
                Error::Unreachable { addresses, reason } => Failure::wrong(format!(
                    "no broker answered at {addresses}: {reason}; name more brokers, as Kafka clients take them: --bootstrap 127.0.0.1:9092,127.0.0.1:9093"
                )),
                other => other.into(),
            })?;
            check_advertised(&client).await?;
            return Ok(client);
        }
        let cluster = self.describe()?;
        let client = Client::new(cluster.brokers_grpc(), ClientConfig::default());
        match client.refresh().await {
            Ok(_) => Ok(client),
            // Is it the cluster that is down, or only its brokers?
            Err(error) => {
                self.processes().await?;
                Err(Failure::wrong(format!(
                    "{error}; `epoka status` shows the processes"
                )))
            }
        }
    }

    /// What `cluster.json` says.
    ///
    /// # Errors
    /// There is none.
    pub fn describe(&self) -> Outcome<Description> {
        Description::read(&self.data_dir)?.ok_or_else(|| {
            Failure::wrong(format!(
                "there is no cluster in {}: start one with `epoka up`, or name its directory with --data-dir",
                self.data_dir.display()
            ))
        })
    }

    /// The processes of the local cluster, as its supervisor lists them.
    ///
    /// # Errors
    /// The cluster is not running.
    pub async fn processes(&self) -> Outcome<(Description, Vec<Process>)> {
        let cluster = self.describe()?;
        let connections = Connections::default();
        let mut supervisor = connections.supervisor(&cluster.supervisor)?;
        let answer = supervisor
            .processes(ProcessesRequest {})
            .await
            .map_err(|_| self.not_running())?;
        Ok((cluster, answer.into_inner().processes))
    }

    /// The sentence for a cluster whose supervisor does not answer.
    pub fn not_running(&self) -> Failure {
        let directory = self.data_dir.display();
        Failure::wrong(format!(
            "the cluster in {directory} is not running: start it with `epoka up`"
        ))
    }
}

/// Whether any broker that serves is reached where the others say it is.
///
/// # Errors
/// None is, though somebody answered: what they advertise is not meant for this side, or is wrong.
async fn check_advertised(client: &Client) -> Outcome {
    let metadata = client.metadata();
    let serving = || metadata.brokers.iter().filter(|(_, b)| !b.fenced);
    let asked = serving().map(|(_, broker)| {
        Box::pin(async {
            let answer = timeout(ADVERTISED, client.describe(broker.grpc.clone())).await;
            answer.is_ok_and(|a| a.is_ok()).then_some(()).ok_or(())
        })
    });
    let asked: Vec<_> = asked.collect();
    if asked.is_empty() || select_ok(asked).await.is_ok() {
        return Ok(());
    }
    let told: Vec<_> = serving()
        .map(|(id, b)| format!("broker {id} at {}", b.grpc))
        .collect();
    Err(Failure::wrong(format!(
        "the cluster answers, and says that there is {}, which cannot be reached from here: come through a listener that is \
         meant for this side, or correct advertised.listeners of those brokers",
        told.join(", ")
    )))
}
