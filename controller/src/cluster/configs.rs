//! Configuration overrides: checked, written, and what follows from them for partitions. A changed minimum ISR reaches every
//! partition concerned in the same batch, so that leader and controller never reckon with different numbers (C-36).

use std::collections::BTreeMap;
use std::sync::Arc;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::{Assignment, Image, Record};

use super::commands::{ConfigChange, Refusal, TopicReply};
use super::work::Work;

const MIN_ISR: &str = "min.insync.replicas";
const UNCLEAN: &str = "unclean.leader.election.enable";
const PARTITIONS: &str = "num.partitions";
const REPLICATION_FACTOR: &str = "default.replication.factor";
/// Broker keys that mean something cluster-wide only.
const CLUSTER_ONLY: [&str; 2] = [PARTITIONS, REPLICATION_FACTOR];

/// The minimum ISR a partition is held to: the configured one, but never more than it has replicas (C-36). Replicas that a
/// reassignment is adding do not count (C-45).
pub(super) fn effective_min_isr(image: &Image, topic: &str, assignment: &Assignment) -> usize {
    let configured = number(image.config(topic, MIN_ISR)).unwrap_or(1);
    let factor = assignment
        .replicas
        .len()
        .saturating_sub(assignment.adding.len());
    configured.min(factor).max(1)
}

/// Whether the topic prefers an incomplete leader to none (C-35).
pub(super) fn unclean_elections_allowed(image: &Image, topic: &str) -> bool {
    image
        .config(topic, UNCLEAN)
        .is_some_and(|v| v.eq_ignore_ascii_case("true"))
}

/// How many partitions a topic gets that does not say.
pub(super) fn default_partitions(image: &Image) -> usize {
    number(cluster_wide(image, PARTITIONS)).unwrap_or(1)
}

/// How many replicas a topic gets that does not say: three where there are as many live brokers.
pub(super) fn default_replication_factor(image: &Image) -> usize {
    let live = || image.brokers.values().filter(|b| b.is_active()).count();
    number(cluster_wide(image, REPLICATION_FACTOR)).unwrap_or_else(|| live().clamp(1, 3))
}

fn cluster_wide<'a>(image: &'a Image, key: &str) -> Option<&'a str> {
    image.configs.get(&None)?.get(key).map(String::as_str)
}

fn number(value: Option<&str>) -> Option<usize> {
    value?.trim().parse().ok().filter(|&n| n > 0)
}

/// Refuses a key Kafka does not know or a value it would not take.
pub(super) fn check(topic: Option<&str>, key: &str, value: &str) -> Result<(), Refusal> {
    let positive_number = || match number(Some(value)) {
        Some(_) => Ok(()),
        None => Err(format!("{key} must be a positive number, not '{value}'")),
    };
    let verdict = if topic.is_none() && CLUSTER_ONLY.contains(&key) {
        positive_number()
    } else {
        epoka_proto::config::validate(key, value)
    };
    verdict.map_err(|message| Refusal::new(ErrorCode::InvalidConfig, message))
}

impl Work<'_> {
    /// One reply a change; the changes of one topic share their fate.
    pub(super) fn alter_configs(&mut self, changes: &[ConfigChange]) -> Vec<TopicReply> {
        let mut by_scope: BTreeMap<Option<&str>, Vec<&ConfigChange>> = BTreeMap::new();
        for change in changes {
            let scope = change.topic.as_deref();
            by_scope.entry(scope).or_default().push(change);
        }
        let mut verdicts: BTreeMap<Option<&str>, Result<(), Refusal>> = BTreeMap::new();
        for (scope, changes) in by_scope {
            verdicts.insert(scope, self.alter_scope(scope, &changes));
        }
        let reply = |change: &ConfigChange| {
            let verdict = verdicts[&change.topic.as_deref()].clone();
            self.topic_reply(change.topic.as_deref().unwrap_or_default(), verdict)
        };
        changes.iter().map(reply).collect()
    }

    fn alter_scope(
        &mut self,
        topic: Option<&str>,
        changes: &[&ConfigChange],
    ) -> Result<(), Refusal> {
        if let Some(name) = topic
            && self.image().topic(name).is_none()
        {
            let message = format!("there is no topic '{name}'");
            return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, message));
        }
        for change in changes {
            if let Some(value) = &change.value {
                check(topic, &change.key, value)?;
            }
        }
        let mut concerns_partitions = false;
        for change in changes {
            let written = self.write_config(topic, &change.key, change.value.as_deref());
            concerns_partitions |= written && [MIN_ISR, UNCLEAN].contains(&change.key.as_str());
        }
        if concerns_partitions {
            self.refresh_partitions(topic);
        }
        Ok(())
    }

    /// Writes a value unless it is the one there is.
    pub(super) fn write_config(
        &mut self,
        topic: Option<&str>,
        key: &str,
        value: Option<&str>,
    ) -> bool {
        let topic: Option<Arc<str>> = topic.map(Into::into);
        let values = self.image().configs.get(&topic);
        if values.and_then(|v| v.get(key)).map(String::as_str) == value {
            return false;
        }
        self.write(Record::Config {
            topic,
            key: key.to_owned(),
            value: value.map(str::to_owned),
        });
        true
    }

    /// Lets the change builder reckon anew with a changed minimum ISR, which also clears eligible replicas that it no longer
    /// protects (C-36, H-46), or with unclean elections allowed.
    fn refresh_partitions(&mut self, topic: Option<&str>) {
        let all = self.image().partitions();
        let concerned = all.filter(|(_, t, _)| topic.is_none_or(|name| *t.name == *name));
        let concerned: Vec<_> = concerned.map(|(id, _, _)| id).collect();
        for id in concerned {
            self.change(id, |c| c);
        }
    }

    /// What to answer about a topic as it is now.
    pub(super) fn topic_reply(&self, name: &str, result: Result<(), Refusal>) -> TopicReply {
        let topic = self.image().topic(name);
        let first: Option<&[BrokerId]> = topic
            .and_then(|t| t.partitions.values().next())
            .map(|a| a.replicas.as_slice());
        TopicReply {
            name: name.to_owned(),
            id: topic.map(|t| t.id),
            result,
            partitions: topic.map_or(0, |t| t.partitions.len() as i32),
            replication_factor: first.map_or(0, |r| r.len() as i32),
        }
    }
}
