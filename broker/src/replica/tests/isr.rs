use super::*;

/// A leader of epoch 1 with ISR {1, 2}, broker 3 out of it, and one record that 1 and 2 have.
fn without_3() -> Bench {
    let mut bench = Bench::over(&[], 0, 0);
    bench.assign(Assignment {
        isr: ids(&[1, 2]),
        ..assignment(Some(1), 1, 1)
    });
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 1);
    assert_eq!(bench.high_watermark(), 1);
    bench
}

/// Broker 3 has just caught up, and its joining is proposed.
fn joining() -> Bench {
    let mut bench = without_3();
    assert_eq!(proposed(&bench.fetch(3, 1)), Some(vec![1, 2, 3]));
    bench
}

fn answer(bench: &mut Bench, answer: IsrAnswer) -> Vec<Effect> {
    let now = bench.now;
    let (leader_epoch, partition_epoch) = (LeaderEpoch(1), PartitionEpoch(1));
    bench.step(Event::Isr {
        leader_epoch,
        partition_epoch,
        answer,
        now,
    })
}

fn committed(leader_epoch: i32, partition_epoch: i32, isr: &[i32]) -> IsrAnswer {
    IsrAnswer::Committed {
        leader_epoch: LeaderEpoch(leader_epoch),
        partition_epoch: PartitionEpoch(partition_epoch),
        isr: ids(isr),
    }
}

fn view(bench: &Bench) -> (Vec<BrokerId>, bool, Vec<BrokerId>) {
    let view = bench.replica.isr().expect("it leads");
    (view.committed, view.proposed.is_some(), view.maximal)
}

#[test]
fn the_watermark_waits_for_a_joiner_from_the_moment_it_is_proposed_l_32() {
    let mut bench = joining();
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 2);
    assert_eq!(bench.high_watermark(), 1);
    assert_eq!(view(&bench), (ids(&[1, 2]), true, ids(&[1, 2, 3])));
    bench.fetch(3, 2);
    assert_eq!(bench.high_watermark(), 2);
}

#[test]
fn the_proposal_names_the_lives_that_fetched_l_33_h_15() {
    let mut bench = without_3();
    let effects = bench.fetch(3, 1);
    let life = |n| (BrokerId(n), Some(BrokerEpoch(i64::from(n) * 10)));
    let ask = Effect::AskIsr {
        leader_epoch: LeaderEpoch(1),
        partition_epoch: PartitionEpoch(1),
        isr: vec![life(1), life(2), life(3)],
        recovering: false,
    };
    assert!(effects.contains(&ask), "{effects:?}");
}

#[test]
fn what_an_answer_to_a_proposal_means_l_34() {
    use ErrorCode::*;
    let (old, new) = (ids(&[1, 2]), ids(&[1, 2, 3]));
    let rows = [
        (
            "committed",
            committed(1, 2, &[1, 2, 3]),
            (new.clone(), false, new.clone()),
        ),
        (
            "already so (H-39)",
            committed(1, 1, &[1, 2, 3]),
            (new.clone(), false, new.clone()),
        ),
        (
            "of another term",
            committed(2, 2, &[2]),
            (old.clone(), true, new.clone()),
        ),
        (
            "of an older state",
            committed(1, 0, &[1]),
            (old.clone(), true, new.clone()),
        ),
        (
            "ineligible",
            IsrAnswer::Refused(IneligibleReplica),
            (old.clone(), false, old.clone()),
        ),
        (
            "fenced",
            IsrAnswer::Refused(FencedLeaderEpoch),
            (old.clone(), true, new.clone()),
        ),
        (
            "older version",
            IsrAnswer::Refused(InvalidUpdateVersion),
            (old.clone(), true, new.clone()),
        ),
        (
            "invalid",
            IsrAnswer::Refused(InvalidRequest),
            (old.clone(), true, new.clone()),
        ),
        (
            "no such topic",
            IsrAnswer::Refused(UnknownTopicId),
            (old.clone(), true, new.clone()),
        ),
        (
            "another leader",
            IsrAnswer::Refused(NewLeaderElected),
            (old.clone(), true, new.clone()),
        ),
        (
            "not the controller (H-38)",
            IsrAnswer::Refused(NotController),
            (old.clone(), true, new.clone()),
        ),
        (
            "stale broker",
            IsrAnswer::Refused(StaleBrokerEpoch),
            (old.clone(), true, new.clone()),
        ),
        (
            "no answer (H-10)",
            IsrAnswer::Unknown,
            (old.clone(), true, new.clone()),
        ),
    ];
    for (what, said, expected) in rows {
        let mut bench = joining();
        answer(&mut bench, said);
        assert_eq!(view(&bench), expected, "{what}");
    }
}

