//! What brokers ask: to be registered, for the metadata, for a new ISR, for producer ids, to be relieved of
//! failed replicas. Their leases are in `heartbeat`.

use std::sync::Arc;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId};
use epoka_proto::metadata::{Assignment, Endpoint, Image, Recovery};
use epoka_proto::v1::*;
use futures::StreamExt as _;
use tonic::{Response, Status};

use super::{Answers, convert, restore};
use crate::cluster::{Command, Refusal, Registration, Reply};
use crate::shared::Shared;

pub(super) async fn register(
    shared: &Shared,
    request: RegisterRequest,
) -> Result<Response<RegisterResponse>, Status> {
    shared.require_active()?;
    let offer = convert::offer(&request)?;
    let was_registered = request.registered_epoch.is_some();
    let registration = convert::registration(request)?;
    let id = registration.broker;
    let admissible = match refusal(shared, &registration, was_registered) {
        Some(refusal) => Err(refusal),
        None => restore::restore_first(shared, id, offer).await?,
    };
    let result = match admissible {
        Err(refusal) => Err(refusal),
        Ok(()) => {
            let outcome = shared.propose(Command::Register(registration)).await?;
            let Reply::Registered(result) = outcome.reply else {
                unreachable!("a registration is answered with an epoch");
            };
            result
        }
    };
    let (error, message) = convert::refusal(&result);
    Ok(Response::new(RegisterResponse {
        error,
        message,
        broker_epoch: BrokerEpoch::to_wire(result.ok()),
    }))
}

/// Refuses a second process of one broker while the first is live (C-10); whatever else happened to the first, the command
/// buries it. And refuses a process that was registered in a history of which this controller knows nothing: what it has
/// applied of that must not be mixed with what is here. A new process of the same broker knows nothing yet, and is welcome.
fn refusal(shared: &Shared, new: &Registration, was_registered: bool) -> Option<Refusal> {
    let id = new.broker;
    let (same_life, other_life, of_this_cluster) = shared.metadata.read(|cluster| {
        let image = cluster.image();
        let known = image.brokers.get(&id).map(|b| b.incarnation);
        let theirs = new.cluster_id.as_ref();
        (
            known == Some(new.incarnation),
            known.is_some_and(|k| k != new.incarnation),
            theirs.is_none_or(|c| *c == image.cluster_id) || restore::is_awaited(shared, image),
        )
    });
    if was_registered && !same_life && of_this_cluster {
        return Some(Refusal::new(
            ErrorCode::StaleBrokerEpoch,
            format!(
                "the controller does not know this process of broker {id}: its metadata was rebuilt, or another process took \
                 the broker's place; start the broker again"
            ),
        ));
    }
    if !of_this_cluster {
        return None; // the command refuses it for that, whoever else is here
    }
    let taken = shared
        .metadata
        .read(|cluster| address_taken(cluster.image(), new));
    if let Some(message) = taken {
        return Some(Refusal::new(
            ErrorCode::DuplicateBrokerRegistration,
            message,
        ));
    }
    (other_life && shared.liveness.lock().is_live(id, shared.now())).then(|| {
        let message =
            format!("another process runs as broker {id}; stop it or wait until its session ends");
        Refusal::new(ErrorCode::DuplicateBrokerRegistration, message)
    })
}

/// What is wrong with a broker that tells clients or nodes to come where another one that serves is reached: settings that were
/// copied and not changed.
fn address_taken(image: &Image, new: &Registration) -> Option<String> {
    let mut others = image
        .brokers
        .values()
        .filter(|b| b.id != new.broker && !b.fenced);
    others.find_map(|other| {
        let same = |l: &&Endpoint| {
            let mut theirs = other.listeners.iter();
            theirs.any(|t| (&t.host, t.port) == (&l.host, l.port))
        };
        let (address, setting) = if let Some(l) = new.listeners.iter().find(same) {
            (format!("{}:{}", l.host, l.port), "advertised.listeners")
        } else if new.grpc_address == other.grpc_address {
            (new.grpc_address.clone(), "epoka.grpc.advertised")
        } else {
            return None;
        };
        Some(format!(
            "broker {} advertises {address}, where broker {} is reached; give it an address of its own in {setting}",
            new.broker, other.id
        ))
    })
}

