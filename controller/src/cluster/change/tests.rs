mod offline;

use super::*;
use epoka_proto::ids::{LeaderEpoch, PartitionEpoch};

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().map(|&n| BrokerId(n)).collect()
}

/// Leader 0 stands for none.
fn state(replicas: &[i32], isr: &[i32], elr: &[i32], leader: i32, min_isr: usize) -> Assignment {
    Assignment {
        replicas: ids(replicas),
        isr: ids(isr),
        elr: ids(elr),
        last_known_elr: vec![],
        offline: vec![],
        adding: vec![],
        removing: vec![],
        leader: (leader != 0).then_some(BrokerId(leader)),
        leader_epoch: LeaderEpoch(5),
        partition_epoch: PartitionEpoch(9),
        recovery: Recovery::Recovered,
        min_isr,
    }
}

fn with_last_known(last: i32, assignment: Assignment) -> Assignment {
    Assignment {
        last_known_elr: ids(&[last]),
        ..assignment
    }
}

/// What a row looks at: leader (0: none), ISR, ELR, last known leader, by how much the two epochs grew, unclean.
type Result = (i32, Vec<i32>, Vec<i32>, Vec<i32>, i32, i32, bool);

fn summary(old: &Assignment, changed: Option<Changed>) -> Option<Result> {
    let Changed {
        assignment: now,
        unclean,
    } = changed?;
    let numbers = |list: &[BrokerId]| list.iter().map(|r| r.0).collect::<Vec<_>>();
    assert_eq!(
        now.recovery == Recovery::Recovering,
        unclean || old.recovery == Recovery::Recovering
    );
    Some((
        now.leader.map_or(0, |l| l.0),
        numbers(&now.isr),
        numbers(&now.elr),
        numbers(&now.last_known_elr),
        now.leader_epoch.0 - old.leader_epoch.0,
        now.partition_epoch.0 - old.partition_epoch.0,
        unclean,
    ))
}

fn result(
    leader: i32,
    isr: &[i32],
    elr: &[i32],
    last: &[i32],
    epochs: (i32, i32),
) -> Option<Result> {
    Some((
        leader,
        isr.into(),
        elr.into(),
        last.into(),
        epochs.0,
        epochs.1,
        false,
    ))
}

fn unclean(leader: i32, epochs: (i32, i32)) -> Option<Result> {
    Some((
        leader,
        vec![leader],
        vec![],
        vec![],
        epochs.0,
        epochs.1,
        true,
    ))
}

#[test]
fn a_broker_that_leaves_the_isr_c_3_c_18_c_31() {
    let rows = [
        // (state, who leaves, live, result)
        (
            "a follower leaves: no new leader epoch",
            state(&[1, 2, 3], &[1, 2, 3], &[], 1, 2),
            3,
            &[1, 2][..],
            result(1, &[1, 2], &[], &[], (0, 1)),
        ),
        (
            "the leader leaves: the next in replica order",
            state(&[1, 2, 3], &[1, 2, 3], &[], 1, 2),
            1,
            &[2, 3],
            result(2, &[2, 3], &[], &[], (1, 1)),
        ),
        (
            "replica order, not ISR order",
            state(&[3, 2, 1], &[1, 2, 3], &[], 1, 2),
            1,
            &[2, 3],
            result(3, &[2, 3], &[], &[], (1, 1)),
        ),
        (
            "an ISR member that is not live is passed over",
            state(&[1, 2, 3], &[1, 2, 3], &[], 1, 2),
            1,
            &[3],
            result(3, &[2, 3], &[], &[], (1, 1)),
        ),
        (
            "below the minimum the one who leaves stays eligible",
            state(&[1, 2, 3], &[1, 2], &[], 1, 2),
            2,
            &[1],
            result(1, &[1], &[2], &[], (0, 1)),
        ),
        (
            "and so do those who left before",
            state(&[1, 2, 3], &[1, 2], &[3], 1, 3),
            2,
            &[1],
            result(1, &[1], &[2, 3], &[], (0, 1)),
        ),
        (
            "the last one leaves, an eligible one is live: elected cleanly (C-33)",
            state(&[1, 2, 3], &[1], &[2], 1, 2),
            1,
            &[2, 3],
            result(2, &[2], &[1], &[], (1, 1)),
        ),
        (
            "the last one leaves, nobody eligible is live: no leader, it is remembered",
            state(&[1, 2, 3], &[1], &[2], 1, 2),
            1,
            &[3],
            result(0, &[], &[1, 2], &[1], (1, 1)),
        ),
        (
            "a partition of one replica",
            state(&[1], &[1], &[], 1, 1),
            1,
            &[],
            result(0, &[], &[1], &[1], (1, 1)),
        ),
    ];
    for (what, old, leaving, live, expected) in rows {
        let acceptable = |b: BrokerId| live.contains(&b.0);
        let change = Change::new(&old, old.min_isr, &acceptable).without(BrokerId(leaving));
        assert_eq!(summary(&old, change.build()), expected, "{what}");
    }
}