#[test]
fn only_an_unknown_outcome_is_asked_again_l_34_h_10() {
    use ErrorCode::*;
    for (said, again) in [
        (IsrAnswer::Unknown, true),
        (IsrAnswer::Refused(NotController), true),
        (IsrAnswer::Refused(StaleBrokerEpoch), true),
        (IsrAnswer::Refused(FencedLeaderEpoch), false),
        (IsrAnswer::Refused(InvalidUpdateVersion), false),
    ] {
        let mut bench = joining();
        answer(&mut bench, said.clone());
        let sent: Vec<_> = [50, 100, 150].map(|now| proposed(&bench.tick(now))).into();
        let expected = again.then(|| vec![1, 2, 3]);
        assert_eq!(sent, [None, expected, None], "{said:?}");
    }
}

#[test]
fn an_answer_to_another_proposal_is_not_heard_l_34() {
    let mut bench = joining();
    let now = 0;
    for (leader_epoch, partition_epoch) in [(0, 1), (2, 1), (1, 0), (1, 2)] {
        bench.step(Event::Isr {
            leader_epoch: LeaderEpoch(leader_epoch),
            partition_epoch: PartitionEpoch(partition_epoch),
            answer: committed(1, 2, &[1]),
            now,
        });
        assert_eq!(view(&bench).0, ids(&[1, 2]));
    }
}

#[test]
fn a_refusal_after_silence_is_not_believed_until_the_partition_epoch_moved_h_10() {
    let mut bench = joining();
    answer(&mut bench, IsrAnswer::Unknown);
    assert_eq!(proposed(&bench.tick(100)), Some(vec![1, 2, 3]));
    answer(&mut bench, IsrAnswer::Refused(ErrorCode::IneligibleReplica));
    // The first copy may still arrive: broker 3 counts.
    assert_eq!(view(&bench), (ids(&[1, 2]), false, ids(&[1, 2, 3])));
    // What is committed is proposed again, which leaves that copy behind.
    assert_eq!(proposed(&bench.tick(200)), Some(vec![1, 2]));
    answer(&mut bench, IsrAnswer::Unknown);
    assert_eq!(proposed(&bench.tick(300)), Some(vec![1, 2]));
    answer(&mut bench, committed(1, 2, &[1, 2]));
    assert_eq!(view(&bench), (ids(&[1, 2]), false, ids(&[1, 2])));
}

