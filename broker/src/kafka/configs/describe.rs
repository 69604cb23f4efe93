//! DescribeConfigs: values with where they come from.

use std::sync::Arc;

use epoka_proto::config::{ConfigKey, Kind, TOPIC_KEYS};
use epoka_proto::error::ErrorCode;
use epoka_proto::metadata::Image;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::{BROKER, CLUSTER_ONLY, TOPIC};
use crate::config::{BrokerConfig, KEYS};
use crate::kafka::lookup::{message, text};
use crate::kafka::topics::is_valid_name;
use crate::node::Node;

/// Where a value comes from, in Kafka's numbers.
mod source {
    pub(super) const TOPIC: i8 = 1;
    pub(super) const CLUSTER: i8 = 3;
    pub(super) const STATIC_BROKER: i8 = 4;
    pub(super) const DEFAULT: i8 = 5;
}

/// A topic key's value and where it comes from.
pub(in crate::kafka) struct Value<'a> {
    pub(in crate::kafka) key: &'static ConfigKey,
    pub(in crate::kafka) value: &'a str,
    pub(in crate::kafka) source: i8,
}

/// Every topic key with its value: the topic's own, else the cluster-wide one, else the default.
pub(in crate::kafka) fn effective<'a>(
    image: &'a Image,
    of_topic: impl Fn(&str) -> Option<&'a str>,
) -> impl Iterator<Item = Value<'a>> {
    TOPIC_KEYS.iter().map(move |key| {
        let (value, source) = if let Some(value) = of_topic(key.name) {
            (value, source::TOPIC)
        } else if let Some(value) = cluster_wide(image, key.name) {
            (value, source::CLUSTER)
        } else {
            (key.default, source::DEFAULT)
        };
        Value { key, value, source }
    })
}

fn cluster_wide<'a>(image: &'a Image, key: &str) -> Option<&'a str> {
    image.configs.get(&None)?.get(key).map(String::as_str)
}

/// What the answer is to contain beside values.
#[derive(Clone, Copy)]
struct Detail {
    synonyms: bool,
    documentation: bool,
}

