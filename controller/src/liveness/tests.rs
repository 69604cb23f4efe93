use super::*;
use epoka_proto::ids::{Incarnation, LeaderEpoch, PartitionEpoch, PartitionId, TopicId};
use epoka_proto::metadata::{Assignment, Record, Recovery};

fn registration(id: i32, epoch: i64, fenced: bool, shutting_down: bool) -> BrokerRegistration {
    BrokerRegistration {
        id: BrokerId(id),
        epoch: BrokerEpoch(epoch),
        incarnation: Incarnation(uuid::Uuid::from_u128(epoch as u128)),
        listeners: vec![],
        grpc_address: String::new(),
        log_dirs: vec![],
        rack: None,
        fenced,
        shutting_down,
    }
}

/// Brokers by (id, epoch, fenced, shutting down), and one partition with this leader.
fn image(brokers: &[(i32, i64, bool, bool)], leader: i32) -> Image {
    let mut image = Image::default();
    for &(id, epoch, fenced, shutting_down) in brokers {
        let broker = registration(id, epoch, fenced, shutting_down);
        image.apply(&Record::Broker(broker));
    }
    let topic = TopicId(uuid::Uuid::from_u128(7));
    image.apply(&Record::Topic {
        name: "orders".into(),
        id: topic,
    });
    image.apply(&Record::Partition {
        id: PartitionId {
            topic,
            partition: 0,
        },
        assignment: Assignment {
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![BrokerId(leader)],
            elr: vec![],
            last_known_elr: vec![],
            offline: vec![],
            adding: vec![],
            removing: vec![],
            leader: Some(BrokerId(leader)),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            recovery: Recovery::Recovered,
            min_isr: 1,
        },
    });
    image
}

fn beat(metadata_offset: i64, want_fence: bool, want_shutdown: bool) -> Beat {
    Beat {
        metadata_offset: Some(metadata_offset),
        want_fence,
        want_shutdown,
    }
}

#[test]
fn heartbeats_are_answered_by_the_table_of_c_16() {
    const FENCED: (bool, bool) = (true, false);
    const UNFENCED: (bool, bool) = (false, false);
    const DRAINING: (bool, bool) = (false, true);
    // Broker 1, epoch 10; the newest metadata is at 20; broker 2 has applied up to `other`.
    for (what, (fenced, draining), beat, leader, other, expected) in [
        (
            "a fenced one wants to stop",
            FENCED,
            beat(5, true, true),
            2,
            20,
            Next::ShutDownNow,
        ),
        (
            "a fenced one is ready",
            FENCED,
            beat(10, false, false),
            2,
            20,
            Next::Unfence,
        ),
        (
            "a fenced one has not seen its own registration",
            FENCED,
            beat(9, false, false),
            2,
            20,
            Next::Stay,
        ),
        (
            "a fenced one is not ready",
            FENCED,
            beat(20, true, false),
            2,
            20,
            Next::Stay,
        ),
        (
            "a fenced one that was draining is ready",
            (true, true),
            beat(20, false, false),
            2,
            20,
            Next::Unfence,
        ),
        (
            "an unfenced one wants both",
            UNFENCED,
            beat(20, true, true),
            1,
            20,
            Next::ShutDownNow,
        ),
        (
            "an unfenced one wants to be fenced",
            UNFENCED,
            beat(20, true, false),
            1,
            20,
            Next::Fence,
        ),
        (
            "a leader wants to stop",
            UNFENCED,
            beat(20, false, true),
            1,
            20,
            Next::BeginShutdown,
        ),
        (
            "one that leads nothing wants to stop",
            UNFENCED,
            beat(20, false, true),
            2,
            20,
            Next::ShutDownNow,
        ),
        (
            "an unfenced one is well",
            UNFENCED,
            beat(0, false, false),
            1,
            20,
            Next::Stay,
        ),
        (
            "a draining one still leads",
            DRAINING,
            beat(20, false, true),
            1,
            20,
            Next::Stay,
        ),
        (
            "the other one does not know",
            DRAINING,
            beat(20, false, true),
            2,
            19,
            Next::Stay,
        ),
        (
            "the other one knows",
            DRAINING,
            beat(20, false, true),
            2,
            20,
            Next::ShutDownNow,
        ),
    ] {
        let image = image(&[(1, 10, fenced, draining), (2, 3, false, false)], leader);
        let mut liveness = Liveness::new(9_000);
        liveness.heard(
            BrokerId(2),
            BrokerEpoch(3),
            &self::beat(other, false, false),
            0,
        );
        liveness.heard(BrokerId(1), BrokerEpoch(10), &beat, 0);
        let registration = image.brokers[&BrokerId(1)].clone();
        let next = liveness.next(&image, &registration, &beat, Some(20));
        assert_eq!(next, expected, "{what}");
    }
}

