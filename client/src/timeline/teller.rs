//! Turns events into lines: times relative to the last thing that went wrong, changes that belong together in one line,
//! and how long each partition took no writes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use epoka_proto::ids::TopicPartition;
use epoka_proto::v1::broker_change::Kind as BrokerKind;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::process_change::Kind as ProcessKind;
use epoka_proto::v1::{BrokerChange, ControllerSilence, Elected, Event, IsrChanged, ProcessChange};
use serde::Serialize;

use super::words;

/// Events of one node this close to each other are one decision.
const SAME_MOMENT_MICROS: i64 = 2_000;
/// A first write this long after the new leader was ready says how long nobody wrote, not how long nobody could.
const NOBODY_WROTE_MICROS: i64 = 2_000_000;
/// After this long without a new incident, times start over.
const LONG_AGO_MICROS: i64 = 600_000_000;

/// One line of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The node's clock: milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// Milliseconds since the last incident.
    pub relative_ms: i64,
    /// Who says so.
    pub node: String,
    /// What happened.
    pub text: String,
    /// How long a partition took no writes, when this is its first one again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_ms: Option<i64>,
    #[serde(skip)]
    relative_micros: i64,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.relative_micros < 0 { "" } else { "+" };
        let time = words::span(self.relative_micros);
        write!(f, "{sign}{time} {}", self.text)
    }
}

/// Tells the events of a cluster, or those that concern one partition.
#[derive(Default)]
pub struct Teller {
    only: Option<TopicPartition>,
    /// When times are counted from: the last incident.
    origin: Option<i64>,
    /// What is wrong with which broker, and since when.
    incidents: BTreeMap<i32, Incident>,
    /// Brokers that were fenced and have not come back.
    fenced: BTreeSet<i32>,
    /// Brokers that hear no controller.
    without_controller: BTreeSet<String>,
    /// Partitions whose leader went away.
    outages: BTreeMap<TopicPartition, Outage>,
}

/// When something went wrong with a broker.
#[derive(Clone, Copy)]
struct Incident {
    at: i64,
    /// That is when it was last heard: it went wrong at some time after.
    at_earliest: bool,
}

/// A partition without a leader that takes writes.
struct Outage {
    since: Incident,
    /// When the next leader knew what is committed: from then on only writers were missing.
    ready: Option<i64>,
}

impl Teller {
    /// Tells everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells what happens to processes, to brokers, and to this partition.
    pub fn only(partition: Option<TopicPartition>) -> Self {
        Self {
            only: partition,
            ..Self::default()
        }
    }

    /// Times count from here, until something goes wrong.
    pub fn begin(&mut self, unix_micros: i64) {
        self.origin = Some(unix_micros);
    }

    /// The lines for these events, which come in order of time, after all that were told before.
    pub fn tell(&mut self, events: &[Event]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut rest = events;
        while let Some(first) = rest.first() {
            let together = rest
                .iter()
                .take_while(|e| belongs_with(first, e))
                .count()
                .max(1);
            let (group, later) = rest.split_at(together);
            rest = later;
            self.tell_group(group, &mut lines);
        }
        lines
    }

    fn tell_group(&mut self, group: &[Event], lines: &mut Vec<Line>) {
        let mut standings = Vec::new();
        let mut elections: Vec<&Elected> = Vec::new();
        let mut isrs: BTreeMap<(Vec<i32>, Vec<i32>), Vec<TopicPartition>> = BTreeMap::new();
        for event in group {
            match &event.kind {
                // A group is told at its first moment.
                Some(Kind::Broker(change)) => {
                    standings.push(self.standing(group[0].unix_micros, change));
                }
                Some(Kind::Elected(elected)) => {
                    self.note_outage(elected);
                    if self.concerns(&elected.topic, elected.partition) {
                        elections.push(elected);
                    }
                }
                Some(Kind::Isr(change)) if self.concerns(&change.topic, change.partition) => {
                    let name = TopicPartition::new(change.topic.as_str(), change.partition);
                    isrs.entry(members(change)).or_default().push(name);
                }
                Some(other) => {
                    if let Some((text, unavailable)) = self.single(event, other) {
                        lines.push(self.line(event, text, unavailable));
                    }
                }
                None => {}
            }
        }
        let Some(first) = group.first() else { return };
        let mut decision = standings;
        decision.extend(elections.iter().map(|e| election(e)));
        if !decision.is_empty() {
            lines.push(self.line(first, decision.join(", "), None));
        }
        for ((old, new), partitions) in isrs {
            lines.push(self.line(first, isr(&old, &new, &partitions), None));
        }
    }

