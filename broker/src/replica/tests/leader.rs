use super::*;

fn has(effects: &[Effect], wanted: &Effect) -> bool {
    effects.contains(wanted)
}

#[test]
fn the_first_high_watermark_lies_within_the_log_l_2() {
    for (checkpoint, start, end, expected) in
        [(5, 0, 9, 5), (12, 0, 9, 9), (1, 3, 9, 3), (0, 0, 0, 0)]
    {
        let epochs: &[(i32, i64)] = if end > 0 { &[(1, start)] } else { &[] };
        assert_eq!(
            Bench::over(epochs, end, checkpoint).high_watermark(),
            expected
        );
    }
}

#[test]
fn a_term_begins_by_writing_down_where_and_keeps_the_high_watermark_l_3_l_5_h_4() {
    let mut bench = Bench::over(&[(1, 0)], 6, 4);
    let effects = bench.assign(assignment(Some(1), 3, 5));
    let start = Effect::StartEpoch {
        epoch: LeaderEpoch(3),
        start: Offset(6),
    };
    assert!(has(&effects, &start), "{effects:?}");
    assert_eq!(bench.state(), (0, 6, vec![(1, 0), (3, 6)]));
    assert_eq!(bench.high_watermark(), 4);
    assert_eq!(bench.replica.leading(), Some(LeaderEpoch(3)));
}

#[test]
fn a_word_that_the_log_knows_to_be_old_makes_no_leader_i_3() {
    for (epoch, leads) in [(2, false), (3, false), (4, true)] {
        let mut bench = Bench::over(&[(1, 0), (3, 4)], 6, 4);
        bench.assign(assignment(Some(1), epoch, 5));
        assert_eq!(bench.replica.leading().is_some(), leads, "epoch {epoch}");
    }
}

#[test]
fn who_is_answered_when_l_10_l_40() {
    for (acks, at_once) in [(Acks::None, true), (Acks::Leader, true), (Acks::All, false)] {
        let mut bench = Bench::leader();
        let (reply, effects) = bench.produce(acks, 2, Sequence::Next);
        let expected = if at_once {
            vec![(reply, Ok(0))]
        } else {
            vec![]
        };
        assert_eq!(answers(&effects), expected, "{acks:?}");
        let append = effects
            .iter()
            .position(|e| matches!(e, Effect::Append { .. }));
        let told = effects
            .iter()
            .position(|e| matches!(e, Effect::Reply { .. }));
        assert!(
            told.is_none_or(|told| append < Some(told)),
            "not before the disk wrote"
        );
        assert_eq!(bench.high_watermark(), 0, "no follower has it");
        bench.fetch(2, 2);
        let effects = bench.fetch(3, 2);
        assert_eq!(bench.high_watermark(), 2);
        let expected = if at_once {
            vec![]
        } else {
            vec![(reply, Ok(0))]
        };
        assert_eq!(answers(&effects), expected, "{acks:?}");
    }
}

#[test]
fn commits_are_answered_in_order_and_only_up_to_the_high_watermark_l_40() {
    let mut bench = Bench::leader();
    let replies: Vec<_> = (0..3)
        .map(|_| bench.produce(Acks::All, 1, Sequence::Next).0)
        .collect();
    bench.fetch(2, 3);
    assert_eq!(
        answers(&bench.fetch(3, 2)),
        [(replies[0], Ok(0)), (replies[1], Ok(1))]
    );
    assert_eq!(answers(&bench.fetch(3, 3)), [(replies[2], Ok(2))]);
}

#[test]
fn a_retry_waits_for_the_commit_of_the_original_l_40() {
    let mut bench = Bench::leader();
    bench.produce(Acks::Leader, 2, Sequence::Next);
    bench.produce(Acks::Leader, 1, Sequence::Next);
    let original = Sequence::Duplicate {
        base: Offset(0),
        end: Offset(2),
    };
    let (second, _) = bench.produce(Acks::All, 1, Sequence::Next);
    let (retry, effects) = bench.produce(Acks::All, 2, original);
    assert!(
        !effects.iter().any(|e| matches!(e, Effect::Append { .. })),
        "not appended again"
    );
    assert_eq!(answers(&effects), []);
    bench.fetch(2, 2);
    assert_eq!(
        answers(&bench.fetch(3, 2)),
        [(retry, Ok(0))],
        "before a later batch"
    );
    bench.fetch(2, 4);
    assert_eq!(answers(&bench.fetch(3, 4)), [(second, Ok(3))]);
    let (retry, effects) = bench.produce(Acks::All, 2, original);
    assert_eq!(answers(&effects), [(retry, Ok(0))], "committed already");
    let (refused, effects) = bench.produce(
        Acks::All,
        1,
        Sequence::Refused(ErrorCode::OutOfOrderSequenceNumber),
    );
    assert_eq!(
        answers(&effects),
        [(refused, Err(ErrorCode::OutOfOrderSequenceNumber))]
    );
}

