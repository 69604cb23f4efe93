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
    /// Whether that is when it began.
    begun: Begun,
}

/// What is known of the beginning of an incident.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Then,
    /// Then or after: the broker was last heard then.
    NotBefore,
    /// Then or before: it was found so.
    NotAfter,
}

/// A partition without a leader that takes writes.
struct Outage {
    since: Incident,
    /// The next leader knows what is committed.
    has_watermark: bool,
    /// Since when it takes writes: from then on only writers were missing.
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
        // What befell brokers is the reason of the rest. A group is told at its first moment.
        for event in group {
            if let Some(Kind::Broker(change)) = &event.kind {
                standings.push(self.standing(group[0].unix_micros, change));
            }
        }
        for event in group {
            if let Some(Kind::Isr(change)) = &event.kind {
                self.note_isr(event.unix_micros, change);
            }
            match &event.kind {
                Some(Kind::Elected(elected)) => {
                    self.note_outage(elected);
                    if self.concerns(&elected.topic, elected.partition) {
                        elections.push(elected);
                    }
                }
                Some(Kind::Broker(_)) => {}
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
        decision.extend(elections.iter().map(|e| self.election(e)));
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
                let bound = match outage.as_ref().map(|o| o.since.begun) {
                    Some(Begun::NotBefore) => "at most ",
                    Some(Begun::NotAfter) => "at least ",
                    Some(Begun::Then) | None => "",
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
                        "first write tried and accepted{to}: was unavailable {bound}{}",
                        words::span(micros)
                    ),
                    Some(micros) => format!(
                        "first accepted write{to}: unavailable {bound}{}",
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
                    outage.has_watermark = true;
                    if back.writable {
                        outage.ready.get_or_insert(event.unix_micros);
                    }
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
                        begun: Begun::NotBefore,
                    },
                );
            }
            BrokerKind::ShuttingDown => self.incident(broker, at),
            BrokerKind::Fenced => {
                self.fenced.insert(broker);
                let begun = Begun::NotAfter;
                self.incident_since(broker, Incident { at, begun });
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
        let begun = Begun::Then;
        self.incident_since(broker, Incident { at, begun });
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
            let outage = Outage {
                since,
                has_watermark: false,
                ready: None,
            };
            let ongoing = self.outages.entry(name).or_insert(outage);
            // A leader that was ready ended the outage, though nobody wrote: this is another one.
            if ongoing.ready.take().is_some() {
                ongoing.since = since;
            }
            ongoing.has_watermark = false;
        }
    }

    /// Whether a leader takes writes also depends on its ISR.
    fn note_isr(&mut self, at: i64, change: &IsrChanged) {
        let name = TopicPartition::new(change.topic.as_str(), change.partition);
        let Some(outage) = self.outages.get_mut(&name) else {
            return;
        };
        if change.new_isr.len() < change.min_isr as usize {
            outage.ready = None;
        } else if outage.has_watermark {
            outage.ready.get_or_insert(at);
        }
    }

    fn election(&self, elected: &Elected) -> String {
        let (old, new) = (elected.old_leader, elected.new_leader);
        let change = if old == new {
            format!("leader {} stays", words::leader(new))
        } else {
            format!("leader {} -> {}", words::leader(old), words::leader(new))
        };
        let is_well = |broker: i32| !self.incidents.contains_key(&broker);
        let manner = match (elected.unclean, old) {
            (true, _) => ", unclean",
            (false, Some(broker)) if old != new && is_well(broker) => ", as planned",
            _ => "",
        };
        format!(
            "{}-{} {change}, epoch {} -> {}{manner}",
            elected.topic, elected.partition, elected.old_epoch, elected.new_epoch
        )
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
mod tests;