    /// Events that are told alone: the words, and for a first write how long there was none.
    fn single(&mut self, event: &Event, kind: &Kind) -> Option<(String, Option<i64>)> {
        let who = words::node(&event.node);
        let name = |topic: &str, partition| TopicPartition::new(topic, partition);
        let told = match kind {
            Kind::Process(change) => {
                self.note_process(event, change);
                return Some((words::process(change), None));
            }
            Kind::ControllerSilence(silence) => {
                self.note_controller(event, silence);
                return Some((words::controller_silence(&who, silence), None));
            }
            Kind::Note(note) => return Some((format!("{who}: {}", note.text), None)),
            Kind::Truncated(cut) => (&cut.topic, cut.partition, words::truncated(&who, cut)),
            Kind::FirstWrite(write) => {
                let partition = name(&write.topic, write.partition);
                let outage = self.outages.remove(&partition);
                let at_most = match &outage {
                    Some(outage) if outage.since.at_earliest => "at most ",
                    _ => "",
                };
                let idle_since = outage.as_ref().and_then(|o| o.ready);
                let idle_since =
                    idle_since.filter(|ready| event.unix_micros - ready > NOBODY_WROTE_MICROS);
                let unavailable =
                    outage.map(|o| idle_since.unwrap_or(event.unix_micros) - o.since.at);
                let to = match &self.only {
                    Some(_) => String::new(),
                    None => format!(" to {partition}"),
                };
                let text = match unavailable {
                    Some(micros) if idle_since.is_some() => format!(
                        "first write tried and accepted{to}: was unavailable {at_most}{}",
                        words::span(micros)
                    ),
                    Some(micros) => format!(
                        "first accepted write{to}: unavailable {at_most}{}",
                        words::span(micros)
                    ),
                    None => format!("first accepted write{to} in epoch {}", write.leader_epoch),
                };
                let told = self.concerns(&write.topic, write.partition);
                return told.then_some((text, unavailable));
            }
            Kind::WatermarkBack(back) => {
                let partition = name(&back.topic, back.partition);
                if let Some(outage) = self.outages.get_mut(&partition) {
                    outage.ready = Some(event.unix_micros);
                }
                // In its first epoch, or while it is empty, a partition has no watermark to come back to.
                if back.leader_epoch == 0 || back.high_watermark == 0 {
                    return None;
                }
                let text = format!(
                    "high watermark of {partition} back at {} in epoch {}",
                    back.high_watermark, back.leader_epoch
                );
                (&back.topic, back.partition, text)
            }
            Kind::ReplicaOffline(offline) => {
                let partition = name(&offline.topic, offline.partition);
                let text = format!("{who} took {partition} offline: {}", offline.reason);
                (&offline.topic, offline.partition, text)
            }
            Kind::Repaired(repaired) => {
                let partition = name(&repaired.topic, repaired.partition);
                let text = format!("{who} repaired {partition}: {}", repaired.what);
                (&repaired.topic, repaired.partition, text)
            }
            Kind::Broker(_) | Kind::Elected(_) | Kind::Isr(_) => return None,
        };
        let (topic, partition, text) = told;
        self.concerns(topic, partition).then_some((text, None))
    }

    fn standing(&mut self, at: i64, change: &BrokerChange) -> String {
        let broker = change.broker_id;
        let kind = change.kind();
        match kind {
            BrokerKind::StreamClosed => {
                let expected = self.incidents.contains_key(&broker);
                self.incident(broker, at);
                if expected {
                    return "heartbeat stream closed".to_owned();
                }
            }
            BrokerKind::SessionExpired => {
                // It has been of no use since it was last heard.
                self.incident_since(
                    broker,
                    Incident {
                        at: at.saturating_sub(micros(change.silent_ms)),
                        at_earliest: true,
                    },
                );
            }
            BrokerKind::ShuttingDown => self.incident(broker, at),
            BrokerKind::Fenced => {
                self.fenced.insert(broker);
                self.incident(broker, at);
            }
            BrokerKind::Unfenced => {
                let known = self.incidents.remove(&broker).is_some();
                if self.fenced.remove(&broker) || known {
                    return format!("broker {broker} back");
                }
            }
            BrokerKind::Registered | BrokerKind::ControllerActive => {}
        }
        words::standing(change)
    }

    /// A broker misses the controllers, or hears one again. All that miss them tell of the same trouble.
    fn note_controller(&mut self, event: &Event, silence: &ControllerSilence) {
        if silence.over {
            self.without_controller.remove(&event.node);
            return;
        }
        let since = event.unix_micros.saturating_sub(micros(silence.silent_ms));
        // Whoever saw it killed has said so.
        let is_news = self.origin.is_none_or(|origin| origin < since);
        if self.without_controller.is_empty() && is_news {
            self.origin = Some(since);
        }
        self.without_controller.insert(event.node.clone());
    }

