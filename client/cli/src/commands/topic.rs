//! `epoka topic`: administration of topics, with the names of Kafka's options.

use clap::{Args, Subcommand};
use epoka_client::{Client, Error, NewTopic, Partition, Topic};
use epoka_proto::error::ErrorCode;
use serde_json::{Value, json};

use super::view::table;
use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::topic_spec::key_value;

/// Create, delete, list, describe, grow and configure topics.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka topic create orders --partitions 6 --replication-factor 3 --config min.insync.replicas=2
  epoka topic describe orders
  epoka topic grow orders --partitions 12
  epoka topic alter orders --config retention.ms=3600000 --delete-config segment.bytes
  epoka topic delete orders")]
pub struct TopicArgs {
    #[command(subcommand)]
    command: TopicCommand,
}

#[derive(Subcommand, Debug)]
enum TopicCommand {
    /// Create a topic.
    Create {
        #[command(flatten)]
        name: NameArgs,
        /// How many partitions [default: the cluster's num.partitions].
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        partitions: Option<i32>,
        /// How many brokers hold each partition [default: the cluster's default.replication.factor].
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        replication_factor: Option<i32>,
        /// A topic setting; may be repeated.
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
        /// Succeed when the topic exists already.
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Delete a topic and its records.
    Delete {
        #[command(flatten)]
        name: NameArgs,
        /// Succeed when there is no such topic.
        #[arg(long)]
        if_exists: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// List topics.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Show partitions and settings of a topic, or of all.
    Describe {
        /// The topic [default: all].
        topic: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Give a topic more partitions.
    Grow {
        #[command(flatten)]
        name: NameArgs,
        /// The new total.
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        partitions: i32,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Change settings of a topic.
    Alter {
        #[command(flatten)]
        name: NameArgs,
        /// A setting and its new value; may be repeated.
        #[arg(long = "config", visible_alias = "add-config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
        /// A setting to take back to its default; may be repeated.
        #[arg(long, value_name = "KEY")]
        delete_config: Vec<String>,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
}

/// A topic's name, as an argument or as Kafka's `--topic`.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct NameArgs {
    /// The topic.
    name: Option<String>,
    /// The topic, as Kafka's tools take it.
    #[arg(long, value_name = "NAME", hide = true)]
    topic: Option<String>,
}

impl NameArgs {
    fn get(self) -> String {
        self.name.or(self.topic).expect("clap requires one of them")
    }
}

/// Runs the command.
///
/// # Errors
/// The controller refuses, or the cluster is not there.
pub async fn run(args: TopicArgs) -> Outcome {
    match args.command {
        TopicCommand::Create {
            name,
            partitions,
            replication_factor,
            configs,
            if_not_exists,
            cluster,
        } => {
            let topic = NewTopic {
                name: name.get(),
                partitions,
                replication_factor,
                configs: configs.into_iter().collect(),
            };
            create(&cluster.client().await?, &topic, if_not_exists).await
        }
        TopicCommand::Delete {
            name,
            if_exists,
            cluster,
        } => {
            let name = name.get();
            let deleted = cluster.client().await?.admin().delete_topic(&name).await;
            match deleted {
                Err(Error::Refused {
                    code: ErrorCode::UnknownTopicOrPartition,
                    ..
                }) if if_exists => {
                    say!("topic {name} does not exist");
                }
                deleted => {
                    deleted?;
                    say!("deleted topic {name}");
                }
            }
            Ok(())
        }
        TopicCommand::List { json, cluster } => {
            let metadata = cluster.client().await?.metadata();
            let names: Vec<_> = metadata.topics.keys().collect();
            if json {
                say!("{}", json!(names));
            } else {
                names.iter().for_each(|name| say!("{name}"));
            }
            Ok(())
        }
        TopicCommand::Describe {
            topic,
            json,
            cluster,
        } => {
            let metadata = cluster.client().await?.metadata();
            let topics: Vec<(&String, &Topic)> = match &topic {
                Some(name) => vec![(name, metadata.topic(name)?)],
                None => metadata.topics.iter().collect(),
            };
            if json {
                let described: Vec<_> =
                    topics.iter().map(|(name, t)| topic_json(name, t)).collect();
                say!("{:#}", json!(described));
            } else {
                topics.iter().for_each(|(name, t)| {
                    crate::output::print(format_args!("{}", topic_text(name, t)))
                });
            }
            Ok(())
        }
        TopicCommand::Grow {
            name,
            partitions,
            cluster,
        } => {
            let name = name.get();
            cluster
                .client()
                .await?
                .admin()
                .grow_topic(&name, partitions)
                .await?;
            say!("topic {name} has {partitions} partitions");
            Ok(())
        }
        TopicCommand::Alter {
            name,
            configs,
            delete_config,
            cluster,
        } => {
            let name = name.get();
            let set = configs.into_iter().map(|(key, value)| (key, Some(value)));
            let reset = delete_config.into_iter().map(|key| (key, None));
            let changes: Vec<_> = set.chain(reset).collect();
            if changes.is_empty() {
                return Err(Failure::usage(format!(
                    "nothing to change for topic {name}: give --config KEY=VALUE or --delete-config KEY"
                )));
            }
            cluster
                .client()
                .await?
                .admin()
                .alter_configs(Some(&name), &changes)
                .await?;
            say!(
                "changed {} setting{} of topic {name}",
                changes.len(),
                if changes.len() == 1 { "" } else { "s" }
            );
            Ok(())
        }
    }
}

async fn create(client: &Client, topic: &NewTopic, if_not_exists: bool) -> Outcome {
    let name = &topic.name;
    match client.admin().create_topic(topic).await {
        Err(Error::Refused {
            code: ErrorCode::TopicAlreadyExists,
            ..
        }) if if_not_exists => {
            say!("topic {name} exists already");
        }
        created => {
            let created = created?;
            say!(
                "created topic {name}: {} partitions, replication factor {}",
                created.partitions,
                created.replication_factor
            );
        }
    }
    Ok(())
}

fn topic_json(name: &str, topic: &Topic) -> Value {
    let ids = |list: &[epoka_proto::ids::BrokerId]| list.iter().map(|id| id.0).collect::<Vec<_>>();
    let partition = |(number, p): (&i32, &Partition)| {
        json!({
            "partition": number,
            "leader": p.leader.map(|l| l.0),
            "leader_epoch": p.leader_epoch.0,
            "partition_epoch": p.partition_epoch.0,
            "replicas": ids(&p.replicas),
            "isr": ids(&p.isr),
            "elr": ids(&p.elr),
            "min_isr": p.min_isr,
        })
    };
    json!({
        "topic": name,
        "topic_id": topic.id.to_string(),
        "partitions": topic.partitions.iter().map(partition).collect::<Vec<_>>(),
        "configs": topic.configs,
    })
}

fn topic_text(name: &str, topic: &Topic) -> String {
    let configs: Vec<_> = topic
        .configs
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let list = |ids: &[epoka_proto::ids::BrokerId]| {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        if ids.is_empty() {
            "none".to_owned()
        } else {
            ids.join(",")
        }
    };
    let rows = topic.partitions.iter().map(|(number, p)| {
        vec![
            format!("{name}-{number}"),
            p.leader
                .map_or_else(|| "none".to_owned(), |l| l.to_string()),
            p.leader_epoch.to_string(),
            list(&p.replicas),
            list(&p.isr),
            p.min_isr.to_string(),
        ]
    });
    let header = ["partition", "leader", "epoch", "replicas", "isr", "min isr"];
    let mut text = format!("topic {name}  id {}", topic.id);
    if !configs.is_empty() {
        text += &format!("  {}", configs.join(", "));
    }
    text.push('\n');
    text + &table(&header, rows.collect())
}
