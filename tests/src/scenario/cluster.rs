//! The cluster of a story: up to a few brokers, each with a log in memory and the real replica over it, a clock that moves only
//! when told to, and a controller that is nothing but the script. Messages travel when a command says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use epoka_broker::replica::{
    Acks, Answer, ClientBatch, Effect, Event, FetchAnswer, IsrAnswer, ReadAnswer, ReadRequest,
    Reader, Replica, ReplyId, Sequence, Settings,
};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch};
use epoka_proto::metadata::{Assignment, Recovery};

use super::show;
use crate::model::{Batch, ModelLog, client_batch, encode};

/// Contents from here on stood in the logs when the story began.
pub(super) const FIRST_OLD: u64 = 1000;

/// Reads are named apart from produces, which are 1, 2, 3...
const READ: ReplyId = ReplyId(u64::MAX);

type Outcome<T = ()> = Result<T, String>;

pub(super) struct Cluster {
    now: Millis,
    nodes: BTreeMap<BrokerId, Node>,
    /// The controller's newest word.
    assignment: Assignment,
    eligible: BTreeMap<BrokerId, BrokerEpoch>,
    held: BTreeMap<String, Held>,
    produces: u64,
    old: u64,
    said: String,
}

/// A broker: its disk, and the replica while it runs.
struct Node {
    epoch: BrokerEpoch,
    log: ModelLog,
    replica: Option<Replica>,
    follows: Option<BrokerId>,
    /// The high watermark at its end, for the next start.
    high_watermark: Offset,
    ask: Option<Ask>,
    bounds: Option<(BrokerId, LeaderEpoch)>,
    read: Option<Result<ReadAnswer, ErrorCode>>,
}

/// A proposal to the controller that has no answer yet.
#[derive(Clone)]
struct Ask {
    leader_epoch: LeaderEpoch,
    partition_epoch: PartitionEpoch,
    isr: Vec<BrokerId>,
    committed: bool,
}

/// An answer to a fetch, on its way.
struct Held {
    to: BrokerId,
    request: ReadRequest,
    answer: FetchAnswer,
}

/// A command: its name, plain words, and `key=value` words.
struct Words<'a> {
    name: &'a str,
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(command: &'a str) -> Outcome<Self> {
        let mut words = command.split_whitespace();
        let name = words.next().ok_or("an empty command")?;
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for word in words {
            match word.split_once('=') {
                Some((key, value)) => drop(named.insert(key, value)),
                None => plain.push(word),
            }
        }
        Ok(Self { name, plain, named })
    }

    fn word(&self, at: usize) -> Outcome<&'a str> {
        self.plain
            .get(at)
            .copied()
            .ok_or_else(|| format!("'{}' needs another word", self.name))
    }

    fn broker(&self) -> Outcome<BrokerId> {
        number(self.word(0)?).map(BrokerId)
    }

    fn number<T: TryFrom<i64>>(&self, key: &str) -> Outcome<Option<T>> {
        self.named.get(key).map(|v| number(v)).transpose()
    }

    fn brokers(&self, key: &str) -> Outcome<Option<Vec<BrokerId>>> {
        let brokers = |v: &&str| {
            v.split(',')
                .filter(|b| *b != "-")
                .map(|b| number(b).map(BrokerId))
                .collect()
        };
        self.named.get(key).map(brokers).transpose()
    }
}

fn number<T: TryFrom<i64>>(word: &str) -> Outcome<T> {
    let number: i64 = word
        .parse()
        .map_err(|_| format!("'{word}' is not a number"))?;
    T::try_from(number).map_err(|_| format!("'{word}' is out of range"))
}

/// Entries such as `1@0,3@2`: a number at an offset.
fn entries(word: &str) -> Outcome<Vec<(i32, i64)>> {
    let entry = |e: &str| {
        let (epoch, start) = e
            .split_once('@')
            .ok_or_else(|| format!("'{e}' is not epoch@offset"))?;
        Ok((number(epoch)?, number(start)?))
    };
    word.split(',').map(entry).collect()
}

