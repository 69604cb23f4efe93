use super::*;
use epoka_proto::v1::{FirstWrite, Note, Truncated, WatermarkBack};

fn at(ms: i64, node: &str, kind: Kind) -> Event {
    Event {
        sequence: 0,
        unix_micros: 1_000_000_000 + ms * 1000,
        node: node.into(),
        kind: Some(kind),
        ..Event::default()
    }
}

fn process(process: &str, kind: ProcessKind) -> Kind {
    Kind::Process(ProcessChange {
        process: process.into(),
        kind: kind.into(),
        detail: String::new(),
    })
}

fn broker(broker_id: i32, kind: BrokerKind) -> Kind {
    Kind::Broker(BrokerChange {
        broker_id,
        kind: kind.into(),
        silent_ms: 0,
    })
}

fn elected(partition: i32, old: i32, new: i32, epoch: i32) -> Kind {
    Kind::Elected(Elected {
        topic: "orders".into(),
        partition,
        old_leader: Some(old),
        new_leader: Some(new),
        old_epoch: epoch - 1,
        new_epoch: epoch,
        unclean: false,
    })
}

fn isr(partition: i32, old: &[i32], new: &[i32]) -> Kind {
    Kind::Isr(IsrChanged {
        topic: "orders".into(),
        partition,
        old_isr: old.into(),
        new_isr: new.into(),
        min_isr: 2,
    })
}

fn first_write(partition: i32, leader_epoch: i32) -> Kind {
    Kind::FirstWrite(FirstWrite {
        topic: "orders".into(),
        partition,
        leader_epoch,
        offset: 1040,
    })
}

fn watermark_back(partition: i32, leader_epoch: i32) -> Kind {
    Kind::WatermarkBack(WatermarkBack {
        topic: "orders".into(),
        partition,
        leader_epoch,
        high_watermark: 1041,
        writable: true,
    })
}

#[test]
fn an_empty_partition_has_no_watermark_to_come_back() {
    let back = |leader_epoch, high_watermark| {
        Kind::WatermarkBack(WatermarkBack {
            topic: "orders".into(),
            partition: 0,
            leader_epoch,
            high_watermark,
            writable: true,
        })
    };
    let told = texts(&[
        at(0, "broker-1", back(0, 5)),
        at(1, "broker-1", back(1, 0)),
        at(2, "broker-1", back(1, 5)),
    ]);
    assert_eq!(told, ["high watermark of orders-0 back at 5 in epoch 1"]);
}

fn texts(events: &[Event]) -> Vec<String> {
    Teller::new()
        .tell(events)
        .into_iter()
        .map(|l| l.text)
        .collect()
}

#[test]
fn a_pause_that_nobody_noticed_does_not_lengthen_a_later_outage() {
    let controller = "controller-1";
    let told = texts(&[
        at(0, "supervisor", process("broker-2", ProcessKind::Paused)),
        at(500, "supervisor", process("broker-2", ProcessKind::Resumed)),
        at(9000, "supervisor", process("broker-2", ProcessKind::Killed)),
        at(9030, controller, elected(0, 2, 3, 5)),
        at(9070, "broker-3", first_write(0, 5)),
    ]);
    let last = told.last().expect("a line");
    assert!(last.ends_with("unavailable 70 ms"), "{last}");
}

#[test]
fn time_in_which_nobody_wrote_is_not_unavailability() {
    let controller = "controller-1";
    let told = texts(&[
        at(0, "supervisor", process("broker-2", ProcessKind::Killed)),
        at(30, controller, elected(0, 2, 3, 5)),
        at(40, "broker-3", watermark_back(0, 5)),
        at(60_000, "broker-3", first_write(0, 5)),
        at(
            70_000,
            "supervisor",
            process("broker-3", ProcessKind::Killed),
        ),
        at(70_030, controller, elected(0, 3, 1, 6)),
        at(70_035, "broker-1", watermark_back(0, 6)),
        at(
            80_000,
            "supervisor",
            process("broker-1", ProcessKind::Killed),
        ),
        at(80_030, controller, elected(0, 1, 2, 7)),
        at(80_050, "broker-2", first_write(0, 7)),
    ]);
    assert!(told[3].ends_with("was unavailable 40 ms"), "{}", told[3]);
    let last = told.last().expect("a line");
    assert!(last.ends_with("unavailable 50 ms"), "{last}");
}