/// The metadata from where the caller is, for as long as this controller is active.
pub(super) fn metadata(
    shared: Arc<Shared>,
    request: MetadataRequest,
) -> Result<Response<Answers<MetadataUpdate>>, Status> {
    shared.require_active()?;
    if let Some(epoch) = request.broker_epoch {
        let id = BrokerId(request.broker_id);
        let known = shared
            .metadata
            .read(|c| c.image().brokers.get(&id).map(|b| b.epoch));
        if known != Some(BrokerEpoch(epoch)) {
            return Err(Status::failed_precondition(format!(
                "STALE_BROKER_EPOCH: broker {id} is not registered with epoch {epoch} here"
            )));
        }
    }
    let updates = shared.metadata.follow(request.after_offset).map(Ok);
    let deposed = async move { Err(shared.deposed().await) };
    let end = Box::pin(futures::stream::once(deposed));
    Ok(Response::new(Box::pin(until_first_error(updates, end))))
}

/// Passes on a stream until the other one yields its error.
fn until_first_error<T: Send + 'static>(
    stream: impl futures::Stream<Item = Result<T, Status>> + Send + 'static,
    end: impl futures::Stream<Item = Result<T, Status>> + Send + Unpin + 'static,
) -> impl futures::Stream<Item = Result<T, Status>> + Send + 'static {
    let both = futures::stream::select(stream, end);
    both.scan(false, |ended, item| {
        let pass = !*ended;
        *ended = item.is_err();
        std::future::ready(pass.then_some(item))
    })
}

pub(super) async fn alter_partition(
    shared: &Shared,
    request: AlterPartitionRequest,
) -> Result<Response<AlterPartitionResponse>, Status> {
    let proposals = request.partitions.into_iter().map(convert::proposal);
    let command = Command::AlterPartition {
        broker: BrokerId(request.broker_id),
        epoch: BrokerEpoch(request.broker_epoch),
        partitions: proposals.collect::<Result<_, _>>()?,
    };
    let Reply::Isr(reply) = shared.propose(command).await?.reply else {
        unreachable!("ISR proposals are answered with ISRs");
    };
    let error = convert::code(&reply);
    let partitions = reply.unwrap_or_default();
    Ok(Response::new(AlterPartitionResponse {
        error,
        partitions: partitions.into_iter().map(isr_result).collect(),
    }))
}

fn isr_result(result: Result<Assignment, ErrorCode>) -> AlterPartitionResult {
    let error = convert::code(&result);
    match result {
        Ok(now) => AlterPartitionResult {
            error,
            leader_id: BrokerId::to_wire(now.leader),
            leader_epoch: now.leader_epoch.0,
            isr: now.isr.iter().map(|r| r.0).collect(),
            recovering: now.recovery == Recovery::Recovering,
            partition_epoch: now.partition_epoch.0,
        },
        Err(_) => AlterPartitionResult {
            error,
            leader_id: -1,
            leader_epoch: -1,
            isr: Vec::new(),
            recovering: false,
            partition_epoch: -1,
        },
    }
}

pub(super) async fn withdraw(
    shared: &Shared,
    request: WithdrawRequest,
) -> Result<Response<WithdrawResponse>, Status> {
    let failed = request.partitions.into_iter().map(convert::withdrawal);
    let command = Command::Withdraw {
        broker: BrokerId(request.broker_id),
        epoch: BrokerEpoch(request.broker_epoch),
        partitions: failed.collect::<Result<_, _>>()?,
    };
    let Reply::Done(result) = shared.propose(command).await?.reply else {
        unreachable!("a withdrawal is done or not");
    };
    Ok(Response::new(WithdrawResponse {
        error: convert::code(&result),
    }))
}

pub(super) async fn allocate_producer_ids(
    shared: &Shared,
    request: AllocateProducerIdsRequest,
) -> Result<Response<AllocateProducerIdsResponse>, Status> {
    let command = Command::AllocateProducerIds {
        broker: BrokerId(request.broker_id),
        epoch: BrokerEpoch(request.broker_epoch),
    };
    let Reply::ProducerIds(reply) = shared.propose(command).await?.reply else {
        unreachable!("a block is answered with a block");
    };
    let error = convert::code(&reply);
    let block = reply.unwrap_or(0..0);
    Ok(Response::new(AllocateProducerIdsResponse {
        error,
        first: block.start,
        count: (block.end - block.start) as i32,
    }))
}
