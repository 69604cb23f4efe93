use super::*;

fn diverging(epoch: i32, end: i64) -> FetchAnswer {
    FetchAnswer::Diverging(EpochEnd {
        epoch: LeaderEpoch(epoch),
        end: Offset(end),
    })
}

fn refused(error: ErrorCode) -> FetchAnswer {
    FetchAnswer::Refused(error)
}

/// Where this follower fetches: offset and last fetched epoch.
fn position(bench: &Bench) -> Option<(i64, Option<i32>)> {
    let position = bench.replica.fetch_position()?;
    Some((position.offset.0, position.last_fetched_epoch.map(|e| e.0)))
}

type Entries<'a> = &'a [(i32, i64)];

#[test]
fn the_worked_cases_of_section_3_3() {
    // (case, leader's history and end, the epoch it leads), (follower's history and end), the cuts in order.
    type Case<'a> = (
        &'a str,
        (Entries<'a>, i64, i32),
        (Entries<'a>, i64),
        &'a [i64],
    );
    let cases: [Case; 8] = [
        (
            "1: behind in the same epoch",
            (&[(1, 0)], 4, 2),
            (&[(1, 0)], 2),
            &[],
        ),
        (
            "2: the leader has newer epochs",
            (&[(1, 0), (3, 4)], 6, 4),
            (&[(1, 0)], 4),
            &[],
        ),
        (
            "3: the leader lost its end and began anew",
            (&[(1, 0)], 2, 2),
            (&[(1, 0)], 4),
            &[2],
        ),
        (
            "4: an epoch the leader lacks",
            (&[(1, 0), (3, 2)], 5, 4),
            (&[(1, 0), (2, 2)], 4),
            &[2],
        ),
        (
            "5: both went on differently",
            (&[(1, 0)], 6, 4),
            (&[(1, 0), (2, 3), (3, 5)], 7),
            &[3],
        ),
        (
            "6: the leader's answer is unknown here",
            (&[(1, 0), (2, 4), (6, 8)], 10, 7),
            (&[(1, 0), (3, 2), (5, 5)], 7),
            &[2],
        ),
        (
            "7: nothing at or below the leader's epoch",
            (&[(1, 0), (5, 6)], 8, 6),
            (&[(3, 2)], 6),
            &[2],
        ),
        (
            "8: an epoch in which we wrote nothing",
            (&[(3, 0)], 10, 6),
            (&[(3, 0), (5, 10)], 10),
            &[10],
        ),
    ];
    for (case, (theirs, their_end, term), (ours, our_end), expected) in cases {
        let mut leader = Bench::over(theirs, their_end, 0);
        leader.assign(assignment(Some(1), term, 1));
        let mut follower = Bench::follower(ours, our_end, 0, term);
        let mut cuts = Vec::new();
        for round in 0.. {
            assert!(round < 5, "{case}: no agreement");
            let asked = follower.replica.fetch_position().expect("it fetches");
            let last = asked.last_fetched_epoch.map(|e| e.0);
            let request = follower_read(2, asked.offset.0, Some(term), last);
            match leader.read(request).0.expect(case) {
                ReadAnswer::Grant(_) => break,
                ReadAnswer::Diverging(end) => {
                    let effects = follower.fetched(FetchAnswer::Diverging(end));
                    cuts.extend(effects.iter().filter_map(|e| match e {
                        Effect::Truncate { to } => Some(to.0),
                        _ => None,
                    }));
                }
            }
        }
        assert_eq!(cuts, expected, "{case}");
        let shared = follower.batches.iter().all(|b| leader.batches.contains(b));
        assert!(
            shared,
            "{case}: {:?} against {:?}",
            follower.batches, leader.batches
        );
    }
}

#[test]
fn becoming_a_follower_cuts_nothing_and_asks_with_the_newest_epoch_f_3_f_12_h_1() {
    let mut bench = Bench::over(&[(1, 0), (2, 3)], 5, 3);
    let effects = bench.assign(assignment(Some(2), 3, 1));
    let follow = Effect::Follow {
        leader: BrokerId(2),
    };
    assert_eq!(effects, [Effect::WakeReaders(News::Role), follow]);
    assert_eq!(position(&bench), Some((5, Some(2))));
    assert_eq!(bench.high_watermark(), 3);
}

#[test]
fn fetching_begins_again_in_every_new_epoch_even_of_the_same_leader_f_2_h_5() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 0, 1);
    let follow = Effect::Follow {
        leader: BrokerId(2),
    };
    assert!(
        !bench.assign(assignment(Some(2), 1, 2)).contains(&follow),
        "same epoch"
    );
    assert!(bench.assign(assignment(Some(2), 3, 3)).contains(&follow));
    assert!(
        bench
            .assign(assignment(None, 4, 4))
            .contains(&Effect::Unfollow)
    );
    assert_eq!(position(&bench), None);
}