impl Default for Cluster {
    fn default() -> Self {
        let ids = [1, 2, 3].map(BrokerId);
        let nodes = ids.map(|id| (id, Node::new(id, BrokerEpoch(i64::from(id.0) * 10))));
        Self {
            now: 0,
            eligible: nodes.iter().map(|(id, node)| (*id, node.epoch)).collect(),
            nodes: nodes.into(),
            assignment: Assignment {
                replicas: ids.to_vec(),
                isr: ids.to_vec(),
                elr: Vec::new(),
                last_known_elr: Vec::new(),
                offline: Vec::new(),
                adding: Vec::new(),
                removing: Vec::new(),
                leader: None,
                leader_epoch: LeaderEpoch(0),
                partition_epoch: PartitionEpoch(0),
                recovery: Recovery::Recovered,
                min_isr: 1,
            },
            held: BTreeMap::new(),
            produces: 0,
            old: FIRST_OLD,
            said: String::new(),
        }
    }
}

impl Node {
    fn new(id: BrokerId, epoch: BrokerEpoch) -> Self {
        let mut node = Self {
            epoch,
            log: ModelLog::default(),
            replica: None,
            follows: None,
            high_watermark: Offset(0),
            ask: None,
            bounds: None,
            read: None,
        };
        node.start(id);
        node
    }

    /// A new process over the disk.
    fn start(&mut self, id: BrokerId) {
        self.replica = Some(Replica::new(
            id,
            Settings::default(),
            self.log.state(),
            self.high_watermark,
        ));
        (self.follows, self.ask, self.bounds) = (None, None, None);
    }
}

impl Cluster {
    /// What was said since this was last asked.
    pub(super) fn said(&mut self) -> String {
        std::mem::take(&mut self.said)
    }

    fn say(&mut self, text: impl std::fmt::Display) {
        self.said += &format!("{text}\n");
    }

    fn node(&mut self, id: BrokerId) -> Outcome<&mut Node> {
        self.nodes
            .get_mut(&id)
            .ok_or_else(|| format!("there is no broker {id}"))
    }

    fn replica(&mut self, id: BrokerId) -> Outcome<&mut Replica> {
        self.node(id)?
            .replica
            .as_mut()
            .ok_or_else(|| format!("broker {id} is down"))
    }

    fn running(&self) -> Vec<BrokerId> {
        self.nodes
            .iter()
            .filter(|(_, n)| n.replica.is_some())
            .map(|(&id, _)| id)
            .collect()
    }

