//! The replication of commands: openraft over a log on disk and gRPC between controllers. A command that `propose` answers
//! is committed and applied on this controller. Nothing here knows what commands mean.

mod disk;
mod guarded;
mod log_store;
mod network;
mod snapshot;
mod state_machine;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use openraft::error::{ClientWriteError, InitializeError, RaftError};
use openraft::{BasicNode, Raft, SnapshotPolicy};

use crate::cluster::{Command, Outcome};
use crate::metadata::Metadata;
use crate::timeline::Timeline;

pub(crate) use network::{MAX_MESSAGE, decode, encode};

use disk::Disk;
use log_store::LogStore;
use network::Network;
use state_machine::StateMachine;

openraft::declare_raft_types!(
    /// The types our Raft is made of. An entry without a command has no outcome.
    pub Types: D = Command, R = Option<Outcome>, NodeId = u64, Node = BasicNode
);

pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type Vote = openraft::Vote<u64>;

const HEARTBEAT_MS: u64 = 100;
/// A follower waits for the upper bound and then for a time of its own within the bounds, before it stands for election: a
/// dead leader is replaced within 1.2 s. The lower bound is also how long a vote may take, which both sides sync to disk: on a
/// machine so busy that none comes in time, there is no leader.
const ELECTION_MS: std::ops::Range<u64> = 300..600;
/// A leader that no quorum has acknowledged for so long is taken to be cut off.
pub(crate) const QUORUM_LOST_MS: u64 = 2 * ELECTION_MS.end;
/// How long a proposal may wait for its commit.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the other voters leave the first election of a pristine quorum to the one with the lowest id.
const LATECOMER_DELAY: Duration = Duration::from_secs(1);

/// This controller's part of the quorum.
pub(crate) struct Quorum {
    pub(crate) id: u64,
    pub(crate) raft: Raft<Types>,
    /// Addresses by id, as configured now: those in the log may be of an earlier start.
    pub(crate) voters: BTreeMap<u64, String>,
}

/// Why a proposal was not answered with its outcome.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProposeError {
    /// Another controller is active, or none.
    #[error("this controller is not the active one")]
    NotActive {
        /// Which is, if known.
        active: Option<u64>,
    },
    /// No quorum took it in time. It may still be committed.
    #[error("no quorum of controllers accepted the command in time; it may still be carried out")]
    TimedOut,
    /// This controller is stopping, or its disk failed.
    #[error("this controller has stopped: {0}")]
    Stopped(String),
}

impl Quorum {
    /// Recovers the log and the snapshot and joins the quorum. `voters` includes this controller.
    pub(crate) async fn open(
        id: u64,
        voters: BTreeMap<u64, String>,
        data_dir: PathBuf,
        metadata: Metadata,
        timeline: Timeline,
    ) -> anyhow::Result<Self> {
        let config = openraft::Config {
            cluster_name: "epoka".into(),
            heartbeat_interval: HEARTBEAT_MS,
            election_timeout_min: ELECTION_MS.start,
            election_timeout_max: ELECTION_MS.end,
            install_snapshot_timeout: 5_000,
            snapshot_max_chunk_size: 512 << 10,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(2_000),
            max_in_snapshot_log_to_keep: 500,
            ..openraft::Config::default()
        };
        let config = Arc::new(config.validate()?);
        let (disk, entries) = {
            let data_dir = data_dir.clone();
            tokio::task::spawn_blocking(move || Disk::open(&data_dir, id)).await??
        };
        let log = LogStore::new(disk, entries);
        let machine = StateMachine::open(data_dir, metadata.clone(), timeline).await?;
        let network = Network::new(voters.clone(), metadata);
        let raft = Raft::new(id, config, network, log, machine)
            .await
            .context("cannot start the quorum")?;
        Ok(Self { id, raft, voters })
    }

    /// Gets an election under way where nothing else would at once: on a pristine log, and for a quorum of one.
    pub(crate) async fn start(self: &Arc<Self>) -> anyhow::Result<()> {
        let pristine = !self.raft.is_initialized().await?;
        let first = self.voters.keys().next() == Some(&self.id);
        if pristine && first {
            self.initialize().await?;
        } else if pristine {
            let quorum = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LATECOMER_DELAY).await;
                if !quorum.raft.is_initialized().await.unwrap_or(true)
                    && let Err(error) = quorum.initialize().await
                {
                    tracing::warn!(%error, "cannot initialize the quorum");
                }
            });
        } else if self.voters.len() == 1 {
            self.raft.trigger().elect().await?;
        }
        Ok(())
    }

    async fn initialize(&self) -> anyhow::Result<()> {
        let node = |(id, addr): (&u64, &String)| (*id, BasicNode { addr: addr.clone() });
        let members: BTreeMap<u64, BasicNode> = self.voters.iter().map(node).collect();
        match self.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Has a command committed and applied.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let write = self.raft.client_write(command);
        let written = tokio::time::timeout(PROPOSAL_TIMEOUT, write).await;
        match written.map_err(|_| ProposeError::TimedOut)? {
            Ok(response) => Ok(response.data.expect("a command's entry has an outcome")),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Err(ProposeError::NotActive {
                    active: to.leader_id,
                })
            }
            Err(error) => Err(ProposeError::Stopped(error.to_string())),
        }
    }

    /// Waits until everything committed is applied here, with this controller confirmed as the leader.
    pub(crate) async fn catch_up(&self) -> Result<(), ProposeError> {
        let confirmed = self.raft.ensure_linearizable();
        match tokio::time::timeout(PROPOSAL_TIMEOUT, confirmed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(ProposeError::Stopped(error.to_string())),
            Err(_) => Err(ProposeError::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests;
