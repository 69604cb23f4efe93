//! How scripts word what happens: one short line for each effect, answer and state.

use std::fmt::Display;

use epoka_broker::replica::{
    Effect, FetchAnswer, IsrView, Notice, ReadAnswer, ReadRequest, Reader, Replica,
};
use epoka_proto::epochs::EpochHistory;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;

use crate::model::{Batch, ModelLog};

pub(super) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    if items.is_empty() {
        "-".into()
    } else {
        items.join(",")
    }
}

fn or_none<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".into(), |v| v.to_string())
}

pub(super) fn history(epochs: &EpochHistory) -> String {
    list(
        epochs
            .entries()
            .iter()
            .map(|e| format!("{}@{}", e.epoch, e.start)),
    )
}

/// Bounds and history.
pub(super) fn log(log: &ModelLog) -> String {
    format!(
        "log {}..{} [{}]",
        log.start(),
        log.end(),
        history(log.epochs())
    )
}

/// Every batch with its epoch and content.
pub(super) fn batches(batches: &[Batch]) -> String {
    let batch = |b: &Batch| {
        let span = if b.end.0 == b.base.0 + 1 {
            format!("{}", b.base)
        } else {
            format!("{}..{}", b.base, b.end)
        };
        format!("{span}={}/e{}", content(b.payload), b.epoch)
    };
    if batches.is_empty() {
        "empty".into()
    } else {
        batches.iter().map(batch).collect::<Vec<_>>().join(" ")
    }
}

/// A batch's content: `p3` came from the third produce, `x7` stood in a log when the story began.
pub(super) fn content(payload: u64) -> String {
    match payload.checked_sub(super::cluster::FIRST_OLD) {
        Some(old) => format!("x{old}"),
        None => format!("p{payload}"),
    }
}

pub(super) fn request(r: &ReadRequest) -> String {
    let (offset, last, epoch) = (
        r.offset,
        or_none(r.last_fetched_epoch),
        or_none(r.current_leader_epoch),
    );
    match r.reader {
        Reader::Follower { .. } => format!("fetch {offset} last={last} epoch={epoch}"),
        Reader::Consumer => format!("read {offset} last={last} epoch={epoch}"),
    }
}

pub(super) fn fetch_answer(answer: &FetchAnswer, sent: &[Batch]) -> String {
    match answer {
        FetchAnswer::Data {
            high_watermark,
            log_start,
            ..
        } => {
            let start = if log_start.0 == 0 {
                String::new()
            } else {
                format!(" start={log_start}")
            };
            format!("{} hw={high_watermark}{start}", batches(sent))
        }
        FetchAnswer::Diverging(end) => {
            format!("diverging, epoch {} ends at {}", end.epoch, end.end)
        }
        FetchAnswer::Refused(error) => error.to_string(),
        FetchAnswer::Unreachable => "unreachable".into(),
    }
}

pub(super) fn read_answer(answer: &Result<ReadAnswer, ErrorCode>, sent: &[Batch]) -> String {
    match answer {
        Ok(ReadAnswer::Grant(grant)) => format!("{} hw={}", batches(sent), grant.high_watermark),
        Ok(ReadAnswer::Diverging(end)) => {
            format!("diverging, epoch {} ends at {}", end.epoch, end.end)
        }
        Err(error) => error.to_string(),
    }
}

/// An effect other than answers and disk effects' outcomes; `None` for what a story need not tell.
pub(super) fn effect(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Append {
            base_offset,
            leader_epoch,
            ..
        } => format!("append at {base_offset} in e{leader_epoch}"),
        Effect::AppendFetched { .. } => "append fetched".into(),
        Effect::StartEpoch { epoch, start } => format!("start epoch {epoch} at {start}"),
        Effect::Truncate { to } => format!("truncate to {to}"),
        Effect::StartOver { at } => format!("start over at {at}"),
        Effect::RaiseLogStart { to } => format!("raise log start to {to}"),
        Effect::Publish { high_watermark } => format!("hw {high_watermark}"),
        Effect::WakeReaders(_) | Effect::Reply { .. } => return None,
        Effect::AskIsr {
            leader_epoch,
            partition_epoch,
            isr,
            ..
        } => {
            let members = list(
                isr.iter()
                    .map(|&(b, life)| format!("{b}({})", or_none(life))),
            );
            format!("ask isr {members} in e{leader_epoch} over partition epoch {partition_epoch}")
        }
        Effect::Follow { leader } => format!("follow {leader}"),
        Effect::Unfollow => "unfollow".into(),
        Effect::AskBounds {
            leader,
            leader_epoch,
        } => format!("ask bounds of {leader} in e{leader_epoch}"),
        Effect::Notice(notice) => match notice {
            Notice::Diverged {
                from,
                to,
                high_watermark,
            } => {
                let alarm = if to < high_watermark {
                    ", BELOW THE HIGH WATERMARK"
                } else {
                    ""
                };
                format!("diverged: cuts {to}..{from} (hw {high_watermark}){alarm}")
            }
            Notice::FirstWrite {
                leader_epoch,
                offset,
            } => format!("first write of e{leader_epoch} at {offset}"),
            Notice::WatermarkBack {
                leader_epoch,
                high_watermark,
                ..
            } => {
                format!("watermark of e{leader_epoch} back at {high_watermark}")
            }
            Notice::Failed { reason } => format!("failed: {reason}"),
        },
    })
}

fn isr(view: &IsrView) -> String {
    let mut text = format!("isr {}", list(&view.committed));
    if let Some(proposed) = &view.proposed {
        text += &format!(
            ", asked for {}, maximal {}",
            list(proposed),
            list(&view.maximal)
        );
    }
    text
}

/// A line on a replica.
pub(super) fn replica(
    id: BrokerId,
    replica: &Replica,
    follows: Option<BrokerId>,
    model: &ModelLog,
) -> String {
    let epoch = or_none(replica.leader_epoch());
    let role = match (replica.leading(), follows) {
        _ if replica.has_failed() => "failed".into(),
        (Some(epoch), _) => format!("leads e{epoch}"),
        (None, Some(leader)) => format!("follows {leader} in e{epoch}"),
        (None, None) => format!("idle in e{epoch}"),
    };
    let mut text = format!(
        "{id} {role}, {}, hw {}",
        log(model),
        replica.high_watermark()
    );
    if let Some(view) = replica.isr() {
        text += &format!(", {}", isr(&view));
        let mut known: Vec<_> = replica.followers().collect();
        known.sort();
        text += &format!(
            ", knows {}",
            list(
                known
                    .iter()
                    .map(|&(b, end, _)| format!("{b}:{}", or_none(end)))
            )
        );
    }
    text
}