#[test]
fn data_is_appended_and_the_leaders_bounds_taken_over_f_6() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 2, 3);
    let effects = bench.fetched(data(3, 0, &[(2, 4, 1), (4, 5, 3)]));
    assert!(
        matches!(effects[0], Effect::AppendFetched { .. }),
        "{effects:?}"
    );
    assert_eq!(bench.state(), (0, 5, vec![(1, 0), (3, 4)]));
    assert_eq!(
        (bench.high_watermark(), position(&bench)),
        (3, Some((5, Some(3))))
    );
    for (said, taken) in [(9, 5), (1, 1), (4, 4)] {
        bench.fetched(data(said, 0, &[]));
        assert_eq!(
            bench.high_watermark(),
            taken,
            "the watermark is assigned, within the log"
        );
    }
}

#[test]
fn an_empty_answer_keeps_the_last_fetched_epoch_h_9() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 0, 3);
    bench.fetched(data(0, 0, &[]));
    assert_eq!(position(&bench), Some((2, Some(1))));
}

#[test]
fn the_leaders_log_start_is_followed_up_to_the_watermark_f_6_h_28() {
    for (watermark, start, raised) in [(4, 2, 2), (3, 5, 3), (4, 0, 0)] {
        let mut bench = Bench::follower(&[(1, 0)], 4, 0, 1);
        bench.fetched(data(watermark, start, &[(4, 5, 1)]));
        assert_eq!(bench.state(), (raised, 5, vec![(1, raised)]));
    }
}

#[test]
fn only_the_valid_beginning_of_an_answer_is_appended_f_6_h_21() {
    let rows: [(&str, &[Batch], i64); 7] = [
        ("all good", &[(2, 3, 1), (3, 4, 2)], 4),
        (
            "a newer epoch than ours in the middle",
            &[(2, 3, 2), (3, 4, 4)],
            3,
        ),
        ("an epoch that falls", &[(2, 3, 2), (3, 4, 1)], 3),
        ("a gap", &[(2, 3, 2), (4, 5, 2)], 3),
        ("an overlap", &[(2, 4, 2), (3, 5, 2)], 4),
        ("does not continue the log", &[(3, 4, 2)], 2),
        ("begins before its end", &[(1, 3, 1)], 2),
    ];
    for (what, batches, end) in rows {
        let mut bench = Bench::follower(&[(1, 0)], 2, 2, 3);
        bench.fetched(data(2, 0, batches));
        assert_eq!(bench.log.end.0, end, "{what}");
        let waits = bench
            .replica
            .fetch_position()
            .expect("it goes on")
            .not_before
            > 0;
        assert_eq!(waits, end == 2, "{what}: waits after an answer without use");
    }
    let mut bench = Bench::follower(&[(1, 0)], 2, 2, 3);
    let FetchAnswer::Data { bytes, .. } = data(2, 0, &[(2, 3, 1)]) else {
        unreachable!()
    };
    let corrupt = FetchAnswer::Data {
        high_watermark: Offset(2),
        log_start: Offset(0),
        batches: Vec::new(),
        bytes,
    };
    bench.fetched(corrupt);
    assert!(
        bench
            .replica
            .fetch_position()
            .expect("it goes on")
            .not_before
            > 0
    );
}

#[test]
fn a_diverging_answer_moves_neither_watermark_nor_start_but_the_cut_may_f_7_f_10_h_8() {
    let mut bench = Bench::follower(&[(1, 0), (2, 3)], 6, 4, 5);
    let effects = bench.fetched(diverging(1, 5));
    let notice = Notice::Diverged {
        from: Offset(6),
        to: Offset(3),
        high_watermark: Offset(4),
    };
    let expected = [
        Effect::Notice(notice),
        Effect::Truncate { to: Offset(3) },
        Effect::Publish {
            high_watermark: Offset(3),
        },
    ];
    assert_eq!(effects, expected);
    assert_eq!(position(&bench), Some((3, Some(1))));
}