#[test]
fn who_may_join_l_24_l_32_h_12_h_16_h_41() {
    // A term that began at 4 with the watermark at 2.
    type Row = (&'static str, i64, fn(&mut Bench), bool);
    let rows: [Row; 6] = [
        ("below the watermark", 1, |_| {}, false),
        ("past it, below the start of the term", 3, |_| {}, false),
        ("past both", 4, |_| {}, true),
        (
            "fenced or draining",
            4,
            |b| {
                b.eligible.remove(&BrokerId(3));
            },
            false,
        ),
        (
            "registered anew since",
            4,
            |b| {
                b.eligible.insert(BrokerId(3), BrokerEpoch(29));
            },
            false,
        ),
        (
            "while another proposal is open",
            4,
            |b| drop(b.tick(LAG_MS * 2)),
            false,
        ),
    ];
    for (what, offset, prepare, joins) in rows {
        let mut bench = Bench::over(&[(1, 0)], 4, 2);
        bench.assign(Assignment {
            isr: ids(&[1, 2]),
            ..assignment(Some(1), 2, 1)
        });
        prepare(&mut bench);
        let (brokers, now) = (bench.eligible.clone(), bench.now);
        bench.step(Event::Eligible { brokers, now });
        let effects = bench.fetch(3, offset);
        assert_eq!(proposed(&effects).is_some(), joins, "{what}");
    }
}

#[test]
fn one_whose_broker_is_unfenced_after_its_fetch_is_proposed_at_once_l_32() {
    let mut bench = Bench::over(&[(1, 0)], 4, 2);
    bench.assign(Assignment {
        isr: ids(&[1, 2]),
        ..assignment(Some(1), 2, 1)
    });
    let all = bench.eligible.clone();
    let speak = |bench: &mut Bench, brokers| {
        let now = bench.now;
        proposed(&bench.step(Event::Eligible { brokers, now }))
    };
    let mut fenced = all.clone();
    fenced.remove(&BrokerId(3));
    assert_eq!(speak(&mut bench, fenced.clone()), None);
    bench.eligible = fenced;
    assert_eq!(proposed(&bench.fetch(3, 4)), None, "fenced");
    let mut anew = all.clone();
    anew.insert(BrokerId(3), BrokerEpoch(29));
    assert_eq!(speak(&mut bench, anew), None, "another life of it fetched");
    assert_eq!(speak(&mut bench, all), Some(vec![1, 2, 3]));
}

#[test]
fn below_the_minimum_one_must_be_caught_up_to_join_h_43() {
    let mut bench = Bench::over(&[(1, 0)], 2, 2);
    bench.assign(Assignment {
        isr: ids(&[1]),
        min_isr: 2,
        ..assignment(Some(1), 2, 1)
    });
    bench.produce(Acks::Leader, 1, Sequence::Next);
    assert_eq!(
        proposed(&bench.fetch(3, 2)),
        None,
        "at the standing watermark, behind the end"
    );
    assert_eq!(proposed(&bench.fetch(3, 3)), Some(vec![1, 3]));
}

#[test]
fn who_falls_behind_is_dropped_and_counts_until_that_is_committed_l_31_h_18_h_47() {
    let mut bench = Bench::leader();
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 1);
    assert_eq!(proposed(&bench.tick(LAG_MS)), None, "not yet");
    bench.fetch(2, 1);
    let effects = bench.tick(LAG_MS + 500);
    assert_eq!(proposed(&effects), Some(vec![1, 2]));
    assert_eq!(bench.high_watermark(), 0, "broker 3 may still be elected");
    answer(&mut bench, committed(1, 2, &[1, 2]));
    assert_eq!(
        bench.high_watermark(),
        1,
        "without waiting for the next fetch"
    );
}

#[test]
fn an_idle_follower_at_the_end_and_one_close_behind_a_steady_stream_stay_l_23_l_30_h_48() {
    let mut bench = Bench::leader();
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 1);
    bench.fetch(3, 1);
    assert_eq!(
        proposed(&bench.tick(LAG_MS * 10)),
        None,
        "at the end, however long ago"
    );

    // Broker 2 reads on at once and broker 3 not at all; each append comes before the fetch that reads the last.
    let mut bench = Bench::leader();
    let mut dropped = None;
    for step in 1..40 {
        bench.now = step * 100;
        bench.produce(Acks::Leader, 1, Sequence::Next);
        bench.fetch(2, step - 1);
        dropped = dropped.or(proposed(&bench.tick(step * 100)));
    }
    assert_eq!(dropped, Some(vec![1, 2]));
}

#[test]
fn the_same_word_again_does_not_forget_the_proposal_c_52_h_11() {
    let mut bench = joining();
    let same = Assignment {
        isr: ids(&[1, 2]),
        ..assignment(Some(1), 1, 1)
    };
    bench.assign(same.clone());
    assert_eq!(view(&bench).2, ids(&[1, 2, 3]));
    bench.assign(Assignment {
        partition_epoch: PartitionEpoch(0),
        ..same
    });
    assert_eq!(
        view(&bench).2,
        ids(&[1, 2, 3]),
        "an older word even less (L-1)"
    );
    answer(&mut bench, committed(1, 2, &[1, 2, 3]));
    assert_eq!(view(&bench).0, ids(&[1, 2, 3]));
}