#[test]
fn below_the_minimum_isr_acks_all_is_refused_and_nothing_becomes_visible_l_10_l_21_h_19() {
    let mut bench = Bench::over(&[], 0, 0);
    bench.assign(Assignment {
        isr: ids(&[1]),
        min_isr: 2,
        ..assignment(Some(1), 1, 1)
    });
    let (reply, effects) = bench.produce(Acks::All, 1, Sequence::Next);
    assert_eq!(
        answers(&effects),
        [(reply, Err(ErrorCode::NotEnoughReplicas))]
    );
    assert_eq!(bench.state().1, 0, "nothing was written");
    let (reply, effects) = bench.produce(Acks::Leader, 1, Sequence::Next);
    assert_eq!(answers(&effects), [(reply, Ok(0))]);
    assert_eq!(bench.high_watermark(), 0, "acks=1 is not committed either");
    bench.assign(Assignment {
        isr: ids(&[1]),
        min_isr: 1,
        ..assignment(Some(1), 1, 2)
    });
    assert_eq!(bench.high_watermark(), 1, "until the minimum allows it");
}

#[test]
fn a_produce_runs_out_of_time_l_40() {
    let mut bench = Bench::leader();
    let (reply, _) = bench.produce(Acks::All, 1, Sequence::Next);
    assert_eq!(answers(&bench.tick(499)), []);
    assert_eq!(
        answers(&bench.tick(500)),
        [(reply, Err(ErrorCode::RequestTimedOut))]
    );
    bench.fetch(2, 1);
    assert_eq!(answers(&bench.fetch(3, 1)), [], "answered once");
}

#[test]
fn nobody_waits_beyond_the_term_l_41_l_60_l_61_h_33_h_35() {
    let ends: [(&str, Event); 4] = [
        ("another leads", assigned(assignment(Some(2), 2, 2))),
        ("nobody leads", assigned(assignment(None, 2, 2))),
        ("the same leads anew", assigned(assignment(Some(1), 2, 2))),
        ("the partition is gone", Event::Removed),
    ];
    for (what, event) in ends {
        let mut bench = Bench::leader();
        let (reply, _) = bench.produce(Acks::All, 1, Sequence::Next);
        let effects = bench.step(event);
        let lost = (reply, Err(ErrorCode::NotLeaderOrFollower));
        assert_eq!(answers(&effects), [lost], "{what}");
        assert!(has(&effects, &Effect::WakeReaders(News::Role)), "{what}");
    }
}

fn assigned(assignment: Assignment) -> Event {
    Event::Assigned {
        assignment: Arc::new(assignment),
        eligible: BTreeMap::new(),
        now: 0,
    }
}

#[test]
fn after_the_disk_failed_everyone_is_told_and_nothing_is_written_l_10_h_60() {
    let mut bench = Bench::leader();
    let (waiting, _) = bench.produce(Acks::All, 1, Sequence::Next);
    let mut effects = Vec::new();
    let reply = ReplyId(99);
    let batch = ClientBatch {
        bytes: empty(),
        records: 1,
        sequence: Sequence::Next,
    };
    let produce = Event::Produce {
        reply,
        acks: Acks::Leader,
        batch,
        deadline: 9,
        now: 0,
    };
    bench.replica.step(produce.clone(), &mut effects);
    effects.clear();
    let reason = "no space left".to_owned();
    bench.replica.step(
        Event::LogFailed {
            reason: reason.clone(),
        },
        &mut effects,
    );
    let storage = Err(ErrorCode::KafkaStorageError);
    assert_eq!(answers(&effects), [(waiting, storage), (reply, storage)]);
    assert!(has(&effects, &Effect::Notice(Notice::Failed { reason })));
    effects.clear();
    bench.replica.step(produce, &mut effects);
    assert_eq!(answers(&effects), [(reply, storage)]);
    assert_eq!(
        bench.assign(assignment(Some(1), 5, 5)),
        [],
        "it stays out of service"
    );
    assert_eq!(
        bench.replica.check_leader(Some(LeaderEpoch(5))),
        storage.map(|_: i64| LeaderEpoch(5))
    );
}