    /// Carries out a command.
    pub(super) fn run(&mut self, command: &str) -> Outcome {
        let words = Words::of(command)?;
        match words.name {
            "log" => self.set_log(&words),
            "assign" => self.assign(&words),
            "metadata" => {
                let to = words.brokers("to")?.unwrap_or_else(|| self.running());
                self.tell(to)
            }
            "eligible" => self.set_eligible(&words),
            "produce" => self.produce(&words),
            "fetch" => self.fetch(&words),
            "deliver" => self.deliver(&words),
            "answer" => self.answer(&words),
            "bounds" => self.bounds(&words),
            "read" => self.read(&words),
            "latest" => {
                let answer = self.replica(words.broker()?)?.latest_for_consumer();
                self.say(answer.map_or_else(|e| e.to_string(), |o| o.to_string()));
                Ok(())
            }
            "isr-commit" => {
                let id = words.broker()?;
                self.commit(id)
            }
            "isr-answer" => self.isr_answer(&words),
            "flush" => {
                self.node(words.broker()?)?.log.flush();
                Ok(())
            }
            "delete-records" => self.delete_records(&words),
            "crash" => self.crash(&words),
            "restart" => self.restart(&words),
            "remove" => self.remove(&words),
            "wait" => {
                self.now += number::<i64>(words.word(0)?)?;
                Ok(())
            }
            "tick" => {
                self.now += words.plain.first().map_or(Ok(0), |w| number::<i64>(w))?;
                for id in self.running() {
                    self.step(id, Event::Tick { now: self.now })?;
                }
                Ok(())
            }
            "state" => self.state(&words),
            "contents" => {
                let lines: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|(id, n)| format!("{id} {}", show::batches(n.log.batches())))
                    .collect();
                lines.iter().for_each(|line| self.say(line));
                Ok(())
            }
            unknown => Err(format!("there is no command '{unknown}'")),
        }
    }

    /// One step of a replica, its effects in order, `LogChanged` after each disk effect: the shell's side of the bargain.
    fn step(&mut self, id: BrokerId, event: Event) -> Outcome {
        let now = self.now;
        let mut out = Vec::new();
        self.replica(id)?.step(event, &mut out);
        let mut effects = VecDeque::from(out);
        while let Some(effect) = effects.pop_front() {
            let words = show::effect(&effect);
            let node = self.nodes.get_mut(&id).expect("it stepped");
            if node.log.run(&effect) {
                let (line, log) = (words.expect("told"), node.log.state());
                let line = format!("{id} {line} -> {}", show::log(&node.log));
                let mut out = Vec::new();
                node.replica
                    .as_mut()
                    .expect("it stepped")
                    .step(Event::LogChanged { log, now }, &mut out);
                effects.extend(out);
                self.say(line);
                continue;
            }
            if let Some(line) = words {
                self.say(format!("{id} {line}"));
            }
            self.perform(id, effect);
        }
        Ok(())
    }

    fn perform(&mut self, id: BrokerId, effect: Effect) {
        let node = self.nodes.get_mut(&id).expect("it stepped");
        match effect {
            Effect::Follow { leader } => node.follows = Some(leader),
            Effect::Unfollow => node.follows = None,
            Effect::AskBounds {
                leader,
                leader_epoch,
            } => node.bounds = Some((leader, leader_epoch)),
            Effect::AskIsr {
                leader_epoch,
                partition_epoch,
                isr,
                ..
            } => {
                let isr = isr.into_iter().map(|(b, _)| b).collect();
                let again = node
                    .ask
                    .take()
                    .filter(|a| a.partition_epoch == partition_epoch && a.isr == isr);
                let committed = again.is_some_and(|a| a.committed);
                node.ask = Some(Ask {
                    leader_epoch,
                    partition_epoch,
                    isr,
                    committed,
                });
            }
            Effect::Reply {
                answer: Answer::Read(answer),
                ..
            } => node.read = Some(answer),
            Effect::Reply {
                to,
                answer: Answer::Produced(outcome),
            } => {
                let outcome =
                    outcome.map_or_else(|e| e.to_string(), |p| format!("ok at {}", p.base_offset));
                self.say(format!("{id} answers p{}: {outcome}", to.0));
            }
            _ => {}
        }
    }

    /// `log 1 epochs=1@0,3@2 end=5`: what a log held before the story, batches of one record. `like=2` takes another broker's
    /// contents where offset and epoch agree, below `only=N`. `step=N` makes batches of N records.
    fn set_log(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let epochs = entries(words.named.get("epochs").ok_or("a log needs epochs")?)?;
        let end: i64 = words.number("end")?.ok_or("a log needs an end")?;
        let step: i64 = words.number("step")?.unwrap_or(1);
        let mut log = ModelLog::default();
        let like = words.brokers("like")?.and_then(|b| b.first().copied());
        let only = words.number("only")?.unwrap_or(i64::MAX);
        let mut other: Vec<Batch> =
            like.map_or_else(Vec::new, |b| self.nodes[&b].log.batches().to_vec());
        other.retain(|b| b.end.0 <= only);
        for (i, &(epoch, start)) in epochs.iter().enumerate() {
            let (epoch, start) = (LeaderEpoch(epoch), Offset(start));
            log.run(&Effect::StartEpoch { epoch, start });
            let until = epochs.get(i + 1).map_or(end, |next| next.1);
            while log.end().0 < until {
                let base = log.end();
                let mut batch = Batch {
                    base,
                    end: Offset(until.min(base.0 + step)),
                    epoch,
                    payload: 0,
                };
                // The same offset in the same epoch is the same batch (I-4).
                match other.iter().find(|b| (b.base, b.epoch) == (base, epoch)) {
                    Some(same) => batch = *same,
                    None => {
                        batch.payload = self.old;
                        self.old += 1;
                    }
                }
                log.append(batch);
            }
        }
        log.flush();
        let high_watermark = Offset(words.number("hw")?.unwrap_or(0));
        let node = self.node(id)?;
        (node.log, node.high_watermark) = (log, high_watermark);
        node.start(id);
        let line = format!(
            "{id} {}: {}",
            show::log(&node.log),
            show::batches(node.log.batches())
        );
        self.say(line);
        Ok(())
    }

    /// `assign leader=1 epoch=1 isr=1,2 to=1,2`: the controller's new word, a partition epoch later, and who hears it.
    fn assign(&mut self, words: &Words<'_>) -> Outcome {
        let a = &mut self.assignment;
        match words.named.get("leader") {
            Some(&"none") => a.leader = None,
            Some(leader) => a.leader = Some(BrokerId(number(leader)?)),
            None => {}
        }
        a.leader_epoch = words.number("epoch")?.map_or(a.leader_epoch, LeaderEpoch);
        a.partition_epoch.0 += 1;
        a.isr = words.brokers("isr")?.unwrap_or_else(|| a.isr.clone());
        a.replicas = words
            .brokers("replicas")?
            .unwrap_or_else(|| a.replicas.clone());
        a.offline = words
            .brokers("offline")?
            .unwrap_or_else(|| a.offline.clone());
        a.offline.retain(|r| !a.isr.contains(r));
        a.min_isr = words.number("min_isr")?.unwrap_or(a.min_isr);
        let to = words.brokers("to")?.unwrap_or_else(|| self.running());
        self.tell(to)
    }

    /// The controller's newest word reaches these brokers.
    fn tell(&mut self, to: Vec<BrokerId>) -> Outcome {
        for id in to {
            let (assignment, eligible) = (Arc::new(self.assignment.clone()), self.eligible.clone());
            self.step(
                id,
                Event::Assigned {
                    assignment,
                    eligible,
                    now: self.now,
                },
            )?;
        }
        Ok(())
    }

    /// `eligible 1,2`: who is registered and active now, each with its epoch.
    fn set_eligible(&mut self, words: &Words<'_>) -> Outcome {
        self.eligible.clear();
        for id in words.word(0)?.split(',') {
            let id = BrokerId(number(id)?);
            let epoch = self.node(id)?.epoch;
            self.eligible.insert(id, epoch);
        }
        for id in words.brokers("to")?.unwrap_or_else(|| self.running()) {
            let brokers = self.eligible.clone();
            self.step(
                id,
                Event::Eligible {
                    brokers,
                    now: self.now,
                },
            )?;
        }
        Ok(())
    }

    /// `produce 1 acks=all records=2 timeout=1000`: the next batch, p1, p2...; `again=p1` sends one a second time.
    fn produce(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let acks = match words.named.get("acks").copied().unwrap_or("all") {
            "all" => Acks::All,
            "1" => Acks::Leader,
            "0" => Acks::None,
            other => return Err(format!("acks={other}")),
        };
        self.produces += 1;
        let payload = self.produces;
        let records = words.number("records")?.unwrap_or(1);
        let original = match words.named.get("again") {
            Some(again) => {
                let payload = number::<i64>(again.trim_start_matches('p'))?.unsigned_abs();
                self.node(id)?.log.find(payload).copied()
            }
            None => None,
        };
        let sequence = original.map_or(Sequence::Next, |b| Sequence::Duplicate {
            base: b.base,
            end: b.end,
        });
        let batch = ClientBatch {
            bytes: client_batch(payload, records),
            records,
            sequence,
        };
        let deadline = self.now + words.number("timeout")?.unwrap_or(60_000);
        self.step(
            id,
            Event::Produce {
                reply: ReplyId(payload),
                acks,
                batch,
                deadline,
                now: self.now,
            },
        )
    }

    /// A read of a replica, and the batches it may take (`max` at most).
    fn ask(
        &mut self,
        of: BrokerId,
        request: &ReadRequest,
        max: usize,
    ) -> Outcome<(Result<ReadAnswer, ErrorCode>, Vec<Batch>)> {
        let event = Event::Read {
            reply: READ,
            request: request.clone(),
            now: self.now,
        };
        self.step(of, event)?;
        let node = self.node(of)?;
        let answer = node.read.take().expect("a read is answered in its step");
        let sent = match answer {
            Ok(ReadAnswer::Grant(grant)) => node.log.read(grant.from, grant.bound, max).to_vec(),
            _ => Vec::new(),
        };
        Ok((answer, sent))
    }

    /// `fetch 2`: a follower asks its leader and takes the answer. `hold=a` keeps the answer for `deliver a`; `lost` drops it;
    /// `max=N` and `valid=N` bound the batches sent, and those that arrive whole.
    fn fetch(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let Some(position) = self.replica(id)?.fetch_position() else {
            self.say(format!("{id} does not fetch now"));
            return Ok(());
        };
        self.now = self.now.max(position.not_before);
        let request = ReadRequest {
            reader: Reader::Follower {
                broker: id,
                epoch: self.node(id)?.epoch,
            },
            current_leader_epoch: Some(position.leader_epoch),
            offset: position.offset,
            last_fetched_epoch: position.last_fetched_epoch,
            again: false,
        };
        let leader = position.leader;
        self.say(format!("{id} -> {leader}: {}", show::request(&request)));
        let (answer, sent) = if self.node(leader)?.replica.is_none() {
            (FetchAnswer::Unreachable, Vec::new())
        } else {
            let (answer, sent) = self.ask(leader, &request, words.number("max")?.unwrap_or(100))?;
            let (mut batches, bytes) = encode(&sent);
            batches.truncate(words.number("valid")?.unwrap_or(batches.len()));
            let answer = match answer {
                Ok(ReadAnswer::Grant(grant)) => FetchAnswer::Data {
                    high_watermark: grant.high_watermark,
                    log_start: grant.log_start,
                    batches,
                    bytes,
                },
                Ok(ReadAnswer::Diverging(end)) => FetchAnswer::Diverging(end),
                Err(error) => FetchAnswer::Refused(error),
            };
            (answer, sent)
        };
        self.say(format!(
            "{leader} -> {id}: {}",
            show::fetch_answer(&answer, &sent)
        ));
        let held = Held {
            to: id,
            request,
            answer,
        };
        if let Some(name) = words.named.get("hold") {
            self.held.insert((*name).to_owned(), held);
            return Ok(());
        }
        if words.plain.contains(&"lost") {
            return Ok(());
        }
        self.arrive(held)
    }

    fn arrive(
        &mut self,
        Held {
            to,
            request,
            answer,
        }: Held,
    ) -> Outcome {
        let event = Event::Fetched {
            leader_epoch: request.current_leader_epoch.expect("followers state it"),
            fetch_offset: request.offset,
            last_fetched_epoch: request.last_fetched_epoch,
            answer,
            now: self.now,
        };
        self.step(to, event)
    }

    fn deliver(&mut self, words: &Words<'_>) -> Outcome {
        let name = words.word(0)?;
        let held = self
            .held
            .remove(name)
            .ok_or_else(|| format!("no answer '{name}' is held"))?;
        self.arrive(held)
    }

    /// `answer 2 epochs=1@0,2@1 end=2 hw=0`: an answer no leader of the story gave: batches of one record from the follower's
    /// position, or `diverging=1@4`, or an error's name.
    fn answer(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let position = self
            .replica(id)?
            .fetch_position()
            .ok_or("it does not fetch now")?;
        let answer = if let Some(error) = words.plain.get(1) {
            FetchAnswer::Refused(error_named(error)?)
        } else if let Some(end) = words.named.get("diverging") {
            let (epoch, end) = entries(end)?[0];
            let end = epoka_proto::epochs::EpochEnd {
                epoch: LeaderEpoch(epoch),
                end: Offset(end),
            };
            FetchAnswer::Diverging(end)
        } else {
            let batch = |(epoch, base): (i32, i64)| Batch {
                base: Offset(base),
                end: Offset(base + 1),
                epoch: LeaderEpoch(epoch),
                payload: FIRST_OLD - 1,
            };
            let batches: Vec<Batch> = entries(words.named.get("batches").ok_or("which batches?")?)?
                .into_iter()
                .map(batch)
                .collect();
            let (batches, bytes) = encode(&batches);
            let high_watermark = Offset(words.number("hw")?.unwrap_or(0));
            FetchAnswer::Data {
                high_watermark,
                log_start: Offset(0),
                batches,
                bytes,
            }
        };
        let request = ReadRequest {
            reader: Reader::Consumer,
            current_leader_epoch: Some(position.leader_epoch),
            offset: position.offset,
            last_fetched_epoch: position.last_fetched_epoch,
            again: false,
        };
        self.arrive(Held {
            to: id,
            request,
            answer,
        })
    }

    /// `bounds 2`: the leader answers what a follower asked of its bounds.
    fn bounds(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let (leader, leader_epoch) = self
            .node(id)?
            .bounds
            .take()
            .ok_or("no bounds were asked for")?;
        let replica = self.replica(leader)?;
        let answer = replica
            .check_leader(Some(leader_epoch))
            .map(|_| (replica.log().start, replica.log().end));
        let line = answer.map_or_else(|e| e.to_string(), |(start, end)| format!("{start}..{end}"));
        self.say(format!("{leader} -> {id}: {line}"));
        self.step(
            id,
            Event::Bounds {
                leader_epoch,
                answer,
                now: self.now,
            },
        )
    }

    /// `read 1 offset=3 last=2 epoch=4`: a consumer's read; `follower=2` reads as that follower, whatever it is doing
    /// (`life=N`: an earlier life of it).
    fn read(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let reader = match words.number("follower")?.map(BrokerId) {
            Some(broker) => {
                let epoch = self.node(broker)?.epoch;
                Reader::Follower {
                    broker,
                    epoch: words.number("life")?.map_or(epoch, BrokerEpoch),
                }
            }
            None => Reader::Consumer,
        };
        let request = ReadRequest {
            reader,
            current_leader_epoch: words.number("epoch")?.map(LeaderEpoch),
            offset: Offset(words.number("offset")?.unwrap_or(0)),
            last_fetched_epoch: words.number("last")?.map(LeaderEpoch),
            again: false,
        };
        let (answer, sent) = self.ask(id, &request, 100)?;
        self.say(format!(
            "{id} answers: {}",
            show::read_answer(&answer, &sent)
        ));
        Ok(())
    }

    /// The controller commits what a leader proposed; the leader is not told yet.
    fn commit(&mut self, id: BrokerId) -> Outcome {
        let ask = self.node(id)?.ask.as_mut().ok_or("nothing was proposed")?;
        if !std::mem::replace(&mut ask.committed, true) {
            let isr = ask.isr.clone();
            self.assignment.isr = isr;
            self.assignment.partition_epoch.0 += 1;
        }
        let (isr, epoch) = (
            show::list(&self.assignment.isr),
            self.assignment.partition_epoch,
        );
        self.say(format!("controller: isr {isr}, partition epoch {epoch}"));
        Ok(())
    }

    /// `isr-answer 1 ok|unknown|ERROR`: the controller's answer to a proposal, which `ok` commits if it is not yet.
    fn isr_answer(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let answer = match words.word(1)? {
            "ok" => {
                self.commit(id)?;
                let a = &self.assignment;
                IsrAnswer::Committed {
                    leader_epoch: a.leader_epoch,
                    partition_epoch: a.partition_epoch,
                    isr: a.isr.clone(),
                }
            }
            "unknown" => IsrAnswer::Unknown,
            error => IsrAnswer::Refused(error_named(error)?),
        };
        let ask = self.node(id)?.ask.clone().ok_or("nothing was proposed")?;
        let (leader_epoch, partition_epoch) = (ask.leader_epoch, ask.partition_epoch);
        self.step(
            id,
            Event::Isr {
                leader_epoch,
                partition_epoch,
                answer,
                now: self.now,
            },
        )
    }

    /// `delete-records 1 to=2`: retention, at a leader.
    fn delete_records(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let to = Offset(words.number("to")?.ok_or("to where?")?);
        let node = self.node(id)?;
        node.log.raise_start(to);
        let (log, line) = (node.log.state(), format!("{id} {}", show::log(&node.log)));
        self.say(line);
        self.step(id, Event::LogChanged { log, now: self.now })
    }

    /// `crash 2 keep=1`: the process ends; with `keep`, the power fails and batches that end above are gone. The high watermark
    /// was written down just before, or at `hw=N`.
    fn crash(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let high_watermark = self.replica(id)?.high_watermark();
        let noted = words.number("hw")?.map_or(high_watermark, Offset);
        let keep: Option<i64> = words.number("keep")?;
        let node = self.node(id)?;
        node.replica = None;
        node.high_watermark = noted;
        if let Some(keep) = keep {
            let lost = node.log.batches().iter().filter(|b| b.end.0 > keep).count();
            if lost > node.log.unflushed() {
                return Err("flushed batches cannot be lost".into());
            }
            node.log.lose(lost);
        }
        let line = format!("{id} is down, {}", show::log(&node.log));
        self.say(line);
        Ok(())
    }

    /// `restart 2 epoch=21`: a new process over what the disk kept, registered anew.
    fn restart(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        let epoch: Option<i64> = words.number("epoch")?;
        let node = self.node(id)?;
        node.epoch = epoch.map_or(BrokerEpoch(node.epoch.0 + 1), BrokerEpoch);
        node.start(id);
        let (epoch, watermark) = (
            node.epoch,
            node.replica
                .as_ref()
                .expect("just started")
                .high_watermark(),
        );
        let line = format!(
            "{id} runs in life {epoch}, {}, hw {watermark}",
            show::log(&node.log)
        );
        self.eligible.insert(id, epoch);
        self.say(line);
        Ok(())
    }

    /// `remove 2`: the partition leaves the broker, and its log goes.
    fn remove(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.broker()?;
        self.step(id, Event::Removed)?;
        let node = self.node(id)?;
        (node.log, node.high_watermark) = (ModelLog::default(), Offset(0));
        node.start(id);
        Ok(())
    }

    fn state(&mut self, words: &Words<'_>) -> Outcome {
        let only = words
            .plain
            .iter()
            .map(|w| number(w).map(BrokerId))
            .collect::<Outcome<Vec<_>>>()?;
        let shown = self
            .nodes
            .iter()
            .filter(|(id, _)| only.is_empty() || only.contains(id));
        let lines: Vec<_> = shown
            .map(|(&id, node)| match &node.replica {
                Some(replica) => show::replica(id, replica, node.follows, &node.log),
                None => format!("{id} is down, {}", show::log(&node.log)),
            })
            .collect();
        lines.iter().for_each(|line| self.say(line));
        Ok(())
    }
}

fn error_named(name: &str) -> Outcome<ErrorCode> {
    let found = ErrorCode::ALL.iter().find(|e| e.name() == name);
    found
        .copied()
        .ok_or_else(|| format!("there is no error '{name}'"))
}