#[test]
fn a_stale_entry_of_the_history_goes_even_when_no_record_does_f_11_h_6() {
    let mut bench = Bench::follower(&[(3, 0), (5, 10)], 10, 10, 6);
    let effects = bench.fetched(diverging(3, 10));
    assert_eq!(
        effects,
        [Effect::Truncate { to: Offset(10) }],
        "and no talk of lost records"
    );
    assert_eq!(position(&bench), Some((10, Some(3))));
}

#[test]
fn answers_to_other_questions_are_not_heard_f_5_h_20() {
    let ask = |leader_epoch, offset, last: Option<i32>| Event::Fetched {
        leader_epoch: LeaderEpoch(leader_epoch),
        fetch_offset: Offset(offset),
        last_fetched_epoch: last.map(LeaderEpoch),
        answer: diverging(1, 2),
        now: 0,
    };
    for (what, event) in [
        ("an older term", ask(4, 6, Some(2))),
        ("another offset", ask(5, 5, Some(2))),
        ("the same offset, reached before a cut", ask(5, 6, Some(3))),
        ("the same offset, nothing fetched", ask(5, 6, None)),
    ] {
        let mut bench = Bench::follower(&[(1, 0), (2, 3)], 6, 4, 5);
        assert_eq!(bench.step(event), [], "{what}");
    }
    let mut bench = Bench::follower(&[(1, 0), (2, 3)], 6, 4, 5);
    assert_ne!(bench.step(ask(5, 6, Some(2))), []);
}

#[test]
fn a_diverging_answer_that_does_not_contradict_the_log_cuts_nothing_f_9() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 2, 3);
    assert_eq!(bench.fetched(diverging(1, 2)), []);
    assert!(
        bench
            .replica
            .fetch_position()
            .expect("it goes on")
            .not_before
            > 0
    );
}

