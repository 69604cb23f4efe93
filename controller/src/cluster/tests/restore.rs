use super::*;
use epoka_proto::epochs::{EpochHistory, EpochStart};
use epoka_proto::ids::{LeaderEpoch, Offset, TopicPartition};
use epoka_proto::metadata::Image;

const NOW: i64 = 1_000_000;

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
        reach: reach.map(|(epoch, end)| {
            let mut history = EpochHistory::default();
            if let Some(epoch) = LeaderEpoch::from_wire(epoch) {
                history.assign(epoch, Offset::ZERO);
            }
            Reach {
                history,
                log_end: Offset(end),
                high_watermark: Offset::ZERO,
            }
        }),
    }
}

fn offer(holdings: Vec<Holding>) -> Offer {
    Offer {
        cluster_id: "abc".into(),
        holdings,
        next_broker_epoch: 5,
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
    let restoration = offers.rebuild(&configs, NOW).expect("agreement");
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

/// What the last leader committed can show in the others' watermarks, when it is not there itself.
#[test]
fn a_log_that_knows_more_to_be_committed_shows_that_the_greatest_is_not_here() {
    let log = |entries: &[(i32, i64)], log_end, high_watermark| {
        let entries = entries.iter().map(|&(epoch, start)| EpochStart {
            epoch: LeaderEpoch(epoch),
            start: Offset(start),
        });
        Holding {
            reach: Some(Reach {
                history: EpochHistory::from_entries(entries.collect()).expect("ordered"),
                log_end: Offset(log_end),
                high_watermark: Offset(high_watermark),
            }),
            ..holding("orders", 5, 0, None)
        }
    };
    // Broker 1 was the leader of epoch 3 without the records of epoch 2; the leader of epoch 4 had them committed.
    for (one, other, sure) in [
        (log(&[(3, 0)], 0, 0), log(&[(2, 0)], 5, 5), false),
        (log(&[(3, 0)], 9, 0), log(&[(2, 0)], 5, 5), false),
        (log(&[(2, 0), (3, 5)], 9, 0), log(&[(2, 0)], 5, 5), true),
        (log(&[(2, 0), (3, 4)], 9, 0), log(&[(2, 0)], 5, 4), true),
        (log(&[(3, 7)], 9, 0), log(&[(2, 0)], 5, 5), true),
        // What broker 2 lost of the end, broker 1 has; or not even that one.
        (log(&[(2, 0), (3, 5)], 9, 0), log(&[(2, 0)], 5, 9), true),
        (log(&[(2, 0), (3, 5)], 9, 0), log(&[(2, 0)], 5, 10), false),
    ] {
        let now = restored(&offers(vec![vec![one], vec![other]])).assignment("orders", 0);
        assert_eq!(now.elr, if sure { ids(&[1]) } else { vec![] }, "{now:?}");
    }
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
fn offsets_and_producer_ids_begin_above_everything_seen() {
    let none = offers(vec![vec![]]);
    let from = |at| {
        let rebuilt = none.rebuild(&BTreeMap::new(), at).expect("agreement");
        (rebuilt.offset_base, rebuilt.next_producer_id)
    };
    assert_eq!(from(NOW), (NOW, NOW));
    assert_eq!(from(3), (5, 7), "the clock is wrong");
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

/// The rule of `Reach` against histories as they come about: clean elections, stale leaders that go on writing, followers that
/// cut and fetch, members that leave the ISR and come back.
mod rule {
    use std::collections::BTreeSet;

    use epoka_proto::epochs::EpochHistory;
    use proptest::prelude::*;

    use super::*;

    const REPLICAS: usize = 4;

    #[derive(Clone, Debug)]
    enum Step {
        /// A member of the ISR becomes the leader.
        Elect(usize),
        /// Whoever thinks that it leads writes.
        Write(usize),
        /// A replica fetches so many records from another that thinks that it leads.
        Fetch(usize, usize, usize),
        /// The leader gives up waiting for a replica.
        Drop(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let replica = || 0..REPLICAS;
        prop_oneof![
            1 => replica().prop_map(Step::Elect),
            3 => replica().prop_map(Step::Write),
            8 => (replica(), replica(), 0..4usize).prop_map(|(f, l, n)| Step::Fetch(f, l, n)),
            1 => replica().prop_map(Step::Drop),
        ]
    }

    #[derive(Clone, Default)]
    struct Replica {
        /// Epochs of its records: with its place, an epoch names a record.
        log: Vec<i32>,
        history: EpochHistory,
        term: i32,
        leads: bool,
    }

    impl Replica {
        fn end(&self) -> Offset {
            Offset(self.log.len() as i64)
        }

        fn holding(&self) -> Holding {
            Holding {
                reach: Some(Reach {
                    history: self.history.clone(),
                    log_end: self.end(),
                    high_watermark: Offset::ZERO,
                }),
                ..holding("orders", 5, 0, None)
            }
        }

        fn append(&mut self, epoch: i32) {
            let end = self.end();
            self.history.assign(LeaderEpoch(epoch), end);
            self.log.push(epoch);
        }
    }

    struct Partition {
        replicas: Vec<Replica>,
        isr: BTreeSet<usize>,
        leader: usize,
        /// How far each replica has told the present leader that it agrees.
        agreed: Vec<usize>,
        /// The leader's log where its epoch began: whoever has not come so far may not join.
        began: usize,
        committed: Vec<i32>,
    }

    impl Partition {
        fn new() -> Self {
            let mut new = Self {
                replicas: vec![Replica::default(); REPLICAS],
                isr: (0..REPLICAS).collect(),
                leader: 0,
                agreed: vec![],
                began: 0,
                committed: vec![],
            };
            new.elect(0);
            new
        }

        fn run(&mut self, step: &Step) {
            match *step {
                Step::Elect(next) if self.isr.contains(&next) => self.elect(next),
                Step::Write(writer) if self.replicas[writer].leads => {
                    let epoch = self.replicas[writer].term;
                    self.replicas[writer].append(epoch);
                }
                Step::Fetch(follower, from, records) => self.fetch(follower, from, records),
                Step::Drop(out) if out != self.leader => {
                    self.isr.remove(&out);
                }
                _ => {}
            }
            self.commit();
        }

        fn elect(&mut self, next: usize) {
            let terms = self.replicas.iter().map(|r| r.term).max();
            let leader = &mut self.replicas[next];
            leader.term = terms.unwrap_or(0) + 1;
            leader.leads = true;
            let end = leader.end();
            leader.history.assign(LeaderEpoch(leader.term), end);
            self.leader = next;
            self.began = leader.log.len();
            self.agreed = vec![0; REPLICAS];
        }

        fn fetch(&mut self, follower: usize, from: usize, records: usize) {
            let source = self.replicas[from].clone();
            let follows = &mut self.replicas[follower];
            if follower == from || !source.leads || source.term < follows.term {
                return;
            }
            follows.leads = false;
            follows.term = source.term;
            let pairs = follows.log.iter().zip(&source.log);
            let common = pairs.take_while(|(a, b)| a == b).count();
            if common < follows.log.len() {
                follows.log.truncate(common);
                follows.history.truncate_from_end(Offset(common as i64));
            }
            if from == self.leader {
                self.agreed[follower] = common;
                if common >= self.began.max(self.committed.len()) {
                    self.isr.insert(follower);
                }
            }
            for epoch in source.log.iter().skip(common).take(records) {
                self.replicas[follower].append(*epoch);
            }
        }

        fn commit(&mut self) {
            let log = &self.replicas[self.leader].log;
            assert!(log.starts_with(&self.committed), "the leader is complete");
            let others = self.isr.iter().filter(|r| **r != self.leader);
            let agreed = others.map(|r| self.agreed[*r]).min();
            let end = agreed.unwrap_or(log.len());
            if end > self.committed.len() {
                self.committed = log[..end].to_vec();
            }
        }

        /// When all come, whoever may lead has everything committed.
        fn check(&self) {
            let held = self.replicas.iter().map(|r| vec![r.holding()]);
            let rebuilt = offers(held.collect()).rebuild(&BTreeMap::new(), 0);
            let rebuilt = rebuilt.expect("agreement");
            let eligible = &rebuilt.topics[0].partitions[0].eligible;
            assert!(!eligible.is_empty());
            for broker in eligible {
                let log = &self.replicas[broker.0 as usize - 1].log;
                assert!(log.starts_with(&self.committed), "broker {broker}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn the_greatest_log_holds_everything_committed(
            steps in prop::collection::vec(step(), 1..120)
        ) {
            let mut partition = Partition::new();
            for step in &steps {
                partition.run(step);
                partition.check();
            }
        }
    }
}
