//! A history made by hand for every anomaly: the audit names it, and names nothing in a history without one.

use super::*;

fn id(number: u64) -> WriteId {
    WriteId { writer: 1, number }
}

fn acked(number: u64, offset: i64) -> Write {
    Write {
        id: id(number),
        partition: 0,
        outcome: Outcome::Acked(Some(offset)),
    }
}

fn unknown(number: u64) -> Write {
    Write {
        id: id(number),
        partition: 0,
        outcome: Outcome::Unknown("timed out".into()),
    }
}

fn log(numbers: &[u64]) -> Vec<Seen> {
    let seen = |(offset, number): (i64, &u64)| Seen {
        partition: 0,
        offset,
        id: Some(id(*number)),
    };
    (0..).zip(numbers).map(seen).collect()
}

fn names(history: &History) -> Vec<&'static str> {
    history
        .audit()
        .anomalies
        .iter()
        .map(Anomaly::name)
        .collect()
}

#[test]
fn a_value_reads_back_whatever_its_padding() {
    for bytes in [0, 100] {
        assert_eq!(
            WriteId::from_value(id(77).to_value(bytes).as_bytes()),
            Some(id(77))
        );
    }
    assert_eq!(id(1).to_value(100).len(), 100);
    assert_eq!(WriteId::from_value(b"hello"), None);
}

#[test]
fn a_history_without_faults_is_clean() {
    let history = History {
        writes: vec![acked(0, 0), unknown(1), acked(2, 1), unknown(3)],
        readers: vec![log(&[0]), log(&[0, 2, 3])],
        finally: log(&[0, 2, 3]),
        ..History::default()
    };
    history.audit().assert_clean();
    assert_eq!(
        history.audit().to_string(),
        "acked 2 of 4 sent, 0 refused, found 3; no anomaly"
    );
}

/// Three acknowledged records, and what was read of them.
fn three(readers: Vec<Vec<Seen>>, finally: Vec<Seen>) -> History {
    History {
        writes: vec![acked(0, 0), acked(1, 1), acked(2, 2)],
        readers,
        finally,
        ..History::default()
    }
}

/// Without the record at one offset.
fn without(offset: i64, mut log: Vec<Seen>) -> Vec<Seen> {
    log.retain(|s| s.offset != offset);
    log
}

#[test]
fn an_acknowledged_record_that_is_gone_is_lost_or_unseen() {
    assert_eq!(names(&three(vec![], log(&[0, 1]))), ["unseen"]);
    let hole = without(1, log(&[0, 1, 2]));
    assert_eq!(names(&three(vec![], hole)), ["lost-write", "poll-skip"]);
}

#[test]
fn a_record_that_is_there_twice_is_a_duplicate() {
    assert_eq!(names(&three(vec![], log(&[0, 1, 2, 1]))), ["duplicate"]);
}

#[test]
fn records_in_the_wrong_order_are_found() {
    assert_eq!(
        names(&three(vec![], log(&[0, 2, 1]))),
        [
            "lost-write",
            "lost-write",
            "nonmonotonic-send",
            "inconsistent-offsets",
            "inconsistent-offsets"
        ]
    );
}

#[test]
fn an_offset_that_holds_different_records_is_inconsistent() {
    // One reader and the final log.
    let read = three(vec![log(&[0, 2])], log(&[0, 1, 2]));
    assert_eq!(names(&read), ["inconsistent-offsets"]);
    // Two readers of records that were acknowledged to nobody; the final log has the one's.
    let read = History {
        writes: vec![acked(0, 0), unknown(1), unknown(2)],
        readers: vec![log(&[0, 1]), log(&[0, 2])],
        finally: log(&[0, 1]),
        ..History::default()
    };
    assert_eq!(names(&read), ["inconsistent-offsets"]);
}

#[test]
fn an_offset_that_was_read_and_is_beyond_the_final_end_is_inconsistent() {
    let read = History {
        writes: vec![acked(0, 0), unknown(1)],
        readers: vec![log(&[0, 1])],
        finally: log(&[0]),
        ..History::default()
    };
    assert_eq!(names(&read), ["inconsistent-offsets"]);
}

