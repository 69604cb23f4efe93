//! Whether clients can write here: what a health check asks. Looks at the metadata and the lease; decides nothing.

use std::time::Duration;

use epoka_proto::ids::{BrokerId, Millis, TopicPartition};
use epoka_proto::metadata::{Assignment, Image};

/// How long a follower may be silent, in milliseconds, before its leader is not called ready: longer than a fetch is ever parked.
pub(super) const SILENT_MS: Millis = 3_000;
/// Partitions that are named; more are counted.
const NAMED: usize = 3;

/// What this broker waits for before writes with acks=all succeed on every partition it holds; nothing when they do.
pub(super) fn waiting_for(
    me: BrokerId,
    image: &Image,
    refused: Option<String>,
    topics_pending: Option<&str>,
) -> Vec<String> {
    let own = image.brokers.get(&me);
    match own {
        None => {
            let why = refused.map_or_else(String::new, |why| format!(": {why}"));
            return vec![format!(
                "the controller has not admitted this broker yet{why}"
            )];
        }
        Some(own) if own.fenced => return vec!["this broker is fenced".to_owned()],
        Some(own) if own.shutting_down => return vec!["this broker is shutting down".to_owned()],
        Some(_) => {}
    }
    let mut waiting = Vec::new();
    match topics_pending {
        None => waiting.push("the controller has not been heard yet".to_owned()),
        Some("") => {}
        Some(pending) => waiting.push(pending.to_owned()),
    }
    let held = image
        .partitions()
        .filter(|(.., a)| a.replicas.contains(&me));
    let mut troubles = held.filter_map(|(id, topic, assignment)| {
        let name = TopicPartition::new(&*topic.name, id.partition);
        Some(format!("{name} {}", trouble(me, assignment)?))
    });
    waiting.extend(troubles.by_ref().take(NAMED));
    match troubles.count() {
        0 => {}
        more => waiting.push(format!("{more} more partitions")),
    }
    waiting
}

/// Partitions led here whose writes wait for a member of the ISR that does not fetch.
pub(super) fn stalled(
    silent: impl IntoIterator<Item = (TopicPartition, BrokerId)>,
) -> impl Iterator<Item = String> {
    let mut silent = silent.into_iter();
    let named: Vec<_> = silent
        .by_ref()
        .take(NAMED)
        .map(|(partition, broker)| {
            format!("{partition} waits for broker {broker}, which is in its ISR and does not fetch")
        })
        .collect();
    let more = match silent.count() {
        0 => None,
        more => Some(format!("{more} more such")),
    };
    named.into_iter().chain(more)
}

/// What a broker may fear that reaches neither a controller nor the leaders it follows.
pub(super) fn alone(silent: Duration, out_of_reach: &[BrokerId]) -> Option<String> {
    let leaders: Vec<_> = out_of_reach.iter().map(ToString::to_string).collect();
    (!leaders.is_empty()).then(|| {
        format!(
            "no controller has answered for {} s, nor can broker {} be reached: this broker may be cut off, and fenced",
            silent.as_secs(),
            leaders.join(", ")
        )
    })
}

fn trouble(me: BrokerId, assignment: &Assignment) -> Option<String> {
    let in_sync = assignment.isr.len();
    if assignment.leader.is_none() {
        Some("has no leader".to_owned())
    } else if assignment.leader == Some(me) && in_sync < assignment.min_isr {
        let needed = assignment.min_isr;
        Some(format!("has {in_sync} in-sync replicas of {needed} needed"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use epoka_proto::ids::{BrokerEpoch, Incarnation, LeaderEpoch, PartitionEpoch, TopicId};
    use epoka_proto::metadata::{BrokerRegistration, Recovery, Topic};

    use super::*;

    const ME: BrokerId = BrokerId(1);

    fn image(fenced: bool, partitions: &[(Option<i32>, &[i32])]) -> Image {
        let ids = |list: &[i32]| list.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let assignment = |&(leader, isr): &(Option<i32>, &[i32])| Assignment {
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(0),
            isr: ids(isr),
            replicas: ids(&[1, 2, 3]),
            partition_epoch: PartitionEpoch(0),
            min_isr: 2,
            recovery: Recovery::Recovered,
            elr: Vec::new(),
            last_known_elr: Vec::new(),
            offline: Vec::new(),
            adding: Vec::new(),
            removing: Vec::new(),
        };
        let topic = Topic {
            id: TopicId::random(),
            name: "orders".into(),
            partitions: (0..)
                .zip(partitions.iter().map(assignment).map(Arc::new))
                .collect(),
        };
        let own = BrokerRegistration {
            id: ME,
            epoch: BrokerEpoch(1),
            incarnation: Incarnation(uuid::Uuid::nil()),
            listeners: Vec::new(),
            grpc_address: String::new(),
            log_dirs: Vec::new(),
            rack: None,
            fenced,
            shutting_down: false,
        };
        Image {
            brokers: BTreeMap::from([(ME, Arc::new(own))]),
            topics: BTreeMap::from([(topic.id, Arc::new(topic))]),
            ..Image::default()
        }
    }

    #[test]
    fn a_follower_that_writes_wait_for_and_a_broker_that_is_cut_off_are_told() {
        let silent = [0, 1, 2, 3, 4].map(|n| (TopicPartition::new("orders", n), BrokerId(3)));
        let told: Vec<_> = stalled(silent).collect();
        assert!(
            told[0].starts_with("orders-0 waits for broker 3,"),
            "{told:?}"
        );
        assert_eq!((told.len(), told[3].as_str()), (4, "2 more such"));
        let time = Duration::from_secs(12);
        assert_eq!(alone(time, &[]), None);
        let told = alone(time, &[BrokerId(1), BrokerId(2)]).expect("told");
        assert!(
            told.contains("12 s, nor can broker 1, 2 be reached"),
            "{told}"
        );
    }

    #[test]
    fn ready_means_unfenced_with_leaders_and_the_minimum_isr_where_this_broker_leads() {
        let well: &[(Option<i32>, &[i32])] = &[(Some(1), &[1, 2]), (Some(2), &[2])];
        let told =
            |image: &Image, pending| waiting_for(ME, image, Some("why".into()), pending).join("; ");
        assert_eq!(told(&image(false, well), Some("")), "");
        assert_eq!(told(&image(true, well), Some("")), "this broker is fenced");
        assert!(told(&Image::default(), Some("")).ends_with("not admitted this broker yet: why"));
        assert!(told(&image(false, well), None).contains("not been heard"));
        assert_eq!(
            told(&image(false, well), Some("topic x: soon")),
            "topic x: soon"
        );
        let ill: [(Option<i32>, &[i32]); 4] =
            [(None, &[]), (Some(1), &[1]), (None, &[]), (None, &[])];
        assert_eq!(
            told(&image(false, &ill), Some("")),
            "orders-0 has no leader; orders-1 has 1 in-sync replicas of 2 needed; orders-2 has no leader; 1 more partitions"
        );
    }
}
