use super::*;

#[test]
fn the_same_incarnation_keeps_epoch_and_flags_c_10_h_44() {
    let mut world = World::new();
    let first = world.registration(1, None);
    let epoch = world.register(first.clone());
    world.unfence(1);
    let again = world.run(Command::Register(first.clone()));
    assert_eq!(again.reply, Reply::Registered(Ok(epoch)));
    assert_eq!(again.records, []);
    let moved = Registration {
        grpc_address: "elsewhere:2".into(),
        ..first
    };
    assert_eq!(world.register(moved), epoch);
    let broker = &world.cluster.image().brokers[&BrokerId(1)];
    assert_eq!(
        (broker.fenced, broker.grpc_address.as_str()),
        (false, "elsewhere:2")
    );
}

#[test]
fn a_new_incarnation_is_born_fenced_with_the_offset_as_its_epoch_c_10() {
    let mut world = World::with_brokers(1);
    let old = world.epoch(1);
    let offset = world.next_offset;
    let registration = world.registration(1, None);
    let epoch = world.register(registration);
    assert_eq!(epoch, BrokerEpoch(offset));
    assert!(world.cluster.image().brokers[&BrokerId(1)].fenced);
    let stale = Command::Unfence {
        broker: BrokerId(1),
        epoch: old,
    };
    assert_eq!(
        world.run(stale).reply,
        Reply::Done(Err(ErrorCode::StaleBrokerEpoch))
    ); // C-11
}

#[test]
fn a_broker_of_another_cluster_is_refused_c_10() {
    let mut world = World::new();
    let foreign = Registration {
        cluster_id: Some("other".into()),
        ..world.registration(1, None)
    };
    let Reply::Registered(Err(refusal)) = world.run(Command::Register(foreign)).reply else {
        panic!("refused");
    };
    assert_eq!(refusal.error, ErrorCode::InconsistentClusterId);
    let newcomer = Registration {
        cluster_id: None,
        ..world.registration(1, None)
    };
    world.register(newcomer);
}

#[test]
fn a_restart_within_an_expired_lease_first_buries_the_old_life_h_82() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 2);
    // Broker 1 died and is back before anybody fenced it.
    let registration = world.registration(1, None);
    let outcome = world.run(Command::Register(registration));
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(2)), ids(&[2, 3])));
    assert_eq!((now.leader_epoch.0, now.partition_epoch.0), (1, 1));
    let fenced = Notice::Fenced {
        broker: BrokerId(1),
    };
    assert!(outcome.notices.contains(&fenced), "{:?}", outcome.notices);
}

#[test]
fn only_a_clean_restart_keeps_its_place_among_the_eligible_c_13_h_45_i_19() {
    for clean in [true, false] {
        let mut world = World::with_brokers(2);
        world.orders(&[1, 2], 2);
        world.fence(2);
        assert_eq!(world.assignment("orders", 0).elr, ids(&[2]));
        let previous = world.epoch(2);
        let registration = world.registration(2, clean.then_some(previous));
        world.register(registration);
        let expected = if clean { ids(&[2]) } else { vec![] };
        assert_eq!(
            world.assignment("orders", 0).elr,
            expected,
            "clean: {clean}"
        );
        // The last one in sync dies; the returned one may lead only if nothing of its log can be missing.
        world.unfence(2);
        world.fence(1);
        let now = world.assignment("orders", 0);
        assert_eq!(now.leader, clean.then_some(BrokerId(2)), "clean: {clean}");
    }
}

#[test]
fn a_registration_under_an_older_previous_epoch_is_unclean_c_13() {
    let mut world = World::with_brokers(2);
    world.orders(&[1, 2], 2);
    let older = world.epoch(2);
    let registration = world.registration(2, Some(older));
    world.register(registration); // clean
    world.unfence(2);
    let registration = world.registration(2, Some(older)); // names the life before the last one
    world.register(registration);
    assert_eq!(world.assignment("orders", 0).elr, vec![]);
}

#[test]
fn all_killed_and_back_the_last_leader_leads_again_c_34() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 2);
    for id in [3, 1, 2] {
        let registration = world.registration(id, None);
        world.register(registration);
    }
    let down = world.assignment("orders", 0);
    assert_eq!(
        (down.leader, down.last_known_elr.clone()),
        (None, ids(&[2])),
        "{down:?}"
    );
    world.unfence(3);
    world.unfence(1);
    assert_eq!(world.assignment("orders", 0).leader, None);
    let outcome = world.unfence(2);
    let up = world.assignment("orders", 0);
    assert_eq!(
        (up.leader, up.isr, up.last_known_elr),
        (Some(BrokerId(2)), ids(&[2]), vec![])
    );
    assert!(
        matches!(outcome.notices[1], Notice::Elected { unclean: true, .. }),
        "{outcome:?}"
    );
}

#[test]
fn fencing_moves_each_leadership_once_and_writes_the_fence_last_c_18() {
    let mut world = World::with_brokers(3);
    let topic = NewTopic {
        partitions: Some(3),
        replication_factor: Some(3),
        ..world.new_topic("orders")
    };
    world.create(topic).expect("created");
    let outcome = world.fence(1);
    assert_eq!(outcome.records.len(), 4);
    assert!(matches!(&outcome.records[3], Record::Broker(b) if b.fenced));
    let epochs: Vec<_> = (0..3)
        .map(|p| world.assignment("orders", p).leader_epoch.0)
        .collect();
    assert_eq!(epochs, [1, 0, 0], "only broker 1's leadership moved");
    assert_eq!(world.fence(1).records, [], "once");
}

#[test]
fn a_draining_broker_leads_nothing_is_in_no_isr_and_is_not_chosen_c_18() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 2);
    let epoch = world.epoch(1);
    world.run(Command::BeginShutdown {
        broker: BrokerId(1),
        epoch,
    });
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr), (Some(BrokerId(2)), ids(&[2, 3])));
    world.fence(2);
    world.fence(3);
    assert_eq!(world.assignment("orders", 0).leader, None);
    assert!(world.cluster.image().brokers[&BrokerId(1)].shutting_down);
    let registration = world.registration(1, Some(epoch));
    world.register(registration);
    assert!(!world.cluster.image().brokers[&BrokerId(1)].shutting_down);
}

#[test]
fn a_broker_removed_for_good_is_forgotten_everywhere_c_18() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 3);
    world.fence(1);
    assert_eq!(world.assignment("orders", 0).elr, ids(&[1]));
    world.run(Command::Unregister {
        broker: BrokerId(1),
    });
    assert_eq!(world.assignment("orders", 0).elr, vec![]);
    assert!(!world.cluster.image().brokers.contains_key(&BrokerId(1)));
    let again = world.run(Command::Unregister {
        broker: BrokerId(1),
    });
    assert_eq!(
        again.reply,
        Reply::Done(Err(ErrorCode::BrokerIdNotRegistered))
    );
}

#[test]
fn producer_ids_come_in_blocks_and_never_twice() {
    let mut world = World::with_brokers(1);
    let epoch = world.epoch(1);
    let mut ask = |epoch| {
        let command = Command::AllocateProducerIds {
            broker: BrokerId(1),
            epoch,
        };
        world.run(command).reply
    };
    assert_eq!(ask(epoch), Reply::ProducerIds(Ok(0..1000)));
    assert_eq!(ask(epoch), Reply::ProducerIds(Ok(1000..2000)));
    let stale = Err(ErrorCode::StaleBrokerEpoch);
    assert_eq!(ask(BrokerEpoch(epoch.0 + 1)), Reply::ProducerIds(stale));
}