#[test]
fn out_of_range_asks_for_the_leaders_bounds_f_20_h_29() {
    // Our log is 2..6 with the watermark at 4.
    type Row = (&'static str, Result<(i64, i64), ErrorCode>, (i64, i64), i64);
    let rows: [Row; 6] = [
        ("the leader ends before us", Ok((0, 5)), (2, 5), 4),
        ("and before our watermark", Ok((0, 3)), (2, 3), 3),
        (
            "and before our log begins: everything goes",
            Ok((0, 1)),
            (0, 0),
            0,
        ),
        ("the leader begins after us", Ok((9, 12)), (9, 9), 9),
        ("we are within its bounds: try again", Ok((0, 8)), (2, 6), 4),
        (
            "no answer: try again",
            Err(ErrorCode::RequestTimedOut),
            (2, 6),
            4,
        ),
    ];
    for (what, answer, log, watermark) in rows {
        let mut bench = Bench::follower(&[(1, 2)], 6, 4, 3);
        let effects = bench.fetched(refused(ErrorCode::OffsetOutOfRange));
        let ask = Effect::AskBounds {
            leader: BrokerId(2),
            leader_epoch: LeaderEpoch(3),
        };
        assert_eq!(effects, [ask]);
        assert_eq!(position(&bench), None, "no fetch meanwhile");
        let answer = answer.map(|(start, end)| (Offset(start), Offset(end)));
        let leader_epoch = LeaderEpoch(2);
        assert_eq!(
            bench.step(Event::Bounds {
                leader_epoch,
                answer,
                now: 0
            }),
            [],
            "of an older term"
        );
        bench.step(Event::Bounds {
            leader_epoch: LeaderEpoch(3),
            answer,
            now: 0,
        });
        assert_eq!((bench.state().0, bench.state().1), log, "{what}");
        assert_eq!(bench.high_watermark(), watermark, "{what}");
        assert!(position(&bench).is_some(), "{what}: it fetches again");
    }
}

#[test]
fn a_log_that_parted_before_it_begins_starts_over_where_the_leader_begins() {
    let mut bench = Bench::follower(&[(4, 5)], 8, 6, 7);
    let ask = Effect::AskBounds {
        leader: BrokerId(2),
        leader_epoch: LeaderEpoch(7),
    };
    assert_eq!(bench.fetched(diverging(3, 2)), [ask]);
    let answer = Ok((Offset(1), Offset(20)));
    bench.step(Event::Bounds {
        leader_epoch: LeaderEpoch(7),
        answer,
        now: 0,
    });
    assert_eq!(bench.state(), (1, 1, vec![]));
    assert_eq!(bench.high_watermark(), 1);
}

#[test]
fn out_of_range_for_no_reason_ends_in_starting_over_f_21_h_24() {
    let mut bench = Bench::follower(&[(1, 0)], 6, 4, 3);
    for round in 0.. {
        assert!(round < 10, "for ever");
        bench.fetched(refused(ErrorCode::OffsetOutOfRange));
        let answer = Ok((Offset(2), Offset(8)));
        bench.step(Event::Bounds {
            leader_epoch: LeaderEpoch(3),
            answer,
            now: 0,
        });
        if bench.log.end == Offset(2) {
            assert_eq!(round, 3);
            break;
        }
    }
}

#[test]
fn a_leaders_log_that_starts_within_a_batch_is_taken_up_f_22_h_26() {
    let emptied = || {
        let mut bench = Bench::follower(&[], 0, 0, 3);
        bench.fetched(refused(ErrorCode::OffsetOutOfRange));
        let answer = Ok((Offset(5), Offset(9)));
        bench.step(Event::Bounds {
            leader_epoch: LeaderEpoch(3),
            answer,
            now: 0,
        });
        assert_eq!(bench.state(), (5, 5, vec![]));
        bench
    };
    let mut bench = emptied();
    bench.fetched(data(7, 5, &[(3, 6, 2), (6, 7, 2)]));
    assert_eq!(bench.state(), (5, 7, vec![(2, 5)]));
    assert_eq!(
        bench.batches,
        [(3, 6, 2), (6, 7, 2)],
        "the first batch whole"
    );
    assert_eq!(bench.high_watermark(), 7);

    let mut bench = Bench::follower(&[(1, 0)], 5, 5, 3);
    bench.fetched(data(7, 5, &[(3, 6, 2), (6, 7, 2)]));
    assert_eq!(
        bench.state(),
        (5, 7, vec![(2, 5)]),
        "also when the leader deleted all we hold"
    );

    let mut bench = Bench::follower(&[(1, 0)], 5, 5, 3);
    bench.fetched(data(7, 4, &[(3, 6, 2), (6, 7, 2)]));
    assert_eq!(
        bench.state(),
        (0, 5, vec![(1, 0)]),
        "but not when something here counts"
    );
}

#[test]
fn fenced_waits_for_metadata_and_anything_else_backs_off_f_23_h_31() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 0, 3);
    bench.fetched(refused(ErrorCode::FencedLeaderEpoch));
    assert_eq!(position(&bench), None);
    bench.assign(assignment(Some(3), 4, 2));
    assert!(position(&bench).is_some());
    for answer in [
        refused(ErrorCode::UnknownLeaderEpoch),
        refused(ErrorCode::NotLeaderOrFollower),
        refused(ErrorCode::UnknownTopicId),
        refused(ErrorCode::KafkaStorageError),
        FetchAnswer::Unreachable,
    ] {
        let mut bench = Bench::follower(&[(1, 0)], 2, 0, 3);
        let mut waits = Vec::new();
        for _ in 0..9 {
            bench.fetched(answer.clone());
            waits.push(
                bench
                    .replica
                    .fetch_position()
                    .expect("it goes on")
                    .not_before,
            );
        }
        assert_eq!(
            waits,
            [10, 20, 40, 80, 160, 320, 640, 1000, 1000],
            "{answer:?}"
        );
        bench.fetched(data(0, 0, &[]));
        let at_once = bench
            .replica
            .fetch_position()
            .expect("it goes on")
            .not_before;
        assert!(at_once <= 0, "an answer ends the waiting");
    }
}

#[test]
fn a_fenced_answer_to_an_older_question_is_nothing_f_23_h_31() {
    let mut bench = Bench::follower(&[(1, 0)], 2, 0, 3);
    bench.step(Event::Fetched {
        leader_epoch: LeaderEpoch(2),
        fetch_offset: Offset(2),
        last_fetched_epoch: Some(LeaderEpoch(1)),
        answer: refused(ErrorCode::FencedLeaderEpoch),
        now: 0,
    });
    assert!(position(&bench).is_some());
}

#[test]
fn a_leader_hears_no_fetch_answers_and_a_partition_moved_away_follows_nobody() {
    let mut bench = Bench::leader();
    let event = Event::Fetched {
        leader_epoch: LeaderEpoch(1),
        fetch_offset: Offset(0),
        last_fetched_epoch: Some(LeaderEpoch(1)),
        answer: data(0, 0, &[(0, 1, 1)]),
        now: 0,
    };
    assert_eq!(bench.step(event), []);
    let elsewhere = Assignment {
        replicas: ids(&[2, 3]),
        isr: ids(&[2]),
        ..assignment(Some(2), 2, 2)
    };
    bench.assign(elsewhere);
    assert_eq!((position(&bench), bench.replica.leading()), (None, None));
}