#[test]
fn the_stated_epoch_is_compared_before_anything_else_l_50_h_7_h_32() {
    use ErrorCode::*;
    type Row = (Option<i32>, Result<i32, ErrorCode>);
    let leader: [Row; 4] = [
        (None, Ok(3)),
        (Some(2), Err(FencedLeaderEpoch)),
        (Some(3), Ok(3)),
        (Some(4), Err(UnknownLeaderEpoch)),
    ];
    let other: [Row; 4] = [
        (None, Err(NotLeaderOrFollower)),
        (Some(2), Err(FencedLeaderEpoch)),
        (Some(3), Err(NotLeaderOrFollower)),
        (Some(4), Err(UnknownLeaderEpoch)),
    ];
    let unassigned: [Row; 2] = [
        (None, Err(NotLeaderOrFollower)),
        (Some(0), Err(UnknownLeaderEpoch)),
    ];
    let in_role = |leader: Option<i32>| {
        let mut bench = Bench::over(&[], 0, 0);
        bench.assign(assignment(leader, 3, 3));
        bench
    };
    let roles: [(Bench, &[Row]); 4] = [
        (in_role(Some(1)), &leader),
        (in_role(Some(2)), &other),
        (in_role(None), &other),
        (Bench::over(&[], 0, 0), &unassigned),
    ];
    for (mut bench, rows) in roles {
        for &(asked, expected) in rows {
            let checked = bench.replica.check_leader(asked.map(LeaderEpoch));
            assert_eq!(
                checked,
                expected.map(LeaderEpoch),
                "{asked:?} at {:?}",
                bench.replica
            );
            let (read, _) = bench.read(consumer_read(0, asked));
            assert_eq!(read.err(), expected.err(), "{asked:?}");
        }
    }
}

#[test]
fn a_followers_fetch_is_heard_only_in_full_l_30_l_50_h_7_h_14_h_15() {
    let rows = [
        (
            "states no epoch",
            follower_read(2, 0, None, None),
            ErrorCode::UnknownLeaderEpoch,
        ),
        (
            "is no replica",
            follower_read(9, 0, Some(1), None),
            ErrorCode::UnknownLeaderEpoch,
        ),
        (
            "comes from a past life",
            past_life(2),
            ErrorCode::NotLeaderOrFollower,
        ),
    ];
    for (what, request, error) in rows {
        let mut bench = Bench::leader();
        assert_eq!(bench.read(request).0, Err(error), "{what}");
        assert!(
            bench.replica.followers().all(|(_, end, _)| end.is_none()),
            "{what}"
        );
    }
    // Also when the registration is not known here: a newer life has fetched.
    let mut bench = Bench::leader();
    bench.fetch(2, 0);
    bench.eligible.clear();
    bench.assign(assignment(Some(1), 1, 2));
    assert_eq!(
        bench.read(past_life(2)).0,
        Err(ErrorCode::NotLeaderOrFollower)
    );
}

fn past_life(broker: i32) -> ReadRequest {
    let epoch = BrokerEpoch(i64::from(broker) * 10 - 1);
    ReadRequest {
        reader: Reader::Follower {
            broker: BrokerId(broker),
            epoch,
        },
        ..follower_read(broker, 0, Some(1), None)
    }
}

#[test]
fn divergence_and_range_l_52_l_53_h_25() {
    use ErrorCode::OffsetOutOfRange;
    // History 1@2, 3@4, 6@8, end 10: the log starts at 2.
    let diverging = |epoch, end| {
        Ok(ReadAnswer::Diverging(EpochEnd {
            epoch: LeaderEpoch(epoch),
            end: Offset(end),
        }))
    };
    // The offset, the last fetched epoch, and what is answered instead of a grant.
    type Row = (i64, Option<i32>, Option<Result<ReadAnswer, ErrorCode>>);
    let rows: [Row; 12] = [
        (10, Some(6), None),
        (8, Some(3), None),
        (4, Some(1), None),
        (2, Some(0), None), // older than the retained log
        (2, None, None),
        (11, Some(6), Some(diverging(6, 10))), // beyond our end in the same epoch
        (9, Some(3), Some(diverging(3, 8))),
        (8, Some(5), Some(diverging(3, 8))), // an epoch we never saw: the floor
        (5, Some(2), Some(diverging(1, 4))),
        (1, Some(1), Some(Err(OffsetOutOfRange))), // before any talk of divergence
        (11, None, Some(Err(OffsetOutOfRange))),
        (9, Some(7), Some(Err(OffsetOutOfRange))), // newer than anything known here
    ];
    for (offset, last, instead) in rows {
        let mut bench = Bench::over(&[(1, 2), (3, 4)], 8, 4);
        bench.assign(assignment(Some(1), 6, 1));
        for _ in 0..2 {
            bench.produce(Acks::Leader, 1, Sequence::Next);
        }
        let what = format!("{offset} after {last:?}");
        let (answer, _) = bench.read(follower_read(2, offset, Some(6), last));
        let known = bench
            .replica
            .followers()
            .find(|f| f.0 == BrokerId(2))
            .and_then(|f| f.1);
        let Some(refused) = instead else {
            let Ok(ReadAnswer::Grant(grant)) = answer else {
                panic!("{what}: {answer:?}")
            };
            assert_eq!(
                (grant.from.0, grant.bound.0, grant.log_start.0),
                (offset, 10, 2),
                "{what}"
            );
            assert_eq!(known, Some(Offset(offset)), "{what}: acknowledged (L-20)");
            continue;
        };
        assert_eq!(answer, refused, "{what}");
        assert_eq!(known, None, "{what}: nothing is recorded (H-13)");
    }
}