#[test]
fn a_draining_broker_does_not_chase_the_moving_end_of_the_metadata_c_16() {
    let image = image(&[(1, 10, false, true), (2, 3, false, false)], 2);
    let registration = image.brokers[&BrokerId(1)].clone();
    let mut liveness = Liveness::new(9_000);
    let asks = beat(20, false, true);
    liveness.heard(BrokerId(1), BrokerEpoch(10), &asks, 0);
    liveness.heard(BrokerId(2), BrokerEpoch(3), &beat(15, false, false), 0);
    assert_eq!(
        liveness.next(&image, &registration, &asks, Some(20)),
        Next::Stay
    );
    liveness.heard(BrokerId(2), BrokerEpoch(3), &beat(20, false, false), 0);
    let next = liveness.next(&image, &registration, &asks, Some(99));
    assert_eq!(
        next,
        Next::ShutDownNow,
        "20 is enough, though there is more by now"
    );
}

#[test]
fn the_longest_silent_unfenced_broker_expires_first_c_14() {
    let image = image(
        &[
            (1, 1, false, false),
            (2, 2, false, false),
            (3, 3, true, false),
        ],
        1,
    );
    let mut liveness = Liveness::new(9_000);
    liveness.start_over(&image, 0);
    assert_eq!(
        liveness.expired(&image, 9_000),
        None,
        "expiry is strictly after the timeout"
    );
    liveness.heard(BrokerId(1), BrokerEpoch(1), &beat(0, false, false), 100);
    liveness.heard(BrokerId(2), BrokerEpoch(2), &beat(0, false, false), 50);
    assert_eq!(liveness.expired(&image, 9_050), None);
    let second = |silent| {
        Some(Expired {
            broker: BrokerId(2),
            epoch: BrokerEpoch(2),
            silent: Duration::from_millis(silent),
        })
    };
    assert_eq!(liveness.expired(&image, 9_051), second(9_001));
    assert_eq!(
        liveness.expired(&image, 10_000),
        second(9_950),
        "one at a time"
    );
    liveness.start_over(&image, 10_000); // a new active controller cannot judge the past
    assert_eq!(liveness.expired(&image, 10_001), None);
}

#[test]
fn only_an_open_and_recent_stream_keeps_another_process_out_c_10() {
    let mut liveness = Liveness::new(9_000);
    let (id, epoch) = (BrokerId(1), BrokerEpoch(1));
    assert!(!liveness.is_live(id, 0), "never heard");
    liveness.stream_opened(id, epoch, StreamId(7), 0);
    assert!(liveness.is_live(id, 9_000));
    assert!(!liveness.is_live(id, 9_001), "silent for too long");
    liveness.stream_opened(id, epoch, StreamId(8), 100);
    assert!(
        !liveness.stream_closed(id, StreamId(7)),
        "an old stream is not the only one"
    );
    assert!(liveness.is_live(id, 100));
    assert!(liveness.stream_closed(id, StreamId(8)));
    assert!(!liveness.is_live(id, 100), "killed");
    liveness.stream_opened(id, epoch, StreamId(9), 100);
    liveness.stream_opened(id, BrokerEpoch(5), StreamId(10), 200);
    assert!(
        !liveness.has_stream(id, epoch),
        "a new life has its own stream"
    );
}
