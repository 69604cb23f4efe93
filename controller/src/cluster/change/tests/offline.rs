use super::*;

#[test]
fn no_election_chooses_an_offline_replica_c_15() {
    use Kind::{Online, Preferred, Unclean};
    let offline = |numbers: &[i32], assignment| Assignment {
        offline: ids(numbers),
        ..assignment
    };
    let leaderless = |elr: &[i32]| state(&[1, 2, 3], &[], elr, 0, 2);
    let rows = [
        (
            "not the last leader (C-34)",
            Online,
            offline(&[2], with_last_known(2, leaderless(&[]))),
            None,
        ),
        (
            "rather any other, where that is allowed (C-35)",
            Unclean,
            offline(&[2], with_last_known(2, leaderless(&[]))),
            unclean(1, (1, 1)),
        ),
        (
            "nor an eligible one (C-33)",
            Online,
            offline(&[1], leaderless(&[1, 3])),
            result(3, &[3], &[1], &[], (1, 1)),
        ),
        (
            "nor the only eligible one",
            Online,
            offline(&[1], leaderless(&[1])),
            None,
        ),
        (
            "nor the first in replica order (C-35)",
            Unclean,
            offline(&[1, 2], leaderless(&[])),
            unclean(3, (1, 1)),
        ),
        (
            "nor one for want of another",
            Unclean,
            offline(&[1, 2, 3], leaderless(&[])),
            None,
        ),
        (
            "nor the preferred one (C-32)",
            Preferred,
            offline(&[1], state(&[1, 2, 3], &[2, 3], &[], 2, 2)),
            None,
        ),
    ];
    for (what, kind, old, expected) in rows {
        let change = Change::new(&old, old.min_isr, &|_| true).kind(kind);
        assert_eq!(summary(&old, change.build()), expected, "{what}");
    }
}

#[test]
fn a_replica_is_offline_until_it_is_in_the_isr_or_its_broker_begins_a_new_life() {
    let old = state(&[3, 1, 2], &[3, 1, 2], &[], 1, 1);
    let failed = Change::new(&old, 1, &|_| true).offline(BrokerId(2)).build();
    let failed = failed.expect("a change").assignment;
    assert_eq!((&failed.isr, &failed.offline), (&ids(&[3, 1]), &ids(&[2])));
    let both = Change::new(&failed, 1, &|_| true).offline(BrokerId(3));
    let both = both.build().expect("a change").assignment;
    assert_eq!((&both.isr, &both.offline), (&ids(&[1]), &ids(&[3, 2])));
    let again = Change::new(&both, 1, &|_| true).offline(BrokerId(3));
    assert_eq!(again.build(), None, "it is known");

    let joined = Change::new(&both, 1, &|_| true).isr(&ids(&[1, 2])).build();
    let joined = joined.expect("a change").assignment;
    assert_eq!((joined.isr, joined.offline), (ids(&[1, 2]), ids(&[3])));
    let reborn = Change::new(&both, 1, &|_| true).online(BrokerId(3)).build();
    let reborn = reborn.expect("a change").assignment;
    assert_eq!((reborn.isr, reborn.offline), (ids(&[1]), ids(&[2])));
}
