//! Replicas that cannot serve although their broker is alive (C-15, C-18).

use super::*;

/// Broker `broker` withdraws its replica of `orders`.
fn withdraw(world: &mut World, broker: i32, topic: TopicId, fault: Fault) -> Reply {
    let partition = PartitionId {
        topic,
        partition: 0,
    };
    let command = Command::Withdraw {
        broker: BrokerId(broker),
        epoch: world.epoch(broker),
        partitions: vec![world.withdrawal(partition, fault)],
    };
    world.run(command).reply
}

fn goes_offline(world: &mut World, broker: i32, topic: TopicId) {
    let reply = withdraw(world, broker, topic, Fault::Offline);
    assert_eq!(reply, Reply::Done(Ok(())));
}

fn elect_uncleanly(world: &mut World) -> Result<(), ErrorCode> {
    let command = Command::ElectLeaders {
        kind: ElectionKind::Unclean,
        partitions: Some(vec![epoka_proto::ids::TopicPartition::new("orders", 0)]),
    };
    let Reply::Elections(mut replies) = world.run(command).reply else {
        panic!("an election is answered with elections");
    };
    let reply = replies.pop().expect("one partition was asked for");
    reply.result.map_err(|refusal| refusal.error)
}

#[test]
fn a_failed_replica_leads_no_longer_and_is_not_eligible_c_18() {
    let mut world = World::with_brokers(3);
    let topic = world.orders(&[1, 2, 3], 2);
    goes_offline(&mut world, 1, topic);
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(2)), ids(&[2, 3])));
    assert_eq!((now.leader_epoch.0, now.offline), (1, ids(&[1])));
    assert!(world.cluster.image().brokers[&BrokerId(1)].is_active());

    // A follower's leaves the ISR and nothing else changes; below the minimum it is not eligible either.
    goes_offline(&mut world, 3, topic);
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(2)), ids(&[2])));
    assert_eq!((now.leader_epoch.0, now.elr), (1, vec![]));
    assert_eq!(now.offline, ids(&[1, 3]));

    // It is known already.
    let before = now.partition_epoch;
    goes_offline(&mut world, 3, topic);
    assert_eq!(world.assignment("orders", 0).partition_epoch, before);
}

#[test]
fn a_replica_that_failed_while_it_counted_for_nothing_is_known_to_be_offline_too() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 1);
    world.fence(2);
    world.unfence(2);
    goes_offline(&mut world, 2, topic);
    world
        .configure(
            Some("orders"),
            "unclean.leader.election.enable",
            Some("true"),
        )
        .expect("a valid value");
    world.fence(1);
    assert_eq!(world.assignment("orders", 0).leader, None);
}

#[test]
fn a_failed_replica_that_nobody_can_stand_in_for_stays_eligible_but_does_not_lead() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 1);
    world.fence(2);
    goes_offline(&mut world, 1, topic);
    let down = world.assignment("orders", 0);
    assert_eq!((down.leader, down.isr), (None, vec![]));
    assert_eq!((down.elr, down.offline), (ids(&[1]), ids(&[1])));
    world.unfence(2);
    world.run(Command::RetryElections);
    assert_eq!(world.assignment("orders", 0).leader, None);

    // Repaired, and no record of it was lost: it leads as if nothing had been.
    let previous = world.epoch(1);
    let registration = world.registration(1, Some(previous));
    world.register(registration);
    assert_eq!(world.assignment("orders", 0).leader, None, "still fenced");
    world.unfence(1);
    let up = world.assignment("orders", 0);
    assert_eq!((up.leader, up.isr), (Some(BrokerId(1)), ids(&[1])));
    assert_eq!(up.recovery, epoka_proto::metadata::Recovery::Recovered);
}