#[test]
fn consumers_read_to_the_high_watermark_and_a_retry_records_nothing_l_42_l_53() {
    let mut bench = Bench::leader();
    bench.produce(Acks::Leader, 3, Sequence::Next);
    let bound = |answer| match answer {
        Ok(ReadAnswer::Grant(grant)) => (grant.from.0, grant.bound.0, grant.high_watermark.0),
        other => panic!("{other:?}"),
    };
    assert_eq!(bound(bench.read(consumer_read(0, None)).0), (0, 0, 0));
    assert_eq!(
        bound(bench.read(consumer_read(3, Some(1))).0),
        (3, 0, 0),
        "between watermark and end: nothing yet"
    );
    assert_eq!(
        bench.read(consumer_read(4, None)).0,
        Err(ErrorCode::OffsetOutOfRange)
    );
    let again = ReadRequest {
        again: true,
        ..follower_read(2, 3, Some(1), None)
    };
    assert_eq!(bound(bench.read(again).0), (3, 3, 0));
    bench.fetch(3, 3);
    assert_eq!(bench.high_watermark(), 0, "broker 2 has not acknowledged");
    bench.fetch(2, 3);
    assert_eq!(bound(bench.read(consumer_read(0, None)).0), (0, 3, 3));
}

#[test]
fn latest_is_told_once_the_watermark_passed_the_start_of_the_term_l_54() {
    let mut bench = Bench::over(&[(1, 0)], 6, 4);
    assert_eq!(
        bench.replica.latest_for_consumer(),
        Err(ErrorCode::NotLeaderOrFollower)
    );
    bench.assign(assignment(Some(1), 2, 2));
    assert_eq!(
        bench.replica.latest_for_consumer(),
        Err(ErrorCode::OffsetNotAvailable)
    );
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 6);
    let effects = bench.fetch(3, 6);
    let back = Notice::WatermarkBack {
        leader_epoch: LeaderEpoch(2),
        high_watermark: Offset(6),
        writable: true,
    };
    assert!(has(&effects, &Effect::Notice(back)), "{effects:?}");
    assert_eq!(bench.replica.latest_for_consumer(), Ok(Offset(6)));
}

#[test]
fn the_first_write_of_a_term_is_noted_once() {
    let mut bench = Bench::leader();
    let noted = |effects: &[Effect]| {
        effects
            .iter()
            .any(|e| matches!(e, Effect::Notice(Notice::FirstWrite { .. })))
    };
    let (_, effects) = bench.produce(Acks::All, 1, Sequence::Next);
    assert!(!noted(&effects), "not acknowledged yet");
    bench.fetch(2, 1);
    assert!(noted(&bench.fetch(3, 1)));
    assert!(!noted(&bench.produce(Acks::Leader, 1, Sequence::Next).1));
}

#[test]
fn retention_that_passes_the_watermark_lifts_it_l_26() {
    let mut bench = Bench::over(&[(1, 0)], 6, 2);
    bench.assign(assignment(Some(1), 2, 2));
    bench.disk(&Effect::RaiseLogStart { to: Offset(4) });
    let (log, now) = (bench.log.clone(), bench.now);
    let effects = bench.step(Event::LogChanged { log, now });
    assert_eq!(
        effects,
        [Effect::Publish {
            high_watermark: Offset(4)
        }]
    );
}

#[test]
#[should_panic(expected = "has no outcome yet")]
fn a_step_while_the_disk_works_is_a_bug_of_the_shell() {
    let mut replica = Bench::over(&[], 0, 0).replica;
    let mut effects = Vec::new();
    replica.step(assigned(assignment(Some(1), 1, 1)), &mut effects);
    assert!(matches!(effects.last(), Some(Effect::StartEpoch { .. })));
    replica.step(Event::Tick { now: 1 }, &mut effects);
}