#[test]
fn an_unclean_restart_is_neither_in_the_isr_nor_eligible_c_13_h_45() {
    let rows = [
        (
            "a follower",
            state(&[1, 2, 3], &[1, 2], &[], 1, 2),
            2,
            &[1][..],
            result(1, &[1], &[], &[], (0, 1)),
        ),
        (
            "the leader",
            state(&[1, 2, 3], &[1, 2], &[], 1, 2),
            1,
            &[2],
            result(2, &[2], &[], &[], (1, 1)),
        ),
        (
            "the last replica standing: the eligible one leads",
            state(&[1, 2, 3], &[1], &[2], 1, 2),
            1,
            &[2, 3],
            result(2, &[2], &[], &[], (1, 1)),
        ),
        (
            "an eligible one",
            state(&[1, 2, 3], &[1], &[2], 1, 2),
            2,
            &[1],
            result(1, &[1], &[], &[], (0, 1)),
        ),
        (
            "the only replica: remembered as the last leader",
            state(&[1], &[1], &[], 1, 1),
            1,
            &[],
            result(0, &[], &[], &[1], (1, 1)),
        ),
        (
            "an eligible one while there is no leader",
            with_last_known(1, state(&[1, 2], &[], &[1, 2], 0, 2)),
            1,
            &[],
            result(0, &[], &[2], &[1], (0, 1)),
        ),
    ];
    for (what, old, restarted, live, expected) in rows {
        let acceptable = |b: BrokerId| live.contains(&b.0);
        let change = Change::new(&old, old.min_isr, &acceptable)
            .without(BrokerId(restarted))
            .unclean_restart(BrokerId(restarted));
        assert_eq!(summary(&old, change.build()), expected, "{what}");
    }
}

#[test]
fn elections_without_any_other_change_c_31_to_c_35() {
    use Kind::{Online, Preferred, Unclean};
    let leaderless = |isr: &[i32], elr: &[i32]| state(&[1, 2, 3], isr, elr, 0, 2);
    let rows = [
        (
            "a valid leader stays",
            Online,
            state(&[1, 2, 3], &[2, 3], &[], 2, 2),
            &[1, 2, 3][..],
            None,
        ),
        (
            "and is not displaced by unclean elections",
            Unclean,
            state(&[1, 2, 3], &[2, 3], &[], 2, 2),
            &[1, 2, 3],
            None,
        ),
        (
            "an eligible replica returned (C-33)",
            Online,
            leaderless(&[], &[2, 3]),
            &[3],
            result(3, &[3], &[2], &[], (1, 1)),
        ),
        (
            "an eligible replica comes before an unclean one",
            Unclean,
            leaderless(&[], &[3]),
            &[1, 3],
            result(3, &[3], &[], &[], (1, 1)),
        ),
        (
            "nobody eligible is live",
            Online,
            leaderless(&[], &[2]),
            &[1, 3],
            None,
        ),
        (
            "nobody eligible is live, unclean allowed (C-35)",
            Unclean,
            leaderless(&[], &[2]),
            &[3, 1],
            unclean(1, (1, 1)),
        ),
        (
            "nobody at all is live",
            Unclean,
            leaderless(&[], &[2]),
            &[],
            None,
        ),
        (
            "the last leader is back (C-34)",
            Online,
            with_last_known(2, leaderless(&[], &[])),
            &[1, 2],
            unclean(2, (1, 1)),
        ),
        (
            "the last leader is dead (H-14)",
            Online,
            with_last_known(2, leaderless(&[], &[])),
            &[1, 3],
            None,
        ),
        (
            "not while somebody is eligible (C-34)",
            Online,
            with_last_known(2, leaderless(&[], &[3])),
            &[1, 2],
            None,
        ),
        (
            "preferred (C-32)",
            Preferred,
            state(&[1, 2, 3], &[1, 2], &[], 2, 2),
            &[1, 2],
            result(1, &[1, 2], &[], &[], (1, 1)),
        ),
        (
            "preferred, but not in sync",
            Preferred,
            state(&[1, 2, 3], &[2, 3], &[], 2, 2),
            &[1, 2, 3],
            None,
        ),
        (
            "preferred, but not live",
            Preferred,
            state(&[1, 2, 3], &[1, 2], &[], 2, 2),
            &[2],
            None,
        ),
        (
            "preferred, for want of the current leader too",
            Preferred,
            state(&[1, 2, 3], &[2, 3], &[], 2, 2),
            &[3],
            result(3, &[2, 3], &[], &[], (1, 1)),
        ),
    ];
    for (what, kind, old, live, expected) in rows {
        let acceptable = |b: BrokerId| live.contains(&b.0);
        let change = Change::new(&old, old.min_isr, &acceptable).kind(kind);
        assert_eq!(summary(&old, change.build()), expected, "{what}");
    }
}

