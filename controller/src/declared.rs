//! Declared topics (`epoka.topics`): the active controller makes those that are missing once enough brokers serve, and tells
//! brokers until they know of all of them. A topic that was there once is not made again: who deletes it means it.

use epoka_proto::metadata::Image;
use epoka_proto::v1::NewTopic;
use parking_lot::Mutex;
use tokio::time::{Duration, timeout};

use crate::cluster::{Command, ConfigChange, Reply};
use crate::service::new_topic;
use crate::shared::{Role, Shared};

/// How long a failed attempt waits for a change before it is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// The declared topics, and how far they are.
pub(crate) struct Declared {
    topics: Vec<NewTopic>,
    progress: Mutex<Progress>,
}

#[derive(Clone, Debug)]
enum Progress {
    /// What is waited for.
    Pending(String),
    /// All were seen to exist at this metadata offset.
    Made(Option<i64>),
}

impl Declared {
    pub(crate) fn new(topics: Vec<NewTopic>) -> Self {
        let progress = if topics.is_empty() {
            Progress::Made(None)
        } else {
            Progress::Pending("the declared topics are not made yet".to_owned())
        };
        Self {
            topics,
            progress: Mutex::new(progress),
        }
    }

    /// What a broker that knows the metadata up to this offset waits for; empty: nothing.
    pub(crate) fn pending_for(&self, known: Option<i64>) -> String {
        match &*self.progress.lock() {
            Progress::Pending(why) => why.clone(),
            Progress::Made(at) if known >= *at => String::new(),
            Progress::Made(_) => "the declared topics are not known here yet".to_owned(),
        }
    }

    fn note(&self, progress: Progress) {
        *self.progress.lock() = progress;
    }

    /// Says what is waited for, once.
    fn wait_for(&self, why: String) {
        let mut progress = self.progress.lock();
        if !matches!(&*progress, Progress::Pending(told) if *told == why) {
            tracing::info!("{why}");
            *progress = Progress::Pending(why);
        }
    }

    fn is_made(&self) -> bool {
        matches!(*self.progress.lock(), Progress::Made(_))
    }

    fn missing(&self, image: &Image) -> Vec<&NewTopic> {
        let missing = |t: &&NewTopic| image.topic(&t.name).is_none();
        self.topics.iter().filter(missing).collect()
    }

    /// How many brokers must serve before any is made: with fewer, all partitions would lie on the first to come.
    fn brokers_needed(&self) -> usize {
        let factors = self.topics.iter().map(|t| t.replication_factor);
        usize::try_from(factors.max().unwrap_or(0)).unwrap_or(0)
    }
}

/// Makes the declared topics whenever this controller is active, until they have been there once.
pub(crate) async fn make(shared: std::sync::Arc<Shared>) {
    let mut role = shared.role.subscribe();
    let mut changes = shared.metadata.watch_newest();
    while !shared.declared.is_made() {
        if role.wait_for(|r| *r == Role::Active).await.is_err() {
            return;
        }
        changes.borrow_and_update();
        attempt(&shared).await;
        if !shared.declared.is_made() {
            // A change, a while, or the end of the controller, which ends this task.
            drop(timeout(RETRY, changes.changed()).await);
        }
    }
}

async fn attempt(shared: &Shared) {
    let declared = &shared.declared;
    let (image, newest) = (shared.metadata.cluster(), shared.metadata.newest());
    let image = image.image();
    let missing = declared.missing(image);
    if missing.is_empty() {
        warn_of_other_shapes(&declared.topics, image);
        let lost = if shared.config.restore_brokers > 0 {
            settings_without_value(&declared.topics, image)
        } else {
            Vec::new()
        };
        if lost.is_empty() {
            return declared.note(Progress::Made(newest));
        }
        tracing::info!(
            count = lost.len(),
            "gives declared topics the settings that were lost"
        );
        if let Err(status) = shared
            .propose(Command::AlterConfigs { changes: lost })
            .await
        {
            let why = status.message().to_owned();
            declared.wait_for(format!("settings of declared topics: {why}"));
        }
        return;
    }
    let names = missing
        .iter()
        .map(|t| t.name.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    let serving = image.brokers.values().filter(|b| !b.fenced).count();
    let needed = declared.brokers_needed();
    if serving < needed {
        return declared.wait_for(format!(
            "topic {names} waits for {needed} brokers; {serving} serve"
        ));
    }
    let topics = missing.into_iter().cloned().map(new_topic).collect();
    let command = Command::CreateTopics { topics };
    let refused = match shared.propose(command).await {
        Err(status) => Some(status.message().to_owned()),
        Ok(outcome) => match outcome.reply {
            Reply::Topics(topics) => topics
                .into_iter()
                .find_map(|t| Some(format!("{}: {}", t.name, t.result.err()?.message))),
            other => unreachable!("topic commands are answered with topics, not {other:?}"),
        },
    };
    if let Some(why) = refused {
        declared.wait_for(format!("cannot make topic {why}"));
    } else {
        tracing::info!(topics = names, "made the declared topics");
    }
}

/// Declared settings that topics do not have: a rebuilt cluster has lost them all.
fn settings_without_value(topics: &[NewTopic], image: &Image) -> Vec<ConfigChange> {
    let changes = topics.iter().flat_map(|topic| {
        let name: std::sync::Arc<str> = topic.name.as_str().into();
        let known = image.configs.get(&Some(name)).cloned().unwrap_or_default();
        topic
            .configs
            .iter()
            .filter(move |(key, _)| !known.contains_key(*key))
            .map(|(key, value)| ConfigChange {
                topic: Some(topic.name.clone()),
                key: key.clone(),
                value: Some(value.clone()),
            })
    });
    changes.collect()
}

/// What exists stays as it is.
fn warn_of_other_shapes(topics: &[NewTopic], image: &Image) {
    for declared in topics {
        let there = image
            .topic(&declared.name)
            .map_or(0, |t| t.partitions.len());
        if i32::try_from(there) != Ok(declared.partitions) {
            tracing::warn!(
                "topic {} is declared with {} partitions and has {there}; `epoka topic grow` adds partitions",
                declared.name,
                declared.partitions
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_waits_until_it_knows_of_all_that_was_made() {
        let declared = Declared::new(vec![NewTopic::default()]);
        assert_ne!(declared.pending_for(Some(100)), "");
        declared.note(Progress::Made(Some(7)));
        assert_ne!(declared.pending_for(None), "");
        assert_ne!(declared.pending_for(Some(6)), "");
        assert_eq!(declared.pending_for(Some(7)), "");
        assert_eq!(Declared::new(Vec::new()).pending_for(None), "");
    }
}