fn story() -> Vec<Event> {
    let controller = "controller-1";
    vec![
        at(0, "supervisor", process("broker-2", ProcessKind::Killed)),
        at(3, controller, broker(2, BrokerKind::StreamClosed)),
        at(61, controller, broker(2, BrokerKind::Fenced)),
        at(61, controller, elected(0, 2, 3, 5)),
        at(61, controller, isr(0, &[1, 2, 3], &[3, 1])),
        at(61, controller, isr(1, &[1, 2, 3], &[1, 3])),
        at(70, "broker-3", first_write(0, 5)),
        at(
            72,
            "broker-3",
            Kind::WatermarkBack(WatermarkBack {
                topic: "orders".into(),
                partition: 0,
                leader_epoch: 5,
                high_watermark: 1041,
                writable: true,
            }),
        ),
        at(
            2000,
            "supervisor",
            process("broker-2", ProcessKind::Started),
        ),
        at(2050, controller, broker(2, BrokerKind::Registered)),
        at(2060, controller, broker(2, BrokerKind::Unfenced)),
        at(
            2080,
            "broker-2",
            Kind::Truncated(Truncated {
                topic: "orders".into(),
                partition: 0,
                from_offset: 1042,
                to_offset: 1040,
                batches: 2,
                epochs: vec![4],
                archived: String::new(),
                high_watermark: 1040,
            }),
        ),
        at(2100, controller, isr(0, &[3, 1], &[3, 1, 2])),
    ]
}

#[test]
fn a_killed_leader_is_told_from_the_kill_to_the_whole_isr() {
    let lines = Teller::new().tell(&story());
    let told: Vec<_> = lines.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "+0 ms broker 2 killed",
            "+3 ms heartbeat stream closed",
            "+61 ms broker 2 fenced, orders-0 leader 2 -> 3, epoch 4 -> 5",
            "+61 ms broker 2 left ISR of orders-0, orders-1: 1,2,3 -> 1,3",
            "+70 ms first accepted write to orders-0: unavailable 70 ms",
            "+72 ms high watermark of orders-0 back at 1041 in epoch 5",
            "+2.0 s broker 2 started",
            "+2.1 s broker 2 registered",
            "+2.1 s broker 2 back",
            "+2.1 s broker 2 truncated orders-0 from 1042 to 1040 (2 batches of epoch 4, none acked by all)",
            "+2.1 s broker 2 rejoined ISR of orders-0: 1,3 -> 1,2,3",
        ]
    );
    assert_eq!(lines[4].unavailable_ms, Some(70));
}

#[test]
fn one_partition_is_told_without_the_others() {
    let lines = Teller::only(Some(TopicPartition::new("orders", 1))).tell(&story());
    let told: Vec<_> = lines.iter().map(ToString::to_string).collect();
    assert_eq!(
        told[2..4],
        [
            "+61 ms broker 2 fenced",
            "+61 ms broker 2 left ISR of orders-1: 1,2,3 -> 1,3"
        ]
    );
    assert!(
        told.iter().all(|line| !line.contains("orders-0")),
        "{told:?}"
    );
    let lines = Teller::only(Some(TopicPartition::new("orders", 0))).tell(&story());
    assert_eq!(
        lines[4].to_string(),
        "+70 ms first accepted write: unavailable 70 ms"
    );
}

#[test]
fn a_broker_that_fell_silent_is_missed_since_it_was_last_heard() {
    let controller = "controller-1";
    let expired = Kind::Broker(BrokerChange {
        broker_id: 2,
        kind: BrokerKind::SessionExpired.into(),
        silent_ms: 9_000,
    });
    let told = Teller::new().tell(&[
        at(20_000, controller, expired),
        at(20_010, controller, broker(2, BrokerKind::Fenced)),
        at(20_010, controller, elected(0, 2, 3, 5)),
        at(20_050, "broker-3", first_write(0, 5)),
    ]);
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "+9.0 s broker 2 silent for 9.0 s: session expired",
            "+9.0 s broker 2 fenced, orders-0 leader 2 -> 3, epoch 4 -> 5",
            "+9.1 s first accepted write to orders-0: unavailable at most 9.1 s",
        ]
    );
}

#[test]
fn a_controller_is_missed_since_it_was_last_heard_unless_its_end_was_seen() {
    let silence = |silent_ms, over| Kind::ControllerSilence(ControllerSilence { silent_ms, over });
    let seen = [
        at(0, "supervisor", process("broker-3", ProcessKind::Started)),
        at(10_000, "broker-1", silence(4_000, false)),
        at(10_500, "broker-2", silence(4_200, false)),
        at(20_000, "broker-1", silence(13_900, true)),
    ];
    let told = |events: &[Event]| {
        let lines = Teller::new().tell(events);
        lines.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&seen)[1..],
        [
            "+4.0 s broker 1 has heard no controller for 4.0 s",
            "+4.5 s broker 2 has heard no controller for 4.2 s",
            "+14.0 s broker 1 hears a controller again",
        ]
    );
    let killed = at(
        7_000,
        "supervisor",
        process("controller-1", ProcessKind::Killed),
    );
    let told = told(&[killed, seen[1].clone()]);
    assert!(told[1].starts_with("+3.0 s"), "{told:?}");
}

