//! Between gRPC messages and the cluster's types: sentinels of the wire end here. A message that cannot be what any caller
//! of ours means is INVALID_ARGUMENT.

use epoka_proto::epochs::{EpochHistory, EpochStart};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{
    BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TopicId,
};
use epoka_proto::metadata::Endpoint;
use epoka_proto::v1;
use tonic::Status;

use crate::cluster::{
    ConfigChange, Fault, Holding, IsrProposal, NewPartitions, NewTopic, Offer, Reach, Refusal,
    Registration, TopicRef, TopicReply, Withdrawal,
};

/// The wire code of an error, 0 for none.
pub(super) fn code<T>(result: &Result<T, ErrorCode>) -> i32 {
    ErrorCode::to_wire(result).into()
}

/// The wire form of an error with a reason.
pub(super) fn refusal<T>(result: &Result<T, Refusal>) -> (i32, String) {
    match result {
        Ok(_) => (0, String::new()),
        Err(refusal) => (refusal.error.code().into(), refusal.message.clone()),
    }
}

pub(super) fn topic_id(bytes: &[u8]) -> Result<TopicId, Status> {
    TopicId::from_bytes(bytes).ok_or_else(|| Status::invalid_argument("an id is 16 bytes"))
}

pub(super) fn broker_ids(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().map(|&id| BrokerId(id)).collect()
}

pub(super) fn registration(message: v1::RegisterRequest) -> Result<Registration, Status> {
    let endpoint = |l: v1::Listener| -> Result<Endpoint, Status> {
        let port = u16::try_from(l.port);
        Ok(Endpoint {
            name: l.name,
            host: l.host,
            port: port.map_err(|_| Status::invalid_argument("a port is at most 65535"))?,
        })
    };
    let listeners = message.listeners.into_iter().map(endpoint);
    let some = |text: String| (!text.is_empty()).then_some(text);
    Ok(Registration {
        broker: BrokerId::from_wire(message.broker_id)
            .ok_or_else(|| Status::invalid_argument("a broker id is not negative"))?,
        cluster_id: some(message.cluster_id),
        incarnation: Incarnation(topic_id(&message.incarnation)?.0),
        listeners: listeners.collect::<Result<_, _>>()?,
        grpc_address: message.grpc_address,
        log_dirs: message
            .log_dirs
            .iter()
            .map(|d| topic_id(d))
            .collect::<Result<_, _>>()?,
        previous_epoch: message.previous_broker_epoch.map(BrokerEpoch),
        rack: some(message.rack),
    })
}

/// What a broker offers to rebuild lost metadata from; `None` when it belongs to no cluster.
pub(super) fn offer(message: &v1::RegisterRequest) -> Result<Option<Offer>, Status> {
    if message.cluster_id.is_empty() {
        return Ok(None);
    }
    let holdings = message.holdings.iter().map(holding);
    Ok(Some(Offer {
        cluster_id: message.cluster_id.clone(),
        holdings: holdings.collect::<Result<_, _>>()?,
        next_broker_epoch: message
            .previous_broker_epoch
            .map_or(0, |epoch| epoch.saturating_add(1)),
        next_producer_id: message.next_producer_id,
    }))
}

fn holding(message: &v1::Holding) -> Result<Holding, Status> {
    let entries = message.history.iter().map(|e| EpochStart {
        epoch: LeaderEpoch(e.epoch),
        start: Offset(e.start),
    });
    // What makes no sense is as good as unreadable.
    let reach = EpochHistory::from_entries(entries.collect())
        .filter(|_| !message.unreadable && message.log_end >= 0)
        .map(|history| Reach {
            history,
            log_end: Offset(message.log_end),
            high_watermark: Offset(message.high_watermark),
        });
    Ok(Holding {
        topic: message.topic.clone(),
        partition: PartitionId {
            topic: topic_id(&message.topic_id)?,
            partition: message.partition,
        },
        reach,
    })
}

pub(super) fn withdrawal(item: v1::Withdrawal) -> Result<Withdrawal, Status> {
    Ok(Withdrawal {
        partition: PartitionId {
            topic: topic_id(&item.topic_id)?,
            partition: item.partition,
        },
        partition_epoch: epoka_proto::ids::PartitionEpoch(item.partition_epoch),
        fault: if item.lost {
            Fault::Lost
        } else {
            Fault::Offline
        },
    })
}

pub(super) fn proposal(item: v1::AlterPartitionItem) -> Result<IsrProposal, Status> {
    let member = |m: v1::IsrMember| {
        let epoch = BrokerEpoch::from_wire(m.broker_epoch);
        (BrokerId(m.broker_id), epoch)
    };
    Ok(IsrProposal {
        partition: PartitionId {
            topic: topic_id(&item.topic_id)?,
            partition: item.partition,
        },
        leader_epoch: epoka_proto::ids::LeaderEpoch(item.leader_epoch),
        partition_epoch: epoka_proto::ids::PartitionEpoch(item.partition_epoch),
        isr: item.new_isr.into_iter().map(member).collect(),
        recovering: item.recovering,
    })
}

pub(crate) fn new_topic(topic: v1::NewTopic) -> NewTopic {
    let count = |n: i32| (n != -1).then_some(n);
    let assignment = |a: v1::ReplicaAssignment| (a.partition, broker_ids(&a.broker_ids));
    NewTopic {
        name: topic.name,
        id: TopicId::random(),
        partitions: count(topic.partitions),
        replication_factor: count(topic.replication_factor),
        assignments: topic.assignments.into_iter().map(assignment).collect(),
        configs: topic.configs.into_iter().collect(),
    }
}

pub(super) fn topic_ref(topic: v1::TopicName) -> Result<TopicRef, Status> {
    if topic.topic_id.is_empty() {
        return Ok(TopicRef::Name(topic.name));
    }
    Ok(TopicRef::Id(topic_id(&topic.topic_id)?))
}

pub(super) fn new_partitions(topic: v1::NewPartitions) -> NewPartitions {
    let replicas = |a: &v1::ReplicaAssignment| broker_ids(&a.broker_ids);
    NewPartitions {
        topic: topic.name,
        count: topic.count,
        assignments: topic.assignments.iter().map(replicas).collect(),
    }
}

pub(super) fn config_change(change: v1::ConfigChange) -> ConfigChange {
    ConfigChange {
        topic: (!change.topic.is_empty()).then_some(change.topic),
        key: change.key,
        value: change.value,
    }
}

pub(super) fn topic_result(reply: TopicReply) -> v1::TopicResult {
    let (error, message) = refusal(&reply.result);
    v1::TopicResult {
        name: reply.name,
        topic_id: reply.id.map(TopicId::to_bytes).unwrap_or_default(),
        error,
        message,
        partitions: reply.partitions,
        replication_factor: reply.replication_factor,
    }
}