#[test]
fn the_last_leader_is_not_elected_while_it_is_offline_c_34() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 2);
    world.fence(2);
    goes_offline(&mut world, 1, topic); // 2 is eligible
    let registration = world.registration(2, None); // not any more
    world.register(registration);
    world.unfence(2);
    let down = world.assignment("orders", 0);
    assert_eq!((down.leader, &down.last_known_elr), (None, &ids(&[1])));
    world.fence(1);
    world.unfence(1);
    assert_eq!(
        world.assignment("orders", 0).leader,
        None,
        "fencing repairs nothing"
    );

    // In its next life it can be read.
    let registration = world.registration(1, None);
    world.register(registration);
    world.unfence(1);
    assert_eq!(world.assignment("orders", 0).leader, Some(BrokerId(1)));
}

#[test]
fn what_the_next_life_cannot_serve_either_is_offline_before_it_is_unfenced() {
    let mut world = World::with_brokers(1);
    let topic = world.orders(&[1], 1);
    goes_offline(&mut world, 1, topic);
    let registration = world.registration(1, None);
    world.register(registration);
    assert_eq!(world.assignment("orders", 0).offline, vec![]);
    goes_offline(&mut world, 1, topic);
    world.unfence(1);
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.offline), (None, ids(&[1])));
}

#[test]
fn an_unclean_election_goes_past_offline_replicas_c_35() {
    let mut world = World::with_brokers(3);
    let topic = world.orders(&[1, 2, 3], 1);
    for id in [2, 3] {
        let registration = world.registration(id, None);
        world.register(registration);
    }
    goes_offline(&mut world, 1, topic);
    world.unfence(2);
    goes_offline(&mut world, 2, topic);
    let none = elect_uncleanly(&mut world);
    assert_eq!(none, Err(ErrorCode::EligibleLeadersNotAvailable));
    world.unfence(3);
    assert_eq!(elect_uncleanly(&mut world), Ok(()));
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(3)), ids(&[3])));
    assert_eq!(now.offline, ids(&[1, 2]));
}

#[test]
fn a_last_leader_that_lost_everything_leads_only_if_an_operator_says_so_c_34() {
    let mut world = World::with_brokers(1);
    let topic = world.orders(&[1], 1);
    let registration = world.registration(1, None);
    world.register(registration);
    assert_eq!(world.assignment("orders", 0).last_known_elr, ids(&[1]));
    let reply = withdraw(&mut world, 1, topic, Fault::Lost);
    assert_eq!(reply, Reply::Done(Ok(())));
    world.unfence(1);
    let down = world.assignment("orders", 0);
    assert_eq!((down.leader, down.last_known_elr), (None, vec![]));
    assert_eq!(elect_uncleanly(&mut world), Ok(()));
    assert_eq!(world.assignment("orders", 0).leader, Some(BrokerId(1)));
}

#[test]
fn a_failed_leader_gives_way_to_an_eligible_replica_that_is_still_away() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 2);
    world.fence(2);
    goes_offline(&mut world, 1, topic);
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr, now.elr), (None, vec![], ids(&[2])));
    world.unfence(2);
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(2)), ids(&[2])));
}

#[test]
fn only_the_present_life_of_a_broker_withdraws_c_11() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 1);
    let partition = PartitionId {
        topic,
        partition: 0,
    };
    let command = Command::Withdraw {
        broker: BrokerId(1),
        epoch: BrokerEpoch(-7),
        partitions: vec![world.withdrawal(partition, Fault::Offline)],
    };
    assert_eq!(
        world.run(command).reply,
        Reply::Done(Err(ErrorCode::StaleBrokerEpoch))
    );
}

#[test]
fn a_withdrawal_that_comes_late_does_not_take_out_what_is_whole_again() {
    let mut world = World::with_brokers(2);
    let topic = world.orders(&[1, 2], 1);
    let partition = PartitionId {
        topic,
        partition: 0,
    };
    let late = Command::Withdraw {
        broker: BrokerId(1),
        epoch: world.epoch(1),
        partitions: vec![world.withdrawal(partition, Fault::Offline)],
    };
    world.fence(2);
    let before = world.assignment("orders", 0);
    assert_eq!(
        world.run(late).reply,
        Reply::Done(Err(ErrorCode::InvalidUpdateVersion))
    );
    assert_eq!(world.assignment("orders", 0), before);
}