#[test]
fn newer_metadata_overrides_a_proposal_and_keeps_positions_l_4_h_39_h_80() {
    let mut bench = joining();
    let (positions, start) = (bench.replica.followers().collect::<Vec<_>>(), bench.state());
    bench.assign(Assignment {
        isr: ids(&[1, 2]),
        ..assignment(Some(1), 1, 2)
    });
    assert_eq!(view(&bench), (ids(&[1, 2]), false, ids(&[1, 2])));
    assert_eq!(bench.replica.followers().collect::<Vec<_>>(), positions);
    assert_eq!(bench.state(), start, "no epoch begins");
    answer(&mut bench, committed(1, 2, &[1, 2, 3]));
    assert_eq!(
        view(&bench).0,
        ids(&[1, 2]),
        "the answer to the old proposal means nothing now"
    );
    bench.assign(Assignment {
        replicas: ids(&[1, 2]),
        isr: ids(&[1, 2]),
        ..assignment(Some(1), 1, 3)
    });
    assert!(
        bench.replica.followers().all(|f| f.0 == BrokerId(2)),
        "who left is forgotten"
    );
}

#[test]
fn a_new_term_forgets_what_followers_reported_l_3_h_16() {
    let mut bench = joining();
    bench.assign(assignment(Some(1), 2, 2));
    assert!(
        bench
            .replica
            .followers()
            .all(|(_, end, life)| end.is_none() && life.is_none())
    );
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 2);
    assert_eq!(
        bench.high_watermark(),
        1,
        "broker 3 has not been heard in this term"
    );
}

#[test]
fn one_about_to_join_holds_the_watermark_but_not_when_it_is_leaving_l_22_l_24_h_40() {
    for (eligible, high_watermark) in [(true, 1), (false, 2)] {
        let mut bench = without_3();
        bench.fetch(3, 1); // proposed
        answer(&mut bench, IsrAnswer::Refused(ErrorCode::IneligibleReplica));
        if !eligible {
            bench.eligible.remove(&BrokerId(3));
            let (brokers, now) = (bench.eligible.clone(), bench.now);
            bench.step(Event::Eligible { brokers, now });
        }
        bench.produce(Acks::Leader, 1, Sequence::Next);
        bench.fetch(2, 2);
        assert_eq!(
            bench.high_watermark(),
            high_watermark,
            "eligible: {eligible}"
        );
    }
}

#[test]
fn one_that_went_offline_holds_no_watermark_and_returns_only_by_its_fetches_c_15_l_22() {
    let mut bench = without_3();
    bench.fetch(3, 1);
    let mut offline = assignment(Some(1), 1, 9);
    offline.isr = ids(&[1, 2]);
    offline.offline = ids(&[3]);
    bench.assign(offline);
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 2);
    assert_eq!(bench.high_watermark(), 2);
    let knows = |bench: &Bench| {
        bench
            .replica
            .followers()
            .map(|(b, end, _)| (b.0, end))
            .collect::<Vec<_>>()
    };
    assert!(knows(&bench).contains(&(3, None)), "{:?}", knows(&bench));
    bench.fetch(3, 0); // begun anew
    bench.produce(Acks::Leader, 1, Sequence::Next);
    bench.fetch(2, 3);
    assert_eq!(bench.high_watermark(), 3);
    bench.fetch(3, 3);
    assert!(
        knows(&bench).contains(&(3, Some(Offset(3)))),
        "{:?}",
        knows(&bench)
    );
}

#[test]
fn a_member_that_does_not_fetch_is_known_to_keep_writes_waiting() {
    let mut bench = Bench::leader();
    let start = bench.now;
    for follower in [2, 3] {
        bench.fetch(follower, 0);
    }
    assert_eq!(bench.replica.silent_members(3_000, start + 3_000), []);
    bench.now = start + 3_000;
    bench.fetch(3, 0);
    let silent = bench.replica.silent_members(3_000, start + 3_001);
    assert_eq!(silent, [BrokerId(2)]);
}