    fn note_process(&mut self, event: &Event, change: &ProcessChange) {
        let id = change.process.strip_prefix("broker-");
        let broker: Option<i32> = id.and_then(|id| id.parse().ok());
        match (change.kind(), broker) {
            (ProcessKind::Started, _) => {}
            // Resumed before anybody noticed: no trouble any more, and none to count a later one from.
            (ProcessKind::Resumed, Some(broker)) => {
                if !self.fenced.contains(&broker) {
                    self.incidents.remove(&broker);
                }
            }
            (ProcessKind::Resumed, None) => {}
            (_, Some(broker)) => self.incident(broker, event.unix_micros),
            (_, None) => self.origin = Some(event.unix_micros),
        }
    }

    /// Something is wrong with a broker; what follows from the same trouble does not count anew.
    fn incident(&mut self, broker: i32, at: i64) {
        let at_earliest = false;
        self.incident_since(broker, Incident { at, at_earliest });
    }

    fn incident_since(&mut self, broker: i32, incident: Incident) {
        if let Entry::Vacant(entry) = self.incidents.entry(broker) {
            entry.insert(incident);
            self.origin = Some(incident.at);
        }
    }

    /// A partition lost its leader, or changed it because of an incident.
    fn note_outage(&mut self, elected: &Elected) {
        let since = elected.old_leader.and_then(|old| self.incidents.get(&old));
        if let Some(&since) = since
            && elected.old_leader != elected.new_leader
        {
            let name = TopicPartition::new(elected.topic.as_str(), elected.partition);
            let outage = Outage { since, ready: None };
            let ongoing = self.outages.entry(name).or_insert(outage);
            // A leader that was ready ended the outage, though nobody wrote: this is another one.
            if ongoing.ready.take().is_some() {
                ongoing.since = since;
            }
        }
    }

    fn concerns(&self, topic: &str, partition: i32) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| *only.topic == *topic && only.partition == partition)
    }

    fn line(&mut self, event: &Event, text: String, unavailable: Option<i64>) -> Line {
        let at = event.unix_micros;
        let origin = match self.origin {
            Some(origin) if at - origin < LONG_AGO_MICROS => origin,
            _ => *self.origin.insert(at),
        };
        let ms = |micros: i64| (micros + 500).div_euclid(1000);
        Line {
            unix_ms: at / 1000,
            relative_ms: ms(at - origin),
            node: event.node.clone(),
            text,
            unavailable_ms: unavailable.map(ms),
            relative_micros: at - origin,
        }
    }
}

fn micros(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1000)
}

/// Whether an event is part of the same decision: fencing, elections and ISR changes of one batch of the controller.
fn belongs_with(first: &Event, event: &Event) -> bool {
    let decision = |e: &Event| {
        matches!(
            &e.kind,
            Some(Kind::Elected(_) | Kind::Isr(_))
                | Some(Kind::Broker(BrokerChange { kind: 2, .. })) // fenced
        )
    };
    first.node == event.node
        && decision(first)
        && decision(event)
        && event.unix_micros - first.unix_micros <= SAME_MOMENT_MICROS
}

fn members(change: &IsrChanged) -> (Vec<i32>, Vec<i32>) {
    let sorted = |list: &[i32]| {
        let mut list = list.to_vec();
        list.sort_unstable();
        list
    };
    (sorted(&change.old_isr), sorted(&change.new_isr))
}

fn election(elected: &Elected) -> String {
    let leader = if elected.old_leader == elected.new_leader {
        format!("leader {} stays", words::leader(elected.new_leader))
    } else {
        let (old, new) = (
            words::leader(elected.old_leader),
            words::leader(elected.new_leader),
        );
        format!("leader {old} -> {new}")
    };
    let unclean = if elected.unclean { ", unclean" } else { "" };
    format!(
        "{}-{} {leader}, epoch {} -> {}{unclean}",
        elected.topic, elected.partition, elected.old_epoch, elected.new_epoch
    )
}

fn isr(old: &[i32], new: &[i32], partitions: &[TopicPartition]) -> String {
    let names: Vec<_> = partitions.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let change = format!("{} -> {}", words::ids(old), words::ids(new));
    let joined: Vec<_> = new.iter().filter(|id| !old.contains(id)).collect();
    let left: Vec<_> = old.iter().filter(|id| !new.contains(id)).collect();
    match (joined.as_slice(), left.as_slice()) {
        ([one], []) => format!("broker {one} rejoined ISR of {names}: {change}"),
        ([], [one]) => format!("broker {one} left ISR of {names}: {change}"),
        _ => format!("ISR of {names}: {change}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::v1::{FirstWrite, Truncated, WatermarkBack};

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
        let silence =
            |silent_ms, over| Kind::ControllerSilence(ControllerSilence { silent_ms, over });
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
}
