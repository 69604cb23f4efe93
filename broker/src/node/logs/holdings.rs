//! What a broker holds before any metadata speaks of it: what a controller that lost its metadata can rebuild it from.

use epoka_proto::epochs::EpochStart;
use epoka_proto::ids::{Offset, PartitionId, TopicPartition};
use epoka_proto::v1::{self, Holding};

use super::{Logs, Opened};

/// What is told of everything that lies in the log directories.
#[derive(Debug, Default)]
pub struct Holdings {
    /// Each log.
    pub logs: Vec<Holding>,
    /// Above every producer id in them.
    pub next_producer_id: i64,
}

impl Logs {
    /// The logs found at start. Those that metadata has spoken of are taken up and no longer told; a replica that cannot be read
    /// is told as such.
    pub fn holdings(&self) -> Holdings {
        let home = self.home.lock();
        let mut holdings = Holdings::default();
        for (id, opened) in self.found.lock().iter() {
            let Some((name, dir)) = home.get(id) else {
                continue;
            };
            let watermark = self.dirs[*dir].high_watermark(name);
            let watermark = watermark.unwrap_or(Offset::ZERO);
            holdings.logs.push(holding(*id, name, opened, watermark));
            let producers = opened.as_ref().map(|log| log.producers().sorted());
            let newest = producers.ok().and_then(|p| p.last().map(|(id, _)| id.0));
            let next = newest.map_or(0, |id| id.saturating_add(1));
            holdings.next_producer_id = holdings.next_producer_id.max(next);
        }
        holdings
    }
}

fn holding(id: PartitionId, name: &TopicPartition, opened: &Opened, watermark: Offset) -> Holding {
    let told = Holding {
        topic: name.topic.to_string(),
        topic_id: id.topic.to_bytes(),
        partition: id.partition,
        ..Holding::default()
    };
    match opened {
        Ok(log) => Holding {
            history: log.epochs().entries().iter().map(epoch_start).collect(),
            log_end: log.end().0,
            high_watermark: watermark.0,
            ..told
        },
        Err(_) => Holding {
            unreadable: true,
            ..told
        },
    }
}

fn epoch_start(entry: &EpochStart) -> v1::EpochStart {
    v1::EpochStart {
        epoch: entry.epoch.0,
        start: entry.start.0,
    }
}
