use super::*;
use epoka_proto::ids::{LeaderEpoch, PartitionEpoch, PartitionId};
use epoka_proto::metadata::Recovery;

/// Brokers 1 to 4 (4 is no replica); `orders-0` on 1, 2, 3 led by 2 in leader epoch 1, partition epoch 2, ISR 2 and 3, with
/// broker 1 back and unfenced.
fn world() -> (World, PartitionId) {
    let mut world = World::with_brokers(4);
    let topic = world.orders(&[1, 2, 3], 2);
    world.fence(1);
    world.unfence(1);
    let id = PartitionId {
        topic,
        partition: 0,
    };
    let proposal = IsrProposal {
        isr: members(&[2]),
        partition_epoch: PartitionEpoch(1),
        ..proposal(id)
    };
    ask(&mut world, 2, proposal).expect("shrinks");
    (world, id)
}

fn members(numbers: &[i32]) -> Vec<(BrokerId, Option<BrokerEpoch>)> {
    numbers.iter().map(|&n| (BrokerId(n), None)).collect()
}

/// What broker 2 may ask for in that state.
fn proposal(partition: PartitionId) -> IsrProposal {
    IsrProposal {
        partition,
        leader_epoch: LeaderEpoch(1),
        partition_epoch: PartitionEpoch(2),
        isr: members(&[2, 3]),
        recovering: false,
    }
}

