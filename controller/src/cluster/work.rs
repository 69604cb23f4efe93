//! One command at work: every record goes through here, so that image, records and notices never part. Also the one way
//! in which a partition is changed: through the change builder, with the liveness of brokers as the image has it.

use std::collections::BTreeMap;

use epoka_proto::ids::{BrokerId, PartitionId, TopicPartition};
use epoka_proto::metadata::{Assignment, BrokerRegistration, Image, Record};

use super::change::{Change, Changed, Kind};
use super::commands::Reply;
use super::{Notice, Outcome, configs, notices};

pub(super) struct Work<'a> {
    image: &'a mut Image,
    /// Where the command stands in the metadata log.
    pub(super) offset: i64,
    records: Vec<Record>,
    notices: Vec<Notice>,
    /// A broker whose fence or shutdown is being processed: counts as not acceptable whatever its flags say (C-15).
    pub(super) leaving: Option<BrokerId>,
}

impl<'a> Work<'a> {
    pub(super) fn new(image: &'a mut Image, offset: i64) -> Self {
        Self {
            image,
            offset,
            records: Vec::new(),
            notices: Vec::new(),
            leaving: None,
        }
    }

    pub(super) fn finish(self, reply: Reply) -> Outcome {
        Outcome {
            records: self.records,
            reply,
            notices: self.notices,
        }
    }

    pub(super) fn image(&self) -> &Image {
        self.image
    }

    /// Writes a record that speaks neither of a broker nor of an existing partition.
    pub(super) fn write(&mut self, record: Record) {
        self.image.apply(&record);
        self.records.push(record);
    }

    /// Writes a broker's registration, if it changed.
    pub(super) fn write_broker(&mut self, registration: BrokerRegistration) {
        let old = self.image.brokers.get(&registration.id);
        if old.is_some_and(|o| **o == registration) {
            return;
        }
        self.notices
            .extend(notices::of_broker(old.map(|o| o.as_ref()), &registration));
        self.write(Record::Broker(registration));
    }

    /// May this replica lead and be in ISRs, as far as this command is concerned (C-15)?
    pub(super) fn acceptable(&self, broker: BrokerId) -> bool {
        self.leaving != Some(broker)
            && self
                .image
                .brokers
                .get(&broker)
                .is_some_and(|b| b.is_active())
    }

    /// Changes a partition through the change builder (section 1.3). Says what came of it, or `None` when nothing changed.
    pub(super) fn change(
        &mut self,
        id: PartitionId,
        edit: impl FnOnce(Change<'_>) -> Change<'_>,
    ) -> Option<Changed> {
        let topic = self.image.topics.get(&id.topic)?.clone();
        let old = topic.partitions.get(&id.partition)?.clone();
        let acceptable = |broker| self.acceptable(broker);
        let min_isr = configs::effective_min_isr(self.image, &topic.name, &old);
        let kind = if configs::unclean_elections_allowed(self.image, &topic.name) {
            Kind::Unclean
        } else {
            Kind::Online
        };
        let change = Change::new(&old, min_isr, &acceptable).kind(kind);
        let changed = edit(change).build()?;
        let name = TopicPartition::new(topic.name.clone(), id.partition);
        self.notices.extend(notices::of_partition(
            &name,
            &old,
            &changed.assignment,
            changed.unclean,
        ));
        self.write(Record::Partition {
            id,
            assignment: changed.assignment.clone(),
        });
        Some(changed)
    }

    /// The partitions that satisfy a condition.
    pub(super) fn partitions_where(
        &self,
        condition: impl Fn(&Assignment) -> bool,
    ) -> Vec<PartitionId> {
        let all = self.image.partitions();
        all.filter(|(_, _, a)| condition(a))
            .map(|(id, _, _)| id)
            .collect()
    }

    /// The first command of a cluster.
    pub(super) fn initialize(
        &mut self,
        cluster_id: &str,
        configs: &BTreeMap<String, String>,
    ) -> Reply {
        if self.image.cluster_id.is_empty() {
            self.write(Record::Cluster {
                cluster_id: cluster_id.to_owned(),
                offset_base: 0,
            });
            for (key, value) in configs {
                self.write(Record::Config {
                    topic: None,
                    key: key.clone(),
                    value: Some(value.clone()),
                });
            }
        }
        Reply::Done(Ok(()))
    }
}
