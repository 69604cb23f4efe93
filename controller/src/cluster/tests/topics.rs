use super::*;
use epoka_proto::ids::TopicPartition;

#[test]
fn a_new_topic_is_led_by_its_first_live_replica_c_1() {
    let mut world = World::with_brokers(3);
    world.fence(1);
    world.orders(&[1, 2, 3], 2);
    let now = world.assignment("orders", 0);
    assert_eq!(
        (now.leader, now.isr, now.min_isr),
        (Some(BrokerId(2)), ids(&[2, 3]), 2)
    );
    assert_eq!((now.leader_epoch.0, now.partition_epoch.0), (0, 0));
}

#[test]
fn what_kafka_refuses_to_create_is_refused_with_its_error() {
    let mut world = World::with_brokers(3);
    world.fence(3);
    let topic = world.new_topic("a.b");
    world.create(topic).expect("created");
    let configs = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let new = world.new_topic("new");
    let named = |name: &str| NewTopic {
        name: name.into(),
        ..new.clone()
    };
    let counts = |partitions, replication_factor| NewTopic {
        partitions,
        replication_factor,
        ..new.clone()
    };
    let manual = |assignments: &[(i32, &[i32])]| NewTopic {
        assignments: assignments.iter().map(|(p, r)| (*p, ids(r))).collect(),
        ..new.clone()
    };
    let rows = [
        ("no name", named(""), ErrorCode::InvalidTopic),
        ("a slash", named("a/b"), ErrorCode::InvalidTopic),
        ("dots only", named(".."), ErrorCode::InvalidTopic),
        ("too long", named(&"x".repeat(250)), ErrorCode::InvalidTopic),
        ("exists", named("a.b"), ErrorCode::TopicAlreadyExists),
        ("differs by a dot", named("a_b"), ErrorCode::InvalidTopic),
        (
            "no partitions",
            counts(Some(0), None),
            ErrorCode::InvalidPartitions,
        ),
        (
            "fewer than none",
            counts(Some(-2), None),
            ErrorCode::InvalidPartitions,
        ),
        (
            "far too many",
            counts(Some(i32::MAX), None),
            ErrorCode::PolicyViolation,
        ),
        (
            "no replicas",
            counts(None, Some(0)),
            ErrorCode::InvalidReplicationFactor,
        ),
        (
            "more replicas than brokers",
            counts(None, Some(4)),
            ErrorCode::InvalidReplicationFactor,
        ),
        (
            "counts and a manual assignment",
            NewTopic {
                partitions: Some(1),
                ..manual(&[(0, &[1])])
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "a gap",
            manual(&[(0, &[1]), (2, &[1])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "a partition twice",
            manual(&[(0, &[1]), (0, &[1])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "a broker twice",
            manual(&[(0, &[1, 1])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "nobody",
            manual(&[(0, &[])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "an unknown broker",
            manual(&[(0, &[1, 9])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "uneven",
            manual(&[(0, &[1, 2]), (1, &[1])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "fenced ones only",
            manual(&[(0, &[3])]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (
            "an unknown key",
            NewTopic {
                configs: configs("retention.sm", "1"),
                ..new.clone()
            },
            ErrorCode::InvalidConfig,
        ),
        (
            "a bad value",
            NewTopic {
                configs: configs("min.insync.replicas", "0"),
                ..new.clone()
            },
            ErrorCode::InvalidConfig,
        ),
    ];
    for (what, topic, error) in rows {
        let before = world.cluster.clone();
        assert_eq!(world.create(topic), Err(error), "{what}");
        assert_eq!(world.cluster, before, "{what}: nothing is left behind");
    }
    let twice = world.run(Command::CreateTopics {
        topics: vec![named("x"), named("x"), named("y")],
    });
    let Reply::Topics(replies) = twice.reply else {
        panic!("topics");
    };
    let errors: Vec<_> = replies
        .iter()
        .map(|r| r.result.as_ref().err().map(|e| e.error))
        .collect();
    let repeated = Some(ErrorCode::InvalidRequest);
    assert_eq!(errors, [repeated, repeated, None]);
}

#[test]
fn without_live_brokers_nothing_can_be_created() {
    let mut world = World::with_brokers(1);
    world.fence(1);
    let topic = world.new_topic("orders");
    assert_eq!(
        world.create(topic),
        Err(ErrorCode::InvalidReplicationFactor)
    );
}

#[test]
fn defaults_are_three_replicas_where_there_are_as_many_brokers_and_the_cluster_may_say_otherwise() {
    for (brokers, expected) in [(1, 1), (2, 2), (3, 3), (5, 3)] {
        let mut world = World::with_brokers(brokers);
        let topic = world.new_topic("orders");
        world.create(topic).expect("created");
        assert_eq!(world.assignment("orders", 0).replicas.len(), expected);
    }
    let mut world = World::with_brokers(3);
    world
        .configure(None, "default.replication.factor", Some("2"))
        .expect("set");
    world
        .configure(None, "num.partitions", Some("4"))
        .expect("set");
    world
        .configure(None, "min.insync.replicas", Some("3"))
        .expect("set");
    assert_eq!(
        world.configure(None, "num.partitions", Some("0")),
        Err(ErrorCode::InvalidConfig)
    );
    assert_eq!(
        world.configure(None, "num.partition", Some("1")),
        Err(ErrorCode::InvalidConfig)
    );
    let topic = world.new_topic("orders");
    world.create(topic).expect("created");
    assert_eq!(
        world
            .cluster
            .image()
            .topic("orders")
            .expect("created")
            .partitions
            .len(),
        4
    );
    let now = world.assignment("orders", 3);
    assert_eq!(
        (now.replicas.len(), now.min_isr),
        (2, 2),
        "never more than the replicas (C-36)"
    );
}

#[test]
fn a_fenced_broker_takes_a_replica_only_when_the_live_ones_do_not_suffice() {
    let mut world = World::with_brokers(3);
    world.fence(2);
    for (name, factor, expected) in [("two", 2, [1, 3].as_slice()), ("three", 3, &[1, 3, 2])] {
        let topic = NewTopic {
            replication_factor: Some(factor),
            ..world.new_topic(name)
        };
        world.create(topic).expect("created");
        let mut replicas = world.assignment(name, 0).replicas;
        replicas[..2].sort();
        assert_eq!(replicas, ids(expected), "{name}");
    }
}

#[test]
fn deletion_takes_configurations_along_and_a_new_topic_of_that_name_is_another() {
    let mut world = World::with_brokers(1);
    let id = world.orders(&[1], 1);
    let delete = |topic| Command::DeleteTopics {
        topics: vec![topic],
    };
    assert_eq!(only(world.run(delete(TopicRef::Id(id)))), Ok(()));
    assert!(world.cluster.image().configs.is_empty());
    let gone = world.run(delete(TopicRef::Id(id)));
    assert_eq!(only(gone), Err(ErrorCode::UnknownTopicId));
    let gone = world.run(delete(TopicRef::Name("orders".into())));
    assert_eq!(only(gone), Err(ErrorCode::UnknownTopicOrPartition));
    assert_ne!(world.orders(&[1], 1), id);
    assert_eq!(
        only(world.run(delete(TopicRef::Name("orders".into())))),
        Ok(())
    );
}

#[test]
fn partitions_are_added_at_the_end_and_never_taken_away() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2], 1);
    let mut grow = |count, assignments: &[&[i32]]| {
        only(world.run(Command::CreatePartitions {
            topics: vec![NewPartitions {
                topic: "orders".into(),
                count,
                assignments: assignments.iter().map(|r| ids(r)).collect(),
            }],
        }))
    };
    assert_eq!(grow(1, &[]), Err(ErrorCode::InvalidPartitions));
    assert_eq!(grow(0, &[]), Err(ErrorCode::InvalidPartitions));
    assert_eq!(grow(-5, &[]), Err(ErrorCode::InvalidPartitions));
    assert_eq!(grow(100_000, &[]), Err(ErrorCode::PolicyViolation));
    assert_eq!(
        grow(3, &[&[1, 2]]),
        Err(ErrorCode::InvalidReplicaAssignment)
    );
    assert_eq!(grow(2, &[&[1]]), Err(ErrorCode::InvalidReplicaAssignment));
    assert_eq!(grow(2, &[&[3, 1]]), Ok(()));
    assert_eq!(grow(4, &[]), Ok(()));
    assert_eq!(world.assignment("orders", 1).replicas, ids(&[3, 1]));
    assert_eq!(world.assignment("orders", 3).replicas.len(), 2);
}

#[test]
fn a_changed_minimum_isr_reaches_the_partitions_in_the_same_batch_c_36() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 3);
    world.fence(3);
    let before = world.assignment("orders", 0);
    assert_eq!((before.min_isr, before.elr.clone()), (3, ids(&[3])));
    let outcome = world.run(Command::AlterConfigs {
        changes: vec![ConfigChange {
            topic: Some("orders".into()),
            key: "min.insync.replicas".into(),
            value: Some("2".into()),
        }],
    });
    assert!(matches!(
        outcome.records[..],
        [Record::Config { .. }, Record::Partition { .. }]
    ));
    let now = world.assignment("orders", 0);
    assert_eq!((now.min_isr, now.elr), (2, vec![]));
    assert_eq!(now.leader_epoch, before.leader_epoch);
    // Back to the default, which the cluster then changes.
    world
        .configure(Some("orders"), "min.insync.replicas", None)
        .expect("reset");
    assert_eq!(world.assignment("orders", 0).min_isr, 1);
    world
        .configure(None, "min.insync.replicas", Some("9"))
        .expect("set");
    assert_eq!(world.assignment("orders", 0).min_isr, 3);
    let same = world.run(Command::AlterConfigs {
        changes: vec![ConfigChange {
            topic: None,
            key: "min.insync.replicas".into(),
            value: Some("9".into()),
        }],
    });
    assert_eq!(same.records, []);
}

#[test]
fn the_changes_of_one_topic_succeed_or_fail_together() {
    let mut world = World::with_brokers(1);
    world.orders(&[1], 1);
    let change = |topic: Option<&str>, key: &str, value: &str| ConfigChange {
        topic: topic.map(Into::into),
        key: key.into(),
        value: Some(value.into()),
    };
    let outcome = world.run(Command::AlterConfigs {
        changes: vec![
            change(Some("orders"), "retention.ms", "5"),
            change(None, "retention.ms", "7"),
            change(Some("orders"), "retention.bytes", "many"),
            change(Some("nowhere"), "retention.ms", "5"),
        ],
    });
    let Reply::Topics(replies) = outcome.reply else {
        panic!("topics");
    };
    let errors: Vec<_> = replies
        .iter()
        .map(|r| r.result.as_ref().err().map(|e| e.error))
        .collect();
    let invalid = Some(ErrorCode::InvalidConfig);
    assert_eq!(
        errors,
        [
            invalid,
            None,
            invalid,
            Some(ErrorCode::UnknownTopicOrPartition)
        ]
    );
    assert_eq!(
        world.cluster.image().config("orders", "retention.ms"),
        Some("7")
    );
}

#[test]
fn elections_an_operator_asks_for_answer_as_kafka_does_c_32() {
    let mut world = World::with_brokers(3);
    world.orders(&[1, 2, 3], 2);
    let elect = |world: &mut World, kind, partition: Option<(&str, i32)>| {
        let partitions = partition.map(|(topic, p)| vec![TopicPartition::new(topic, p)]);
        match world.run(Command::ElectLeaders { kind, partitions }).reply {
            Reply::Elections(replies) => {
                let result = |r: &ElectionReply| r.result.as_ref().err().map(|e| e.error);
                replies.iter().map(result).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    };
    use ElectionKind::{Preferred, Unclean};
    let orders = Some(("orders", 0));
    let unknown = vec![Some(ErrorCode::UnknownTopicOrPartition)];
    assert_eq!(elect(&mut world, Preferred, Some(("nowhere", 0))), unknown);
    assert_eq!(elect(&mut world, Preferred, Some(("orders", 4))), unknown);
    let not_needed = vec![Some(ErrorCode::ElectionNotNeeded)];
    assert_eq!(elect(&mut world, Preferred, orders), not_needed);
    assert_eq!(elect(&mut world, Unclean, orders), not_needed);
    assert_eq!(
        elect(&mut world, Preferred, None),
        vec![],
        "nothing needs one"
    );
    world.fence(1);
    let unavailable = vec![Some(ErrorCode::PreferredLeaderNotAvailable)];
    assert_eq!(elect(&mut world, Preferred, orders), unavailable);
    assert_eq!(elect(&mut world, Preferred, None), unavailable);
    world.fence(2);
    world.fence(3);
    let no_one = vec![Some(ErrorCode::EligibleLeadersNotAvailable)];
    assert_eq!(elect(&mut world, Unclean, orders), no_one);
    world.unfence(2);
    world.unfence(3);
    assert_eq!(
        world.assignment("orders", 0).leader,
        Some(BrokerId(2)),
        "eligible, so cleanly"
    );
}

#[test]
fn unclean_elections_need_the_topics_consent_c_35() {
    let mut world = World::with_brokers(2);
    world.orders(&[1, 2], 1);
    world.fence(2); // leaves a whole ISR: not eligible
    world.fence(1);
    world.unfence(2);
    assert_eq!(world.assignment("orders", 0).leader, None);
    assert_eq!(
        world.configure(
            Some("orders"),
            "unclean.leader.election.enable",
            Some("maybe")
        ),
        Err(ErrorCode::InvalidConfig)
    );
    world
        .configure(
            Some("orders"),
            "unclean.leader.election.enable",
            Some("true"),
        )
        .expect("set");
    let now = world.assignment("orders", 0);
    assert_eq!(
        (now.leader, now.isr),
        (Some(BrokerId(2)), ids(&[2])),
        "at once, not in five minutes"
    );
}

#[test]
fn balancing_moves_only_what_can_move_without_loss() {
    let mut world = World::with_brokers(3);
    let topic = NewTopic {
        partitions: Some(3),
        replication_factor: Some(3),
        ..world.new_topic("orders")
    };
    world.create(topic).expect("created");
    world.fence(1);
    world.unfence(1);
    let balanced = world.run(Command::BalanceLeaders { at_most: 10 });
    assert_eq!(balanced.records, [], "broker 1 is not in sync");
}