fn ask(world: &mut World, sender: i32, proposal: IsrProposal) -> Result<Assignment, ErrorCode> {
    let command = Command::AlterPartition {
        broker: BrokerId(sender),
        epoch: world.epoch(sender),
        partitions: vec![proposal],
    };
    match world.run(command).reply {
        Reply::Isr(Ok(results)) => results[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn proposals_are_refused_by_the_rows_of_c_40_and_the_first_hit_wins() {
    let (world, id) = world();
    let good = || proposal(id);
    let elsewhere = TopicId(Uuid::from_u128(999));
    let at = |topic, partition| PartitionId { topic, partition };
    let epochs = |leader, partition| (LeaderEpoch(leader), PartitionEpoch(partition));
    let with = |(leader_epoch, partition_epoch)| IsrProposal {
        leader_epoch,
        partition_epoch,
        ..good()
    };
    let isr = |isr| IsrProposal { isr, ..good() };
    let rows = [
        (
            "unknown topic",
            2,
            IsrProposal {
                partition: at(elsewhere, 0),
                ..good()
            },
            ErrorCode::UnknownTopicId,
        ),
        (
            "unknown partition",
            2,
            IsrProposal {
                partition: at(id.topic, 7),
                ..good()
            },
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            "a newer leader epoch than ours (H-38)",
            2,
            with(epochs(2, 2)),
            ErrorCode::NotController,
        ),
        (
            "a newer partition epoch than ours (H-38)",
            2,
            with(epochs(1, 3)),
            ErrorCode::NotController,
        ),
        (
            "newer and older: we are stale comes first",
            2,
            with(epochs(0, 3)),
            ErrorCode::NotController,
        ),
        (
            "an older leader epoch (H-37)",
            2,
            with(epochs(0, 2)),
            ErrorCode::FencedLeaderEpoch,
        ),
        ("not the leader", 3, good(), ErrorCode::InvalidRequest),
        (
            "not the leader, on an older partition epoch",
            3,
            with(epochs(1, 1)),
            ErrorCode::InvalidRequest,
        ),
        (
            "an older partition epoch",
            2,
            with(epochs(1, 1)),
            ErrorCode::InvalidUpdateVersion,
        ),
        (
            "an older partition epoch and a malformed ISR",
            2,
            IsrProposal {
                isr: vec![],
                ..with(epochs(1, 1))
            },
            ErrorCode::InvalidUpdateVersion,
        ),
        (
            "a member twice",
            2,
            isr(members(&[2, 3, 3])),
            ErrorCode::InvalidRequest,
        ),
        (
            "a member that is no replica",
            2,
            isr(members(&[2, 4])),
            ErrorCode::InvalidRequest,
        ),
        (
            "without the leader",
            2,
            isr(members(&[3])),
            ErrorCode::InvalidRequest,
        ),
        ("nobody", 2, isr(vec![]), ErrorCode::InvalidRequest),
        (
            "recovering again (C-37)",
            2,
            IsrProposal {
                recovering: true,
                isr: members(&[2]),
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "another life of a member (H-15)",
            2,
            isr(vec![
                (BrokerId(2), None),
                (BrokerId(3), Some(BrokerEpoch(0))),
            ]),
            ErrorCode::IneligibleReplica,
        ),
    ];
    for (what, sender, proposal, error) in rows {
        let mut world = World {
            cluster: world.cluster.clone(),
            ..world
        };
        let before = world.cluster.clone();
        assert_eq!(ask(&mut world, sender, proposal), Err(error), "{what}");
        assert_eq!(world.cluster, before, "{what}: nothing is applied");
    }
}

#[test]
fn a_member_that_is_fenced_draining_or_unknown_spoils_the_whole_proposal_h_41() {
    let (world, id) = world();
    for (what, command) in [
        (
            "fenced",
            Command::Fence {
                broker: BrokerId(3),
                epoch: world.epoch(3),
            },
        ),
        (
            "draining",
            Command::BeginShutdown {
                broker: BrokerId(3),
                epoch: world.epoch(3),
            },
        ),
        (
            "gone",
            Command::Unregister {
                broker: BrokerId(3),
            },
        ),
    ] {
        let mut world = World {
            cluster: world.cluster.clone(),
            ..world
        };
        world.run(command);
        // Its removal may itself have changed the partition: broker 3 was eligible.
        let partition_epoch = world.assignment("orders", 0).partition_epoch;
        let wanted = IsrProposal {
            isr: members(&[1, 2, 3]),
            partition_epoch,
            ..proposal(id)
        };
        assert_eq!(
            ask(&mut world, 2, wanted),
            Err(ErrorCode::IneligibleReplica),
            "{what}"
        );
        assert_eq!(
            world.assignment("orders", 0).isr,
            ids(&[2]),
            "{what}: not even broker 1 joined"
        );
    }
}

#[test]
fn a_stale_sender_is_refused_as_a_whole_c_11_h_37() {
    let (mut world, id) = world();
    let stale = world.epoch(2);
    let registration = world.registration(2, None);
    world.register(registration);
    let command = Command::AlterPartition {
        broker: BrokerId(2),
        epoch: stale,
        partitions: vec![proposal(id)],
    };
    assert_eq!(
        world.run(command).reply,
        Reply::Isr(Err(ErrorCode::StaleBrokerEpoch))
    );
}

#[test]
fn a_shrink_below_the_minimum_and_an_expansion_c_41() {
    let (mut world, id) = world();
    let small = world.assignment("orders", 0);
    assert_eq!((small.isr, small.elr), (ids(&[2]), ids(&[3])));
    let epoch_of_3 = world.epoch(3);
    let wanted = IsrProposal {
        isr: vec![(BrokerId(3), Some(epoch_of_3)), (BrokerId(2), None)],
        ..proposal(id)
    };
    let now = ask(&mut world, 2, wanted).expect("expands");
    assert_eq!((now.isr.clone(), now.elr.clone()), (ids(&[2, 3]), vec![]));
    assert_eq!((now.leader_epoch.0, now.partition_epoch.0), (1, 3));
    assert_eq!(now, world.assignment("orders", 0));
}

#[test]
fn a_proposal_of_what_is_succeeds_and_leaves_earlier_proposals_behind_h_39() {
    let (mut world, id) = world();
    let before = world.assignment("orders", 0);
    let same = IsrProposal {
        isr: members(&[2]),
        ..proposal(id)
    };
    let now = ask(&mut world, 2, same.clone()).expect("a no-op succeeds");
    assert_eq!(now, world.assignment("orders", 0));
    let moved = before.partition_epoch.next();
    assert_eq!(
        now,
        Assignment {
            partition_epoch: moved,
            ..before
        }
    );
    let late = ask(&mut world, 2, proposal(id)); // broker 3 would be welcome, but this was asked before
    assert_eq!(late, Err(ErrorCode::InvalidUpdateVersion));
    let copy = ask(&mut world, 2, same); // its answer was lost: it raises nothing again
    assert_eq!(copy, Err(ErrorCode::InvalidUpdateVersion));
    let now = world.assignment("orders", 0);
    assert_eq!(now.partition_epoch, moved);
}

#[test]
fn a_leader_elected_uncleanly_settles_before_it_widens_its_isr_c_35_c_37() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 1);
    let id = PartitionId {
        topic,
        partition: 0,
    };
    let registration = world.registration(1, None);
    world.register(registration);
    world.fence(2);
    let registration = world.registration(2, None);
    world.register(registration);
    world.unfence(1);
    assert_eq!(
        world.assignment("orders", 0).leader,
        None,
        "broker 2 was the last leader"
    );
    let elect = Command::ElectLeaders {
        kind: ElectionKind::Unclean,
        partitions: Some(vec![epoka_proto::ids::TopicPartition::new("orders", 0)]),
    };
    let Reply::Elections(replies) = world.run(elect).reply else {
        panic!("elections");
    };
    assert_eq!(replies[0].result, Ok(()));
    world.unfence(2);
    let now = world.assignment("orders", 0);
    assert_eq!(
        (now.leader, now.isr.clone(), now.recovery),
        (Some(BrokerId(1)), ids(&[1]), Recovery::Recovering)
    );
    let wanted = |recovering, isr: &[i32], epoch| IsrProposal {
        partition: id,
        leader_epoch: now.leader_epoch,
        partition_epoch: PartitionEpoch(epoch),
        isr: members(isr),
        recovering,
    };
    let epoch = now.partition_epoch.0;
    let widened = ask(&mut world, 1, wanted(true, &[1, 2], epoch));
    assert_eq!(widened, Err(ErrorCode::InvalidRequest));
    let settled = ask(&mut world, 1, wanted(false, &[1, 2], epoch)).expect("settles and widens");
    assert_eq!(
        (settled.recovery, settled.isr),
        (Recovery::Recovered, ids(&[1, 2]))
    );
    let back = ask(&mut world, 1, wanted(true, &[1], epoch + 1));
    assert_eq!(back, Err(ErrorCode::InvalidRequest));
}
