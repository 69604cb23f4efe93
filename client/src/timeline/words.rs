//! How times, lists and single events are put into words.

use epoka_proto::v1::broker_change::Kind as BrokerKind;
use epoka_proto::v1::process_change::Kind as ProcessKind;
use epoka_proto::v1::{BrokerChange, ControllerSilence, ProcessChange, Truncated};

/// A span in the unit a person would choose: `61 ms`, `2.1 s`, `3 min 5 s`.
pub fn span(micros: i64) -> String {
    let ms = (micros + 500).div_euclid(1000);
    match ms.abs() {
        0..1_000 => format!("{ms} ms"),
        1_000..59_950 => {
            let tenths = (ms.abs() + 50) / 100;
            let sign = if ms < 0 { "-" } else { "" };
            format!("{sign}{}.{} s", tenths / 10, tenths % 10)
        }
        _ => {
            let seconds = (ms.abs() + 500) / 1000;
            let sign = if ms < 0 { "-" } else { "" };
            format!("{sign}{} min {} s", seconds / 60, seconds % 60)
        }
    }
}

/// `broker-2` as a person says it: `broker 2`.
pub fn node(name: &str) -> String {
    match name.rsplit_once('-') {
        Some((kind, id)) if id.bytes().all(|b| b.is_ascii_digit()) => format!("{kind} {id}"),
        _ => name.to_owned(),
    }
}

/// `1,3`; `none`.
pub fn ids(list: &[i32]) -> String {
    let mut list = list.to_vec();
    list.sort_unstable();
    if list.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<_> = list.iter().map(i32::to_string).collect();
    words.join(",")
}

pub fn leader(id: Option<i32>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

pub fn process(change: &ProcessChange) -> String {
    let who = node(&change.process);
    let what = match change.kind() {
        ProcessKind::Started => "started",
        ProcessKind::Killed => "killed",
        ProcessKind::Stopped => "stopped",
        ProcessKind::Paused => "paused",
        ProcessKind::Resumed => "resumed",
        ProcessKind::Exited => "ended by itself",
    };
    if change.detail.is_empty() {
        format!("{who} {what}")
    } else {
        format!("{who} {what}: {}", change.detail)
    }
}

/// A change of a broker's standing, as far as it needs nothing but the change itself.
pub fn standing(change: &BrokerChange) -> String {
    let broker = change.broker_id;
    match change.kind() {
        BrokerKind::Registered => format!("broker {broker} registered"),
        BrokerKind::Unfenced => format!("broker {broker} joined"),
        BrokerKind::Fenced => format!("broker {broker} fenced"),
        BrokerKind::StreamClosed => {
            format!("broker {broker} died or was killed: heartbeat stream closed")
        }
        BrokerKind::SessionExpired => {
            let silent = i64::try_from(change.silent_ms).unwrap_or(i64::MAX);
            let silent = span(silent.saturating_mul(1000));
            format!("broker {broker} silent for {silent}: session expired")
        }
        BrokerKind::ShuttingDown => format!("broker {broker} is shutting down"),
        BrokerKind::ControllerActive => format!("controller {broker} active"),
    }
}

pub fn controller_silence(who: &str, silence: &ControllerSilence) -> String {
    if silence.over {
        return format!("{who} hears a controller again");
    }
    let silent = i64::try_from(silence.silent_ms).unwrap_or(i64::MAX);
    let silent = span(silent.saturating_mul(1000));
    format!("{who} has heard no controller for {silent}")
}

pub fn truncated(who: &str, cut: &Truncated) -> String {
    let batches = match cut.batches {
        1 => "1 batch".to_owned(),
        n => format!("{n} batches"),
    };
    let epochs = match cut.epochs.as_slice() {
        [] => String::new(),
        [one] => format!(" of epoch {one}"),
        many => format!(" of epochs {}", ids(many)),
    };
    let meaning = if cut.to_offset >= cut.high_watermark {
        "none acked by all".to_owned()
    } else {
        format!("below its high watermark {}", cut.high_watermark)
    };
    let kept = match cut.archived.as_str() {
        "" => String::new(),
        path => format!(", kept in {path}"),
    };
    format!(
        "{who} truncated {}-{} from {} to {} ({batches}{epochs}, {meaning}){kept}",
        cut.topic, cut.partition, cut.from_offset, cut.to_offset
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_use_the_unit_a_person_would() {
        for (micros, text) in [
            (0, "0 ms"),
            (61_400, "61 ms"),
            (999_400, "999 ms"),
            (2_050_000, "2.1 s"),
            (59_970_000, "1 min 0 s"),
            (185_000_000, "3 min 5 s"),
            (-3_000, "-3 ms"),
        ] {
            assert_eq!(span(micros), text);
        }
    }

    #[test]
    fn a_truncation_says_from_where_to_where_what_and_where_it_is_kept() {
        let cut = Truncated {
            topic: "orders".into(),
            partition: 0,
            from_offset: 1042,
            to_offset: 1040,
            batches: 2,
            epochs: vec![4],
            archived: String::new(),
            high_watermark: 1040,
        };
        assert_eq!(
            truncated("broker 2", &cut),
            "broker 2 truncated orders-0 from 1042 to 1040 (2 batches of epoch 4, none acked by all)"
        );
        let worse = Truncated {
            batches: 1,
            epochs: vec![4, 3],
            archived: "data/truncated/orders-0-1040".into(),
            high_watermark: 1041,
            ..cut
        };
        assert_eq!(
            truncated("broker 2", &worse),
            "broker 2 truncated orders-0 from 1042 to 1040 (1 batch of epochs 3,4, below its high watermark 1041), \
             kept in data/truncated/orders-0-1040"
        );
    }
}