/// Answers for every resource.
pub(in crate::kafka) fn describe(
    node: &Node,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let image = node.image();
    let detail = Detail {
        synonyms: request.include_synonyms,
        documentation: request.include_documentation,
    };
    let results = request.resources.iter().map(|resource| {
        let described = match resource.resource_type {
            TOPIC => topic(&image, &resource.resource_name, detail),
            BROKER => broker(node, &image, &resource.resource_name, detail),
            other => Err((
                ErrorCode::InvalidRequest,
                format!("resource type {other} has no configuration here"),
            )),
        };
        result(resource, described)
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

type Described = Result<Vec<DescribeConfigsResourceResult>, (ErrorCode, String)>;

fn result(resource: &DescribeConfigsResource, described: Described) -> DescribeConfigsResult {
    let error = described
        .as_ref()
        .err()
        .map_or(0, |(error, _)| error.code());
    let why = described.as_ref().err().and_then(|(_, why)| message(why));
    let wanted = |name: &str| match &resource.configuration_keys {
        None => true,
        Some(keys) => keys.iter().any(|k| **k == *name),
    };
    let configs = described.unwrap_or_default();
    DescribeConfigsResult::default()
        .with_error_code(error)
        .with_error_message(why)
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name.clone())
        .with_configs(configs.into_iter().filter(|c| wanted(&c.name)).collect())
}

fn topic(image: &Image, name: &str, detail: Detail) -> Described {
    if !is_valid_name(name) {
        return Err((
            ErrorCode::InvalidTopic,
            format!("'{name}' is no name of a topic"),
        ));
    }
    if image.topic(name).is_none() {
        return Err((
            ErrorCode::UnknownTopicOrPartition,
            format!("there is no topic '{name}'"),
        ));
    }
    let overrides = image.configs.get(&Some(Arc::from(name)));
    let of_topic = |key: &str| overrides?.get(key).map(String::as_str);
    let values = effective(image, of_topic);
    Ok(values
        .map(|v| entry(image, &v, v.key.name, detail))
        .collect())
}

/// One topic key, by the name it has here: its own, or the broker-wide one.
fn entry(
    image: &Image,
    value: &Value<'_>,
    name: &str,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let synonyms = if detail.synonyms {
        synonyms(image, value)
    } else {
        Vec::new()
    };
    DescribeConfigsResourceResult::default()
        .with_name(text(name))
        .with_value(Some(text(value.value)))
        .with_config_source(value.source)
        .with_synonyms(synonyms)
        .with_config_type(type_number(value.key.kind))
        .with_documentation(detail.documentation.then(|| text(value.key.doc)))
}

/// The value and everything it hides, nearest first.
fn synonyms(image: &Image, value: &Value<'_>) -> Vec<DescribeConfigsSynonym> {
    let synonym = |name: &str, value: &str, source| {
        DescribeConfigsSynonym::default()
            .with_name(text(name))
            .with_value(Some(text(value)))
            .with_source(source)
    };
    let key = value.key;
    let broker_name = key.broker_synonym.unwrap_or(key.name);
    let own =
        (value.source == source::TOPIC).then(|| synonym(key.name, value.value, source::TOPIC));
    let cluster = cluster_wide(image, key.name).map(|v| synonym(broker_name, v, source::CLUSTER));
    let default = synonym(broker_name, key.default, source::DEFAULT);
    own.into_iter().chain(cluster).chain([default]).collect()
}

fn type_number(kind: Kind) -> i8 {
    match kind {
        Kind::Boolean => 1,
        Kind::OneOf(_) => 2,
        Kind::Int(..) => 3,
        Kind::Long(..) => 5,
        Kind::Double(..) => 6,
        Kind::ListOf(_) | Kind::List => 7,
    }
}

fn broker(node: &Node, image: &Image, name: &str, detail: Detail) -> Described {
    let me = node.me().to_string();
    if !name.is_empty() && name != me {
        let why = format!("this is broker {me}, which knows no settings of '{name}'");
        return Err((ErrorCode::InvalidRequest, why));
    }
    let defaults = effective(image, |_| None).filter_map(|value| {
        let name = value.key.broker_synonym?;
        Some(entry(image, &value, name, detail))
    });
    let cluster_only = CLUSTER_ONLY.iter().filter_map(|key| {
        let value = cluster_wide(image, key)?;
        Some(
            DescribeConfigsResourceResult::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
                .with_config_source(source::CLUSTER)
                .with_config_type(type_number(Kind::Int(1, i32::MAX))),
        )
    });
    let set = |r: &DescribeConfigsResourceResult| r.config_source == source::CLUSTER;
    // Without a name: what is set for all brokers, and nothing else.
    if name.is_empty() {
        return Ok(defaults.chain(cluster_only).filter(set).collect());
    }
    let own = KEYS.iter().map(|key| {
        DescribeConfigsResourceResult::default()
            .with_name(text(key.name))
            .with_value(setting(node.config(), key.name).map(|value| text(&value)))
            .with_read_only(true)
            .with_config_source(source::STATIC_BROKER)
            .with_config_type(type_number(Kind::OneOf(&[])))
            .with_documentation(detail.documentation.then(|| text(key.doc)))
    });
    Ok(own.chain(defaults).chain(cluster_only).collect())
}

/// A broker setting as text; `None` when it is not set.
fn setting(config: &BrokerConfig, name: &str) -> Option<String> {
    let millis = |d: std::time::Duration| d.as_millis().to_string();
    Some(match name {
        "node.id" => config.node_id.to_string(),
        "log.dirs" => {
            let paths = config.log_dirs.iter().map(|p| p.display().to_string());
            paths.collect::<Vec<_>>().join(",")
        }
        "listeners" => {
            let all = config.listeners.iter();
            let all = all.map(|l| format!("{}://{}", l.name, l.listen));
            all.collect::<Vec<_>>().join(",")
        }
        "advertised.listeners" => {
            let told = config.listeners.iter().filter_map(|l| l.advertised_text());
            Some(told.collect::<Vec<_>>().join(",")).filter(|t| !t.is_empty())?
        }
        "controller.quorum.bootstrap.servers" => config.controllers.join(","),
        "epoka.grpc.listener" => config.grpc_listen.to_string(),
        "epoka.grpc.advertised" => config.grpc_advertised.clone()?,
        "broker.rack" => config.rack.clone()?,
        "auto.create.topics.enable" => config.auto_create_topics.to_string(),
        "broker.heartbeat.interval.ms" => millis(config.heartbeat_interval),
        "replica.lag.time.max.ms" => config.replica_lag_time_max_ms.to_string(),
        "replica.high.watermark.checkpoint.interval.ms" => millis(config.high_watermark_interval),
        "log.flush.offset.checkpoint.interval.ms" => millis(config.recovery_point_interval),
        "log.flush.start.offset.checkpoint.interval.ms" => millis(config.log_start_interval),
        "controlled.shutdown.deadline.ms" => millis(config.shutdown_deadline),
        "socket.request.max.bytes" => config.request_max_bytes.to_string(),
        "queued.max.request.bytes" => config.queued_max_request_bytes.to_string(),
        "max.connections" => config.max_connections.to_string(),
        "max.connections.per.ip" => config.max_connections_per_ip.to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::metadata::Record;

    fn image() -> Image {
        let mut image = Image::default();
        image.apply(&Record::Topic {
            name: "orders".into(),
            id: epoka_proto::ids::TopicId(uuid::Uuid::from_u128(1)),
        });
        for (topic, key, value) in [
            (Some("orders"), "retention.ms", "5"),
            (None, "retention.ms", "7"),
            (None, "segment.bytes", "1000"),
        ] {
            image.apply(&Record::Config {
                topic: topic.map(Into::into),
                key: key.into(),
                value: Some(value.into()),
            });
        }
        image
    }

    #[test]
    fn a_topics_values_say_where_they_come_from() {
        let detail = Detail {
            synonyms: true,
            documentation: true,
        };
        let described = topic(&image(), "orders", detail).expect("exists");
        let find = |name: &str| described.iter().find(|d| *d.name == *name).expect("known");
        let retention = find("retention.ms");
        assert_eq!(retention.value.as_deref(), Some("5"));
        assert_eq!(retention.config_source, source::TOPIC);
        let chain: Vec<_> = retention
            .synonyms
            .iter()
            .map(|s| {
                (
                    s.name.to_string(),
                    s.value.as_ref().expect("set").to_string(),
                    s.source,
                )
            })
            .collect();
        assert_eq!(
            chain,
            [
                ("retention.ms".to_owned(), "5".to_owned(), source::TOPIC),
                (
                    "log.retention.ms".to_owned(),
                    "7".to_owned(),
                    source::CLUSTER
                ),
                (
                    "log.retention.ms".to_owned(),
                    "604800000".to_owned(),
                    source::DEFAULT
                ),
            ]
        );
        assert_eq!(find("segment.bytes").config_source, source::CLUSTER);
        assert_eq!(find("flush.ms").config_source, source::DEFAULT);
        assert!(find("flush.ms").documentation.is_some());
        let unknown = topic(&image(), "nothing", detail).expect_err("unknown");
        assert_eq!(unknown.0, ErrorCode::UnknownTopicOrPartition);
    }

    #[test]
    fn every_broker_setting_can_be_told() {
        let properties = [
            ("node.id", "1"),
            ("controller.quorum.bootstrap.servers", "127.0.0.1:1"),
            ("advertised.listeners", "PLAINTEXT://b1:9092"),
            ("epoka.grpc.advertised", "b1:1"),
            ("broker.rack", "r"),
        ];
        let properties = properties.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let config = BrokerConfig::from_properties(&properties).expect("complete");
        for key in KEYS {
            assert!(setting(&config, key.name).is_some(), "{}", key.name);
        }
    }
}