#[test]
fn a_changed_minimum_isr_is_shipped_and_clears_who_need_not_be_eligible_c_36_h_46() {
    let rows = [
        (
            "lowered to what is in sync",
            state(&[1, 2, 3], &[1], &[2], 1, 2),
            1,
            result(1, &[1], &[], &[], (0, 1)),
        ),
        (
            "lowered, still below",
            state(&[1, 2, 3], &[1], &[2, 3], 1, 3),
            2,
            result(1, &[1], &[2, 3], &[], (0, 1)),
        ),
        (
            "raised",
            state(&[1, 2, 3], &[1], &[], 1, 1),
            2,
            result(1, &[1], &[], &[], (0, 1)),
        ),
        ("unchanged", state(&[1, 2, 3], &[1, 2], &[], 1, 2), 2, None),
        // Whoever leads now may commit alone, so nobody else stays eligible.
        (
            "lowered while nobody was in sync",
            state(&[1, 2], &[], &[1, 2], 0, 2),
            1,
            result(1, &[1], &[], &[], (1, 1)),
        ),
    ];
    for (what, old, min_isr, expected) in rows {
        let changed = Change::new(&old, min_isr, &|_| true).build();
        if let Some(changed) = &changed {
            assert_eq!(changed.assignment.min_isr, min_isr, "{what}");
        }
        assert_eq!(summary(&old, changed), expected, "{what}");
    }
}

#[test]
fn a_reassignment_completes_only_when_every_staying_replica_is_in_sync_c_42_h_42() {
    let moving = |isr: &[i32], leader| Assignment {
        adding: ids(&[3, 4]),
        removing: ids(&[1, 2]),
        ..state(&[3, 4, 1, 2], isr, &[], leader, 2)
    };
    let partly = moving(&[1, 2], 1);
    let changed = Change::new(&partly, 2, &|_| true)
        .isr(&ids(&[1, 2, 3]))
        .build();
    let changed = changed.expect("the ISR grew").assignment;
    assert_eq!(
        (changed.isr, changed.adding),
        (ids(&[3, 1, 2]), ids(&[3, 4]))
    );
    let whole = moving(&[3, 1, 2], 1);
    let changed = Change::new(&whole, 2, &|_| true)
        .isr(&ids(&[1, 2, 3, 4]))
        .build();
    let changed = changed.expect("completed").assignment;
    assert_eq!(
        (changed.replicas, changed.isr),
        (ids(&[3, 4]), ids(&[3, 4]))
    );
    assert!(changed.adding.is_empty() && changed.removing.is_empty());
    assert_eq!(
        (changed.leader, changed.leader_epoch),
        (Some(BrokerId(3)), LeaderEpoch(6))
    );
    // The leader stays, yet a replica left: the leader is written, so its epoch grows (step 4).
    let staying = Assignment {
        adding: ids(&[3]),
        removing: ids(&[2]),
        ..state(&[1, 3, 2], &[1, 2], &[], 1, 2)
    };
    let changed = Change::new(&staying, 2, &|_| true)
        .isr(&ids(&[1, 2, 3]))
        .build();
    let changed = changed.expect("completed").assignment;
    assert_eq!(
        (changed.leader, changed.leader_epoch),
        (Some(BrokerId(1)), LeaderEpoch(6))
    );
}

#[test]
fn a_recovering_leader_that_settled_costs_no_leader_epoch_c_37() {
    let old = Assignment {
        recovery: Recovery::Recovering,
        ..state(&[1, 2], &[1], &[], 1, 1)
    };
    let changed = Change::new(&old, 1, &|_| true)
        .recovery(Recovery::Recovered)
        .build();
    let now = changed.expect("a change").assignment;
    assert_eq!(now.recovery, Recovery::Recovered);
    assert_eq!(
        (now.leader_epoch, now.partition_epoch),
        (LeaderEpoch(5), PartitionEpoch(10))
    );
}
