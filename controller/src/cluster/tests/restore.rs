use super::*;
use epoka_proto::ids::{LeaderEpoch, Offset, TopicPartition};
use epoka_proto::metadata::Image;

const PRODUCER_ID: i64 = 1_000_000;

fn topic(number: u128) -> TopicId {
    TopicId(Uuid::from_u128(number))
}

fn holding(name: &str, id: u128, partition: i32, reach: Option<(i32, i64)>) -> Holding {
    Holding {
        topic: name.into(),
        partition: PartitionId {
            topic: topic(id),
            partition,
        },
        reach: reach.map(|(epoch, end)| Reach {
            last_epoch: LeaderEpoch::from_wire(epoch),
            log_end: Offset(end),
        }),
    }
}

fn offer(holdings: Vec<Holding>) -> Offer {
    Offer {
        cluster_id: "abc".into(),
        holdings,
        next_producer_id: 7,
    }
}

/// What brokers 1, 2, ... offer.
fn offers(of: Vec<Vec<Holding>>) -> Offers {
    let mut offers = Offers::default();
    for (broker, holdings) in (1..).zip(of) {
        let news = offers.take(BrokerId(broker), offer(holdings));
        assert_eq!(news, Ok(true));
    }
    offers
}

/// What these brokers hold of partition `orders-0`: last epoch and log end.
fn of_orders(reaches: &[Option<(i32, i64)>]) -> Offers {
    let held = reaches.iter().map(|r| vec![holding("orders", 5, 0, *r)]);
    offers(held.collect())
}

/// A controller that was just rebuilt.
fn restored(offers: &Offers) -> World {
    let configs = BTreeMap::from([("min.insync.replicas".to_owned(), "2".to_owned())]);
    let restoration = offers.rebuild(&configs, PRODUCER_ID).expect("agreement");
    let mut world = World {
        cluster: Cluster::default(),
        next_offset: 0,
        drawn: 0,
    };
    let outcome = world.run(Command::Restore(restoration));
    assert_eq!(outcome.reply, Reply::Done(Ok(())));
    world
}

#[test]
fn the_greatest_log_leads_and_the_others_follow() {
    // The last epoch counts first: broker 1 has the longest log, and it is a diverged one.
    let mut world = restored(&of_orders(&[Some((3, 99)), Some((4, 20)), Some((4, 19))]));
    let now = world.assignment("orders", 0);
    assert_eq!((now.leader, now.isr, now.elr), (None, ids(&[]), ids(&[2])));
    assert_eq!(now.replicas, ids(&[2, 3, 1]));
    assert_eq!(now.min_isr, 2, "the controller's own defaults apply");
    assert!(now.leader_epoch > LeaderEpoch(4), "{:?}", now.leader_epoch);
    assert_eq!(world.cluster.image().cluster_id, "abc");
    for broker in [1, 3] {
        world.join(broker);
        assert_eq!(world.assignment("orders", 0).leader, None, "{broker}");
    }
    world.join(2);
    let led = world.assignment("orders", 0);
    assert_eq!((led.leader, led.isr), (Some(BrokerId(2)), ids(&[2])));
    assert!(led.leader_epoch > now.leader_epoch);
}

#[test]
fn any_of_equal_logs_may_lead_and_leaderships_are_spread() {
    let held = |_| {
        (0..3)
            .map(|p| holding("orders", 5, p, Some((2, 10))))
            .collect()
    };
    let mut world = restored(&offers((1..=3).map(held).collect()));
    for partition in 0..3 {
        let now = world.assignment("orders", partition);
        assert_eq!(now.elr, now.replicas);
        assert_eq!(now.replicas[0], BrokerId(partition + 1));
    }
    world.join(3);
    let led = world.assignment("orders", 0);
    assert_eq!((led.leader, led.isr), (Some(BrokerId(3)), ids(&[3])));
    // The minimum is two: the others stay eligible until one of them is in sync.
    assert_eq!(led.elr, ids(&[1, 2]));
}

#[test]
fn empty_logs_are_equal_and_less_than_any_other() {
    let empty = Some((-1, 0));
    let now = restored(&of_orders(&[empty, empty])).assignment("orders", 0);
    assert_eq!(now.elr, ids(&[1, 2]));
    let now = restored(&of_orders(&[empty, Some((0, 0))])).assignment("orders", 0);
    assert_eq!(now.elr, ids(&[2]));
}

#[test]
fn a_log_that_cannot_be_read_may_have_been_the_only_complete_one() {
    let mut world = restored(&of_orders(&[None, Some((2, 10)), Some((2, 12))]));
    let now = world.assignment("orders", 0);
    assert_eq!((now.replicas, now.elr), (ids(&[3, 2, 1]), ids(&[])));
    for broker in 1..=3 {
        world.join(broker);
    }
    assert_eq!(world.assignment("orders", 0).leader, None);
    // A person decides; the longest known log is the first choice.
    world.run(Command::ElectLeaders {
        kind: ElectionKind::Unclean,
        partitions: Some(vec![TopicPartition::new("orders", 0)]),
    });
    assert_eq!(world.assignment("orders", 0).leader, Some(BrokerId(3)));
}