#[test]
fn a_reader_that_goes_back_or_leaves_out_is_found() {
    let mut again = log(&[0, 1]);
    again.extend(log(&[0, 1, 2]));
    assert_eq!(
        names(&three(vec![again], log(&[0, 1, 2]))),
        ["nonmonotonic-poll"]
    );
    let skipped = without(1, log(&[0, 1, 2]));
    assert_eq!(names(&three(vec![skipped], log(&[0, 1, 2]))), ["poll-skip"]);
    let late = without(0, log(&[0, 1, 2]));
    assert_eq!(names(&three(vec![late], log(&[0, 1, 2]))), ["poll-skip"]);
}

#[test]
fn a_record_that_nobody_sent_or_that_was_sent_elsewhere_is_unwritten() {
    assert_eq!(names(&three(vec![], log(&[0, 1, 2, 9]))), ["unwritten"]);
    let foreign = Seen {
        id: None,
        ..log(&[0, 1, 2])[2]
    };
    let mut reader = log(&[0, 1]);
    reader.push(foreign);
    assert_eq!(
        names(&three(vec![reader], log(&[0, 1, 2]))),
        ["inconsistent-offsets", "unwritten"]
    );
    let elsewhere = Write {
        partition: 1,
        ..unknown(1)
    };
    let history = History {
        writes: vec![acked(0, 0), elsewhere],
        readers: vec![],
        finally: log(&[0, 1]),
        ..History::default()
    };
    assert_eq!(names(&history), ["unwritten"]);
}

#[test]
fn a_refused_record_that_is_read_is_g1a() {
    let refused = Write {
        outcome: Outcome::Refused("never sent".into()),
        ..unknown(1)
    };
    let with = |readers, finally| History {
        writes: vec![acked(0, 0), refused.clone()],
        readers,
        finally,
        ..History::default()
    };
    let clean = with(vec![log(&[0])], log(&[0]));
    assert_eq!(names(&clean), [""; 0]);
    assert_eq!(clean.audit().refused, 1);
    assert_eq!(names(&with(vec![], log(&[0, 1]))), ["G1a"]);
    assert_eq!(
        names(&with(vec![log(&[0, 1])], log(&[0]))),
        ["inconsistent-offsets", "G1a"]
    );
}

/// What acks=1 allows, and what it does not.
#[test]
fn the_leaders_word_may_be_lost_with_it_but_never_doubled() {
    let names = |history: History| -> Vec<_> {
        let anomalies = history.audit_leader_only().anomalies;
        anomalies.iter().map(Anomaly::name).collect()
    };
    // Offset 1 was another record's, and the end was elsewhere, before the leader of that time was replaced.
    assert_eq!(names(three(vec![], log(&[0, 2]))), [""; 0]);
    assert_eq!(names(three(vec![], log(&[0, 2, 1]))), [""; 0]);
    assert_eq!(names(three(vec![], log(&[0, 1, 1]))), ["duplicate"]);
    assert_eq!(
        names(three(vec![log(&[0, 1])], log(&[0, 2]))),
        ["inconsistent-offsets"]
    );
    assert_eq!(
        names(three(vec![without(1, log(&[0, 1, 2]))], log(&[0, 1, 2]))),
        ["poll-skip"]
    );
    // What the writer gave up may still arrive, late, from a buffer on the way.
    let late = History {
        writes: vec![acked(0, 0), unknown(1), acked(2, 1)],
        readers: vec![],
        finally: log(&[0, 2, 1]),
        ..History::default()
    };
    assert_eq!(names(late), [""; 0]);
}

#[test]
fn a_client_that_cannot_go_on_is_an_anomaly() {
    let failed = History {
        failures: vec!["a reader: offset out of range".into()],
        ..three(vec![], log(&[0, 1, 2]))
    };
    assert_eq!(names(&failed), ["client-error"]);
}

#[test]
fn a_write_acknowledged_without_an_offset_must_be_somewhere() {
    let somewhere = Write {
        outcome: Outcome::Acked(None),
        ..unknown(1)
    };
    let with = |finally| History {
        writes: vec![acked(0, 0), somewhere.clone()],
        readers: vec![],
        finally,
        ..History::default()
    };
    assert_eq!(names(&with(log(&[0, 1]))), [""; 0]);
    assert_eq!(names(&with(log(&[0]))), ["lost-write"]);
}

#[test]
#[should_panic(expected = "nothing was acknowledged")]
fn an_audit_of_nothing_is_not_clean() {
    History::default().audit().assert_clean();
}