#[test]
fn what_is_told_in_one_line_begins_with_its_first_event() {
    let decision = [
        at(0, "controller-1", elected(0, 2, 3, 5)),
        at(1, "controller-1", broker(2, BrokerKind::Fenced)),
    ];
    let lines = Teller::new().tell(&decision);
    assert_eq!(lines[0].relative_ms, 0);
}

#[test]
fn each_incident_counts_from_its_own_start() {
    let mut teller = Teller::new();
    teller.tell(&story());
    let again = [
        at(9000, "supervisor", process("broker-3", ProcessKind::Killed)),
        at(9040, "controller-1", elected(0, 3, 1, 6)),
        at(9055, "broker-1", first_write(0, 6)),
    ];
    let told: Vec<_> = teller
        .tell(&again)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        told,
        [
            "+0 ms broker 3 killed",
            "+40 ms orders-0 leader 3 -> 1, epoch 5 -> 6",
            "+55 ms first accepted write to orders-0: unavailable 55 ms",
        ]
    );
}

#[test]
fn an_election_without_an_incident_is_no_outage() {
    let told = Teller::new().tell(&[
        at(0, "controller-1", elected(0, 2, 1, 6)),
        at(5, "broker-1", first_write(0, 6)),
    ]);
    assert_eq!(told[1].text, "first accepted write to orders-0 in epoch 6");
    assert_eq!(told[1].unavailable_ms, None);
}

#[test]
fn times_count_from_the_beginning_until_something_goes_wrong() {
    let mut teller = Teller::new();
    teller.tell(&story());
    teller.begin(at(5_000, "", Kind::Note(Note::default())).unix_micros);
    let told = teller.tell(&[
        at(5_013, "broker-3", first_write(0, 5)),
        at(
            9_000,
            "supervisor",
            process("broker-3", ProcessKind::Killed),
        ),
    ]);
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "+13 ms first accepted write to orders-0 in epoch 5",
            "+0 ms broker 3 killed",
        ]
    );
}

#[test]
fn a_leader_without_enough_replicas_is_no_end_of_an_outage() {
    let controller = "controller-1";
    let unwritable = Kind::WatermarkBack(WatermarkBack {
        topic: "orders".into(),
        partition: 0,
        leader_epoch: 5,
        high_watermark: 1041,
        writable: false,
    });
    let outage = [
        at(0, "supervisor", process("broker-2", ProcessKind::Killed)),
        at(30, controller, elected(0, 2, 3, 5)),
        at(30, controller, isr(0, &[2, 3], &[3])),
        at(40, "broker-3", unwritable),
    ];
    let mut teller = Teller::new();
    teller.tell(&outage);
    let told = teller.tell(&[at(5_000, "broker-3", first_write(0, 5))]);
    assert!(told[0].text.ends_with(": unavailable 5.0 s"), "{told:?}");
    // With enough of them again it could have been written to.
    let mut teller = Teller::new();
    teller.tell(&outage);
    let told = teller.tell(&[
        at(1_000, controller, isr(0, &[3], &[3, 1])),
        at(5_000, "broker-3", first_write(0, 5)),
    ]);
    assert!(told[1].text.ends_with("was unavailable 1.0 s"), "{told:?}");
}

#[test]
fn a_planned_move_does_not_lengthen_an_outage_that_nobody_saw_end() {
    let controller = "controller-1";
    let told = texts(&[
        at(0, "supervisor", process("broker-2", ProcessKind::Killed)),
        at(30, controller, elected(0, 2, 3, 5)),
        at(40, "broker-3", watermark_back(0, 5)),
        at(2_000, controller, broker(2, BrokerKind::Unfenced)),
        at(290_000, controller, elected(0, 3, 2, 6)),
        at(290_010, "broker-2", watermark_back(0, 6)),
        at(300_000, "broker-2", first_write(0, 6)),
    ]);
    assert_eq!(told[4], "orders-0 leader 3 -> 2, epoch 5 -> 6, as planned");
    assert!(told[6].ends_with("was unavailable 40 ms"), "{told:?}");
}

#[test]
fn a_broker_that_is_found_fenced_was_away_before() {
    let controller = "controller-1";
    let told = texts(&[
        at(0, controller, broker(1, BrokerKind::ControllerActive)),
        at(100, controller, elected(0, 2, 3, 5)),
        at(101, controller, broker(2, BrokerKind::Fenced)),
        at(383, "broker-3", first_write(0, 5)),
    ]);
    let last = told.last().expect("a line");
    assert!(last.ends_with("unavailable at least 283 ms"), "{last}");
}