#[test]
fn a_partition_that_nobody_holds_is_there_and_nobody_leads_it() {
    let held = |broker| {
        vec![
            holding("orders", 5, 1, Some((2, 10))),
            holding("orders", 5, 3, Some((broker, 10))),
        ]
    };
    let mut world = restored(&offers(vec![held(1), held(2)]));
    world.join(1);
    world.join(2);
    let led = |partition| world.assignment("orders", partition).leader.is_some();
    assert_eq!([0, 1, 2, 3].map(led), [false, true, false, true]);
    let missing = world.assignment("orders", 0);
    assert_eq!((missing.replicas.len(), missing.elr), (2, ids(&[])));
    assert_eq!(world.cluster.image().partitions().count(), 4);
}

#[test]
fn producer_ids_begin_above_everything_seen() {
    let none = offers(vec![vec![]]);
    let from = |at| none.rebuild(&BTreeMap::new(), at).expect("agreement");
    assert_eq!(from(PRODUCER_ID).next_producer_id, PRODUCER_ID);
    assert_eq!(from(3).next_producer_id, 7, "the clock is wrong");
}

#[test]
fn brokers_of_two_clusters_are_told_apart() {
    let mut offers = of_orders(&[Some((1, 1))]);
    let other = Offer {
        cluster_id: "xyz".into(),
        ..offer(vec![])
    };
    let refusal = offers
        .take(BrokerId(2), other.clone())
        .expect_err("refused");
    assert_eq!(refusal.error, ErrorCode::InconsistentClusterId);
    assert!(refusal.message.contains("abc") && refusal.message.contains("xyz"));
    // The same broker may come again with other data; a known offer is no news.
    assert_eq!(offers.take(BrokerId(1), other.clone()), Ok(true));
    assert_eq!(offers.take(BrokerId(1), other), Ok(false));
    offers.withdraw(BrokerId(1));
    assert_eq!(offers.brokers(), []);
}

#[test]
fn what_does_not_fit_together_is_named() {
    let one = |h| offers(vec![vec![h]]);
    let reach = Some((1, 1));
    let two_ids = vec![
        vec![holding("orders", 5, 0, reach)],
        vec![holding("orders", 6, 0, reach)],
    ];
    let two_names = vec![
        holding("orders", 5, 0, reach),
        holding("payments", 5, 0, reach),
    ];
    for (offers, says) in [
        (offers(two_ids), "two topics orders"),
        (offers(vec![two_names]), "two names"),
        (one(holding("or/ders", 5, 0, reach)), "invalid"),
        (one(holding("orders", 5, -1, reach)), "no partition"),
        (one(holding("orders", 5, i32::MAX, reach)), "too many"),
        (one(holding("orders", 5, 0, Some((i32::MAX, 1)))), "epoch"),
    ] {
        let why = offers.rebuild(&BTreeMap::new(), 0).expect_err(says);
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn metadata_that_is_there_is_not_replaced() {
    let orders = of_orders(&[Some((1, 1))]);
    let restoration = orders.rebuild(&BTreeMap::new(), 1).expect("agreement");
    let restore = Command::Restore(restoration);
    // A new cluster in which nothing has happened may become the old one again.
    let mut world = World::new();
    assert_eq!(world.run(restore.clone()).reply, Reply::Done(Ok(())));
    let mut with_broker = World::with_brokers(1);
    for world in [&mut world, &mut with_broker] {
        let outcome = world.run(restore.clone());
        assert_eq!(outcome.reply, Reply::Done(Err(ErrorCode::InvalidRequest)));
        assert_eq!(outcome.records, []);
    }
    assert!(is_vacant(&Image::default()));
}

#[test]
fn a_broker_of_another_cluster_hears_what_to_do() {
    let foreign = |world: &mut World| {
        let foreign = Registration {
            cluster_id: Some("other".into()),
            ..world.registration(9, None)
        };
        match world.run(Command::Register(foreign)).reply {
            Reply::Registered(Err(refusal)) => refusal.message,
            reply => panic!("{reply:?}"),
        }
    };
    let fresh = foreign(&mut World::new());
    assert!(fresh.contains("no memory") && fresh.contains("EPOKA_RESTORE_BROKERS"));
    let empty = foreign(&mut World::with_brokers(1));
    assert!(empty.contains("bootstrap.servers") && empty.contains("EPOKA_RESTORE_BROKERS"));
    let mut used = World::with_brokers(1);
    used.orders(&[1], 1);
    let used = foreign(&mut used);
    assert!(used.contains("bootstrap.servers") && !used.contains("EPOKA_RESTORE_BROKERS"));
}
